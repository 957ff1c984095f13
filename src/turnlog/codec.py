r"""A message to its JSON line and back: the one module that knows the JSON library.

A line is one JSON object without its newline. Ours has its keys in this order, each but the first
three only where there is one:

    role     "user", "assistant" or "system"
    content  the text
    at       RFC 3339, UTC, microseconds: 2026-11-29T13:25:00.123456Z
    meta     a flat object
    key      the idempotency key
    more     true on every line of an `extend` but its last
    unit     on the last line of an `extend` of several: the number of its lines, this one included

`more` and `unit` make an extend all or none: a unit whose last line is missing, or whose lines
before the last are fewer than `unit` says, never became whole.

Text is UTF-8. Control characters, DEL, U+0080 to U+009F, U+2028 and U+2029 are escaped, so that no
reader splits a line at them. A lone surrogate is kept as its escape, `\udXXX`.

Other people's lines: only `content` is needed. A missing role is user; a role that is not known is
read as user, with the original in meta; a missing `at` is None; an `at` that is no time, and every
unknown key, is shown in meta, nested values as their JSON text.

Two readers: msgspec's typed decoder is the fast one. What it does not take, `_strict` reads with
the standard library, and gives the reason where that cannot be read either. (msgspec calls a lone
surrogate truncated, and drops a zero fraction of a time when it writes one.)

Source: design, section 3; style, dependencies.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec

from turnlog.fusion import record_starts
from turnlog.message import GREATEST_INT, LEAST_INT, ROLES, Message, Role, Scalar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class _Line(msgspec.Struct, gc=False, omit_defaults=True):
    """A line as it is written, its keys in their order."""

    role: str
    content: str
    at: dt.datetime | None = None
    meta: Any = None
    key: str | None = None
    more: bool = False
    unit: int | None = None


class Record(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """What validating a line looks at; the time is not looked at until the turn is."""

    content: str
    role: Role = "user"
    at: str | None = None
    meta: dict[str, Scalar] | None = None
    key: str | None = None
    more: bool = False
    unit: int | None = None


class _Turn(Record, gc=False, forbid_unknown_fields=True):
    """A line as a turn: its time is a time."""

    at: Annotated[dt.datetime, msgspec.Meta(tz=True)] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]


class Unreadable(Exception):
    """A line holds no turn; the text says why."""


_encode: Final = msgspec.json.Encoder().encode
_decode_records: Final = msgspec.json.Decoder(Record).decode_lines
_decode_record: Final = msgspec.json.Decoder(Record).decode
_decode_any: Final = msgspec.json.Decoder().decode
_decode_turn: Final = msgspec.json.Decoder(_Turn).decode

_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029]")
_BEGINNING: Final = b'{"role":'  # of our records; it stands in no string, since quotes are escaped
FUSED: Final = b"}" + _BEGINNING  # stands in no JSON
_MAX_DEPTH: Final = 64  # of foreign values; low enough to be read again from any stack
_KNOWN: Final = frozenset(("role", "content", "at", "meta", "key", "more", "unit"))


# ---- writing ----


def encode_turn(
    message: Message, *, key: str | None = None, more: bool = False, unit: int | None = None
) -> bytes:
    """Give the line of a turn, without its newline. The message must have its time."""
    line = _Line(message.role, message.content, message.at, message.meta, key, more, unit)
    if line.at is None or line.at.microsecond:
        try:
            encoded = _encode(line)
        except UnicodeEncodeError:
            encoded = _encode_slowly(line)
    else:
        encoded = _encode_slowly(line)
    return encoded if encoded.isascii() and b"\x7f" not in encoded else _escape_controls(encoded)


def _encode_slowly(line: _Line) -> bytes:
    """Encode what msgspec writes otherwise, or not at all: whole seconds, and lone surrogates."""
    fields: dict[str, Any] = msgspec.structs.asdict(line)
    if line.at is not None:
        fields["at"] = rfc3339(line.at)
    present = {k: v for k, v in fields.items() if v is not None and v is not False}
    text = json.dumps(present, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")  # Python's escape of a surrogate is JSON's


def _escape_controls(encoded: bytes) -> bytes:
    text = encoded.decode()
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def rfc3339(at: dt.datetime) -> str:
    """Give a time in UTC as a line has it, to the microsecond."""
    return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def to_json(value: object) -> bytes:
    """Give a value of JSON's own kinds as one line of UTF-8, without a newline.

    Raises:
        ValueError: a float in it is not finite, or it is nested too deep.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        message = "it is nested too deep"
        raise ValueError(message) from None
    return _escape_controls(text.encode("utf-8", "backslashreplace"))


