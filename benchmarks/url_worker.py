"""A process that appends to a memory on a server: `url_worker.py URL NUMBER`, told line by line.

`open PREFIX COUNT` opens so many threads, whose ids begin with the prefix, appends a turn to each,
and answers `done`; a `#` in the prefix stands for the process' number. `append EACH` appends so
many turns to each of them, in a task each, and answers `done`. `wait` waits for news of the first
one, and answers when they had come.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Final

from atonce import append_each, opened

from turnlog import Memory

if TYPE_CHECKING:
    from turnlog import MemoryThread

_PATIENCE: Final = 60.0


async def main(url: str, process: str) -> None:
    """Do as the lines say. Nothing else runs in this loop, so it may wait for them."""
    threads: list[MemoryThread] = []
    async with Memory(url) as memory:
        for line in sys.stdin:
            order, *what = line.split()
            answer = "done"
            if order == "open":
                prefix = what[0].replace("#", process)
                threads = await opened(memory, [f"{prefix}-{n}" for n in range(int(what[1]))])
            elif order == "append":
                await append_each(threads, int(what[0]))
            else:
                threads[0].refresh(wait=_PATIENCE)
                answer = str(time.perf_counter())
            print(answer, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
