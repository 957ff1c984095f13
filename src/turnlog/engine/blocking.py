"""Runs async code for a plain caller, in the caller's own thread.

Each thread keeps an event loop of its own for this, so that what lives in a loop (a client's open
connections, a stream between two of its pieces) is still there at the next call. It is closed when
the thread ends.

Ctrl-C cancels what runs, waits for it to end, and then raises KeyboardInterrupt: what was said by
then is written back. Pressed again it does no more; pressed again and again, it leaves at once.
SIGTERM and SIGHUP, which end a program, do the same and then raise SystemExit.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakSet

from turnlog.errors import RunningLoop, WritebackFailed
from turnlog.interrupts import LOOK

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType

_Returned = TypeVar("_Returned")

_MOST_PRESSES: Final = 3  # that wait; the next one leaves
_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)
# What stops a program, and Python's own way with it. Ctrl-C comes first, since its way raises: it
# must not come between the others.
_DEFAULTS: Final[dict[int, Any]] = {
    signal.SIGINT: signal.default_int_handler,
    **dict.fromkeys(_ENDINGS, signal.SIG_DFL),
}


class _Loop:
    """A thread's own loop. It is closed, with all that runs in it, when the thread ends."""

    def __init__(self) -> None:
        # Not the thread's current loop, as asyncio has it: that one may be somebody else's.
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def __del__(self) -> None:
        if not self.runner.get_loop().is_running():  # of a daemon thread, at the very end
            self.runner.close()


class _Loops(threading.local):
    """Each thread's loop, made when it is first needed."""

    loop: _Loop | None = None

    def runner(self) -> asyncio.Runner:
        if self.loop is None:
            self.loop = _Loop()
        return self.loop.runner

    def close(self) -> None:
        self.loop = None


_loops = _Loops()
_of_parent: Final[list[object]] = []


def run_blocking(work: Callable[[], Coroutine[Any, Any, _Returned]], instead: str) -> _Returned:
    """Run an async function to its end.

    Args:
        work: the function.
        instead: what to await where a loop is running, for the error.

    Raises:
        RunningLoop: this thread runs an event loop.
        KeyboardInterrupt: Ctrl-C, after the function has come to its end.
        SystemExit: SIGTERM or SIGHUP, likewise.
    """
    refuse_in_loop(instead)
    return run_in(_loops.runner(), work)


def run_in(runner: asyncio.Runner, work: Callable[[], Coroutine[Any, Any, _Returned]]) -> _Returned:
    """Run an async function to its end in a loop. Raises as `run_blocking` does."""
    with _Signals(runner.get_loop()) as pressed:
        try:
            return runner.run(pressed.cancelling(work()), context=contextvars.copy_context())
        except BaseException:
            pressed.finish(runner)
            raise


class _Signals:
    """Takes the place of the signals that stop a program, where Python's own way would be taken.

    That one ends the program, or raises wherever the main thread happens to be: in the middle of a
    writeback too. A handler of the program's own is left alone, and raises if it does.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.times = 0
        self._ending = 0  # the signal that is to end the program
        self._loop = loop
        self._taken: dict[int, Any] = {}
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        if _in_main_thread():
            try:
                self._take()
            except BaseException:  # by a handler of the program's own
                self._give_back()
                raise
        return self

    def _take(self) -> None:
        # Not the loop's own way, which has a handler that does nothing in between: a signal that
        # came just then would be lost.
        for number, default in _DEFAULTS.items():
            handler = signal.getsignal(number)
            if handler is default or handler is _leave:
                self._taken[number] = handler
                with suppress(ValueError):  # a subinterpreter has no signals
                    signal.signal(number, self._press)

    def _give_back(self) -> None:
        for number, handler in reversed(self._taken.items()):
            with suppress(ValueError):
                signal.signal(number, handler)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Give them back, and raise for what came, whatever else has ended the work."""
        try:
            self._give_back()
        except BaseException:
            self._give_back()
            raise
        lost = error if isinstance(error, WritebackFailed) else None
        if self._ending:
            raise exit_of(self._ending, lost) from lost
        if self.times:
            raise KeyboardInterrupt from lost

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.times += 1
        if number != signal.SIGINT:
            self._ending = number
        if self.times > _MOST_PRESSES:
            signal.signal(number, _DEFAULTS[number])
            if number == signal.SIGINT:
                signal.default_int_handler(number, frame)
            signal.raise_signal(number)
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def cancelling(self, work: Coroutine[Any, Any, _Returned]) -> _Returned:
        """Await what a signal is to cancel."""
        self._task = asyncio.current_task()
        if self.times and self._task is not None:  # before it had begun
            self._task.cancel()
        self._look()
        try:
            return await work
        finally:
            self._next_look.cancel()

    def _look(self) -> None:
        """Wake the loop now and then: a signal may have come as it was about to wait."""
        self._next_look = self._loop.call_later(LOOK, self._look)

    def finish(self, runner: asyncio.Runner) -> None:
        """Let what somebody else's handler broke off come to its end: it may be writing."""
        task = self._task
        if task is not None and not task.done() and self.times <= _MOST_PRESSES:
            task.cancel()
            runner.run(asyncio.wait([task]))
        elif task is not None:
            # SystemExit leaves the loop before what is called at a task's end, such as what stops
            # the threads of tools, for which the process would wait.
            runner.run(asyncio.sleep(0))


# ---- signals that end the program, between the pieces of a stream ----

# The streams that have begun and not ended. Weakly: a signal may come where one is just ending.
_begun: Final[WeakSet[object]] = WeakSet()


def stream_began(stream: object) -> None:
    """Have a signal that ends the program raise SystemExit, until the stream has ended."""
    _begun.add(stream)
    for number in _ENDINGS if _in_main_thread() else ():
        if signal.getsignal(number) is signal.SIG_DFL:
            with suppress(ValueError):  # a subinterpreter has no signals
                signal.signal(number, _leave)


def stream_ended(stream: object) -> None:
    """Give the signals back, where no other stream is under way."""
    _begun.discard(stream)
    for number in _ENDINGS if _in_main_thread() and not _begun else ():
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.SIG_DFL)


def exit_of(number: int, lost: WritebackFailed | None) -> SystemExit:
    """Return what ends the program for a signal; Python prints what it says was lost."""
    return SystemExit(128 + number if lost is None else str(lost))


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    if _begun:
        raise exit_of(number, None)
    signal.signal(number, signal.SIG_DFL)  # the last one did not end in the main thread
    signal.raise_signal(number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def refuse_in_loop(instead: str) -> None:
    """Raise RunningLoop where this thread runs an event loop; say what to await instead."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RunningLoop(
        "turnlog", "this thread runs an event loop, which this call would block", f"await {instead}"
    )


def _after_fork() -> None:
    """In a forked child: leave the parent's loop alone, whose selector is the parent's too."""
    _of_parent.append(_loops.loop)
    _loops.close()
    _begun.clear()
    for number, default in _DEFAULTS.items():
        handler = signal.getsignal(number)
        if handler is _leave or isinstance(getattr(handler, "__self__", None), _Signals):
            with suppress(ValueError):  # a subinterpreter has no signals
                signal.signal(number, default)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_loops.close)
