"""What a power cut may leave: the calls of a run are noted, and every state is tried.

The model is the weakest that POSIX allows. A write is so many sectors and a size; until the file
is synced each of them may be on the disk or not (a sector that is not, under a size that is, reads
as zeros, or as what it held before). A name is on the disk when its folder was synced after it was
made. A sync that failed leaves its pages in doubt for ever: the system takes them for clean. The
size is not lost so: the next sync that works has it.
Changes of one file come to the disk in their order, or not at all; what is written after a cut does
not without the cut.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from simulation_calls import Op, Recorder

from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["Disk", "Op", "Quick", "Recorder", "explore"]

SECTOR = 64  # small, so that records of a hundred bytes lie across several
MOST_STATES = 150  # at one moment; where there are more, so many of them are drawn

# Which part of a pending call is on the disk: all of it or nothing; of a write, some bytes of the
# data (the others read as before, or as zeros) up to some length.
Part: TypeAlias = "tuple[int, frozenset[int]] | bool"
# What can be reached below a folder: files with what they hold, and folders with None.
State: TypeAlias = "tuple[tuple[str, bytes | None], ...]"


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

    @classmethod
    def of(cls, state: State, root: Path) -> Disk:
        """Give the disk on which a state lies below a folder."""
        disk = cls(set(), {}, {})
        for number, (path, data) in enumerate(state, 1):
            place = f"{root}/{path}"
            if data is None:
                disk.folders.add(place)
            else:
                disk.names[place] = -number
                disk.files[-number] = data
        return disk

    def change(self, op: Op, part: Part) -> None:
        """Do a call, or a part of it."""
        if op.kind == "make":
            self.folders.add(op.path)
        elif op.kind in {"create", "rename"}:
            self.names.pop(op.old, None)
            self.names[op.path] = op.file
        elif op.kind == "unlink":
            self.names.pop(op.path, None)
        elif op.kind == "write":
            self.files[op.file] = written(self.files.get(op.file, b""), op, part)
        elif op.kind == "cut":
            self.cut(op.file, op.offset)

    def cut(self, file: int, size: int) -> None:
        """Give a file a size."""
        self.files[file] = self.files.get(file, b"")[:size].ljust(size, b"\0")

    def below(self, root: str) -> State:
        """Give what can be reached below a folder."""
        reached = {root}
        reached.update(f for f in sorted(self.folders) if os.path.dirname(f) in reached)
        found: list[tuple[str, bytes | None]] = [(f, None) for f in reached if f != root]
        for path, number in self.names.items():
            if os.path.dirname(path) in reached:
                found.append((path, self.files.get(number, b"")))
        return tuple(sorted((os.path.relpath(path, root), data) for path, data in found))


def lay_out(state: State, root: Path) -> None:
    """Make a state below a new folder."""
    root.mkdir(parents=True)
    for path, data in state:
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)


def safe_from(ops: Sequence[Op]) -> list[int]:
    """Give for each call after how many of all the calls it is on the disk for sure."""
    return [next(_safe(ops, index), len(ops) + 1) for index in range(len(ops))]


def _safe(ops: Sequence[Op], index: int) -> Iterator[int]:
    """Give the moments at which what a call did is made safe."""
    op = ops[index]
    folder = os.path.dirname(op.path)
    for moment, later in enumerate(ops[index + 1 :], index + 2):
        if op.kind not in {"write", "cut"}:
            if later.kind == "folder" and later.path == folder:
                yield moment
        elif later.file == op.file and later.kind == "sync":
            yield moment
        elif later.file == op.file and later.kind == "failed" and op.kind == "write":
            return


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
    end = op.offset + len(data)
    after = bytearray(before.ljust(end, b"\0"))
    if sectors is None:
        after[op.offset : end] = data
        return bytes(after)
    for sector in sectors:
        first, last = max(op.offset, sector * SECTOR), min(end, (sector + 1) * SECTOR)
        if first < last:
            after[first:last] = data[first - op.offset : last - op.offset]
    return bytes(after)


def disk_after(ops: Sequence[Op], base: Disk, pending: dict[int, Part]) -> Disk:
    """Give the disk after calls of which some are there in part."""
    disk = Disk({*base.folders}, {**base.names}, {**base.files})
    late: dict[int, int] = {}  # to what size a file is cut when something after that is kept
    for index, op in enumerate(ops):
        part = pending.get(index, True)
        if part is False and op.kind == "cut":
            late[op.file] = op.offset
        if part is False:
            continue
        size = late.pop(op.file, None) if op.kind in {"write", "cut"} else None
        if size is not None:
            disk.cut(op.file, size)
        disk.change(op, part)
    return disk


def states(
    ops: Sequence[Op], base: Disk, most: int = MOST_STATES, seed: int = 0
) -> Iterator[tuple[Disk, int]]:
    """Give every disk that a power cut may leave at any moment, and what had happened by then.

    At a moment with more than `most` of them so many are drawn. Between two syncs (or what was
    done) the latest moment is enough: what was not yet called then is as if it was not kept.
    """
    draw = random.Random(seed)
    safe = safe_from(ops)
    for moment in range(len(ops) + 1):
        if moment < len(ops) and ops[moment].kind not in {"sync", "folder", "done"}:
            continue
        before = ops[:moment]
        count = max((op.file for op in before if op.kind in {"begun", "done"}), default=0)
        pending = [
            index
            for index, op in enumerate(before)
            if op.kind in {"make", "create", "rename", "unlink", "write", "cut"}
            and safe[index] > moment
        ]
        for chosen in choose([parts(before[index]) for index in pending], most, draw):
            yield disk_after(before, base, dict(zip(pending, chosen, strict=True))), count


def choose(
    choices: list[list[Part]], most: int, draw: random.Random
) -> Iterable[tuple[Part, ...] | list[Part]]:
    """Give every way to choose, or draw some: no order among the calls, or one as they were."""
    if math.prod(map(len, choices)) <= most:
        yield from itertools.product(*choices)
        return
    for _ in range(most // 2):
        yield [draw.choice((True, False, draw.choice(some))) for some in choices]
        torn = draw.randrange(len(choices))
        whole: list[Part] = [True] * torn
        yield [*whole, draw.choice(choices[torn]), *([False] * (len(choices) - torn - 1))]


def distinct(found: Iterable[tuple[Disk, int]], root: str) -> Iterator[tuple[State, int]]:
    """Give what can be reached below a folder in each state, each once."""
    seen: set[tuple[State, int]] = set()
    for disk, count in found:
        state = disk.below(root), count
        if state not in seen:
            seen.add(state)
            yield state


def explore(
    recorder: Recorder, old: Path, base: Disk, place: Path, check: Callable[[Path, int], None]
) -> tuple[int, list[str]]:
    """Check each state once; give how many there were, and what was wrong with some of them."""
    tried = 0
    wrong: list[str] = []
    for state, count in distinct(states(recorder.ops, base), str(old)):
        tried += 1
        lay_out(state, place)
        try:
            check(place, count)
        except AssertionError as error:
            wrong.append(str(error))
        shutil.rmtree(place)
    return tried, wrong
