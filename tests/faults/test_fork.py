"""Contract 8: a forked child opens files and locks of its own; handles do not cross (C28)."""

from __future__ import annotations

import asyncio
import copy
import fcntl
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from machine import in_child
from systems import Gate, Together, Watched
from writers import HOLDS, contents, each_in_order, go, line, lines_on_disk, rest, running

from turnlog import Memory, MemoryThread
from turnlog.interrupts import DeferredSignals
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    # Python warns of a fork while other threads run: that is what these tests are about.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.timeout(60),
]


def busy(
    root: Path, call: str, befores: Together | None = None
) -> tuple[MemoryThread, threading.Thread, Gate]:
    """Give a thread in the middle of an append by another OS thread, which stands at a call."""
    befores, gate = befores or Together(), Gate(call)
    memory = Memory(JsonlStore(root, system=Watched(befores)))
    thread = memory.open("t").append("first")
    befores.befores.append(gate)
    appending = threading.Thread(target=thread.append, args=("parent's",))
    appending.start()
    assert gate.reached.wait(60)
    befores.befores.remove(gate)  # it stands there; the child must not
    return thread, appending, gate


@pytest.mark.parametrize("call", ["try_lock", "write", "sync", "unlock"])
def test_fork_in_the_middle_of_an_append(root: Path, call: str) -> None:
    """A child forked while another thread appends works, and so does its parent (C28)."""
    thread, appending, gate = busy(root, call)

    def child() -> list[str]:
        other = thread.memory.open("u")
        other.append("child's")
        asyncio.run(append(other))
        return [m.content for m in other.messages()]

    async def append(other: MemoryThread) -> None:
        await other.aappend("child's, too")

    assert in_child(child) == ["child's", "child's, too"]
    gate.opened.set()
    appending.join()
    thread.append("last")
    assert lines_on_disk(root) == ["first", "parent's", "last"]
    assert contents(root, "u") == ["child's", "child's, too"]


@pytest.mark.parametrize("call", ["write", "sync"])
def test_child_appends_to_the_same_thread(root: Path, call: str) -> None:
    """A child's append to the thread that its parent appends to waits for it, and both are there.

    The child must not take its parent's lock for its own: it is the same open file otherwise.
    """
    befores = Together()
    thread, appending, gate = busy(root, call, befores)
    reading, writing = os.pipe()

    def child() -> list[str]:
        befores.befores.append(Tells(writing))
        thread.append("child's")
        return [m.content for m in thread.messages()]

    def opens() -> None:
        os.read(reading, 1)  # the child has found the lock taken, or has taken it
        gate.opened.set()

    opening = threading.Thread(target=opens)
    opening.start()
    assert in_child(child) == ["first", "parent's", "child's"]
    opening.join()
    appending.join()
    os.close(reading)
    os.close(writing)
    thread.append("last")
    assert [m.content for m in thread.messages()] == ["first", "parent's", "child's", "last"]
    assert lines_on_disk(root) == ["first", "parent's", "child's", "last"]


class Tells:
    """Writes to a pipe, once, after the first try to lock."""

    def __init__(self, pipe: int) -> None:
        """Wait for the call that comes after that try."""
        self.pipe = pipe
        self.tried = 0

    def __call__(self, call: str, _: tuple[Any, ...]) -> None:
        """Tell, where it is time to."""
        if self.tried and self.pipe:
            os.write(self.pipe, b"x")
            self.pipe = 0
        self.tried += call == "try_lock"


def test_fork_while_a_thread_is_opened(root: Path) -> None:
    """A lock that was held at the fork is free when its holder lets go, though the child lives."""
    with Memory(root) as memory:
        memory.open("t").append("first")
    gate = Gate("read")
    opening = threading.Thread(target=Memory(JsonlStore(root, system=Watched(gate))).open, args="t")
    opening.start()
    assert gate.reached.wait(60)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # it lives until the parent is done
        os._exit(0)
    try:
        gate.opened.set()
        opening.join()
        with Memory(root, lock_timeout=1) as memory:
            memory.open("t").append("second")
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)
    assert lines_on_disk(root) == ["first", "second"]


def test_no_descriptor_is_shared(root: Path, open_files: Callable[[], list[str]]) -> None:
    """A child has no file of its parent's memory open, and goes on with its own (Contract 8)."""
    with Memory(root) as memory:
        threads = [memory.open(str(i)).append("first") for i in range(5)]
        assert len(open_files()) == 5
        assert in_child(open_files) == []

        def child() -> int:
            for thread in threads:
                thread.append("child's")
            return sum(str(root) in path for path in open_files())

        assert in_child(child) == 5
        for thread in threads:
            assert [m.content for m in thread.append("last").messages()] == [
                *("first", "child's", "last")
            ]


def test_many_children(root: Path) -> None:
    """Children and their parent append to one thread at once; nothing is lost (Contract 3, 8)."""
    thread = Memory(root).open("t").append("parent 0")
    reading, writing = os.pipe()
    children: list[int] = []
    for name in range(4):
        child = os.fork()
        if child == 0:
            try:
                os.close(writing)
                os.read(reading, 1)  # all begin when the parent closes its end
                for i in range(20):
                    thread.append(f"{name} {i}")
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    os.close(writing)
    os.close(reading)
    for i in range(1, 20):
        thread.append(f"parent {i}")
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert each_in_order(lines_on_disk(root)) == dict.fromkeys(["0", "1", "2", "3", "parent"], 20)


def work(thread: MemoryThread, pipe: Connection) -> None:
    """Append in a process that multiprocessing forked."""
    try:
        thread.append("child's")
        pipe.send([m.content for m in thread.messages()])
    except BaseException as error:  # noqa: BLE001 - the parent is told
        pipe.send(repr(error))


