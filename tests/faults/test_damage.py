"""Contract 6: damage costs only itself, is never silent, and is never touched."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from bytesofit import aside, put, seen, turn
from writers import contents, lines_on_disk

from turnlog import DamagedThread, DamageWarning, Memory, Problem

if TYPE_CHECKING:
    from pathlib import Path

FIRST, LAST = turn("first"), turn("last", role="assistant")

# Lines that hold no turn, each with a word of the reason that is given.
BAD: dict[str, tuple[bytes, str]] = {
    "words": (b"hello there", "not JSON"),
    "half": (b'{"role":"user","content":"ha', "not JSON"),
    "NUL block": (b"\0" * 4096, "NUL"),
    "NULs and half": (b"\0" * 300 + b'ent":"x"}', "not JSON"),
    "invalid UTF-8": (b'{"role":"user","content":"\xff\xfe\xed\xa0\x80"}', "UTF-8"),
    "Latin-1": ('{"role":"user","content":"caf\xe9"}'.encode("latin-1"), "UTF-8"),
    "NaN": (b'{"role":"user","content":"x","meta":{"n":NaN}}', "NaN"),
    "infinity": (b'{"role":"user","content":"x","meta":{"n":-Infinity}}', "Infinity"),
    "1e999": (b'{"role":"user","content":"x","meta":{"n":1e999}}', "range"),
    "5,000 digits": (b'{"role":"user","content":"x","n":' + b"9" * 5_000 + b"}", "digits"),
    "deep list": (b'{"content":"x","n":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
    "deep object": (b'{"content":' * 100_000 + b'"x"' + b"}" * 100_000, "deep"),
    "deep and cut off": (b'{"content":"x","n":' + b"[" * 100_000, "deep"),
    "scalar": (b"12", "not an object"),
    "text": (b'"hello"', "not an object"),
    "null": (b"null", "not an object"),
    "list": (b"[1,2,3]", "not an object"),
    "no content": (b'{"role":"user"}', "content"),
    "content a number": (b'{"role":"user","content":5}', "content"),
    "content null": (b'{"role":"user","content":null}', "content"),
    "content a list": (b'{"role":"user","content":[{"type":"text","text":"x"}]}', "content"),
    "raw control character": (b'{"role":"user","content":"a\tb\x01"}', "not JSON"),
    "trailing comma": (b'{"role":"user","content":"x",}', "not JSON"),
    "single quotes": (b"{'role':'user','content':'x'}", "not JSON"),
}


def checked(root: Path, data: bytes, turns: list[str], problems: list[Problem]) -> None:
    """Check what a file shows, that it is not touched, and that the thread goes on."""
    file = put(root, data)
    for _ in range(2):
        found = seen(root)
        assert found.contents == turns
        assert list(found.problems) == problems
        assert (found.torn, found.damaged) == (0, 1)
        assert file.read_bytes() == data
    found = seen(root, then="next")
    assert found.contents == [*turns, "next"]
    assert list(found.problems) == problems
    assert found.damaged == 1
    assert file.read_bytes().startswith(data)
    assert file.read_bytes().count(b"\n") == data.count(b"\n") + 1
    assert aside(file) == b""


@pytest.mark.parametrize("name", BAD)
def test_bad_line(root: Path, name: str) -> None:
    """A line that cannot be read is listed, warned of once, left alone, and costs only itself."""
    # C06, C19, C29, C31, Contract 6.
    bad, word = BAD[name]
    file = put(root, FIRST + bad + b"\n" + LAST)
    (problem,) = seen(root).problems
    assert word in problem.reason
    assert (problem.line, problem.offset, problem.length) == (2, len(FIRST), len(bad))
    checked(root, file.read_bytes(), ["first", "last"], [problem])


@pytest.mark.parametrize(
    "name", [name for name in BAD if not BAD[name][0].startswith((b"{", b"\0"))]
)
def test_bad_last_line_of_another_program(root: Path, name: str) -> None:
    """A last line that no append of ours could have left is damage, and stays (Contract 6)."""
    bad, _ = BAD[name]
    file = put(root, FIRST + bad + b"\n")
    found = seen(root, then="next")
    assert found.contents == ["first", "next"]
    assert [(p.line, p.offset, p.length) for p in found.problems] == [(2, len(FIRST), len(bad))]
    assert file.read_bytes().startswith(FIRST + bad + b"\n")
    assert aside(file) == b""


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999", b"9" * 5000])
@pytest.mark.parametrize("after", [LAST, b""])
def test_turn_behind_a_number_that_json_has_not(root: Path, number: bytes, after: bytes) -> None:
    """A whole turn is one, whatever number stands in a record before it on its line (C04, C29)."""
    bad = b'{"content":"x","meta":{"n":' + number + b"}}"
    data = FIRST + bad + turn("fused") + after
    problem = seen(put(root, data).parent.parent).problems[0]
    assert (problem.line, problem.offset) == (2, len(FIRST))
    checked(root, data, ["first", "fused", *(["last"] if after else [])], [problem])


def test_deep_record_on_a_damaged_line(root: Path) -> None:
    """A record that is nested too deep is no turn on a damaged line either (C29)."""
    deep = b'{"role":"user","content":"x","n":' + b"[" * 70 + b"]" * 70 + b"}"
    data = FIRST + b"oops" + deep + turn("fused") + LAST
    (problem,) = seen(put(root, data).parent.parent).problems
    checked(root, data, ["first", "fused", "last"], [problem])


def test_many_bad_lines(root: Path) -> None:
    """However many lines are bad, every other turn is there and there is one warning (C19)."""
    data = b""
    turns: list[str] = []
    problems: list[tuple[int, int, int]] = []
    for number, (bad, _) in enumerate(BAD.values()):
        data += turn(f"turn {number}")
        problems.append((2 * number + 2, len(data), len(bad)))
        data += bad + b"\n"
        turns.append(f"turn {number}")
    data += LAST
    file = put(root, data)
    found = seen(root)
    assert found.contents == [*turns, "last"]
    assert [(p.line, p.offset, p.length) for p in found.problems] == problems
    assert (found.torn, found.damaged) == (0, 1)
    assert file.read_bytes() == data


def test_bad_line_that_came_later(root: Path, memory: Memory) -> None:
    """Damage that came while the thread was open is listed and warned of when it is read."""
    thread = memory.open("t").append("first")
    file = root / "default" / "t.jsonl"
    with file.open("ab") as other:
        other.write(b"oops\n" + LAST)
    with pytest.warns(DamageWarning, match="thread 't'"):
        thread.append("next")
    assert [m.content for m in thread.messages()] == ["first", "last", "next"]
    size = file.read_bytes().index(b"oops")
    assert [(p.line, p.offset, p.length) for p in thread.problems] == [(2, size, 4)]
    with file.open("ab") as other:
        other.write(b"again\n")
    thread.refresh()  # one warning is enough
    assert [p.line for p in thread.problems] == [2, 5]


def test_strict(root: Path) -> None:
    """With strict=True damage raises instead, and says where; a sound thread opens (C19)."""
    file = put(root, FIRST + b"oops\n" + LAST)
    data = file.read_bytes()
    with Memory(root, strict=True) as memory:
        with pytest.raises(DamagedThread, match=r"thread 't' in namespace 'default'.*line 2"):
            memory.open("t")
        memory.open("u").append("sound")
    with Memory(root, strict=True) as memory:
        assert len(memory.open("u")) == 1
    assert file.read_bytes() == data


def test_repeated_key(root: Path) -> None:
    """A key given twice is listed; its last value counts, and strict=True raises (C29)."""
    bad = b'{"role":"user","content":"one","content":"two"}'
    put(root, FIRST + bad + b"\n" + LAST)
    found = seen(root)
    assert found.contents == ["first", "two", "last"]
    assert [(p.line, p.offset, p.length) for p in found.problems] == [(2, len(FIRST), len(bad))]
    assert "'content'" in found.problems[0].reason
    with Memory(root, strict=True) as memory, pytest.raises(DamagedThread):
        memory.open("t")


def test_another_program_s_record(root: Path) -> None:
    """What stands inside a whole record that is no turn is not taken for a turn (Contract 6)."""
    # The nested message was never said here: it is, say, an example in a tool's log.
    foreign = b'{"type":"x","message":{"role":"user","content":"never said"}}'
    checked(
        root,
        FIRST + foreign + b"\n" + LAST,
        ["first", "last"],
        [Problem(2, len(FIRST), len(foreign), "it has no content that is a text")],
    )


FOREIGN: dict[str, bytes] = {
    "UTF-16": (FIRST + LAST).decode().encode("utf-16"),
    "UTF-32": (FIRST + LAST).decode().encode("utf-32"),
    "gzip": gzip.compress(FIRST * 50 + LAST, mtime=0),
    "gzip that ends in a newline and NULs": gzip.compress(b"0123456789", mtime=0),
    "picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\n\0\0\0\n",
    "array": json.dumps([{"role": "user", "content": "x"}] * 2).encode(),
    "array over lines": json.dumps([{"role": "user", "content": "x"}] * 2, indent=1).encode(),
    "prose": b"Dear diary,\n\ntoday nothing happened.\n",
    "YAML": b"- role: user\n  content: x\n",
    "pretty JSON": b'{\n  "role": "user",\n  "content": "x"\n}\n',
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_file(root: Path, name: str) -> None:
    """Another program's file is a listed problem, never a crash, and loses no byte (C29)."""
    data = FOREIGN[name]
    file = put(root, data)
    found = seen(root)
    assert found.problems
    assert found.damaged == 1
    assert file.read_bytes().startswith(data)
    again = seen(root, then="next")
    assert again.contents == [*found.contents, "next"]
    assert file.read_bytes().startswith(data)
    assert aside(file) == b""


