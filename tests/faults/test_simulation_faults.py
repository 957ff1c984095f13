"""The simulation can fail: each fault that is planted in the store or below it is found."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from simulation import KINDS, Kind, scratch, simulate
from simulation_calls import Op, Recorder

from turnlog import commit
from turnlog.commit import _Entry  # pyright: ignore[reportPrivateUsage]
from turnlog.stores.base import START
from turnlog.stores.jsonl import JsonlStore, writer
from turnlog.stores.jsonl.format import _Scanner  # pyright: ignore[reportPrivateUsage]
from turnlog.stores.jsonl.writer import (
    BatchWriter,
    _Round,  # pyright: ignore[reportPrivateUsage] - faults are planted in it
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOST_SEEDS = 100
LOADS = Kind(("append", "load"), count=3, kills=True)
EXTENDS = Kind(("append", "extend"), processes=3, count=2, kills=True)
REFRESHES = Kind(("append", "refresh"), count=3, kills=True)

# ---- syncs that are left out ----


def of_files(_: Recorder, op: Op) -> bool:
    """Acknowledge before the sync."""
    return op.kind == "sync"


def of_folder(name: str) -> Callable[[Recorder, Op], bool]:
    """Sync one folder never."""
    return lambda _, op: op.kind == "folder" and os.path.basename(op.path) == name


def after(kind: str, sync: str) -> Callable[[Recorder, Op], bool]:
    """Leave out the sync that follows a call of some kind."""
    return lambda self, op: op.kind == sync and self.ops[-1].kind == kind


def of_suffix(suffix: str) -> Callable[[Recorder, Op], bool]:
    """Sync no file with some suffix."""
    return lambda _, op: op.path.endswith(suffix)


@pytest.mark.parametrize(
    ("kind", "leaves_out", "found"),
    [
        ("shared", of_files, "lost"),
        ("shared", of_folder("default"), "lost"),
        ("shared", of_folder("memory"), "lost"),
        ("shared", of_folder("old"), "lost"),
        ("failing", after("cut", "sync"), "not written, and there"),
        ("repaired", of_suffix(".torn"), "bytes are lost"),
        ("repaired", of_suffix(".new"), "lost"),
        ("repaired", after("rename", "folder"), "damaged"),
        ("deleted", after("unlink", "folder"), "deleted, and there"),
    ],
)
def test_sync_left_out(
    tmp_path: Path, kind: str, leaves_out: Callable[[Recorder, Op], bool], found: str
) -> None:
    """A sync that is left out, of a file or of a folder, is found."""
    with patch.object(Recorder, "leaves_out", leaves_out):
        assert is_found(tmp_path, KINDS[kind], found)


# ---- faults in the store ----


def load_unsynced(_: JsonlStore, file: Any) -> Any:
    """Give back what a writer left that was killed before its sync."""
    return file.read(START, must_mend=False)


def load_without_folder(_: JsonlStore, file: Any) -> Any:
    """Give back a thread that a killed writer made, its name perhaps not on the disk."""
    read = file.read(START, must_mend=False)
    file.sync()
    return read


write: Callable[..., None] = _Round.write


def refresh_unsynced(self: Any, file: Any) -> None:
    """Read forward, and sync only what was written."""
    write(self, file)
    self.unsynced = self._wrote


def trust_the_name(self: Any, file: Any) -> None:
    """Take the name of a file that others wrote to for synced."""
    write(self, file)
    file.entry_synced = bool(self._news.lines)


def sync_the_first(_: Any, rounds: list[Any]) -> None:
    """Sync one file of a batch, and take the others for synced."""
    rounds[0].sync()
    for round_ in rounds:
        round_.unsynced = False


def take_each_line(self: Any, start: int, end: int, record: Any) -> None:
    """Know no units."""
    self._add([(start, end, record.key)])


def build_on_a_unit(_: bytes) -> bool:
    """Build upon a unit that a killed writer has left unsynced."""
    return False


def put_behind_a_unit(queue: list[Any], *_: Any) -> tuple[dict[Any, Any], list[Any], list[Any]]:
    """Write what comes behind a unit in one go with it."""
    entries: dict[Any, Any] = {}
    for ticket in queue:
        log = ticket.log
        made = entries.setdefault(log.key, _Entry(log.key, log, log.position, []))
        made.tickets.append(ticket)
    return entries, [], []


@pytest.mark.parametrize(
    ("kind", "place", "fault", "found"),
    [
        (LOADS, (JsonlStore, "_load"), load_unsynced, "lost"),
        (LOADS, (JsonlStore, "_load"), load_without_folder, "lost"),
        (REFRESHES, (_Round, "write"), refresh_unsynced, "lost"),
        (REFRESHES, (_Round, "write"), trust_the_name, "lost"),
        (KINDS["threads"], (BatchWriter, "_sync_side_by_side"), sync_the_first, "lost"),
        (KINDS["shared"], (_Scanner, "_take"), take_each_line, "not whole"),
        (EXTENDS, (writer, "ends_unit"), build_on_a_unit, "not whole"),
        (KINDS["threads"], (commit, "_by_thread"), put_behind_a_unit, "not whole"),
    ],
)
def test_fault_in_the_store(
    tmp_path: Path, kind: Kind, place: tuple[Any, str], fault: Callable[..., Any], found: str
) -> None:
    """A store that builds on what is not durable, or takes parts of units for turns, is found."""
    with patch.object(*place, fault):
        assert is_found(tmp_path, kind, found)


def is_found(tmp_path: Path, kind: Kind, what: str) -> bool:
    """Tell whether one of the first runs shows it."""
    for seed in range(MOST_SEEDS):
        with scratch(tmp_path) as place:
            tally = simulate(kind, seed, place)
        if any(what in wrong.split(":")[0] for wrong in tally.wrong):
            return True
    return False
