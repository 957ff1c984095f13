"""Several processes on one thread: turns a second, what of them survives, and what a loop feels."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from heart import Heart
from loads import Load, append_each, count_kept, delay_row, load_rows
from text import numbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from peers import Library
    from table import Row

_WRITER: Final = Path(__file__).with_name("writer.py")
_PROCESSES: Final = 4


class Writers:
    """Processes that append to the same thread, each its own turns, when they are told to."""

    def __init__(self, library: type[Library], folder: Path) -> None:
        """Start the processes."""
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(_WRITER), library.name, str(folder), str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(_PROCESSES)
        ]

    def __enter__(self) -> Self:
        """Give the writers themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End them: at once where something failed, else when they have closed their library."""
        for process in self._processes:
            if kind is not None:
                process.kill()
            process.communicate()

    def open(self, id_: str) -> None:
        """Have each open the thread."""
        self._ask(f"open {id_}")

    def append(self, each: int) -> tuple[int, float]:
        """Have each append its turns; give those acknowledged, and the seconds it took."""
        start = time.perf_counter()
        acknowledged = sum(map(int, self._ask(f"append {each}")))
        return acknowledged, time.perf_counter() - start

    def _ask(self, order: str) -> list[str]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{order}\n")
            process.stdin.flush()
        return [self._answer(process) for process in self._processes]

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        answer = process.stdout.readline()
        if not answer:
            raise SystemExit("a writer's process ended before it had done its work")
        return answer


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