def test_byte_order_mark(root: Path) -> None:
    """A byte order mark at the start of the file is passed over, and nowhere else."""
    mark = b"\xef\xbb\xbf"
    put(root, mark + FIRST + LAST)
    assert seen(root).contents == ["first", "last"]
    assert seen(root).problems == ()
    put(root, FIRST + mark + LAST)
    found = seen(root, then="next")
    assert [p.line for p in found.problems] == [2]
    assert found.contents[0] == "first"
    assert found.contents[-1] == "next"


def test_windows_newlines(root: Path) -> None:
    """Lines that end in CRLF are turns, also next to ours."""
    data = (FIRST + LAST).replace(b"\n", b"\r\n")
    file = put(root, data)
    found = seen(root, then="next")
    assert (found.contents, found.problems) == (["first", "last", "next"], ())
    assert file.read_bytes().startswith(data)


def test_blank_lines(root: Path) -> None:
    """Blank lines hold nothing and are no damage; they count as lines."""
    put(root, b"\n" + FIRST + b"\n  \n\r\n" + LAST + b"oops\n" + b"\n")
    found = seen(root, then="next")
    assert found.contents == ["first", "last", "next"]
    assert [p.line for p in found.problems] == [7]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_lines_end_at_newlines_only(root: Path, character: str) -> None:
    """What some programs take for a line's end is text inside a turn (C22)."""
    data = f'{{"role":"user","content":"a{character}b"{"}"}\n'.encode()
    if ord(character) >= 0x80:  # JSON allows these as they are
        put(root, FIRST + data + LAST)
        assert seen(root).contents == ["first", f"a{character}b", "last"]
        assert seen(root).problems == ()
    with Memory(root) as memory:
        memory.open("u").append(f"a{character}b").append("c")
    file = root / "default" / "u.jsonl"
    assert contents(root, "u") == [f"a{character}b", "c"] == lines_on_disk(root, "u")
    assert len(file.read_text("utf-8").splitlines()) == 2


