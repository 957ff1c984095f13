"""A program that commits batches over the same threads as others, in whatever order.

`python serverbatches.py work URL NAME COUNT`: each batch appends to some old threads and to those
that come and go, some of which are deleted then. It says how many appends to old threads were
acknowledged. It is ended with a dump of all stacks where it hangs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import random
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from writers import ready, say

from turnlog import Closed, Memory, ThreadReplaced

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 90  # seconds
OLD = tuple("abcdefgh")
PASSING = tuple(f"new {n}" for n in range(12))
_GONE = (Closed, ThreadReplaced)  # another deleted the thread


def main(url: str, name: str, count: str) -> None:
    """Commit so many batches."""
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    ready()
    say(asyncio.run(batches(url, name, int(count))))


async def batches(url: str, name: str, count: int) -> int:
    """Commit so many batches; give the number of acknowledged appends to old threads."""
    draw = random.Random(name)
    acknowledged = 0

    async def append(memory: Memory, id_: str, content: str) -> bool:
        thread = await memory.aopen(id_)
        with suppress(*_GONE):
            await thread.aappend(content)
            return True
        return False

    async with Memory(url, lock_timeout=LONGEST) as memory:
        for number in range(count):
            ids = [*_some(draw, OLD), *PASSING]
            draw.shuffle(ids)
            appends = (append(memory, id_, f"{name} {number}") for id_ in ids)
            done = await asyncio.gather(*appends)
            acknowledged += sum(good for id_, good in zip(ids, done, strict=True) if id_ in OLD)
            await asyncio.gather(*(memory.adelete(id_) for id_ in _some(draw, PASSING)))
    return acknowledged


def _some(draw: random.Random, ids: Sequence[str]) -> list[str]:
    return draw.sample(ids, draw.randrange(len(ids)))


if __name__ == "__main__":
    main(*sys.argv[2:])
