"""Contract 3: another process has the lock, and stands still, or dies with it (C26)."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from bytesofit import aside, turn
from systems import Gate, Together, Watched
from writers import contents, go, line, lines_on_disk, rest, running

from turnlog import LockTimeout, Memory, NotWritten, TornTailWarning
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from pathlib import Path


def test_stopped_holder(root: Path) -> None:
    """Behind a stopped process an append waits a bounded time, and writes nothing (C26)."""
    with Memory(root, lock_timeout=0.2) as memory:
        thread = memory.open("t").append("first")
        others = [memory.open(str(i)) for i in range(3)]
        with running("hold", root, "t") as holder:
            assert line(holder) == "ready"
            holder.send_signal(signal.SIGSTOP)
            size = (root / "default" / "t.jsonl").stat().st_size
            for attempt in (
                lambda: thread.append("second", key="k"),
                lambda: asyncio.run(thread.aappend("second")),
                thread.refresh,
            ):
                begun = time.monotonic()
                with pytest.raises(LockTimeout, match=r"thread 't' in namespace 'default'") as late:
                    attempt()
                assert 0.2 <= time.monotonic() - begun < 60
                assert "nothing was written" in str(late.value)
                assert isinstance(late.value, NotWritten)
                assert isinstance(late.value, TimeoutError)
            with Memory(root, lock_timeout=0.2) as another, pytest.raises(LockTimeout):
                another.open("t")
            with Memory(root, lock_timeout=0.2, read_only=True) as another:
                with pytest.raises(LockTimeout):
                    another.open("t")
                assert "t" in [info.id for info in another.threads()]  # listing takes no lock
            assert (root / "default" / "t.jsonl").stat().st_size == size
            assert [m.content for m in thread.messages()] == ["first"]
            for other in others:
                other.append("not held up")
            holder.send_signal(signal.SIGCONT)
            go(holder)
            assert rest(holder) == ["done"]
        thread.append("second", key="k")
    assert lines_on_disk(root) == ["first", "held 0", "second"]
    assert [contents(root, str(i)) for i in range(3)] == [["not held up"]] * 3


def test_others_go_on_meanwhile(root: Path) -> None:
    """While one thread of a memory waits for its lock, its other threads append (Contract 3)."""
    tried = threading.Event()

    def before(call: str, _: object) -> None:
        if call == "try_lock":
            tried.set()

    memory = Memory(JsonlStore(root, system=Watched(before)), lock_timeout=60)
    thread = memory.open("t")
    with memory, running("hold", root, "t") as holder:
        assert line(holder) == "ready"
        holder.send_signal(signal.SIGSTOP)
        late = threading.Thread(target=thread.append, args=("at last",))
        late.start()
        assert tried.wait(60)

        async def main() -> None:
            threads = [await memory.aopen(f"other {i}") for i in range(5)]
            for i in range(3):
                await asyncio.gather(*(other.aappend(str(i)) for other in threads))

        asyncio.run(main())
        memory.open("other 0").append("3")
        assert late.is_alive()
        assert len(thread) == 0
        holder.send_signal(signal.SIGCONT)
        go(holder)
        assert rest(holder) == ["done"]
        late.join()
    assert lines_on_disk(root) == ["held 0", "at last"]
    assert contents(root, "other 0") == ["0", "1", "2", "3"]
    assert contents(root, "other 4") == ["0", "1", "2"]


@pytest.mark.parametrize("stopped", [True, False])
def test_killed_holder(root: Path, stopped: bool) -> None:  # noqa: FBT001
    """A dead process' lock is free at once, and the next append reads what it had written (C26)."""
    with Memory(root) as memory:
        thread = memory.open("t").append("first")
        with running("hold", root, "t") as holder:
            assert line(holder) == "ready"
            if stopped:
                holder.send_signal(signal.SIGSTOP)
            holder.kill()
            holder.wait()
        thread.append("second")
        assert [m.content for m in thread.messages()] == ["first", "held 0", "second"]
    assert lines_on_disk(root) == ["first", "held 0", "second"]


def test_append_that_waits_when_the_holder_dies(root: Path) -> None:
    """An append that waits for the lock goes on when its holder is killed, and mends (C26)."""
    with Memory(root, lock_timeout=60) as memory:
        thread = memory.open("t").append("first")
        with running("hold", root, "t") as holder:
            assert line(holder) == "ready"
            told: list[Warning | str] = []

            def work() -> None:
                with pytest.warns(TornTailWarning) as warned:
                    thread.append("second")
                told.extend(warning.message for warning in warned)

            waiting = threading.Thread(target=work)
            waiting.start()
            with (root / "default" / "t.jsonl").open("ab") as file:
                file.write(turn("x" * 100)[:50])  # it dies in the middle of a write
            holder.kill()
            holder.wait()
            waiting.join()
        assert len(told) == 1
        assert lines_on_disk(root) == ["first", "held 0", "second"]
        assert aside(root / "default" / "t.jsonl") == turn("x" * 100)[:50]


def test_lock_timeout_of_nothing(root: Path) -> None:
    """With lock_timeout=0 an append does not wait at all; a free lock is taken."""
    with Memory(root, lock_timeout=0) as memory:
        thread = memory.open("t").append("first").append("second")
        with running("hold", root, "t") as holder:
            assert line(holder) == "ready"
            with pytest.raises(LockTimeout):
                thread.append("third")
        thread.append("third")
    assert lines_on_disk(root) == ["first", "second", "held 0", "third"]


def test_turns_of_a_dead_writer_are_made_durable(root: Path) -> None:
    """What a killed process wrote and did not sync is synced before it is built upon (C26)."""
    with Memory(root) as another:
        another.open("t").append("first")
    before = Together()
    with Memory(JsonlStore(root, system=Watched(before))) as memory:
        thread = memory.open("t")
        with running("hold", root, "t") as holder:
            assert line(holder) == "ready"
            holder.kill()
            holder.wait()
        gate = Gate("sync")
        before.befores.append(gate)
        reading = threading.Thread(target=thread.refresh)
        reading.start()
        assert gate.reached.wait(60)
        assert [m.content for m in thread.messages()] == ["first"]  # not before its sync
        gate.opened.set()
        reading.join()
        assert [m.content for m in thread.messages()] == ["first", "held 0"]


def test_two_memories_in_one_process(root: Path) -> None:
    """Two memories of one process exclude each other as two processes do (Contract 3)."""
    gate = Gate("sync")
    with Memory(JsonlStore(root, system=Watched(gate))) as first, Memory(root) as second:
        appending = threading.Thread(target=first.open("t").append, args=("first",))
        appending.start()
        assert gate.reached.wait(60)
        with Memory(root, lock_timeout=0) as third, pytest.raises(LockTimeout):
            third.open("t")
        waiting = threading.Thread(target=lambda: second.open("t").append("second"))
        waiting.start()
        gate.opened.set()
        appending.join()
        waiting.join()
    assert lines_on_disk(root) == ["first", "second"]
