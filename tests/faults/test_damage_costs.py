"""Damage costs no more time than turns do, and a big file no more memory than itself (C41)."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import pytest
from bytesofit import put, turn, unit
from hypothesis import example, given
from hypothesis import strategies as st
from systems import Notes, Watched

from turnlog import DamageWarning, Memory, TornTailWarning
from turnlog.codec import find_records, glance
from turnlog.stores.base import START
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl import damage as damages
from turnlog.stores.jsonl import format as fileformat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from turnlog.codec import Record

MB = 1 << 20
TURN = turn("The invoice is wrong, and so was the one before it.")


def filled(line: bytes, size: int) -> bytes:
    """Return a line again and again, up to a size."""
    return line * (size // len(line))


DAMAGE: dict[str, bytes] = {
    "braces": b"{\n",
    "NULs": b"\0\n",
    "words": b"it is not a turn\n",
    "half turns": TURN[:60] + b"\n",
    "Latin-1": TURN.replace(b"wrong", b"fal\xe7che"),
    "torn turns on one line": TURN[:60],
    "opened lists": b"[",
    "opened objects": b'{"a":',
    "quotes": b'"',
    "blank lines": b" \n",
    "objects without a text": b'{"role":"user","text":"x","parts":[{"n":1}]}\n',
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_passed_over_quickly(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long is not done for each damaged line, until its reason is asked for (C41)."""
    damage = filled(DAMAGE[name], 160_000)
    damage += b"\n" * (not damage.endswith(b"\n"))
    put(root, TURN + damage + TURN)
    looked: list[bytes] = []

    def note(line: bytes) -> tuple[list[tuple[int, int, Record]], str | None]:
        looked.append(line)
        return find_records(line)

    for module in (fileformat, damages):
        monkeypatch.setattr(module, "find_records", note)
    with warnings.catch_warnings(), Memory(root) as memory:
        warnings.simplefilter("ignore", DamageWarning)
        thread = memory.open("t")
        assert (len(thread), len(looked) <= 3) == (2, True)
        lines = 0 if name == "blank lines" else damage.count(b"\n")
        assert len(thread.problems) == lines


HOLED = TURN[:40] + bytes(20) + TURN[60:]
MIXED = {  # lines, and how many turns and problems are in them
    "a bad line behind a turn": (TURN + b"it is not a turn\n", 1, 1),
    "half a turn behind a turn": (TURN + TURN[:60] + b"\n", 1, 1),
    "Latin-1 behind a turn": (TURN + DAMAGE["Latin-1"], 1, 1),
    "a hole behind a turn": (TURN + HOLED, 1, 1),
    "holes": (HOLED, 0, 1),
    "fused turns": (TURN[:-1] * 2 + TURN, 3, 1),
    "NULs behind a turn": (TURN[:-1] + bytes(20) + b"\n", 1, 1),
    "NULs before a turn": (bytes(20) + TURN, 1, 1),
    "NULs between turns": (TURN[:-1] + bytes(20) + TURN, 2, 1),
}


