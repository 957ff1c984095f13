"""GroupCommit: gathers appends into batches, so that many cost one commit.

An append becomes a ticket in a queue. A leader takes all tickets, has the store commit them as one
batch, and resolves them. Committer threads lead. A synchronous caller that finds the queue empty
and no commit under way leads in its own thread, where the store allows that (`commits_in_caller`):
a change of threads would take as long again as the commit. It commits its own ticket alone, and
leaves to a committer what came meanwhile. The event loop never touches the store; one wake-up
resolves a whole batch.

Where the store takes several commits at once, there may be as many leaders: what comes while all
of them are busy with others' threads has one more. No two of them ever have the same thread: its
tickets stay in the queue, for whoever has it.

A thread that another process has locked goes back into the queue, in front, while the others are
committed; its tickets time out one by one.

What waits in the queue is bounded: an append that finds it full is not even encoded before there
is room, so that a burst costs no more memory than its callers hold anyway.

What was submitted completes. A cancellation, and the exception of a signal's handler in the middle
of a synchronous append, wait for the outcome and are raised after it, so that what a thread shows
is what the store has. In the main thread the handlers of signals wait (`DeferredSignals`). Another
exception that arrives from outside (one that another OS thread sets, or MemoryError) may be raised
at any line: then `_recover` releases what this OS thread holds, and has a committer do the rest.
No thread but a caller's own meets such exceptions.

Knows `stores.base` only. Source: design, section 5, and section 4, point 7; cases C33 to C45.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from turnlog.errors import Closed, LockTimeout, NotWritten, OutcomeUnknown, TurnlogError
from turnlog.interrupts import DeferredSignals, release_if_owned
from turnlog.room import Room
from turnlog.stores.base import BrokenOff, Outcome, Read
from turnlog.ticket import wake

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.base import Position, Store
    from turnlog.ticket import Decision, Futures, Log, Ticket

    _Entries = dict[ThreadKey, "_Entry"]

_MOST_WAITING: Final = 64 << 20  # bytes
_ENOUGH: Final = 512  # tickets of one commit, where the store takes several commits at once
_SHORTEST_NAP: Final = 0.0002
_LONGEST_NAP: Final = 0.002


class _Entry(Struct, eq=False):
    """What one thread has in a batch: the `Append` that the store sees."""

    key: ThreadKey
    log: Log
    position: Position
    tickets: list[Ticket]
    decision: Decision | None = None

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
        self._most_leaders = store.commits_at_once
        self._callers_lead = bool(getattr(store, "commits_in_caller", False))
        self._lock_timeout = lock_timeout
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal's handler may append while we hold it
        self._changed = threading.Condition(self._mutex)
        self._queue: list[Ticket] = []
        self._room = Room(_MOST_WAITING, self._mutex)
        self._under_way: dict[int, _Entries] = {}  # what each leader has, by its OS thread
        self._at_store: set[int] = set()  # leaders' OS threads whose outcomes are not all known
        self._committers: set[int] = set()  # their OS threads
        self._told = 0  # committers who have been told to lead, and have taken nothing yet
        self._napping = 0  # leaders who have nothing but what is locked
        self._closed = False

    @property
    def _leaders(self) -> int:
        """Who lead, and who have been told to."""
        return len(self._under_way) + self._told

    @property
    def _idle(self) -> int:
        """How many committers wait to be told, or have been told just now."""
        return len(self._committers - self._under_way.keys())

    # ---- callers ----

    @property
    def full(self) -> bool:
        """Whether an append has to wait for room before it is encoded and run."""
        return self._room.full

    def wait_for_room(self, size: int) -> None:
        """Wait until there is room for so many bytes, to be taken at once. Blocks."""
        if not self._is_within():  # who would wait for itself: it is refused
            self._room.wait(size)

    async def await_room(self, size: int) -> None:
        """Wait until there is room for so many bytes, to be taken at once."""
        await self._room.await_(size)

    def run(self, ticket: Ticket) -> None:
        """Commit a ticket; return when it is durable. Blocks.

        Raises:
            StoreError: as the ticket's thread says.
        """
        self._check_not_within(ticket)
        signals = DeferredSignals()
        try:
            signals.begin()
            self._lead(self._submit(ticket), ticket)
            ticket.wait()
            signals.end()
        except TurnlogError:  # it was refused, or this is what a handler raised after it
            signals.end()
            raise
        except BaseException as raised:
            try:
                if self._recover(ticket):
                    ticket.wait()
            finally:
                signals.end()
            if ticket.error is not None:
                raise raised from ticket.error
            raise
        ticket.raise_error()

    async def arun(self, ticket: Ticket) -> None:
        """Commit a ticket; return when it is durable. Does not block the loop. As `run`."""
        self._check_not_within(ticket)
        outcome = ticket.wait_in_loop()
        try:
            self._lead(self._submit(ticket, in_loop=True), ticket)
        except TurnlogError:  # it was refused
            raise
        except BaseException:
            if self._recover(ticket):
                await ticket.await_outcome()
            raise
        try:
            await outcome
        except GeneratorExit:  # the loop is gone, and nothing may be awaited
            raise
        except BaseException as raised:
            await ticket.await_outcome()
            if ticket.error is not None:
                raise raised from ticket.error
            raise
        ticket.raise_error()

    def _submit(self, ticket: Ticket, *, in_loop: bool = False) -> _Entries:
        """Queue a ticket; return what its caller has to commit, if no other thread will.

        In a loop that is only so where there can be no committer thread.
        """
        with self._mutex:
            if self._closed:
                raise Closed(ticket.log.key, "its memory was closed", "open a new Memory")
            self._room.take(ticket.size)
            self._queue.append(ticket)
            if self._napping:
                self._changed.notify_all()
            if not self._lacks_leader((ticket,)):
                return {}
            alone = self._callers_lead and len(self._queue) == 1
            if (in_loop or not alone) and self._tell_committer():
                return {}
            return self._take()

    def _check_not_within(self, ticket: Ticket) -> None:
        """Raise NotWritten in the midst of another append, whose state must not be recovered."""
        if self._is_within():
            raise NotWritten(
                ticket.log.key,
                "this thread is in the middle of another append; nothing was written",
                "do not append in a signal's handler: note it, and append after",
            )

    def _is_within(self) -> bool:
        """Tell whether this OS thread is in the midst of another append: a signal's handler is."""
        owned: bool = cast("Any", self._mutex)._is_owned()  # noqa: SLF001 - as Condition does
        return owned or threading.get_ident() in self._under_way

    # ---- leading ----

    def _lacks_leader(self, tickets: Iterable[Ticket]) -> bool:
        """Tell whether one more is to lead, for one of these tickets. The caller holds the mutex.

        Who was told to lead, and has taken nothing yet, will take it; so will who has its thread.
        """
        if self._told or self._leaders >= self._most_leaders:
            return False
        under_way = self._under_way.values()
        return any(all(ticket.log.key not in taken for taken in under_way) for ticket in tickets)

    def _take(self) -> _Entries:
        """Take what is queued, as a leader, but for others' threads. The caller holds the mutex.

        Where there is more than enough for one of several leaders, another is told of the rest.
        Who finds nothing leads no more: what is left, those take who have its threads.
        """
        enough = _ENOUGH if self._most_leaders > 1 else len(self._queue)
        others = [entries for entries in self._under_way.values() if entries]
        entries, waiting, rest = _by_thread(self._queue, others, enough)
        self._under_way[threading.get_ident()] = entries
        self._queue = waiting + rest
        if not entries:
            self._leave()
        elif self._lacks_leader(rest):
            self._tell_committer()
        return entries

    def _lead(self, entries: _Entries, ticket: Ticket | None) -> None:
        """Commit entries, and what is queued then, until `ticket` is done; with None, all of it."""
        interrupt: BaseException | None = None
        nap = 0.0
        while entries:
            busy, raised = self._commit(list(entries.values()))
            interrupt = interrupt or raised
            with self._mutex:
                if self._under_way.get(threading.get_ident()) is not entries:
                    return  # in a child that was forked meanwhile
                self._leave_room(entries)
                news = not busy or self._has_news(busy)
                nap = 0.0 if news else min(2 * nap, _LONGEST_NAP) or _SHORTEST_NAP
                self._queue[:0] = busy
                self._under_way[threading.get_ident()] = {}
                entries = self._next(ticket, nap)
        if ticket is not None and interrupt is not None:
            ticket.wait()  # a committer may have it now
            if ticket.error is None or not isinstance(interrupt, Exception):
                raise interrupt

    def _has_news(self, busy: list[Ticket]) -> bool:
        """Tell whether a leader may take more than what is locked. The caller holds the mutex."""
        this = threading.get_ident()
        barred = {ticket.log.key for ticket in busy}
        barred.update(*(taken for leader, taken in self._under_way.items() if leader != this))
        return any(ticket.log.key not in barred for ticket in self._queue)

    def _next(self, ticket: Ticket | None, nap: float) -> _Entries:
        """Give a leader what to commit next, after a nap in seconds; none where it is done.

        The caller holds the mutex.
        """
        if self._queue and ticket is not None and self._tell_committer():
            del self._under_way[threading.get_ident()]
            return {}
        if nap:
            self._napping += 1
            try:
                self._changed.wait(nap)
            finally:
                self._napping -= 1
        return self._take()

    def _leave(self) -> None:
        """Lead no more. The caller holds the mutex."""
        del self._under_way[threading.get_ident()]
        if self._closed:
            self._changed.notify_all()

    def _recover(self, ticket: Ticket) -> bool:
        """After an exception from outside: have a committer do what this OS thread had begun.

        Where there can be no committer this OS thread does it.

        Returns:
            Whether the outcome of the ticket is still to come.
        """
        self._lead(self._break_off(), ticket)
        with self._mutex:
            under_way = (entry for taken in self._under_way.values() for entry in taken.values())
            submitted = ticket in self._queue or any(ticket in entry.tickets for entry in under_way)
            return submitted and not ticket.done

    def _break_off(self) -> _Entries:
        """Lead no more, wherever this leader is; release what it holds.

        Returns:
            What this OS thread has to commit all the same, since there can be no committer.
        """
        release_if_owned(self._mutex)
        futures: Futures = {}
        with self._mutex:
            this = threading.get_ident()
            entries = self._under_way.get(this, {})
            left = [
                ticket
                for entry in entries.values()
                for ticket in entry.tickets
                if ticket not in self._queue
            ]
            if this in self._at_store:  # what the store has done is not known
                for ticket in left:
                    if not ticket.done:
                        ticket.error = ticket.error or _unknown(ticket.log.key, None)
                    ticket.resolve(futures)  # also what is done: its task may not have heard it
            else:
                self._queue[:0] = [ticket for ticket in left if not ticket.done]
            wake(futures)
            self._at_store.discard(this)
            self._committers.discard(this)
            if this in self._under_way:
                self._leave()
            self._told = min(self._told, self._idle)  # it may have been told, and taken nothing
            waiting = [each for taken in self._under_way.values() for each in taken.values()]
            tickets = [*self._queue, *(ticket for entry in waiting for ticket in entry.tickets)]
            self._room.set_taken(sum(ticket.size for ticket in tickets))
            self._changed.notify_all()  # it may have told a committer, and not woken it
            if self._lacks_leader(self._queue) and not self._tell_committer():
                return self._take()
            return {}

    def _leave_room(self, entries: _Entries) -> None:
        """Give back the room of the tickets that are done. The caller holds the mutex."""
        size = 0
        for entry in entries.values():
            for ticket in entry.tickets:
                if ticket.done:
                    size += ticket.size
                    ticket.size = 0
        self._room.leave(size)

    def _tell_committer(self) -> bool:
        """Have a committer thread lead, if there can be one. The caller holds the mutex."""
        if self._idle <= self._told:
            committer = threading.Thread(target=self._serve, name="turnlog", daemon=True)
            try:
                committer.start()
            except RuntimeError:  # the interpreter is ending, or has no more threads to give
                return False
            self._committers.add(cast("int", committer.ident))
        self._told += 1
        self._changed.notify_all()
        return True

    def _serve(self) -> None:
        try:
            self._serve_until_closed()
        except BaseException:
            self._lead(self._break_off(), None)
            raise

    def _serve_until_closed(self) -> None:
        while True:
            with self._mutex:
                self._changed.wait_for(lambda: self._told or self._ended())
                if not self._told:
                    return
                self._told -= 1
                entries = self._take()
            self._lead(entries, None)
            del entries  # or it would keep their threads until it leads again

    def _commit(self, entries: list[_Entry]) -> tuple[list[Ticket], BaseException | None]:
        """Commit entries; give the tickets that are busy, and what must not be swallowed."""
        busy: list[Ticket] = []
        raised: BaseException | None = None
        futures: Futures = {}
        this = threading.get_ident()
        self._at_store.add(this)
        try:
            settled = list(zip(entries, self._store.commit(entries), strict=True))
        except BrokenOff as broken:
            raised = broken.raised
            settled = list(zip(entries, broken.outcomes, strict=True))
        except BaseException as error:  # noqa: BLE001 - others wait for an outcome
            raised = None if isinstance(error, Exception) else error
            settled = [(entry, _lost(entry, error)) for entry in entries]
        try:
            for entry, outcome in settled:
                if outcome.busy:
                    busy += _still_in_time(entry.tickets, self._lock_timeout, futures)
                    continue
                entry.log.settle(entry.tickets, outcome, entry.decision)
                for ticket in entry.tickets:
                    ticket.resolve(futures)
        finally:
            wake(futures)
        self._at_store.discard(this)
        return busy, raised

    # ---- the end ----

    def _ended(self) -> bool:
        return self._closed and not self._leaders

    def after_fork(self) -> None:
        """In a forked child: forget the parent's tickets and its committer threads."""
        closed = self._closed
        self._reset()
        self._closed = closed

    def close(self) -> None:
        """Take no more tickets, and wait until those that were taken are done."""
        with self._mutex:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(self._ended)


def _by_thread(
    queue: list[Ticket], others: Sequence[_Entries], enough: int
) -> tuple[_Entries, list[Ticket], list[Ticket]]:
    """Group enough tickets by thread, in order; give those that have to wait, and the rest.

    What others have under way has to wait, a key's second handle, and what comes behind several
    lines that are all or none: of two writes that no sync parts a power cut may keep the second,
    and a part of the first. What was found locked before does not count, or it would keep the
    others from coming.
    """
    entries: _Entries = {}
    waiting: list[Ticket] = []
    for number, ticket in enumerate(queue):
        if not enough:
            return entries, waiting, queue[number:]
        log = ticket.log
        key = log.key
        entry = entries.get(key)
        if entry is None:
            if others and any(key in taken for taken in others):
                waiting.append(ticket)
                continue
            entries[key] = _Entry(key, log, log.position, [ticket])
        elif entry.log is log and len(entry.tickets[-1].lines) <= 1:
            entry.tickets.append(ticket)
        else:
            waiting.append(ticket)
            continue
        if not ticket.deadline:
            enough -= 1
    return entries, waiting, []


def _still_in_time(tickets: list[Ticket], timeout: float, futures: Futures) -> list[Ticket]:
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
