"""Contract 1, 3 and 5: a real process' system calls, seen by strace, come in an order that holds.

Neither a kill nor a file system in use shows a sync that is missing; only a power cut would. So
the calls themselves are checked, against these rules:

1. No acknowledgement while a file has writes or a cut that were not synced after them.
2. No acknowledgement while a name is made or removed whose folder was not synced after it.
3. No cut of a file while anything else is not synced: what is cut off is safe in its copy.
4. No write, cut or sync of a thread's file but under its lock; no unlock before its sync.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import writers
from machine import needs_strace

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CALLS = "openat,mkdir,write,pwrite64,writev,fsync,fdatasync,ftruncate,unlink,unlinkat,flock,close"
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)(?:<(.*)>)?")
_UNFINISHED = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
_FD = re.compile(r"(\d+)<([^>]*)>")


@dataclass
class Linter:
    """Goes through the calls of a process and its threads, and notes what broke a rule."""

    root: str
    known: set[str]  # the names that were there before
    broken: list[str] = field(default_factory=list[str])
    acknowledgements: int = 0
    dirty: dict[str, int] = field(default_factory=dict[str, int])  # file: its last change
    names: dict[str, str] = field(default_factory=dict[str, str])  # changed name: its folder
    locked: set[str] = field(default_factory=set[str])
    begun: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    number: int = 0

    def run(self, lines: Iterable[str]) -> None:
        """Read the lines of a trace; a call that took its time is in two, its begin and its end."""
        for line in lines:
            self.number += 1
            if unfinished := _UNFINISHED.match(line):
                self.begun[unfinished[1]] = (unfinished[2], self.number)
                continue
            whole, since = line, self.number
            if resumed := _RESUMED.match(line):
                begin, since = self.begun.pop(resumed[1])
                whole = f"{resumed[1]} {begin}{resumed[2]}"
            if (call := _LINE.match(whole)) and int(call[4]) >= 0:
                self.call(call[2], call[3], call[5] or "", since)

    def call(self, name: str, arguments: str, opened: str, since: int) -> None:
        """Look at one call that worked."""
        number, path = match.groups() if (match := _FD.match(arguments)) else ("", "")
        if name == "openat" and "O_CREAT" in arguments:
            self.made(opened)
        elif name == "mkdir":
            self.made(arguments.split('"')[1])
        elif name in {"unlink", "unlinkat"}:
            self.removed(arguments.split('"')[1])
        elif name == "write" and number == "1":
            self.acknowledged()
        elif name in {"write", "pwrite64", "writev", "ftruncate"} and self.inside(path):
            self.changed(name, path, since)
        elif name in {"fsync", "fdatasync"}:
            self.synced(path, since)
        elif name == "flock" and "LOCK_UN" not in arguments:
            self.locked.add(path)
        elif name in {"flock", "close"} and path in self.locked:
            self.unlocked(path)

    def inside(self, path: str) -> bool:
        """Tell whether a path is the memory's."""
        return path.startswith(self.root)

    def made(self, path: str) -> None:
        """Note a new name."""
        if path not in self.known and self.inside(path):
            self.known.add(path)
            self.names[path] = os.path.dirname(path)

    def removed(self, path: str) -> None:
        """Note a name that is gone."""
        self.known.discard(path)
        self.dirty.pop(path, None)
        self.names[path] = os.path.dirname(path)

    def acknowledged(self) -> None:
        """Check rules 1 and 2."""
        self.acknowledgements += 1
        if self.dirty or self.names:
            self.broken.append(f"acknowledged before {self.waiting()} was synced")
            self.dirty.clear()
            self.names.clear()

    def waiting(self) -> str:
        """Name what is not synced."""
        return ", ".join(sorted(map(os.path.basename, [*self.dirty, *self.names])))

    def changed(self, name: str, path: str, since: int) -> None:
        """Check rule 3, and rule 4 for a change."""
        if name == "ftruncate" and ({*self.dirty} - {path} or self.names):
            self.broken.append(f"cut before {self.waiting()} was synced")
        self.under_lock(name, path)
        self.dirty[path] = since

    def under_lock(self, name: str, path: str) -> None:
        """Check rule 4."""
        if path.endswith(".jsonl") and path not in self.locked:
            self.broken.append(f"{name} of {os.path.basename(path)} without its lock")

    def synced(self, path: str, since: int) -> None:
        """Note what is safe: what was changed before the sync began."""
        self.under_lock("sync", path)
        if self.dirty.get(path, since) < since:
            del self.dirty[path]
        for name in [name for name, folder in self.names.items() if folder == path]:
            del self.names[name]

    def unlocked(self, path: str) -> None:
        """Check rule 4 for the end of a lock."""
        self.locked.discard(path)
        if path in self.dirty:
            self.broken.append(f"{os.path.basename(path)} was unlocked before it was synced")


def lint(root: Path, log: Path, skipped: str) -> Linter:
    """Run the program that does everything, under strace, and check its calls."""
    with Memory(root) as memory:
        memory.open("torn").append("whole").append("torn")
    file = root / "default" / "torn.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    known = {str(path) for path in [root, *root.rglob("*")]}
    subprocess.run(
        [
            *("strace", "-f", "-qq", "-y", "-s", "16", "-o", str(log), "-e", f"trace={_CALLS}"),
            *(sys.executable, writers.__file__, "acts", str(root), skipped),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )
    linter = Linter(str(root), known)
    with log.open(encoding="utf-8", errors="replace") as lines:
        linter.run(lines)
    return linter


@needs_strace
def test_order_of_calls(root: Path, tmp_path: Path) -> None:
    """Every acknowledgement, cut and unlock of a process comes after the syncs that it needs."""
    linter = lint(root, tmp_path / "log", "nothing")
    assert linter.broken == []
    assert linter.acknowledgements == 10
    assert linter.locked == set()
    assert (root / "default" / "torn.jsonl.torn").stat().st_size > 0


@needs_strace
@pytest.mark.parametrize(
    ("skipped", "broken"),
    [
        ("sync", r"acknowledged before t\.jsonl was synced"),
        ("sync_folder", r"acknowledged before .*other.* was synced"),
        ("sync_folder", r"cut before torn\.jsonl\.torn was synced"),
        (".torn", r"cut before torn\.jsonl\.torn was synced"),
    ],
)
def test_linter_finds(root: Path, tmp_path: Path, skipped: str, broken: str) -> None:
    """A program that leaves out a sync is caught: the check above can fail."""
    linter = lint(root, tmp_path / "log", skipped)
    assert any(re.search(broken, found) for found in linter.broken), linter.broken


@needs_strace
def test_folders_above_the_root(tmp_path: Path) -> None:
    """Every folder that the first append makes, the root's parents too, is synced (Contract 1)."""
    log = tmp_path / "log"
    root = tmp_path / "a" / "b" / "memory"
    under = [*("strace", "-f", "-qq", "-y", "-s", "16", "-o", str(log), "-e", f"trace={_CALLS}")]
    assert writers.result("append", root, "t", "w", 1, 10, under=under) == ["ready", "0"]
    linter = Linter(str(tmp_path), {str(tmp_path)})
    with log.open(encoding="utf-8", errors="replace") as lines:
        linter.run(lines)
    assert linter.broken == []
    assert {str(root.parent), str(root.parents[1]), str(root / "default")} <= linter.known
