"""Copies threads from one store to another, line for line, whatever stores they are.

Nothing is noted anywhere: what is at the destination says how far a copy has come. A thread there
that is a beginning of the source's is gone on with, and any other is left alone. So a copy that was
broken off at any moment is begun again, and a thread counts as copied when it was read at the
destination, once more, and had the very lines that were read at the source.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from turnlog.codec import find_records
from turnlog.errors import LockTimeout, StoreError
from turnlog.interrupts import DeferredSignals
from turnlog.names import ThreadKey  # noqa: TC001 - msgspec looks at a struct's types
from turnlog.stores.base import BrokenOff

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnlog.errors import TurnlogWarning
    from turnlog.stores.base import Position, Problem, Read, Store

_PIECE: Final = 4 << 20  # bytes that are appended at once, about
_NAP: Final = 0.002


class Copied(Struct, frozen=True):
    """What became of one thread.

    Attributes:
        key: the thread.
        turns: how many the source holds.
        appended: how many of them were appended to the destination now.
        differs: None where the destination holds the same now. Else it holds another thread, which
            was left as it is: the index of the first turn that is another there, or is one more.
        problems: what of the source cannot be read, or not in full; nothing but turns is copied.
        warnings: what the caller should tell the user.
    """

    key: ThreadKey
    turns: int
    appended: int
    differs: int | None
    problems: tuple[Problem, ...]
    warnings: tuple[TurnlogWarning, ...]


def copy_thread(
    source: Store, destination: Store, key: ThreadKey, *, lock_timeout: float = 30.0
) -> Copied:
    """Copy one thread as it is now; what is appended to the source meanwhile is not copied.

    Args:
        source: the store to read.
        destination: the store to append to; nobody else may commit to this very object meanwhile.
        key: the thread.
        lock_timeout: how long, in seconds, to wait for another process' lock on it.

    Returns:
        What became of it.

    Raises:
        StoreError: it could not be read, or not appended to; or it is not at the destination what
            was appended. What is there already is a beginning that the next copy goes on with.
    """
    read = source.load(key)
    there = destination.load(key)
    warnings = (*read.warnings, *there.warnings)
    held = len(there.lines)
    while (differs := _difference(read.lines, there.lines)) == len(there.lines) < len(read.lines):
        reached = _append(destination, key, read.lines, there, lock_timeout)
        there = destination.load(key)
        shown = _difference(read.lines, there.lines)
        if shown < reached:
            raise StoreError(
                key,
                f"of {reached} turns that the destination was given it shows {shown} as they were",
                "copy it again, and look at the destination if that is no help",
            )
        warnings += there.warnings
    same = differs == len(there.lines) == len(read.lines)
    appended = len(there.lines) - held if same else 0
    return Copied(
        key,
        len(read.lines),
        appended,
        None if same else differs,
        tuple(read.problems),
        warnings,
    )


def _difference(lines: Sequence[bytes], others: Sequence[bytes]) -> int:
    """Give the index of the first line that is another one, or the number of those in common."""
    common = min(len(lines), len(others))
    pairs = zip(islice(lines, common), islice(others, common), strict=True)
    return next((index for index, (line, other) in enumerate(pairs) if line != other), common)


def _append(
    store: Store, key: ThreadKey, lines: Sequence[bytes], there: Read, lock_timeout: float
) -> int:
    """Append the lines behind those that are there; give how many the thread has then, at least.

    It ends early where somebody else has appended.
    """
    reached, position = len(there.lines), there.position
    for piece in _pieces(islice(lines, reached, None)):
        append = _Append(key, position, piece)
        position = _committed(store, append, lock_timeout)
        if append.has_news:
            break
        reached += len(piece)
    return reached


def _pieces(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Cut lines into pieces; none ends within a unit, of which all is appended or nothing."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= _PIECE and not _goes_on(line):
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _goes_on(line: bytes) -> bool:
    """Tell whether a line has more of its unit behind it."""
    return b'"more"' in line and any(
        record.more and record.at is not None for _, _, record in find_records(line)[0]
    )


class _Append:
    """An append of some lines, unless somebody else has appended before."""

    def __init__(self, key: ThreadKey, position: Position, lines: Sequence[bytes]) -> None:
        self.key = key
        self.position = position
        self.has_news = False
        self._lines = lines

    def decide(self, news: Read) -> Sequence[bytes]:
        self.has_news = bool(news.lines)
        return () if self.has_news else self._lines


def _committed(store: Store, append: _Append, lock_timeout: float) -> Position:
    """Commit an append, trying again while another process has the thread; give its end."""
    deadline = time.monotonic() + lock_timeout
    while True:
        try:
            with DeferredSignals():
                (outcome,) = store.commit([append])
        except BrokenOff as broken:
            raise broken.raised from None
        if outcome.error is not None:
            raise outcome.error
        if not outcome.busy:
            return outcome.position
        if time.monotonic() >= deadline:
            raise LockTimeout.after(append.key, lock_timeout)
        time.sleep(_NAP)
