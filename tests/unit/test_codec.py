"""The line of a turn: what is written, what is read back, and what is made of foreign lines."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnlog import DamageWarning, Memory, Message
from turnlog.codec import (
    decode_turn,
    encode_turn,
    find_records,
    from_json,
    glance,
    keys_of,
    to_json,
)

if TYPE_CHECKING:
    from pathlib import Path

AT = dt.datetime(2026, 11, 29, 13, 25, 0, 123456, dt.UTC)

# Characters that break somebody's reader, beside all others; half characters too.
ODD = '\0\t\n\r\x1b"\\/\x7f\x80\x85\x9f\u00a0\u2028\u2029\ufeff\ufffd\uffff\ud800\udfff\U0001f9f5'
texts = st.text(st.characters(exclude_categories=())) | st.text(st.sampled_from(ODD))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)


def joined(text: str) -> str:
    """Join the halves of characters that stand side by side: JSON cannot tell them from a whole."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


messages = st.builds(
    Message,
    st.sampled_from(("user", "assistant", "system")),
    texts,
    st.datetimes(timezones=st.just(dt.UTC)),
    st.none() | st.dictionaries(texts.map(joined), scalars, max_size=4),
)


# ---- what is written ----


@given(messages, st.none() | texts.filter(bool))
@example(Message("user", "\ud800", AT, {"n": 2**63, "m": -(2**63)}), None)
@example(Message("user", "x", AT.replace(microsecond=0), {"n": 2**64 - 1}), "\ud800")
@example(Message("user", "x", dt.datetime(1, 1, 1, tzinfo=dt.UTC), {"": 1e22}), None)
def test_a_turn_comes_back_the_same(message: Message, key: str | None) -> None:
    """Any text, time and meta, with any key, is read back as it was written. C13."""
    line = encode_turn(message, key=key)
    found = decode_turn(line)
    meta = message.meta and {
        name: joined(value) if isinstance(value, str) else value
        for name, value in message.meta.items()
    }
    assert found == Message(message.role, joined(message.content), message.at, meta)
    for name, value in (found.meta or {}).items():
        assert type(value) is type((meta or {})[name])
    ((start, end, record),), problem = find_records(line)
    assert (start, end, problem) == (0, len(line), None)
    assert record.key == (key and joined(key))
    assert keys_of([b"{}", line]) == ({} if key is None else {joined(key): 1})


@given(messages, st.none() | texts.filter(bool), st.booleans(), st.none() | st.integers(2, 99))
def test_no_reader_splits_or_trips_over_a_line(
    message: Message,
    key: str | None,
    more: bool,  # noqa: FBT001 - drawn
    unit: int | None,
) -> None:
    """A line is UTF-8 and one line to every splitter; any JSON library reads its text. C22."""
    text = encode_turn(message, key=key, more=more, unit=unit).decode()
    assert text.splitlines() == [text]
    assert re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", text) is None
    value = json.loads(text)
    order = ("role", "content", "at", "meta", "key", "more", "unit")
    assert list(value) == [name for name in order if name in value]
    assert list(value)[:3] == ["role", "content", "at"]
    assert value["content"] == joined(message.content)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", value["at"])
    assert dt.datetime.fromisoformat(value["at"]) == message.at
    assert (value.get("more"), value.get("unit")) == (more or None, unit)


def test_the_line_of_a_plain_turn_is_short_and_readable() -> None:
    """A turn is written with its three keys, without spaces, other scripts as they are. R3."""
    line = encode_turn(Message("user", "Grüße, 世界!", AT))
    expected = '{"role":"user","content":"Grüße, 世界!","at":"2026-11-29T13:25:00.123456Z"}'
    assert line.decode() == expected


def test_everything_a_line_can_hold_has_its_place() -> None:
    """Meta, key, more and unit come after the first three keys, in this order."""
    line = encode_turn(Message("system", "", AT, {"a": None}), key="k", more=True, unit=2)
    assert line == (
        b'{"role":"system","content":"","at":"2026-11-29T13:25:00.123456Z",'
        b'"meta":{"a":null},"key":"k","more":true,"unit":2}'
    )


