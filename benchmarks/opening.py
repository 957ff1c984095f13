"""Opening a thread: beside msgspec's typed decode of the same bytes, and beside the peers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from beside import beside
from files import long_thread, path_of
from table import Row, at_most, duration, median, ratio
from text import turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from peers import Library

_OPENER: Final = Path(__file__).with_name("opener.py")


class _Opened(NamedTuple):
    """What a process that read a thread tells."""

    reading: float
    making: float
    turns: int
    grown: int


def open_rows(root: Path, repetitions: int, lengths: Sequence[int]) -> Iterator[Row]:
    """Measure opening, each time in a new process; of the longest thread also its memory."""
    for turns in lengths:
        for mixed in (False, True):
            id_ = long_thread(root, turns, mixed=mixed)
            path = str(path_of(root, id_))
            decodes: list[_Opened] = []
            opens: list[_Opened] = []
            for _ in range(repetitions):
                decodes.append(_opened(turns, "decode", path))
                opens.append(_opened(turns, "open", str(root), id_))
            kind = "mixed text" if mixed else "ASCII text"
            yield _time_row(f"open {turns:,} turns, {kind}", opens, decodes)
            if turns == max(lengths):
                text = sum(len(turn(number, mixed=mixed)[1].encode()) for number in range(turns))
                yield _memory_row(f"memory of {turns:,} open turns, {kind}", opens, text / turns)


def _opened(turns: int, *arguments: str) -> _Opened:
    done = subprocess.run(
        [sys.executable, str(_OPENER), *arguments], check=True, capture_output=True, text=True
    )
    reading, making, held, grown = done.stdout.split()
    if int(held) != turns:
        raise SystemExit(f"{arguments}: {held} turns were read, not {turns}")
    return _Opened(float(reading), float(making), int(held), int(grown))


def _time_row(what: str, opens: Sequence[_Opened], decodes: Sequence[_Opened]) -> Row:
    times = [one.making for one in opens]
    alone = [one.making for one in decodes]
    whole = [one.reading + one.making for one in decodes]
    cost = ratio(times, alone)
    return Row(
        what,
        duration(median(times)),
        f"typed decode: {duration(median(alone))}, with reading: {duration(median(whole))}",
        f"{cost:.2f} x the time, {ratio(times, whole):.2f} x with reading",
        at_most(1.6, cost, " x"),
    )


def _memory_row(what: str, opens: Sequence[_Opened], text: float) -> Row:
    a_turn = median(one.grown / one.turns for one in opens)
    beyond = a_turn - text
    return Row(
        what,
        f"{a_turn:.0f} bytes a turn",
        f"its text in UTF-8: {text:.0f} bytes a turn",
        f"{beyond:.0f} bytes beyond the text",
        at_most(400, beyond, " bytes"),
    )


# ---- beside the peers ----


def peer_load_rows(
    root: Path, libraries: Sequence[type[Library]], repetitions: int, turns: int
) -> Iterator[Row]:
    """Measure reading a whole thread, with a look at the text of each turn."""
    opened = {library: library(root / library.name) for library in libraries}
    written = [turn(number) for number in range(turns)]
    for one in opened.values():
        asyncio.run(one.fill("long", written))
    times: dict[type[Library], list[float]] = {library: [] for library in libraries}
    for _ in range(repetitions):
        for library, one in opened.items():
            times[library].append(asyncio.run(_load(one, turns)))
    yield from beside(
        f"load {turns:,} turns and look at each",
        {library: duration(median(times[library])) for library in libraries},
        {library: [1 / time for time in times[library]] for library in libraries},
    )
    for one in opened.values():
        asyncio.run(one.close())


async def _load(library: Library, turns: int) -> float:
    start = time.perf_counter()
    texts = await library.load("long")
    took = time.perf_counter() - start
    if len(texts) != turns:
        raise SystemExit(f"{library.name}: {len(texts)} turns were read, not {turns}")
    return took
