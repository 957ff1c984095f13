"""Contract 8: another program changes a thread's file in place, and the size stays (C59)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from writers import contents, lines_on_disk

from turnlog import Memory, ThreadReplaced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TURNS = ["first", "second", "third"]


def overwrite(file: Path, old: bytes, new: bytes) -> None:
    """Change bytes of a file in place."""
    assert len(old) == len(new)
    data = file.read_bytes()
    assert old in data
    with file.open("r+b") as stream:
        stream.write(data.replace(old, new))


@pytest.mark.parametrize("changed", TURNS)
@pytest.mark.parametrize("later", [0.0, 0.03], ids=["in the same tick", "later"])
def test_changed_in_place(root: Path, memory: Memory, changed: str, later: float) -> None:
    """A file that was changed in place is noticed by the handle that wrote to it last (C59)."""
    file = root / "default" / "t.jsonl"
    thread = memory.open("t")
    for turn in TURNS:
        thread.append(turn)
    time.sleep(later)
    overwrite(file, changed.encode(), changed.upper().encode())
    data = file.read_bytes()
    for attempt in (
        lambda: thread.append("fourth", expect=3),
        lambda: thread.append("fourth"),
        thread.refresh,
    ):
        with pytest.raises(ThreadReplaced, match="its file was changed"):
            attempt()
    assert file.read_bytes() == data
    assert [message.content for message in thread.messages()] == TURNS
    memory.open("t").append("fourth")
    assert lines_on_disk(root)[-1] == "fourth"


def test_its_times_set_back(root: Path, memory: Memory) -> None:
    """A change is noticed too where its program sets the time of the file back (C59)."""
    file = root / "default" / "t.jsonl"
    thread = memory.open("t").append("first")
    status = file.stat()
    overwrite(file, b"first", b"FIRST")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ThreadReplaced):
        thread.append("second")


def by_mode(file: Path) -> None:
    """Change the mode, and back."""
    file.chmod(0o640)
    file.chmod(0o600)


def by_name(file: Path) -> None:
    """Move the file away, and back."""
    file.rename(file.with_name("other")).rename(file)


def by_link(file: Path) -> None:
    """Make a second name of the file."""
    os.link(file, file.with_name("other"))


def by_the_same_bytes(file: Path) -> None:
    """Write what is there."""
    overwrite(file, b"first", b"first")


def by_another_memory(file: Path) -> None:
    """Append as another process does."""
    with Memory(file.parents[1]) as another:
        another.open("t").append("of another")


@pytest.mark.parametrize(
    "way", [by_mode, by_name, by_link, os.utime, by_the_same_bytes, by_another_memory]
)
def test_harmless_changes(root: Path, memory: Memory, way: Callable[[Path], None]) -> None:
    """A change that leaves the turns as they are lets the next append go through (C59)."""
    thread = memory.open("t").append("first")
    way(root / "default" / "t.jsonl")
    thread.append("second")
    assert [m.content for m in thread.messages()] == lines_on_disk(root) == contents(root)
    assert lines_on_disk(root)[-1] == "second"
