"""Two worker processes on PostgreSQL beside one: on threads of their own, and on the same ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import postgres_raw as raw
from table import Row, median, ratio
from told import Told

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORKER: Final = Path(__file__).with_name("url_worker.py")


class Sizes(NamedTuple):
    """How much each process appends.

    Attributes:
        threads: its threads, with a task each.
        each: the turns of each task.
    """

    threads: int
    each: int


def process_rows(url: str, repetitions: int, sizes: Sizes) -> Iterator[Row]:
    """Measure the turns a second of one process, of two, and of two on the same threads."""
    alone: list[float] = []
    apart: list[float] = []
    together: list[float] = []
    with Told((_WORKER, url, 0)) as one, Told((_WORKER, url, 1), (_WORKER, url, 2)) as two:
        for repetition in range(repetitions):
            name = f"processes-{repetition}"
            alone.append(_run(one, url, f"{name}-alone", sizes))
            apart.append(2 * _run(two, url, f"{name}-apart-#", sizes))
            together.append(2 * _run(two, url, f"{name}-together", sizes))
    threads = f"{sizes.threads:,} threads"
    for what, speeds in ((f"{threads} each", apart), (f"the same {threads}", together)):
        yield Row(
            f"PostgreSQL: 2 processes append to {what}",
            f"{median(speeds):,.0f} turns/s",
            f"1 process: {median(alone):,.0f} turns/s",
            f"{ratio(speeds, alone):.2f} x the speed",
        )


def _run(processes: Told, url: str, prefix: str, sizes: Sizes) -> float:
    """Give the turns a second of each process."""
    turns = sizes.threads * sizes.each
    processes.ask(f"open {prefix} {sizes.threads}")
    start = time.perf_counter()
    done = processes.ask(f"append {sizes.each}")
    took = time.perf_counter() - start
    raw.check_kept(url, prefix.replace("#", "%"), len(done) * (turns + sizes.threads))
    return turns / took
