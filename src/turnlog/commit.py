"""GroupCommit: gathers appends into batches, so that many cost one commit.

An append becomes a ticket in a queue. Whoever finds no commit under way leads: it takes all
tickets, its own and those that came meanwhile, has the store commit them as one batch, and
resolves them. A synchronous caller leads in its own thread, so a lone append changes no thread
and waits for nobody; asynchronous callers, and whatever is left in the queue when a leader's own
ticket is done, are led by one committer thread. The event loop never touches the store; one
wake-up resolves a whole batch.

A thread that another process has locked goes back into the queue, in front, while the others are
committed; its tickets time out one by one.

What waits in the queue is bounded: an append that finds it full is not even encoded before there
is room, so that a burst costs no more memory than its callers hold anyway.

What was submitted completes. A cancelled task, and a Ctrl-C in the middle of a synchronous
append, wait for the outcome and go on their way after it, so that what a thread shows is what the
store has.

Knows `stores.base` only. Source: design, section 5, and section 4, point 7.
"""

from __future__ import annotations

import functools
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from turnlog.errors import Closed, LockTimeout, NotWritten, OutcomeUnknown, TurnlogError
from turnlog.interrupts import Uninterrupted
from turnlog.room import Room
from turnlog.stores.base import Outcome, Read

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.base import Position, Store

    _Futures = dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]

_MOST_WAITING: Final = 64 << 20  # bytes
_SHORTEST_NAP: Final = 0.0002
_LONGEST_NAP: Final = 0.002


class Log(Protocol):
    """The thread that tickets belong to, as a commit sees it."""

    @property
    def key(self) -> ThreadKey:
        """Its key."""
        ...

    @property
    def position(self) -> Position:
        """How far its working set has read."""
        ...

    def decide(self, tickets: Sequence[Ticket], news: Read) -> Decision:
        """Decide what the tickets append after the news."""
        ...

    def settle(
        self, tickets: Sequence[Ticket], outcome: Outcome, decision: Decision | None
    ) -> None:
        """Take in what was committed, and note in each ticket that failed its error.

        The decision is the last one that led to the outcome; None where none was asked for.
        """
        ...


class Ticket:
    """One append on its way.

    Args:
        log: the thread.
        lines: the lines to append; none to read forward only.
        key: the idempotency key.
        expect: the number of turns that the thread must hold.
        size: how much room it takes, in bytes, about.

    Attributes:
        error: why it failed; None where it did not, once it is done.
        done: whether its outcome is known.
        dependent: whether its answer holds only if the lines that were decided last are committed.
    """

    __slots__ = (
        "_future",
        "_waiter",
        "deadline",
        "dependent",
        "done",
        "error",
        "expect",
        "key",
        "lines",
        "log",
        "size",
    )

    def __init__(
        self,
        log: Log,
        lines: Sequence[bytes] = (),
        *,
        key: str | None = None,
        expect: int | None = None,
        size: int = 0,
    ) -> None:
        """Make a ticket; `GroupCommit` takes it from there."""
        self.log: Log = log
        self.lines: Sequence[bytes] = lines
        self.key: str | None = key
        self.expect: int | None = expect
        self.deadline: float = 0.0
        self.error: Exception | None = None
        self.done: bool = False
        self.dependent: bool = False
        self.size: int = size
        self._waiter: threading.Event | None = None
        self._future: asyncio.Future[None] | None = None

    def raise_error(self) -> None:
        """Raise what made it fail, if anything did."""
        if self.error is not None:
            raise self.error

    def wait_in_thread(self) -> None:
        """Prepare for `wait`."""
        self._waiter = threading.Event()

    def wait(self) -> None:
        """Wait until the outcome is known."""
        if self._waiter is not None:
            self._waiter.wait()

    def wait_in_loop(self) -> asyncio.Future[None]:
        """Prepare to be awaited in the running loop."""
        self._future = _outcome_type()()
        return self._future

    def resolve(self, futures: _Futures) -> None:
        """Say that the outcome is known: wake its thread, or note its future by its loop."""
        self.done = True
        if self._waiter is not None:
            self._waiter.set()
        if self._future is not None:
            futures.setdefault(self._future.get_loop(), []).append(self._future)


class Decision(Struct):
    """What a batch's tickets on one thread come to.

    Attributes:
        lines: the lines to append.
        keys: the idempotency keys of those lines, with their positions in the thread.
        errors: why a ticket appends nothing.
    """

    lines: list[bytes] = []
    keys: dict[str, int] = {}
    errors: dict[Ticket, TurnlogError] = {}


