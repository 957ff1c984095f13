"""The working set of an open thread: its turns in memory, kept equal to its file.

The lines that were read when the thread was opened, and after them those that were committed or
read forward since. A line becomes a Message when somebody looks at it. The set changes in one
place, `settle`, which only the leader of a commit calls, and ends each change with one assignment;
so whoever reads it needs no lock, and a fork at any moment leaves the child a whole one.

Source: design, section 4, points 3, 7 and 8; issue of `key` and `expect` in section 4, point 4.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, SupportsIndex, overload

from turnlog.codec import decode_turn
from turnlog.conversation import Conversation
from turnlog.errors import (
    Closed,
    Conflict,
    DamageWarning,
    NotWritten,
    OutcomeUnknown,
    StoreError,
    ThreadReplaced,
    TurnlogError,
)
from turnlog.message import Message
from turnlog.stores.base import in_order
from turnlog.ticket import Decision

if TYPE_CHECKING:
    from turnlog.names import ThreadKey
    from turnlog.stores.base import Outcome, Position, Problem, Read
    from turnlog.ticket import Ticket


class Turns(Sequence[Message]):
    """The first turns of a working set, decoded when they are looked at. Never changes."""

    __slots__ = ("_added", "_count", "_loaded")

    def __init__(self, loaded: Sequence[bytes], added: Sequence[bytes], count: int) -> None:
        """Look at `count` lines: those loaded, and after them those added since."""
        self._loaded = loaded
        self._added = added
        self._count = count

    def __len__(self) -> int:
        """Give the number of turns."""
        return self._count

    @overload
    def __getitem__(self, index: SupportsIndex) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Message | Sequence[Message]:
        """Decode one turn, or several."""
        if isinstance(index, slice):
            return [self[i] for i in range(self._count)[index]]
        i = range(self._count)[index] - len(self._loaded)
        return decode_turn(self._loaded[i] if i < 0 else self._added[i])

    def __iter__(self) -> Iterator[Message]:
        """Decode the turns in order."""
        loaded = min(len(self._loaded), self._count)
        yield from map(decode_turn, islice(self._loaded, loaded))
        yield from map(decode_turn, islice(self._added, self._count - loaded))


class WorkingSet:
    """The turns of an open thread.

    Args:
        key: the thread.
        read: what was read when it was opened.

    Attributes:
        ended: why the handle takes no more calls; None while it does.
        untold: warnings that the next caller in its own thread has to issue.
    """

    def __init__(self, key: ThreadKey, read: Read) -> None:
        """Begin with what was read."""
        self.key = key
        self.ended: TurnlogError | None = None
        self.untold: deque[Warning] = deque(read.warnings)
        self._loaded = read.lines
        self._added: list[bytes] = []
        self._state: tuple[int, Position] = (len(read.lines), read.position)
        self._keys = dict(read.keys)
        self._problems: list[Sequence[Problem]] = []  # each part worked out when it is looked at
        self._audit = read.audit
        self._audited: tuple[Problem, ...] | None = None
        self._note(read.problems)

    def __len__(self) -> int:
        """Give the number of turns."""
        return self._state[0]

    @property
    def position(self) -> Position:
        """How far it has read."""
        return self._state[1]

    def turns(self) -> Turns:
        """Give the turns as they are now, in constant time."""
        return Turns(self._loaded, self._added, self._state[0])

    def index_of(self, key: str) -> int | None:
        """Give the position of the turn that has an idempotency key."""
        return self._keys.get(key)

    def problems(self) -> tuple[Problem, ...]:
        """Give all that is wrong with the lines, after looking at each by the letter."""
        if self._audited is None:
            self._audited = self._audit()
        return in_order((*chain(*self._problems), *self._audited))

    # ---- as a commit changes it ----

    def decide(self, tickets: Sequence[Ticket], news: Read) -> Decision:
        """Decide what tickets append after the news."""
        decision = Decision()
        for ticket in tickets:
            self._decide(ticket, news, decision)
        return decision

    def _decide(self, ticket: Ticket, news: Read, decision: Decision) -> None:
        held = self._state[0] + len(news.lines) + len(decision.lines)
        key = ticket.key
        ticket.refusal, ticket.dependent = None, False
        if self.ended is not None:  # since the ticket was made
            ticket.refusal = _refusal(self.key, self.ended)
        elif key in decision.keys:
            ticket.dependent = True
        elif key is not None and (key in self._keys or key in news.keys):
            return
        elif ticket.expect is not None and ticket.expect != held:
            ticket.refusal = self._conflict(ticket.expect, held, news, decision)
            ticket.dependent = bool(decision.lines)
        elif ticket.lines:
            if key is not None:
                decision.keys[key] = held
            decision.lines += ticket.lines
            ticket.dependent = True

    def _conflict(self, expected: int, held: int, news: Read, decision: Decision) -> Conflict:
        came = [*news.lines, *decision.lines]
        before = [*self.turns()[expected:]]
        turns = before + [decode_turn(line) for line in came[max(0, expected - len(self)) :]]
        return Conflict(
            self.key,
            f"it holds {held} turns, not the {expected} expected; nothing was written",
            "look at the error's turns, which came in between, and decide anew",
            expected=expected,
            actual=held,
            turns=Conversation(turns),
        )

    def settle(
        self, tickets: Sequence[Ticket], outcome: Outcome, decision: Decision | None
    ) -> None:
        """Take in the outcome of a commit, and note in each ticket that failed its error."""
        failed = outcome.error
        for ticket in tickets:
            if decision is not None:
                ticket.error = ticket.refusal
            if failed is not None and _fails_with(ticket, decision):
                ticket.error = again(failed)
        lines: Sequence[bytes] = ()
        if failed is None and decision is not None:
            lines = decision.lines
            self._keys.update(decision.keys)
        self._take_in(outcome.news, lines, outcome.position)
        if isinstance(failed, OutcomeUnknown | ThreadReplaced):
            self.ended = failed

    def _take_in(self, news: Read, lines: Sequence[bytes], position: Position) -> None:
        count = self._state[0]
        kept = count - len(self._loaded)
        if len(self._added) > kept:  # what a fork caught half-way
            del self._added[kept:]
        if news.lines or news.problems:
            self._take_in_news(news, count)
        if news.warnings:
            self.untold.extend(news.warnings)
        self._added += lines
        self._state = (count + len(news.lines) + len(lines), position)

    def _take_in_news(self, news: Read, count: int) -> None:
        for key, index in news.keys.items():
            self._keys.setdefault(key, count + index)
        self._added += news.lines
        self._note((*news.problems, *news.audit()))

    def _note(self, problems: Sequence[Problem]) -> None:
        """Keep problems, and have the first of them told: one warning for a thread is enough."""
        if not problems:
            return
        if not self._problems:
            self.untold.append(damage_warning(self.key))
        self._problems.append(problems)

    def end(self) -> None:
        """Take no more calls: the thread was deleted."""
        self.ended = Closed(self.key, "it was deleted", "open it again to start a new thread")


def damage_warning(key: ThreadKey) -> DamageWarning:
    """Make the warning for a thread that has lines which cannot be read."""
    return DamageWarning(
        f"{key}: some of its lines cannot be read; every other turn is there; "
        f"`problems` of the opened thread lists them"
    )


def again(error: TurnlogError) -> TurnlogError:
    """Copy an error, so that everyone who gets it raises one of his own."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    if isinstance(error, StoreError) and isinstance(own, StoreError):
        own.errno = error.errno
    return own


def _refusal(key: ThreadKey, ended: TurnlogError) -> TurnlogError:
    """Return the error for an append that waited while its handle was closed (C37)."""
    if not isinstance(ended, OutcomeUnknown):
        return again(ended)
    refused = NotWritten(
        key,
        "the outcome of the append before it is unknown, so this handle takes no more; "
        "nothing of this one was written",
        "open the thread again, look, and append to what you opened",
    )
    refused.__cause__ = ended
    refused.errno = ended.errno
    return refused


def _fails_with(ticket: Ticket, decision: Decision | None) -> bool:
    """Tell whether a failed commit is the ticket's failure too, not an answer it has already."""
    return decision is None or not decision.lines or ticket.dependent
