"""`refresh(wait=)`: who waits for others' turns is told of them, and asks nobody meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from turnlog import (
    Capability,
    CapabilityDenied,
    Closed,
    InvalidTurn,
    Memory,
    MemoryThread,
    NotWritten,
    StoreError,
    ThreadReplaced,
    news,
    sandbox,
)
from turnlog.ownthread import in_own_thread
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from turnlog.names import ThreadKey
    from turnlog.stores.base import Append, Outcome

PATIENCE = 60.0  # a watchdog, in seconds
SOON = PATIENCE / 2  # far below what those wait who are not told


def until(condition: Callable[[], object]) -> None:
    """Wait for something that another OS thread does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.0005)


async def auntil(condition: Callable[[], object]) -> None:
    """Wait for something, and let the loop go on."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.0005)


class Notes:
    """What was asked of a store.

    Attributes:
        watching: the callbacks of those who watch.
        watches: how often somebody began to watch.
        reads: how often a commit was asked for.
        callers: the OS threads that began or ended a watch.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.watching: list[Callable[[], None]] = []
        self.watches = 0
        self.reads = 0
        self.callers: set[int] = set()

    def began(self, changed: Callable[[], None], stop: Callable[[], None]) -> Callable[[], None]:
        """Note that somebody watches; give what ends it."""
        self.watching.append(changed)
        self.watches += 1  # now that it is there, for who waits for it
        self.callers.add(threading.get_ident())

        def end() -> None:
            stop()
            self.watching.remove(changed)
            self.callers.add(threading.get_ident())

        return end


class NotedFiles(JsonlStore):
    """Files, with notes of what is asked of them."""

    def __init__(self, root: Path) -> None:
        """Note nothing yet."""
        super().__init__(root)
        self.notes = Notes()

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Note it."""
        self.notes.reads += 1
        return super().commit(batch)

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Note it."""
        return self.notes.began(changed, super().watch(key, changed))


class NotedMemory(InMemoryStore):
    """A store in memory, with notes of what is asked of it."""

    def __init__(self) -> None:
        """Note nothing yet."""
        super().__init__()
        self.notes = Notes()

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Note it."""
        self.notes.reads += 1
        return super().commit(batch)

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Note it."""
        return self.notes.began(changed, super().watch(key, changed))


class Both:
    """One thread as two processes have it: one that waits, and another one that appends."""

    def __init__(self, mine: NotedFiles | NotedMemory, theirs: Memory) -> None:
        """Open it in both."""
        self.notes = mine.notes
        self.store = mine
        self.memory = Memory(mine)
        self.mem = self.memory.open("t")
        self.peer = theirs
        self.theirs = theirs.open("t")

    @property
    def texts(self) -> list[str]:
        """What the one who waits has."""
        return [message.content for message in self.mem.messages()]


@pytest.fixture(params=["files", "in memory"])
def both(root: Path, request: pytest.FixtureRequest) -> Iterator[Both]:
    """Give a thread over files and in memory; at the end nobody may be watching."""
    if request.param == "files":
        store = NotedFiles(root)
        both = Both(store, Memory(root))
    else:
        store = NotedMemory()
        both = Both(store, Memory(store))
    with both.memory, both.peer:
        yield both
        until(lambda: not both.notes.watching)


def refresh(mem: MemoryThread, wait: float) -> MemoryThread:
    """Refresh, without a loop."""
    return mem.refresh(wait=wait)


def arefresh(mem: MemoryThread, wait: float) -> MemoryThread:
    """Refresh, in a loop of its own."""
    return asyncio.run(mem.arefresh(wait=wait))


WAYS = pytest.mark.parametrize("way", [refresh, arefresh], ids=["sync", "async"])


@contextmanager
def waiting(both: Both, way: Any, wait: float = PATIENCE) -> Generator[Future[MemoryThread]]:
    """Have an OS thread wait for news; it does when the block begins."""
    with ThreadPoolExecutor(1) as pool:
        watches = both.notes.watches
        future = pool.submit(way, both.mem, wait)
        until(lambda: both.notes.watches > watches or future.done())
        yield future


# ---- what comes ----


@WAYS
def test_what_is_there_is_read_at_once(both: Both, way: Any) -> None:
    """What was appended before is read, and nobody waits."""
    both.theirs.append("there")
    began = time.monotonic()
    assert way(both.mem, PATIENCE) is both.mem
    assert time.monotonic() - began < SOON
    assert both.texts == ["there"]


