"""Stopping: ends the runs that are under way, so that a program can end after their writeback."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from turnlog.engine.blocking import run_blocking
from turnlog.engine.shield import ended
from turnlog.engine.stream import close_all
from turnlog.ownthread import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Generator


class _UnderWay:
    """A run that has begun and not ended."""

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.ended: Future[None] = Future()
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Cancel it, from any OS thread."""
        if self.task is not None:
            with suppress(RuntimeError):  # its loop has just ended, and it too
                self._loop.call_soon_threadsafe(self.task.cancel)


_runs: Final[set[_UnderWay]] = set()


@contextmanager
def under_way() -> Generator[None]:
    """Have a run known while it is under way."""
    run = _UnderWay()
    _runs.add(run)
    try:
        yield
    finally:
        _runs.discard(run)
        run.ended.set_result(None)


async def astop_runs() -> None:
    """Stop all runs that are under way in this process; wait until what they had said is written.

    Call it where a program is about to end: a web server cancels the requests that it still has and
    ends itself, before their runs have written. Each run ends as if it had been cancelled. It takes
    as long as the stores take.

    A run that awaits this itself is left alone.
    """
    mine = asyncio.current_task()
    runs = [run for run in list(_runs) if run.task is not mine]
    for run in runs:
        run.stop()
    waiting = [asyncio.wrap_future(run.ended) for run in runs]
    # A plain stream between two pieces has a loop that stands still: closing it runs that.
    waiting.append(asyncio.wrap_future(in_own_thread(close_all)))
    cancelled = await ended(asyncio.ensure_future(_all(waiting)))
    if cancelled is not None:
        raise cancelled


async def _all(waiting: list[asyncio.Future[Any]]) -> None:
    await asyncio.wait(waiting)


def stop_runs() -> None:
    """Stop all runs that are under way in this process, as `astop_runs` does. Blocks.

    Raises:
        RunningLoop: it is called where an event loop runs: await `astop_runs` there.
    """
    run_blocking(astop_runs, "astop_runs")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_runs.clear)
