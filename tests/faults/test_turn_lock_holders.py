"""The turn lock across processes: others hold it, die with it, stand still with it, fork (C26)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from lockers import locker
from machine import in_child
from systems import Gate, Together, Watched
from writers import each_in_order, go, line, lines_on_disk, rest

from turnlog import LockTimeout, Memory, MemoryThread
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    # Python warns of a fork while other threads run: that is what some of these tests are about.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.timeout(60),
]
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def is_free(root: Path, id: str = "t") -> bool:
    """Tell whether a process of its own could take the lock at once."""
    with Memory(root) as memory:
        try:
            with memory.open(id).turn_lock(timeout=0):
                return True
        except LockTimeout:
            return False


class Waiting:
    """An OS thread of this process that waits for the lock behind another process."""

    def __init__(self, root: Path) -> None:
        """Wait; `tried` is set when the lock was tried for in vain at least once."""
        self.tried = threading.Event()
        self.had = threading.Event()
        tries: list[str] = []

        def before(call: str, _: object) -> None:
            if call == "try_lock":
                tries.append(call)
                if len(tries) == 2:
                    self.tried.set()

        self.memory = Memory(JsonlStore(root, system=Watched(before)))
        mem = self.memory.open("t")
        tries.clear()

        def work() -> None:
            with mem.turn_lock():
                self.had.set()

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()
        assert self.tried.wait(60)
        assert not self.had.is_set()

    def join(self) -> None:
        """Wait until the lock was had and let go of."""
        assert self.had.wait(60)
        self.thread.join()
        self.memory.close()


def test_processes_take_turns(root: Path) -> None:
    """Runs of several processes under the lock are each contiguous, and none is lost (A06)."""
    with ExitStack() as stack:
        runners = [
            stack.enter_context(locker("runs", root, "t", str(number), 15)) for number in range(3)
        ]
        assert [line(runner) for runner in runners] == ["ready"] * 3
        for runner in runners:
            go(runner)
        with Memory(root) as memory:
            mem = memory.open("t")
            for number in range(15):
                with mem.turn_lock():
                    seen = len(mem.refresh())
                    mem.append(f"here {2 * number}", expect=seen)
                    mem.append(f"here {2 * number + 1}", expect=seen + 1)
        assert [rest(runner) for runner in runners] == [["done"]] * 3
    turns = lines_on_disk(root)
    assert each_in_order(turns) == dict.fromkeys(["0", "1", "2", "here"], 30)
    pairs = [{turn.split()[0] for turn in turns[at : at + 2]} for at in range(0, len(turns), 2)]
    assert all(len(pair) == 1 for pair in pairs)


def test_a_holder_keeps_others_out_and_appends_go_on(root: Path) -> None:
    """While another process holds it, nobody has it here, and appends go on; then it is free."""
    with locker("hold", root, "t") as holder, Memory(root) as memory:
        assert line(holder) == "ready"
        mem = memory.open("t").append("first")
        assert not is_free(root)
        assert is_free(root, "u")
        with mem.memory.open("u").turn_lock(timeout=0):
            mem.append("second")
        waiting = Waiting(root)
        assert not waiting.had.is_set()
        go(holder)
        assert line(holder) == "done"
        waiting.join()
        assert is_free(root)
    assert lines_on_disk(root) == ["first", "second"]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_holder_lets_go(root: Path, stopped: bool) -> None:  # noqa: FBT001
    """The lock of a process that was killed, stopped or not, is free for those who wait (C26)."""
    with locker("hold", root, "t") as holder:
        assert line(holder) == "ready"
        waiting = Waiting(root)
        with locker("take", root, "t", 60) as taker:
            assert line(taker) == "waiting"
            if stopped:
                holder.send_signal(signal.SIGSTOP)
            holder.kill()
            holder.wait()
            assert rest(taker) == ["had it"]
        waiting.join()
    assert is_free(root)


def test_a_holder_that_just_ends(root: Path) -> None:
    """A process that ends with the lock held, without leaving it, lets go of it."""
    with locker("hold_and_exit", root, "t") as holder:
        assert line(holder) == "ready"
        assert holder.wait() == 0
        assert is_free(root)


def test_a_stopped_holder(root: Path) -> None:
    """Behind a stopped process a wait is bounded, in threads, tasks and processes (C26)."""
    with locker("hold", root, "t") as holder, Memory(root) as memory:
        assert line(holder) == "ready"
        holder.send_signal(signal.SIGSTOP)
        mem = memory.open("t")
        with pytest.raises(LockTimeout, match="thread 't' in namespace 'default'"):
            mem.turn_lock(timeout=0.1).__enter__()

        async def main() -> None:
            async def task() -> None:
                async with mem.turn_lock(timeout=0.1):
                    pytest.fail("it is not free")

            errors = await asyncio.gather(*(task() for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in errors] == [LockTimeout] * 3

        asyncio.run(main())
        with locker("take", root, "t", 0.1) as taker:
            assert line(taker) == "waiting"
            assert "its turn lock was not free within 0.1 s" in line(taker)
        mem.append("not held up")
        holder.send_signal(signal.SIGCONT)
        go(holder)
        assert line(holder) == "done"
        with mem.turn_lock(timeout=60):
            pass


def test_a_thread_that_is_deleted_under_the_lock(root: Path) -> None:
    """A lock that another process holds stays its own when the thread is deleted and made anew."""
    with locker("hold", root, "t") as holder, Memory(root) as memory:
        assert line(holder) == "ready"
        memory.open("t").append("old")
        assert memory.delete("t")
        assert not memory.delete("t")
        memory.open("t").append("new")
        assert not is_free(root)
        go(holder)
        assert line(holder) == "done"
        assert is_free(root)
        assert memory.delete("t")
        assert list((root / "default").iterdir()) == []


@pytest.mark.parametrize("made_anew", [False, True])
def test_deleted_between_opening_the_lock_file_and_locking_it(
    root: Path,
    made_anew: bool,  # noqa: FBT001
) -> None:
    """Who locks a lock file that was removed meanwhile has nothing; the new one's holder has it."""
    befores, gate = Together(), Gate("try_lock")
    store = JsonlStore(root, system=Watched(befores))
    with Memory(root) as other, ThreadPoolExecutor(1) as pool:
        mem = other.open("t").append("old")
        with mem.turn_lock():
            pass
        befores.befores.append(gate)
        trying = pool.submit(store.try_turn_lock, mem.key)
        assert gate.reached.wait(60)
        other.delete("t")
        with ExitStack() as stack:
            if made_anew:
                stack.enter_context(other.open("t").append("new").turn_lock())
            gate.opened.set()
            assert trying.result(60) is None
        release = store.try_turn_lock(mem.key)
        assert release is not None
        release()
    store.close()


