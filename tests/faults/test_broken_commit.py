"""Faults of the commit itself: what a leader may meet between taking tickets and their outcome."""

from __future__ import annotations

import errno
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from turnlog import Memory, Message, NotWritten, TornTailWarning
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from pathlib import Path

    from turnlog import MemoryThread

BASE = b'{"role":"user","content":"a"}\n'


def reopened(root: Path) -> list[str]:
    """Give the texts that a new memory reads."""
    with Memory(root) as memory:
        return [message.content for message in memory.open("t").messages()]


def put(root: Path, data: bytes) -> None:
    """Write a thread's file as another program would."""
    path = root / "default" / "t.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


def test_a_decision_is_of_one_try_only(root: Path) -> None:
    """A turn that joined a commit which was busy, then failed, is not acknowledged (Contract 4)."""
    joined: list[BaseException | None] = []

    def join() -> None:
        try:
            mem.append("two")
        except NotWritten as error:
            joined.append(error)
        else:
            joined.append(None)

    worker = threading.Thread(target=join)

    class Busy(System):
        """Busy at the first try, while another append joins; failing at the second."""

        tries = 0

        def try_lock(self, fd: int, *, shared: bool) -> bool:
            self.tries += 1
            if self.tries == 1:
                worker.start()
                while not mem._commit._queue:  # pyright: ignore[reportPrivateUsage]
                    worker.join(0.001)
                return False
            if self.tries == 2:
                raise OSError(errno.EIO, "injected")
            return super().try_lock(fd, shared=shared)

    with Memory(JsonlStore(root, system=Busy())) as memory:
        mem = memory.open("t")
        with pytest.raises(NotWritten):
            mem.append("one")
        worker.join()
        assert [type(error) for error in joined] == [NotWritten]
        assert len(mem) == 0
    assert reopened(root) == []


def test_an_extend_behind_a_dangling_unit_is_whole(root: Path) -> None:
    """An acknowledged extend stays whole, whatever stands before it in the file (Contract 6)."""
    dangling = b'{"role":"user","content":"m","at":"2026-11-29T13:25:00.123456Z","more":true}\n'
    put(root, BASE + dangling + b'{"role":"user","content":"d","more":1,"more":true}\n{"role":"us')
    with Memory(root) as memory:
        with pytest.warns(TornTailWarning):
            mem = memory.open("t")
        assert [problem.line for problem in mem.problems] == [3]
        mem.extend([Message("user", "q"), Message("assistant", "r")])
        held = [message.content for message in mem.messages()]
    assert held[-2:] == ["q", "r"]
    assert reopened(root) == held


def test_another_program_s_unit_is_no_unit_of_ours(root: Path) -> None:
    """Foreign lines with a `unit` or a `more` of their own are turns, and show it in meta."""
    line = b'{"role":"user","content":"lesson","unit":2,"more":true}\n'
    put(root, line * 3)
    with Memory(root) as memory:
        mem = memory.open("t")
        assert [message.meta for message in mem.messages()] == [{"unit": 2, "more": True}] * 3
    assert (root / "default" / "t.jsonl").read_bytes() == line * 3


def test_only_a_byte_order_mark(root: Path) -> None:
    """A file that holds a byte order mark alone is an empty thread (C20)."""
    put(root, b"\xef\xbb\xbf")
    with Memory(root) as memory:
        assert len(memory.open("t")) == 0
        memory.open("t").append("x")
    assert reopened(root) == ["x"]


def test_a_whole_turn_gets_its_newline_before_the_next(root: Path) -> None:
    """Where the newline could not be added at open, it is before the next append (C03)."""

    class Full(System):
        """A disk that is full until it is not."""

        full = True

        def write(self, fd: int, data: bytes | memoryview) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "injected")
            return super().write(fd, data)

    system = Full()
    put(root, BASE[:-1])
    with Memory(JsonlStore(root, system=system)) as memory:
        mem = memory.open("t")
        with pytest.raises(NotWritten, match="No space left"):
            mem.append("too early")
        system.full = False
        mem.append("next")
    assert reopened(root) == ["a", "next"]