@pytest.mark.parametrize("name", MIXED)
def test_turns_among_damage_are_read_at_once(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage between turns, or on their lines, has few lines read one by one (C41)."""
    lines, turns, problems = MIXED[name]
    times = 160_000 // len(lines)
    put(root, TURN + lines * times + TURN)
    looked: list[bytes] = []

    def noting(read: Callable[[bytes], object]) -> Callable[[bytes], object]:
        return lambda line: (looked.append(line), read(line))[1]

    for call in (find_records, glance):
        monkeypatch.setattr(fileformat, call.__name__, noting(call))
    with warnings.catch_warnings(), Memory(root) as memory:
        warnings.simplefilter("ignore", DamageWarning)
        thread = memory.open("t")
        assert len(thread) == 2 + turns * times
        assert len(thread.problems) == problems * times
        assert len(looked) < times / 5


BIG_DAMAGE = {
    **{name: filled(line, 8 * MB) for name, line in DAMAGE.items() if name != "blank lines"},
    "one run of NULs": b"\0" * 8 * MB,
    "records fused on one line": filled(TURN[:-1], 8 * MB),
    "words on one line": filled(b"it is not a turn ", 8 * MB),
}


@pytest.mark.parametrize("name", BIG_DAMAGE)
def test_peek_reads_a_bounded_end_of_a_damaged_file(root: Path, name: str) -> None:
    """However much damage stands at the end, a peek reads little of it, and warns (C41)."""
    damage = BIG_DAMAGE[name]
    put(root, TURN * 3 + damage + b"\n" * (damage[-1] not in b"\n\0"))
    notes = Notes()
    memory = Memory(JsonlStore(root, system=Watched(notes)))
    with memory, pytest.warns(DamageWarning):
        assert not memory.peek("t", last=2)
    assert sum(args[2] for call, args in notes.calls if call == "read") < 4 * MB


@pytest.mark.parametrize(
    "end",
    [
        turn("x" * 3 * MB),
        turn("x" * 3 * MB)[:-20],
        turn("x" * 3 * MB, more=',"meta":{"role":"human","n":1}'),
        unit(*["x" * 500_000] * 7)[:-40],
        b"oops\n" * 10_000,
    ],
)
def test_peek_finds_turns_before_what_is_long_but_no_damage(root: Path, end: bytes) -> None:
    """A huge turn, one that was cut off, an extend that was, or some damage hide no turn."""
    put(root, TURN * 3 + end)
    with warnings.catch_warnings(), Memory(root) as memory:
        warnings.simplefilter("ignore", DamageWarning)
        peeked = memory.peek("t", last=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornTailWarning)
            assert peeked == memory.open("t").messages().last(4)


PIECES = [
    *(TURN[:-1], b'{"content":"b"}', b'{"role":"user","content":"', b'{"n":[1]}', b'{"type":"x",'),
    *(b"{", b"}", b"[", b'"', b"\xff", b"\xe9", b"\xc3\xa9", b"\xc3", b"\0", b" ", b"\r", b"oops"),
    *(b"\n", b"\n", b"\n", b'{"content":"\xc3\xa9"}', b'{"content":"\xe9"}', b"12"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join))
@example(b"\xff" + TURN)
@example(b"{" + TURN + b"\xe9{" + TURN)
def test_what_is_found_quickly_is_what_is_found_slowly(data: bytes) -> None:
    """Lines that are passed over many at once are those that hold no turn by themselves (C41)."""
    data += b"\n" + TURN
    read, tail = fileformat.scan(data, START, None)
    turns: list[bytes] = []
    reasons: list[tuple[int, str]] = []
    for number, ended in enumerate(data.split(b"\n")[:-1], 1):
        line = ended.removesuffix(b"\r")
        found, reason = find_records(line)
        turns += [line[start:end] for start, end, _ in found]
        if reason is not None and line.strip(b" \t\r"):
            reasons.append((number, reason))
    assert list(read.lines) == turns
    assert [(problem.line, problem.reason) for problem in read.problems] == reasons
    assert tail.sound


UNITS = [TURN, TURN, *unit("a", "b", "c").splitlines(keepends=True), HOLED, HOLED[:-1], TURN[:50]]


@given(st.lists(st.sampled_from(PIECES + UNITS), max_size=30).map(b"".join))
@example(TURN + HOLED + UNITS[2] + b"oops\n")
@example(TURN + TURN[:-1] + b"\0\n" + UNITS[2])
@example(TURN + b"\0\r\r\n" + TURN)
@example(b"\x0b\n" + TURN)
def test_lines_read_at_once_are_read_as_one_by_one(data: bytes) -> None:
    """Reading turns and damage at once changes no turn, no problem and no tear (C41)."""

    def no(*_: object) -> bool:
        return False

    read, tail = fileformat.scan(data, START, None)
    with pytest.MonkeyPatch.context() as patch:
        for shortcut in ("are_barren", "find_fused", "_Scanner._mixed_lines"):
            patch.setattr(f"{fileformat.__name__}.{shortcut}", no)
        slow, slow_tail = fileformat.scan(data, START, None)
    assert list(read.lines) == list(slow.lines)
    assert list(read.problems) == list(slow.problems)
    assert (read.keys, read.position, tail) == (slow.keys, slow.position, slow_tail)


MEASURED = """
import sys, turnlog
from turnlog.stores.jsonl import osfile

def peak():
    status = open("/proc/self/status").read()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10

osfile._READ_AT_ONCE, osfile._BLOCK = 1 << 23, 1 << 20  # as if it were larger
before = peak()
thread = turnlog.Memory(sys.argv[1]).open("t")
print(peak() - before, len(thread))
"""


def test_a_big_file_is_not_twice_in_memory(root: Path) -> None:
    """Opening a file takes at most 1.3 times its size, however many readings it needs (C41)."""
    data = filled(TURN, 40 * MB)
    put(root, data)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(root)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    peak, turns = map(int, done.stdout.split())
    assert turns == data.count(b"\n")
    assert peak < 1.3 * len(data)
