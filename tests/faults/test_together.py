"""Contract 2 and 3: any number of threads, tasks and processes on one thread at once."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from writers import (
    by_writer,
    contents,
    each_in_order,
    go,
    line,
    lines_on_disk,
    rest,
    running,
)

from turnlog import Conflict, Memory, Message

if TYPE_CHECKING:
    from pathlib import Path


def together(root: Path, what: str, *args: object, processes: int) -> None:
    """Run a program in several processes that begin at the same moment; wait for their end."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(running(what, root, "t", name, *args))
            for name in map(str, range(processes))
        ]
        for process in started:
            assert line(process) == "ready"
        for process in started:
            go(process)
        for process in started:
            rest(process)
            assert process.wait() == 0


def test_four_processes(root: Path) -> None:
    """Four processes with 500 turns each make 2,000 whole lines, each writer's in order (C09)."""
    together(root, "append", 500, 200, processes=4)
    turns = lines_on_disk(root)
    assert each_in_order(turns) == {str(i): 500 for i in range(4)}
    assert contents(root) == turns


def test_long_lines(root: Path) -> None:
    """Two processes that append lines of a megabyte at once never interleave them (C09)."""
    together(root, "append", 10, 1_000_000, processes=2)
    turns = lines_on_disk(root)
    assert each_in_order(turns) == {"0": 10, "1": 10}
    assert {len(turn) for turn in turns} == {1_000_000}


def test_units(root: Path) -> None:
    """The turns of an extend stand next to each other whatever else is appended (Contract 3)."""
    together(root, "extend", 20, 50, processes=3)
    turns = lines_on_disk(root)
    assert each_in_order(turns) == {str(i): 60 for i in range(3)}
    for first in range(0, len(turns), 3):
        assert len(by_writer(turns[first : first + 3])) == 1


def test_first_opens(root: Path) -> None:
    """A hundred and sixty first opens and appends at once from four processes all succeed (C21)."""
    together(root, "first_opens", 40, processes=4)
    assert each_in_order(lines_on_disk(root)) == {
        f"{process}.{number}": 1 for process in range(4) for number in range(40)
    }


def test_os_threads(root: Path, memory: Memory) -> None:
    """Thirty-two OS threads append to one thread; each one's turns keep its order (Contract 2)."""
    thread = memory.open("t")
    barrier = threading.Barrier(32)

    def work(name: int) -> None:
        barrier.wait()
        for i in range(15):
            assert thread.append(f"{name} {i}") is thread
            assert f"{name} {i}" in [turn.content for turn in thread.messages()]

    workers = [threading.Thread(target=work, args=(name,)) for name in range(32)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    turns = [message.content for message in thread.messages()]
    assert each_in_order(turns) == {str(i): 15 for i in range(32)}
    assert lines_on_disk(root) == turns


@pytest.mark.usefixtures("no_blocking")
def test_tasks(root: Path, memory: Memory) -> None:
    """Sixty-four asyncio tasks append to one thread; nothing is lost and order is kept (C10)."""

    async def work(name: int) -> None:
        thread = await memory.aopen("t")
        for i in range(15):
            await thread.aappend(f"{name} {i}")

    async def main() -> None:
        await asyncio.gather(*(work(name) for name in range(64)))

    asyncio.run(main())
    turns = lines_on_disk(root)
    assert each_in_order(turns) == {str(i): 15 for i in range(64)}
    assert [message.content for message in memory.open("t").messages()] == turns


@pytest.mark.usefixtures("no_blocking")
def test_two_coroutines(root: Path, memory: Memory) -> None:
    """Turns that coroutines of one loop append at once stand in the order of the calls (C10)."""

    async def main() -> None:
        thread = await memory.aopen("t")
        await asyncio.gather(*(thread.aappend(str(i)) for i in range(50)))

    asyncio.run(main())
    assert lines_on_disk(root) == [str(i) for i in range(50)]


def test_clocks_play_no_part(root: Path, memory: Memory) -> None:
    """Turns stay in the file's order where their times are equal or run backwards (C12)."""
    thread = memory.open("t")
    now = dt.datetime(2026, 11, 29, 12, 0, tzinfo=dt.UTC)
    times = [now, now, now - dt.timedelta(hours=1), now + dt.timedelta(hours=1), now]
    for i, at in enumerate(times):
        thread.extend([Message("user", str(i), at)])
    assert [message.at for message in thread.messages()] == times
    assert contents(root) == ["0", "1", "2", "3", "4"]


def test_all_readers_see_one_order(root: Path, memory: Memory) -> None:
    """What a reader sees while others write is always a beginning of the file (Contract 2)."""
    with ExitStack() as stack:
        writers = [
            stack.enter_context(running("append", root, "t", name, 60, 2_000)) for name in "abc"
        ]
        for writer in writers:
            assert line(writer) == "ready"
        thread = memory.open("t")
        reader = Memory(root, read_only=True)
        for writer in writers:
            go(writer)
        seen: list[list[str]] = []
        for _ in range(20):
            for writer in writers:
                line(writer)
            seen.append([m.content for m in thread.refresh().messages()])
            seen.append([m.content for m in reader.open("t").refresh().messages()])
            seen.append(contents(root))
        for writer in writers:
            rest(writer)
            assert writer.wait() == 0
        reader.close()
    whole = lines_on_disk(root)
    for turns in seen:
        assert turns == whole[: len(turns)]


def test_other_process_appends_between(root: Path, memory: Memory) -> None:
    """An append reads forward first: the working set is the file, in its order (Contract 3)."""
    thread = memory.open("t")
    with Memory(root) as another:
        for i in range(5):
            thread.append(f"a {i}")
            other = another.open("t").append(f"b {i}")
            assert [m.content for m in other.messages()] == lines_on_disk(root)
        thread.refresh()
    assert [m.content for m in thread.messages()] == lines_on_disk(root)


def test_conflict_only_when_turns_came(root: Path, memory: Memory) -> None:
    """`expect` conflicts exactly when others appended, and not because time went by (C23)."""
    thread = memory.open("t").append("0")
    file = root / "default" / "t.jsonl"
    file.touch()  # another time of change, and nothing else
    thread.append("1", expect=1)
    with Memory(root) as another:
        another.open("t").append("2", expect=2)
    before = file.read_bytes()
    with pytest.raises(Conflict) as conflict:
        thread.append("mine", expect=2)
    assert [turn.content for turn in conflict.value.turns] == ["2"]
    assert file.read_bytes() == before
    thread.append("3", expect=3)
    assert lines_on_disk(root) == ["0", "1", "2", "3"]


def test_expect_lets_one_of_many_in(root: Path) -> None:
    """Of many who append with the same `expect` exactly one does, and none interleaves (C23)."""
    memories = [Memory(root) for _ in range(8)]
    threads = [memory.open("t") for memory in memories]
    barrier = threading.Barrier(len(threads))
    won: list[int] = []
    lost: list[int] = []

    def work(number: int) -> None:
        barrier.wait()
        try:
            threads[number].append(str(number), expect=0)
            won.append(number)
        except Conflict as conflict:
            lost.append(len(conflict.turns))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for memory in memories:
        memory.close()
    assert lines_on_disk(root) == [str(number) for number in won]
    assert len(won) == 1
    assert lost == [1] * 7