def test_what_would_split_a_line_is_escaped() -> None:
    """Newlines, controls, U+0085, U+2028, U+2029 and half characters are written as escapes."""
    line = encode_turn(Message("user", "\n\0\x7f\x85\u2028\u2029\ud800", AT))
    assert line.startswith(
        rb'{"role":"user","content":"\n\u0000\u007f\u0085\u2028\u2029\ud800","at"'
    )


# ---- other people's lines that are turns ----

FOREIGN: list[tuple[str, Message]] = [
    ('{"content":"x"}', Message("user", "x")),
    ('{"content":"x","role":"assistant"}', Message("assistant", "x")),
    (' { "role" : "user" , "content" : "x" } ', Message("user", "x")),
    (r'{"content":"\u0041\n\ud83e\uddf5"}', Message("user", "A\n\U0001f9f5")),
    ('{"role":"tool","content":"x"}', Message("user", "x", None, {"role": "tool"})),
    ('{"role":"User","content":"x"}', Message("user", "x", None, {"role": "User"})),
    ('{"role":null,"content":"x"}', Message("user", "x", None, {"role": None})),
    ('{"role":["user"],"content":"x"}', Message("user", "x", None, {"role": '["user"]'})),
    (
        '{"role":"user","content":"x","name":"Ada","n":1,"f":0.5,"b":true,"z":null}',
        Message("user", "x", None, {"name": "Ada", "n": 1, "f": 0.5, "b": True, "z": None}),
    ),
    (
        '{"content":"x","tags":["a",{"é":[1.5,null]}],"o":{}}',
        Message("user", "x", None, {"tags": '["a",{"é":[1.5,null]}]', "o": "{}"}),
    ),
    ('{"content":"x","meta":{"a":{"b":1}}}', Message("user", "x", None, {"a": '{"b":1}'})),
    ('{"content":"x","meta":{}}', Message("user", "x")),
    ('{"content":"x","meta":null}', Message("user", "x")),
    ('{"content":"x","meta":"m"}', Message("user", "x", None, {"meta": "m"})),
    ('{"content":"x","meta":[1]}', Message("user", "x", None, {"meta": "[1]"})),
    ('{"content":"x","at":null}', Message("user", "x")),
    (
        '{"content":"x","at":"2026-11-29T14:25:00.123456+01:00"}',
        Message("user", "x", AT),
    ),
    ('{"content":"x","at":"2026-11-29T13:25:00.123456z"}', Message("user", "x", AT)),
    (
        '{"content":"x","at":"2026-11-29T13:25:00Z"}',
        Message("user", "x", AT.replace(microsecond=0)),
    ),
    ('{"content":"x","at":"yesterday"}', Message("user", "x", None, {"at": "yesterday"})),
    (
        '{"content":"x","at":"2026-11-29T13:25:00"}',
        Message("user", "x", None, {"at": "2026-11-29T13:25:00"}),
    ),
    ('{"content":"x","at":1764422700}', Message("user", "x", None, {"at": 1764422700})),
    (
        '{"content":"x","at":"0001-01-01T00:00:00+01:00"}',
        Message("user", "x", None, {"at": "0001-01-01T00:00:00+01:00"}),
    ),
    (
        '{"content":"x","at":"9999-12-31T23:59:59-01:00"}',
        Message("user", "x", None, {"at": "9999-12-31T23:59:59-01:00"}),
    ),
    (
        '{"content":"x","key":7,"more":1,"unit":"2"}',
        Message("user", "x", meta={"more": 1, "unit": "2"}),
    ),
    (
        '{"content":"x","meta":{"n":123456789012345678901234567890}}',
        Message("user", "x", None, {"n": "123456789012345678901234567890"}),
    ),
    (
        '{"content":"x","n":-9223372036854775809}',
        Message("user", "x", None, {"n": "-9223372036854775809"}),
    ),
    (
        r'{"content":"\ud800","meta":{"n":18446744073709551615,"m":-9223372036854775808}}',
        Message("user", "\ud800", None, {"n": 2**64 - 1, "m": -(2**63)}),
    ),
]


