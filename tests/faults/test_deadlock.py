"""The order of locks: nothing waits in a circle, whoever does what at once (Contract 3)."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import everything
from writers import contents, go, line, running

from turnlog import Memory, Message, ThreadKey
from turnlog.codec import encode_turn
from turnlog.stores.base import START, Outcome, Read
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 60.0  # a watchdog, in seconds


def test_everything_at_once(root: Path) -> None:
    """Processes that append, delete, repair, peek and lock turns on the same threads all end."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(running("main", root, name, 40, program=everything.__file__))
            for name in "1234"
        ]
        for process in processes:
            assert line(process) == "ready"
        for process in processes:
            go(process)
        for process in processes:
            assert line(process) == "done"
            assert process.wait(everything.LONGEST) == 0
    for id_ in everything.IDS:
        turns = contents(root, id_)
        assert len(set(turns)) == len(turns)


class Meeting(System):
    """Waits, when it has one file locked and wants the next, until the other is there too."""

    def __init__(self, meeting: threading.Barrier, *, waits: bool) -> None:
        """Meet once; then wait for each lock until it is free, or never."""
        self._meeting = meeting
        self._waits = waits
        self._asked = 0
        self.given_up = threading.Event()

    def try_lock(self, fd: int, *, shared: bool) -> bool:
        """Lock a file."""
        self._asked += 1
        if self._asked == 2:
            self._meeting.wait(PATIENCE)
        while not (got := super().try_lock(fd, shared=shared)) and self._waits:
            if self.given_up.wait(0.001):
                break
        if self._asked == 2 and not self._waits:
            self._meeting.wait(PATIENCE)  # nobody lets go before the other has tried, too
        return got


class Line:
    """A turn to append to a thread that was not read."""

    position = START

    def __init__(self, id_: str) -> None:
        """Name the thread."""
        self.key = ThreadKey("default", id_)

    def decide(self, news: Read) -> list[bytes]:
        """Append it."""
        del news
        return [encode_turn(Message("user", "second"))]


def committed(root: Path, *, waits: bool) -> list[Outcome] | None:
    """Have two stores commit a batch over two threads in opposite orders; None if they hang."""
    with Memory(root) as memory:
        for id_ in "ab":
            memory.open(id_).append("first")
    meeting = threading.Barrier(2)
    systems = [Meeting(meeting, waits=waits) for _ in range(2)]
    outcomes: list[Outcome] = []

    def commit(system: System, ids: str) -> None:
        store = JsonlStore(root, system=system)
        outcomes.extend(store.commit([Line(id_) for id_ in ids]))
        store.close()

    threads = [
        threading.Thread(target=commit, args=pair)
        for pair in zip(systems, ("ab", "ba"), strict=True)
    ]
    for thread in threads:
        thread.start()
    threads[0].join(2 if waits else PATIENCE)
    hung = threads[0].is_alive()
    for system in systems:
        system.given_up.set()
    for thread in threads:
        thread.join(PATIENCE)
    return None if hung else outcomes


def test_opposite_orders(root: Path) -> None:
    """Of two batches that have a thread each and want the other's, none waits: it is busy."""
    outcomes = committed(root, waits=False)
    assert outcomes is not None
    assert sorted(outcome.busy for outcome in outcomes) == [False, False, True, True]
    assert [contents(root, id_) for id_ in "ab"] == [["first", "second"]] * 2


def test_a_store_that_waits_is_found(root: Path) -> None:
    """Were a commit to wait for a lock while it holds another, this would find that it hangs."""
    assert committed(root, waits=True) is None
