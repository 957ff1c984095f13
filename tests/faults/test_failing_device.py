"""Contract 4: calls of the system that fail, by the seam and by strace on a real process (C25)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from machine import needs_strace, strace
from systems import Fails, Notes, ShortWrites, Together, Watched
from writers import contents, lines_on_disk, result

from turnlog import (
    Memory,
    MemoryThread,
    Message,
    NotWritten,
    OutcomeUnknown,
    StoreError,
    TurnlogError,
)
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Callable

# What a write or a sync may fail with, and a word of what the user is told to do about it.
ERRORS = [
    ("sync", errno.EIO, "device failed"),
    ("sync", errno.ENOSPC, "free space"),
    ("sync", errno.EDQUOT, "quota"),
    ("write", errno.EIO, "device failed"),
    ("write", errno.ENOSPC, "free space"),
    ("write", errno.EFBIG, "ulimit -f"),
    ("write", errno.EROFS, "read-only"),
    ("try_lock", errno.ENOLCK, "no locks"),
    ("status_of", errno.EIO, "device failed"),
]


def opened(root: Path, before: Callable[[str, tuple[Any, ...]], None]) -> MemoryThread:
    """Open a thread over a system with something before its calls."""
    return Memory(JsonlStore(root, system=Watched(before))).open("t")


def file_of(root: Path) -> Path:
    """Give the path of the thread's file."""
    return root / "default" / "t.jsonl"


@pytest.mark.parametrize(("call", "error", "hint"), ERRORS)
def test_failed_call(root: Path, call: str, error: int, hint: str) -> None:
    """An append that the device fails is undone at once and raises NotWritten (Contract 4, C25)."""
    before = Together()
    thread = opened(root, before)
    thread.append("first")
    data = file_of(root).read_bytes()
    before.befores.append(Fails(call, error))
    with pytest.raises(NotWritten, match=r"thread 't' in namespace 'default'") as failed:
        thread.append("second", key="k")
    assert hint in failed.value.hint
    assert isinstance(failed.value.__cause__, OSError)
    assert failed.value.__cause__.errno == error
    assert file_of(root).read_bytes() == data
    assert [m.content for m in thread.messages()] == ["first"]
    thread.append("second", key="k").append("third")
    assert lines_on_disk(root) == ["first", "second", "third"] == contents(root)


def test_failed_sync_is_not_tried_again(root: Path) -> None:
    """After a failed sync the pages are cut off before anything else is synced (Contract 4)."""
    notes = Notes()
    thread = opened(root, Together([notes, Fails("sync", errno.EIO, skip=1)]))
    thread.append("first")
    notes.calls.clear()
    with pytest.raises(NotWritten):
        thread.append("second")
    assert notes.names("write", "sync", "truncate", "unlock") == [
        *("write", "sync"),
        *("truncate", "sync"),
        "unlock",
    ]


@pytest.mark.parametrize("lost", ["truncate", "sync"])
@pytest.mark.parametrize("kept", [True, False])
def test_outcome_unknown(root: Path, lost: str, kept: bool) -> None:  # noqa: FBT001
    """Where undoing fails too, the handle is closed, and a retry by key appends once (C25)."""
    before = Together()
    thread = opened(root, before)
    memory = thread.memory
    thread.append("first")
    before.befores += [Fails("sync", errno.EIO), Fails(lost, errno.EIO)]
    with pytest.raises(OutcomeUnknown, match=r"thread 't'.*open the thread again"):
        thread.append("second", key="k")
    for attempt in (
        lambda: thread.append("third"),
        lambda: thread.extend([Message("user", "third")]),
        lambda: asyncio.run(thread.aappend("third")),
        thread.refresh,
    ):
        with pytest.raises(OutcomeUnknown):
            attempt()
    assert [m.content for m in thread.messages()] == ["first"]
    if not kept:  # the device gives what it has: the line never reached it
        data = file_of(root).read_bytes().split(b"\n")[0] + b"\n"
        file_of(root).write_bytes(data)
    again = memory.open("t")
    assert again is not thread
    again.append("second", key="k").append("third")
    assert again.index_of("k") == 1
    assert lines_on_disk(root) == ["first", "second", "third"] == contents(root)


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_short_writes(root: Path, most: int) -> None:
    """A system that takes less than it is given at once gets the rest after it (Contract 4)."""
    turns = ["é" * 50, "x" * 5_000 if most > 1 else "x"]
    with Memory(JsonlStore(root, system=ShortWrites(most))) as memory:
        thread = memory.open("t")
        for turn in turns:
            thread.append(turn)
    assert lines_on_disk(root) == turns == contents(root)


