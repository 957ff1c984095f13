"""Many appends to PostgreSQL at once: beside a transaction a turn, and beside the peer."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import postgres_raw as raw
from atonce import append_each, append_new, timed
from postgres_peer import NAME, SQLAlchemySessions, add
from table import Row, at_least, median, ratio
from text import numbered

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

_TASKS: Final = 64
_BURSTS: Final = 5  # on open threads, of which the median counts: a connection's first is slow
_POOLS: Final = (1, 4, 8, 16)
_SHARE: Final = 10  # the peer is given one in so many of the turns on one thread
_OWN: Final = "turnlog"
_BARE: Final = "a bare INSERT a turn"
_BOTH: Final = "BEGIN, both rows, COMMIT a turn"
_WORK: Final = {_BARE: raw.append, _BOTH: raw.append_and_count}


class Sizes(NamedTuple):
    """How much is appended.

    Attributes:
        threads: the threads that are appended to at once, with a task each.
        each: the turns of each of the 64 tasks on one thread.
    """

    threads: int
    each: int


class _Speeds(NamedTuple):
    """The turns a second of one way to append."""

    new_threads: float
    open_threads: float
    one_thread: float


def burst_rows(url: str, repetitions: int, sizes: Sizes, *, peer: bool) -> Iterator[Row]:
    """Measure turns a second. Of the pools, the one that is quickest by the median counts.

    Args:
        url: of a database where all have their tables.
        repetitions: how often each is measured.
        sizes: how much is appended.
        peer: whether SQLAlchemySession can be used here.
    """
    runs = [
        asyncio.run(_run(url, f"burst-{repetition}", sizes, peer=peer))
        for repetition in range(repetitions)
    ]
    cases = (
        (f"{sizes.threads:,} new threads are opened and appended to at once", 10),
        (f"{sizes.threads:,} open threads are appended to at once", 10),
        (f"{_TASKS} tasks append to one thread", None),
    )
    for number, (what, least) in enumerate(cases):
        speeds = {way: [run[way][number] for run in runs] for way in runs[0]}
        owns = speeds.pop(_OWN)
        for way in _best(speeds):
            times = ratio(owns, speeds[way])
            aim = least if way in _AIMS else None
            yield Row(
                f"PostgreSQL: {what}",
                f"{median(owns):,.0f} turns/s",
                f"{way}: {median(speeds[way]):,.0f} turns/s",
                f"{times:.1f} x the speed",
                at_least(aim, times, " x") if aim else "",
            )


def _way(kind: str, connections: int) -> str:
    return f"{kind}, {connections} connection{'s' if connections > 1 else ''}"


# A pool of bare inserts keeps less than turnlog does, and has several at a time.
_AIMS: Final = {_way(_BARE, 1)} | {_way(_BOTH, connections) for connections in _POOLS}


def _best(speeds: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Give the ways to show: of each kind with one connection, and with the quickest pool."""
    for kind in _WORK:
        one, *pools = [_way(kind, connections) for connections in _POOLS]
        yield one
        yield max(pools, key=lambda way: median(speeds[way]))
    if NAME in speeds:
        yield NAME


async def _run(url: str, name: str, sizes: Sizes, *, peer: bool) -> dict[str, _Speeds]:
    """Give the speeds of each way."""
    ids = [f"{name}-{number}" for number in range(sizes.threads)]
    one = f"{name}-one"
    found = {_OWN: await _of_turnlog(url, ids, one, sizes.each)}
    raw.check_kept(url, name, (1 + _BURSTS) * sizes.threads + _TASKS * sizes.each)
    for kind, work in _WORK.items():
        for connections in _POOLS:
            way = _way(kind, connections)
            at_once = partial(raw.at_once, url, connections, work)
            found[way] = await _of_pool(
                at_once, [f"{id_} {way}" for id_ in (*ids, one)], sizes.each
            )
    if peer:
        async with SQLAlchemySessions(url) as sessions:
            found[NAME] = await _of_peer(sessions, ids, one, sizes.each)
    return found


async def _of_turnlog(url: str, ids: Sequence[str], one: str, each: int) -> _Speeds:
    async with Memory(url) as memory:
        await memory.aopen("warm")
        new = await append_new(memory, ids)
        opened = [await memory.aopen(id_) for id_ in ids]
        same = median([await append_each(opened, 1) for _ in range(_BURSTS)])
        thread = await memory.aopen(one)
        took = await append_each([thread] * _TASKS, each)
    return _Speeds(len(ids) / new, len(ids) / same, _TASKS * each / took)


async def _of_pool(
    at_once: Callable[[Sequence[Sequence[raw.Values]]], Awaitable[float]],
    ids: Sequence[str],
    each: int,
) -> _Speeds:
    """Append to threads, of which raw SQL does not have to know whether they are new."""
    *many, one = ids
    of_each = [raw.rows(id_) for id_ in many]
    new = await at_once([[next(rows)] for rows in of_each])
    same = median([await at_once([[next(rows)] for rows in of_each]) for _ in range(_BURSTS)])
    rows = raw.rows(one)
    alone = await at_once([list(islice(rows, each)) for _ in range(_TASKS)])
    return _Speeds(len(many) / new, len(many) / same, _TASKS * each / alone)


async def _of_peer(
    sessions: SQLAlchemySessions, ids: Sequence[str], one: str, each: int
) -> _Speeds:
    text = numbered(0, 0)
    many = [sessions.session(id_) for id_ in ids]
    new = await timed([add(session, text) for session in many])
    same = await timed([add(session, text) for session in many])
    session = sessions.session(one)
    turns = max(1, each // _SHARE)

    async def add_each() -> None:
        for _ in range(turns):
            await add(session, text)

    took = await timed([add_each() for _ in range(_TASKS)])
    return _Speeds(len(ids) / new, len(ids) / same, _TASKS * turns / took)