@pytest.mark.parametrize(("line", "message"), FOREIGN, ids=lambda value: str(value)[:60])
def test_a_foreign_line_is_a_turn(line: str, message: Message) -> None:
    """Anyone's line with a content is a turn; what has no place of its own is shown in meta."""
    found, problem = find_records(line.encode())
    assert problem is None
    ((start, end, _),) = found
    assert decode_turn(line.encode()[start:end]) == message


@pytest.mark.parametrize(("line", "message"), FOREIGN, ids=lambda value: str(value)[:60])
def test_a_foreign_line_is_read_as_a_turn_of_a_thread(
    root: Path, line: str, message: Message
) -> None:
    """A file of foreign lines, with CRLF or without, is a thread without a problem. R4."""
    path = root / "default" / "t.jsonl"
    path.parent.mkdir(parents=True)
    both = (line, '{"content":"y"}')
    data = b"".join(each.encode() + end for end in (b"\n", b"\r\n") for each in both)
    path.write_bytes(data)
    with Memory(root) as memory:
        mem = memory.open("t")
        assert mem.messages().messages == (message, Message("user", "y")) * 2
        assert mem.problems == ()
        mem.append("mine")
    assert path.read_bytes().startswith(data)


# ---- lines that are no turns ----

HOSTILE: list[tuple[bytes, str]] = [
    (b"null", "it is JSON but not an object"),
    (b'"text"', "it is JSON but not an object"),
    (b"42", "it is JSON but not an object"),
    (b"[]", "it is JSON but not an object"),
    (b'["user","x"]', "it is JSON but not an object"),
    (b"{}", "it has no content that is a text"),
    (b'{"role":"user"}', "it has no content that is a text"),
    (b'{"role":"user","content":null}', "it has no content that is a text"),
    (b'{"role":"user","content":[{"type":"text"}]}', "it has no content that is a text"),
    (b'{"role":"user","Content":"x"}', "it has no content that is a text"),
    (b"hello", "it is not JSON"),
    (b'{"role":"user","content":"x"', "it is not JSON"),
    (b'{"role":"user","content":"x",}', "it is not JSON"),
    (b"{'role':'user','content':'x'}", "it is not JSON"),
    (b'{"role":"user","content":"a\tb"}', "it is not JSON"),
    (b'{"role":"user","content":"\\x41"}', "it is not JSON"),
    (b'\xef\xbb\xbf{"role":"user"', "it is not JSON"),
    (b"\0\0\0\0", "it is NUL bytes"),
    (b'{"content":"x","n":NaN}', "NaN is not JSON"),
    (b'{"content":"x","n":-Infinity}', "-Infinity is not JSON"),
    (b'{"content":"x","meta":{"n":Infinity}}', "Infinity is not JSON"),
    (b'{"content":"x","n":1e999}', "the number 1e999 is out of range"),
    (b'{"content":"x","meta":{"n":-1e999}}', "the number -1e999 is out of range"),
    (b'{"content":"x","n":' + b"9" * 5000 + b"}", "a number in it has too many digits"),
    (b'{"content":"x","meta":{"n":' + b"9" * 5000 + b"}}", "a number in it has too many digits"),
    (b'{"content":"x","n":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "it is nested too deep"),
    (b'{"n":' * 100_000 + b"1" + b"}" * 100_000, "it is nested too deep"),
    (b"[" * 100_000, "it is nested too deep"),
    (b'{"content":"\xff"}', "it is not UTF-8"),
    (b'{"content":"\xed\xa0\x80"}', "it is not UTF-8"),  # a half character, as bytes
    (b'{"content":"\xc0\x80"}', "it is not UTF-8"),  # NUL, too long
    (b"\x1f\x8b\x08\x00", "it is not UTF-8"),
    ('{"content":"x"}'.encode("utf-16-le"), "it is not JSON"),
    ('{"content":"x"}'.encode("utf-16"), "it is not UTF-8"),
]
hostile = pytest.mark.parametrize(
    ("line", "reason"), HOSTILE, ids=lambda value: ascii(value[:30]) if len(value) else "empty"
)


@hostile
def test_a_line_without_a_turn_says_why(line: bytes, reason: str) -> None:
    """A line that holds no turn gives none, and its reason. C19, C29, C31."""
    assert find_records(line) == ([], reason)


@hostile
def test_a_hostile_line_costs_only_itself(root: Path, line: bytes, reason: str) -> None:
    """Between good lines, a hostile one is a listed problem; its bytes stay. Contract 6, C29."""
    path = root / "default" / "t.jsonl"
    path.parent.mkdir(parents=True)
    good = b'{"role":"user","content":"good"}\n'
    data = good + line + b"\n" + good
    path.write_bytes(data)
    with Memory(root) as memory:
        with pytest.warns(DamageWarning):
            mem = memory.open("t")
        assert [message.content for message in mem.messages()] == ["good", "good"]
        (problem,) = mem.problems
        assert (problem.line, problem.offset, problem.length) == (2, len(good), len(line))
        assert problem.reason == reason
        mem.append("after")
    assert path.read_bytes().startswith(data)


@pytest.mark.parametrize(
    "line",
    [
        b'[{"role":"user","content":"inner"}]',
        b'{"role":"assistant","content":null,"call":{"role":"user","content":"inner"}}',
        b'{"type":"event","payload":{"role":"user","content":"inner"}}',
    ],
)
def test_nothing_inside_a_whole_json_value_is_a_turn(line: bytes) -> None:
    """Only torn records are searched: a whole value without a text does not yield its inside."""
    found, problem = find_records(line)
    assert found == []
    assert problem is not None


@pytest.mark.parametrize(
    "line",
    [
        b'{"role":"user","content":"a","content":"b"}',
        b'{"role":"user","content":"b","meta":{"n":1,"n":2}}',
        b'{"role":"user","content":"b","x":[{"n":1,"n":2}]}',
        b'{"role":"system","role":"user","content":"b","key":"k"}',
    ],
)
def test_a_key_given_twice_is_listed_and_the_last_counts(line: bytes) -> None:
    """A turn with a repeated key is a turn, with its last value, and a problem. C29."""
    ((start, end, _),), problem = find_records(line)
    assert (start, end) == (0, len(line))
    assert problem is not None
    assert "is given more than once" in problem
    message = decode_turn(line)
    assert (message.role, message.content) == ("user", "b")


@pytest.mark.parametrize("shape", ["arrays", "objects", "meta"])
def test_nesting_of_any_depth_is_a_problem_or_a_turn(shape: str) -> None:
    """However deep a line is nested, reading it raises nothing, and a turn that was found is one.

    The depths around the recursion limit are where one reader gives up and the other does not.
    """
    for depth in (1, 2, 100, *range(800, 1001), 2000, 5000, 20_000):
        opening, closing = ("[", "]") if shape != "objects" else ('{"a":', "}")
        nested = opening * depth + "1" + closing * depth
        line = f'{{"content":"x","{"meta" if shape == "meta" else "n"}":{nested}}}'.encode()
        found, problem = find_records(line)
        if problem is None:
            assert decode_turn(line).content == "x"
        else:
            assert (found, problem) == ([], "it is nested too deep")


def test_a_turn_that_was_loaded_can_be_read_from_a_deep_stack(root: Path) -> None:
    """Whether a nested line is a turn does not hang on how deep its reader's own calls are."""
    path = root / "default" / "t.jsonl"
    path.parent.mkdir(parents=True)
    good = b'{"role":"user","content":"good"}\n'
    path.write_bytes(good + b'{"content":"x","n":' + b"[" * 500 + b"]" * 500 + b"}\n" + good)

    def contents(mem: Any, calls: int) -> list[str]:
        if calls:
            return contents(mem, calls - 1)
        return [message.content for message in mem.messages()]

    with Memory(root) as memory:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamageWarning)  # if it is too deep to be a turn
            mem = memory.open("t")
        shallow = contents(mem, 0)
        assert shallow in (["good", "x", "good"], ["good", "good"])
        assert contents(mem, 700) == shallow


