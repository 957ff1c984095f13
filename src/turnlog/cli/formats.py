r"""The formats that threads are exported to and imported from. Pure: bytes to messages and back.

`jsonl` is a thread's own format, exact: role, content, at and meta.

`openai` is a JSON array of `{"role", "content"}`, as OpenAI's chat completions take it. On reading,
content may be null or a list of parts, of which those that are text are joined by newlines;
"developer" is system; a name goes into the meta. A message without a text, and one of a tool or a
function, has no place in a thread; nor have tool calls and parts that are no text.

`markdown` is for people, and exact too. A turn is a heading, its meta where it has any, an empty
line, and its text; an empty line is between turns:

    ## user, 2026-11-29T13:25:00.123456Z
    <!-- meta: {"name":"Zoe"} -->

    My invoice is wrong.

    ## assistant, 2026-11-29T13:25:01.123456Z

    Looking into it now.

A line of a text that looks like such a heading gets a backslash in front, which Markdown does not
show; one that has backslashes there already gets one more. In the meta, `>` is written `\u003e`, so
that nothing in it ends the comment. Lines end at `\n` alone.

What has no time gets that of the import. Half characters (lone surrogates) become U+FFFD in the
texts of `markdown` and `openai`; `jsonl`, and the meta in `markdown`, keep them.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator  # noqa: TC003 - Format is made of them
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, cast

from turnlog.codec import decode_turn, encode_turn, from_json, rfc3339, to_json
from turnlog.errors import InvalidTurn
from turnlog.message import ROLES, Message, Role
from turnlog.stores.base import START, in_order
from turnlog.stores.jsonl.format import scan
from turnlog.wire import whole_characters

Read: TypeAlias = Message | None  # None: something that has no place in a thread


class BadInput(ValueError):
    """What was to be imported is not of its format; the text says where, a line each."""


class Format(NamedTuple):
    """A format.

    Attributes:
        suffix: how the names of its files end.
        write: gives the bytes of messages, piece by piece.
        read: gives the messages in some bytes, and None for each that has no place in a thread, or
            has something in it that has none. Raises BadInput, also after some messages: then none
            of them may be kept.
        keeps_halves: whether a half character comes back as it was.
    """

    suffix: str
    write: Callable[[Iterable[Message]], Iterator[bytes]]
    read: Callable[[bytes], Iterator[Read]]
    keeps_halves: bool = False


_MOST_TOLD: Final = 10


def _refuse(problems: list[str]) -> NoReturn:
    told = problems[:_MOST_TOLD]
    if len(problems) > len(told):
        told.append(f"and {len(problems) - len(told):,} more")
    raise BadInput("\n".join(told))


# ---- jsonl ----


def _write_jsonl(messages: Iterable[Message]) -> Iterator[bytes]:
    for message in messages:
        yield encode_turn(message) + b"\n"


def _read_jsonl(data: bytes) -> Iterator[Read]:
    read, tail = scan(data, START, None)
    problems = in_order((*read.problems, *read.audit()))
    told = [f"line {problem.line}: {problem.reason}" for problem in problems]
    if tail.torn:
        told.append(f"line {read.position.lines + 1}: it is no whole turn")
    if told:
        _refuse(told)
    yield from map(decode_turn, read.lines)


# ---- openai ----


def _write_openai(messages: Iterable[Message]) -> Iterator[bytes]:
    before = b"[\n"
    for message in messages:
        content = whole_characters(message.content)
        yield before + to_json({"role": message.role, "content": content})
        before = b",\n"
    yield b"[]\n" if before == b"[\n" else b"\n]\n"


def _read_openai(data: bytes) -> Iterator[Read]:
    try:
        array = from_json(data)
    except ValueError as error:
        raise BadInput(f"it is not JSON: {error}") from None
    if not isinstance(array, list):
        raise BadInput("it is no JSON array of messages")
    problems: list[str] = []
    for number, item in enumerate(cast("list[object]", array), 1):
        try:
            yield from _openai_message(item)
        except ValueError as error:
            problems.append(f"message {number}: {error}")
    if problems:
        _refuse(problems)


_LEFT_OUT: Final = ("tool", "function")
_TEXT_PARTS: Final[dict[object, str]] = {  # where each kind has its text
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}


def _openai_message(item: object) -> Iterator[Read]:
    if not isinstance(item, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - it is the input's value
    fields = cast("dict[str, Any]", item)
    role = fields.get("role")
    if role in _LEFT_OUT:
        yield None
        return
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise ValueError(f"its role is {ascii(role)[:40]}")
    texts, whole = _openai_texts(fields.get("content"))
    if texts:
        name = fields.get("name")
        meta = {"name": name} if isinstance(name, str) else None
        yield Message(role, "\n".join(texts), None, meta)
    if not texts or not whole or fields.get("tool_calls") or fields.get("function_call"):
        yield None


def _openai_texts(content: object) -> tuple[list[str], bool]:
    """Give the texts in a content, and whether that is all that is in it."""
    if content is None or isinstance(content, str):
        return ([] if content is None else [content]), True
    if not isinstance(content, list):
        raise ValueError("its content is neither a text, nor null, nor a list of parts")  # noqa: TRY004
    parts = [_openai_part(part) for part in cast("list[object]", content)]
    texts = [part for part in parts if part is not None]
    return texts, len(texts) == len(parts)


def _openai_part(part: object) -> str | None:
    """Give the text of a part that is one, such as `{"type": "text", "text": ...}`."""
    if not isinstance(part, dict):
        raise ValueError("a part of its content is no object")  # noqa: TRY004
    fields = cast("dict[str, Any]", part)
    text = fields.get(_TEXT_PARTS.get(fields.get("type"), ""))
    return text if isinstance(text, str) else None


# ---- markdown ----

_HEADING: Final = re.compile(rf"## ({'|'.join(ROLES)})(?:, (.*))?")
_LOOKS_LIKE_ONE: Final = re.compile(rf"^(\\*## (?:{'|'.join(ROLES)})(?:, .*)?)$", re.MULTILINE)
_ESCAPED: Final = re.compile(rf"^\\(\\*## (?:{'|'.join(ROLES)})(?:, .*)?)$", re.MULTILINE)
_META: Final = re.compile(r"<!-- meta: (.*) -->")


def _write_markdown(messages: Iterable[Message]) -> Iterator[bytes]:
    between = ""
    for message in messages:
        yield f"{between}{_markdown_turn(message)}".encode()
        between = "\n"


def _markdown_turn(message: Message) -> str:
    at = "" if message.at is None else f", {rfc3339(message.at)}"
    meta = ""
    if message.meta:
        text = to_json(dict(message.meta)).decode().replace(">", "\\u003e")
        meta = f"<!-- meta: {text} -->\n"
    content = _LOOKS_LIKE_ONE.sub(r"\\\1", whole_characters(message.content))
    return f"## {message.role}{at}\n{meta}\n{content}\n"


class _Turn(NamedTuple):
    """The lines of a turn in Markdown, and the number of the first, its heading's."""

    number: int
    lines: list[str]


