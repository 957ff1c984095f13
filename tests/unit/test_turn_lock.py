"""The turn lock in one process: one after another, over tasks, threads and memories (A06)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from turnlog import (
    Capability,
    CapabilityDenied,
    Closed,
    LockTimeout,
    Memory,
    MemoryThread,
    NotWritten,
    ReadOnly,
    StoreError,
    sandbox,
    turnlock,
)
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from turnlog.names import ThreadKey

PATIENCE = 60.0  # a watchdog, in seconds


class Gated(JsonlStore):
    """A store whose tries for a turn lock can be held, before the try or behind it."""

    def __init__(self, root: Path, *, behind: bool = False) -> None:
        """Hold nothing yet."""
        super().__init__(root)
        self.behind = behind
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.opened.set()

    def hold(self) -> None:
        """Hold the tries from now on."""
        self.reached.clear()
        self.opened.clear()

    def try_turn_lock(self, key: ThreadKey) -> Callable[[], None] | None:
        """Try, and wait for the gate."""
        release = super().try_turn_lock(key) if self.behind else None
        self.reached.set()
        assert self.opened.wait(PATIENCE)
        return release if self.behind else super().try_turn_lock(key)


def until(condition: Callable[[], object]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.0005)


def queued(mem: MemoryThread) -> int:
    """Say how many wait in the process; white box, since nothing tells of a waiter."""
    waiting = list(mem._turn_queue._waiting)  # pyright: ignore[reportPrivateUsage]
    return sum(not place.cancelled() for place in waiting)


def is_free(mem: MemoryThread) -> bool:
    """Tell whether anyone could take the turn lock, here and in another process."""
    for memory in (mem.memory, Memory(mem.memory.store)):  # pyright: ignore[reportArgumentType]
        try:
            with memory.open(mem.id).turn_lock(timeout=0):
                pass
        except LockTimeout:
            return False
    return True


@pytest.fixture(params=["files", "in memory"])
def mem(root: Path, request: pytest.FixtureRequest) -> Iterator[MemoryThread]:
    """Give a thread, over files and in memory; at the end its turn lock must be free."""
    with Memory(root if request.param == "files" else InMemoryStore()) as memory:
        mem = memory.open("t").append("first")
        yield mem
        assert is_free(mem)


@contextmanager
def holding(mem: MemoryThread) -> Generator[Callable[[], None]]:
    """Hold the turn lock in another OS thread; give what ends it."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with mem.turn_lock():
            held.set()
            assert done.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(PATIENCE)

        def end() -> None:
            done.set()
            holder.join()

        yield end
    finally:
        done.set()
        holder.join()


# ---- one after another ----


def test_it_is_free_before_and_after(mem: MemoryThread) -> None:
    """Who finds it free has it at once, again and again, with one lock or several."""
    lock = mem.turn_lock()
    for _ in range(3):
        with lock:
            assert not is_free(mem)
        assert is_free(mem)
        with mem.turn_lock(timeout=5):
            assert not is_free(mem)
        assert is_free(mem)


def test_threads_come_in_the_order_of_their_coming(mem: MemoryThread) -> None:
    """OS threads that wait have it in the order in which they came, one at a time."""
    order: list[int] = []
    inside: list[int] = []

    def work(number: int) -> None:
        with mem.turn_lock():
            inside.append(number)
            assert len(inside) == 1
            order.append(number)
            inside.remove(number)

    with ThreadPoolExecutor(20) as pool:
        with mem.turn_lock():
            works: list[Any] = []
            for number in range(20):
                works.append(pool.submit(work, number))
                until(lambda number=number: queued(mem) == number + 1)
            assert order == []
        for each in works:
            each.result(PATIENCE)
    assert order == list(range(20))