# ---- several records on one line ----


def record(content: str, **extra: Any) -> bytes:
    """Give a line of ours."""
    return encode_turn(Message("user", content, AT), **extra)


def contents_of(line: bytes) -> list[str]:
    """Give the texts of the turns found in a line, each read from the bytes it was found at."""
    return [decode_turn(line[start:end]).content for start, end, _ in find_records(line)[0]]


LOOKALIKE = '{"role":"user","content":"inner"} \u00e9\u4e16\U0001f9f5 \ud800'


def test_whole_records_fused_on_a_line_are_all_found() -> None:
    """Records that lost the newline between them are all turns, with their own bytes. C09."""
    line = record("é") + record(LOOKALIKE) + record("c", key="k")
    assert contents_of(line) == ["é", LOOKALIKE, "c"]
    found, problem = find_records(line)
    assert problem == "several records are fused on it"
    assert [record.key for _, _, record in found] == [None, None, "k"]
    assert keys_of([line]) == {"k": 0}


@pytest.mark.parametrize("content", ["abc", LOOKALIKE])
def test_a_whole_record_behind_a_torn_one_is_found(content: str) -> None:
    """Wherever a record was torn, a whole one right behind it is a turn, and only that. C04, C08.

    Torn at any byte, inside UTF-8 too; behind a record that lost just its end.
    """
    torn, whole = record(content, key="torn"), record(LOOKALIKE)
    for cut in range(1, len(torn)):
        line = torn[:cut] + whole
        assert contents_of(line) == [LOOKALIKE], line
        assert find_records(line)[1] is not None