@pytest.mark.parametrize("text", ["\ud83d", "a\udc88b", "\udfff\ud800", "x\udcff 안녕 🙂"])
def test_lone_surrogate(root: Path, text: str) -> None:
    """A lone surrogate is kept as its escape and comes back the same (C13)."""
    with Memory(root) as memory:
        memory.open("t").append(text, meta={"name": text})
    data = (root / "default" / "t.jsonl").read_bytes()
    data.decode("utf-8")
    assert f"\\u{ord(max(text, key=lambda c: 0xD800 <= ord(c) <= 0xDFFF)):04x}".encode() in data
    found = seen(root, then="next")
    assert found.contents == [text, "next"]
    assert found.messages[0].meta == {"name": text}
    assert found.problems == ()


@pytest.mark.parametrize("locale", ["C", "POSIX", "de_DE.ISO-8859-1"])
def test_locale(root: Path, locale: str) -> None:
    """Text and names in Korean are UTF-8 on the disk whatever the locale is (C14)."""
    code = (
        "import sys, turnlog\n"
        f"memory = turnlog.Memory({os.fspath(root)!r})\n"
        "thread = memory.open('사용자', namespace='지원').append('안녕하세요 🙂')\n"
        "assert [m.content for m in thread.messages()] == ['안녕하세요 🙂']\n"
        "assert [(i.namespace, i.id) for i in memory.threads()] == [('지원', '사용자')]\n"
        "try: memory.open('../사용자')\n"
        "except turnlog.InvalidName as error: print(error)\n"
    )
    script = root.with_suffix(".py")
    script.write_text(code, "utf-8")
    environment = os.environ | {
        "LC_ALL": locale,
        "LANG": locale,
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    environment.pop("PYTHONIOENCODING", None)
    subprocess.run(
        [sys.executable, script], env=environment, check=True, capture_output=True, timeout=60
    )
    data = (root / "지원" / "사용자.jsonl").read_bytes()
    assert "안녕하세요 🙂".encode() in data
    with Memory(root) as memory:
        assert memory.open("사용자", namespace="지원").messages()[0].content == "안녕하세요 🙂"


def test_empty_file(root: Path) -> None:
    """A file with zero bytes is an empty thread, without a word (C20)."""
    file = put(root, b"")
    found = seen(root)
    assert (found.contents, found.problems, found.warnings) == ([], (), [])
    assert file.read_bytes() == b""
    assert seen(root, then="next").contents == ["next"]
    assert lines_on_disk(root) == ["next"]


@pytest.mark.parametrize("data", [b"\0" * 5_000, FIRST + b"\0" * 5_000])
def test_trailing_nuls_hide_no_thread(root: Path, data: bytes) -> None:
    """A thread whose file ends in NUL bytes, or is nothing else, is listed and opens (C30)."""
    put(root, data)
    with Memory(root, read_only=True) as memory:
        assert [info.id for info in memory.threads()] == ["t"]
        assert memory.open("t").messages().messages == seen(root).messages.messages  # type: ignore[attr-defined]
    assert seen(root, then="next").contents[-1] == "next"


def test_first_64_kilobytes_hide_no_thread(root: Path) -> None:
    """A thread that begins with a line longer than any buffer is listed and whole (C30)."""
    put(root, turn("x" * 300_000) + b"oops " * 50_000 + b"\n" + LAST)
    with Memory(root) as memory:
        assert [info.id for info in memory.threads("default")] == ["t"]
    found = seen(root)
    assert [len(content) for content in found.contents] == [300_000, 4]
    assert [problem.line for problem in found.problems] == [2]


@pytest.mark.timeout(60)
def test_newlines_lost(root: Path) -> None:
    """A file of which somebody removed every newline still opens, and in good time (C04)."""
    # The time to read it must grow with its size, not with the square of it.
    put(root, turn("x")[:-1] * 120_000 + b"\n" + LAST)
    found = seen(root)
    assert len(found.messages) == 120_001
    assert [problem.line for problem in found.problems] == [1]