def test_tasks_and_threads_wait_in_one_queue(mem: MemoryThread) -> None:
    """Tasks and OS threads have it by turns, in the order in which they came."""
    order: list[str] = []

    def thread() -> None:
        with mem.turn_lock():
            order.append("thread")

    async def task() -> None:
        async with mem.turn_lock():
            order.append("task")

    async def main() -> None:
        works: list[asyncio.Future[None]] = []
        for number in range(6):
            works.append(asyncio.ensure_future(task()))
            await asyncio.sleep(0)
            assert queued(mem) == 2 * number + 1
            works.append(asyncio.get_running_loop().run_in_executor(pool, thread))
            await asyncio.to_thread(until, lambda number=number: queued(mem) == 2 * number + 2)
        end()
        await asyncio.gather(*works)

    with ThreadPoolExecutor(6) as pool, holding(mem) as end:
        asyncio.run(main())
    assert order == ["task", "thread"] * 6


def test_tasks_of_two_loops(mem: MemoryThread) -> None:
    """Tasks of several event loops keep each other out."""
    inside: list[int] = []

    async def work(number: int) -> None:
        for _ in range(10):
            async with mem.turn_lock():
                inside.append(number)
                assert len(inside) == 1
                await asyncio.sleep(0)
                inside.remove(number)

    async def main(first: int) -> None:
        await asyncio.gather(*(work(first + number) for number in range(3)))

    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(asyncio.run, main(10 * loop)) for loop in range(3)]:
            each.result(PATIENCE)


def test_two_memories_keep_each_other_out(root: Path) -> None:
    """Memories over the same files, each with threads and tasks, have it one at a time."""
    inside: list[int] = []

    def work(mem: MemoryThread, number: int) -> None:
        for _ in range(10):
            with mem.turn_lock():
                inside.append(number)
                assert len(inside) == 1
                mem.append(f"{number}")
                inside.remove(number)

    async def tasks(mem: MemoryThread) -> None:
        async def task(number: int) -> None:
            for _ in range(5):
                async with mem.turn_lock():
                    inside.append(number)
                    assert len(inside) == 1
                    await mem.aappend("q")
                    inside.remove(number)

        await asyncio.gather(*(task(100 + number) for number in range(3)))

    with Memory(root) as one, Memory(root) as two, ThreadPoolExecutor(5) as pool:
        mems = [one.open("t"), two.open("t")]
        works = [pool.submit(work, mems[number % 2], number) for number in range(4)]
        works.append(pool.submit(lambda: asyncio.run(tasks(mems[0]))))
        for each in works:
            each.result(PATIENCE)
        assert len(mems[0].refresh()) == len(mems[1].refresh()) == 40 + 15
        assert is_free(mems[0])


def test_runs_do_not_mix(mem: MemoryThread) -> None:
    """Who reads, thinks and answers under the lock finds what he read as he read it (A06)."""

    async def run(number: int) -> None:
        async with mem.turn_lock():
            await mem.arefresh()
            seen = len(mem)
            await mem.aappend(f"question {number}", expect=seen)
            await asyncio.sleep(0)  # as a model takes its time
            await mem.aappend(f"answer {number}", role="assistant", expect=seen + 1)

    async def main() -> None:
        await asyncio.gather(*(run(number) for number in range(20)))

    asyncio.run(main())
    texts = [message.content for message in mem.messages()[1:]]
    assert texts == [f"{what} {n}" for n in range(20) for what in ("question", "answer")]


def test_other_threads_have_locks_of_their_own(mem: MemoryThread) -> None:
    """The lock of one thread is none of another's: both can be held at once."""
    other = mem.memory.open("other")
    elsewhere = mem.memory.open("t", "elsewhere")

    async def main() -> None:
        async with mem.turn_lock(), other.turn_lock(), elsewhere.turn_lock():
            assert not is_free(other)

    asyncio.run(main())
    with mem.turn_lock(), other.turn_lock(timeout=0), elsewhere.turn_lock(timeout=0):
        pass
    assert is_free(other)


