"""Contract 7: an append that was submitted completes before its cancellation goes on (C11)."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import TYPE_CHECKING, Any

import pytest
from blockbuster import BlockingError
from systems import Fails, Gate, Together, Watched
from writers import contents, each_in_order, lines_on_disk

from turnlog import Memory, MemoryThread, Message, NotWritten
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_blocking")


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Wait until somebody has asked a task to stop, and give it the chance to."""
    while not task.cancelling() and not task.done():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)
    for _ in range(5):
        await asyncio.sleep(0)


def checked(root: Path, thread: MemoryThread, expected: list[str]) -> None:
    """Check that the thread, its file and a fresh opening show the same turns."""
    assert [m.content for m in thread.messages()] == expected
    assert lines_on_disk(root) == expected == contents(root)


def slow(root: Path) -> tuple[Memory, Gate]:
    """Give a memory whose syncs wait for a gate."""
    gate = Gate("sync")
    return Memory(JsonlStore(root, system=Watched(gate))), gate


async def append(thread: MemoryThread) -> None:
    """Append one turn."""
    await thread.aappend("x")


async def extend(thread: MemoryThread) -> None:
    """Append one turn as a unit."""
    await thread.aextend([Message("user", "x")])


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("attempt", [append, extend])
def test_cancel(
    root: Path, times: int, attempt: Callable[[MemoryThread], Coroutine[Any, Any, None]]
) -> None:
    """A cancelled append completes, however often it is cancelled, and then it is cancelled."""
    memory, gate = slow(root)

    async def main() -> MemoryThread:
        thread = await memory.aopen("t")
        task = asyncio.ensure_future(attempt(thread))
        await asyncio.to_thread(gate.reached.wait)
        for _ in range(times):
            task.cancel("enough")
            await asyncio.sleep(0)
        assert not task.done()
        assert len(thread) == 0
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        checked_now = [m.content for m in thread.messages()]
        assert checked_now == ["x"]
        await thread.aappend("y")
        return thread

    checked(root, asyncio.run(main()), ["x", "y"])


def test_timeout(root: Path) -> None:
    """An append under asyncio.timeout completes, and then the TimeoutError is raised."""
    memory, gate = slow(root)

    async def main() -> MemoryThread:
        thread = await memory.aopen("t")

        async def work() -> None:
            async with asyncio.timeout(0.01):
                await thread.aappend("x")
            pytest.fail("it ended in time")

        task = asyncio.ensure_future(work())
        await cancelled(task)
        assert not task.done()
        gate.opened.set()
        with pytest.raises(TimeoutError):
            await task
        return thread

    checked(root, asyncio.run(main()), ["x"])


def test_task_group(root: Path) -> None:
    """When a sibling fails, the append of a task group completes before the group ends."""
    memory, gate = slow(root)

    async def main() -> MemoryThread:
        thread = await memory.aopen("t")
        appends: list[asyncio.Task[MemoryThread]] = []

        async def fails() -> None:
            await asyncio.to_thread(gate.reached.wait)
            message = "the sibling"
            raise LookupError(message)

        async def opens() -> None:
            await cancelled(appends[0])
            assert not appends[0].done()
            gate.opened.set()

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                appends.append(tasks.create_task(thread.aappend("x")))
                tasks.create_task(fails())

        work = asyncio.ensure_future(group())
        await asyncio.to_thread(gate.reached.wait)
        await opens()
        with pytest.raises(ExceptionGroup) as failed:
            await work
        assert failed.group_contains(LookupError, match="the sibling")
        assert appends[0].cancelled()
        return thread

    checked(root, asyncio.run(main()), ["x"])


def test_loop_that_shuts_down(root: Path) -> None:
    """An append that its loop leaves behind at its end completes before the loop is closed."""
    memory, gate = slow(root)
    left = threading.Event()

    def opens() -> None:
        left.wait(60)
        gate.opened.set()

    opening = threading.Thread(target=opens)
    opening.start()
    tasks: list[asyncio.Task[MemoryThread]] = []

    async def main() -> MemoryThread:
        thread = await memory.aopen("t")
        tasks.append(asyncio.ensure_future(thread.aappend("x")))
        await asyncio.to_thread(gate.reached.wait)
        left.set()
        return thread

    thread = asyncio.run(main())
    opening.join()
    assert tasks[0].cancelled()
    checked(root, thread, ["x"])