def test_short_write_and_then_none(root: Path) -> None:
    """A write that is cut short and then fails is undone whole, and never tried again (C08)."""

    class Full(System):
        room = 10**9

        def write(self, fd: int, data: bytes | memoryview) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = super().write(fd, data[: self.room])
            self.room -= written
            return written

    system = Full()
    with Memory(JsonlStore(root, system=system)) as memory:
        thread = memory.open("t").append("first")
        data = file_of(root).read_bytes()
        for room in range(0, 120, 7):
            system.room = room
            with pytest.raises(NotWritten):
                thread.append("x" * 100)
            assert file_of(root).read_bytes() == data
        system.room = 10**9
        thread.append("x" * 100)
    assert lines_on_disk(root) == ["first", "x" * 100]


def test_one_of_a_batch(root: Path) -> None:
    """One thread's failing file costs the other threads of the same batch nothing (Contract 4)."""

    class OneFails(System):
        def sync(self, fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").endswith("/2.jsonl"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().sync(fd)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")

    async def main(memory: Memory) -> list[object]:
        threads = [await memory.aopen(str(i)) for i in range(4)]
        return list(
            await asyncio.gather(*(t.aappend("x") for t in threads), return_exceptions=True)
        )

    with Memory(JsonlStore(root, system=OneFails())) as memory:
        outcomes = asyncio.run(main(memory))
    assert [type(outcome) for outcome in outcomes] == [
        *(MemoryThread, MemoryThread),
        *(OutcomeUnknown, MemoryThread),  # of this one, the sync of the rollback failed too
    ]
    assert [contents(root, str(i)) for i in (0, 1, 3)] == [["x"]] * 3


def test_folders_that_cannot_be_synced(root: Path) -> None:
    """A first append whose folder's sync fails is undone; trying again works (Contract 1)."""
    for call in range(3):
        place = root / str(call)
        thread = opened(place, Fails("sync_folder", errno.EIO, skip=call))
        with pytest.raises(NotWritten, match="device failed"):
            thread.append("first", key="k")
        assert contents(place) == []
        thread.append("first", key="k").append("second")
        assert lines_on_disk(place) == ["first", "second"]


@pytest.mark.parametrize("fresh", [True, False])
def test_any_call_fails(root: Path, fresh: bool) -> None:  # noqa: FBT001
    """Whichever call of an append fails, its outcome is the truth and the lock is let go of."""
    held = [] if fresh else ["first"]
    for number in range(100):
        place = root / str(number)
        if not fresh:
            with Memory(place) as memory:
                memory.open("t").append("first")
        notes, befores = Notes(), Together()
        thread = opened(place, befores)
        befores.befores = [notes, FailsAt(number)]
        failed: TurnlogError | None = None
        try:
            thread.append("second")
        except TurnlogError as error:
            failed = error
        befores.befores = []
        with Memory(place, lock_timeout=0) as memory:  # the lock is free
            found = [message.content for message in memory.open("t").messages()]
        if failed is None:
            assert found == [*held, "second"]
            assert contents(place) == found
        else:
            assert isinstance(failed, NotWritten), notes.names()[number]
            assert found == held, notes.names()[number]
            thread.append("second")
        thread.append("third")
        assert lines_on_disk(place) == [*held, "second", "third"]
        if len(notes.calls) <= number:
            return
    pytest.fail("an append makes more than a hundred calls")


class FailsAt:
    """Fails the call of some number, whichever it is; to let go of a thing does not fail."""

    def __init__(self, number: int) -> None:
        """Count down to it."""
        self.left = number

    def __call__(self, call: str, _: tuple[Any, ...]) -> None:
        """Fail, where it is time to."""
        self.left -= 1
        if self.left == -1 and call not in {"unlock", "close"}:
            raise OSError(errno.EIO, os.strerror(errno.EIO), call)


# ---- by strace, on a process that knows of no seam ----