def test_appends_go_on(mem: MemoryThread) -> None:
    """While somebody holds it, everyone appends and reads, without it."""
    with holding(mem):
        mem.append("second")
        asyncio.run(mem.aappend("third"))
        assert Memory(mem.memory.store).open("t").append("fourth")  # pyright: ignore[reportArgumentType]
        assert len(mem.refresh()) == 4
        assert not is_free(mem)


def test_one_lock_object_in_several_tasks(mem: MemoryThread) -> None:
    """One object may be entered by several tasks, as asyncio's own lock may."""
    lock = mem.turn_lock()
    inside: list[int] = []

    async def work(number: int) -> None:
        async with lock:
            inside.append(number)
            await asyncio.sleep(0)
            assert inside.pop() == number

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(10)))

    asyncio.run(main())


def test_it_needs_no_turns(root: Path) -> None:
    """A thread without a turn, in a memory without a folder, has a lock, and stays without."""
    with Memory(root) as memory:
        mem = memory.open("t", "n")
        with mem.turn_lock():
            assert list(memory.threads()) == []
            mem.append("under the lock")
        assert [info.id for info in memory.threads()] == ["t"]


# ---- how long it waits ----


def test_a_timeout_is_a_lock_timeout(mem: MemoryThread) -> None:
    """After `timeout` seconds comes a LockTimeout that names the thread; nobody else is harmed."""
    with holding(mem) as end:
        for timeout in (0, 0.01, -1.0):
            begun = time.monotonic()
            with pytest.raises(LockTimeout) as told, mem.turn_lock(timeout=timeout):
                pytest.fail("it is not free")
            assert time.monotonic() - begun >= timeout
            assert str(told.value) == (
                f"thread 't' in namespace 'default': its turn lock was not free within "
                f"{timeout:g} s; try again later, or give turn_lock a longer timeout"
            )
        assert isinstance(told.value, NotWritten)
        assert isinstance(told.value, TimeoutError)

        async def main() -> None:
            for timeout in (0, 0.01):
                with pytest.raises(LockTimeout):
                    async with mem.turn_lock(timeout=timeout):
                        pytest.fail("it is not free")

        asyncio.run(main())
        end()
        assert is_free(mem)


def test_a_timeout_behind_another_memory(root: Path) -> None:
    """Behind the lock of another memory too a wait is bounded, and goes on when it is free."""
    with Memory(root) as one, Memory(root) as two:
        mine, theirs = one.open("t"), two.open("t")

        async def main() -> None:
            with pytest.raises(LockTimeout):
                async with mine.turn_lock(timeout=0.01):
                    pytest.fail("it is not free")

        with holding(theirs):
            with pytest.raises(LockTimeout), mine.turn_lock(timeout=0.01):
                pytest.fail("it is not free")
            asyncio.run(main())
        assert is_free(mine)


def test_a_timeout_of_nothing_takes_a_free_lock(mem: MemoryThread) -> None:
    """With timeout=0 a lock that is free is taken."""
    with mem.turn_lock(timeout=0):
        assert not is_free(mem)


def test_a_timeout_of_nothing_takes_a_free_lock_in_a_task(mem: MemoryThread) -> None:
    """With timeout=0 a lock that is free is taken, in a task as well."""

    async def main() -> None:
        async with mem.turn_lock(timeout=0):
            assert not is_free(mem)

    asyncio.run(main())


def test_who_gave_up_is_passed_over(mem: MemoryThread) -> None:
    """Of those who wait, one that ran out of time is left out, and the next one has his turn."""
    order: list[int] = []

    def work(number: int) -> None:
        with mem.turn_lock():
            order.append(number)

    with ThreadPoolExecutor(2) as pool:
        with mem.turn_lock():
            first = pool.submit(work, 1)
            until(lambda: queued(mem) == 1)
            with pytest.raises(LockTimeout), mem.turn_lock(timeout=0.01):
                pytest.fail("it is not free")
            second = pool.submit(work, 2)
            until(lambda: queued(mem) == 2)
        first.result(PATIENCE)
        second.result(PATIENCE)
    assert order == [1, 2]


