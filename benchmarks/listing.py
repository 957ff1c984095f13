"""What is asked of stored threads without opening them: which there are, and how one ends."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from files import line, long_thread
from table import Row, at_most, duration, median, ratio
from text import turn

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LAST = 20


def listing_rows(root: Path, repetitions: int, threads: int) -> Iterator[Row]:
    """Measure listing many threads against a scan of the folder that takes each file's status."""
    folder = root / "default"
    folder.mkdir(parents=True)
    data = line(turn(0))
    for number in range(threads):
        (folder / f"thread-{number}.jsonl").write_bytes(data)
    scans: list[float] = []
    lists: list[float] = []
    for _ in range(repetitions):
        start = time.perf_counter()
        with os.scandir(folder) as entries:
            sorted((entry.name, entry.stat().st_size) for entry in entries)
        scans.append(time.perf_counter() - start)
        lists.append(_listed(root, threads))
    took = median(lists)
    yield Row(
        f"list {threads:,} threads",
        duration(took),
        f"scandir + stat: {duration(median(scans))}",
        f"{ratio(lists, scans):.2f} x the time",
        at_most(1, took, " s"),
    )


def _listed(root: Path, threads: int) -> float:
    with Memory(root) as memory:
        start = time.perf_counter()
        found = sum(1 for _ in memory.threads())
        took = time.perf_counter() - start
    if found != threads:
        raise SystemExit(f"{found} threads were listed, not {threads}")
    return took


def peek_rows(root: Path, repetitions: int, turns: int) -> Iterator[Row]:
    """Measure a look at the last turns of a closed thread against opening it whole."""
    id_ = long_thread(root, turns)
    peeks: list[float] = []
    opens: list[float] = []
    for _ in range(repetitions):
        with Memory(root) as memory:
            start = time.perf_counter()
            seen = memory.peek(id_, last=_LAST)
            peeks.append(time.perf_counter() - start)
            start = time.perf_counter()
            thread = memory.open(id_)
            opens.append(time.perf_counter() - start)
            if seen != thread.messages().last(_LAST):
                raise SystemExit(f"{id_}: peek does not show the last turns")
    yield Row(
        f"peek at the last {_LAST} of {turns:,} turns",
        duration(median(peeks)),
        f"open it whole: {duration(median(opens))}",
        f"{ratio(opens, peeks):,.0f} x the speed",
    )
