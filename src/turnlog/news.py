"""News: those who wait for what others append to a thread.

A round is: watch, read, and, where nothing came, wait to be told. Watched is before it is read, so
nothing slips in between; and nothing is asked of the store while one waits.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from turnlog.errors import InvalidTurn
from turnlog.interrupts import DeferredSignals, wait_interruptibly
from turnlog.ownthread import in_own_thread
from turnlog.stores.watchers import Watchers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from turnlog.names import ThreadKey
    from turnlog.stores.base import Store


class News:
    """Tells who waits in this process of changes, whoever made them.

    Args:
        store: where the threads are.
    """

    def __init__(self, store: Store) -> None:
        """Begin with nobody waiting."""
        self._store = store
        self._waiting = Watchers()

    def wake(self, key: ThreadKey) -> None:
        """Have those look who wait for news of a thread; for what no store tells of."""
        self._waiting.tell(key)

    def wake_all(self) -> None:
        """Have all look who wait."""
        self._waiting.tell_all()

    def after_fork(self) -> None:
        """In a forked child: nobody waits here."""
        self._waiting.after_fork()

    def wait(
        self,
        key: ThreadKey,
        seconds: float,
        check: Callable[[], None],
        read: Callable[[], bool],
    ) -> None:
        """Read a thread until news has come or the time is over. Blocks.

        Args:
            key: the thread.
            seconds: how long to wait.
            check: raises what makes a round pointless, before it begins.
            read: reads, and says whether there is news.

        Raises:
            StoreError: the thread could not be watched.
            Exception: what `check` and `read` raise.
        """
        deadline = time.monotonic() + seconds
        told = True
        while told:
            check()
            bell = threading.Event()
            watch = _Watch(partial(self._watch, key, bell.set))
            try:
                watch.begin()
                if read():
                    return
                left = deadline - time.monotonic()
                told = left > 0 and wait_interruptibly(bell.wait, left)
            finally:
                watch.end()
        read()

    async def await_(
        self,
        key: ThreadKey,
        seconds: float,
        check: Callable[[], None],
        read: Callable[[], Awaitable[bool]],
    ) -> None:
        """Read a thread until news has come or the time is over. Does not block the loop."""
        import asyncio  # noqa: PLC0415 - takes as long to import as all the rest

        deadline = time.monotonic() + seconds
        told = True
        while told:
            check()
            bell = asyncio.Event()
            ring = partial(_ring, asyncio.get_running_loop(), bell)
            watch = _Watch(partial(self._watch, key, ring))
            try:
                await asyncio.wrap_future(in_own_thread(watch.begin))
                if await read():
                    return
                told = await _rung(bell, deadline - time.monotonic())
            finally:
                in_own_thread(watch.end)
        await read()

    def _watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        leave = self._waiting.add(key, changed)
        try:
            stop = self._store.watch(key, changed)
        except BaseException:
            leave()
            raise
        return partial(_both, leave, stop)


class _Watch:
    """One round's watch of a thread. To end it waits for a beginning that is under way."""

    def __init__(self, watch: Callable[[], Callable[[], None]]) -> None:
        self._watch = watch
        self._mutex = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._ended = False

    def begin(self) -> None:
        with DeferredSignals(), self._mutex:  # else what was just begun could never be ended
            if not self._ended:
                self._stop = self._watch()

    def end(self) -> None:
        with DeferredSignals(), self._mutex:
            self._ended = True
            if self._stop is not None:
                self._stop()


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def _ring(loop: asyncio.AbstractEventLoop, bell: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(bell.set)


async def _rung(bell: asyncio.Event, seconds: float) -> bool:
    """Wait for a bell; say whether it rang in time."""
    import asyncio  # noqa: PLC0415

    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await bell.wait()
    return bell.is_set()


def check_wait(wait: object, key: ThreadKey) -> None:
    """Raise InvalidTurn unless it is a number of seconds to wait."""
    if isinstance(wait, int | float) and not isinstance(wait, bool):
        with suppress(OverflowError):  # a number of 309 digits
            if math.isfinite(wait) and wait >= 0:
                return
    raise InvalidTurn(key, f"wait is {wait!r}", "give a number of seconds, 0 or more")
