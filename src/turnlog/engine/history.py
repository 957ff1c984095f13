"""Turns to the engine's messages and back. Pure.

Going out, a turn is plain text under its role. A turn of white space alone is left out, since a
provider may refuse it, and half a character goes out as U+FFFD. Turns of one role in a row go out
as one text in one message: some models' templates refuse two. Where the assistant speaks first, a
note in the user's place says so: a conversation that begins with a reply is refused by some.

System turns are no part of that order. They go out ahead of the conversation, behind the agent's
own system text; a run may have them sent as the user's text instead, or left out.

Coming back, each reply of the model's is a turn: its text, also beside tool calls. An empty text
is no turn; tool calls, their results and thinking are none either, so that what a thread holds can
always be sent again, to any provider.

Source: spec R20 to R22; design, section 6, seeding and writeback.
"""

from __future__ import annotations

import datetime as dt
import gc
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast, get_args

from pydantic_ai.messages import (
    MULTI_MODAL_CONTENT_TYPES,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json, to_jsonable_python

from turnlog.errors import InvalidTurn
from turnlog.message import Message
from turnlog.wire import BETWEEN, whole_characters

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic_ai.messages import ModelRequestPart

    from turnlog.message import Role, Scalar

SystemTurns: TypeAlias = Literal["system", "user", "omit"]

_Part = TypeVar("_Part", bound="ModelResponsePart | ModelRequestPart")

_NO_USAGE: Final = RequestUsage()  # one for all of a history: a long one has less to collect
_CUT: Final = ("length", "content_filter")  # the reasons for which a reply ends before its end
_OPENING: Final = "(The assistant speaks first.)"
_UNKNOWN_TIME: Final = dt.datetime.fromtimestamp(0, dt.UTC)


def checked_system_turns(value: object, subject: str) -> SystemTurns:
    """Return what becomes of system turns. Raise InvalidTurn for what is no such choice."""
    if value in get_args(SystemTurns):
        return cast("SystemTurns", value)
    raise InvalidTurn(subject, f"system_turns is {value!r}", "use 'system', 'user' or 'omit'")


def history_of(
    turns: Iterable[Message], system_turns: SystemTurns = "system"
) -> list[ModelMessage]:
    """Return turns as pydantic-ai's messages, of which no two in a row have one role.

    Args:
        turns: the turns.
        system_turns: what becomes of the system turns among them.

    Python's collector is kept away meanwhile: so many new objects would call it, which looks at all
    objects of the process and finds that these stay.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return _history_of(turns, system_turns)
    finally:
        if collects:
            gc.enable()


def _history_of(turns: Iterable[Message], system_turns: SystemTurns) -> list[ModelMessage]:
    history: list[ModelMessage] = []
    texts: list[str] = []  # of the last message
    system: list[Any] = []  # of the last request; behind a reply, of the next one
    role: Role | None = None
    at = _UNKNOWN_TIME

    def end_message() -> None:
        if role == "user":
            said = UserPromptPart(BETWEEN.join(texts), timestamp=at)
            history.append(ModelRequest([*system, said], timestamp=at))
        elif role == "assistant":
            said = TextPart(BETWEEN.join(texts))
            history.append(ModelResponse([said], timestamp=at, usage=_NO_USAGE))

    for turn in turns:
        text = whole_characters(turn.content)
        if not text or text.isspace() or (turn.role == "system" and system_turns == "omit"):
            continue
        if turn.role == "system" and system_turns == "system":
            system.append(SystemPromptPart(text, timestamp=turn.at or _UNKNOWN_TIME))
            continue
        speaker: Role = "user" if turn.role == "system" else turn.role
        if speaker != role:
            if role is None and speaker == "assistant":
                role, texts, at = "user", [_OPENING], turn.at or _UNKNOWN_TIME
            end_message()
            if role == "user":
                system = []
            role, texts, at = speaker, [], turn.at or _UNKNOWN_TIME
        texts.append(text)
    end_message()
    return [*history, ModelRequest(system)] if system and role != "user" else history


def request_of(content: str, at: dt.datetime) -> ModelRequest:
    """Give a user's input as a message to the model."""
    return ModelRequest([UserPromptPart(whole_characters(content), timestamp=at)], timestamp=at)


def sendable(message: ModelMessage) -> ModelMessage:
    """Give a reply of the model's as every provider takes it back.

    White space alone, such as a model may put ahead of a tool call, is left out; text that it put
    behind one comes ahead of it; and half characters are mended.
    """
    if not isinstance(message, ModelResponse):
        return message
    parts = [_mended_part(part) for part in message.parts if not _is_blank(part)]
    return replace(message, parts=sorted(parts, key=lambda part: isinstance(part, ToolCallPart)))


def json_text(value: object) -> str:
    """Give a value's JSON; what JSON does not know is a text in it."""
    plain = to_jsonable_python(value, fallback=str, bytes_mode="base64")
    return to_json(mended(plain), inf_nan_mode="strings").decode()


def with_readable_arguments(response: ModelResponse) -> ModelResponse:
    """Give a reply whose tools' arguments the engine can read: no object, say a list, as text."""
    parts = [_with_readable_arguments(part) for part in response.parts]
    return replace(response, parts=parts)


def _with_readable_arguments(part: ModelResponsePart) -> ModelResponsePart:
    arguments = cast("object", getattr(part, "args", None))  # whatever a provider sent
    if isinstance(arguments, str | dict | None):
        return part
    return replace(cast("ToolCallPart", part), args=json_text(arguments))


def without_end(response: ModelResponse) -> ModelResponse:
    """Give a reply without white space at its end, which Anthropic refuses in a last message."""
    *before, last = response.parts
    if isinstance(last, TextPart):
        last = replace(last, content=last.content.rstrip())
    return replace(response, parts=[*before, last])


def without_system(history: Sequence[ModelMessage]) -> tuple[list[ModelMessage], list[str]]:
    """Return a history without its system texts, and these."""
    rest: list[ModelMessage] = []
    system: list[str] = []
    for message in history:
        if not isinstance(message, ModelRequest) or not _has_system(message):
            rest.append(message)
            continue
        system += [part.content for part in message.parts if isinstance(part, SystemPromptPart)]
        parts = [part for part in message.parts if not isinstance(part, SystemPromptPart)]
        rest += [replace(message, parts=parts)] if parts else []
    return rest, system


def _has_system(request: ModelRequest) -> bool:
    return any(isinstance(part, SystemPromptPart) for part in request.parts)


def alternating(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return messages as models with a strict template take them: no two of one role in a row.

    Several prompts of the user's in one request become one: on some wires each part is a message of
    its own. Replies without text or calls are left out, since a provider may refuse them.
    """
    merged: list[ModelMessage] = []
    for message in map(_with_one_text, messages):
        last = merged[-1] if merged else None
        if isinstance(message, ModelRequest):
            if isinstance(last, ModelRequest):
                merged.pop()
                merged.append(
                    _with_one_prompt(replace(message, parts=[*last.parts, *message.parts]))
                )
            else:
                merged.append(_with_one_prompt(message))
        elif isinstance(last, ModelResponse) and _is_plain(last) and _is_plain(message):
            merged[-1] = _with_one_text(replace(message, parts=[*last.parts, *message.parts]))
        elif message.parts or message.state != "complete":
            merged.append(message)
    return merged


def _with_one_text(message: ModelMessage) -> ModelMessage:
    """Return a reply without blank texts; where it is plain text, as one text."""
    if not isinstance(message, ModelResponse):
        return message
    if any(map(_is_blank, message.parts)):
        message = replace(message, parts=[part for part in message.parts if not _is_blank(part)])
    if len(message.parts) > 1 and _is_plain(message):
        texts = [part.content for part in message.parts if isinstance(part, TextPart)]
        message = replace(message, parts=[TextPart(BETWEEN.join(texts))])
    return message


def _is_plain(response: ModelResponse) -> bool:
    """Return whether a reply is text alone that no provider knows by an id, as a turn's is."""
    return response.model_name is None and all(
        isinstance(part, TextPart) and part.id is None for part in response.parts
    )


def _with_one_prompt(request: ModelRequest) -> ModelRequest:
    """Return a request in which prompts of the user's that follow each other are one."""
    prompts = sum(isinstance(part, UserPromptPart) for part in request.parts)
    if prompts < 2:  # noqa: PLR2004 - nothing to merge
        return request
    parts: list[Any] = []
    for part in request.parts:
        if parts and isinstance(part, UserPromptPart) and isinstance(parts[-1], UserPromptPart):
            parts[-1] = replace(part, content=_joined(parts[-1].content, part.content))
        else:
            parts.append(part)
    return replace(request, parts=parts)


def _joined(first: str | Sequence[Any], second: str | Sequence[Any]) -> str | list[Any]:
    """Return two prompts as one; text stays text, where there is nothing else."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{BETWEEN}{second}"
    return [
        item for each in (first, second) for item in ([each] if isinstance(each, str) else each)
    ]


def _is_blank(part: ModelResponsePart) -> bool:
    return isinstance(part, TextPart) and (not part.content or part.content.isspace())


def _mended_part(part: _Part) -> _Part:
    """Return a part of a message without half characters; itself, where it has none."""
    if isinstance(part, ToolCallPart):
        return replace(part, args=mended(part.args))
    if isinstance(part, ToolReturnPart):
        return replace(part, content=mended(part.content))
    if isinstance(part, TextPart | ThinkingPart | UserPromptPart):
        content = mended(part.content)
        return part if content is part.content else replace(part, content=content)
    return part


def mended_message(message: ModelMessage) -> ModelMessage:
    """Return a message without half characters, which no provider takes."""
    parts: list[Any] = [_mended_part(part) for part in message.parts]
    if all(map(operator.is_, parts, message.parts)):
        return message
    return replace(message, parts=parts)


def mended(value: Any) -> Any:
    """Give what JSON can hold without half characters."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {mended(key): mended(each) for key, each in items}
    return [mended(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


def turns_in(messages: Iterable[ModelMessage]) -> list[Message]:
    """Return what was said in a run as turns: the replies, and what the user said meanwhile.

    A reply's meta tells the model, and what the requests used since the reply before.
    """
    turns: list[Message] = []
    used = RequestUsage()
    for message in messages:
        if isinstance(message, ModelRequest):
            turns += _user_turns(message)
            continue
        used += message.usage
        text = message.text
        if text and not text.isspace():
            turns.append(_turn(text, message, used))
            used = RequestUsage()
    return turns


def _user_turns(request: ModelRequest) -> list[Message]:
    turns = [
        input_turn(part.content, _aware(part.timestamp))
        for part in request.parts
        if isinstance(part, UserPromptPart)
    ]
    return [turn for turn in turns if turn.content.strip()]


def _turn(text: str, response: ModelResponse, used: RequestUsage) -> Message:
    meta: dict[str, Scalar] = {"model": response.model_name} if response.model_name else {}
    if used.input_tokens or used.output_tokens:
        meta |= {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
    if response.finish_reason in _CUT:
        meta["finish_reason"] = response.finish_reason
    if response.state != "complete":
        meta["interrupted"] = True
    return Message("assistant", text, _aware(response.timestamp), meta)


def _aware(at: dt.datetime) -> dt.datetime:
    """Return a time with its zone, which is UTC where the caller's own message names none."""
    return at if at.utcoffset() is not None else at.replace(tzinfo=dt.UTC)


def input_turn(content: str | Sequence[Any], at: dt.datetime) -> Message:
    """Return a run's input as a turn: its text, with the number of attachments in the meta.

    pydantic-ai's agents take a sequence of texts, pictures and files. Where there is no text, a
    note of each attachment stands in its place: without a text, later runs would not be told that
    the user had said something.
    """
    if isinstance(content, str):
        return Message("user", content, at)
    text = "\n\n".join(each for item in content if (each := _text_of(item)) is not None)
    attachments = [item for item in content if is_attachment(item)]
    if not text.strip():
        text = "\n".join(map(attachment_note, attachments))
    return Message("user", text, at, {"attachments": len(attachments)} if attachments else None)


def is_attachment(item: object) -> bool:
    """Return whether an item of an input is a picture or a file, not a text or a cache point."""
    return isinstance(item, MULTI_MODAL_CONTENT_TYPES)


def attachment_note(item: object) -> str:
    """Return a text that stands for a picture or a file."""
    try:
        kind = str(getattr(item, "media_type", "file"))
    except ValueError:  # the URL does not tell
        kind = str(getattr(item, "kind", "file")).removesuffix("-url")
    return f"[attachment: {kind}]"


def _text_of(item: object) -> str | None:
    text = item if isinstance(item, str) else getattr(item, "content", None)
    return text if isinstance(text, str) else None
