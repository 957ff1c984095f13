"""Ticket: one append on its way, and what the thread that it belongs to decides about it.

Made by a thread, queued and committed by `commit.GroupCommit`, decided and settled by the thread's
working set.

Source: design, section 5.
"""

from __future__ import annotations

import functools
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from turnlog.errors import TurnlogError
    from turnlog.names import ThreadKey
    from turnlog.stores.base import Outcome, Position, Read

    Futures = dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]


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


class Ticket(Struct, eq=False):
    """One append on its way.

    Attributes:
        log: the thread.
        lines: the lines to append; none to read forward only.
        key: the idempotency key.
        expect: the number of turns that the thread must hold.
        size: how much room it takes, in bytes, about.
        deadline: when it fails, if its thread is locked until then; by the monotonic clock.
        error: why it failed; None where it did not, once it is done.
        done: whether its outcome is known.
        refusal: why it appends nothing, as it was decided last.
        dependent: whether that decision holds only if the lines are committed.
        waiter: the lock that the waiting OS thread acquires when this is released.
        future: what wakes the task that waits for it.
    """

    log: Log
    lines: Sequence[bytes] = ()
    key: str | None = None
    expect: int | None = None
    size: int = 0
    deadline: float = 0.0
    error: Exception | None = None
    done: bool = False
    refusal: TurnlogError | None = None
    dependent: bool = False
    waiter: threading.Lock | None = None
    future: asyncio.Future[None] | None = None

    def raise_error(self) -> None:
        """Raise what made it fail, if anything did."""
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Wait until the outcome is known. Blocks."""
        if not self.done:
            # Not an Event: an exception in the midst of its wait could leave it locked, and the
            # leader would wait for that lock.
            waiter = threading.Lock()
            waiter.acquire()
            self.waiter = waiter
            if not self.done:  # else the leader may have seen no waiter yet
                waiter.acquire()

    def wait_in_loop(self) -> asyncio.Future[None]:
        """Prepare to be awaited in the running loop."""
        future = _outcome_type()()
        future.ticket = self
        self.future = future
        return future

    async def await_outcome(self) -> None:
        """Wait until the outcome is known, after an exception in the first wait."""
        outcome = self.wait_in_loop()
        if not self.done:  # else the leader may have seen the first future only
            await outcome

    def resolve(self, futures: Futures) -> None:
        """Note that the outcome is known: wake its OS thread, or add its future to its loop's."""
        self.done = True
        waiter = self.waiter
        if waiter is not None:
            with suppress(RuntimeError):  # it was told before
                waiter.release()
        if self.future is not None:
            futures.setdefault(self.future.get_loop(), []).append(self.future)


class Decision(Struct, gc=False):
    """What a batch's tickets on one thread append; each ticket knows if it is refused.

    Attributes:
        lines: the lines to append.
        keys: the idempotency keys of those lines, with their positions in the thread.
    """

    lines: list[bytes] = []
    keys: dict[str, int] = {}


def wake(futures: Futures) -> None:
    """Wake the tasks whose tickets were resolved, each loop once; from any thread."""
    for loop, done in futures.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_finish, done)


def _finish(futures: list[asyncio.Future[None]]) -> None:
    try:
        _set_results(futures)
    except BaseException:  # a signal's handler raised: the loop logs that, and tasks would hang
        _set_results(futures)
        raise


def _set_results(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


@functools.cache
def _outcome_type() -> Callable[[], Any]:
    import asyncio  # noqa: PLC0415 - takes as long to import as all the rest

    class Uncancelled(asyncio.Future[None]):
        """A future that cannot be cancelled: the task that awaits it is, once it has a result."""

        ticket: Ticket

        def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - the base's signature
            # A handler that raises in the loop's own code can lose the call that wakes the task.
            if self.ticket.done and not self.done():
                self.set_result(None)
            return False

    return Uncancelled
