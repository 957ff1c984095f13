"""TextStream: a run whose text is taken piece by piece, with an async or a plain `for`.

The run goes on in a task of its own, from its first piece to its end, so that a cancellation and a
scope of the engine's begin and end in one task. It goes on only while the next piece is waited
for: what has been said when somebody leaves early is what they have seen.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar
from weakref import WeakSet

from turnlog.engine.blocking import refuse_in_loop, run_in, stream_began, stream_ended
from turnlog.engine.result import Output, Result
from turnlog.engine.shield import cancel, ended
from turnlog.errors import RunningLoop, WritebackFailed

if TYPE_CHECKING:
    from types import TracebackType

    from turnlog.engine.listener import OnText

    _Perform = Callable[[OnText], Coroutine[Any, Any, Result[Output]]]

_Returned = TypeVar("_Returned")

# The loop holds its tasks weakly.
_under_way: Final[set[asyncio.Task[Any]]] = set()


class _Channel:
    """Hands pieces of text from the run's task to the one who reads. The task holds it alone."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._given: asyncio.Future[str | None] = self._loop.create_future()
        self._asked: asyncio.Future[None] | None = None

    def ask(self) -> asyncio.Future[str | None]:
        """Let the run go on; give the future of its next piece, None at its end."""
        if self._given.done():
            self._given = self._loop.create_future()
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)
        return self._given

    async def give(self, text: str) -> None:
        """Give a piece, and wait until the next one is asked for."""
        self._asked = self._loop.create_future()
        if not self._given.done():  # else the reader was just cancelled, and will end the run
            self._given.set_result(text)
        await self._asked

    def end(self, task: asyncio.Task[Any]) -> None:
        """Say that there is no more."""
        _under_way.discard(task)
        if not self._given.done():
            self._given.set_result(None)


class TextStream(AsyncIterator[str], Generic[Output]):
    """A run, as an async iterator of the pieces of its text; its `result` is there at the end.

    Nothing happens before the first piece is asked for. Whoever leaves the `async for` early, or
    is cancelled, ends the run; what it had said is then written back. To have that done by a known
    moment, use it as an async context manager, or await `aclose()`.

    Do not make one yourself: `astream` gives it.
    """

    def __init__(self, perform: _Perform[Output]) -> None:
        """Prepare a run that takes the function to be called with each piece."""
        self._perform = perform
        self._task: asyncio.Task[Result[Output]] | None = None
        self._channel: _Channel | None = None
        self._closed = False
        self._reading = False

    @property
    def result(self) -> Result[Output]:
        """The run's result, once the stream has ended.

        Raises:
            RuntimeError: it has not ended yet, or was left early.
            Exception: what the run raised.
        """
        if self._task is None or not self._task.done() or self._task.cancelled():
            message = "the stream has no result: it was not read to its end; read it, then ask"
            raise RuntimeError(message)
        return self._task.result()

    @property
    def under_way(self) -> bool:
        """Whether the run has begun and not ended."""
        return self._task is not None and not self._task.done()

    def __aiter__(self) -> Self:
        """Give the stream itself: it can be read once."""
        return self

    async def __anext__(self) -> str:
        """Wait for the next piece of text.

        Raises:
            StopAsyncIteration: the run has ended.
            Exception: what the run raised.
        """
        if self._reading:
            message = "the stream is being read by another task: a stream has one reader"
            raise RuntimeError(message)
        if self._task is None and not self._closed:
            self._channel = _Channel()
            self._task = asyncio.create_task(self._perform(self._channel.give))
            _under_way.add(self._task)
            self._task.add_done_callback(self._channel.end)
        if self._task is None or self._channel is None:
            raise StopAsyncIteration
        self._reading = True
        try:
            text = None if self._task.done() else await self._channel.ask()
        except BaseException:
            await self.aclose()
            raise
        finally:
            self._reading = False
        if text is not None:
            return text
        self._channel = None
        if not self._closed:  # else the one who closed it gets to know
            self._task.result()
        raise StopAsyncIteration

    def stop(self) -> None:
        """Have the run end, and give no piece any more. Does not wait; from any thread."""
        self._closed = True
        task = self._task
        if task is not None and not task.done():
            with suppress(RuntimeError):  # it has just ended, and the loop with it
                task.get_loop().call_soon_threadsafe(task.cancel)

    async def aclose(self) -> None:
        """End the run, if it has not ended, and wait until what it had said is written back.

        Raises:
            WritebackFailed: it could not be written.
        """
        self._closed = True
        task, channel, self._channel = self._task, self._channel, None
        if task is None or (task.done() and channel is None):  # its end was told before
            return
        cancel(task)
        cancelled = await ended(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, WritebackFailed):  # any other nobody wants any more
            raise error
        if cancelled is not None:
            raise cancelled

    async def __aenter__(self) -> Self:
        """Give the stream itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run, as `aclose` does."""
        await self.aclose()

    def __del__(self) -> None:
        """End the run of a stream that nobody reads any more."""
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)


