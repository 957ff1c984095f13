"""Damage is not a tear: only what our own unfinished append can leave is set aside (C60, C62)."""

from __future__ import annotations

import gzip
import warnings
from typing import TYPE_CHECKING

import pytest
from bytesofit import aside, put, seen, turn, unit

from turnlog import DamagedThread, Memory

if TYPE_CHECKING:
    from pathlib import Path

FIRST, LAST = turn("first"), turn("last", role="assistant")
TURNS = turn("eins") + turn("zw\xf6lf") + turn("drei\xdfig")


def in_latin_1(lines: bytes) -> bytes:
    """Return lines as a program writes them that knows no UTF-8."""
    return lines.decode().replace("eins", "f\xfcnf").encode("latin-1")


# What ends at a newline or not, but as no append of ours can have left it.
ENDS: dict[str, bytes] = {
    "Latin-1": in_latin_1(TURNS),
    "one line of Latin-1": in_latin_1(TURNS).splitlines(keepends=True)[1],
    "a half line that ends": LAST[:40] + b"\n",
    "UTF-16": TURNS.decode().encode("utf-16-le"),
    "UTF-16, big end first": TURNS.decode().encode("utf-16-be"),
    "UTF-32": TURNS.decode().encode("utf-32-le"),
    "UTF-32, big end first": TURNS.decode().encode("utf-32-be"),
    "a log": b"2026-11-29 13:25:00 INFO it began\n2026-11-29 13:25:01 WARN it goes on\n",
    "a log without its newline": b"2026-11-29 13:25:00 INFO it began",
    "an object of another program, cut off": b'{"type":"log","text":"it be',
    "an object of another program with NUL": b'{"type":"log","text":"it\0be"}\n',
    "gzip": gzip.compress(TURNS * 20, mtime=0),
    "pretty JSON": b'{\n  "role": "user",\n  "content": "x"\n}\n',
}


@pytest.mark.parametrize("name", ENDS)
def test_a_whole_file_of_another_program(root: Path, name: str) -> None:
    """A file of another program shows its problems, read-only and not, and loses no byte (C60)."""
    file = put(root, ENDS[name])
    with Memory(root, read_only=True) as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = memory.open("t")
        assert (len(thread), list(memory.peek("t", last=9))) == (0, [])
        problems = thread.problems
    assert problems
    for strict in (Memory(root, strict=True), Memory(root, strict=True, read_only=True)):
        with strict as memory, pytest.raises(DamagedThread):
            memory.open("t")
    found = seen(root)
    assert (found.contents, found.problems) == ([], problems)
    assert (found.torn, found.damaged) == (0, 1)
    assert file.read_bytes() in {ENDS[name], ENDS[name] + b"\n"}
    assert seen(root, then="next").contents == ["next"]
    assert file.read_bytes().startswith(ENDS[name])
    assert aside(file) == b""


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_another_program(root: Path, name: str) -> None:
    """What another program put behind turns is listed, stays, and costs no turn (C60)."""
    data = FIRST + unit("a", "b") + ENDS[name]
    file = put(root, data)
    found = seen(root, then="next")
    assert found.contents == ["first", "a", "b", "next"]
    assert found.problems
    assert (found.torn, found.damaged) == (0, 1)
    assert file.read_bytes().startswith(data)
    assert aside(file) == b""


def test_each_line_of_latin_1_is_a_problem(root: Path) -> None:
    """Each line that is not UTF-8 is listed with its place, wherever it stands (C60)."""
    lines = in_latin_1(TURNS).splitlines(keepends=True)
    put(root, b"".join(lines) + FIRST + lines[0])
    found = seen(root)
    assert found.contents == ["first"]
    assert [problem.line for problem in found.problems] == [1, 2, 3, 5]
    lengths = [len(lines[number]) - 1 for number in (0, 1, 2, 0)]
    assert [problem.length for problem in found.problems] == lengths
    assert {problem.reason for problem in found.problems} == {"it is not UTF-8"}


# Lines of other programs that hold what looks like a turn, inside of something else.
TORN_FOREIGN: dict[str, bytes] = {
    "in a list": b'{"type":"log","messages":[{"role":"user","content":"never said"},{"role":"x",',
    "further on in a list": b'{"n":[{"a":1},{"role":"user","content":"never said"},{"role":"us',
    "in an object": b'{"type":"log","message":{"role":"user","content":"never said"},"at":"20',
    "in an object that begins as a turn": b'{"role":"user","message":{"role":"user","content":'
    b'"never said"},"at":"20',
    "in a list in what begins as a turn": b'{"role":"user","parts":[{"role":"user","content":'
    b'"never said"},{"role":"user","content":"never said"}],"at":"20',
    "in a list of lists": b'[[{"role":"user","content":"never said"}],[{"role":"user","con',
    "in the meta of a turn": FIRST[:-2] + b',"meta":{"role":"user","content":"never said"}',
    "in what Python shows": b'{\'text\': \'{"role":"user","content":"never said"}\', \'at\': ',
    "in what Python shows as a text": b'{\'text\': \'said {"role":"user","content":"x"}',
    "in a stream of events": b'data: {"message":{"role":"user","content":"never said"}}',
    "in a log": b'INFO sent={"role":"user","content":"never said"}',
}


@pytest.mark.parametrize("name", TORN_FOREIGN)
@pytest.mark.parametrize("end", [b"", b"\n", b"\n" + LAST, b"\0\0\n" + LAST])
def test_nothing_inside_a_torn_line_is_a_turn(root: Path, name: str, end: bytes) -> None:
    """What stands inside a torn object, list or quotation was never said here (C62)."""
    put(root, turn("before") + TORN_FOREIGN[name] + end)
    found = seen(root, then="next")
    assert found.contents == ["before", *(["last"] if end.endswith(LAST) else []), "next"]
    assert found.problems or found.torn


def test_a_turn_with_a_turn_in_its_meta_is_one(root: Path) -> None:
    """Fused with others, or cut off anywhere, a turn's meta is not taken for a turn (C04, C62)."""
    meta = ',"meta":{"role":"user","content":"never said","at":"2026-11-29T13:25:00.123456Z"}'
    odd = turn("odd", more=meta)[:-1]
    put(root, FIRST + odd + odd + LAST)
    found = seen(root)
    assert found.contents == ["first", "odd", "odd", "last"]
    for cut in range(1, len(odd)):
        if odd[:cut].endswith(b'"meta":'):
            continue  # what stands behind might be the meta
        put(root, FIRST + odd[:cut] + LAST)
        assert seen(root).contents == ["first", "last"], odd[:cut]