# ---- reading ----


def from_json(data: bytes) -> object:
    """Give the value of a whole JSON text.

    Raises:
        ValueError: it is not JSON, not UTF-8, nested too deep, or holds what JSON has not.
    """
    try:
        return _DECODER.decode(data.decode("utf-8-sig"))
    except RecursionError:
        message = "it is nested too deep"
        raise ValueError(message) from None
    except Unreadable as reason:
        raise ValueError(str(reason)) from None


def decode_turn(line: bytes) -> Message:
    """Give the turn of a line that `check_lines` or `find_records` found whole."""
    try:
        turn = _decode_turn(line)
        if turn.at is None and (turn.more or turn.unit is not None):
            return _message(_strict(line.decode())[0])  # another program's words, not ours
        return Message(turn.role, turn.content, turn.at, turn.meta)  # pyright: ignore[reportArgumentType]
    except (msgspec.MsgspecError, ValueError):
        return _message(_strict(line.decode())[0])


def check_lines(lines: memoryview) -> Sequence[Record] | None:
    """Read many lines at once; None where one of them needs `find_records`.

    The records are as many as the lines only where each line is one object: the caller checks.
    """
    try:
        return _decode_records(lines)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def glance(line: bytes) -> Record | bool:
    """Read one line quickly: give its record, else whether `find_records` may find one in it.

    A key that is given twice is not looked for.
    """
    try:
        return _decode_record(line)
    except msgspec.ValidationError:
        return _glance_at_foreign(line)
    except msgspec.DecodeError:
        return may_hold_records(line)
    except (ValueError, RecursionError):
        return True


def glance_each(lines: Iterable[bytes]) -> list[Record] | None:
    """Read each line quickly; None where one of them has no record, or needs `find_records`."""
    records: list[Record] = []
    for line in lines:
        record = glance(line)
        if isinstance(record, bool):
            return None
        records.append(record)
    return records


def _glance_at_foreign(line: bytes) -> Record | bool:
    try:
        value = _decode_any(line)
    except msgspec.ValidationError:  # a number that has no place in memory
        return True
    except msgspec.DecodeError:
        return may_hold_records(line)
    except (ValueError, RecursionError):
        return True
    if not _has_text(value):
        return False
    shallow = line.count(b"{") + line.count(b"[") <= _MAX_DEPTH
    return _record(value) if shallow else True


def may_hold_records(line: bytes) -> bool:
    """Tell whether there may be a turn in a line that msgspec takes for no JSON."""
    if b"\\u" in line:  # a lone surrogate, or an odd spelling of a key
        return True
    inner = line.find(b"{", 1) >= 0 or 0 <= line.find(b"}") < len(line) - 1
    return inner and b'"content"' in line


def fused_spans(line: bytes) -> list[tuple[int, int]]:
    """Find where turns may be in a line of nothing but records of ours, fused, and NUL around them.

    Of any other line nothing is found, unless it is one record. `check_lines` reads what is found.
    """
    before, *pieces = line.split(_BEGINNING)
    if before.strip(b"\0"):
        return []
    spans: list[tuple[int, int]] = []
    start = len(before)
    for piece in pieces:
        text = piece.rstrip(b"\0")
        if not text.endswith(b"}") or b"\0" in text:
            return []
        spans.append((start, start + len(_BEGINNING) + len(text)))
        start += len(_BEGINNING) + len(piece)
    return spans


def find_fused(line: bytes) -> list[tuple[int, int, Record]]:
    """Find the turns in such a line, quickly."""
    try:
        return [(start, end, _decode_record(line[start:end])) for start, end in fused_spans(line)]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []


