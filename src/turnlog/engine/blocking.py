"""Runs async code for a plain caller, in the caller's own thread.

Each thread keeps an event loop of its own for this, so that what lives in a loop (a client's open
connections, a stream between two of its pieces) is still there at the next call. It is closed when
the thread ends.

Ctrl-C cancels what runs, waits for it to end, and then raises KeyboardInterrupt: what was said by
then is written back. So does a second one. Only who presses it again and again leaves before that.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from turnlog.errors import RunningLoop, WritebackFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_Returned = TypeVar("_Returned")

_MOST_INTERRUPTS: Final = 2


class _Loop:
    """A thread's own loop. It is closed, with all that runs in it, when the thread ends."""

    def __init__(self) -> None:
        # Not the thread's current loop, as asyncio has it: that one may be somebody else's.
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def __del__(self) -> None:
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
    """
    _refuse_in_loop(instead)
    runner = _loops.runner()
    tasks: list[asyncio.Task[Any]] = []

    async def main() -> _Returned:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is a task's
        tasks.append(task)
        return await work()

    try:
        return runner.run(main(), context=contextvars.copy_context())
    except BaseException as error:
        _finish(runner, tasks)
        lost = _lost(tasks)
        if lost is not None and (isinstance(error, KeyboardInterrupt) or _interrupted(tasks)):
            raise KeyboardInterrupt from lost
        raise


def _lost(tasks: list[asyncio.Task[Any]]) -> WritebackFailed | None:
    """Give the error of a task that could not write back what was said."""
    for task in tasks:
        error = task.exception() if task.done() and not task.cancelled() else None
        if isinstance(error, WritebackFailed):
            return error
    return None


def _interrupted(tasks: list[asyncio.Task[Any]]) -> bool:
    """Say whether Ctrl-C has cancelled the task: in the main thread nothing else does."""
    main = threading.current_thread() is threading.main_thread()
    return main and any(task.cancelling() for task in tasks)


def _finish(runner: asyncio.Runner, tasks: list[asyncio.Task[Any]]) -> None:
    """Let what a signal broke off come to its end: it may be writing."""
    for _ in range(_MOST_INTERRUPTS):
        pending = [task for task in tasks if not task.done()]
        if not pending:
            return
        for task in pending:
            task.cancel()
        with suppress(KeyboardInterrupt):
            runner.run(_ended(pending))


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)


def _refuse_in_loop(instead: str) -> None:
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_loops.close)