@WAYS
def test_it_waits_for_what_comes(both: Both, way: Any) -> None:
    """What another process appends while one waits ends the wait, and is there."""
    for number in range(3):
        with waiting(both, way) as refreshed:
            assert not refreshed.done()
            both.theirs.append(str(number))
            assert refreshed.result(SOON) is both.mem
        assert both.texts == [*map(str, range(number + 1))]


@WAYS
def test_an_append_of_this_process_ends_the_wait(both: Both, way: Any) -> None:
    """A turn that the same process appends is one more than before, too."""
    with waiting(both, way) as refreshed:
        both.mem.append("mine")
        assert refreshed.result(SOON) is both.mem


@WAYS
def test_after_the_time_it_gives_what_there_is(both: Both, way: Any) -> None:
    """Where nothing comes, the thread is given as it is, and not before the time is over."""
    began = time.monotonic()
    assert way(both.mem, 0.2) is both.mem
    assert time.monotonic() - began >= 0.2
    assert both.texts == []


@WAYS
def test_nothing_is_read_while_it_waits(both: Both, way: Any) -> None:
    """The store is asked when the wait begins and when it ends, and never in between."""
    way(both.mem, 0.5)
    assert (both.notes.reads, both.notes.watches) == (2, 1)


@WAYS
def test_without_wait_nothing_is_watched(both: Both, way: Any) -> None:
    """With wait=0 a thread is read, and not watched."""
    both.theirs.append("x")
    way(both.mem, 0)
    assert (both.texts, both.notes.watches) == (["x"], 0)


@WAYS
def test_who_is_told_for_nothing_waits_on(both: Both, way: Any) -> None:
    """Being told where nothing came ends no wait."""
    with waiting(both, way) as refreshed:
        for number in range(3):
            until(lambda: both.notes.watching)
            both.notes.watching[-1]()
            until(lambda number=number: both.notes.watches > number + 1)
        assert not refreshed.done()
        both.theirs.append("x")
        assert refreshed.result(SOON) is both.mem


@WAYS
def test_what_nobody_told_of_is_read_in_the_end(way: Any) -> None:
    """When the time is over, the thread is read once more: what came is there in any case."""

    class Silent(NotedMemory):
        def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
            del key
            return self.notes.began(changed, lambda: None)

        def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
            if self.notes.reads == 1:  # this is the last reading
                self.notes.reads += 1
                peer.append("unheard")
            return super().commit(batch)

    store = Silent()
    with Memory(store) as memory, Memory(store) as other:
        peer = other.open("t")
        mem = memory.open("t")
        assert len(way(mem, 0.05)) == 1


# ---- what is refused ----


@pytest.mark.parametrize(
    "wait",
    [-1, -0.1, float("nan"), float("inf"), float("-inf"), 10**400, "1", None, True, 1j],
    ids=repr,
)
@WAYS
def test_what_is_no_number_of_seconds_is_refused(both: Both, way: Any, wait: Any) -> None:
    """A wait that is not a finite number, 0 or more, is an error, and nothing is read."""
    with pytest.raises(InvalidTurn, match=r"'t' .* wait is .* give a number of sec"):
        way(both.mem, wait)
    assert (both.notes.reads, both.notes.watches) == (0, 0)


@pytest.mark.parametrize("wait", [1e300, 10**12, 2.0**63])
@WAYS
def test_a_very_long_wait_is_a_wait(both: Both, way: Any, wait: float) -> None:
    """More seconds than the system can count are no error."""
    with waiting(both, way, wait) as refreshed:
        both.theirs.append("x")
        assert refreshed.result(SOON) is both.mem


@WAYS
def test_who_may_not_read_does_not_watch(both: Both, way: Any) -> None:
    """Without the capability nothing is watched, also where there would be a wait."""
    with sandbox(deny=Capability.FS_WRITE), pytest.raises(CapabilityDenied, match="memory/refresh"):
        way(both.mem, PATIENCE)
    assert (both.notes.reads, both.notes.watches) == (0, 0)


@WAYS
def test_a_memory_for_reading_waits(root: Path, way: Any) -> None:
    """A read-only memory waits for what others append, and makes nothing."""
    store = JsonlStore(root, read_only=True)
    with Memory(store) as memory, Memory(root) as peer, ThreadPoolExecutor(1) as pool:
        mem = memory.open("t")
        refreshed = pool.submit(way, mem, PATIENCE)
        assert not root.exists()
        peer.open("t").append("x")
        assert len(refreshed.result(SOON)) == 1


