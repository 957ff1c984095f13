"""Event loops that blocking callers use.

A borrowed loop runs in its caller's own OS thread, and only while he waits for it. So a lone append
costs no change of threads, which would take as long again as the servers' answer. A background loop
has a thread of its own, and goes on when nobody calls: for what has to be seen to all the time.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from turnlog.stores.nats.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    _Result = TypeVar("_Result")

_AGAIN: Final = 0.1  # seconds

# What a forked child keeps of its parent's: to take it apart would disturb the parent's.
_left_alone: Final[list[object]] = []


class BorrowedLoop:
    """A loop that one caller after the other runs, in his own thread."""

    def __init__(self) -> None:
        """Begin with a loop that stands still."""
        self._mutex = threading.Lock()
        self._borrower: int | None = None
        self._last: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._loop = asyncio.SelectorEventLoop()

    def run(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Do some work. Blocks.

        Raises:
            Failure: a signal's handler called, in the middle of other work in this thread.
        """
        me = threading.get_ident()
        if self._borrower == me:
            raise Failure(
                "this OS thread is in the middle of another commit",
                "do not append in a signal's handler: note it, and append after",
            )
        with self._mutex:
            if self._loop.is_closed():
                raise closed()
            self._borrower = me
            try:
                return self._apart(work) if _runs_one() else self._run(work)
            finally:
                self._borrower = None
                if self._last is not None:
                    self._end(self._last)

    def _apart(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Do it in another thread, since this one runs a loop, and there can be one only."""
        with ThreadPoolExecutor(1, "turnlog-nats") as pool:
            return pool.submit(self._run, work).result()

    def _run(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        task = self._loop.create_task(work())
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # a signal's handler raised
                task.cancel()
                with suppress(BaseException):
                    self._loop.run_until_complete(task)
            raise

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End it, after some last work; in the middle of other work in this thread, after that."""
        self._last = last
        if self._borrower != threading.get_ident():
            with self._mutex:
                self._end(last)

    def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._loop.is_closed():
            use = self._apart if _runs_one() else self._run
            for work in (last, _end_tasks):
                with suppress(Exception, asyncio.CancelledError):
                    use(work)
            self._loop.close()

    def leave_alone(self, client: object) -> None:
        """In a forked child: it is the parent's, and so is the client in it."""
        _left_alone.append((self._loop, client))


class BackgroundLoop:
    """A loop that runs in a daemon thread of its own."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            RuntimeError: the system has no thread to give, or the interpreter is ending.
        """
        self._mutex = threading.RLock()  # a finalizer may close it while we hold it
        self._closed = False
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._serve, name="turnlog-nats", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def run(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Do some work. Blocks.

        Raises:
            Failure: it was closed, or called in the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise Failure("who is told of news may not wait", "use the store in another OS thread")
        with self._mutex:
            if self._closed:
                raise closed()
            working = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return working.result()
        except CancelledError:
            if self._closed:
                raise closed() from None
            raise

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End it, after some last work."""
        with self._mutex:
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            with suppress(Exception, asyncio.CancelledError):
                await last()
            await _end_tasks()
        finally:
            self._loop.stop()

    def leave_alone(self, client: object) -> None:
        """In a forked child: it is the parent's, and so are its thread and the client in it."""
        _left_alone.append((self._loop, client))


def closed() -> Failure:
    """Give the error of who comes too late."""
    return Failure("the store was closed", "open a new Memory")


def _runs_one() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _end_tasks() -> None:
    """Cancel what is still under way, and wait for it."""
    current = asyncio.current_task()
    await end_all(task for task in asyncio.all_tasks() if task is not current)


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they end.

    Once may not be enough: before Python 3.12 `wait_for` drops a cancellation that comes when what
    it waits for has just been done.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        ended, waiting = await asyncio.wait(waiting, timeout=_AGAIN)
        await asyncio.gather(*ended, return_exceptions=True)  # so that somebody has seen them
