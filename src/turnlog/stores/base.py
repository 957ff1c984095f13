"""The contract of a store: lines of bytes under keys. Its docstrings are the contract.

A store keeps lines, opaque to it but for what its own safety needs; what a line means is its
caller's matter. All methods block and are called from any thread, but `commit` from as many at a
time as `commits_at_once` says. `turnlog.testing.StoreContract` has a test for each clause.

Source: design, sections 1 and 7.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - msgspec looks at a struct's types
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence  # noqa: TC003
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from turnlog.errors import ThreadReplaced

if TYPE_CHECKING:
    from turnlog.errors import TurnlogError, TurnlogWarning
    from turnlog.names import ThreadKey


class Position(Struct, frozen=True, gc=False):
    """How far a thread was read. Opaque to all but the store that gave it.

    Attributes:
        incarnation: which life of the thread it belongs to (a file, an epoch); None before the
            thread exists.
        offset: how much of it was read, in the store's own unit.
        lines: how many lines that was, whole turns or not.
        mark: how many bytes before `offset` were looked at last, and their checksum: where they
            are others now, what was read is not there any more.
        unterminated: what was read last lacks its newline.
    """

    incarnation: Hashable = None
    offset: int = 0
    lines: int = 0
    mark: tuple[int, int] = (0, 0)
    unterminated: bool = False


START: Final = Position()


class Problem(Struct, frozen=True, gc=False):
    """A place in a thread that cannot be read, or not in full. Its bytes stay where they are.

    Attributes:
        line: the line's number, from 1.
        offset: where the place begins, in bytes from the start of the file.
        length: how many bytes it has.
        reason: what is wrong with it.
    """

    line: int
    offset: int
    length: int
    reason: str


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Give problems in the order of the file, each once."""
    return tuple(sorted(set(problems), key=lambda problem: problem.offset))


def _no_problems() -> tuple[Problem, ...]:
    return ()


class Read(Struct, frozen=True, gc=False):
    """What a store read beyond a position.

    Attributes:
        lines: the whole turns, in the thread's order, each without a newline.
        position: where it stopped: read on from here.
        keys: the idempotency keys among `lines`, each with the index of its line.
        problems: what could not be read.
        warnings: what the caller should tell the user, once.
        audit: finds what a fast reading passes over (a key given twice); slow, so only when asked.
    """

    lines: Sequence[bytes] = ()
    position: Position = START
    keys: dict[str, int] = {}
    problems: Sequence[Problem] = ()
    warnings: tuple[TurnlogWarning, ...] = ()
    audit: Callable[[], tuple[Problem, ...]] = _no_problems


class ThreadInfo(Struct, frozen=True, gc=False):
    """What is known of a stored thread without reading its turns.

    Attributes:
        namespace: its namespace.
        id: its id.
        size: its size in bytes.
        modified: when it was last written, in UTC by the store's clock; the nearest time that a
            datetime can hold where the store says another.
    """

    namespace: str
    id: str
    size: int
    modified: dt.datetime


def replaced(key: ThreadKey) -> ThreadReplaced:
    """Make the error for an append to a thread that is not the one that was read any more."""
    return ThreadReplaced(
        key, "it was deleted since it was opened", "open it again to start a new thread"
    )


class Append(Protocol):
    """What one thread wants appended."""

    @property
    def key(self) -> ThreadKey:
        """The thread."""
        ...

    @property
    def position(self) -> Position:
        """How far the caller has read it."""
        ...

    def decide(self, news: Read) -> Sequence[bytes]:
        """Give the lines to append after `news`, what others appended since `position`.

        None may be given: then the commit is a reading. Does not block, and may be called again
        with other news, since a store may ask before it keeps other writers out: only the last
        answer counts, and between its news and its lines there is nobody else's line.
        """
        ...


class Outcome(Struct, frozen=True):
    """What became of one append. `busy` when another process has the thread: try it again.

    Attributes:
        news: what others had appended before; durable, whatever became of the append.
        position: the end of the thread after the append (of the news, where it failed).
        error: why nothing was appended: NotWritten (or one of its kinds), OutcomeUnknown,
            NotAThread; None where all its lines are durable.
    """

    news: Read
    position: Position
    error: TurnlogError | None = None
    busy: bool = False


