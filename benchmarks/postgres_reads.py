"""Reading from PostgreSQL: opening a long thread, and listing very many."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import postgres_raw as raw
from postgres_peer import NAME, SQLAlchemySessions
from table import Row, duration, median, ratio
from text import turn

from turnlog import Memory, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINES: Final = """
    SELECT line FROM turnlog_turn WHERE namespace = 'default' AND id = %s ORDER BY seq
"""


# ---- a long thread ----


def open_rows(url: str, repetitions: int, turns: int, *, peer: bool) -> Iterator[Row]:
    """Measure opening a thread, with a connection that is there, beside a SELECT of its lines."""
    id_ = f"long-{turns}"
    with Memory(url) as memory:
        memory.open(id_).extend(Message(*turn(number)) for number in range(turns))
    opens: list[float] = []
    selects: list[float] = []
    loads: list[float] = []
    if peer:
        asyncio.run(_fill(url, id_, turns))
    for _ in range(repetitions):
        opens.append(_open(url, id_, turns))
        selects.append(_select(url, id_, turns))
        if peer:
            loads.append(asyncio.run(_load(url, id_, turns)))
    what, own = f"PostgreSQL: open {turns:,} turns", duration(median(opens))
    limit = f"SELECT of the lines: {duration(median(selects))}"
    yield Row(what, own, limit, f"{ratio(opens, selects):.2f} x the time")
    if peer:
        other = f"{NAME}: {duration(median(loads))}"
        yield Row(what, own, other, f"{ratio(loads, opens):.1f} x the speed")


def _open(url: str, id_: str, turns: int) -> float:
    with Memory(url) as memory:
        memory.open("warm")
        start = time.perf_counter()
        thread = memory.open(id_)
        took = time.perf_counter() - start
    _check(len(thread), turns)
    return took


def _select(url: str, id_: str, turns: int) -> float:
    with raw.connected(url) as connection:
        start = time.perf_counter()
        found = connection.execute(_LINES, (id_,)).fetchall()
        took = time.perf_counter() - start
    _check(len(found), turns)
    return took


async def _fill(url: str, id_: str, turns: int) -> None:
    items = [turn(number) for number in range(turns)]
    async with SQLAlchemySessions(url) as sessions:
        await sessions.session(id_).add_items([{"role": r, "content": text} for r, text in items])


async def _load(url: str, id_: str, turns: int) -> float:
    async with SQLAlchemySessions(url) as sessions:
        start = time.perf_counter()
        items = await sessions.session(id_).get_items()
        took = time.perf_counter() - start
    _check(len(items), turns)
    return took


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise SystemExit(f"{found} were read, not {expected}")


# ---- very many threads ----

_FILL: Final = """
    INSERT INTO listed.turnlog_thread (namespace, id, life, turns, size, modified)
    SELECT 'default', 'user-' || lpad(number::text, 9, '0'), gen_random_uuid(), 1, 700, now()
    FROM generate_series(1, %s) AS numbers (number)
"""
_ROWS: Final = "SELECT namespace, id, size, modified FROM listed.turnlog_thread"
_IN_ORDER: Final = f"{_ROWS} ORDER BY namespace, id"


def listing_rows(url: str, repetitions: int, threads: int) -> Iterator[Row]:
    """Measure listing threads, the first of them and all, beside a SELECT of their rows."""
    own = f"{url}?schema=listed"
    with Memory(own) as memory:
        memory.open("first").append("first")
    with raw.connected(url) as connection:
        connection.execute(_FILL, (threads - 1,))
        connection.execute("ANALYZE listed.turnlog_thread")
    firsts: list[float] = []
    alls: list[float] = []
    heads: list[float] = []
    selects: list[float] = []
    for _ in range(repetitions):
        first, whole = _listed(own, threads)
        firsts.append(first)
        alls.append(whole)
        heads.append(_rows(url, f"{_IN_ORDER} LIMIT 1000", min(threads, 1000)))
        selects.append(_rows(url, _IN_ORDER, threads))
    for what, times, limit, others in (
        (f"the first of {threads:,} threads", firsts, "SELECT of a page", heads),
        (f"list {threads:,} threads", alls, "SELECT of their rows", selects),
    ):
        yield Row(
            f"PostgreSQL: {what}",
            duration(median(times)),
            f"{limit}: {duration(median(others))}",
            f"{ratio(times, others):.2f} x the time",
        )


def _listed(url: str, threads: int) -> tuple[float, float]:
    """Give the seconds until the first thread, and until the last."""
    with Memory(url) as memory:
        memory.open("warm")
        start = time.perf_counter()
        listing = memory.threads()
        next(listing)
        first = time.perf_counter() - start
        found = 1 + sum(1 for _ in listing)
        whole = time.perf_counter() - start
    _check(found, threads)
    return first, whole


def _rows(url: str, query: str, expected: int) -> float:
    with raw.connected(url) as connection:
        start = time.perf_counter()
        found = connection.execute(query.encode()).fetchall()
        took = time.perf_counter() - start
    _check(len(found), expected)
    return took
