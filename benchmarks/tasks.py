"""Many tasks of one asyncio process: on one thread, on many threads, and what the loop feels."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from heart import Heart
from loads import Load, append_each, count_kept, delay_row, delays, load_rows
from table import Row
from text import numbered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence
    from pathlib import Path

    from peers import Library, Thread

_TASKS: Final = 64
_PACE: Final = 0.01  # seconds between two appends of steady traffic


class Sizes(NamedTuple):
    """How much is done.

    Attributes:
        each: the turns of each of the 64 tasks.
        threads: the number of threads.
        paced: the appends of steady traffic, at 100 a second.
    """

    each: int
    threads: int
    paced: int


class _Run(NamedTuple):
    """One repetition of one library."""

    one_thread: tuple[Load, Heart]
    new_threads: tuple[Load, Heart]
    open_threads: tuple[Load, Heart]
    steady: Heart


def task_rows(
    root: Path, libraries: Sequence[type[Library]], repetitions: int, sizes: Sizes
) -> Iterator[Row]:
    """Measure turns a second, and the loop's delay meanwhile."""
    runs: dict[type[Library], list[_Run]] = {library: [] for library in libraries}
    idle: list[Heart] = []
    for repetition in range(repetitions):
        idle.append(asyncio.run(_idle(sizes.paced * _PACE / 2)))
        for library in libraries:
            folder = root / f"{library.name}-{repetition}"
            runs[library].append(asyncio.run(_run(library(folder), sizes)))

    one_thread = {library: [run.one_thread for run in own] for library, own in runs.items()}
    new = {library: [run.new_threads for run in own] for library, own in runs.items()}
    opened = {library: [run.open_threads for run in own] for library, own in runs.items()}
    cases = (
        (f"{_TASKS} tasks append to one thread", one_thread, 15),
        (f"{sizes.threads:,} new threads are opened and appended to at once", new, 4),
        (f"{sizes.threads:,} open threads are appended to at once", opened, 4),
    )
    for what, results, least in cases:
        loads = {library: [load for load, _ in own] for library, own in results.items()}
        yield from load_rows(what, loads, least)
    yield Row("the loop's delay while nothing is done", delays(idle))
    for what, results, _ in cases:
        hearts = {library: [heart for _, heart in own] for library, own in results.items()}
        yield delay_row(f"the loop's delay while {what}", hearts)
    steady = {library: [run.steady for run in own] for library, own in runs.items()}
    yield delay_row(f"the loop's delay while 100 appends/s go to {sizes.threads:,} threads", steady)


async def _idle(seconds: float) -> Heart:
    gc.collect()
    async with Heart() as heart:
        await asyncio.sleep(seconds)
    return heart


async def _run(library: Library, sizes: Sizes) -> _Run:
    ids = [f"thread-{number}" for number in range(sizes.threads)]
    one_thread = await _one_thread(library, max(1, sizes.each // library.share))
    new_threads = await _new_threads(library, ids)
    threads = [await library.open(id_) for id_ in ids]
    open_threads = await _open_threads(library, ids, threads)
    steady = await _steady(threads, sizes.paced)
    await library.close()
    return _Run(one_thread, new_threads, open_threads, steady)


async def _timed(appends: Sequence[Awaitable[int]]) -> tuple[int, float, Heart]:
    """Run the appends together; give the turns acknowledged, the seconds, and the loop's delay."""
    gc.collect()
    async with Heart() as heart:
        start = time.perf_counter()
        acknowledged = sum(await asyncio.gather(*appends))
        took = time.perf_counter() - start
    return acknowledged, took, heart


async def _one_thread(library: Library, each: int) -> tuple[Load, Heart]:
    thread = await library.open("one")
    texts = [[numbered(task, number) for number in range(each)] for task in range(_TASKS)]
    acknowledged, took, heart = await _timed([append_each(thread, own) for own in texts])
    kept = await count_kept(library, "one", {text for own in texts for text in own})
    return Load(_TASKS * each, acknowledged, kept, took), heart


async def _new_threads(library: Library, ids: Sequence[str]) -> tuple[Load, Heart]:
    async def once(id_: str) -> int:
        return await append_each(await library.open(id_), [text])

    text = numbered(0, 0)
    return await _many_threads(library, ids, text, [once(id_) for id_ in ids])


async def _open_threads(
    library: Library, ids: Sequence[str], threads: Sequence[Thread]
) -> tuple[Load, Heart]:
    text = numbered(1, 1)
    return await _many_threads(
        library, ids, text, [append_each(thread, [text]) for thread in threads]
    )


async def _many_threads(
    library: Library, ids: Sequence[str], text: str, appends: Sequence[Awaitable[int]]
) -> tuple[Load, Heart]:
    acknowledged, took, heart = await _timed(appends)
    kept = sum([await count_kept(library, id_, {text}) for id_ in ids])
    return Load(len(ids), acknowledged, kept, took), heart


async def _steady(threads: Sequence[Thread], appends: int) -> Heart:
    async def later(number: int) -> int:
        await asyncio.sleep(number * _PACE)
        return await append_each(threads[number % len(threads)], [numbered(2, number)])

    _, _, heart = await _timed([later(number) for number in range(appends)])
    return heart
