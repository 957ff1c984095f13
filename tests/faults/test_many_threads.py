"""Many threads and few descriptors: all are durable, few files are open, and no memory is kept."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import threading
import tracemalloc
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest
from bytesofit import put, turn
from machine import limited
from writers import contents

from turnlog import Closed, Conflict, Memory
from turnlog.names import thread_key
from turnlog.stores.jsonl import JsonlStore, folders
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from turnlog import MemoryThread

FEW: Final = 256  # as `ulimit -n 256`
IN_TURN: Final = 3000
AT_ONCE: Final = 1000
OS_THREADS: Final = 300
LOCKED: Final = 20
VISITED: Final = 1000
LEAK: Final = 25  # bytes a thread: a quarter of the least that a dict's entry takes


def with_few(work: Callable[[], Any]) -> Any:
    """Run something in a child that may have 256 descriptors, beside those that are open here."""
    return limited(resource.RLIMIT_NOFILE, FEW + descriptors(), work)


def descriptors() -> int:
    """Count the descriptors that this process has open."""
    return len(os.listdir("/dev/fd"))


def names(count: int) -> list[str]:
    """Give the ids of so many threads."""
    return [f"t{i}" for i in range(count)]


def turns_of(memory: Memory, ids: Sequence[str]) -> Iterator[list[str]]:
    """Open threads one after the other, and give the turns of each."""
    for id_ in ids:
        yield [message.content for message in memory.open(id_).messages()]


# ---- few descriptors ----


def test_thousands_of_threads_in_turn(root: Path, open_files: Callable[[], list[str]]) -> None:
    """With 256 descriptors 3,000 threads are appended to in turn, and few files stay open."""
    # Meanwhile twenty turn locks are held, another memory appends too, and others look.
    ids = names(IN_TURN)

    def work() -> tuple[int, int]:
        gc.collect()  # memories that other tests have left behind
        before = most = descriptors()
        with ExitStack() as stack:
            memory, another = (stack.enter_context(Memory(root)) for _ in range(2))
            for id_ in ids[:LOCKED]:
                stack.enter_context(memory.open(id_).turn_lock())
            for i, id_ in enumerate(ids):
                memory.open(id_).append("first")
                if i % 20 == 0:
                    another.open(id_).append("second")
                    look(root, another, id_)
                most = max(most, descriptors())
        return most - before, descriptors() - before

    most, left = with_few(work)
    assert LOCKED < most < LOCKED + 2 * FEW // 3
    assert left == 0
    with Memory(root, read_only=True) as memory:
        found = list(turns_of(memory, ids))
        assert open_files() == []  # what is only read keeps no file open
    assert found == [["first"] if i % 20 else ["first", "second"] for i in range(IN_TURN)]


def look(root: Path, memory: Memory, id_: str) -> None:
    """Peek at a thread, and have it examined as the doctor does."""
    assert memory.peek(id_, last=1)[0].content == "second"
    examination = JsonlStore(root, read_only=True).examine(thread_key(id_))
    assert examination is not None
    assert examination.turns == 2


def test_a_thousand_threads_at_once(root: Path) -> None:
    """With 256 descriptors 1,000 tasks open, append to, read and append to threads at once."""
    ids = names(AT_ONCE)

    async def once(memory: Memory, id_: str) -> MemoryThread:
        thread = await (await memory.aopen(id_)).aappend("first")
        assert (await memory.apeek(id_, last=1))[0].content == "first"
        return thread

    async def main() -> int:
        gc.collect()
        before = descriptors()
        async with Memory(root) as memory, Memory(root) as another, AsyncExitStack() as stack:
            for id_ in ids[:LOCKED]:
                await stack.enter_async_context((await memory.aopen(id_)).turn_lock())
            threads = await asyncio.gather(*(once(memory, id_) for id_ in ids))
            await asyncio.gather(*(thread.aappend("second") for thread in threads))
            for id_ in ids[:LOCKED]:
                await (await another.aopen(id_)).aappend("another's")
            await asyncio.gather(*(thread.aappend("last") for thread in threads))
            assert all(len(thread) >= 3 for thread in threads)
        return descriptors() - before

    assert with_few(lambda: asyncio.run(main())) == 0
    with Memory(root, read_only=True) as memory:
        found = list(turns_of(memory, ids))
    assert found[:LOCKED] == [["first", "second", "another's", "last"]] * LOCKED
    assert found[LOCKED:] == [["first", "second", "last"]] * (AT_ONCE - LOCKED)


def at_once(ids: Sequence[str], work: Callable[[str], object]) -> list[str]:
    """Do something with each thread in an OS thread of its own, all at once; give the errors."""
    begin = threading.Barrier(len(ids))
    errors: list[str] = []

    def run(id_: str) -> None:
        begin.wait()
        try:
            work(id_)
        except Exception as error:  # noqa: BLE001 - the test looks at them
            errors.append(repr(error))

    workers = [threading.Thread(target=run, args=(id_,)) for id_ in ids]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return errors


def test_appends_of_300_os_threads(root: Path) -> None:
    """With 256 descriptors 300 OS threads append to 300 threads at once, time and again."""
    ids = names(OS_THREADS)

    def work() -> list[str]:
        with Memory(root) as memory:
            threads = {id_: memory.open(id_) for id_ in ids}
            errors: list[str] = []
            for content in ("first", "second"):
                errors += at_once(ids, lambda id_, content=content: threads[id_].append(content))
            return errors

    assert with_few(work) == []
    with Memory(root, read_only=True) as memory:
        assert list(turns_of(memory, ids)) == [["first", "second"]] * OS_THREADS


class Contended(System):
    """A disk where others are always before us: each file is locked at the first 20 tries."""

    def __init__(self) -> None:
        """Count the tries on each file."""
        self._tries: Counter[int] = Counter()

    def try_lock(self, fd: int, *, shared: bool) -> bool:
        """Lock a file when it was tried often enough."""
        number = os.fstat(fd).st_ino
        self._tries[number] += 1
        return self._tries[number] > 20 and super().try_lock(fd, shared=shared)


def test_openings_of_300_os_threads(root: Path) -> None:
    """With 256 descriptors 300 OS threads open as many threads at once that others have locked."""
    ids = names(OS_THREADS)
    for id_ in ids:
        put(root, turn("first"), id_)

    def work() -> list[str]:
        with Memory(JsonlStore(root, system=Contended())) as memory:
            return at_once(ids, memory.open)

    assert with_few(work) == []


def test_several_memories_in_turn(root: Path) -> None:
    """With 256 descriptors eight memories of one process append to 100 threads in turn."""
    ids = names(100)

    def work() -> None:
        with ExitStack() as stack:
            memories = [stack.enter_context(Memory(root)) for _ in range(8)]
            for id_ in ids:
                for memory in memories:
                    memory.open(id_).append("turn")

    with_few(work)
    assert all(contents(root, id_) == ["turn"] * 8 for id_ in ids)


def test_several_memories_at_once(root: Path) -> None:
    """With 256 descriptors three memories of one process append to 500 threads each at once."""
    ids = names(500)

    async def append(memory: Memory, id_: str) -> None:
        await (await memory.aopen(id_)).aappend("turn")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            memories = [await stack.enter_async_context(Memory(root / part)) for part in "abc"]
            await asyncio.gather(*(append(memory, id_) for memory in memories for id_ in ids))

    with_few(lambda: asyncio.run(main()))
    for part in "abc":
        with Memory(root / part) as memory:
            assert list(turns_of(memory, ids)) == [["turn"]] * len(ids)


def test_deleted_thread_keeps_no_descriptor(
    memory: Memory, open_files: Callable[[], list[str]]
) -> None:
    """A deleted thread's file is closed, so that the disk has its room again."""
    memory.open("t").append("first")
    assert len(open_files()) == 1
    memory.delete("t")
    assert open_files() == []