def find_records(line: bytes) -> tuple[list[tuple[int, int, Record]], str | None]:
    """Find the whole turns in one line, and say what is wrong with the rest of it.

    Returns:
        (start, end, record) of each whole turn, in order, and None or the reason of the problem.
        A line with a problem may hold turns all the same: records that were fused by a torn write
        give every one that is whole, and a repeated key's last value is taken.
    """
    try:
        record = _decode_record(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _find_strictly(line)
    return [(0, len(line), record)], None if _is_ours(line, record) else repeated_key(line)


def _is_ours(line: bytes, record: Record) -> bool:
    """Tell whether the line is what we would write: then nothing in it is hidden or repeated."""
    at = b"" if record.at is None else b',"at":"' + record.at.encode() + b'"'
    head = b'{"role":"' + record.role.encode() + b'","content":'
    return line == head + _encode(record.content) + at + b"}"


def repeated_key(line: bytes) -> str | None:
    """Say which key a whole line gives more than once, or None. Slow: some 10 us a line."""
    try:
        return _strict(line.decode())[1]
    except Unreadable as reason:
        return str(reason)


def keys_of(lines: Sequence[bytes]) -> dict[str, int]:
    """Give the idempotency keys in whole lines, each with the index of its line."""
    keys: dict[str, int] = {}
    for index, line in enumerate(lines):
        if b'"key"' in line:
            _note_key(line, index, keys)
    return keys


def _note_key(line: bytes, index: int, keys: dict[str, int]) -> None:
    for _, _, record in find_records(line)[0]:
        if record.key is not None:
            keys.setdefault(record.key, index)


def is_cut_off(line: bytes) -> bool:
    """Tell whether a line that holds no turn is not even whole JSON, as what a crash leaves is."""
    try:
        json.loads(line.decode())
    except (UnicodeDecodeError, json.JSONDecodeError):
        return True
    except (ValueError, RecursionError):  # too many digits, too deep: it cannot be told
        return False
    return False


def _find_strictly(line: bytes) -> tuple[list[tuple[int, int, Record]], str | None]:
    try:
        value, note = _strict(line.decode())
    except UnicodeDecodeError:
        return _salvage(line, "it is not UTF-8")
    except _NotJsonError as reason:
        return _salvage(line, str(reason))
    except Unreadable as reason:
        return _salvage(line, str(reason)) if _has_more(line.decode()) else ([], str(reason))
    return [(0, len(line), _record(value))], note


def _has_more(text: str) -> bool:
    """Tell whether something follows the JSON value that a text begins with."""
    try:
        _, end = _LENIENT.raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return bool(text[end:].strip())


def _salvage(line: bytes, reason: str) -> tuple[list[tuple[int, int, Record]], str]:
    """Take the whole records out of a line that is not one: what torn writes fused together."""
    text = line.decode("utf-8", "surrogateescape")  # what is not UTF-8 keeps its place
    found: list[tuple[int, int, Record]] = []
    cuts = sorted({0, *record_starts(text), len(text)})
    start = 0  # in bytes
    for begin, end in pairwise(cuts):
        piece = text[begin:end].encode("utf-8", "surrogateescape")
        found += ((start + at, start + stop, record) for at, stop, record in _records(piece))
        start += len(piece)
    whole = sum(end - start for start, end, _ in found) == len(line)
    return found, "several records are fused on it" if whole else reason


def _records(piece: bytes) -> Iterator[tuple[int, int, Record]]:
    """Yield the turns at the beginning of a piece of a line, one behind the other."""
    if b"}" not in piece:
        return
    if piece.startswith(b"{") and piece.endswith(b"}"):
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            yield 0, len(piece), _decode_record(piece)
            return
    yield from _values(piece.decode("utf-8", "surrogateescape"))


def _values(text: str) -> Iterator[tuple[int, int, Record]]:
    """Yield the turns at the beginning of a text, one behind the other, by their place in bytes."""
    at = start = _behind_blanks(text, 0)
    with suppress(ValueError, RecursionError, Unreadable):  # the rest is not JSON, or not UTF-8
        while text.startswith("{", at):
            value, end = _DECODER.raw_decode(text, at)
            size = len(text[at:end].encode())
            if _has_text(value):
                with suppress(Unreadable):
                    _repeated(cast("object", value))  # which is not to be nested too deep
                    yield start, start + size, _record(cast("dict[str, Any]", value))
            at = _behind_blanks(text, end)
            start += size + at - end


def _behind_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in {" ", "\t", "\r"}:
        at += 1
    return at


def _has_text(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)  # pyright: ignore[reportUnknownMemberType]


class _NotJsonError(Unreadable):
    """It is not JSON, or not to its end: there may be records in it all the same."""


class _Pairs(dict[str, Any]):
    """An object that remembers a key that was given more than once."""

    repeated: str | None = None


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = _Pairs(pairs)
    if len(value) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        value.repeated = next(name for name, count in counts.items() if count > 1)
    return value


def _refuse_constant(name: str) -> float:
    message = f"{name} is not JSON"
    raise Unreadable(message)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        message = f"the number {digits[:20]} is out of range"
        raise Unreadable(message)
    return number


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=_refuse_constant, parse_float=_finite
)
_LENIENT: Final = json.JSONDecoder(parse_float=str, parse_int=str)


