"""What the tests of cancellation share: a loop that is watched, ways to listen and ways to stop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import anyio
import pytest
from localserver import Signal
from programs import reopened_in_a_new_process

import turnlog
from turnlog import Memory, MemoryThread, Message

if TYPE_CHECKING:
    from pathlib import Path

_Returned = TypeVar("_Returned")

QUESTION = "Is it paid?"
Turn: TypeAlias = tuple[str, str, bool]

INPUT: Turn = ("user", QUESTION, False)
PARTIAL: Turn = ("assistant", "It is ", True)
# What of this library's and the engine's may run in a thread beside the loop's.
_THREADS = ("turnlog", "AnyIO worker thread", "asyncio_")
_LONG = 100  # seconds, by a clock that is put forward


def turns_of(messages: object) -> list[Turn]:
    """Give each turn's role and text, and whether it is marked as interrupted."""
    turns: list[Message] = list(messages)  # pyright: ignore[reportArgumentType, reportUnknownVariableType, reportCallIssue]
    return [(turn.role, turn.content, bool((turn.meta or {}).get("interrupted"))) for turn in turns]


def kept(root: Path, id: str = "t") -> list[Turn]:
    """Give the turns that a new process finds in a thread."""
    return turns_of(reopened_in_a_new_process(root, id))


# ---- a loop in which nothing may be left, and nothing be complained of ----


def watched(
    main: Callable[[], Coroutine[Any, Any, _Returned]],
    *,
    busy: Collection[threading.Thread] = (),
    besides: str | None = None,
) -> _Returned:
    """Run in a loop of its own; see that no task and no thread is left, and no error unseen.

    Args:
        main: what to run.
        busy: threads that may go on; looked at in the end.
        besides: the name of a coroutine whose task may be left.
    """
    complaints: list[dict[str, Any]] = []
    before = _our_threads()

    async def watching() -> _Returned:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        try:
            return await main()
        finally:
            await _settle()
            left = [repr(task) for task in _others()]
            left = [task for task in left if not besides or besides not in task]
            assert left == [], f"tasks are left running: {left}"

    gc.freeze()  # to collect what comes from here on is quick then
    gc.disable()  # the SDKs' generators, which are left to it, do not bear it in another thread
    try:
        return asyncio.run(watching())
    finally:
        gc.collect()
        gc.enable()
        gc.unfreeze()
        assert not complaints, f"nobody saw an error: {complaints}"
        left = _our_threads() - before - set(busy)
        for thread in left:
            thread.join(60)
        assert not any(thread.is_alive() for thread in left), f"threads are left running: {left}"


async def _settle() -> None:
    """Let what only gc ends come to its end: the providers' SDKs leave generators to it."""
    for turn in range(50):
        gc.collect()
        await asyncio.sleep(0)
        if turn > 1 and not _others():
            return


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds; it is an error if that takes too long."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)


def _others() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def _our_threads() -> set[threading.Thread]:
    """Give those that are to end; what makes models goes on, for whoever forks."""
    return {
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(_THREADS) and not thread.name.startswith("turnlog-model")
    }


def remembering(
    memory: Memory,
    act: Callable[[MemoryThread], Coroutine[Any, Any, _Returned]],
    *,
    busy: Collection[threading.Thread] = (),
    besides: str | None = None,
) -> _Returned:
    """Run something with the thread "t" of a memory, in a watched loop; close the memory."""

    async def main() -> _Returned:
        async with memory:
            return await act(await memory.aopen("t"))

    return watched(main, busy=busy, besides=besides)


# ---- ways to listen ----

Work: TypeAlias = Coroutine[Any, Any, None]


@dataclass
class Ears:
    """What a run's caller hears.

    Attributes:
        text: all of it, up to now.
        until: the text after which `heard` is set.
    """

    text: str = ""
    until: str = "It is "
    heard: Signal = field(default_factory=Signal)

    def __call__(self, piece: str) -> None:
        """Hear a piece."""
        self.text += piece
        if self.text == self.until:
            self.heard.set()


Listening: TypeAlias = Callable[..., Work]


async def unheard(agent: Any, mem: MemoryThread, ears: Ears, **options: Any) -> None:
    """Run an agent, and hear nothing until its end."""
    ears((await turnlog.arun(agent, QUESTION, memory=mem, **options)).response)


async def told(agent: Any, mem: MemoryThread, ears: Ears, **options: Any) -> None:
    """Run an agent that tells its text as it comes."""
    await turnlog.arun(agent, QUESTION, memory=mem, on_text=ears, **options)


async def read(agent: Any, mem: MemoryThread, ears: Ears, **options: Any) -> None:
    """Read an agent's stream."""
    async for piece in turnlog.astream(agent, QUESTION, memory=mem, **options):
        ears(piece)


