"""Contract 4, C25: after a failed sync the cache shows what the device has lost.

Linux takes the pages of a failed sync for clean: whoever reads the file sees them, a later sync
succeeds, and a power cut shows that the device never had them.
"""

from __future__ import annotations

import errno
import os
import warnings
from typing import TYPE_CHECKING

import pytest
from bytesofit import seen, turn
from writers import lines_on_disk

from turnlog import Memory, NotWritten, OutcomeUnknown, StoreError
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from pathlib import Path


class LosesPages(System):
    """A system with one file, whose device fails a sync when it is told to."""

    def __init__(self, file: Path) -> None:
        """Begin with a device that has all of the file."""
        self.file = file
        self.safe = 0  # what the device has for sure
        self.lost = (0, 0)  # what only the cache has
        self.fail_syncs = 0
        self.fail_cuts = 0

    def sync(self, fd: int) -> None:
        """Write to the device what it lacks, or fail and lose it."""
        size = os.fstat(fd).st_size
        if self.fail_syncs:
            self.fail_syncs -= 1
            self.lost = (self.safe, size)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.safe = size

    def truncate(self, fd: int, size: int) -> None:
        """Cut, or fail."""
        if self.fail_cuts:
            self.fail_cuts -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, size)
        self.safe = min(self.safe, size)
        self.lost = (self.lost[0], max(self.lost[0], min(self.lost[1], size)))

    def drop_cache(self, fd: int, offset: int) -> None:
        """Have the next reader see what the device has."""
        assert os.fstat(fd).st_ino == self.file.stat().st_ino
        self.forget(max(offset, self.lost[0]))
        self.lost = (self.lost[0], max(self.lost[0], min(offset, self.lost[1])))

    def forget(self, begin: int) -> None:
        """Put the device's bytes, zeros, in the place of those that it lost."""
        end = min(self.lost[1], self.file.stat().st_size)
        with self.file.open("r+b") as file:
            file.seek(begin)
            file.write(b"\0" * max(0, end - begin))

    def cut_power(self) -> None:
        """Leave only what the device has."""
        self.forget(self.lost[0])


def prepared(root: Path) -> tuple[Memory, LosesPages]:
    """Give a memory with one thread of one turn, on a device that may fail."""
    with Memory(root) as memory:
        memory.open("t").append("first")
    system = LosesPages(root / "default" / "t.jsonl")
    system.safe = system.file.stat().st_size
    return Memory(JsonlStore(root, system=system)), system


def after_power_cut(root: Path, system: LosesPages) -> list[str]:
    """Cut the power, and give the turns that are there; damage must not be."""
    system.cut_power()
    found = seen(root)
    assert found.problems == ()
    assert found.contents == lines_on_disk(root)
    return found.contents


def test_rolled_back(root: Path) -> None:
    """What a failed sync lost is rolled back before the next append: nothing builds on it."""
    memory, system = prepared(root)
    thread = memory.open("t")
    system.fail_syncs = 1
    with pytest.raises(NotWritten):
        thread.append("lost")
    thread.append("second")
    assert after_power_cut(root, system) == ["first", "second"]


@pytest.mark.parametrize("fail", ["the cut", "its sync"])
def test_rolling_back_fails(root: Path, fail: str) -> None:
    """Where rolling back fails, the reopened thread shows what the device has, not the cache."""
    memory, system = prepared(root)
    thread = memory.open("t")
    system.fail_syncs = 1 if fail == "the cut" else 2
    system.fail_cuts = 1 if fail == "the cut" else 0
    with pytest.raises(OutcomeUnknown):
        thread.append("second", key="k")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = memory.open("t")
    assert [m.content for m in thread.messages()] == ["first"]
    thread.append("second", key="k").append("third")
    assert after_power_cut(root, system) == ["first", "second", "third"]


def test_turns_of_a_dead_writer(root: Path) -> None:
    """A failed sync that also loses a dead writer's turn leaves nothing to build upon (C25)."""
    memory, system = prepared(root)
    thread = memory.open("t")
    with system.file.open("ab") as dead:  # it wrote a turn and was killed before its sync
        dead.write(turn("of the dead writer" * 10))
    system.fail_syncs = 1
    with pytest.raises(NotWritten):
        thread.append("second", key="k")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread.append("second", key="k")
    shown = [m.content for m in thread.messages()]
    assert after_power_cut(root, system) == shown
    assert shown[0] == "first"
    assert shown[-1] == "second"


def test_opening_fails(root: Path) -> None:
    """A thread whose opening failed at its sync shows what the device has when it is reopened."""
    _, system = prepared(root)
    with system.file.open("ab") as dead:
        dead.write(turn("of the dead writer" * 10))
    system.fail_syncs = 1
    memory = Memory(JsonlStore(root, system=system))
    with pytest.raises(StoreError):
        memory.open("t")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = memory.open("t")
    thread.append("second")
    shown = [m.content for m in thread.messages()]
    assert after_power_cut(root, system) == shown
    assert shown[-1] == "second"
