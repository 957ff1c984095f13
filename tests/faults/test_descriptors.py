"""Contract 8: descriptors that another part of the program closes, or had closed from the start."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from bytesofit import turn
from machine import in_child
from systems import Notes, Watched
from writers import contents, lines_on_disk

from turnlog import Memory, NotWritten, OutcomeUnknown
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


def descriptor_of(file: Path) -> int:
    """Return the number under which this process has a file open."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.readlink(f"/proc/self/fd/{number}") == str(file):
                return number
        except FileNotFoundError:
            continue
    raise AssertionError("it is not open")


class Foreign:
    """Another file of the program's, which it has locked, under a number that was turnlog's."""

    def __init__(self, file: Path, data: bytes, number: int) -> None:
        """Give the number to a new file."""
        self.file, self.data, self.number = file, data, number
        file.write_bytes(data)
        opened = os.open(file, os.O_RDWR | os.O_APPEND)
        fcntl.flock(opened, fcntl.LOCK_EX)
        os.dup2(opened, number, inheritable=False)
        os.close(opened)

    def is_as_it_was(self) -> bool:
        """Return whether it is open, locked and unchanged."""
        assert os.path.samestat(os.fstat(self.number), os.stat(self.file))
        with self.file.open("rb") as another, pytest.raises(BlockingIOError):
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self.file.read_bytes() == self.data


@contextmanager
def foreign(file: Path, data: bytes, number: int) -> Generator[Foreign]:
    """Give a number to another file, and close that at the end."""
    other = Foreign(file, data, number)
    try:
        yield other
    finally:
        os.close(number)


@pytest.mark.parametrize("copied", [True, False], ids=["a copy of it", "another file"])
def test_number_given_to_another_file(root: Path, copied: bool) -> None:  # noqa: FBT001
    """A number that was given to another file is neither written to nor closed (C56)."""
    file = root / "default" / "t.jsonl"
    with Memory(root) as memory:
        thread = memory.open("t").append("first")
        data = file.read_bytes() if copied else b"precious"
        with foreign(root.parent / "other", data, descriptor_of(file)) as other:
            thread.append("second").append("third", expect=2)
            assert other.is_as_it_was()
            memory.close()
            assert other.is_as_it_was()
    assert lines_on_disk(root) == ["first", "second", "third"] == contents(root)


def test_closed_descriptor(root: Path) -> None:
    """A descriptor that another part of the program closed is opened again (C56)."""
    with Memory(root) as memory:
        thread = memory.open("t").append("first")
        os.close(descriptor_of(root / "default" / "t.jsonl"))
        thread.append("second").refresh()
    assert lines_on_disk(root) == ["first", "second"]


def test_number_given_to_a_reader_of_the_file(root: Path) -> None:
    """A number that was given to a reader of the thread's own file is left to it (C56)."""
    file = root / "default" / "t.jsonl"
    with Memory(root) as memory:
        thread = memory.open("t").append("first")
        number = descriptor_of(file)
        with file.open("rb") as reading:
            os.dup2(reading.fileno(), number, inheritable=False)
        with pytest.raises(NotWritten, match="closed turnlog's descriptor"):
            thread.append("second")
        thread.append("second").append("third")
        assert os.pread(number, 1, 0) == b"{"
        os.close(number)
    assert lines_on_disk(root) == ["first", "second", "third"]


def test_kept_file_that_is_not_open_any_more(root: Path) -> None:
    """Deleting a thread and closing the memory leave a number alone that is another's (C56)."""
    with Memory(root) as memory:
        memory.open("t").append("first")
        number = descriptor_of(root / "default" / "t.jsonl")
        with foreign(root.parent / "other", b"precious", number) as other:
            assert memory.delete("t")
            assert other.is_as_it_was()


class Swapping(System):
    """Gives the number of the file to another one at its next sync, which fails."""

    other: Foreign | None = None
    armed = False

    def sync(self, fd: int) -> None:
        """Sync, or fail in the middle of a double close."""
        if self.armed:
            self.armed = False
            file = os.readlink(f"/proc/self/fd/{fd}")
            self.other = Foreign(type(self).place / os.path.basename(file), b"precious", fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)

    place: Path