class _Entry:
    """What one thread has in a batch: the `Append` that the store sees."""

    __slots__ = ("decision", "key", "log", "position", "tickets")

    def __init__(self, log: Log, tickets: list[Ticket]) -> None:
        self.log = log
        self.tickets = tickets
        self.key = log.key
        self.position = log.position
        self.decision: Decision | None = None

    def decide(self, news: Read) -> Sequence[bytes]:
        self.decision = self.log.decide(self.tickets, news)
        return self.decision.lines


class GroupCommit:
    """The one way into a store for appends. Its methods may be called from any thread.

    Args:
        store: where the batches go.
        lock_timeout: how long, in seconds, a ticket waits for another process' lock.
    """

    def __init__(self, store: Store, lock_timeout: float) -> None:
        """Begin with an empty queue."""
        self._store = store
        self._lock_timeout = lock_timeout
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal's handler may append while we hold it
        self._changed = threading.Condition(self._mutex)
        self._queue: list[Ticket] = []
        self._room = Room(_MOST_WAITING, self._mutex)
        self._under_way: list[Ticket] = []
        self._led = False  # somebody leads, or has been told to
        self._leader: int | None = None
        self._naps = False  # who leads, while all that is queued is locked
        self._committer: threading.Thread | None = None
        self._committer_leads = False
        self._closed = False

    # ---- callers ----

    @property
    def full(self) -> bool:
        """Whether an append has to wait for room before it is encoded and run."""
        return self._room.full

    def wait_for_room(self, size: int) -> None:
        """Wait until there is room for so many bytes, to be taken at once. Blocks."""
        if self._leader != threading.get_ident():  # who would wait for itself: it is refused
            self._room.wait(size)

    async def await_room(self, size: int) -> None:
        """Wait until there is room for so many bytes, to be taken at once."""
        await self._room.await_(size)

    def run(self, ticket: Ticket) -> None:
        """Commit a ticket; return when it is durable. Blocks.

        Raises:
            StoreError: as the ticket's thread says.
        """
        with Uninterrupted():
            if self._submit(ticket, in_thread=True):
                self._lead(ticket)
            else:
                ticket.wait()
        ticket.raise_error()

    async def arun(self, ticket: Ticket) -> None:
        """Commit a ticket; return when it is durable. Does not block the loop. As `run`."""
        outcome = ticket.wait_in_loop()
        if self._submit(ticket, in_thread=False):
            with self._mutex:
                led = self._hand_over()
            if not led:
                self._lead(ticket)
        try:
            await outcome
        except BaseException as cancellation:
            if ticket.error is not None:
                raise cancellation from ticket.error
            raise
        ticket.raise_error()

    def _submit(self, ticket: Ticket, *, in_thread: bool) -> bool:
        """Queue a ticket; say whether its caller has to lead, or to have it led."""
        with self._mutex:
            if self._leader == threading.get_ident():
                raise NotWritten(
                    ticket.log.key,
                    "this thread is in the middle of another append; nothing was written",
                    "do not append in a signal's handler: note it, and append after",
                )
            if self._closed:
                raise Closed(ticket.log.key, "its memory was closed", "open a new Memory")
            self._room.take(ticket.size)
            self._queue.append(ticket)
            if self._led:
                if in_thread:
                    ticket.wait_in_thread()
                if self._naps:
                    self._changed.notify_all()
                return False
            self._led = True
            return True

    # ---- leading ----

    def _lead(self, ticket: Ticket | None) -> None:
        """Commit what is queued, until `ticket` is done; with None, until the queue is empty."""
        self._leader = threading.get_ident()
        try:
            self._commit_batches(ticket)
        except BaseException:
            # A signal's handler raised, or memory ran out: nobody may be left waiting.
            with self._mutex:
                self._leader = None
                futures: _Futures = {}
                for lost in self._under_way:
                    if not lost.done and lost not in self._queue:
                        lost.error = lost.error or _unknown(lost.log.key, None)
                        lost.resolve(futures)
                _wake(futures)
                self._leave(self._under_way)
                if not self._queue or not self._hand_over():
                    self._led = False
                self._changed.notify_all()
            raise

    def _commit_batches(self, ticket: Ticket | None) -> None:
        interrupt: BaseException | None = None
        nap = _SHORTEST_NAP
        while True:
            with self._mutex:
                batch, self._queue = self._queue, []
                self._under_way = batch
            busy, later, raised = self._commit(batch)
            interrupt = interrupt or raised
            with self._mutex:
                self._leave(batch)
                news = bool(self._queue or later)
                self._queue = [*busy, *later, *self._queue]
                if not self._queue:
                    self._led, self._leader = False, None
                    if self._closed:
                        self._changed.notify_all()
                    break
                if ticket is not None and ticket.done and self._hand_over():
                    break
                if not news:
                    self._naps = True
                    self._changed.wait(nap)
                    self._naps = False
                nap = _SHORTEST_NAP if news else min(2 * nap, _LONGEST_NAP)
        if interrupt is not None and ticket is not None:
            raise interrupt

    def _leave(self, batch: list[Ticket]) -> None:
        """Give back the room of the tickets that are done. The caller holds the mutex."""
        size = 0
        for ticket in batch:
            if ticket.done:
                size += ticket.size
                ticket.size = 0
        self._room.leave(size)

    def _hand_over(self) -> bool:
        """Have the committer thread lead, if there can be one. The caller holds the mutex."""
        if self._committer is None:
            committer = threading.Thread(target=self._serve, name="turnlog", daemon=True)
            try:
                committer.start()
            except RuntimeError:  # the interpreter is ending, or has no more threads to give
                return False
            self._committer = committer
        self._leader = None
        self._committer_leads = True
        self._changed.notify_all()
        return True

    def _serve(self) -> None:
        while True:
            with self._mutex:
                self._changed.wait_for(lambda: self._committer_leads or self._ended())
                if not self._committer_leads:
                    return
                self._committer_leads = False
            self._lead(None)

    def _commit(
        self, batch: list[Ticket]
    ) -> tuple[list[Ticket], list[Ticket], BaseException | None]:
        """Commit tickets; give the busy ones, those of later, and what must not be swallowed."""
        entries, later = _by_thread(batch)
        busy: list[Ticket] = []
        raised: BaseException | None = None
        futures: _Futures = {}
        try:
            settled = list(zip(entries, self._store.commit(entries), strict=True))
        except BaseException as error:  # noqa: BLE001 - others wait for an outcome
            raised = None if isinstance(error, Exception) else error
            settled = [(entry, _lost(entry, error)) for entry in entries]
        for entry, outcome in settled:
            if outcome.busy:
                busy += _still_in_time(entry.tickets, self._lock_timeout, futures)
                continue
            entry.log.settle(entry.tickets, outcome, entry.decision)
            for ticket in entry.tickets:
                ticket.resolve(futures)
        _wake(futures)
        return busy, later, raised

    # ---- the end ----

    def _ended(self) -> bool:
        return self._closed and not self._led

    def after_fork(self) -> None:
        """In a forked child: forget the parent's tickets and its committer thread."""
        closed = self._closed
        self._reset()
        self._closed = closed

    def close(self) -> None:
        """Take no more tickets, and wait until those that were taken are done."""
        with self._mutex:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(self._ended)


