"""The turn lock of a thread: those who hold it go one after another.

An append needs no lock of its caller's. This one is for what takes longer than an append: read the
thread, ask a model, append the reply, and nobody else's run in between. It keeps out only those
who take it too; appends go on.

Two doors, one behind the other. For each open thread a queue, first come first served; whoever is
at its head tries the store's lock, which keeps all others out, until it has it. The others can only
try now and then, so a queue that never ends would always be there before them: when it has had the
lock for a second it leaves a gap.

Source: design, section 6; case A06.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from turnlog.errors import LockTimeout
from turnlog.interrupts import DeferredSignals, wait_interruptibly
from turnlog.ownthread import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import TracebackType

    from turnlog.names import ThreadKey

_SHORTEST_NAP: Final = 0.001
_LONGEST_NAP: Final = 0.05  # far below what a run takes, far above what a try costs
_LONGEST_STREAK: Final = 1.0  # of a queue that keeps the lock, until it leaves the others a gap

Release: TypeAlias = "Callable[[], None]"
_Place: TypeAlias = "Future[bool]"  # whether to leave a gap first


class TurnQueue:
    """Those in this process who hold a thread's turn lock or wait for it.

    Args:
        take: tries the store's lock; gives what lets go of it, or None while another has it.
    """

    def __init__(self, take: Callable[[], Release | None]) -> None:
        """Begin with nobody."""
        self.take = take
        self._mutex = threading.RLock()  # a collected waiter may leave while we hold it
        self._taken = False
        self._since = 0.0
        self._waiting: deque[_Place] = deque()

    def after_fork(self) -> None:
        """In a forked child: begin with nobody again; the store's lock is the parent's."""
        self._mutex = threading.RLock()
        self._taken = False
        self._waiting.clear()

    def join(self, place: _Place) -> None:
        """Take a place; it is done when its turn has come."""
        with self._mutex:
            if self._taken:
                self._waiting.append(place)
            else:
                self._since = time.monotonic()
                place.set_result(False)
                self._taken = True

    def leave(self, place: _Place) -> None:
        """Give up a place; where its turn had come already, it is the next one's."""
        if not place.cancel():
            self.pass_on()

    def pass_on(self) -> None:
        """Give the turn to the next who still waits."""
        with self._mutex:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(self._leaves_gap())
                    return
            self._taken = False

    def _leaves_gap(self) -> bool:
        now = time.monotonic()
        if now - self._since < _LONGEST_STREAK:
            return False
        self._since = now
        return True


class _Try:
    """One caller's tries for the store's lock. To give up waits for one that is under way."""

    def __init__(self, take: Callable[[], Release | None]) -> None:
        self._take = take
        self._mutex = threading.Lock()
        self._given_up = False
        self._release: Release | None = None

    def __call__(self) -> Release | None:
        with DeferredSignals(), self._mutex:  # else what was just taken could be lost
            self._release = None if self._given_up else self._take()
            return self._release

    @property
    def idle(self) -> bool:
        """Whether nothing was taken and no try is under way: then to give up takes no time."""
        return self._release is None and not self._mutex.locked()

    def give_up(self) -> None:
        with self._mutex:
            self._given_up = True
            if self._release is not None:
                self._release()


class TurnLock:
    """A thread's turn lock: `with` it, or `async with` it. It may be used again, not nested.

    Raises on entering:
        LockTimeout: it did not come free in time.
        StoreError: the store could not lock.
    """

    __slots__ = ("_key", "_queue", "_release", "_timeout")

    def __init__(self, key: ThreadKey, queue: TurnQueue, timeout: float | None) -> None:
        """Be the lock of a thread; for `MemoryThread.turn_lock` only."""
        self._key = key
        self._queue = queue
        self._timeout = timeout
        self._release: Release | None = None

    def __enter__(self) -> None:
        """Wait for the turn, and hold it. Blocks."""
        wait, place, attempt = self._begin()
        try:
            with DeferredSignals():
                self._queue.join(place)
            if wait.for_call(place):
                time.sleep(_LONGEST_NAP)
            while (release := attempt()) is None:
                time.sleep(wait.nap())
            self._release = release
        except BaseException:
            self._abandon(place, attempt)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of it."""
        with DeferredSignals():
            self._leave()

    def _leave(self) -> None:
        release, self._release = self._release, None
        try:
            if release is not None:
                release()
        finally:
            self._queue.pass_on()

    def _begin(self) -> tuple[_Wait, _Place, _Try]:
        from concurrent.futures import Future  # noqa: PLC0415 - loaded when it is needed

        return _Wait(self._key, self._timeout), Future(), _Try(self._queue.take)

    def _abandon(self, place: _Place, attempt: _Try) -> None:
        with DeferredSignals():
            try:
                attempt.give_up()
            finally:
                self._queue.leave(place)

    async def __aenter__(self) -> None:
        """Wait for the turn, and hold it. Does not block the loop; a cancellation gives it up."""
        import asyncio  # noqa: PLC0415 - takes as long to import as all the rest

        wait, place, attempt = self._begin()
        try:
            self._queue.join(place)
            try:
                async with asyncio.timeout(None if place.done() else wait.left()):
                    leave_gap = await asyncio.wrap_future(place)
            except TimeoutError:
                raise wait.over() from None
            if leave_gap:
                await asyncio.sleep(_LONGEST_NAP)
            # The other may be another process, so there is no event to wait for.
            while (release := await asyncio.wrap_future(in_own_thread(attempt))) is None:  # noqa: ASYNC110
                await asyncio.sleep(wait.nap())
            self._release = release
        except BaseException:
            if attempt.idle:
                self._abandon(place, attempt)
            else:
                in_own_thread(partial(self._abandon, place, attempt))
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of it; also when this is cancelled."""
        import asyncio  # noqa: PLC0415

        await asyncio.wrap_future(in_own_thread(self._leave))


class _Wait:
    """How long a caller still waits, and how long until he tries again."""

    def __init__(self, key: ThreadKey, timeout: float | None) -> None:
        self._key = key
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._nap = _SHORTEST_NAP

    def left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def for_call(self, place: _Place) -> bool:
        """Wait until a place's turn has come; give whether to leave a gap. Blocks."""
        called = threading.Event()
        place.add_done_callback(lambda _: called.set())
        if not wait_interruptibly(called.wait, self.left()):
            raise self.over()
        return place.result()

    def nap(self) -> float:
        """Give the seconds until the next try; raise LockTimeout where there is none."""
        left = self.left()
        if left == 0:
            raise self.over()
        nap, self._nap = self._nap, min(2 * self._nap, _LONGEST_NAP)
        return nap if left is None else min(nap, left)

    def over(self) -> LockTimeout:
        return LockTimeout(
            self._key,
            f"its turn lock was not free within {self._timeout:g} s",
            "try again later, or give turn_lock a longer timeout",
        )
