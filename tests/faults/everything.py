"""A program that does everything which takes a lock, from OS threads and tasks at once.

`python everything.py ROOT NAME COUNT`: on a few threads of a memory, which others use too. It says
how many appends of its own were acknowledged. It is ended with a dump of all stacks where it hangs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import random
import sys
import threading
import warnings
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from writers import ready, say

from turnlog import Closed, DamageWarning, Memory, ThreadKey, ThreadReplaced, TornTailWarning
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from turnlog import MemoryThread

LONGEST = 90  # seconds
IDS = "abcdef"
_GONE = (Closed, ThreadReplaced)  # another deleted the thread, or repaired it


class _Work:
    """What is done, by whom, how often."""

    def __init__(self, root: str, name: str, times: int) -> None:
        self._store = JsonlStore(root, lock_timeout=LONGEST)
        self.memory = Memory(self._store, lock_timeout=LONGEST)
        self._other = Memory(root, lock_timeout=LONGEST)  # as another process has it
        self._name = name
        self._times = times
        self._numbers = count()

    def _turn(self) -> str:
        return f"{self._name} {next(self._numbers)}"

    def in_thread(self, seed: int) -> None:
        """Do things one after the other, each of which may block."""
        draw = random.Random(f"{self._name} {seed}")
        for _ in range(self._times):
            id_ = draw.choice(IDS)
            with suppress(*_GONE):
                self._act(draw.randrange(8), id_)

    def _act(self, what: int, id_: str) -> None:
        key = ThreadKey("default", id_)
        if what == 0:
            self.memory.delete(self.memory.open(id_))
        elif what == 1:
            self._store.repair(key)
        elif what == 2:
            self._store.examine(key)
            self.memory.peek(id_, last=3)
        elif what == 3:
            mem = self.memory.open(id_)
            with mem.turn_lock():
                mem.refresh().append(self._turn())
        elif what == 4:
            self._other.open(id_).append(self._turn())
        else:
            self.memory.open(id_).append(self._turn())

    async def in_tasks(self) -> None:
        """Append to all the threads at once, again and again; now and then under a turn lock."""

        async def append(id_: str) -> None:
            mem: MemoryThread = await self.memory.aopen(id_)
            with suppress(*_GONE):
                await mem.aappend(self._turn())

        async def locked(id_: str) -> None:
            mem = await self.memory.aopen(id_)
            async with mem.turn_lock():
                await append(id_)

        for number in range(self._times):
            order = random.Random(f"{self._name} {number}").sample(IDS, len(IDS))
            await asyncio.gather(*map(append, order), locked(order[0]))


def main(root: str, name: str, times: str) -> None:
    """Do it all at once."""
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    warnings.simplefilter("ignore", TornTailWarning)
    warnings.simplefilter("ignore", DamageWarning)
    work = _Work(root, name, int(times))
    ready()
    threads = [threading.Thread(target=work.in_thread, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(work.in_tasks())
    for thread in threads:
        thread.join()
    work.memory.close()
    say("done")


if __name__ == "__main__":
    main(*sys.argv[2:])