def _by_thread(batch: list[Ticket]) -> tuple[list[_Entry], list[Ticket]]:
    """Group tickets by thread, in order; give also those that have to wait for the next batch.

    A key's second handle has to, and what comes behind several lines that are all or none: of two
    writes that no sync parts a power cut may keep the second, and a part of the first.
    """
    entries: dict[ThreadKey, _Entry] = {}
    later: list[Ticket] = []
    for ticket in batch:
        entry = entries.get(ticket.log.key)
        if entry is None:
            entries[ticket.log.key] = _Entry(ticket.log, [ticket])
        elif entry.log is ticket.log and len(entry.tickets[-1].lines) <= 1:
            entry.tickets.append(ticket)
        else:
            later.append(ticket)
    return list(entries.values()), later


def _still_in_time(tickets: list[Ticket], timeout: float, futures: _Futures) -> list[Ticket]:
    """Fail the tickets of a locked thread that have waited long enough; give the others."""
    waiting: list[Ticket] = []
    now = time.monotonic()
    for ticket in tickets:
        ticket.deadline = ticket.deadline or now + timeout
        if now < ticket.deadline:
            waiting.append(ticket)
            continue
        ticket.error = LockTimeout.after(ticket.log.key, timeout)
        ticket.resolve(futures)
    return waiting


def _lost(entry: _Entry, error: BaseException) -> Outcome:
    return Outcome(Read(position=entry.position), entry.position, _unknown(entry.key, error))


def _unknown(key: ThreadKey, error: BaseException | None) -> OutcomeUnknown:
    unknown = OutcomeUnknown(
        key,
        f"the commit was broken off ({error!r})" if error else "the commit was broken off",
        "open the thread again and look; trying again with the same key is safe",
    )
    unknown.__cause__ = error
    return unknown


def _wake(futures: _Futures) -> None:
    for loop, done in futures.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_finish, done)


def _finish(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


@functools.cache
def _outcome_type() -> type[asyncio.Future[None]]:
    import asyncio  # noqa: PLC0415 - takes as long to import as all the rest

    class Uncancelled(asyncio.Future[None]):
        """A future that cannot be cancelled: the task that awaits it is, once it has a result."""

        def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - the base's signature
            return False

    return Uncancelled