def test_multiprocessing(root: Path) -> None:
    """A handle that a forked worker of multiprocessing inherits works there (C28)."""
    thread, appending, gate = busy(root, "sync")
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(thread, there))
    process.start()
    gate.opened.set()
    appending.join()
    assert here.poll(60)
    assert here.recv() == ["first", "parent's", "child's"]
    process.join()
    for pipe in (here, there):
        pipe.close()
    process.close()
    assert lines_on_disk(root) == ["first", "parent's", "child's"]


def test_fork_with_tasks(root: Path) -> None:
    """A child forked by a parent whose tasks are appending does not wait for their committer."""
    befores, gate = Together(), Gate("sync")
    memory = Memory(JsonlStore(root, system=Watched(befores)))

    async def main() -> list[str]:
        thread = await memory.aopen("t")
        await thread.aappend("first")
        befores.befores = [gate]
        tasks = [asyncio.ensure_future(thread.aappend(str(i))) for i in range(5)]
        await asyncio.to_thread(gate.reached.wait)
        befores.befores = []

        def child() -> list[str]:
            other = memory.open("u").append("child's")
            return [m.content for m in other.messages()]

        found = in_child(child)
        gate.opened.set()
        await asyncio.gather(*tasks)
        return found

    assert asyncio.run(main()) == ["child's"]
    assert lines_on_disk(root) == ["first", *map(str, range(5))]


@pytest.mark.parametrize("act", HOLDS)
def test_child_of_a_killed_parent(root: Path, act: str) -> None:
    """A child does not keep the lock of a parent that was killed in whatever it did (C26, C28)."""
    with Memory(root) as memory:
        memory.open("t").append("first")
    with running("hold_and_fork", root, "t", act) as holder, Memory(root) as memory:
        assert {line(holder), line(holder)} == {"forked", "ready"}
        holder.kill()
        holder.wait()
        memory.open("t").append("second")  # the child lives until its standard input ends
    assert lines_on_disk(root) == ["first", *["held 0"] * (act == "append"), "second"]


@pytest.mark.parametrize("read_only", [False, True])
def test_child_opens_by_name(root: Path, read_only: bool) -> None:  # noqa: FBT001
    """A child that opens by name has what its parent had on disk, by handles of its own."""
    with Memory(root) as memory:
        memory.open("t").append("first")

        def child() -> list[str]:
            with Memory(root, read_only=read_only) as own:
                return [m.content for m in own.open("t").messages()]

        assert in_child(child) == ["first"]


@pytest.mark.parametrize("crossing", [pickle.dumps, copy.copy, copy.deepcopy])
def test_handles_do_not_pickle(root: Path, crossing: Callable[[MemoryThread], object]) -> None:
    """A handle cannot be pickled or copied, and the error says to open it by name (Contract 8)."""
    with Memory(root) as memory:
        thread = memory.open("t", namespace="support").append("first")
        with pytest.raises(TypeError, match=r"open it by its name.*'t', namespace='support'"):
            crossing(thread)
        thread.append("second")
    assert not root.joinpath("default").exists()


def test_spawned_process(root: Path) -> None:
    """A program of its own that opens the name has the turns: that is how handles cross."""
    with Memory(root) as memory:
        thread = memory.open("t").append("parent 0")
        with running("append", root, "t", "child", 3, 0) as process:
            assert line(process) == "ready"
            go(process)
            rest(process)
            assert process.wait() == 0
        thread.append("parent 1")
        assert each_in_order(m.content for m in thread.messages()) == {"parent": 2, "child": 3}


def ignore(*_: object) -> None:
    """Handle a signal, and do nothing."""


def raise_interrupt(*_: object) -> None:
    """Raise, as the handler of Ctrl-C does."""
    raise KeyboardInterrupt


class Signalled(InMemoryStore):
    """A store that a signal reaches in a forked child."""

    forked = False

    def after_fork(self) -> None:
        """Send the signal first."""
        os.kill(os.getpid(), signal.SIGUSR1)
        super().after_fork()
        self.forked = True


def test_handlers_in_a_child(request: pytest.FixtureRequest) -> None:
    """A child forked while handlers wait, one deferral within another, has its own (C28)."""
    before = signal.signal(signal.SIGUSR1, ignore)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))
    with DeferredSignals(), DeferredSignals():
        assert in_child(lambda: signal.getsignal(signal.SIGUSR1) is ignore)


def test_a_signal_right_after_a_fork(request: pytest.FixtureRequest) -> None:
    """What a handler raises in a child that was just forked lets every memory start afresh."""
    before = signal.signal(signal.SIGUSR1, raise_interrupt)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))
    stores = [Signalled(), Signalled()]
    memories = [Memory(store) for store in stores]
    assert in_child(lambda: [store.forked for store in stores]) == [True, True]
    assert len(memories) == 2


def test_a_handler_that_forks_while_a_thread_is_opened(
    root: Path, request: pytest.FixtureRequest
) -> None:
    """A child that a handler forks in an opening that waits for a lock may leave (C28)."""
    Memory(root).open("t").append("first")
    parent, children = os.getpid(), list[int]()
    holder = (root / "default" / "t.jsonl").open()
    fcntl.flock(holder, fcntl.LOCK_EX)

    def fork(*_: object) -> None:
        child = os.fork()
        if not child:
            sys.exit(7)
        children.append(child)
        holder.close()

    before = signal.signal(signal.SIGALRM, fork)
    request.addfinalizer(lambda: signal.signal(signal.SIGALRM, before))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        Memory(root).open("t")
    except BaseException as raised:
        if os.getpid() == parent:
            raise
        os._exit(7 if isinstance(raised, SystemExit) else 1)
    (child,) = children
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
