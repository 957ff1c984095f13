"""What a power cut may leave: the calls of a run are noted, and every state is tried.

The model is the weakest that POSIX allows. A write is so many sectors and a size; until the file
is synced each of them may be on the disk or not (a sector that is not, under a size that is, reads
as zeros, or as what it held before). A name is on the disk when its folder was synced after it was
made. A sync that failed leaves its pages in doubt for ever: the system takes them for clean.
Changes of one file come to the disk in their order, or not at all.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SECTOR = 64  # small, so that records of a hundred bytes lie across several
MOST_STATES = 150  # at one moment; where there are more, so many of them are drawn


@dataclass(frozen=True)
class Op:
    """One call. The kinds: make, create, rename, unlink, folder; write, cut, sync, failed; done."""

    kind: str
    path: str = ""
    file: int = 0
    offset: int = 0
    data: bytes = b""
    old: str = ""  # the path before a renaming


# Which part of a pending call is on the disk: all of it or nothing; of a write, some bytes of the
# data (the others read as before, or as zeros) up to some length.
Part: TypeAlias = "tuple[int, frozenset[int]] | bool"


@dataclass
class Recorder(System):
    """Notes each call that changes something; syncs nothing, since nothing is cut off for real."""

    ops: list[Op] = field(default_factory=list[Op])
    skip: str = ""  # a kind of call, or of file by its suffix, that this faulty system leaves out
    fail_next: bool = False
    files: dict[str, int] = field(default_factory=dict[str, int])
    fds: dict[int, str] = field(default_factory=dict[int, str])

    def done(self, count: int) -> None:
        """Note that so many units are acknowledged."""
        self.ops.append(Op("done", file=count))

    def open_file(
        self, folder: str, name: str, *, write: bool = False, create: bool = False
    ) -> int:
        """Open a file; note a new one."""
        path = f"{folder}/{name}"
        new = not os.path.lexists(path)
        fd = super().open_file(folder, name, write=write, create=create)
        if new or path not in self.files:
            self.files[path] = len(self.ops) + 1
        if new:
            self.ops.append(Op("create", path, self.files[path]))
        self.fds[fd] = path
        return fd

    def note(self, kind: str, fd: int, offset: int = 0, data: bytes = b"") -> None:
        """Note a call on an open file."""
        self.ops.append(Op(kind, self.fds[fd], self.files[self.fds[fd]], offset, data))

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write, and note it."""
        end = os.fstat(fd).st_size
        written = super().write(fd, data)
        self.note("write", fd, end, bytes(data[:written]))
        return written

    def truncate(self, fd: int, size: int) -> None:
        """Cut, and note it."""
        super().truncate(fd, size)
        self.note("cut", fd, size)

    def sync(self, fd: int) -> None:
        """Note that what was written is safe from here on, or fail."""
        if self.fail_next:
            self.fail_next = False
            self.note("failed", fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.skip != "sync" and not self.fds[fd].endswith(f".{self.skip}"):
            self.note("sync", fd)

    def sync_folder(self, path: str) -> None:
        """Note that the folder's names are safe from here on."""
        if self.skip != "folder" and self.skip != os.path.basename(path):
            self.ops.append(Op("folder", path))

    def make_folder(self, path: str) -> bool:
        """Make a folder, and note it."""
        made = super().make_folder(path)
        if made:
            self.ops.append(Op("make", path))
        return made

    def rename(self, old: str, new: str) -> None:
        """Give a file a new name, and note it."""
        super().rename(old, new)
        self.files[new] = self.files.pop(old)
        self.ops.append(Op("rename", new, self.files[new], old=old))

    def unlink(self, path: str) -> None:
        """Remove a name, and note it."""
        super().unlink(path)
        del self.files[path]
        self.ops.append(Op("unlink", path))


class Quick(System):
    """A system that does not wait for the disk."""

    def sync(self, fd: int) -> None:
        """Do not."""

    def sync_folder(self, path: str) -> None:
        """Do not."""


@dataclass
class Disk:
    """What is on the disk: names, and what the files behind them hold."""

    folders: set[str]
    names: dict[str, int]
    files: dict[int, bytes]

    def put(self, old: str, new: Path) -> bytes:
        """Make all that can be reached below a folder elsewhere; give what tells it from others."""
        seen: list[tuple[str, bytes]] = []
        reached = {old}
        for folder in sorted(self.folders):
            if os.path.dirname(folder) in reached:
                reached.add(folder)
                (new / os.path.relpath(folder, old)).mkdir()
                seen.append((folder, b""))
        for path, number in sorted(self.names.items()):
            if os.path.dirname(path) in reached:
                data = self.files.get(number, b"")
                (new / os.path.relpath(path, old)).write_bytes(data)
                seen.append((path, data))
        return repr(seen).encode()


def is_safe(ops: Sequence[Op], index: int) -> bool:
    """Tell whether the call at an index is on the disk for sure after all the calls given."""
    op = ops[index]
    later = ops[index + 1 :]
    if op.kind in {"write", "cut"}:
        syncs = (o.kind for o in later if o.file == op.file and o.kind in {"sync", "failed"})
        return next(syncs, "") == "sync"
    return any(o.kind == "folder" and o.path == os.path.dirname(op.path) for o in later)


def parts(op: Op) -> list[Part]:
    """Give what may be on the disk of a call that is not safe."""
    if op.kind != "write":
        return [True, False]
    first, last = op.offset // SECTOR, (op.offset + len(op.data) - 1) // SECTOR
    sectors = list(range(first, last + 1))
    size = len(op.data)
    found: list[Part] = [True, False, (size, frozenset()), (size // 2, frozenset(sectors))]
    for sector in sectors:
        others = frozenset(sectors) - {sector}
        found += [(size, others), (size, frozenset([sector]))]
        found += [((sector + 1) * SECTOR - op.offset, frozenset(sectors))]
        found += [(size, frozenset(range(sector, last + 1)))]
        found += [(size, frozenset(range(first, sector + 1)))]
    return list(dict.fromkeys(found))


def written(before: bytes, op: Op, part: Part) -> bytes:
    """Give a file's bytes after a write of which only a part is on the disk."""
    length, sectors = (len(op.data), None) if isinstance(part, bool) else part
    data = op.data[: max(0, length)]
    after = bytearray(before.ljust(op.offset + len(data), b"\0"))
    for number, byte in enumerate(data, op.offset):
        if sectors is None or number // SECTOR in sectors:
            after[number] = byte
    return bytes(after)


def disk_after(ops: Sequence[Op], base: Disk, pending: dict[int, Part]) -> Disk:
    """Give the disk after calls of which some are there in part."""
    disk = Disk({*base.folders}, {**base.names}, {**base.files})
    for index, op in enumerate(ops):
        part = pending.get(index, True)
        if part is False:
            continue
        if op.kind == "make":
            disk.folders.add(op.path)
        elif op.kind == "create":
            disk.names[op.path] = op.file
        elif op.kind == "rename":
            disk.names.pop(op.old, None)
            disk.names[op.path] = op.file
        elif op.kind == "unlink":
            disk.names.pop(op.path, None)
        elif op.kind == "write":
            disk.files[op.file] = written(disk.files.get(op.file, b""), op, part)
        elif op.kind == "cut":
            held = disk.files.get(op.file, b"")
            disk.files[op.file] = held[: op.offset].ljust(op.offset, b"\0")
    return disk


def states(ops: Sequence[Op], base: Disk) -> Iterator[tuple[Disk, int]]:
    """Give every disk that a power cut may leave at any moment, and what was acknowledged by it."""
    draw = random.Random(0)
    for moment in range(len(ops) + 1):
        before = ops[:moment]
        count = max((op.file for op in before if op.kind == "done"), default=0)
        pending = [
            index
            for index, op in enumerate(before)
            if op.kind in {"make", "create", "rename", "unlink", "write", "cut"}
            and not is_safe(before, index)
        ]
        choices = [parts(before[index]) for index in pending]
        every = list(itertools.islice(itertools.product(*choices), 20_000))
        for chosen in every if len(every) <= MOST_STATES else draw.sample(every, MOST_STATES):
            yield disk_after(before, base, dict(zip(pending, chosen, strict=True))), count


def explore(
    recorder: Recorder, old: Path, base: Disk, place: Path, check: Callable[[Path, int], None]
) -> tuple[int, list[str]]:
    """Check each state once; give how many there were, and what was wrong with some of them."""
    seen: set[tuple[bytes, int]] = set()
    wrong: list[str] = []
    for number, (disk, count) in enumerate(states(recorder.ops, base)):
        new = place / str(number)
        new.mkdir(parents=True)
        state = (disk.put(str(old), new), count)
        if state in seen:
            continue
        seen.add(state)
        try:
            check(new, count)
        except AssertionError as error:
            wrong.append(str(error))
    return len(seen), wrong
