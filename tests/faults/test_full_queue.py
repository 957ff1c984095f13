"""Group commit: what waits for the disk is bounded, and who comes when it is full waits too."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import threading
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from systems import Fails, Gate, Together, Watched
from writers import contents

import turnlog.commit
from turnlog import Closed, InvalidTurn, Memory, NotWritten
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnlog import MemoryThread

MEGABYTE = "x" * (1 << 20)
KILOBYTE = MEGABYTE[:1024]
PATIENCE = 60.0  # a watchdog, in seconds
FITS = 10  # how many turns of a kilobyte do, and what they take beside it


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound the queue at ten turns of a kilobyte."""
    monkeypatch.setattr(turnlog.commit, "_MOST_WAITING", FITS * 2048)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Give what holds the syncs of `memory`, until it is opened."""
    gate = Gate("sync")
    yield gate
    gate.opened.set()


@pytest.fixture
def memory(root: Path, gate: Gate) -> Iterator[Memory]:
    """Give a memory whose syncs are held."""
    with Memory(JsonlStore(root, system=Watched(gate))) as memory:
        yield memory
        gate.opened.set()


async def settled(gate: Gate) -> None:
    """Wait until an append is at its sync, and all the tasks are where they wait."""
    assert await asyncio.to_thread(gate.reached.wait, PATIENCE)
    for _ in range(10):
        await asyncio.sleep(0)


def numbered(number: int) -> str:
    """Give a turn of a kilobyte that begins with its number."""
    return f"{number} ".ljust(1024, "x")


def numbers(root: Path) -> list[int]:
    """Give the numbers of the turns that are on the disk."""
    return [int(content.split()[0]) for content in contents(root)]


def waiting(mem: MemoryThread, count: int) -> list[asyncio.Task[MemoryThread]]:
    """Start a task for each of so many turns."""
    return [asyncio.create_task(mem.aappend(numbered(i))) for i in range(count)]


def test_memory_is_bounded(memory: Memory, gate: Gate, root: Path) -> None:
    """Of hundreds of megabytes that tasks append at once, only so many are copied at a time."""
    mem = memory.open("t")

    async def main() -> None:
        tasks = [asyncio.create_task(mem.aappend(MEGABYTE)) for _ in range(200)]
        await settled(gate)
        held, _ = tracemalloc.get_traced_memory()
        assert held < 100 << 20
        gate.opened.set()
        await asyncio.gather(*tasks)

    tracemalloc.start()
    try:
        asyncio.run(main())
    finally:
        tracemalloc.stop()
    assert contents(root) == [MEGABYTE] * 200


@pytest.mark.usefixtures("small")
def test_order(memory: Memory, gate: Gate, root: Path) -> None:
    """Those that waited for room are there in the order of their calls, newcomers behind them."""
    mem = memory.open("t")

    async def main() -> None:
        tasks = waiting(mem, 50)
        await settled(gate)
        gate.opened.set()
        while not tasks[49].done():  # newcomers, while others are in line or just told to come
            await asyncio.sleep(0)
            if len(tasks) < 1000:
                tasks.append(asyncio.create_task(mem.aappend(numbered(len(tasks)))))
        await asyncio.gather(*tasks)
        assert numbers(root) == list(range(len(tasks)))

    asyncio.run(main())


@pytest.mark.usefixtures("small")
def test_cancelled(memory: Memory, gate: Gate, root: Path) -> None:
    """Cancelled while it waits for room, an append writes nothing, and its room is another's."""
    mem = memory.open("t")

    async def main() -> None:
        tasks = waiting(mem, 40)
        await settled(gate)
        for task in tasks[FITS + 2 :: 2]:
            task.cancel()
        for task in tasks[FITS + 2 :: 2]:  # at once, while the disk stands still
            with pytest.raises(asyncio.CancelledError):
                await task
        gate.opened.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert numbers(root) == [i for i, task in enumerate(tasks) if not task.cancelled()]
        assert len(numbers(root)) == 40 - (40 - FITS - 2) // 2
        await asyncio.gather(*waiting(mem, 30))

    asyncio.run(main())


@pytest.mark.usefixtures("small")
def test_cancelled_when_its_room_comes(memory: Memory, gate: Gate) -> None:
    """Cancelled in the moment that there is room for it, an append gives the room to the next."""
    mem = memory.open("t")

    async def main() -> None:
        tasks = waiting(mem, 60)
        await settled(gate)
        gate.opened.set()
        for task in reversed(tasks):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait_for(asyncio.gather(*waiting(mem, 60)), PATIENCE)

    asyncio.run(main())