def test_a_committer_that_cannot_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started the appends complete all the same, sync and async."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "turnlog":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    entered, go_on = threading.Event(), threading.Event()

    class Gated(System):
        """Holds the first sync until another append waits."""

        def sync(self, fd: int) -> None:
            entered.set()
            go_on.wait()
            super().sync(fd)

    with Memory(JsonlStore(root, system=Gated())) as memory:
        mem = memory.open("t")
        first = threading.Thread(target=mem.append, args=("one",))
        first.start()
        entered.wait()
        second = threading.Thread(target=mem.append, args=("two",))
        second.start()
        while not mem._commit._queue:  # pyright: ignore[reportPrivateUsage]
            second.join(0.001)
        go_on.set()
        first.join()
        second.join()

        import asyncio  # noqa: PLC0415 - used here alone

        asyncio.run(mem.aappend("three"))
    assert reopened(root) == ["one", "two", "three"]


@pytest.mark.parametrize("where", ["sync", "try_lock"])
def test_a_signal_s_handler_that_raises(root: Path, where: str) -> None:
    """A handler that raises in the middle of a commit leaves a thread that goes on."""

    class Signalled(System):
        """Sends a signal at the first call of one kind."""

        sent = False

        def _send(self, call: str) -> None:
            if call == where and not self.sent:
                self.sent = True
                os.kill(os.getpid(), signal.SIGUSR1)

        def sync(self, fd: int) -> None:
            self._send("sync")
            super().sync(fd)

        def try_lock(self, fd: int, *, shared: bool) -> bool:
            self._send("try_lock")
            return super().try_lock(fd, shared=shared)

    def leave(*_: object) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGUSR1, leave)
    try:
        with Memory(JsonlStore(root, system=Signalled())) as memory:
            with pytest.raises(SystemExit):
                memory.open("t").append("one")
            held = reopened(root)
            memory.open("t").append("two")
        assert reopened(root) == [*held, "two"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_append_in_a_signal_s_handler(root: Path) -> None:
    """A handler is called when the append that its signal met is over, so it can append (C45)."""
    mem: MemoryThread | None = None

    class Signalled(System):
        """Sends a signal in the first sync."""

        sent = False

        def sync(self, fd: int) -> None:
            if mem is not None and not self.sent:
                self.sent = True
                os.kill(os.getpid(), signal.SIGUSR1)
            super().sync(fd)

    def note(*_: Any) -> None:
        assert mem is not None
        mem.append("noted")

    before = signal.signal(signal.SIGUSR1, note)
    try:
        with Memory(JsonlStore(root, system=Signalled())) as memory:
            mem = memory.open("t")
            mem.append("one").append("two")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert reopened(root) == ["one", "noted", "two"]


def test_one_folder_s_failure_is_its_own(root: Path) -> None:
    """A folder that cannot be synced fails the appends in it, and no other (Contract 4)."""
    import asyncio  # noqa: PLC0415 - used here alone

    class Bad(System):
        """Fails to sync one folder."""

        def sync_folder(self, path: str) -> None:
            if path.endswith("/bad"):
                raise OSError(errno.EIO, "injected")
            super().sync_folder(path)

    async def main() -> list[Any]:
        threads = [await memory.aopen("t", name) for name in ("good", "bad")]
        appends = (thread.aappend("x") for thread in threads)
        return await asyncio.gather(*appends, return_exceptions=True)

    with Memory(JsonlStore(root, system=Bad())) as memory:
        good, bad = asyncio.run(main())
    assert (type(good).__name__, type(bad)) == ("MemoryThread", NotWritten)
    assert bad.errno == errno.EIO


def test_what_cannot_be_synced_is_not_built_upon(root: Path) -> None:
    """Turns of a killed writer that no sync reaches are not shown as read (C25)."""

    class Failing(System):
        """Fails each sync while it is told to."""

        failing = False

        def sync(self, fd: int) -> None:
            if self.failing:
                raise OSError(errno.EIO, "injected")
            super().sync(fd)

    system = Failing()
    with Memory(JsonlStore(root, system=system)) as memory:
        mem = memory.open("t").append("one")
        path = root / "default" / "t.jsonl"
        path.write_bytes(path.read_bytes() + BASE)
        system.failing = True
        with pytest.raises(NotWritten):
            mem.refresh()
        assert len(mem) == 1
        system.failing = False
        mem.append("two")
        assert [message.content for message in mem.messages()] == ["one", "a", "two"]
