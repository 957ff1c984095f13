"""What stands in a message: lines, and a header that says where they belong. Pure.

A message holds what one append brings to one thread: its lines, with a newline between them. So it
is there as a whole or not at all. An append that is larger than the servers take goes ahead in
parts, at a subject of its own, and the message in the thread has no lines but says where they are.
What of this is never followed by such a message belongs to nothing, and nobody sees it.

The header `Turnlog` is a JSON object. `Nats-Msg-Id` is the append's id, by which its writer finds
it again when the answer got lost, however much later; and
`Nats-Expected-Last-Subject-Sequence` is what keeps two writers from appending after the same turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct, json  # noqa: TID251 - the servers speak JSON

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER: Final = "Turnlog"
ID: Final = "Nats-Msg-Id"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
PART: Final = "Turnlog-Part"
FORMAT: Final = 1


class Header(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a message says of itself and of its thread.

    Attributes:
        count: how many turns it has.
        size: how many bytes the thread has with it, newlines included.
        turns: how many turns come before it.
        after: the sequence of the thread's message before it; 0 where it is the first.
        life: the sequence of the thread's first message; 0 in that one itself.
        parts: how many parts hold its lines; 0 where it has them itself.
        upload: what the parts' subject ends in.
        first: the sequence of the first of them.
        format: which format this is, for those to come.
    """

    count: int
    size: int
    turns: int = 0
    after: int = 0
    life: int = 0
    parts: int = 0
    upload: str = ""
    first: int = 0
    format: int = FORMAT

    def encoded(self) -> str:
        """Give it as the value of a header."""
        return json.encode(self).decode()


class Message(Struct, frozen=True, gc=False):
    """A message of a thread, as it was read.

    Attributes:
        sequence: its number in the stream.
        id: the id of the append that it is.
        header: what it says of itself.
        payload: its lines, unless they are in parts.
    """

    sequence: int
    id: str
    header: Header
    payload: bytes

    @property
    def life(self) -> int:
        """The sequence of its thread's first message."""
        return self.header.life or self.sequence

    @property
    def end(self) -> int:
        """How many turns the thread has with it."""
        return self.header.turns + self.header.count


class Part(Struct, frozen=True, gc=False):
    """A part of an append that is too large for one message.

    Attributes:
        sequence: its number in the stream.
        number: which part it is, from 0.
        payload: what it holds.
    """

    sequence: int
    number: int
    payload: bytes


class Stored(Struct, gc=False):
    """A message as the servers' API gives it.

    Attributes:
        seq: its number in the stream.
        hdrs: its headers, as they went over the wire.
        data: what it holds.
    """

    seq: int
    hdrs: bytes = b""
    data: bytes = b""


class Foreign(Exception):
    """Raised for a message that no turnlog wrote, or a later one than this.

    Attributes:
        sequence: its number in the stream.
    """

    def __init__(self, sequence: int) -> None:
        """Say which one."""
        super().__init__(sequence)
        self.sequence = sequence


def message_of(sequence: int, headers: dict[str, str], payload: bytes) -> Message:
    """Read a message.

    Raises:
        Foreign: turnlog did not write it, or a later one did.
    """
    return Message(sequence, headers.get(ID, ""), header_of(sequence, headers), payload)


def header_of(sequence: int, headers: dict[str, str]) -> Header:
    """Read what a message says of itself. Raises as `message_of`."""
    try:
        header = json.decode(headers.get(HEADER, ""), type=Header)
    except msgspec.MsgspecError:
        raise Foreign(sequence) from None
    if header.format != FORMAT:
        raise Foreign(sequence)
    return header


def part_of(stored: Stored) -> Part:
    """Read a part, which nobody but turnlog writes: its subject is known by its append alone."""
    return Part(stored.seq, int(headers_of(stored.hdrs).get(PART, "0")), stored.data)


def headers_of(raw: bytes) -> dict[str, str]:
    """Read headers as they went over the wire: a line of the protocol, then one for each."""
    lines = [line.decode(errors="replace").partition(":") for line in raw.split(b"\r\n")[1:]]
    return {name: value.strip() for name, colon, value in lines if colon}


# ---- lines ----


def payload_of(lines: Sequence[bytes]) -> bytes:
    """Put lines together."""
    return b"\n".join(lines)


def lines_of(payload: bytes) -> list[bytes]:
    """Take them apart."""
    return payload.split(b"\n")


def split(payload: bytes, most: int) -> list[bytes]:
    """Cut what is too large into parts of `most` bytes."""
    return [payload[at : at + most] for at in range(0, len(payload), most)]