@pytest.mark.usefixtures("small")
def test_threads(memory: Memory, gate: Gate, root: Path) -> None:
    """Plain threads wait for room as tasks do, and all of their turns are there once."""
    mem = memory.open("t")
    threads = [threading.Thread(target=mem.append, args=(numbered(i),)) for i in range(40)]
    for thread in threads:
        thread.start()
    assert gate.reached.wait(PATIENCE)
    gate.opened.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(numbers(root)) == list(range(40))


@pytest.mark.usefixtures("small")
def test_larger_than_the_room(memory: Memory, gate: Gate, root: Path) -> None:
    """A turn that is larger than all the room goes through, as those before and after it do."""
    mem = memory.open("t")

    async def main() -> None:
        tasks = [*waiting(mem, 20), asyncio.create_task(mem.aappend(MEGABYTE)), *waiting(mem, 20)]
        await settled(gate)
        gate.opened.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert len(contents(root)) == 41


@pytest.mark.usefixtures("small")
def test_refused(memory: Memory, gate: Gate, root: Path) -> None:
    """What is found to be no turn when there is room for it takes none from the others."""
    mem = memory.open("t")

    async def main() -> None:
        good = waiting(mem, 20)
        bad = [asyncio.create_task(mem.aappend(KILOBYTE, expect=-1)) for _ in range(40)]
        good += waiting(mem, 20)
        await settled(gate)
        gate.opened.set()
        await asyncio.gather(*good)
        for task in bad:
            with pytest.raises(InvalidTurn):
                await task

    asyncio.run(main())
    assert numbers(root) == [*range(20), *range(20)]


@pytest.mark.usefixtures("small")
def test_a_failing_disk(root: Path, gate: Gate) -> None:
    """Appends that fail leave their room to those that wait."""
    fails = Fails("write", errno.EIO, times=1_000_000)
    with Memory(JsonlStore(root, system=Watched(Together([gate, fails])))) as memory:
        mem = memory.open("t")
        gate.opened.set()

        async def main() -> None:
            for error in await asyncio.gather(*waiting(mem, 100), return_exceptions=True):
                assert isinstance(error, NotWritten)
            fails.times = 0
            await asyncio.gather(*waiting(mem, 100))

        asyncio.run(main())
    assert numbers(root) == list(range(100))


@pytest.mark.usefixtures("small", "collected")
@pytest.mark.parametrize("reaches", ["the main thread", "another"])
def test_ctrl_c(memory: Memory, gate: Gate, root: Path, reaches: str) -> None:
    """Ctrl-C while an append waits for room breaks it off, and nothing of it is written."""
    mem = memory.open("t")
    threads = [threading.Thread(target=mem.append, args=(numbered(i),)) for i in range(FITS)]
    for thread in threads:
        thread.start()

    def interrupt() -> None:
        while not room._line:  # pyright: ignore[reportPrivateUsage]
            pass
        if reaches == "another":
            signal.raise_signal(signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    room = memory._commit._room  # pyright: ignore[reportPrivateUsage]
    assert gate.reached.wait(PATIENCE)
    while not room.full:
        pass
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        mem.append(KILOBYTE)
    gate.opened.set()
    for thread in [*threads, interrupter]:
        thread.join(PATIENCE)
    assert len(numbers(root)) == FITS
    mem.append("0")


@pytest.mark.usefixtures("small")
def test_closed(root: Path, gate: Gate) -> None:
    """What waits for room when the memory is closed raises Closed, and nobody waits for ever."""
    memory = Memory(JsonlStore(root, system=Watched(gate)))
    mem = memory.open("t")

    async def main() -> list[MemoryThread | BaseException]:
        tasks = waiting(mem, 40)
        await settled(gate)
        closing = asyncio.create_task(memory.aclose())
        await asyncio.sleep(0)
        gate.opened.set()
        await closing
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)

    found = asyncio.run(main())
    assert all(isinstance(error, Closed) for error in found if error is not mem)
    assert len(numbers(root)) == sum(thread is mem for thread in found) >= FITS


def ignore(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Take no notice."""
    del loop, context


@pytest.mark.usefixtures("small")
def test_a_loop_that_ended(memory: Memory, gate: Gate) -> None:
    """A loop that ends under those that wait for room takes none of it with it."""
    mem = memory.open("t")

    async def main() -> None:
        waiting(mem, 40)
        await settled(gate)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.set_exception_handler(ignore)  # it is told of tasks that were still pending
    loop.close()
    del loop
    gc.collect()
    gate.opened.set()
    mem.append(KILOBYTE)
    asyncio.run(asyncio.wait_for(mem.aappend(KILOBYTE), PATIENCE))