@WAYS
def test_what_cannot_be_watched_is_an_error(way: Any) -> None:
    """Where the store cannot watch a thread, its error is raised."""

    class Blind(InMemoryStore):
        def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
            del changed
            raise StoreError(key, "it cannot be watched", "buy glasses")

    with Memory(Blind()) as memory:
        mem = memory.open("t")
        with pytest.raises(StoreError, match="buy glasses"):
            way(mem, PATIENCE)
        assert way(mem, 0) is mem


# ---- the end of a thread, and of its memory ----


@WAYS
def test_a_thread_that_another_process_deletes(both: Both, way: Any) -> None:
    """Who waits raises ThreadReplaced when another process deletes the thread."""
    both.mem.append("x")
    with waiting(both, way) as refreshed:
        both.peer.delete("t")
        assert isinstance(refreshed.exception(SOON), ThreadReplaced)


@pytest.mark.parametrize("turns", [0, 1])
@WAYS
def test_a_thread_that_this_process_deletes(both: Both, way: Any, turns: int) -> None:
    """Who waits raises when its own process deletes the thread, also one that does not exist."""
    if turns:
        both.mem.append("x")
    with waiting(both, way) as refreshed:
        both.memory.delete("t")
        assert isinstance(refreshed.exception(SOON), Closed | ThreadReplaced)


@WAYS
def test_a_memory_that_is_closed(both: Both, way: Any) -> None:
    """Who waits raises Closed when the memory is closed."""
    with waiting(both, way) as refreshed:
        both.memory.close()
        assert isinstance(refreshed.exception(SOON), Closed)
    with pytest.raises(Closed):
        way(both.mem, PATIENCE)


@WAYS
def test_a_store_that_another_memory_closes(both: Both, way: Any) -> None:
    """Who waits goes on waiting, and is told, when another memory over the same store is closed."""
    with waiting(both, way) as refreshed:
        Memory(both.store).close()
        both.theirs.append("x")
        assert refreshed.result(SOON) is both.mem


@WAYS
def test_a_failing_read_is_raised(root: Path, way: Any) -> None:
    """An error of a reading in the middle of the wait is raised as `refresh` raises it."""
    store = NotedFiles(root)
    with Memory(store) as memory, ThreadPoolExecutor(1) as pool:
        mem = memory.open("t").append("x")
        refreshed = pool.submit(way, mem, PATIENCE)
        until(lambda: store.notes.watching)
        os.truncate(root / "default" / "t.jsonl", 0)
        error = refreshed.exception(SOON)
        assert isinstance(error, NotWritten)
        assert "cut shorter" in str(error)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@WAYS
def test_a_forked_child_waits_afresh(root: Path, way: Any) -> None:
    """A child forked while its parent waits is told of news by itself, and so is the parent."""
    store = NotedFiles(root)
    both = Both(store, Memory(root))
    with both.memory, both.peer, waiting(both, way) as refreshed:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            watches = store.notes.watches
            telling = threading.Thread(
                target=lambda: (
                    until(lambda: store.notes.watches > watches),
                    os.write(writing, b"x"),
                )
            )
            telling.start()
            way(both.mem, PATIENCE)
            os._exit(0 if both.texts == ["for both"] else 1)
        assert os.read(reading, 1) == b"x"
        both.theirs.append("for both")
        assert refreshed.result(SOON) is both.mem
        assert os.waitpid(child, 0)[1] == 0
        assert both.texts == ["for both"]
        os.close(reading)
        os.close(writing)