def attempts(root: Path, inject: str, *, at: Path | None = None) -> list[str]:
    """Have a process try four appends under a fault; give what became of each, and its turns."""
    return result("attempts", root, "t", 4, under=strace(inject, at or file_of(root)))


@needs_strace
@pytest.mark.parametrize(
    ("inject", "outcome"),
    [
        ("fdatasync:error=EIO:when=2", "NotWritten Input/output error"),
        ("fdatasync:error=ENOSPC:when=2", "NotWritten No space left on device"),
        ("write:error=ENOSPC:when=2", "NotWritten No space left on device"),
        ("write:error=EIO:when=2", "NotWritten Input/output error"),
        ("flock:error=ENOLCK:when=3", "NotWritten No locks available"),
        ("fdatasync:error=EINTR:when=2", "ok"),
        ("write:error=EINTR:when=2", "ok"),
        ("write:retval=0:when=2", "ok"),
    ],
)
def test_real_process(root: Path, inject: str, outcome: str) -> None:
    """A real process under a real fault tells the truth of each append and goes on (C25)."""
    *outcomes, held = attempts(root, inject)
    assert outcomes == ["ok", outcome, "ok", "ok"]
    expected = [f"turn {i}" for i in range(4) if outcomes[i] == "ok"]
    assert json.loads(held) == expected == lines_on_disk(root)


@needs_strace
@pytest.mark.parametrize("when", [1, 2, 3, 4, 5])
def test_real_process_without_descriptors(root: Path, when: int) -> None:
    """A process that gets no descriptor says so, and appends when there is one (Contract 4)."""
    with Memory(root) as memory:
        memory.open("t").append("first")
    seen = attempts(root, f"openat:error=EMFILE:when={when}", at=root / "default")
    if seen == ["StoreError Too many open files"]:  # it was one for the opening
        assert contents(root) == ["first"]
    else:
        assert seen[:4] == ["NotWritten Too many open files", "ok", "ok", "ok"]
        assert lines_on_disk(root) == ["first", "turn 1", "turn 2", "turn 3"]


@needs_strace
def test_real_process_cannot_open(root: Path) -> None:
    """A device that cannot be read fails the opening with our error, and changes nothing."""
    with Memory(root) as memory:
        memory.open("t").append("first")
    assert attempts(root, "pread64:error=EIO:when=1") == ["StoreError Input/output error"]
    assert contents(root) == ["first"]


@needs_strace
def test_real_process_with_unknown_outcome(root: Path) -> None:
    """Where undoing fails too it says so, and a new process' retry by key appends once (C25)."""
    *outcomes, held = attempts(root, "fdatasync:error=EIO:when=2+")
    assert outcomes == ["ok", *["OutcomeUnknown Input/output error"] * 3]
    assert json.loads(held) == ["turn 0"]
    *outcomes, held = result("attempts", root, "t", 4)
    assert outcomes == ["ok"] * 4
    assert json.loads(held) == [f"turn {i}" for i in range(4)] == lines_on_disk(root)


@needs_strace
def test_real_process_that_cannot_cut(root: Path) -> None:
    """Where the failed line cannot be cut off, a retry by its key finds it or appends it once."""
    file = file_of(root)
    under = strace("ftruncate,fdatasync:error=EIO:when=2", file)
    # The cut is the first of its kind, the sync that makes it needed the second.
    under[-1:] = ["inject=fdatasync:error=EIO:when=2", "-e", "inject=ftruncate:error=EIO:when=1"]
    *outcomes, _ = result("attempts", root, "t", 2, under=under)
    assert outcomes == ["ok", "OutcomeUnknown Input/output error"]
    *outcomes, _ = result("attempts", root, "t", 2)
    assert outcomes == ["ok", "ok"]
    assert lines_on_disk(root) == ["turn 0", "turn 1"]


def test_error_at_opening(root: Path) -> None:
    """Opening fails with our error where the device does, and works when it does again."""
    with Memory(root) as memory:
        memory.open("t").append("first")
    before = Together()
    memory = Memory(JsonlStore(root, system=Watched(before)))
    for call in ("open_file", "try_lock", "status_of", "read", "sync"):
        before.befores = [Fails(call, errno.EIO)]
        with pytest.raises(StoreError, match=r"thread 't'.*device failed"):
            memory.open("t")
    assert [m.content for m in memory.open("t").messages()] == ["first"]
