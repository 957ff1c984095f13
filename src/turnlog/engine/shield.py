"""Waiting for what must come to its end, whatever cancels the one who waits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from pydantic_ai.exceptions import RunCancelled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pydantic_ai.models import Model


async def ended(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """Wait until a task has ended; give the last cancellation that came meanwhile.

    A cancelled scope of anyio's is kept out: it would cancel again and again until it is done.
    """
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    return cancelled


def cancel(task: asyncio.Task[Any], *args: Any) -> None:
    """Cancel a task, unless the end of the loop, which cancels all of them at once, has done so.

    A second cancellation would break off what the task does about the first.
    """
    if not all(each.cancelling() for each in asyncio.all_tasks()):
        task.cancel(*args)


def is_cancellation(error: BaseException) -> bool:
    """Return whether what ended a run is a cancellation, or an exit, and no failure."""
    return not isinstance(error, Exception) or isinstance(error, RunCancelled)


@asynccontextmanager
async def opened(model: Model) -> AsyncGenerator[None]:
    """Open a model, and close it whatever cancels meanwhile: else it would never be closed."""
    await model.__aenter__()
    try:
        yield
    finally:
        closing = asyncio.ensure_future(model.__aexit__(None, None, None))
        cancelled = await ended(closing)
        closing.result()
        if cancelled is not None:
            raise cancelled