# ---- Ctrl-C ----


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("reaches", ["the main thread", "another"])
def test_ctrl_c_ends_the_wait(both: Both, reaches: str) -> None:
    """Ctrl-C ends a wait in the main thread soon, whichever thread the system gives it to."""

    def press() -> None:
        until(lambda: both.notes.watching)
        main = threading.main_thread().ident or 0
        pressed = main if reaches == "the main thread" else threading.get_ident()
        signal.pthread_kill(pressed, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        both.mem.refresh(wait=PATIENCE)
    assert time.monotonic() - began < SOON
    presser.join()
    assert both.notes.watching == []


@pytest.mark.usefixtures("collected")
def test_ctrl_c_while_it_begins_to_watch() -> None:
    """Ctrl-C in the middle of the store's `watch` leaves nobody watching."""

    class Pressed(NotedMemory):
        def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
            stop = super().watch(key, changed)
            signal.raise_signal(signal.SIGINT)
            return stop

    store = Pressed()
    with Memory(store) as memory:
        mem = memory.open("t")
        with pytest.raises(KeyboardInterrupt):
            mem.refresh(wait=PATIENCE)
    assert (store.notes.watches, store.notes.watching) == (1, [])


# ---- tasks ----


def test_a_cancelled_wait_watches_no_more(both: Both) -> None:
    """A cancelled wait ends at once, and its watch does, in another OS thread than the loop's."""

    async def main() -> None:
        task = asyncio.create_task(both.mem.arefresh(wait=PATIENCE))
        await auntil(lambda: both.notes.watching)
        await auntil(lambda: both.notes.reads)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await auntil(lambda: not both.notes.watching)
        assert threading.get_ident() not in both.notes.callers

    asyncio.run(main())


def test_cancelled_while_it_begins_to_watch() -> None:
    """A wait that is cancelled while the store begins to watch ends at once; its watch follows."""
    reached, opened = threading.Event(), threading.Event()

    class Gated(NotedMemory):
        def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
            reached.set()
            assert opened.wait(PATIENCE)
            return super().watch(key, changed)

    store = Gated()

    async def main() -> None:
        mem = await Memory(store).aopen("t")
        task = asyncio.create_task(mem.arefresh(wait=PATIENCE))
        await auntil(reached.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        opened.set()
        await auntil(lambda: store.notes.watches and not store.notes.watching)

    asyncio.run(main())


def test_cancelled_before_it_begins_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is cancelled before its OS thread has come to `watch` never watches."""
    opened, works, done = threading.Event(), list[Any](), list[Any]()

    def later(work: Callable[[], Any]) -> Future[Any]:
        """Have the first work wait until it is let go."""
        first = not works
        works.append(work)

        def do() -> None:
            if first:
                assert opened.wait(PATIENCE)
            work()
            done.append(work)

        return in_own_thread(do)

    monkeypatch.setattr(news, "in_own_thread", later)
    store = NotedMemory()

    async def main() -> None:
        mem = await Memory(store).aopen("t")
        task = asyncio.create_task(mem.arefresh(wait=PATIENCE))
        await auntil(lambda: works)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await auntil(lambda: done)
        opened.set()
        await auntil(lambda: len(done) == len(works) == 2)

    asyncio.run(main())
    assert store.notes.watches == 0


def test_a_wait_within_a_timeout(both: Both) -> None:
    """A timeout of asyncio's ends a wait, as it ends any call."""

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await both.mem.arefresh(wait=PATIENCE)

    asyncio.run(main())


def test_many_tasks_wait_and_take_no_os_thread(both: Both) -> None:
    """However many tasks wait, they take no OS thread each and none of the loop's pool."""
    count = 200

    async def main() -> None:
        loop = asyncio.get_running_loop()
        blocked = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            loop.set_default_executor(pool)
            taken = loop.run_in_executor(None, blocked.wait, PATIENCE)
            before = threading.active_count()
            tasks = [asyncio.create_task(both.mem.arefresh(wait=PATIENCE)) for _ in range(count)]
            await auntil(lambda: len(both.notes.watching) == count)
            await auntil(lambda: threading.active_count() <= before + 2)  # who commits, who looks
            writing = threading.Thread(target=both.theirs.append, args=("for all",))
            writing.start()
            await asyncio.wait_for(asyncio.gather(*tasks), SOON)
            writing.join()
            assert both.texts == ["for all"]
            blocked.set()
            await taken

    asyncio.run(main())


@pytest.mark.usefixtures("no_blocking")
def test_a_wait_does_not_block_the_loop(both: Both) -> None:
    """Neither watching nor reading blocks the loop, nor does the end of the watch."""

    async def main() -> None:
        waiting = asyncio.create_task(both.mem.arefresh(wait=PATIENCE))
        await auntil(lambda: both.notes.watching)
        await both.theirs.aappend("x")
        await asyncio.wait_for(waiting, SOON)
        await auntil(lambda: not both.notes.watching)
        assert threading.get_ident() not in both.notes.callers

    asyncio.run(main())


def test_a_loop_that_is_gone_is_not_told(both: Both) -> None:
    """A change after a loop has ended with a task that waited is no error for who appends."""

    async def main() -> None:
        task = asyncio.create_task(both.mem.arefresh(wait=PATIENCE))
        await auntil(lambda: both.notes.watching)
        told.extend(both.notes.watching)
        task.cancel()

    told: list[Callable[[], None]] = []
    asyncio.run(main())
    told[0]()
    both.theirs.append("x")
    assert len(both.mem.refresh()) == 1