def test_many_tasks(root: Path) -> None:
    """Of many appends of which half are cancelled, all that were submitted are there, in order."""
    memory, gate = slow(root)

    async def main() -> MemoryThread:
        thread = await memory.aopen("t")
        tasks = [asyncio.ensure_future(thread.aappend(f"a {i}")) for i in range(64)]
        await asyncio.to_thread(gate.reached.wait)
        for task in tasks[::2]:
            task.cancel()
        gate.opened.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [
            *(asyncio.CancelledError, MemoryThread)
        ] * 32
        return thread

    thread = asyncio.run(main())
    turns = [message.content for message in thread.messages()]
    assert each_in_order(turns) == {"a": 64}
    checked(root, thread, turns)


def test_cancelled_before_it_began(root: Path) -> None:
    """An append that was cancelled before its task ran was never submitted: nothing is there."""
    memory = Memory(root)

    async def main() -> MemoryThread:
        thread = await memory.aopen("t")
        task = asyncio.ensure_future(thread.aappend("x"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await thread.aappend("y")
        return thread

    checked(root, asyncio.run(main()), ["y"])


def test_cancelled_and_failed(root: Path) -> None:
    """A cancelled append that fails leaves nothing, and the cancellation tells why (C11)."""
    gate, before = Gate("sync"), Together()
    memory = Memory(JsonlStore(root, system=Watched(before)))

    async def main() -> MemoryThread:
        thread = await memory.aopen("t")
        await thread.aappend("first")
        before.befores = [gate, Fails("sync", errno.EIO)]
        task = asyncio.ensure_future(thread.aappend("x"))
        await asyncio.to_thread(gate.reached.wait)
        task.cancel()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError) as stopped:
            await task
        assert isinstance(stopped.value.__cause__, NotWritten)
        return thread

    checked(root, asyncio.run(main()), ["first"])


def test_awaiting_task_is_cancelled(root: Path) -> None:
    """A task that awaits an append inside of others passes the cancellation on after it."""
    order: list[str] = []

    memory, gate = slow(root)

    async def main() -> MemoryThread:
        thread = await memory.aopen("t")

        async def agent() -> None:
            try:
                await thread.aappend("input")
                order.append("not reached")
            finally:
                order.append("cleaning up")
                await thread.aappend("said so far")  # a task may append while it is cancelled
                order.append("cleaned up")

        task = asyncio.ensure_future(agent())
        await asyncio.to_thread(gate.reached.wait)
        task.cancel()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return thread

    checked(root, asyncio.run(main()), ["input", "said so far"])
    assert order == ["cleaning up", "cleaned up"]


def test_loop_is_never_blocked(root: Path) -> None:
    """While the disk stands still the loop runs on, whatever is asked of a memory (R14)."""
    memory, gate = slow(root)

    async def main() -> int:
        thread = await memory.aopen("t")
        tasks = [
            asyncio.ensure_future(coroutine)
            for coroutine in (
                thread.aappend("x"),
                thread.aextend([Message("user", "y"), Message("assistant", "z")]),
                thread.arefresh(),
            )
        ]
        await asyncio.to_thread(gate.reached.wait)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        gate.opened.set()
        await asyncio.gather(*tasks)
        await thread.afork("u")
        assert len(await memory.aopen("u")) == 3
        await memory.adelete("u")
        await memory.aclose()
        return len(thread)

    assert asyncio.run(main()) == 3


def test_watchman_watches(root: Path) -> None:
    """A call that blocks the loop is seen by the tests above: they can fail."""

    async def main() -> None:
        memory.open("t").append("x")

    with Memory(root) as memory, pytest.raises(BlockingError):
        asyncio.run(main())
