"""What is measured: one function a row or a few, each beside its raw limit in the same run."""

from __future__ import annotations

import asyncio
import importlib
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from text import turn

import turnlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

clock: Final = time.perf_counter


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        what: what was measured.
        value: the median of the repetitions, with its unit.
        against: what it is compared with, and that one's own value.
        ratio: the median of the ratios, each taken within one repetition.
        target: the ratio or bound that we hold ourselves to.
    """

    what: str
    value: str
    against: str
    ratio: str
    target: str


def median(values: list[float]) -> float:
    """Give the middle of the values."""
    return statistics.median(values)


# ---- one append at a time ----


def append_rows(root: Path, repetitions: int, appends: int, long: int) -> Iterator[Row]:
    """Measure one-turn synchronous appends against a bare write and fdatasync of as many bytes."""
    with turnlog.Memory(root) as memory:
        for name, turns in (("an empty thread", 0), (f"a thread of {long:,} turns", long)):
            thread = memory.open(f"append-{turns}")
            thread.extend(turnlog.Message(*turn(i)) for i in range(turns))  # pyright: ignore[reportArgumentType]
            thread.append("warm")
            raws, ours = _append_times(root, thread, repetitions, appends)
            ratio = median([own / raw for own, raw in zip(ours, raws, strict=True)])
            yield Row(
                f"append to {name}",
                f"{median(ours) * 1e6:.0f} us",
                f"bare write + fdatasync: {median(raws) * 1e6:.0f} us",
                f"{ratio:.2f}",
                "<= 1.25",
            )


def _append_times(
    root: Path, thread: turnlog.MemoryThread, repetitions: int, appends: int
) -> tuple[list[float], list[float]]:
    """Take turns in small blocks, so that the disk's moods hit both alike."""
    text = "x" * 600
    line = b"x" * 672 + b"\n"
    fd = os.open(root / "raw", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    raws: list[float] = []
    ours: list[float] = []
    for _ in range(repetitions):
        raw: list[float] = []
        own: list[float] = []
        for _ in range(max(1, appends // 50)):
            for _ in range(50):
                start = clock()
                os.write(fd, line)
                os.fdatasync(fd)
                raw.append(clock() - start)
            for _ in range(50):
                start = clock()
                thread.append(text)
                own.append(clock() - start)
        raws.append(median(raw))
        ours.append(median(own))
    os.close(fd)
    return raws, ours


# ---- opening ----

_BARE: Final = """
import datetime, msgspec, sys, time
class Turn(msgspec.Struct, frozen=True, gc=False):
    role: str
    content: str
    at: datetime.datetime
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
decoder = msgspec.json.Decoder(Turn)
before, start = rss(), time.perf_counter()
data = open(sys.argv[1], "rb").read()
read = time.perf_counter()
turns = decoder.decode_lines(data)
end = time.perf_counter()
del data
print(end - read, end - start, rss() - before)
"""
_OPEN: Final = """
import sys, time, turnlog
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
memory = turnlog.Memory(sys.argv[1])
memory.open("none")
before, start = rss(), time.perf_counter()
thread = memory.open(sys.argv[2])
end = time.perf_counter()
print(end - start, len(thread), rss() - before)
"""


def open_rows(root: Path, repetitions: int, turns: int) -> Iterator[Row]:
    """Measure opening against msgspec's typed decode of the same bytes, each in a new process."""
    for mixed in (False, True):
        id_ = f"open-{'mixed' if mixed else 'ascii'}-{turns}"
        with turnlog.Memory(root) as memory:
            messages = [turnlog.Message(*turn(i, mixed=mixed)) for i in range(turns)]  # pyright: ignore[reportArgumentType]
            text = sum(len(message.content.encode()) for message in messages)
            memory.open(id_).extend(messages)
        path = root / "default" / f"{id_}.jsonl"
        _as_single_turns(path, turns)
        decodes: list[float] = []
        bares: list[float] = []
        opens: list[float] = []
        over: list[float] = []
        for _ in range(repetitions):
            decode, bare, _ = _run(_BARE, str(path))
            own, held, grown = _run(_OPEN, str(root), id_)
            if held != turns:
                raise SystemExit(f"{id_}: {held} turns were read, not {turns}")
            decodes.append(own / decode)
            bares.append(bare)
            opens.append(own)
            over.append((grown - text) / turns)
        ratio = median([own / bare for own, bare in zip(opens, bares, strict=True)])
        kind = "mixed text" if mixed else "ASCII text"
        yield Row(
            f"open {turns:,} turns, {kind}",
            f"{median(opens) * 1e3:.0f} ms",
            f"read + typed decode: {median(bares) * 1e3:.0f} ms",
            f"{ratio:.2f} (decode alone: {median(decodes):.2f})",
            "<= 1.6",
        )
        yield Row(
            f"memory of it beyond the text, {kind}",
            f"{median(over):.0f} bytes a turn",
            "the text in UTF-8",
            "",
            "< 400",
        )


def _as_single_turns(path: Path, turns: int) -> None:
    """Make the lines what single appends write: no unit."""
    lines = path.read_bytes().replace(b',"more":true}\n', b"}\n")
    path.write_bytes(lines.replace(b',"unit":%d}\n' % turns, b"}\n"))


def _run(program: str, *arguments: str) -> tuple[float, float, float]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True
    )
    first, second, third = map(float, done.stdout.split())
    return first, second, third


# ---- tasks ----


class Heart:
    """A task that sleeps 1 ms at a time, and how late it woke: what others did to the loop."""

    async def __aenter__(self) -> Self:
        """Begin to beat."""
        self.late: list[float] = []
        self._task = asyncio.create_task(self._beat())
        await asyncio.sleep(0.01)
        self.late.clear()
        return self

    async def _beat(self) -> None:
        while True:
            start = clock()
            await asyncio.sleep(0.001)
            self.late.append(clock() - start - 0.001)

    async def __aexit__(self, *_: object) -> None:
        """Let the last beat come, then stop."""
        await asyncio.sleep(0.003)
        self._task.cancel()

    def p99(self) -> float:
        """Give the 99th percentile of the delays, in ms; a stall counts for each beat it took."""
        beats: list[float] = []
        for late in self.late:
            rest = late
            while rest > 0:
                beats.append(rest)
                rest -= 0.001
        return sorted(beats)[int(len(beats) * 0.99)] * 1e3 if beats else 0.0


async def _hammer(
    append: Callable[[str], Awaitable[Any]], tasks: int, each: int
) -> tuple[float, float]:
    """Give turns a second of many tasks on one thread, and the loop's delay meanwhile."""

    async def one(number: int) -> None:
        for i in range(each):
            await append(texts[(number + i) % len(texts)])

    texts = [turn(i)[1] for i in range(20)]
    async with Heart() as heart:
        start = clock()
        await asyncio.gather(*(one(number) for number in range(tasks)))
        took = clock() - start
    return tasks * each / took, heart.p99()


async def _each_once(appends: list[Callable[[str], Awaitable[Any]]]) -> tuple[float, float]:
    """Give turns a second of one append to each of many threads at once, and the loop's delay."""
    text = turn(0)[1]
    async with Heart() as heart:
        start = clock()
        await asyncio.gather(*(append(text) for append in appends))
        took = clock() - start
    return len(appends) / took, heart.p99()


async def _paced(appends: list[Callable[[str], Awaitable[Any]]], count: int) -> float:
    """Give the loop's delay while appends come at 100 a second, each to another thread."""
    text = turn(0)[1]

    async def one(number: int) -> None:
        await asyncio.sleep(number * 0.01)
        await appends[number % len(appends)](text)

    async with Heart() as heart:
        await asyncio.gather(*(one(number) for number in range(count)))
    return heart.p99()


def task_rows(root: Path, repetitions: int, each: int, threads: int, paced: int) -> Iterator[Row]:
    """Measure asyncio tasks against openai-agents' SQLiteSession under the same load."""
    ours: list[tuple[float, ...]] = []
    peers: list[tuple[float, ...]] = []
    for number in range(repetitions):
        ours.append(asyncio.run(_our_tasks(root / f"tasks-{number}", each, threads, paced)))
        peers.append(asyncio.run(_peer_tasks(root / f"peer-{number}", each, threads)))
    for index, what, target in (
        (0, "64 tasks on one thread", ">= 15"),
        (1, f"{threads:,} new threads, opened and appended to at once", ">= 4"),
        (2, f"{threads:,} open threads, appended to at once", ">= 4"),
    ):
        yield Row(
            what,
            f"{median([own[index] for own in ours]):,.0f} turns/s",
            f"SQLiteSession: {median([peer[index] for peer in peers]):,.0f} turns/s",
            f"{_ratio(ours, peers, index):.1f}",
            target,
        )
    for index, what in ((3, "64 tasks append"), (4, f"100 appends/s go to {threads:,} threads")):
        late = median([own[index] for own in ours])
        yield Row(f"the loop's p99 delay while {what}", f"{late:.1f} ms", "", "", "< 5 ms")


def _ratio(ours: list[tuple[float, ...]], peers: list[tuple[float, ...]], index: int) -> float:
    return median([own[index] / peer[index] for own, peer in zip(ours, peers, strict=True)])


async def _our_tasks(root: Path, each: int, threads: int, paced: int) -> tuple[float, ...]:
    async with turnlog.Memory(root) as memory:
        hot = await memory.aopen("hot")
        speed, late = await _hammer(hot.aappend, 64, each)

        async def once(number: int, text: str) -> None:
            await (await memory.aopen(f"t{number}")).aappend(text)

        def opener(number: int) -> Callable[[str], Awaitable[Any]]:
            return lambda text: once(number, text)

        cold, _ = await _each_once([opener(number) for number in range(threads)])
        opened = [await memory.aopen(f"t{number}") for number in range(threads)]
        warm, _ = await _each_once([thread.aappend for thread in opened])
        paced_late = await _paced([thread.aappend for thread in opened], paced)
    return speed, cold, warm, late, paced_late


async def _peer_tasks(root: Path, each: int, threads: int) -> tuple[float, ...]:
    SQLiteSession: Any = importlib.import_module("agents").SQLiteSession  # noqa: N806 - a class
    path = str(root)
    sessions: list[Any] = []

    def appender(id_: str) -> Callable[[str], Awaitable[Any]]:
        session: Any = None

        async def append(text: str) -> None:
            nonlocal session
            if session is None:
                session = SQLiteSession(id_, path)
                sessions.append(session)
            await session.add_items([{"role": "user", "content": text}])

        return append

    speed, _ = await _hammer(appender("hot"), 64, max(1, each // 5))
    appenders = [appender(f"t{number}") for number in range(threads)]
    cold, _ = await _each_once(appenders)
    warm, _ = await _each_once(appenders)
    for session in sessions:
        session.close()
    return speed, cold, warm


# ---- processes ----

_WRITER: Final = """
import sys, turnlog
thread = turnlog.Memory(sys.argv[1]).open("shared")
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    thread.append(f"{sys.argv[2]} {i} " + "x" * 600)
"""


def process_rows(root: Path, processes: int, each: int) -> Iterator[Row]:
    """Measure several processes on one thread, and count what came of it."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(root), str(number), str(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    start = clock()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.wait()
    took = clock() - start
    with turnlog.Memory(root) as memory:
        held = len(memory.open("shared"))
    whole = processes * each
    yield Row(
        f"{processes} processes on one thread, {each:,} turns each",
        f"{whole / took:,.0f} turns/s",
        "whole lines",
        f"{held:,} of {whole:,}",
        "all",
    )


# ---- importing ----


def import_rows(repetitions: int) -> Iterator[Row]:
    """Measure what `import turnlog` adds to an empty program."""
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(repetitions):
        for program, times in (("pass", bare), ("import turnlog", ours)):
            start = clock()
            subprocess.run([sys.executable, "-c", program], check=True)
            times.append(clock() - start)
    more = median([own - empty for own, empty in zip(ours, bare, strict=True)])
    yield Row("import turnlog", f"{more * 1e3:.0f} ms", "beyond python -c pass", "", "< 60 ms")
