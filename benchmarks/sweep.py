"""The sync sweep: threads x tasks x turns, beside how often a second a raw file can be synced.

The ratio shows what is shared: turns of one thread share a sync, those of several cannot.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from files import line
from table import Row, at_least, median, ratio
from text import numbered

import turnlog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    _Work = Sequence[tuple[turnlog.MemoryThread, Sequence[str]]]  # of each writer


class Sizes(NamedTuple):
    """How much is done.

    Attributes:
        turns: the turns of each case, all tasks together; at least one a task.
        many: the greatest number of tasks, and of threads.
        syncs: the raw writes and syncs before each case, and after it.
    """

    turns: int
    many: int
    syncs: int


class _Case(NamedTuple):
    """So many tasks, or OS threads, on so many threads."""

    threads: int
    writers: int
    tasks: bool = True
    least: float | None = None  # how many times the raw syncs a second it has to reach

    def each(self, turns: int) -> int:
        """Give the turns of each writer."""
        return max(1, turns // self.writers)

    def what(self, turns: int) -> str:
        """Say what is done."""
        kind = "task" if self.tasks else "OS thread"
        parts = ((self.threads, "thread"), (self.writers, kind), (self.each(turns), "turn"))
        return " x ".join(f"{count:,} {name}{'s' * (count != 1)}" for count, name in parts)


def sweep_rows(root: Path, repetitions: int, sizes: Sizes) -> Iterator[Row]:
    """Measure durable turns a second, and in the same repetition the raw syncs a second."""
    for number, case in enumerate(_cases(sizes.many)):
        raws: list[float] = []
        owns: list[float] = []
        for repetition in range(repetitions):
            folder = root / f"{number}-{repetition}"
            before = _raw(folder, sizes.syncs)
            owns.append(_run(folder, case, case.each(sizes.turns)))
            raws.append((before + _raw(folder, sizes.syncs)) / 2)
        times = ratio(owns, raws)
        yield Row(
            case.what(sizes.turns),
            f"{median(owns):,.0f} turns/s",
            f"bare write + fdatasync: {median(raws):,.0f} syncs/s",
            f"{times:.2f} x the speed",
            at_least(case.least, times, " x") if case.least is not None else "",
        )


def _cases(many: int) -> Sequence[_Case]:
    return (
        _Case(1, 1),
        _Case(1, 8),
        _Case(1, 64, least=10),
        _Case(1, many),
        _Case(8, 8),
        _Case(64, 64),
        _Case(many, many),
        *(_Case(1, writers, tasks=False) for writers in (1, 8, 64)),
    )


def _raw(folder: Path, syncs: int) -> float:
    """Give how often a second a turn's bytes can be written and synced, one after another."""
    folder.mkdir(parents=True, exist_ok=True)
    data = line(("user", numbered(0, 0)))
    with (folder / "raw").open("ab") as file:
        start = time.perf_counter()
        for _ in range(syncs):
            os.write(file.fileno(), data)
            os.fdatasync(file.fileno())
        return syncs / (time.perf_counter() - start)


def _run(folder: Path, case: _Case, each: int) -> float:
    """Give the turns a second of a case, on threads that are open and have a file each."""
    ids = [f"thread-{number}" for number in range(case.threads)]
    texts = [[numbered(writer, number) for number in range(each)] for writer in range(case.writers)]
    with turnlog.Memory(folder) as memory:
        opened = asyncio.run(_opened(memory, ids))
        work = [(opened[writer % len(opened)], own) for writer, own in enumerate(texts)]
        gc.collect()
        took = asyncio.run(_in_tasks(work)) if case.tasks else _in_os_threads(work)
    with turnlog.Memory(folder, read_only=True) as memory:
        kept = [message.content for id_ in ids for message in memory.open(id_).messages()]
    if sorted(kept) != sorted([*ids, *chain(*texts)]):
        raise SystemExit(f"{folder}: of {case.writers * each} turns not each was kept once")
    return case.writers * each / took


async def _opened(memory: turnlog.Memory, ids: Sequence[str]) -> list[turnlog.MemoryThread]:
    async def opened(id_: str) -> turnlog.MemoryThread:
        return await (await memory.aopen(id_)).aappend(id_)

    return await asyncio.gather(*map(opened, ids))


async def _in_tasks(work: _Work) -> float:
    async def write(thread: turnlog.MemoryThread, texts: Sequence[str]) -> None:
        for text in texts:
            await thread.aappend(text)

    start = time.perf_counter()
    await asyncio.gather(*(write(thread, texts) for thread, texts in work))
    return time.perf_counter() - start


def _in_os_threads(work: _Work) -> float:
    def write(thread: turnlog.MemoryThread, texts: Sequence[str]) -> None:
        for text in texts:
            thread.append(text)

    workers = [threading.Thread(target=write, args=own) for own in work]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start