class BrokenOff(Exception):
    """Raised by `commit` when an exception from outside had broken it off, and all is known.

    Such an exception may be raised at any line: one that another OS thread sets, a signal's
    handler's, MemoryError. The store has undone or completed what it had begun.

    Attributes:
        outcomes: the outcomes of the batch, as `commit` returns them.
        raised: the exception.
    """

    def __init__(self, outcomes: Sequence[Outcome], raised: BaseException) -> None:
        """Keep both."""
        super().__init__(f"a commit was broken off: {raised!r}")
        self.outcomes: Sequence[Outcome] = outcomes
        self.raised: BaseException = raised


class Store(Protocol):
    """Lines of bytes under keys, durable and ordered."""

    @property
    def read_only(self) -> bool:
        """Whether the store only reads: then it writes nothing, whatever it finds."""
        ...

    @property
    def commits_at_once(self) -> int:
        """In how many OS threads at a time `commit` may be called, each with its own threads."""
        ...

    def load(self, key: ThreadKey) -> Read:
        """Read a thread from its start, after recovering what a crash has left at its end.

        A thread that does not exist is an empty one at START; it is not made. What is given back
        is durable (unless the store is read-only).

        Raises:
            LockTimeout: a writer kept it locked for too long.
            StoreError: it could not be read; a NotAThread where the name leads to something else.
        """
        ...

    def tail(self, key: ThreadKey, count: int) -> Read:
        """Read the end of a thread: its last `count` turns, or all where there are fewer.

        More may be given; as little as can be is read. Writes nothing, whatever it finds: what a
        crash has left is left out, not recovered. The lines of problems are counted from where the
        reading began, and its position is not one to append at.

        Raises:
            LockTimeout: a writer kept it locked for too long.
            StoreError: it could not be read; a NotAThread where the name leads to something else.
        """
        ...

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Append to each thread of a batch, each thread once; give the outcomes in its order.

        Durable: when it returns, all lines whose outcome has no error survive a crash. Ordered:
        the lines of one append are contiguous and follow all that the thread held. All or
        nothing: an append with an error has left nothing in the thread, but for OutcomeUnknown.
        Independent: one append's failure, or its lock, does not touch the others. A thread that
        does not exist is made by its first line. Does not wait for another process' lock: the
        outcome is busy.

        A lone synchronous append is committed in its caller's OS thread where the store has an
        attribute `commits_in_caller` that is true, else in one of turnlog's. In a caller's, an
        exception from outside may be raised at any line of it.

        Raises:
            BrokenOff: an exception from outside was raised; every outcome is known all the same.
            BaseException: that exception; the outcomes are unknown, and no lock is left.
        """
        ...

    def threads(self, namespace: str | None = None) -> Iterator[ThreadInfo]:
        """List the threads of one namespace or of all, by namespace and id, without their turns."""
        ...

    def delete(self, key: ThreadKey) -> bool:
        """Remove a thread and all that belongs to it, durably; False where there was none.

        Raises:
            LockTimeout: a writer kept it locked for too long; it is still there.
            StoreError: it could not be removed.
        """
        ...

    def try_turn_lock(self, key: ThreadKey) -> Callable[[], None] | None:
        """Take a thread's turn lock, if nobody has it; never wait.

        It keeps out others who take it, in this process and in all others, not appends. The thread
        need not exist. The lock of a process that died is free.

        Returns:
            What lets go of the lock, in any thread; None where somebody has it.

        Raises:
            StoreError: it could not be taken; a ReadOnly where the store only reads.
        """
        ...

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever a thread may hold other than before: appended to, or deleted.

        By whatever store or process, from the moment that this returns, soon after it is durable.
        It may be called for nothing, in any thread, and is called once for several changes; it
        does not block and raises nothing. The thread need not exist.

        Returns:
            What ends it, in any thread; may be called again. It may be called once more meanwhile.

        Raises:
            StoreError: the thread could not be watched.
        """
        ...

    def after_fork(self) -> None:
        """In a forked child: let go of what belongs to the parent, and start afresh."""
        ...

    def close(self) -> None:
        """Let go of files, connections and threads. May be called again."""
        ...
