"""A process that appends: `writer.py LIBRARY FOLDER NUMBER`, told what to do line by line.

`open ID` opens a thread and answers `ready`; `append COUNT` appends so many turns to it and answers
how many of them were acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from loads import append_each
from peers import LIBRARIES
from text import numbered


async def main(name: str, folder: str, number: str) -> None:
    """Do as the lines say. Nothing else runs in this loop, so it may wait for them."""
    library = LIBRARIES[name](Path(folder))
    thread = None
    for line in sys.stdin:
        order, what = line.split()
        if order == "open":
            thread = await library.open(what)
            print("ready", flush=True)
        elif thread is not None:
            texts = [numbered(int(number), turn) for turn in range(int(what))]
            print(await append_each(thread, texts, alone=True), flush=True)
    await library.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
