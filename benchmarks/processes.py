"""Several processes on one thread: turns a second, what of them survives, and what a loop feels."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heart import Heart
from loads import Load, append_each, count_kept, delay_row, load_rows
from text import numbered
from told import Told

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from peers import Library
    from table import Row

_WRITER: Final = Path(__file__).with_name("writer.py")
_PROCESSES: Final = 4


class Writers(Told):
    """Processes that append to the same thread, each its own turns, when they are told to."""

    def __init__(self, library: type[Library], folder: Path) -> None:
        """Start the processes."""
        super().__init__(*((_WRITER, library.name, folder, number) for number in range(_PROCESSES)))

    def open(self, id_: str) -> None:
        """Have each open the thread."""
        self.ask(f"open {id_}")

    def append(self, each: int) -> tuple[int, float]:
        """Have each append its turns; give those acknowledged, and the seconds it took."""
        start = time.perf_counter()
        acknowledged = sum(map(int, self.ask(f"append {each}")))
        return acknowledged, time.perf_counter() - start


def process_rows(
    root: Path, libraries: Sequence[type[Library]], repetitions: int, each: int
) -> Iterator[Row]:
    """Measure processes on one thread; then the loop of another that appends to it meanwhile."""
    loads: dict[type[Library], list[Load]] = {library: [] for library in libraries}
    hearts: dict[type[Library], list[Heart]] = {library: [] for library in libraries}
    with ExitStack() as stack:
        writers = {
            library: stack.enter_context(Writers(library, root / library.name))
            for library in libraries
        }
        for repetition in range(repetitions):
            for library in libraries:
                one, own = library(root / library.name), writers[library]
                count = max(1, each // library.share)
                loads[library].append(_load(one, own, f"alone-{repetition}", count))
                hearts[library].append(
                    asyncio.run(_meanwhile(one, own, f"beside-{repetition}", count))
                )
    what = f"{_PROCESSES} processes append to one thread"
    yield from load_rows(what, loads)
    yield delay_row(f"the loop's delay while it and {what}", hearts)


def _load(library: Library, writers: Writers, id_: str, each: int) -> Load:
    writers.open(id_)
    acknowledged, took = writers.append(each)
    texts = {numbered(writer, number) for writer in range(_PROCESSES) for number in range(each)}
    kept = asyncio.run(count_kept(library, id_, texts))
    return Load(len(texts), acknowledged, kept, took)


async def _meanwhile(library: Library, writers: Writers, id_: str, each: int) -> Heart:
    writers.open(id_)
    thread = await library.open(id_)
    async with Heart() as heart:
        work = asyncio.create_task(asyncio.to_thread(writers.append, each))
        while not work.done():
            await append_each(thread, [numbered(_PROCESSES, 0)])
            await asyncio.sleep(0.01)
    await library.close()
    return heart
