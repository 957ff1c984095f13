"""Many tasks of one process on a memory of turnlog's, wherever that is."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING

from text import numbered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from turnlog import Memory, MemoryThread


async def opened(memory: Memory, ids: Sequence[str]) -> list[MemoryThread]:
    """Open threads, and append a first turn to each."""
    return await asyncio.gather(*(_first_turn(memory, id_) for id_ in ids))


async def _first_turn(memory: Memory, id_: str) -> MemoryThread:
    return await (await memory.aopen(id_)).aappend(numbered(0, 0))


async def append_new(memory: Memory, ids: Sequence[str]) -> float:
    """Open a thread and append to it, in a task each; give the seconds."""
    return await timed([_first_turn(memory, id_) for id_ in ids])


async def append_each(threads: Sequence[MemoryThread], each: int) -> float:
    """Append so many turns to each thread, in a task each; give the seconds.

    A thread that is named several times has several tasks.
    """

    async def append(thread: MemoryThread) -> None:
        for _ in range(each):
            await thread.aappend(numbered(0, 0))

    return await timed([append(thread) for thread in threads])


async def timed(work: Sequence[Awaitable[object]]) -> float:
    """Do work all at once; give the seconds."""
    gc.collect()
    start = time.perf_counter()
    await asyncio.gather(*work)
    return time.perf_counter() - start
