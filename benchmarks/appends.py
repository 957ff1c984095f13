"""Appends of one turn at a time: beside a bare write and fdatasync, and beside the peers."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from typing import TYPE_CHECKING, Final

from beside import beside
from files import line, long_thread, path_of
from table import Row, at_most, duration, median, ratio
from text import numbered, turn

import turnlog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from peers import Library
    from text import Turn

_BLOCK: Final = 50


def append_rows(root: Path, repetitions: int, appends: int, long: int) -> Iterator[Row]:
    """Measure synchronous appends against a bare write and fdatasync of as many bytes."""
    source = path_of(root, long_thread(root, long))
    shutil.copy(source, path_of(root, "long"))  # others measure the thread as it is
    with turnlog.Memory(root) as memory:
        for name, id_ in (("an empty thread", "empty"), (f"a thread of {long:,} turns", "long")):
            thread = memory.open(id_)
            thread.append("warm")
            with (root / "raw").open("ab") as file:
                times = [beside_raw(thread, file.fileno(), appends) for _ in range(repetitions)]
            yield append_row(f"append to {name}", times, 1.25)


def append_row(what: str, times: Sequence[tuple[float, float]], most: float) -> Row:
    """Give the row of what `beside_raw` gave in each repetition, and how much it may cost."""
    raws, owns = zip(*times, strict=True)
    cost = ratio(owns, raws)
    return Row(
        what,
        duration(median(owns)),
        f"bare write + fdatasync: {duration(median(raws))}",
        f"{cost:.2f} x the time",
        at_most(most, cost, " x"),
    )


def beside_raw(thread: turnlog.MemoryThread, raw_fd: int, appends: int) -> tuple[float, float]:
    """Give the median seconds of a bare write and sync, and of an append.

    They take turns in small blocks, so that the disk's moods hit both alike.
    """
    text = numbered(0, 0)
    data = line(("user", text))
    raw: list[float] = []
    own: list[float] = []
    for _ in range(max(1, appends // _BLOCK)):
        for _ in range(_BLOCK):
            start = time.perf_counter()
            os.write(raw_fd, data)
            os.fdatasync(raw_fd)
            raw.append(time.perf_counter() - start)
        for _ in range(_BLOCK):
            start = time.perf_counter()
            thread.append(text)
            own.append(time.perf_counter() - start)
    return median(raw), median(own)


# ---- beside the peers ----


def peer_append_rows(
    root: Path,
    libraries: Sequence[type[Library]],
    repetitions: int,
    appends: int,
    lengths: Sequence[int],
) -> Iterator[Row]:
    """Measure appends to an empty thread and to longer ones, as a lone program appends."""
    opened = {library: library(root / library.name) for library in libraries}
    for length in (0, *lengths):
        turns = [turn(number) for number in range(length)]
        times: dict[type[Library], list[float]] = {library: [] for library in libraries}
        for repetition in range(repetitions):
            for library, one in opened.items():
                count = max(1, appends // library.share)
                id_ = f"length-{length}-{repetition}"
                times[library].append(asyncio.run(_alone(one, id_, turns, count)))
        name = f"a thread of {length:,} turns" if length else "an empty thread"
        yield from beside(
            f"append to {name}",
            {library: duration(median(times[library])) for library in libraries},
            {library: [1 / time for time in times[library]] for library in libraries},
        )
    for one in opened.values():
        asyncio.run(one.close())


async def _alone(library: Library, id_: str, turns: Sequence[Turn], count: int) -> float:
    """Give the median time of an append to a new thread that was given some turns."""
    if turns:
        await library.fill(id_, turns)
    thread = await library.open(id_)
    times: list[float] = []
    for number in range(count):
        text = numbered(0, number)
        start = time.perf_counter()
        await thread.append_alone(text)
        times.append(time.perf_counter() - start)
    return median(times)
