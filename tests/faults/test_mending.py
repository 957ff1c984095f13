"""Contract 5: the repair of a torn tail, which may itself fail or crash at any of its steps."""

from __future__ import annotations

import errno
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from bytesofit import aside, put, seen, turn, unit
from machine import needs_root, tiny_tmpfs
from systems import CALLS, Fails, Notes, Together, Watched
from writers import lines_on_disk

from turnlog import Memory, NotWritten, StoreError, TornTailWarning
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from pathlib import Path

BASE = turn("first") + turn("second")
TAILS = {
    "torn": turn("안녕" * 40)[:130],
    "no newline": turn("third")[:-1],
    "NULs": b"\0" * 700,
    "unit": unit("a", "b", "c")[:-3],
    "two lines": b'{"role":' + b"\0" * 40 + b'"}\n' + turn("x")[:30],
}


class CrashError(BaseException):
    """The machine stops: nothing may handle it."""


@dataclass
class Crashes(System):
    """Crashes at the call of some number; a write is half done by then."""

    left: int
    crashed: bool = False

    def __getattribute__(self, name: str) -> Any:
        """Give a call that may be the last."""
        attribute = super().__getattribute__(name)
        # The system lets go of what a dead process had open and locked.
        if name not in CALLS or name in {"close", "unlock"}:
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.crashed or self.left < 0:
                self.half_write(name, args)
                self.crashed = True
                raise CrashError
            return attribute(*args, **kwargs)

        return call

    def half_write(self, name: str, args: tuple[Any, ...]) -> None:
        """Write half of what was to be written."""
        if name == "write" and not self.crashed:
            os.write(args[0], args[1][: len(args[1]) // 2])


@pytest.mark.parametrize("tail", TAILS)
def test_crash_at_every_call(root: Path, tail: str) -> None:
    """A crash at any call of a repair loses no byte, and a fresh process repairs (Contract 5)."""
    torn = TAILS[tail]
    whole = tail == "no newline"
    for number in range(60):
        name = str(number)
        file = put(root, BASE + torn, name)
        system = Crashes(number)
        with suppress(CrashError):
            seen(JsonlStore(root, system=system), name)
        data, moved = file.read_bytes(), aside(file)
        assert data.startswith(BASE)
        if whole:
            assert data.startswith(BASE + torn)
        else:
            assert data == BASE + torn or (data == BASE and moved.endswith(torn))
        found = seen(root, name, then="next")
        assert found.problems == ()
        assert found.contents == ["first", "second", *["third"] * whole, "next"]
        assert lines_on_disk(root, name) == found.contents
        if not whole:
            assert aside(file).endswith(torn)
            assert torn not in aside(file)[: -len(torn)], "the tear was copied twice"
        if not system.crashed:
            assert number > 5
            return
    pytest.fail("an opening makes more than sixty calls")


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("call", ["open_file", "write", "sync", "truncate", "sync_folder"])
def test_repair_fails(root: Path, tail: str, call: str) -> None:
    """Where the end cannot be mended the thread opens all the same, and no byte is lost."""
    torn = TAILS[tail]
    whole = tail == "no newline"
    if whole and call == "sync_folder":
        pytest.skip("a newline needs no copy")
    file = put(root, BASE + torn)
    skip = 1 if call == "open_file" else 0  # the first opening is of the file itself
    before = Together([Fails(call, errno.ENOSPC, skip=skip)])
    memory = Memory(JsonlStore(root, system=Watched(before)))
    turns = ["first", "second", *["third"] * whole]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thread = memory.open("t")
    assert all(issubclass(warning.category, TornTailWarning) for warning in told)
    assert len(told) == (not whole)
    assert [m.content for m in thread.messages()] == turns
    data = file.read_bytes()
    assert data.startswith(BASE + torn) or aside(file).endswith(torn)
    before.befores.clear()
    found = seen(root, then="next")
    assert found.contents == [*turns, "next"]
    assert whole or aside(file).endswith(torn)
    memory.close()


def test_order_of_a_repair(root: Path) -> None:
    """A repair copies, syncs the copy and its name, and only then cuts, and syncs (Contract 5)."""
    put(root, BASE + TAILS["torn"])
    notes = Notes()
    seen(JsonlStore(root, system=Watched(notes)))
    steps = notes.names("write", "sync", "sync_folder", "truncate")
    assert steps[:5] == ["write", "sync", "sync_folder", "truncate", "sync"]


def full(root: Path) -> None:
    """Check a thread with a torn tail on a disk without room, by the way that it goes."""
    file = root / "default" / "t.jsonl"
    data = file.read_bytes()
    memory = Memory(root)
    with pytest.warns(TornTailWarning, match="could not be moved aside yet"):
        thread = memory.open("t")
    assert [m.content for m in thread.messages()] == ["first", "second"]
    for _ in range(2):
        with pytest.raises(NotWritten, match="free space"):
            thread.append("next")
        assert file.read_bytes() == data
    (root / "filler").unlink()
    with pytest.warns(TornTailWarning, match="moved to"):
        thread.append("next")
    assert lines_on_disk(root) == ["first", "second", "next"]
    memory.close()


@needs_root
def test_full_disk(tmp_path: Path) -> None:
    """On a full disk a torn thread opens for reading, and is repaired when there is room (C32)."""
    with tiny_tmpfs(tmp_path / "disk") as disk:
        torn = turn("x" * 10_000)[:9_000]
        file = put(disk, BASE + torn)
        room = os.statvfs(disk)
        (disk / "filler").write_bytes(b"z" * (room.f_bavail * room.f_frsize))
        full(disk)
        assert aside(file) == torn


@needs_root
def test_no_inode_for_the_copy(tmp_path: Path) -> None:
    """Where no file can be made for the torn bytes, they stay where they are until it can."""
    with tiny_tmpfs(tmp_path / "disk", "nr_inodes=4") as disk:
        file = put(disk, BASE + TAILS["torn"])
        (disk / "filler").touch()
        full(disk)
        assert aside(file) == TAILS["torn"]


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_something_else_under_the_copy_s_name(root: Path, tmp_path: Path, kind: str) -> None:
    """What stands under the name of the copy and is no file is not written to (Contract 5, 8)."""
    file = put(root, BASE + TAILS["torn"])
    place = file.with_name("t.jsonl.torn")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)
    with Memory(root) as memory:
        with pytest.warns(TornTailWarning, match="could not be moved aside yet"):
            thread = memory.open("t")
        assert [m.content for m in thread.messages()] == ["first", "second"]
        with pytest.raises(StoreError, match="thread 't'"):
            thread.append("next")
        assert file.read_bytes() == BASE + TAILS["torn"]
        assert elsewhere.read_bytes() == b"precious"
        place.rmdir() if kind == "folder" else place.unlink()
        with pytest.warns(TornTailWarning):
            thread.append("next")
    assert lines_on_disk(root) == ["first", "second", "next"]
