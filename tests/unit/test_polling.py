"""Watching by looking: what is told of, and what the looking costs and leaves behind."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from turnlog import Memory, StoreError
from turnlog.names import ThreadKey
from turnlog.stores.jsonl import JsonlStore, watch
from turnlog.stores.jsonl.osfile import System
from turnlog.stores.polling import Poller

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from pathlib import Path

PATIENCE = 60.0  # a watchdog, in seconds
A, B = ThreadKey("n", "a"), ThreadKey("n", "b")


def until(condition: Callable[[], object]) -> None:
    """Wait for something that another OS thread does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.0005)


class Things:
    """What a poller looks at; a value may be an error, which looking raises."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.values: dict[ThreadKey, Hashable | Exception] = {A: 0, B: 0}
        self.looks = 0

    def look(self, key: ThreadKey) -> Hashable:
        """Look at a thing."""
        self.looks += 1
        value = self.values[key]
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture
def things() -> Things:
    """Give things to look at."""
    return Things()


@pytest.fixture
def poller(things: Things) -> Iterator[Poller]:
    """Give a poller that looks at them every millisecond."""
    poller = Poller(things.look, 0.001)
    yield poller
    poller.close()


def looking() -> int:
    """Say how many OS threads look at something."""
    return sum(thread.name == "turnlog-watch" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """See that no OS thread goes on looking after a test."""
    until(lambda: not looking())
    yield
    until(lambda: not looking())


# ---- the poller ----


def test_a_change_is_told_to_those_who_watch_it(things: Things, poller: Poller) -> None:
    """Who watches a thread is told when looking at it gives another value, and nobody else is."""
    told = [threading.Event(), threading.Event(), threading.Event()]
    stops = [poller.watch(key, event.set) for key, event in zip((A, A, B), told, strict=True)]
    things.values[A] = 1
    assert told[0].wait(PATIENCE)
    assert told[1].wait(PATIENCE)
    assert not told[2].is_set()
    for stop in stops:
        stop()


def test_what_is_the_same_is_not_told(things: Things, poller: Poller) -> None:
    """Looking again and again at what does not change tells nobody."""
    told = threading.Event()
    stop = poller.watch(A, told.set)
    looks = things.looks
    until(lambda: things.looks > looks + 20)
    assert not told.is_set()
    stop()


def test_one_os_thread_looks_and_ends_when_nobody_watches(things: Things, poller: Poller) -> None:
    """One OS thread looks at all threads, ends when nobody watches, and is there again after."""
    for _ in range(3):
        stops = [poller.watch(key, lambda: None) for key in (A, A, B)]
        assert looking() == 1
        for stop in stops:
            stop()
        until(lambda: not looking())
    looks = things.looks
    stop = poller.watch(A, lambda: None)
    until(lambda: things.looks > looks + 5)
    stop()


def test_what_was_seen_for_another_watch_is_no_beginning(things: Things, poller: Poller) -> None:
    """A change back to what an earlier watch saw last is told of, as any other."""
    before = poller.watch(A, lambda: None)
    things.values[A] = 1
    told = threading.Event()
    stop = poller.watch(A, told.set)
    before()
    told.clear()
    things.values[A] = 0
    assert told.wait(PATIENCE)
    stop()


def test_a_change_seen_by_who_begins_to_watch_is_told_to_the_others(things: Things) -> None:
    """A change that is first seen when somebody begins to watch is told to those who did before."""
    poller = Poller(things.look, PATIENCE)  # the OS thread does not come to it
    told = threading.Event()
    stops = [poller.watch(A, told.set)]
    things.values[A] = 1
    stops.append(poller.watch(A, lambda: None))
    assert told.is_set()
    poller.close()
    for stop in stops:
        stop()


def test_what_cannot_be_looked_at_is_told_of(things: Things, poller: Poller) -> None:
    """That a thread cannot be looked at, or can again, is a change; the others are looked at on."""
    told = {key: threading.Event() for key in (A, B)}
    stops = [poller.watch(key, event.set) for key, event in told.items()]
    for value, other in ((StoreError(A, "it is gone", "find it"), 1), (0, 2)):
        things.values.update({A: value, B: other})
        assert all(event.wait(PATIENCE) for event in told.values())
        for event in told.values():
            event.clear()
    for stop in stops:
        stop()


def test_who_begins_to_watch_what_cannot_be_looked_at_is_told_why(
    things: Things, poller: Poller
) -> None:
    """Where the first look fails, its error is raised, and nothing is watched."""
    things.values[A] = StoreError(A, "it is gone", "find it")
    with pytest.raises(StoreError, match="it is gone"):
        poller.watch(A, pytest.fail)
    assert not looking()


def test_without_os_threads_nothing_is_watched(
    poller: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system has no OS thread to give, a StoreError says so, and trying again works."""

    def refuse(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreError, match="cannot be watched: can't start new thread"):
            poller.watch(A, pytest.fail)
    stop = poller.watch(A, lambda: None)
    assert looking() == 1
    stop()


def test_close_tells_who_watches_and_ends_the_os_thread(things: Things, poller: Poller) -> None:
    """Who watches when the poller is closed is told once more; it may be watched anew after."""
    calls = list[None]()
    stop = poller.watch(A, lambda: calls.append(None))
    poller.close()
    poller.close()
    assert len(calls) == 1
    until(lambda: not looking())
    told = threading.Event()
    again = poller.watch(A, told.set)
    stop()
    things.values[A] = 1
    assert told.wait(PATIENCE)
    assert len(calls) == 1
    again()


