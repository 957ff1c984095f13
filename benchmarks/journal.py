"""What a journal that all threads share could win at most: it is why there is none.

A journal takes a batch of many threads in one write and one sync of a file that does not grow; the
threads' own files are written too, and synced later. This one is the best that such a journal can
be: it writes as many bytes as the batch has and syncs them, and does nothing of what would make it
one (no record, checksum, checkpoint, recovery). It keeps nothing. All the rest is the store's own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from appends import append_row, beside_raw
from table import Row, at_least, median, ratio
from text import numbered

from turnlog import Memory
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.writer import BatchWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnlog.stores.jsonl.folders import Folders
    from turnlog.stores.jsonl.writer import _Round  # pyright: ignore[reportPrivateUsage]

_SEGMENT: Final = 16 << 20


class _Journal(BatchWriter):
    """Commits batches with one sync each, of a file whose size and blocks do not change."""

    def __init__(self, folders: Folders, path: Path) -> None:
        super().__init__(folders, read_only=False)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._zeros = bytes(_SEGMENT)
        os.write(self._fd, self._zeros)
        os.fsync(self._fd)
        self._at = 0

    def _sync(self, rounds: list[_Round]) -> None:
        size = 0
        for round_ in rounds:
            size += round_._end.offset - round_._news.position.offset  # pyright: ignore[reportPrivateUsage]
            round_.unsynced = False
        if self._at + size > _SEGMENT:
            self._at = 0
        os.pwrite(self._fd, self._zeros[:size], self._at)
        os.fdatasync(self._fd)
        self._at += size

    def close(self) -> None:
        super().close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Seconds(NamedTuple):
    """How long one repetition took."""

    new_threads: float
    open_threads: float
    lone: tuple[float, float]  # of a bare write and sync, and of an append


def journal_rows(root: Path, repetitions: int, threads: int) -> Iterator[Row]:
    """Measure the store with its syncs, and with one sync a batch in their place."""
    without: list[_Seconds] = []
    with_journal: list[_Seconds] = []
    for repetition in range(repetitions):
        for name, times in (("files", without), ("journal", with_journal)):
            folder = root / f"{name}-{repetition}"
            folder.mkdir(parents=True)
            times.append(_run(folder, threads, journal=name == "journal"))
    both = (with_journal, without)
    cases = (
        ("new", [[threads / run.new_threads for run in own] for own in both]),
        ("open", [[threads / run.open_threads for run in own] for own in both]),
    )
    for what, speeds in cases:
        times = ratio(*speeds)
        yield Row(
            f"with a journal at its best: {threads:,} {what} threads are appended to at once",
            f"{median(speeds[0]):,.0f} turns/s",
            f"without: {median(speeds[1]):,.0f} turns/s",
            f"{times:.1f} x the speed",
            at_least(5, times, " x"),
        )
    lone = [run.lone for run in with_journal]
    yield append_row("with a journal at its best: append to an empty thread", lone, 1.1)


def _run(folder: Path, threads: int, *, journal: bool) -> _Seconds:
    store = JsonlStore(folder / "memory")
    if journal:
        store._writer = _Journal(store._folders, folder / "journal")  # pyright: ignore[reportPrivateUsage]
    with Memory(store) as memory:
        new_threads, open_threads = asyncio.run(_many(memory, threads))
        with (folder / "raw").open("ab") as file:
            lone = beside_raw(memory.open("lone").append("warm"), file.fileno(), threads // 5)
    return _Seconds(new_threads, open_threads, lone)


async def _many(memory: Memory, threads: int) -> tuple[float, float]:
    """Give the seconds of a turn on each of many new threads, and of one more on each."""

    async def once(number: int) -> None:
        mem = await memory.aopen(str(number))
        held.append(await mem.aappend(numbered(number, 0)))

    held = [await memory.aopen("held")]
    held.clear()
    gc.collect()
    start = time.perf_counter()
    await asyncio.gather(*map(once, range(threads)))
    new = time.perf_counter() - start
    gc.collect()
    start = time.perf_counter()
    await asyncio.gather(*(mem.aappend(numbered(0, 1)) for mem in held))
    return new, time.perf_counter() - start
