"""Threads' files, made directly: through the store a long thread takes a sync a turn."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from text import turn

from turnlog import Message
from turnlog.codec import encode_turn

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from text import Turn

_START: Final = dt.datetime(2026, 1, 1, 0, 0, 0, 123456, dt.UTC)
_SECOND: Final = dt.timedelta(seconds=1)


def line(turn: Turn, number: int = 0) -> bytes:
    """Give the line that an append of the turn writes, with its newline."""
    role, text = turn
    return encode_turn(Message(role, text, _START + number * _SECOND)) + b"\n"


def path_of(root: Path, id_: str) -> Path:
    """Give where a thread's file is, in a memory's default namespace."""
    return root / "default" / f"{id_}.jsonl"


def write_thread(root: Path, id_: str, turns: Iterable[Turn]) -> Path:
    """Write a thread's file, as single appends would."""
    path = path_of(root, id_)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(line(one, number) for number, one in enumerate(turns))
    return path


def long_thread(root: Path, turns: int, *, mixed: bool = False) -> str:
    """Give the id of a thread of so many turns; its file is made where there is none yet."""
    id_ = f"{'mixed' if mixed else 'ascii'}-{turns}"
    if not path_of(root, id_).exists():
        write_thread(root, id_, (turn(number, mixed=mixed) for number in range(turns)))
    return id_
