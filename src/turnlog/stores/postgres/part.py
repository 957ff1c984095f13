"""One append of a batch, from what its caller knows of the thread to what became of it.

Pure: it speaks to no server.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from turnlog.errors import NotWritten, OutcomeUnknown, ReadOnly
from turnlog.stores.base import START, Outcome, Position, Read, replaced
from turnlog.stores.postgres.failures import failure, not_written
from turnlog.stores.records import read_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from turnlog.errors import TurnlogError
    from turnlog.stores.base import Append
    from turnlog.stores.postgres.reader import Seen

_MOST: Final = 512 << 20  # bytes in one append; the server takes 1 GB, encoded and all


class Part(Struct, eq=False):
    """One append of a batch, and how far it is.

    Attributes:
        append: what is wanted.
        news: what others appended, as read last.
        lines: what it comes to after the news.
        size: how many bytes the thread grows by.
        ids: the append ids of the tries that may have landed, or may still.
        known: how many turns of the thread were read: those that its lines follow.
        life: which life of the thread was read; None where there is none yet.
        hopeful: nothing was read yet.
        outcome: what became of it; None as long as that is open.
    """

    append: Append
    news: Read = Read()
    known: int = 0
    life: uuid.UUID | None = None
    lines: Sequence[bytes] = ()
    size: int = 0
    ids: tuple[uuid.UUID, ...] = ()
    hopeful: bool = False
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        """Decide on no news."""
        self.decide(Read(position=self.append.position))
        self.hopeful = bool(self.lines)

    def decide(self, news: Read) -> None:
        """Decide what to append after some news."""
        self.news = news
        life = news.position.incarnation
        self.known = news.position.offset
        self.life = life if isinstance(life, uuid.UUID) else None
        self.lines = self.append.decide(news)
        self.size = sum(map(len, self.lines)) + len(self.lines)

    def tries(self, append: uuid.UUID) -> None:
        """Note that a try is on its way."""
        if append not in self.ids:
            self.ids += (append,)

    def forget(self, append: uuid.UUID) -> None:
        """Note that a try has not landed, and never will."""
        self.ids = tuple(known for known in self.ids if known != append)

    def won(self, append: uuid.UUID) -> None:
        """Note that its lines are in the thread, behind the news; a new one's life is the try."""
        end = self.known + len(self.lines)
        self.outcome = Outcome(self.news, Position(self.life or append, end, end))

    def failed(self, error: TurnlogError) -> None:
        """Note that nothing of it is in the thread, or that it cannot be known."""
        known = self.append.position
        self.outcome = Outcome(Read(position=known), known, error)

    def busy(self) -> None:
        """Note that another has its thread."""
        known = self.append.position
        self.outcome = Outcome(Read(position=known), known, busy=True)

    def check(self, *, read_only: bool) -> None:
        """Note where it cannot be written, whatever the server says."""
        if self.lines and read_only:
            self.failed(ReadOnly.of(self.append.key))
        elif self.size > _MOST:
            self.failed(
                NotWritten(
                    self.append.key,
                    f"what is to be appended at once has {self.size >> 20} MB, and PostgreSQL "
                    f"takes {_MOST >> 20}; nothing was written",
                    "divide it",
                )
            )

    def take_in(self, seen: Seen | None) -> None:
        """Decide anew after what was read; note the outcome where nothing has to be written."""
        known = self.append.position
        if known != START and (seen is None or seen.life != known.incarnation):
            self.failed(replaced(self.append.key))
            return
        if seen is None:
            self.decide(Read())
            if not self.lines:
                self.outcome = Outcome(Read(), START)
            return
        end = seen.turns if seen.landed is None else known.offset + seen.landed
        self.decide(read_of(seen.lines[: seen.landed], Position(seen.life, end, end)))
        if seen.landed is not None:
            self.won(seen.life)
        elif not self.lines:
            self.outcome = Outcome(self.news, self.news.position)

    def fail(self, error: psycopg.Error) -> None:
        """Note that the server, or the way to it, has failed until patience ended."""
        key = self.append.key
        if not self.ids:
            self.failed(not_written(key, error))
            return
        doing = "the connection was lost in the middle of the append"
        unknown = failure(OutcomeUnknown, key, doing, error)
        unknown.__cause__ = error
        self.failed(unknown)