def test_turn_locks_are_worth_more_than_kept_files(root: Path) -> None:
    """Where turn locks need the descriptors, files that are only kept open are closed for them."""
    ids = names(220)

    def work() -> int:
        with Memory(root) as memory:
            for id_ in ids[:64]:
                memory.open(id_).append("first")
            with ExitStack() as stack:
                for id_ in ids:
                    stack.enter_context(memory.open(id_).turn_lock())
                for id_ in ids:
                    memory.open(id_).append("second")
                return len(os.listdir("/proc/self/fd"))

    assert with_few(work) > len(ids)
    assert contents(root, ids[0]) == ["first", "second"]
    assert contents(root, ids[-1]) == ["second"]


# ---- flat memory ----


class Unsynced(System):
    """A disk that is at once: what is kept in memory does not hang on it."""

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_folder(self, path: str) -> None:
        """Do nothing."""


def left_behind(root: Path, visit: Callable[[Memory, Sequence[str]], object]) -> float:
    """Visit 1,000 threads, then 2,000 others; give the bytes that each of these has left behind."""
    ids = names(3 * VISITED)

    def work() -> float:
        with Memory(JsonlStore(root, system=Unsynced())) as memory:
            tracemalloc.start()
            visit(memory, ids[:VISITED])
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            visit(memory, ids[VISITED:])
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            return (after - before) / (2 * VISITED)

    return with_few(work)


