"""What stands in a message of the JetStream store: lines, and a header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.stores.nats.wire import (
    FORMAT,
    HEADER,
    ID,
    PART,
    Foreign,
    Header,
    Stored,
    headers_of,
    lines_of,
    message_of,
    part_of,
    payload_of,
    split,
)

lines = st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), min_size=1)
numbers = st.integers(0, 2**53)
headers = st.builds(
    Header,
    count=numbers,
    size=numbers,
    turns=numbers,
    after=numbers,
    life=numbers,
    parts=numbers,
    upload=st.text("0123456789abcdef", max_size=24),
    first=numbers,
)


@given(lines)
def test_lines_come_back(lines: list[bytes]) -> None:
    """Lines that were put together are taken apart again, empty ones too."""
    assert lines_of(payload_of(lines)) == lines


@given(st.binary(max_size=200), st.integers(1, 50))
def test_parts_come_back(payload: bytes, most: int) -> None:
    """What was cut into parts, none of them larger than asked, is the same when joined."""
    parts = split(payload, most)
    assert b"".join(parts) == payload
    assert all(0 < len(part) <= most for part in parts)


@given(headers)
def test_a_header_comes_back(header: Header) -> None:
    """What a message says of itself is read as it was written, on one line of ASCII."""
    text = header.encoded()
    assert text.isascii()
    assert text.isprintable()
    message = message_of(7, {HEADER: text, ID: "id"}, b"x")
    assert (message.header, message.sequence, message.id) == (header, 7, "id")
    assert message.payload == b"x"


def test_the_first_message_names_the_threads_life() -> None:
    """A thread's life is the sequence of its first message, in that message and in later ones."""
    first = message_of(5, {HEADER: Header(2, 10).encoded()}, b"")
    later = message_of(9, {HEADER: Header(3, 30, turns=2, after=5, life=5).encoded()}, b"")
    assert (first.life, later.life) == (5, 5)
    assert (first.end, later.end) == (2, 5)


@pytest.mark.parametrize(
    "value",
    ["", "x", "{}", "[]", "17", '{"count":1}', '{"count":"1","size":1}', '{"count":1,"size":null}'],
)
def test_what_turnlog_did_not_write_is_foreign(value: str) -> None:
    """A message whose header is not turnlog's is told from turnlog's own."""
    with pytest.raises(Foreign):
        message_of(1, {HEADER: value}, b"")


def test_a_message_without_headers_is_foreign() -> None:
    """A message that has no header at all is none of turnlog's."""
    with pytest.raises(Foreign):
        message_of(1, {}, b"line")


def test_a_later_format_is_foreign() -> None:
    """A message of a format to come is not read as if it were of this one."""
    with pytest.raises(Foreign):
        message_of(1, {HEADER: Header(1, 1, format=FORMAT + 1).encoded()}, b"")


def test_what_a_later_version_adds_is_passed_over() -> None:
    """A header of this format may hold more than this version knows."""
    message = message_of(1, {HEADER: '{"count":1,"size":2,"more":[]}'}, b"x")
    assert message.header == Header(1, 2)


def test_headers_are_read_as_they_went_over_the_wire() -> None:
    """Headers have a line each, after the protocol's; space around a value does not count."""
    raw = b"NATS/1.0\r\nA: 1\r\nB:2 \r\nC: x: y\r\nEmpty:\r\nno header\r\n\xff: \xff\r\n\r\n"
    found = headers_of(raw)
    assert found.pop("\ufffd") == "\ufffd"
    assert found == {"A": "1", "B": "2", "C": "x: y", "Empty": ""}
    assert headers_of(b"") == {}


def test_a_part_knows_its_place() -> None:
    """A part has its number from its header, and its bytes."""
    part = part_of(Stored(8, f"NATS/1.0\r\n{PART}: 12\r\n\r\n".encode(), b"bytes"))
    assert (part.sequence, part.number, part.payload) == (8, 12, b"bytes")
