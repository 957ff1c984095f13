"""Contract 5: what a crash leaves at the end of a thread's file, down to the last byte."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import TYPE_CHECKING

import pytest
from bytesofit import aside, put, seen, turn, unit
from writers import lines_on_disk

from turnlog import Memory, TornTailWarning

if TYPE_CHECKING:
    from pathlib import Path

BASE = turn("first") + turn("둘째", role="assistant")
# Text with characters of two, three and four bytes, and with escapes of two and six.
LAST = turn(r"é 안녕 🙂 \" \\ \u2028 \ud83d end", role="assistant")
ALL = ["first", "둘째", 'é 안녕 🙂 " \\ \u2028 \ud83d end']


@pytest.mark.parametrize("base", [BASE, b"", b"\xef\xbb\xbf" + BASE, BASE.replace(b"\n", b"\r\n")])
def test_every_byte(root: Path, base: bytes) -> None:
    """A last record cut at any byte, inside a character too, is a tear (C01, C02, C03)."""
    turns = ALL[:2] if base else []
    for cut in range(len(LAST) + 1):
        name = f"cut {cut}"
        torn = LAST[:cut]
        file = put(root, base + torn, name)
        found = seen(root, name, then="next")
        assert found.problems == ()
        if cut >= len(LAST) - 1:  # whole, or but for its newline
            assert found.contents == [*turns, ALL[2], "next"]
            assert found.warnings == []
            assert aside(file) == b""
            assert file.read_bytes().startswith(base + LAST)
        else:
            assert found.contents == [*turns, "next"]
            assert found.torn == len(found.warnings) == (cut > 0)
            assert aside(file) == torn
            assert file.read_bytes().startswith(base)
        assert file.read_bytes().endswith(b'Z"}\n')
        assert json.loads(file.read_bytes().split(b"\n")[-2])["content"] == "next"
        again = seen(root, name)
        assert (again.contents, again.warnings) == (found.contents, [])


def test_every_byte_under_an_open_thread(root: Path) -> None:
    """A tear that another process left is found before each append, at any byte (Contract 5)."""
    for cut in range(1, len(LAST) + 1):
        name = f"cut {cut}"
        file = put(root, BASE, name)
        with Memory(root) as memory:
            thread = memory.open(name)
            with file.open("ab") as other:
                other.write(LAST[:cut])
            if cut < len(LAST) - 1:
                with pytest.warns(TornTailWarning):
                    thread.append("next")
                assert aside(file) == LAST[:cut]
                expected = [*ALL[:2], "next"]
            else:
                thread.append("next")
                expected = [*ALL, "next"]
            assert [m.content for m in thread.messages()] == expected
            assert lines_on_disk(root, name) == expected


def test_warning(root: Path) -> None:
    """One warning names the thread, how much was torn and where it is; a task gets it too."""
    torn = LAST[:30]
    file = put(root, BASE + torn)
    with Memory(root) as memory, pytest.warns(TornTailWarning) as told:
        memory.open("t").append("next").refresh()
    assert len(told) == 1
    message = str(told[0].message)
    assert "thread 't' in namespace 'default'" in message
    assert "30 bytes" in message
    assert "t.jsonl.torn" in message
    assert file.with_name("t.jsonl.torn").stat().st_mode == file.stat().st_mode

    async def main() -> None:
        async with Memory(root) as memory:
            await memory.aopen("u")

    put(root, BASE + torn, "u")
    with pytest.warns(TornTailWarning):
        asyncio.run(main())


def test_lost_sector(root: Path) -> None:
    """A last line that kept its newline and lost an earlier part is torn, wherever it did (C24)."""
    long = turn("x" * 3_000)
    for start in range(0, len(long) - 1, 97):
        for size in (1, 512, 4096):
            hole = long[:start] + b"\0" * len(long[start : start + size]) + long[start + size :]
            hole = hole[:-1] + b"\n"
            file = put(root, BASE + hole, f"{start} {size}")
            found = seen(root, f"{start} {size}")
            assert (found.contents, found.problems) == (ALL[:2], ())
            assert (found.torn, found.damaged) == (1, 0)
            assert (file.read_bytes(), aside(file)) == (BASE, hole)


@pytest.mark.parametrize("size", [1, 511, 4096, 300_000])
@pytest.mark.parametrize("torn", [b"", LAST[:20], LAST[:20] + b"\0" * 60 + b"\n"])
def test_nul_run(root: Path, size: int, torn: bytes) -> None:
    """A run of NUL bytes at the end, alone or after a torn record, is a torn tail (C05)."""
    torn += b"\0" * size
    file = put(root, BASE + torn)
    found = seen(root, then="next")
    assert (found.contents, found.problems) == ([*ALL[:2], "next"], ())
    assert (found.torn, found.damaged) == (1, 0)
    assert aside(file) == torn


@pytest.mark.parametrize("size", [1, 512, 4096])
def test_nul_run_instead_of_the_newline(root: Path, size: int) -> None:
    """A run of NUL bytes right behind a whole record is a torn tail, not lasting damage (C05)."""
    file = put(root, BASE + LAST[:-1] + b"\0" * size)
    found = seen(root, then="next")
    assert found.problems == ()
    assert (found.torn, found.damaged) == (1, 0)
    assert found.contents in ([*ALL, "next"], [*ALL[:2], "next"])
    assert aside(file).endswith(b"\0" * size)
    assert lines_on_disk(root) == found.contents


def test_several_torn_lines(root: Path) -> None:
    """All the lines of one commit that a power cut left broken are one tear (Contract 5)."""
    torn = LAST[:40] + b"\0" * 100 + b"\n" + b'{"role":"us\0\0\n' + LAST[:25]
    file = put(root, BASE + torn)
    found = seen(root)
    assert (found.contents, found.problems) == (ALL[:2], ())
    assert (file.read_bytes(), aside(file)) == (BASE, torn)


def test_half_line_before_a_whole_one(root: Path) -> None:
    """A half line that a whole one follows is no tear: it stays, listed, and costs only itself."""
    half = LAST[:30] + b"\n"
    data = turn("first") + half + turn("second")
    file = put(root, data)
    found = seen(root)
    assert found.contents == ["first", "second"]
    assert [(p.line, p.offset, p.length) for p in found.problems] == [
        (2, len(turn("first")), len(half) - 1)
    ]
    assert (found.torn, found.damaged) == (0, 1)
    assert (file.read_bytes(), aside(file)) == (data, b"")


@pytest.mark.parametrize("after", [b"", turn("after")])
def test_fused_with_a_whole_one(root: Path, after: bytes) -> None:
    """A whole record behind a truncated one on its line is a turn; the problem is listed (C04)."""
    fused = b'{"role":"user","content":"abc{"role":"assistant","content":"x"}\n'
    data = turn("first") + fused + after
    file = put(root, data)
    found = seen(root, then="next")
    assert found.contents == ["first", "x", *["after"] * bool(after), "next"]
    assert found.messages[1].role == "assistant"
    assert [(p.line, p.offset) for p in found.problems] == [(2, len(turn("first")))]
    assert fused.index(b'{"role":"assistant"') <= found.problems[0].length < len(fused)
    assert file.read_bytes().startswith(data)
    assert aside(file) == b""


def test_fused_whole_records(root: Path) -> None:
    """Of records that lost the newlines between them, every whole one is a turn (C04)."""
    records = [turn(f"{i} 안녕")[:-1] for i in range(4)]
    fused = records[0] + records[1] + LAST[:40] + records[2] + b"\0\0" + records[3]
    put(root, turn("first") + fused + b"\n" + turn("last"))
    found = seen(root)
    assert found.contents == ["first", *(f"{i} 안녕" for i in range(4)), "last"]
    assert {problem.line for problem in found.problems} == {2}


UNIT = unit("하나 one", "two", "three 🙂")


def test_unit_cut_at_every_byte(root: Path) -> None:
    """An extend is there whole or not at all, at whichever byte a crash has cut it (Contract 5)."""
    for cut in range(len(UNIT) + 1):
        file = put(root, BASE + UNIT[:cut], f"cut {cut}")
        found = seen(root, f"cut {cut}", then="next")
        assert found.problems == ()
        if cut >= len(UNIT) - 1:
            assert found.contents == [*ALL[:2], "하나 one", "two", "three 🙂", "next"]
            assert aside(file) == b""
        else:
            assert found.contents == [*ALL[:2], "next"]
            assert aside(file) == UNIT[:cut]
            assert found.torn == (cut > 0)


@pytest.mark.parametrize("size", [40, 100])
def test_unit_with_a_hole_at_every_byte(root: Path, size: int) -> None:
    """An extend of which a power cut lost some part, wherever it lies, is not there at all."""
    for start in range(len(UNIT)):
        end = min(start + size, len(UNIT))
        hole = UNIT[:start] + b"\0" * (end - start) + UNIT[end:]
        file = put(root, BASE + hole, f"hole {start}")
        found = seen(root, f"hole {start}")
        if end == len(UNIT) and start >= len(UNIT) - 1:
            continue  # only its last newline: a record that is whole, see above
        assert found.contents == ALL[:2], (start, UNIT[start - 5 : start])
        assert (found.problems, found.torn) == ((), 1)
        assert (file.read_bytes(), aside(file)) == (BASE, hole)


def test_unit_of_which_a_line_is_missing(root: Path) -> None:
    """An extend whose lines are fewer than its last one says never became whole (Contract 5)."""
    lines = UNIT.splitlines(keepends=True)
    for missing in range(2):
        torn = b"".join(lines[:missing] + lines[missing + 1 :])
        file = put(root, BASE + torn, str(missing))
        assert seen(root, str(missing)).contents == ALL[:2]
        assert aside(file) == torn


def test_unfinished_unit_in_the_middle(root: Path) -> None:
    """The lines of a broken extend that others stand behind are turns: nothing is lost."""
    lines = UNIT.splitlines(keepends=True)
    data = BASE + lines[0] + lines[1] + turn("after")
    file = put(root, data)
    found = seen(root, then="next")
    assert found.contents == [*ALL[:2], "하나 one", "two", "after", "next"]
    assert found.torn == 0
    assert file.read_bytes().startswith(data)


def test_tear_after_a_tear(root: Path) -> None:
    """What is set aside is added to what was, on a line of its own; nothing is overwritten."""
    first, second = LAST[:30], LAST[:70] + b"\0\n"
    file = put(root, BASE + first)
    seen(root, then="next")
    with file.open("ab") as other:
        other.write(second)
    seen(root)
    with file.open("ab") as other:
        other.write(b"\0\0")
    seen(root)
    assert aside(file) == first + b"\n" + second + b"\0\0"
    assert lines_on_disk(root) == [*ALL[:2], "next"]


def test_tear_that_was_a_complete_record_of_another_program(root: Path) -> None:
    """A record without a time or a newline is whole: it is kept and completed (C03)."""
    put(root, b'{"role":"user","content":"a"}\n{"content":"b", "role":"assistant" }')
    found = seen(root, then="next")
    assert (found.contents, found.warnings) == (["a", "b", "next"], [])
    assert lines_on_disk(root) == ["a", "b", "next"]


def test_deleting_what_is_not_there_keeps_what_was_set_aside(root: Path) -> None:
    """Deleting a thread that is not there gives False, and the torn bytes of another time stay."""
    file = put(root, BASE + LAST[:30])
    seen(root)
    file.unlink()
    with Memory(root) as memory:
        assert not memory.delete("t")
        assert aside(file) == LAST[:30]
        memory.open("t").append("x")
        assert memory.delete("t")
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'{"role":"user","content":"a{"role', b'{"role'),
        (b"\0\0\0", b"\0"),
    ],
)
def test_tear_that_is_the_end_of_an_earlier_one(root: Path, first: bytes, second: bytes) -> None:
    """A tear that is equal to the end of one that was longer is set aside all the same."""
    file = put(root, BASE + first)
    seen(root)
    assert aside(file) == first
    file.write_bytes(BASE + second)
    seen(root)
    assert aside(file) == first + b"\n" + second


@pytest.mark.parametrize("before", [b"\n", b" \t\r\n\n", b"\xef\xbb\xbf\n", b"junk\n"])
def test_unit_that_is_all_there_is(root: Path, before: bytes) -> None:
    """An extend that never became whole is torn, whatever stands before it where no turn does."""
    for cut in range(UNIT.index(b"\n") + 1, len(UNIT) - 1):
        file = put(root, before + UNIT[:cut])
        with Memory(root, read_only=True) as memory, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert list(memory.peek("t", last=9)) == []
        found = seen(root)
        assert (found.contents, found.torn) == ([], 1), cut
        assert (file.read_bytes(), aside(file)) == (before, UNIT[:cut])
        file.with_name("t.jsonl.torn").unlink()
    assert seen(root, then="next").contents == ["next"]