@pytest.fixture(params=["stored", "unknown"])
def visited(request: pytest.FixtureRequest, root: Path) -> Path:
    """Give a memory's root that has all the threads to visit, or none of them."""
    if request.param == "stored":
        for id_ in names(3 * VISITED):
            put(root, turn("first"), id_)
    return root


def test_threads_that_are_dropped(visited: Path) -> None:
    """A thread that is opened, read, peeked at, locked and dropped leaves no memory behind."""

    def visit(memory: Memory, ids: Sequence[str]) -> None:
        for id_ in ids:
            thread = memory.open(id_)
            assert list(thread.refresh().messages()) == list(memory.peek(id_, last=3))
            with thread.turn_lock():
                pass

    assert left_behind(visited, visit) < LEAK


def test_threads_that_tasks_drop(visited: Path) -> None:
    """A thread that a task opens, reads, peeks at and drops leaves no memory behind."""

    async def visit(memory: Memory, id_: str) -> None:
        thread = await (await memory.aopen(id_)).arefresh()
        assert list(thread.messages()) == list(await memory.apeek(id_, last=3))

    async def visit_all(memory: Memory, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), 50):
            await asyncio.gather(*(visit(memory, id_) for id_ in ids[start : start + 50]))
        async with (await memory.aopen(ids[-1])).turn_lock():
            pass

    def visit_and_end(memory: Memory, ids: Sequence[str]) -> None:
        runner.run(visit_all(memory, ids))
        for each in threading.enumerate():  # those that are about to end are counted, too
            if each.name in {"turnlog-worker", "turnlog-own"}:
                each.join(60)

    with asyncio.Runner() as runner:
        grown = left_behind(visited, visit_and_end)
    assert grown < LEAK


def test_threads_that_are_appended_to(root: Path) -> None:
    """A thread that is appended to, refuses a turn, is deleted or not leaves no memory behind."""

    def visit(memory: Memory, ids: Sequence[str]) -> None:
        for i, id_ in enumerate(ids):
            thread = memory.open(id_).append("first", key="k")
            with pytest.raises(Conflict):
                thread.append("second", expect=0)
            if i % 2:
                memory.delete(thread)
                with pytest.raises(Closed):
                    thread.append("third")

    assert left_behind(root, visit) < LEAK


def test_namespaces_that_are_dropped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace in which a thread was appended to and dropped leaves no memory behind."""
    # The latest 4,096 folders are remembered; here fewer, for it takes long to make as many.
    monkeypatch.setattr(folders, "_MOST_REMEMBERED", VISITED // 2)

    def visit(memory: Memory, namespaces: Sequence[str]) -> None:
        for namespace in namespaces:
            memory.open("t", namespace=namespace).append("first")

    assert left_behind(root, visit) < LEAK