def naps_between(mem: MemoryThread, monkeypatch: pytest.MonkeyPatch, *, tasks: bool) -> list[float]:
    """Have five take the lock, one behind the other; give how long each of them left it alone."""
    naps: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=naps.append)
    sleep, this = asyncio.sleep, threading.current_thread()

    def work() -> None:
        with mem.turn_lock():
            pass

    async def task() -> None:
        async with mem.turn_lock():
            pass

    async def nap(seconds: float) -> None:
        if threading.current_thread() is this:  # not a loop that another test has left running
            naps.append(seconds)
        await sleep(0)

    async def main() -> None:
        with holding(mem) as end:
            works = [asyncio.ensure_future(task()) for _ in range(5)]
            while queued(mem) < 5:
                await sleep(0)
            monkeypatch.setattr(asyncio, "sleep", nap)
            end()
            await asyncio.gather(*works)

    if tasks:
        asyncio.run(main())
        return naps
    with ThreadPoolExecutor(5) as pool:
        with holding(mem) as end:
            works = [pool.submit(work) for _ in range(5)]
            until(lambda: queued(mem) == 5)
            monkeypatch.setattr(turnlock, "time", clock)
            end()
        for each in works:
            each.result(PATIENCE)
    return naps


@pytest.mark.parametrize("tasks", [False, True])
def test_a_queue_leaves_a_gap_after_its_streak(
    mem: MemoryThread,
    monkeypatch: pytest.MonkeyPatch,
    tasks: bool,  # noqa: FBT001 - a case
) -> None:
    """In a streak one comes at once behind the other; when it was long enough, there is a gap."""
    with monkeypatch.context() as patched:
        patched.setattr(turnlock, "_LONGEST_STREAK", 1e9, raising=False)
        assert naps_between(mem, patched, tasks=tasks) == []
    with monkeypatch.context() as patched:
        patched.setattr(turnlock, "_LONGEST_STREAK", 0, raising=False)
        naps = naps_between(mem, patched, tasks=tasks)
    assert len(naps) == 5
    assert min(naps) > 0


