"""News by PostgreSQL: how soon another process has them, and what telling costs the writers."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import postgres_raw as raw
from table import Row, duration, median, ratio
from told import Told

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from turnlog import MemoryThread

_WORKER: Final = Path(__file__).with_name("url_worker.py")
_RAW_WORKER: Final = Path(__file__).with_name("postgres_raw_worker.py")


# ---- how soon ----


def news_rows(url: str, repetitions: int, news: int) -> Iterator[Row]:
    """Measure from the end of an append to that of another process' wait, beside raw SQL."""
    owns: list[float] = []
    bares: list[float] = []
    rows = raw.rows("news")
    with (
        Memory(url) as memory,
        raw.connected(url) as connection,
        Told((_WORKER, url, 0)) as waiting,
        Told((_RAW_WORKER, url, "listen", 0)) as listening,
    ):
        cursor = connection.cursor(binary=True)
        for repetition in range(repetitions):
            waiting.ask(f"open news-{repetition} 1")
            thread = memory.open(f"news-{repetition}-0")
            own = partial(_append, thread)
            owns.append(median(_delay(waiting, own) for _ in range(news)))
            bare = partial(_insert, cursor, rows)
            bares.append(median(_delay(listening, bare) for _ in range(news)))
    yield Row(
        "PostgreSQL: from the end of an append to its news in another process",
        duration(median(owns)),
        f"INSERT, then NOTIFY: {duration(median(bares))}",
        f"{ratio(owns, bares):.2f} x the time",
    )


def _delay(process: Told, append: Callable[[], float]) -> float:
    """Give the seconds from the end of an append to the end of a process' wait."""
    process.tell("wait")
    time.sleep(random.uniform(0.05, 0.08))  # by then it waits, and nobody has anything to tell
    start = append()
    (end,) = process.answers()
    return max(0.0, float(end) - start)


def _append(thread: MemoryThread) -> float:
    thread.append("news")
    return time.perf_counter()


def _insert(cursor: psycopg.Cursor, rows: Iterator[raw.Values]) -> float:
    row = next(rows)
    raw.insert(cursor, row)
    end = time.perf_counter()
    raw.notify(cursor, row)
    return end


# ---- at what cost ----


def telling_rows(url: str, repetitions: int, count: int, each: int) -> Iterator[Row]:
    """Measure writers of raw SQL that tell of each turn, in the transaction or after it."""
    speeds: dict[str, list[float]] = {"none": [], "inside": [], "after": []}
    with ExitStack() as stack:
        writers = {
            kind: stack.enter_context(
                Told(*((_RAW_WORKER, url, kind, number) for number in range(count)))
            )
            for kind in speeds
        }
        for own in writers.values():
            own.ask("append 1")  # so that they are there
        for _ in range(repetitions):
            for kind, own in speeds.items():
                start = time.perf_counter()
                writers[kind].ask(f"append {each}")
                own.append(count * each / (time.perf_counter() - start))
    afters = speeds["after"]
    for what, others in (
        ("NOTIFY in the transaction", speeds["inside"]),
        ("no NOTIFY", speeds["none"]),
    ):
        yield Row(
            f"PostgreSQL: {count} processes of raw SQL, NOTIFY after the commit",
            f"{median(afters):,.0f} turns/s",
            f"{what}: {median(others):,.0f} turns/s",
            f"{ratio(afters, others):.2f} x the speed",
        )
