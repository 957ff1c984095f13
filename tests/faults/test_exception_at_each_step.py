"""Contract 7: an exception from outside, at any step of an append, leaves nothing taken.

An exception that another OS thread sets, or MemoryError, may be raised between any two of Python's
instructions. Here a tracer raises one at each of them in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import turnlog
from turnlog import Memory, MemoryThread, Message, TurnlogError
from turnlog.commit import GroupCommit
from turnlog.room import Room
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.syncing import SyncThreads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from turnlog.stores.base import Store

pytestmark = pytest.mark.usefixtures("collected")

PATIENCE = 60.0  # a watchdog, in seconds
OURS = os.path.dirname(turnlog.__file__)


class Strike(BaseException):
    """What another OS thread sets."""


class ServerStore(InMemoryStore):
    """A store whose appends no caller's own OS thread commits, as those on servers."""

    commits_in_caller = False


class Tracer:
    """Raises an exception at one of the instructions of what it traces.

    Args:
        kind: the exception.
        step: the number of the instruction, of turnlog's.
    """

    def __init__(self, kind: type[BaseException], step: int) -> None:
        """Count from one."""
        self.kind = kind
        self.step = step
        self.steps = 0
        self.struck = ""

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """Trace a call of turnlog's code."""
        code = frame.f_code
        # What is raised in a callback of an event loop is swallowed by asyncio, whose own code
        # would not withstand it either.
        if not code.co_filename.startswith(OURS) or code.co_name == "_finish":
            return None
        frame.f_trace_opcodes = True
        return self._traced

    def _traced(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode":
            self.steps += 1
            if self.steps == self.step:
                self.struck = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                sys.settrace(None)
                raise self.kind
        return self._traced

    def trace(self, work: Callable[[], object]) -> str:
        """Do some work; return where it was struck."""
        before = sys.gettrace()
        with contextlib.suppress(self.kind, TurnlogError):
            try:
                sys.settrace(self)
                work()
            finally:
                sys.settrace(before)
        return self.struck


def append(thread: MemoryThread, text: str) -> None:
    """Append one turn."""
    thread.append(text)


def extend(thread: MemoryThread, text: str) -> None:
    """Append a turn and an empty one as a unit."""
    thread.extend([Message("user", text), Message("assistant", "")])


def refresh(thread: MemoryThread, _text: str) -> None:
    """Read forward."""
    thread.refresh()


def aappend(thread: MemoryThread, text: str) -> None:
    """Append one turn in an event loop."""
    asyncio.run(awaited(thread, text))


async def awaited(thread: MemoryThread, text: str) -> None:
    """Append one turn."""
    await thread.aappend(text)


def append_elsewhere(memory: Memory, thread: MemoryThread, text: str) -> MemoryThread:
    """Append in another OS thread, as the error advises; return the handle that it took."""
    appended: list[MemoryThread] = []

    def work() -> None:
        try:
            appended.append(thread.append(text))
        except turnlog.OutcomeUnknown:
            appended.append(memory.open(thread.id).append(text))

    other = threading.Thread(target=work, daemon=True)
    other.start()
    other.join(PATIENCE)
    assert appended, "it hangs, or failed"
    return appended[0]


def is_unlocked(root: Path) -> bool:
    """Tell whether another process could lock the thread's file."""
    fd = os.open(root / "default" / "t.jsonl", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@pytest.mark.parametrize("kind", [Strike, MemoryError])
@pytest.mark.parametrize("work", [append, extend, refresh, aappend])
@pytest.mark.parametrize("store", ["jsonl", "memory", "server"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine.*never awaited")
def test_at_each_step(
    root: Path, store: str, work: Callable[[MemoryThread, str], None], kind: type[BaseException]
) -> None:
    """Whatever instruction it is raised at, the next append works, here and elsewhere (C33)."""
    made: Store = JsonlStore(root, lock_timeout=PATIENCE)
    if store != "jsonl":
        made = InMemoryStore() if store == "memory" else ServerStore()
    handlers = [signal.getsignal(each) for each in range(1, 32)]
    with Memory(made, lock_timeout=PATIENCE) as memory:
        thread = memory.open("t").append("first")
        descriptors = len(os.listdir("/proc/self/fd"))
        step = 0
        while True:
            step += 1
            tracer = Tracer(kind, step)
            struck = tracer.trace(lambda: work(thread, str(step)))  # noqa: B023 - called at once
            if not struck:
                break
            assert [signal.getsignal(each) for each in range(1, 32)] == handlers, struck
            thread = append_elsewhere(memory, thread, f"after {step}")
            texts = [message.content for message in thread.messages()[-3:]]
            assert texts.count(str(step)) <= 1, struck
            assert texts[-1] == f"after {step}", struck
            if store == "jsonl":
                assert is_unlocked(root), struck
                assert len(os.listdir("/proc/self/fd")) <= descriptors, struck
        assert step > 300
        held = [message.content for message in thread.messages()]
        assert [message.content for message in memory.peek("t", last=len(held) + 1)] == held


@pytest.mark.timeout(30)
@pytest.mark.parametrize("work", [append, aappend])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine.*never awaited")
def test_where_no_thread_can_start(
    work: Callable[[MemoryThread, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no committer can be started the append that is interrupted completes too (C33)."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "turnlog":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Memory(InMemoryStore()) as memory:
        thread = memory.open("t").append("first")
        step = 0
        while True:
            step += 2
            struck = Tracer(MemoryError, step).trace(lambda: work(thread, str(step)))  # noqa: B023
            if not struck:
                break
            thread = append_elsewhere(memory, thread, f"after {step}")
            texts = [message.content for message in thread.messages()[-3:]]
            assert texts.count(str(step)) <= 1, struck
            assert texts[-1] == f"after {step}", struck


def test_in_an_append_within_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in a handler's append, which is refused, leaves the outer one alone (C33)."""
    commit: Callable[..., Any] = GroupCommit._commit  # pyright: ignore[reportPrivateUsage]
    tracer = Tracer(Strike, 0)

    def interrupted(self: GroupCommit, entries: Any) -> Any:
        tracer.trace(lambda: other.append("within"))
        return commit(self, entries)

    with Memory(InMemoryStore()) as memory:
        thread, other = memory.open("t"), memory.open("other")
        monkeypatch.setattr(GroupCommit, "_commit", interrupted)
        texts: list[str] = []
        while not texts or tracer.struck:
            tracer = Tracer(Strike, len(texts) + 1)
            texts.append(f"{len(texts)}")
            thread.append(texts[-1])
            append_elsewhere(memory, thread, texts[-1])
            texts.append(texts[-1])
        assert [message.content for message in thread.messages()] == texts
        assert len(other) == 0
        assert len(texts) > 50


async def wait_in_line(step: int) -> str:
    """Have two tasks wait for room, one after the other, and strike one; return where."""
    mutex = threading.RLock()
    room = Room(10, mutex)
    with mutex:
        room.take(10)
    tracer = Tracer(MemoryError, step)
    sys.settrace(tracer)
    tasks = [asyncio.create_task(room.await_(10)) for _ in range(2)]
    for _ in range(3):
        await asyncio.sleep(0)
    sys.settrace(None)
    with mutex:
        room.leave(10)
    if not tracer.struck:
        sys.settrace(tracer)
    _, hanging = await asyncio.wait(tasks, timeout=5)
    sys.settrace(None)
    assert not hanging, tracer.struck
    assert [task for task in tasks if task.exception() is None], tracer.struck
    assert not room.full, tracer.struck
    return tracer.struck


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine.*never awaited")
def test_in_line_for_room() -> None:
    """An exception in the wait for room keeps no room, and wakes the next in line (C33)."""
    step = 1
    while asyncio.run(wait_in_line(step)):
        step += 1
    assert step > 100


def test_collected_in_line_for_room() -> None:
    """A waiting task that is collected leaves the mutex to the OS thread that has it (C33)."""
    mutex = threading.RLock()
    room = Room(10, mutex)

    async def collect() -> None:
        waiting = room.await_(10)
        waiting.send(None)
        with mutex:
            waiting.close()

    with mutex:
        room.take(10)
    asyncio.run(collect())
    with mutex:
        room.leave(10)
    assert not room.full


def test_syncs_side_by_side() -> None:
    """An exception while syncs run side by side leaves nothing to wait for in vain (C33)."""
    syncs = SyncThreads()
    tracer = Tracer(MemoryError, 1)
    while True:
        tracer.trace(lambda: syncs.run([lambda: None] * 4))
        if not tracer.struck:
            break
        abandoning = threading.Thread(target=syncs.abandon, daemon=True)
        abandoning.start()
        abandoning.join(5)
        assert not abandoning.is_alive(), tracer.struck
        tracer = Tracer(MemoryError, tracer.step + 1)
    syncs.close()