LISTENING: dict[str, Listening] = {"arun": unheard, "on_text": told, "astream": read}
HEARING: dict[str, Listening] = {"on_text": told, "astream": read}


# ---- ways to stop ----


class _Counted(Coroutine[Any, Any, Any]):
    """A coroutine that calls a function at each of its awaits."""

    def __init__(self, work: Coroutine[Any, Any, Any], at_await: Callable[[], None]) -> None:
        self._work = work
        self._at_await = at_await

    def send(self, value: Any) -> Any:
        waiting = self._work.send(value)
        self._at_await()
        return waiting

    def throw(self, *error: Any) -> Any:
        waiting = self._work.throw(*error)
        self._at_await()
        return waiting

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        return self._work.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


async def by_cancelling_at(work: Work, awaits: range) -> bool:
    """Cancel it at some awaits, by their number: its own and those of tasks that it starts.

    Returns:
        Whether it came to its end before all that.
    """
    loop, number = asyncio.get_running_loop(), 0

    def at_await() -> None:
        nonlocal number
        if number in awaits and not task.done():
            task.cancel()
        number += 1

    def counted(loop: Any, coroutine: Any, **how: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Counted(coroutine, at_await), loop=loop, **how)

    loop.set_task_factory(counted)
    try:
        task = loop.create_task(work)
        await asyncio.wait([task])
    finally:
        loop.set_task_factory(None)
    if task.cancelled():
        return False
    await task
    return True


Stopping: TypeAlias = Callable[[Work, Signal], Coroutine[Any, Any, None]]


class _Clock:
    """The running loop's clock, put forward when something has happened."""

    def __init__(self, when: Signal) -> None:
        self._loop = asyncio.get_running_loop()
        self._real = self._loop.time
        self._task = asyncio.ensure_future(self._put_forward(when))

    async def _put_forward(self, when: Signal) -> None:
        await when.aexpect()
        self._loop.time = lambda: self._real() + _LONG

    async def back(self) -> None:
        await self._task
        self._loop.time = self._real


async def by_cancel(work: Work, when: Signal) -> None:
    """Cancel the task."""
    task = asyncio.ensure_future(work)
    await when.aexpect()
    assert task.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def by_cancelling_twice(work: Work, when: Signal) -> None:
    """Cancel the task twice in a row."""
    task = asyncio.ensure_future(work)
    await when.aexpect()
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 2


async def by_timeout(work: Work, when: Signal) -> None:
    """Let an asyncio.timeout pass."""
    clock = _Clock(when)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(_LONG):
            await work
    await clock.back()


async def by_wait_for(work: Work, when: Signal) -> None:
    """Let the time of an asyncio.wait_for pass."""
    clock = _Clock(when)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work, _LONG)
    await clock.back()


async def by_failing_sibling(work: Work, when: Signal) -> None:
    """Let a sibling of its task group fail."""
    tasks: list[asyncio.Task[None]] = []

    async def fails() -> None:
        await when.aexpect()
        raise LookupError("the sibling")

    with pytest.raises(ExceptionGroup) as failed:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(work), group.create_task(fails())]
    assert [type(error) for error in failed.value.exceptions] == [LookupError]
    assert tasks[0].cancelled()


async def by_scope(work: Work, when: Signal) -> None:
    """Cancel an anyio scope."""

    async def cancels() -> None:
        await when.aexpect()
        scope.cancel()

    stopping = asyncio.ensure_future(cancels())
    with anyio.CancelScope() as scope:
        await work
    assert scope.cancelled_caught
    await stopping


async def by_anyio_group(work: Work, when: Signal) -> None:
    """Let a sibling of its anyio task group fail."""

    async def does() -> None:
        await work

    async def fails() -> None:
        await when.aexpect()
        raise LookupError("the sibling")

    async def together() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(does)
            group.start_soon(fails)

    with pytest.raises(ExceptionGroup) as failed:
        await together()
    assert [type(error) for error in failed.value.exceptions] == [LookupError]


async def by_move_on(work: Work, when: Signal) -> None:
    """Let the time of anyio's move_on_after pass."""
    clock = _Clock(when)
    with anyio.move_on_after(_LONG) as scope:
        await work
    assert scope.cancelled_caught
    await clock.back()


async def by_fail_after(work: Work, when: Signal) -> None:
    """Let the time of anyio's fail_after pass."""
    clock = _Clock(when)
    with pytest.raises(TimeoutError), anyio.fail_after(_LONG):
        await work
    await clock.back()


STOPPING: dict[str, Stopping] = {
    "cancel": by_cancel,
    "twice": by_cancelling_twice,
    "timeout": by_timeout,
    "wait_for": by_wait_for,
    "sibling": by_failing_sibling,
    "scope": by_scope,
    "anyio group": by_anyio_group,
    "move_on_after": by_move_on,
    "fail_after": by_fail_after,
}