def test_a_queue_that_never_ends_lets_another_memory_in(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While three always want the lock in one memory, another memory gets it too."""
    monkeypatch.setattr(turnlock, "_LONGEST_STREAK", 0)
    had, begun = threading.Event(), threading.Event()
    with Memory(root) as memory, Memory(root) as other, ThreadPoolExecutor(3) as pool:
        mem = memory.open("t")

        def again_and_again() -> None:
            while not had.is_set():
                with mem.turn_lock():
                    begun.set()

        works = [pool.submit(again_and_again) for _ in range(3)]
        try:
            assert begun.wait(PATIENCE)
            with other.open("t").turn_lock(timeout=PATIENCE):
                pass
        finally:
            had.set()
        for each in works:
            each.result(PATIENCE)


# ---- who may ----


def test_a_reader_has_no_turn_lock(root: Path) -> None:
    """A read-only memory gives none: ReadOnly, and nothing is made."""
    with Memory(root) as memory:
        memory.open("t").append("x")
    with Memory(root, read_only=True) as memory, pytest.raises(ReadOnly, match="thread 't'"):
        memory.open("t").turn_lock()
    assert [path.name for path in root.joinpath("default").iterdir()] == ["t.jsonl"]


def test_a_sandbox_denies_it(mem: MemoryThread) -> None:
    """Without FS_WRITE there is none."""
    with (
        sandbox(deny=Capability.FS_WRITE),
        pytest.raises(CapabilityDenied, match="memory/turn-lock requires 'fs-write'"),
    ):
        mem.turn_lock()


def test_a_deleted_thread_has_none(root: Path) -> None:
    """The handle of a deleted thread gives no lock any more; the thread made anew has one."""
    with Memory(root) as memory:
        mem = memory.open("t").append("x")
        memory.delete(mem)
        with pytest.raises(Closed, match="it was deleted"):
            mem.turn_lock()
        again = memory.open("t")
        with again.turn_lock(timeout=5):
            again.append("y")


def test_deleting_removes_the_lock_file(root: Path) -> None:
    """Of a deleted thread no lock file is left, unless somebody holds it: nobody else may enter."""
    with Memory(root) as memory:
        mem = memory.open("t").append("x")
        with mem.turn_lock():
            pass
        assert memory.delete("t")
        assert list(root.joinpath("default").iterdir()) == []
        mem = memory.open("t").append("x")
        with mem.turn_lock():
            assert memory.delete("t")
            again = memory.open("t")
            assert not is_free(again)
        assert is_free(again)
        assert not memory.delete("t")
        assert list(root.joinpath("default").iterdir()) == []


def test_deleting_removes_the_lock_file_of_a_thread_without_turns(root: Path) -> None:
    """Where a thread had a lock but never a turn, deleting leaves nothing behind either."""
    with Memory(root) as memory:
        with memory.open("t").turn_lock():
            pass
        memory.delete("t")
        assert list(root.joinpath("default").iterdir()) == []


def test_the_lock_file_is_no_thread(root: Path) -> None:
    """The lock file is empty, for its owner alone, and listed by nobody."""
    with Memory(root) as memory:
        mem = memory.open("t").append("x")
        with mem.turn_lock():
            file = root / "default" / "t.jsonl.lock"
            assert (file.stat().st_size, file.stat().st_mode & 0o777) == (0, 0o600)
            assert [info.id for info in memory.threads()] == ["t"]


@pytest.mark.parametrize("what", ["folder", "link"])
def test_what_stands_in_the_lock_files_place(root: Path, what: str) -> None:
    """Where something else has the lock file's name, entering is a StoreError; nobody hangs."""
    with Memory(root) as memory:
        mem = memory.open("t").append("x")
        file = root / "default" / "t.jsonl.lock"
        file.mkdir() if what == "folder" else file.symlink_to(root / "elsewhere")
        for _ in range(2):
            with pytest.raises(StoreError, match="thread 't' in namespace"), mem.turn_lock():
                pytest.fail("it cannot be had")
        assert not root.joinpath("elsewhere").exists()
        file.rmdir() if what == "folder" else file.unlink()
        assert is_free(mem)


def test_a_closed_memory_lets_go(root: Path) -> None:
    """A lock that is held while its memory is closed is let go of all the same."""
    memory = Memory(root)
    mem = memory.open("t").append("x")
    with mem.turn_lock():
        memory.close()
    with Memory(root) as other:
        assert is_free(other.open("t"))


# ---- errors inside, and of the store ----


def test_an_error_inside_lets_go(mem: MemoryThread) -> None:
    """Whatever is raised inside of the lock goes on, and the lock is free."""
    for error in (LookupError, KeyboardInterrupt, GeneratorExit):
        with pytest.raises(error), mem.turn_lock():
            raise error
        assert is_free(mem)

    async def main() -> None:
        async with mem.turn_lock():
            raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(main())


class FailingLocks(System):
    """A system that has no more locks for a lock file, while `fails`."""

    fails = False

    def try_lock(self, fd: int, *, shared: bool) -> bool:
        """Lock, or fail."""
        if self.fails:
            raise OSError(37, os.strerror(37))
        return super().try_lock(fd, shared=shared)


def test_an_error_of_the_store_lets_the_next_one_try(
    root: Path, open_files: Callable[[], list[str]]
) -> None:
    """Where the system refuses the lock, each who waits gets a StoreError; then it goes on."""
    system = FailingLocks()
    with Memory(JsonlStore(root, system=system)) as memory:
        mem = memory.open("t").append("x")
        system.fails = True
        opened = open_files()

        async def main() -> list[Any]:
            async def task() -> None:
                async with mem.turn_lock():
                    pytest.fail("it cannot be had")

            return await asyncio.gather(*(task() for _ in range(3)), return_exceptions=True)

        assert [type(error) for error in asyncio.run(main())] == [StoreError] * 3
        with pytest.raises(StoreError), mem.turn_lock():
            pytest.fail("it cannot be had")
        assert open_files() == opened
        system.fails = False
        assert is_free(mem)


# ---- off the loop, and cancelled ----


@pytest.mark.usefixtures("no_blocking")
def test_the_loop_is_never_blocked(root: Path) -> None:
    """Waiting, holding, letting go and giving up make no call that blocks in the loop (A07)."""

    async def main() -> None:
        mem = await memory.aopen("t")
        theirs = await other.aopen("t")

        async def run(mem: MemoryThread, *, patience: float | None = None) -> None:
            async with mem.turn_lock(patience):
                await mem.aappend("x")

        await asyncio.gather(*(run(each) for each in (mem, theirs) * 5))
        async with mem.turn_lock():
            waiting = [asyncio.ensure_future(run(each)) for each in (mem, theirs, mem, theirs)]
            for each in (mem, theirs):
                with pytest.raises(LockTimeout):
                    await run(each, patience=0.01)
            waiting[0].cancel()
            waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(await mem.arefresh()) == 12
        with pytest.raises(LookupError):
            async with mem.turn_lock():
                raise LookupError

    memory, other = Memory(root), Memory(root)
    asyncio.run(main())


def test_cancelled_while_it_waits(mem: MemoryThread) -> None:
    """A task that is cancelled in the queue leaves it, and those behind it go on in order."""
    order: list[int] = []

    async def work(number: int) -> None:
        async with mem.turn_lock():
            order.append(number)

    async def main() -> None:
        async with mem.turn_lock():
            tasks = [asyncio.ensure_future(work(number)) for number in range(10)]
            await asyncio.sleep(0)
            assert queued(mem) == 10
            for number in (0, 3, 4, 9):
                tasks[number].cancel()
            await asyncio.wait([tasks[0], tasks[3], tasks[4], tasks[9]])
            assert queued(mem) == 6
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [number for number, each in enumerate(done) if each is not None] == [0, 3, 4, 9]

    asyncio.run(main())
    assert order == [1, 2, 5, 6, 7, 8]


def test_a_timeout_of_asyncio(mem: MemoryThread) -> None:
    """Under asyncio.timeout a wait ends with that one's TimeoutError, not a LockTimeout."""

    async def main() -> None:
        with pytest.raises(TimeoutError) as told:
            async with asyncio.timeout(0.01), mem.turn_lock():
                pytest.fail("it is not free")
        assert not isinstance(told.value, LockTimeout)

    with holding(mem):
        asyncio.run(main())


@pytest.mark.parametrize("behind", [False, True])
def test_cancelled_while_it_tries(root: Path, behind: bool) -> None:  # noqa: FBT001
    """A task that is cancelled while the store tries for it leaves no lock, whatever came of it."""
    store = Gated(root, behind=behind)
    with Memory(store) as memory:
        mem = memory.open("t").append("x")

        async def work() -> None:
            async with mem.turn_lock():
                pytest.fail("it was cancelled")

        async def main() -> None:
            store.hold()
            task = asyncio.ensure_future(work())
            await asyncio.to_thread(store.reached.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task  # at once, though the try still stands
            store.opened.set()
            async with mem.turn_lock(timeout=PATIENCE):
                pass

        asyncio.run(main())
        assert is_free(mem)


@pytest.mark.usefixtures("no_blocking")
def test_cancelled_when_it_was_just_taken(root: Path) -> None:
    """A task that is cancelled between the store's answer and its own waking leaves no lock.

    It does not block the loop either.
    """
    store = Gated(root, behind=True)

    async def work(mem: MemoryThread) -> None:
        async with mem.turn_lock():
            pytest.fail("it was cancelled")

    async def main() -> None:
        mem = await memory.aopen("t")
        pool: Any = ThreadPoolExecutor(4)
        asyncio.get_running_loop().set_default_executor(pool)
        store.hold()
        task = asyncio.ensure_future(work(mem))
        await asyncio.to_thread(store.reached.wait, PATIENCE)
        store.opened.set()
        # The loop stands still until the try has ended and its OS thread is idle again.
        while pool._idle_semaphore._value < len(pool._threads):
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with mem.turn_lock(timeout=PATIENCE):
            pass

    memory = Memory(store)
    asyncio.run(main())


def test_cancelled_while_it_leaves(root: Path) -> None:
    """A task that is cancelled while it lets go of the lock has let go of it all the same."""
    reached, opened = threading.Event(), threading.Event()

    class Slow(System):
        def unlock(self, fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").endswith(".lock"):
                reached.set()
                assert opened.wait(PATIENCE)
            super().unlock(fd)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    with Memory(JsonlStore(root, system=Slow())) as memory:
        mem = memory.open("t").append("x")

        async def work() -> None:
            async with mem.turn_lock():
                pass
            pytest.fail("it was cancelled")

        async def main() -> None:
            task = asyncio.ensure_future(work())
            await asyncio.to_thread(reached.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            opened.set()
            async with mem.turn_lock(timeout=PATIENCE):
                pass

        asyncio.run(main())
        assert is_free(mem)


@pytest.mark.parametrize(
    "timeout",
    [
        None,
        PATIENCE,
    ],
)
def test_a_cancellation_is_never_lost(mem: MemoryThread, timeout: float | None) -> None:
    """Cancelled at whatever step of getting the lock, a task is cancelled, and the lock is free."""

    async def work() -> None:
        async with mem.turn_lock(timeout):
            for _ in range(1000):  # cancelled here at the latest
                await asyncio.sleep(0)

    async def main(steps: int) -> None:
        with holding(mem) as end:
            task = asyncio.ensure_future(work())
            for _ in range(3):
                await asyncio.sleep(0)
            end()
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    for steps in range(30):
        asyncio.run(main(steps))
        until(lambda: is_free(mem))  # a try that was under way lets go when it is done


@pytest.mark.parametrize("inside", [False, True])
def test_without_os_threads(
    mem: MemoryThread,
    monkeypatch: pytest.MonkeyPatch,
    inside: bool,  # noqa: FBT001 - a case
) -> None:
    """Where the system starts no more OS threads, a task gets the lock, and lets go of it."""

    def start(*_: object) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    async def main() -> None:
        async with mem.turn_lock():
            monkeypatch.setattr(threading.Thread, "start", start)
            raise LookupError

    if not inside:
        monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(LookupError):
        asyncio.run(main())
    monkeypatch.undo()
    assert is_free(mem)


def test_many_that_wait_and_give_up(mem: MemoryThread) -> None:
    """Of hundreds of tasks and threads that come, are cancelled and fail, none keeps the lock."""
    rng = random.Random(5)
    inside: list[int] = []

    def enter(number: int) -> None:
        inside.append(number)
        assert len(inside) == 1

    async def task(number: int) -> None:
        async with mem.turn_lock(rng.choice((None, PATIENCE))):
            enter(number)
            try:
                await asyncio.sleep(0)
                if number % 7 == 0:
                    raise LookupError
            finally:
                inside.remove(number)

    def thread(number: int) -> None:
        with mem.turn_lock():
            enter(number)
            inside.remove(number)

    async def main() -> list[BaseException | None]:
        loop = asyncio.get_running_loop()
        works: list[asyncio.Future[None]] = []
        for number in range(1, 300):
            if number % 10 == 0:
                works.append(loop.run_in_executor(pool, thread, number))
            else:
                works.append(asyncio.ensure_future(task(number)))
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                rng.choice(works).cancel()
        return await asyncio.gather(*works, return_exceptions=True)

    with ThreadPoolExecutor(4) as pool:
        outcomes = asyncio.run(main())
    assert {type(each) for each in outcomes} == {type(None), LookupError, asyncio.CancelledError}
    assert is_free(mem)


def test_a_task_lets_go_though_every_worker_waits(mem: MemoryThread) -> None:
    """A task lets go of the lock while all the OS threads of its loop's pool wait for it.

    Agents that are run by `asyncio.to_thread` may take it in their threads.
    """

    def work() -> str:
        try:
            with mem.turn_lock(timeout=PATIENCE):
                return "had it"
        except LockTimeout:
            return "too late"

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(2)
        loop.set_default_executor(pool)
        async with mem.turn_lock():
            works = [loop.run_in_executor(None, work) for _ in range(2)]
            while queued(mem) < 2:  # noqa: ASYNC110 - nothing tells of a waiter
                await asyncio.sleep(0.001)
        return await asyncio.gather(*works)

    assert asyncio.run(main()) == ["had it", "had it"]


# ---- Ctrl-C ----


@contextmanager
def pressing(when: Callable[[], object], *, elsewhere: bool = False) -> Generator[None]:
    """Press Ctrl-C, for real, as soon as something is so; it may reach another OS thread."""

    def press() -> None:
        until(when)
        if elsewhere:
            signal.raise_signal(signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    try:
        yield
    finally:
        presser.join()


@pytest.mark.usefixtures("collected")
def test_ctrl_c_while_it_waits(mem: MemoryThread) -> None:
    """Ctrl-C in the queue is raised at once; the place is given up."""
    with (
        holding(mem) as end,
        pytest.raises(KeyboardInterrupt),
        pressing(lambda: queued(mem)),
        mem.turn_lock(),
    ):
        pytest.fail("it is not free")
    end()
    assert is_free(mem)


@pytest.mark.usefixtures("collected")
def test_ctrl_c_that_reaches_another_thread(mem: MemoryThread) -> None:
    """Ctrl-C that the system gives to another OS thread ends the wait in the queue, too."""
    with (
        holding(mem) as end,
        pytest.raises(KeyboardInterrupt),
        pressing(lambda: queued(mem), elsewhere=True),
        mem.turn_lock(),
    ):
        pytest.fail("it is not free")
    end()
    assert is_free(mem)


@pytest.mark.usefixtures("collected")
def test_ctrl_c_while_another_memory_has_it(root: Path) -> None:
    """Ctrl-C between two tries is raised at once; the queue goes on."""
    store = Gated(root)
    with Memory(store) as memory, Memory(root) as other:
        mine, theirs = memory.open("t"), other.open("t")
        with (
            holding(theirs),
            pytest.raises(KeyboardInterrupt),
            pressing(store.reached.is_set),
            mine.turn_lock(),
        ):
            pytest.fail("it is not free")
        assert is_free(mine)


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("behind", [False, True])
def test_ctrl_c_while_it_tries(root: Path, behind: bool) -> None:  # noqa: FBT001
    """Ctrl-C in the middle of a try is raised behind it, and what was taken is let go of."""
    store = Gated(root, behind=behind)

    def reached() -> bool:
        return store.reached.is_set()

    with Memory(store) as memory:
        mem = memory.open("t").append("x")
        store.hold()

        def opens() -> None:
            until(reached)
            os.kill(os.getpid(), signal.SIGINT)
            store.opened.set()

        opening = threading.Thread(target=opens)
        opening.start()
        with pytest.raises(KeyboardInterrupt), mem.turn_lock():
            pytest.fail("it was interrupted")
        opening.join()
        assert is_free(mem)


def test_in_stacks(mem: MemoryThread) -> None:
    """It is a context manager like any other: exit stacks take it."""
    with ExitStack() as stack:
        stack.enter_context(mem.turn_lock())
        assert not is_free(mem)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(mem.turn_lock())
            assert not is_free(mem)

    asyncio.run(main())