class BlockingTextStream(Iterator[str], Generic[Output]):
    """A run, as an iterator of the pieces of its text; its `result` is there at the end.

    As `TextStream`, for plain code: each step blocks until there is a piece. It may be read in one
    thread or, piece by piece, in several, as servers do; it has an event loop of its own, which
    runs in whichever reads. Left early, it ends the run and waits until what it had said is
    written back: at once where it was not kept, or with `close()`, or at the end of a `with` block.

    Do not make one yourself: `stream` gives it.
    """

    def __init__(self, perform: _Perform[Output]) -> None:
        """Prepare a run that takes the function to be called with each piece."""
        self._perform = perform
        self._stream = TextStream(perform)
        self._lock = threading.RLock()
        self._runner: asyncio.Runner | None = None

    @property
    def result(self) -> Result[Output]:
        """The run's result, once the stream has ended. Raises as `TextStream.result` does."""
        return self._stream.result

    def __iter__(self) -> Self:
        """Give the stream itself: it can be read once."""
        return self

    def __next__(self) -> str:
        """Wait for the next piece of text. Raises StopIteration at the end, else as the run does.

        Raises:
            RunningLoop: it is called where an event loop runs.
        """
        with self._lock:
            try:
                return self._step(self._stream.__anext__)
            except RunningLoop:
                raise
            except StopAsyncIteration:
                self._end()
                raise StopIteration from None
            except (KeyboardInterrupt, SystemExit) as error:
                if error.__cause__ is None:  # it may have come with a piece, and broken off nothing
                    with _lost_to(error):
                        self._close()
                self._end()
                raise
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """End the run, as `TextStream.aclose` does. Blocks. May be called from any thread.

        Raises:
            WritebackFailed: what was said could not be written.
            RunningLoop: it is called where an event loop runs.
        """
        if not self._lock.acquire(blocking=False):  # somebody waits for a piece
            self._stream.stop()
            self._lock.acquire()
        try:
            self._close()
        finally:
            self._lock.release()

    def _close(self) -> None:
        try:
            if self._runner is not None:
                self._step(self._stream.aclose)
            else:
                self._stream.stop()
        except RunningLoop:
            raise
        except BaseException:
            self._end()
            raise
        self._end()

    def _step(self, work: Callable[[], Coroutine[Any, Any, _Returned]]) -> _Returned:
        refuse_in_loop("the next piece of astream")
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            _open.add(self)
            stream_began(self)
        return run_in(self._runner, work)

    def _end(self) -> None:
        """Close the loop, and with it the connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                runner.close()
            finally:
                stream_ended(self)

    def __enter__(self) -> Self:
        """Give the stream itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run."""
        with _lost_to(error):
            self.close()

    def __del__(self) -> None:
        """End the run of a stream that nobody reads any more."""
        if self._runner is None:
            return
        try:
            self.close()
        except RunningLoop:  # dropped in a loop, which must not wait for it
            with suppress(RuntimeError):  # no more threads: its run ends with its loop
                threading.Thread(target=self.close, name="turnlog-stream").start()

    def close_at_exit(self) -> None:
        """End the run, unless a daemon thread is reading: that one ends with the process."""
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def after_fork(self) -> None:
        """In a forked child: leave the run and its loop to the parent, whose selector it is too."""
        _of_parent.append((self._runner, self._stream))
        self._lock, self._runner = threading.RLock(), None
        self._stream = TextStream(self._perform)
        self._stream.stop()


@contextmanager
def _lost_to(error: BaseException | None) -> Generator[None]:
    """Where a writeback in the block fails after Ctrl-C or the program's end, keep it that."""
    try:
        yield
    except WritebackFailed as lost:
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from lost
        if isinstance(error, SystemExit):
            raise SystemExit(str(lost)) from lost
        raise


_of_parent: Final[list[object]] = []
_open: Final[WeakSet[BlockingTextStream[Any]]] = WeakSet()


def close_all() -> None:
    """End the runs of all plain streams that nobody is reading just now. Blocks."""
    for stream in list(_open):
        try:
            stream.close_at_exit()
        except Exception as error:  # noqa: BLE001 - the others are to be closed too
            sys.excepthook(type(error), error, error.__traceback__)


def _after_fork() -> None:
    for stream in list(_open):
        stream.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_all)