@pytest.mark.parametrize("junk", [b"\0" * 7, b"\xff\xfe", b"}{", b'{"role":', b"nul", b'"'])
def test_junk_around_whole_records_costs_only_itself(junk: bytes) -> None:
    """NULs, broken UTF-8 and halves of records around whole ones leave these turns. C06."""
    line = junk + record("a") + junk + record("b") + junk
    assert contents_of(line) == ["a", "b"]
    assert find_records(line)[1] is not None


GLANCED = [
    *(b'{"role":"user","content":"a"}', b'{"content":"b","n":{"a":[1]}}', b'{"type":"x"}', b"[1]"),
    *(b'{"role":"user","content":"h', b'{"content":"\\ud800"}', b'{"c\\u006fntent":"c"}', b"\xe9"),
    *(b'{"content":"x","n":NaN}', b'{"content":"x","n":1e999}', b'{"content":"a","content":"b"}'),
    *(b'{"content":"x","n":%s}' % (b"9" * 4_400), b"[" * 70, b"]" * 70, b"{", b"}", b" ", b"\0"),
]


@given(st.lists(st.sampled_from(GLANCED), max_size=4).map(b"".join))
def test_a_glance_says_what_a_longer_look_does(line: bytes) -> None:
    """What a quick look finds is what is found line by line, and it passes over no turn (C41)."""
    found, _ = find_records(line)
    seen = glance(line)
    if isinstance(seen, bool):
        assert seen or found == []
    else:
        assert [(start, end) for start, end, _ in found] == [(0, len(line))]
        ((_, _, record),) = found
        assert (record.content, record.key, record.more) == (seen.content, seen.key, seen.more)
        assert decode_turn(line).content == seen.content


@pytest.mark.timeout(60)
def test_a_huge_line_of_fused_records_is_read_in_time() -> None:
    """Finding the records of a line takes time in proportion to its length."""
    one = record("a")
    line = one * (2_000_000 // len(one))
    assert len(find_records(line)[0]) == len(line) // len(one)


# ---- any value ----

values = st.recursive(
    scalars | st.integers(-(10**400), 10**400),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(texts.map(joined), inner, max_size=4)
    ),
    max_leaves=12,
)


