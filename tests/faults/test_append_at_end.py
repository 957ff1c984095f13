"""An append that reads the end of a thread alone leaves the file as any other append does (C41)."""

from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from bytesofit import aside, put, turn, unit
from systems import Notes, Watched

from turnlog import Memory, TornTailWarning
from turnlog.errors import DamageWarning
from turnlog.memory import open_at_end
from turnlog.names import thread_key
from turnlog.stores.jsonl import JsonlStore, threadfile

if TYPE_CHECKING:
    from pathlib import Path

KEY = thread_key("t")
LONG_UNIT = unit(*(f"{number} " + "x" * 90 for number in range(9)))
ENDS: dict[str, bytes] = {
    "a turn": turn("a"),
    "a turn without its newline": turn("a")[:-1],
    "half a turn": turn("a")[:-20],
    "NULs": b"\0" * 300,
    "a turn and NULs": turn("a")[:-1] + b"\0" * 300,
    "a hole": turn("a")[:20] + b"\0" * 20 + turn("a")[40:],
    "a unit": LONG_UNIT,
    "a unit and half a turn": LONG_UNIT + turn("a")[:-20],
    "a unit without its end": LONG_UNIT[:-150],
    "a unit without its beginning": LONG_UNIT[150:],
    "two units and half of one": LONG_UNIT + LONG_UNIT + LONG_UNIT[:-300],
    "a unit and a line of words": LONG_UNIT + b"oops\n",
    "words": b"oops\n" * 100,
    "words without a newline": b"oops\noops",
    "blank lines": b"\n \n\r\n",
}


def appended(root: Path, data: bytes, first_read: int, *, at_end: bool) -> tuple[bytes, bytes, int]:
    """Append to a file; give its bytes, what was set aside and the number of torn ends told of."""
    file = put(root, data)
    with warnings.catch_warnings(record=True) as told, Memory(root) as memory:
        warnings.simplefilter("always")
        with mock.patch.object(threadfile, "_TAIL", first_read):
            thread = open_at_end(memory, KEY) if at_end else memory.open("t")
        thread.append("next")
    left, *_ = file.read_bytes().partition(b'{"role":"user","content":"next"')
    torn = [warning for warning in told if issubclass(warning.category, TornTailWarning)]
    moved = aside(file)
    shutil.rmtree(root)
    return left, moved, len(torn)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", turn("b") * 3, LONG_UNIT, b"oops\n"])
def test_it_leaves_what_any_append_leaves(root: Path, start: bytes, end: bytes) -> None:
    """Whatever a file ends in, an append at its end mends it as one to an open thread does."""
    data = start + ENDS[str(end)]
    expected = appended(root, data, 1 << 15, at_end=False)
    for first_read in (1, 40, 150, 400, 1 << 15):
        assert appended(root, data, first_read, at_end=True) == expected, first_read


def test_a_long_thread_is_not_read(root: Path) -> None:
    """Of a thread of any length the end is read, and what was written before is durable first."""
    put(root, turn("x" * 80) * 50_000)
    notes = Notes()
    with Memory(JsonlStore(root, system=Watched(notes))) as memory:
        thread = open_at_end(memory, KEY)
        assert notes.names("sync", "sync_folder")[:2] == ["sync", "sync_folder"]
        thread.append("next")
    assert sum(args[2] for call, args in notes.calls if call == "read") < 100_000
    assert notes.names("write", "sync")[-2:] == ["write", "sync"]
    with Memory(root) as memory:
        assert [turn.content for turn in memory.peek("t", last=1)] == ["next"]
        assert len(memory.open("t")) == 50_001


def test_others_append_meanwhile(root: Path) -> None:
    """What others appended since its opening stays before it, in the order that they had."""
    with Memory(root) as memory, Memory(root) as theirs:
        other = theirs.open("t").append("1")
        thread = open_at_end(memory, KEY)
        other.append("2")
        thread.append("3")
        other.append("4")
        assert [turn.content for turn in other.messages()] == ["1", "2", "3", "4"]


def test_a_new_thread_is_made(root: Path) -> None:
    """A thread that does not exist is made by an append at its end, and is no other object."""
    with Memory(root) as memory, warnings.catch_warnings():
        warnings.simplefilter("error", DamageWarning)
        open_at_end(memory, KEY).append("first")
        assert [turn.content for turn in memory.open("t").messages()] == ["first"]
