"""R23: a run that is cancelled while its store is slow, or fails, loses nothing in silence."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from localserver import Gate, Provider, Reply, ToolCall
from machine import needs_root, tiny_tmpfs
from stops import (
    HEARING,
    INPUT,
    LISTENING,
    PARTIAL,
    QUESTION,
    STOPPING,
    Ears,
    kept,
    remembering,
    told,
    turns_of,
    unheard,
    until,
)
from systems import Fails, Together, Watched
from systems import Gate as StoreGate

import turnlog
from turnlog import LockTimeout, Memory, NotWritten, WritebackFailed
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from pathlib import Path
    from typing import Any

    from systems import Before
    from ways import Make

    from turnlog import MemoryThread

LOOK = ToolCall("look")
LOOKING = ("assistant", "Let me look.", False)
WHOLE = ("assistant", "It is paid.", False)


def look() -> str:
    """Look it up."""
    return "found"


@pytest.fixture
def gate(provider: Provider) -> Gate:
    """Have the provider stop in the middle of its reply."""
    gate = Gate()
    provider.script(Reply("It is ", gate, "paid."))
    return gate


def over(
    root: Path,
    before: Before,
    act: Callable[[MemoryThread], Coroutine[Any, Any, None]],
    lock_timeout: float = 60,
) -> None:
    """Run something with a thread of one turn, and something before the calls of its system."""
    with Memory(root) as memory:
        memory.open("t").append("Hello.")
    befores = Together()

    async def opened(mem: MemoryThread) -> None:
        befores.befores.append(before)
        await act(mem)

    store = JsonlStore(root, system=Watched(befores))
    remembering(Memory(store, lock_timeout=lock_timeout), opened)


HELLO = ("user", "Hello.", False)

# ---- the store is slow ----


@pytest.mark.parametrize("listening", HEARING)
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.usefixtures("gate")
def test_cancelled_again_while_the_store_writes(
    one_model: str, make: Make, root: Path, times: int, listening: str
) -> None:
    """However often it is cancelled while it writes, it writes, and then is cancelled (A05)."""
    agent, ears, store = make(one_model), Ears(), StoreGate("sync")

    async def act(mem: MemoryThread) -> None:
        task = asyncio.ensure_future(HEARING[listening](agent, mem, ears))
        await ears.heard.aexpect()
        task.cancel()
        await asyncio.to_thread(store.reached.wait)
        for _ in range(times - 1):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        assert turns_of(mem.messages()) == [HELLO]
        store.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == times
        assert turns_of(mem.messages()) == [HELLO, INPUT, PARTIAL]

    over(root, store, act)
    assert kept(root) == [HELLO, INPUT, PARTIAL]


@pytest.mark.parametrize("listening", LISTENING)
def test_cancelled_while_a_whole_reply_is_written(
    provider: Provider, one_model: str, make: Make, root: Path, listening: str
) -> None:
    """A run that is cancelled while its whole reply is written is there whole, once (A05)."""
    provider.script("It is paid.")
    agent, store = make(one_model), StoreGate("sync")

    async def act(mem: MemoryThread) -> None:
        task = asyncio.ensure_future(LISTENING[listening](agent, mem, Ears()))
        await asyncio.to_thread(store.reached.wait)
        task.cancel()
        await asyncio.sleep(0)
        store.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert turns_of(mem.messages()) == [HELLO, INPUT, WHOLE]

    over(root, store, act)
    assert kept(root) == [HELLO, INPUT, WHOLE]


@contextmanager
def locked(root: Path) -> Generator[None]:
    """Hold the lock of the thread's file, as another process may."""
    fd = os.open(root / "default" / "t.jsonl", os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("listening", LISTENING)
def test_cancelled_while_the_store_is_busy(  # noqa: PLR0913, PLR0917 - the fixtures
    provider: Provider, one_model: str, make: Make, root: Path, times: int, listening: str
) -> None:
    """Cancelled while it waits to read the thread, the input is there, and nobody was asked."""
    agent = make(one_model)
    waits = Waits()

    async def act(mem: MemoryThread) -> None:
        with locked(root):
            task = asyncio.ensure_future(LISTENING[listening](agent, mem, Ears()))
            waits.begin()
            await until(waits.seen)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            waits.begin()
            await until(waits.seen)
            assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert turns_of(mem.messages()) == [HELLO, INPUT]

    over(root, waits, act)
    assert provider.requests == []
    assert kept(root) == [HELLO, INPUT]


class Waits:
    """Counts how often the store looks whether the lock is free."""

    def __init__(self) -> None:
        """Begin with none."""
        self._looks = 0

    def __call__(self, call: str, _: object) -> None:
        """Count a look."""
        self._looks += call == "try_lock"

    def begin(self) -> None:
        """Begin anew."""
        self._looks = 0

    def seen(self) -> bool:
        """Tell whether it has looked since, more than once: it waits."""
        return self._looks > 1


@pytest.mark.parametrize("busy", ["try_lock", "sync"])
@pytest.mark.usefixtures("gate")
def test_a_scope_does_not_spin_while_the_store_is_slow(
    one_model: str, make: Make, root: Path, busy: str
) -> None:
    """A cancelled scope is told once of a run that waits for its store, not at each turn (A07)."""
    agent, ears, store = make(one_model), Ears(), StoreGate(busy)

    async def act(mem: MemoryThread) -> None:
        async def scoped() -> None:
            with scope:
                await told(agent, mem, ears)

        scope = anyio.CancelScope()
        task = asyncio.ensure_future(scoped())
        if busy == "sync":
            await ears.heard.aexpect()
            scope.cancel()
        await asyncio.to_thread(store.reached.wait)
        scope.cancel()
        calls = await calls_in_a_thousand_turns()
        store.opened.set()
        await task
        assert calls < 1_500
        assert scope.cancelled_caught

    over(root, store, act)
    assert kept(root)[:2] == [HELLO, INPUT]


async def calls_in_a_thousand_turns() -> int:
    """Count what the loop is given to do in a thousand of its turns: of ours is one in each."""
    loop, calls = asyncio.get_running_loop(), 0
    call_soon = loop.call_soon

    def counted(*args: Any, **how: Any) -> Any:
        nonlocal calls
        calls += 1
        return call_soon(*args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_soon", counted)
        for _ in range(1_000):
            await asyncio.sleep(0)
    return calls


# ---- the store fails ----


async def fails_by_cancel(work: Any, ears: Ears) -> WritebackFailed:
    """Cancel the task."""
    task = asyncio.ensure_future(work)
    await ears.heard.aexpect()
    task.cancel()
    with pytest.raises(WritebackFailed) as failed:
        await task
    assert task.cancelling() == 1
    return failed.value


async def fails_by_timeout(work: Any, ears: Ears) -> WritebackFailed:
    """Let an asyncio.timeout pass."""
    limit = asyncio.timeout(None)

    async def limited() -> None:
        async with limit:
            await work

    task = asyncio.ensure_future(limited())
    await ears.heard.aexpect()
    limit.reschedule(0)
    with pytest.raises(WritebackFailed) as failed:
        await task
    assert limit.expired()
    assert task.cancelling() == 0
    return failed.value


async def fails_by_sibling(work: Any, ears: Ears) -> WritebackFailed:
    """Let a sibling of its task group fail."""

    async def fails() -> None:
        await ears.heard.aexpect()
        raise LookupError("the sibling")

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(work)
            group.create_task(fails())

    with pytest.raises(ExceptionGroup) as failed:
        await together()
    sibling, error = failed.value.exceptions
    assert isinstance(sibling, LookupError)
    assert isinstance(error, WritebackFailed)
    return error


async def fails_by_scope(work: Any, ears: Ears) -> WritebackFailed:
    """Cancel an anyio scope."""
    scope = anyio.CancelScope()

    async def scoped() -> None:
        with scope:
            await work

    task = asyncio.ensure_future(scoped())
    await ears.heard.aexpect()
    scope.cancel()
    with pytest.raises(WritebackFailed) as failed:
        await task
    return failed.value


FAILING = {
    "cancel": fails_by_cancel,
    "timeout": fails_by_timeout,
    "sibling": fails_by_sibling,
    "scope": fails_by_scope,
}


def check_lost(error: WritebackFailed) -> None:
    """Check that an error carries what was not written, and names the cancellation."""
    assert turns_of(error.turns) == [INPUT, PARTIAL]
    assert error.result is None
    assert isinstance(error.__cause__, NotWritten)
    assert asyncio.CancelledError in map(type, contexts(error))
    assert "could not be written back" in str(error)


def contexts(error: BaseException | None) -> Generator[BaseException]:
    """Give an error, and all that it came in the place of."""
    while error is not None:
        yield error
        error = error.__context__


@pytest.mark.parametrize("listening", HEARING)
@pytest.mark.parametrize("way", FAILING)
@pytest.mark.usefixtures("gate")
def test_cancelled_and_not_written(
    one_model: str, make: Make, root: Path, way: str, listening: str
) -> None:
    """Where the store fails a cancelled run, the error carries the turns, which go in later."""
    agent, ears, device = make(one_model), Ears(), Fails("sync", errno.EIO)

    async def act(mem: MemoryThread) -> None:
        error = await FAILING[way](HEARING[listening](agent, mem, ears), ears)
        check_lost(error)
        assert turns_of(mem.messages()) == [HELLO]
        await mem.aextend(error.turns)

    over(root, device, act)
    assert kept(root) == [HELLO, INPUT, PARTIAL]


@pytest.mark.usefixtures("gate")
def test_a_closed_stream_that_was_not_written(one_model: str, make: Make, root: Path) -> None:
    """Where the store fails a stream that is closed, closing it raises what carries the turns."""
    agent, device = make(one_model), Fails("sync", errno.EIO)

    async def act(mem: MemoryThread) -> None:
        stream = turnlog.astream(agent, QUESTION, memory=mem)
        assert await anext(stream) == "It is "
        with pytest.raises(WritebackFailed) as failed:
            await stream.aclose()
        check_lost(failed.value)
        await mem.aextend(failed.value.turns)

    over(root, device, act)
    assert kept(root) == [HELLO, INPUT, PARTIAL]


@pytest.mark.usefixtures("gate")
def test_a_left_stream_that_was_not_written(one_model: str, make: Make, root: Path) -> None:
    """Where the store fails a stream that was just left, the loop's handler is told of it."""
    agent, device = make(one_model), Fails("sync", errno.EIO)
    complaints: list[dict[str, Any]] = []

    async def act(mem: MemoryThread) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        async for _ in turnlog.astream(agent, QUESTION, memory=mem):
            break
        await until(lambda: not device.times)

    over(root, device, act)
    (complaint,) = complaints
    check_lost(complaint["exception"])
    assert kept(root) == [HELLO]


def test_cancelled_while_the_store_stays_busy(
    provider: Provider, one_model: str, make: Make, root: Path
) -> None:
    """A busy store holds a cancelled run up no longer than it holds an append up (R23)."""
    agent, store = make(one_model), StoreGate("try_lock")

    async def act(mem: MemoryThread) -> None:
        with locked(root):
            task = asyncio.ensure_future(unheard(agent, mem, Ears()))
            await asyncio.to_thread(store.reached.wait)
            task.cancel()
            store.opened.set()  # its time begins when it finds the lock taken
            with pytest.raises(WritebackFailed) as failed:
                await task
        assert isinstance(failed.value.__cause__, LockTimeout)
        assert asyncio.CancelledError in map(type, contexts(failed.value))
        await mem.aextend(failed.value.turns)

    over(root, store, act, lock_timeout=0.1)
    assert provider.requests == []
    assert kept(root) == [HELLO, INPUT]


@needs_root
@pytest.mark.usefixtures("gate")
def test_cancelled_with_a_full_disk(one_model: str, make: Make, tmp_path: Path) -> None:
    """Cancelled with no room on the disk, nothing is lost: the turns go in when there is (C07)."""
    agent, ears, question = make(one_model), Ears(), QUESTION.ljust(10_000, "?")
    with tiny_tmpfs(tmp_path / "disk") as disk:

        async def act(mem: MemoryThread) -> None:
            fill(disk / "filler")
            work = turnlog.arun(agent, question, memory=mem, on_text=ears)
            error = await fails_by_cancel(work, ears)
            assert "free space" in error.hint
            (disk / "filler").unlink()
            await mem.aextend(error.turns)

        over(disk / "memory", Together(), act)
        assert kept(disk / "memory") == [HELLO, ("user", question, False), PARTIAL]


def fill(file: Path) -> None:
    """Fill a disk."""
    room = os.statvfs(file.parent)
    file.write_bytes(b"x" * room.f_bavail * room.f_frsize)


# ---- written eagerly ----


@pytest.mark.parametrize("listening", HEARING)
@pytest.mark.parametrize("way", ["cancel", "twice", "timeout", "scope"])
def test_cancelled_when_written_eagerly(  # noqa: PLR0913, PLR0917 - the fixtures
    provider: Provider, one_model: str, make: Make, root: Path, way: str, listening: str
) -> None:
    """What was written eagerly is there once, and the partial text behind it (R23)."""
    gate = Gate()
    provider.script(Reply("Let me look.", LOOK), Reply("It is ", gate, "paid."))
    agent, ears = make(one_model, tools=[look]), Ears(until="Let me look.It is ")

    async def act(mem: MemoryThread) -> None:
        work = HEARING[listening](agent, mem, ears, writeback="eager")
        await STOPPING[way](work, ears.heard)
        assert turns_of(mem.messages()) == [INPUT, LOOKING, PARTIAL]

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, LOOKING, PARTIAL]


@pytest.mark.parametrize("times", [1, 2])
def test_cancelled_while_an_eager_reply_is_written(
    provider: Provider, one_model: str, make: Make, root: Path, times: int
) -> None:
    """Cancelled while a reply is written eagerly, it is there once, and no more is asked (R23)."""
    provider.script(Reply("Let me look.", LOOK), "It is paid.")
    agent, ears = make(one_model, tools=[look]), Ears(until="Let me look.")
    faults, store = Together(), StoreGate("sync")

    async def act(mem: MemoryThread) -> None:
        task = asyncio.ensure_future(told(agent, mem, ears, writeback="eager"))
        await until(lambda: len(mem) == 2)
        faults.befores.append(store)
        await asyncio.to_thread(store.reached.wait)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        store.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert turns_of(mem.messages()) == [HELLO, INPUT, LOOKING]

    over(root, faults, act)
    assert kept(root) == [HELLO, INPUT, LOOKING]
    assert len(provider.requests) == 1


def test_cancelled_eagerly_and_not_written(
    provider: Provider, one_model: str, make: Make, root: Path
) -> None:
    """Where the store fails after some was written eagerly, the error carries the rest alone."""
    gate = Gate()
    provider.script(Reply("Let me look.", LOOK), Reply("It is ", gate, "paid."))
    agent, ears = make(one_model, tools=[look]), Ears(until="Let me look.It is ")
    faults = Together()

    async def act(mem: MemoryThread) -> None:
        task = asyncio.ensure_future(told(agent, mem, ears, writeback="eager"))
        await ears.heard.aexpect()
        faults.befores.append(Fails("sync", errno.EIO))
        task.cancel()
        with pytest.raises(WritebackFailed) as failed:
            await task
        assert turns_of(failed.value.turns) == [PARTIAL]
        await mem.aextend(failed.value.turns)

    over(root, faults, act)
    assert kept(root) == [HELLO, INPUT, LOOKING, PARTIAL]