def test_number_given_away_during_an_append(root: Path, tmp_path: Path) -> None:
    """What cannot be rolled back for want of the descriptor has an unknown outcome (C56)."""
    system = Swapping()
    Swapping.place = tmp_path
    with Memory(JsonlStore(root, system=system)) as memory:
        thread = memory.open("t").append("first")
        system.armed = True
        with pytest.raises(OutcomeUnknown, match="closed its descriptor"):
            thread.append("second", key="k")
        assert system.other is not None
        assert system.other.is_as_it_was()
        memory.open("t").append("second", key="k").append("third")
        assert system.other.is_as_it_was()
        os.close(system.other.number)
    assert lines_on_disk(root) == ["first", "second", "third"]


@pytest.mark.parametrize("call", ["try_lock", "read", "write"])
def test_closed_during_an_append(root: Path, call: str) -> None:
    """A descriptor that is closed in the middle of an append makes it fail, and no more (C56)."""
    closing: list[int] = []

    def close(name: str, args: tuple[object, ...]) -> None:
        if name == call and closing and args[0] == closing[0]:
            os.close(closing.pop())

    with Memory(JsonlStore(root, system=Watched(close))) as memory:
        thread = memory.open("t").append("first")
        closing.append(descriptor_of(root / "default" / "t.jsonl"))
        with pytest.raises(NotWritten, match=r"thread 't'.*descriptor"):
            thread.append("second")
        thread.append("second")
    assert lines_on_disk(root) == ["first", "second"]


def test_turn_lock_that_was_closed(root: Path) -> None:
    """Leaving a turn lock lets go of nothing that is another file's by now (C56)."""
    with Memory(root) as memory:
        lock = memory.open("t").turn_lock()
        with lock:
            number = descriptor_of(root / "default" / "t.jsonl.lock")
            other = Foreign(root.parent / "other", b"precious", number)
        assert other.is_as_it_was()
        os.close(number)
        with lock:
            pass


def test_calls_of_an_append(root: Path) -> None:
    """Looking at the descriptor and at the last bytes costs an append a call each (C56, C59)."""
    notes = Notes()
    with Memory(JsonlStore(root, system=Watched(notes))) as memory:
        thread = memory.open("t").append("first")
        notes.calls.clear()
        thread.append("second")
        assert notes.names() == [
            *("status", "try_lock", "status_of", "read"),
            *("write", "sync", "unlock"),
        ]


# ---- standard streams that are closed ----

PROGRAM = """
import os, sys
from turnlog import Memory

def printed():
    for number in range(3):
        try:
            os.write(number, b"printed")
        except OSError:
            pass

with Memory(sys.argv[1]) as memory:
    thread = memory.open("t")
    with thread.turn_lock():
        printed()
        thread.append("second")
        printed()
        numbers = [n for n in os.listdir("/proc/self/fd") if int(n) > 2]
        names = [os.readlink(f"/proc/self/fd/{n}") for n in numbers]
        assert sum(name.startswith(sys.argv[1]) for name in names) == 2, names
"""


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(root: Path, closed: str) -> None:
    """What a program prints that was started without its streams is in no file of ours (C57)."""
    with Memory(root) as memory:
        memory.open("t").append("first")
    file = root / "default" / "t.jsonl"
    file.write_bytes(file.read_bytes() + turn("torn")[:-20])
    script = f'exec "$0" -W ignore -c "$1" "$2" {closed}'
    subprocess.run(["sh", "-c", script, sys.executable, PROGRAM, str(root)], check=True, timeout=60)
    assert lines_on_disk(root) == ["first", "second"]
    assert (root / "default" / "t.jsonl.lock").read_bytes() == b""


def test_numbers_of_files(root: Path) -> None:
    """No file gets the number of a standard stream, not even for a moment (C57)."""
    root.mkdir()
    assert min(in_child(partial(numbers_of_files, root))) > 2


def numbers_of_files(root: Path) -> list[int]:
    """Open a file twice with the three numbers free; return what the system gave for it."""
    opened: list[int] = []
    real: Callable[..., int] = os.open

    def noting(*args: object, **kwargs: object) -> int:
        fd = real(*args, **kwargs)
        if "dir_fd" in kwargs:
            opened.append(fd)
        return fd

    os.open = noting
    os.closerange(0, 3)
    for _ in range(2):
        System().open_file(str(root), "x", write=True, create=True)
    return opened