def _read_markdown(data: bytes) -> Iterator[Read]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"line {number}: it is not UTF-8") from None
    problems: list[str] = []
    for turn in _markdown_turns(text):
        try:
            yield _markdown_message(turn)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        _refuse(problems)


def _markdown_turns(text: str) -> Iterator[_Turn]:
    """Divide a text before each heading. What stands before the first is a turn without one."""
    turn = _Turn(1, [])
    start = 0
    number = 0
    while start < len(text):
        end = text.find("\n", start)
        line = text[start:] if end < 0 else text[start:end]
        start = len(text) if end < 0 else end + 1
        number += 1
        if _HEADING.fullmatch(line) is not None:
            if turn.lines:
                yield turn
            turn = _Turn(number, [])
        elif not turn.lines and not line:
            continue  # an empty line before the first heading
        turn.lines.append(line)
    if turn.lines:
        if text.endswith("\n"):
            turn.lines.append("")
        yield turn


def _markdown_message(turn: _Turn) -> Message:
    number, lines = turn
    heading = _HEADING.fullmatch(lines[0])
    if heading is None:
        raise ValueError(f"line {number}: it is not below a heading such as '## user'")
    meta, body = None, lines[1:]
    if body and (comment := _META.fullmatch(body[0])) is not None:
        meta, body = _read_meta(comment[1], number + 1), body[1:]
    if body and not body[0]:
        body = body[1:]
    if body and not body[-1]:
        body = body[:-1]
    content = _ESCAPED.sub(r"\1", "\n".join(body))
    try:
        return Message(cast("Role", heading[1]), content, _read_time(heading[2]), meta)
    except ValueError as error:
        raise ValueError(f"line {number}: {_what(error)}") from None


def _read_time(text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time such as 2026-11-29T13:25:00Z") from None
    return at


def _read_meta(text: str, number: int) -> dict[str, Any]:
    try:
        meta = from_json(text.encode("utf-8", "surrogatepass"))
        if not isinstance(meta, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004, TRY301
    except ValueError as error:
        raise ValueError(f"line {number}: the meta cannot be read: {error}") from None
    return cast("dict[str, Any]", meta)


def _what(error: ValueError) -> str:
    return f"{error.what}; {error.hint}" if isinstance(error, InvalidTurn) else str(error)


FORMATS: Final = {
    "jsonl": Format(".jsonl", _write_jsonl, _read_jsonl, keeps_halves=True),
    "markdown": Format(".md", _write_markdown, _read_markdown),
    "openai": Format(".json", _write_openai, _read_openai),
}