# ---- forks ----


@forks
@pytest.mark.parametrize("place", ["files", "in memory"])
def test_a_child_does_not_hold_its_parents_lock(root: Path, place: str) -> None:
    """A child forked under the lock neither has it nor frees it, whatever it does (C28)."""
    store = JsonlStore(root) if place == "files" else InMemoryStore()
    memory = Memory(store)
    mem = memory.open("t").append("x")
    lock = mem.turn_lock()
    with lock:

        def child() -> bool:
            free = is_free(root) if place == "files" else True
            lock.__exit__(None, None, None)  # as where it raises and unwinds
            return free

        assert in_child(child) == (place != "files")
        for each in (memory, Memory(store)):
            with pytest.raises(LockTimeout), each.open("t").turn_lock(timeout=0):
                pytest.fail("it is the parent's")

        def tries() -> str:
            try:
                with mem.turn_lock(timeout=0):
                    return "had it"
            except LockTimeout:
                return "too late"

        # A store in memory is a copy in the child: nobody of it holds anything there.
        assert in_child(tries) == ("too late" if place == "files" else "had it")
        with pytest.raises(LockTimeout), mem.turn_lock(timeout=0):
            pytest.fail("it is held")
    with mem.turn_lock(timeout=0):
        pass


@forks
def test_a_child_waits_for_its_parent(root: Path) -> None:
    """A child that was forked under the lock has it when its parent lets go (C28)."""
    mem = Memory(root).open("t").append("x")
    lock = mem.turn_lock()
    lock.__enter__()
    reading, writing = os.pipe()

    def leaves() -> None:
        os.read(reading, 1)
        lock.__exit__(None, None, None)

    def child() -> int:
        os.write(writing, b"x")
        with mem.turn_lock(timeout=50):
            return len(mem.append("child's"))

    leaving = threading.Thread(target=leaves)
    leaving.start()
    assert in_child(child) == 2
    leaving.join()
    os.close(reading)
    os.close(writing)
    assert is_free(root)


@forks
def test_fork_while_others_wait(root: Path) -> None:
    """A child forked while threads wait for the lock has a queue of its own (C28)."""
    mem = Memory(root).open("t").append("x")
    with locker("hold", root, "t") as holder:
        assert line(holder) == "ready"
        waiting = [threading.Thread(target=took, args=(mem,)) for _ in range(3)]
        for each in waiting:
            each.start()
        while len(mem._turn_queue._waiting) < 2:  # pyright: ignore[reportPrivateUsage]
            pass

        def child() -> str:
            try:
                with mem.turn_lock(timeout=0.05):
                    return "had it"
            except LockTimeout:
                go(holder)
            with mem.turn_lock(timeout=50):
                return "had it later"

        assert in_child(child) == "had it later"
        for each in waiting:
            each.join()
    assert is_free(root)


def took(mem: MemoryThread) -> None:
    """Take the lock, and let go of it."""
    with mem.turn_lock():
        pass


@forks
def test_a_parent_that_lets_go_with_a_child_about(root: Path) -> None:
    """A lock that its holder lets go of is free, though a child forked under it lives (C28)."""
    with locker("hold_and_fork", root, "t") as holder:
        assert {line(holder), line(holder)} == {"forked", "ready"}
        assert not is_free(root)
        go(holder)
        assert line(holder) == "done"
        assert is_free(root)


@forks
def test_a_child_of_a_killed_holder(root: Path) -> None:
    """A child does not keep the lock of a parent that was killed with it (C26, C28)."""
    with locker("hold_and_fork", root, "t") as holder:
        assert {line(holder), line(holder)} == {"forked", "ready"}
        holder.kill()
        holder.wait()
        assert is_free(root)  # the child lives until its standard input ends


def test_a_program_that_was_started_under_the_lock(root: Path) -> None:
    """Another program that a holder started does not keep the lock when the holder is killed."""
    with locker("hold_and_spawn", root, "t") as holder:
        assert {line(holder), line(holder)} == {"forked", "ready"}
        assert not is_free(root)
        holder.kill()
        holder.wait()
        assert is_free(root)


def test_no_descriptor_is_left(root: Path, open_files: Callable[[], list[str]]) -> None:
    """Taking, failing to take and letting go leave no file open."""
    with locker("hold", root, "held") as holder, Memory(root) as memory:
        assert line(holder) == "ready"
        mem = memory.open("t")
        for _ in range(10):
            with mem.turn_lock():
                pass
            with pytest.raises(LockTimeout), memory.open("held").turn_lock(timeout=0):
                pytest.fail("it is held")
        assert open_files() == []