def test_after_a_fork_nothing_is_watched(things: Things, poller: Poller) -> None:
    """After a fork nobody is told who watched before, and threads may be watched anew."""
    stop = poller.watch(A, pytest.fail)
    with poller._mutex:  # pyright: ignore[reportPrivateUsage] - where there is a thread that looks
        poller.after_fork()
    things.values[A] = 1
    told = threading.Event()
    again = poller.watch(A, told.set)
    things.values[A] = 2
    assert told.wait(PATIENCE)
    stop()
    again()


# ---- files ----

LINE = b'{"content":"1"}\n'


class Clock:
    """A clock that stands, until a test moves it."""

    def __init__(self, now: int) -> None:
        """Stand at a time."""
        self.now = now

    def time_ns(self) -> int:
        """Give the time."""
        return self.now


@pytest.fixture
def file(root: Path) -> Path:
    """Give the file of a thread, with a line that was written a step of the clock ago."""
    file = root / A.namespace / f"{A.id}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(LINE)
    until(lambda: _touched(root / "other") > file.stat().st_ctime_ns)
    return file


def _touched(file: Path) -> int:
    file.touch()
    return file.stat().st_ctime_ns


def appended(file: Path) -> None:
    """Append a line."""
    with file.open("ab") as stream:
        stream.write(LINE)


def written_over(file: Path) -> None:
    """Write other bytes in the place of those that are there, and set the time back."""
    status = file.stat()
    with file.open("r+b") as stream:
        stream.write(LINE.replace(b"1", b"2"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(file: Path) -> None:
    """Put another file of the same size and time in its place."""
    status = file.stat()
    new = file.with_name("new")
    new.write_bytes(LINE.replace(b"1", b"2"))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.rename(file)


def cut(file: Path) -> None:
    """Cut it to nothing."""
    os.truncate(file, 0)


def made_anew(file: Path) -> None:
    """Remove it and make it anew, the same."""
    file.unlink()
    file.write_bytes(LINE)


def removed_for_a_moment(file: Path) -> None:
    """Move it away and back."""
    file.rename(file.with_name("away"))
    file.with_name("away").rename(file)


CHANGES = (appended, written_over, replaced, cut, made_anew, removed_for_a_moment)


@pytest.fixture
def _nothing_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Have no file be told of for having been written just now."""
    monkeypatch.setattr(watch, "time", Clock(time.time_ns() + 10**12))


@pytest.mark.usefixtures("_nothing_is_fresh")
@pytest.mark.parametrize("change", [*CHANGES, os.unlink], ids=lambda change: change.__name__)
def test_what_others_do_to_a_file_is_told(
    root: Path, file: Path, change: Callable[[Path], None]
) -> None:
    """Whatever another program does to a watched file is told, also where it sets the time back."""
    told = threading.Event()
    stop = JsonlStore(root).watch(A, told.set)
    change(file)
    assert told.wait(PATIENCE)
    stop()


@pytest.mark.usefixtures("_nothing_is_fresh")
def test_a_file_that_comes_and_goes_is_told(root: Path, file: Path) -> None:
    """Who watches a thread that does not exist is told, though it was gone before the next look."""
    file.unlink()
    until(lambda: _touched(root / "other") > file.parent.stat().st_ctime_ns)
    told = threading.Event()
    stop = JsonlStore(root).watch(A, told.set)
    file.write_bytes(LINE)
    file.unlink()
    assert told.wait(PATIENCE)
    stop()


def test_a_change_in_the_same_step_of_the_clock_is_told(
    root: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was written when the watch began is told of once more when the clock goes on."""
    clock = Clock(file.stat().st_ctime_ns)
    monkeypatch.setattr(watch, "time", clock)
    told = threading.Event()
    stop = JsonlStore(root).watch(A, told.set)
    clock.now += 1_000_000_000
    assert told.wait(PATIENCE)
    stop()


def test_a_memory_that_does_not_exist_yet_is_watched(root: Path) -> None:
    """A thread of a memory without a folder is watched, and its first append is told of."""
    store = JsonlStore(root)
    told = threading.Event()
    stop = store.watch(A, told.set)
    assert not root.exists()
    with Memory(root) as memory:
        memory.open(A.id, A.namespace).append("x")
        assert told.wait(PATIENCE)
    stop()


def test_watching_opens_no_file(root: Path) -> None:
    """However long a thread is watched, its file is not opened, and no folder is listed."""
    calls: set[str] = set()

    class Noted(System):
        def __getattribute__(self, name: str) -> object:
            calls.add(name)
            return super().__getattribute__(name)

    with Memory(root) as memory:
        mem = memory.open(A.id, A.namespace).append("x")
        store = JsonlStore(root, system=Noted())
        told = threading.Event()
        stop = store.watch(A, told.set)
        mem.append("y")
        assert told.wait(PATIENCE)
        stop()
    assert calls == {"status_of"}


def test_a_closed_store_looks_at_nothing(root: Path) -> None:
    """Closing a store ends its OS thread, whoever still watches."""
    store = JsonlStore(root)
    store.watch(A, lambda: None)
    assert looking() == 1
    store.close()
    until(lambda: not looking())