def _strict(text: str) -> tuple[dict[str, Any], str | None]:
    """Read a line by the letter of JSON.

    Returns:
        The object, and None or which of its keys is given more than once.

    Raises:
        Unreadable: it holds no turn.
    """
    try:
        value: object = _DECODER.decode(text)
    except RecursionError:
        message = "it is nested too deep"
        raise Unreadable(message) from None
    except json.JSONDecodeError:
        message = "it is not JSON" if text.strip("\0") else "it is NUL bytes"
        raise _NotJsonError(message) from None
    except ValueError:  # Python's limit on the digits of an int
        message = "a number in it has too many digits"
        raise Unreadable(message) from None
    key = _repeated(value)
    note = None if key is None else f"the key {key!r} is given more than once; the last one counts"
    return _checked(value), note


def _repeated(value: object) -> str | None:
    """Give a key that stands twice in an object; raise Unreadable where it is nested too deep."""
    repeated: str | None = None
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, _Pairs):
                repeated = repeated or item.repeated
                inner += item.values()
            elif isinstance(item, list):
                inner += cast("list[object]", item)
        if not inner:
            return repeated
        level = inner
    message = "it is nested too deep"
    raise Unreadable(message)


def _checked(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        message = "it is JSON but not an object"
        raise Unreadable(message)
    if not isinstance(value.get("content"), str):  # pyright: ignore[reportUnknownMemberType]
        message = "it has no content that is a text"
        raise Unreadable(message)
    return cast("dict[str, Any]", value)


def _record(value: dict[str, Any]) -> Record:
    """Give the part of a strictly read line that validating looks at."""
    at, key, unit = value.get("at"), value.get("key"), value.get("unit")
    return Record(
        content=value["content"],
        key=key if isinstance(key, str) else None,
        at=at if isinstance(at, str) else None,
        more=value.get("more") is True,
        unit=unit if type(unit) is int else None,
    )


def _message(value: dict[str, Any]) -> Message:
    """Read other people's lines: what has no place of its own is shown in meta."""
    known = _KNOWN if "at" in value else _KNOWN - {"more", "unit"}
    extra = {name: item for name, item in value.items() if name not in known}
    meta = value.get("meta")
    if isinstance(meta, dict):
        extra |= cast("dict[str, Any]", meta)
    elif meta is not None:
        extra["meta"] = meta
    role = value.get("role", "user")
    if role not in ROLES:
        extra["role"] = role
        role = "user"
    at = _time(value.get("at"))
    if at is None and value.get("at") is not None:
        extra["at"] = value["at"]
    flat = {name: _flat(item) for name, item in extra.items()}
    return Message(role, value["content"], at, flat)


def _time(value: object) -> dt.datetime | None:
    try:
        at = msgspec.convert(value, dt.datetime)
        return None if at.tzinfo is None else at.astimezone(dt.UTC)
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None


def _flat(value: object) -> Scalar:
    if isinstance(value, str | float | bool | None):
        return value
    if isinstance(value, int) and LEAST_INT <= value <= GREATEST_INT:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
