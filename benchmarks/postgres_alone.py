"""Appends to PostgreSQL one at a time: beside the same row by raw SQL, and beside the peer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import postgres_raw as raw
from postgres_peer import NAME, SQLAlchemySessions, add
from table import Row, at_most, duration, median, ratio
from text import numbered

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from turnlog import MemoryThread

    _Ways = dict[str, Callable[[], Awaitable[None]]]

_BLOCK: Final = 20
_OWN: Final = "turnlog"
_INSERT: Final = "bare INSERT, autocommit"
_TRANSACTION: Final = "BEGIN, INSERT, COMMIT"


def alone_rows(url: str, repetitions: int, appends: int, *, peer: bool) -> Iterator[Row]:
    """Measure synchronous appends against the same row by raw SQL on one connection.

    Args:
        url: of a database where both have their tables.
        repetitions: how often it is measured.
        appends: how many appends each time.
        peer: whether SQLAlchemySession can be used here.
    """
    runs: list[dict[str, float]] = []
    with Memory(url) as memory:
        for repetition in range(repetitions):
            thread = memory.open(f"alone-{repetition}").append("warm")
            runs.append(asyncio.run(_run(url, thread, appends, peer=peer)))
    times = {way: [run[way] for run in runs] for way in runs[0]}
    owns = times.pop(_OWN)
    for way, others in times.items():
        speed = way == NAME
        cost = ratio(others, owns) if speed else ratio(owns, others)
        yield Row(
            "PostgreSQL: append to a thread",
            duration(median(owns)),
            f"{way}: {duration(median(others))}",
            f"{cost:.1f} x the speed" if speed else f"{cost:.2f} x the time",
            at_most(1.5, cost, " x") if way == _TRANSACTION else "",
        )


async def _run(url: str, thread: MemoryThread, appends: int, *, peer: bool) -> dict[str, float]:
    """Give the median seconds of each way."""
    rows = raw.rows(thread.id)
    with raw.connected(url) as connection:
        cursor = connection.cursor(binary=True)

        async def insert() -> None:
            raw.insert(cursor, next(rows))

        async def transaction() -> None:
            raw.insert_in_transaction(cursor, next(rows))

        async def own() -> None:
            thread.append(numbered(0, 0))

        ways: _Ways = {_INSERT: insert, _TRANSACTION: transaction, _OWN: own}
        if not peer:
            return await _in_turns(ways, appends)
        async with SQLAlchemySessions(url) as sessions:
            session = sessions.session(thread.id)
            return await _in_turns(ways | {NAME: lambda: add(session, numbered(0, 0))}, appends)


async def _in_turns(ways: _Ways, appends: int) -> dict[str, float]:
    """Give the median seconds of each way. They take turns in small blocks."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for append in ways.values():
        await append()  # prepares the statement, or connects
    for _ in range(max(1, appends // _BLOCK)):
        for way, append in ways.items():
            times[way] += [await _timed(append) for _ in range(_BLOCK)]
    return {way: median(own) for way, own in times.items()}


async def _timed(append: Callable[[], Awaitable[None]]) -> float:
    start = time.perf_counter()
    await append()
    return time.perf_counter() - start