def whole(value: Any) -> Any:
    """Give a value with the halves of characters in its texts joined, as JSON has them."""
    if isinstance(value, str):
        return joined(value)
    if isinstance(value, list):
        return [whole(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


@given(values)
@example({"a": [1, 2.5, -0.0, 1e300, True, None, "\ud800"], "": {}})
def test_a_value_comes_back_the_same(value: Any) -> None:
    """Any value of JSON's kinds is one line of UTF-8, without a newline, and is read back."""
    line = to_json(value)
    found = from_json(line)
    assert found == whole(value)
    assert repr(found) == repr(whole(value))  # True is not 1, nor 1 1.0
    assert line.decode().splitlines() == [line.decode()]
    assert json.loads(line) == found
    assert re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", line.decode()) is None


def test_a_value_is_short_and_readable() -> None:
    """A value is written without spaces, in its own order, other scripts as they are."""
    assert (
        to_json({"b": [1, "Gr\u00fc\u00dfe"], "a": None})
        == '{"b":[1,"Gr\u00fc\u00dfe"],"a":null}'.encode()
    )
    assert to_json("\x7f\x85\u2028") == rb'"\u007f\u0085\u2028"'


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), [-float("inf")], {"a": float("nan")}]
)
def test_a_number_that_json_has_not_is_not_written(value: Any) -> None:
    """A float that is not finite is a ValueError, wherever it stands."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(value)


NO_JSON: list[bytes] = [
    *(b"", b" ", b"{", b"oops", b"{'a':1}", b"[1,]", b"1 2", b'{"a":1}{"a":2}', b"\0"),
    *(b"NaN", b"[Infinity]", b'{"a":-Infinity}', b"1e999", b"[-1e999]", b"9" * 5000),
    *(b'"\xff"', b'"\xed\xa0\x80"', '{"a":1}'.encode("utf-16"), b'"a\tb"'),
    *(b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
]


@pytest.mark.parametrize("data", NO_JSON, ids=lambda data: ascii(data[:20]))
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    """Not JSON, not UTF-8, too deep, out of range: a ValueError that says so, and nothing else."""
    with pytest.raises(ValueError, match=r".") as told:
        from_json(data)
    assert str(told.value)


def test_json_of_others_is_read() -> None:
    """A byte order mark, white space, escapes and a key given twice are read as JSON is."""
    assert from_json(b'\xef\xbb\xbf {"a" : "\\ud83e\\uddf5", "n": 1, "n": 2}\r\n') == {
        "a": "\U0001f9f5",
        "n": 2,
    }


# ---- files that are another program's ----


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            "\n".join(['{"role":"user","content":"x"}'] * 3).encode("utf-16"), id="UTF-16"
        ),
        pytest.param(
            ('{"role":"user","content":"x"}\n' * 3).encode("utf-16"), id="UTF-16, newline"
        ),
        pytest.param(gzip.compress(b"0123456789", mtime=0), id="gzip"),
        pytest.param(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0", id="PNG"),
        pytest.param(b"# Notes\n\nsome text\n{unfinished", id="Markdown"),
        pytest.param(b"role,content\nuser,x", id="CSV"),
        pytest.param(b'[\n{"a":1},\n{"a":2}\n]', id="a JSON array"),
    ],
)
def test_the_file_of_another_program_keeps_its_bytes(root: Path, data: bytes) -> None:
    """A file without a turn, which does not begin as ours do, is listed and never cut. C29."""
    path = root / "default" / "t.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with Memory(root) as memory:
        with pytest.warns(DamageWarning):
            mem = memory.open("t")
        assert (len(mem), len(mem.problems) > 0) == (0, True)
        mem.append("mine")
    assert path.read_bytes().startswith(data)
    assert os.listdir(path.parent) == ["t.jsonl"]
    with Memory(root) as memory, pytest.warns(DamageWarning):
        assert [message.content for message in memory.open("t").messages()] == ["mine"]
