"""Exchange and Listener: what a run has come to so far, and who is told of it while it goes on."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal, Required, TypeAlias, TypedDict, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.usage import RunUsage

from turnlog.wire import whole_characters

_PREVIEW: Final = 200  # characters of a tool's result


class ToolEvent(TypedDict, total=False):
    """What `on_tool_call` is given when a tool starts, and when it ends.

    `event` is "start" or "end", `tool` its name, `args` its arguments. At the end there is also
    `result`, the first 200 characters of what the model gets; `error`, the error in words, or None;
    and `duration_ms`, the milliseconds that it took.

    Source: Sema, agent/run, :on-tool-call.
    """

    event: Required[Literal["start", "end"]]
    tool: Required[str]
    args: Required[dict[str, Any]]
    result: str
    error: str | None
    duration_ms: float


def call_began(call: ToolCallPart) -> ToolEvent:
    """Give the event of a call that starts."""
    return {"event": "start", "tool": call.tool_name, "args": arguments_of(call)}


def call_ended(start: ToolEvent, result: str, error: str | None, seconds: float) -> ToolEvent:
    """Give the event of a call that has ended."""
    return {
        "event": "end",
        "tool": start["tool"],
        "args": start["args"],
        "result": result[:_PREVIEW],
        "error": error,
        "duration_ms": 1000 * seconds,
    }


def arguments_of(call: ToolCallPart) -> dict[str, Any]:
    """Give a call's arguments; {} where they cannot be read."""
    try:
        return call.args_as_dict(raise_if_invalid=True)
    except ValueError:
        return {}


OnText: TypeAlias = Callable[[str], Awaitable[object] | object]
OnToolCall: TypeAlias = Callable[[ToolEvent], Awaitable[object] | object]
OnReply: TypeAlias = Callable[[], Awaitable[None]]


class Exchange:
    """What the engine's messages of a run are, up to now.

    Args:
        history: what was said before the run.

    Attributes:
        messages: the history, and what the run adds.
        usage: what the run has used.
        structured: the JSON text of a structured output, which an agent of the engine's gives by a
            tool, beside its text; "" where there is none.
    """

    def __init__(self, history: Sequence[ModelMessage] = ()) -> None:
        """Begin with the history."""
        self.messages: list[ModelMessage] = list(history)
        self.usage: RunUsage = RunUsage()
        self.structured: str = ""
        self._begin = len(self.messages)

    @property
    def new(self) -> Sequence[ModelMessage]:
        """What came after the history."""
        return self.messages[self._begin :]

    @property
    def response(self) -> str:
        """The reply, as text; where the last one only asked for tools, the last text before it."""
        if self.structured:
            return self.structured
        responses = [message for message in self.new if isinstance(message, ModelResponse)]
        if not responses:
            return ""
        if not responses[-1].tool_calls:
            return responses[-1].text or ""
        return next((each.text for each in reversed(responses) if each.text), "")

    def sendable(self) -> list[ModelMessage]:
        """Give the messages as they can be sent: what a stream broke in half is mended."""
        return [*self.messages[: self._begin], *map(mended, self.new)]

    def ask(self, request: ModelRequest) -> None:
        """Add what is sent to the model."""
        self.messages.append(request)

    def instruct(self, system: str) -> None:
        """Have the model told what it is to be; the engine takes that from the last request."""
        if not system.strip():
            return
        for position in reversed(range(len(self.messages))):
            request = self.messages[position]
            if isinstance(request, ModelRequest):
                self.messages[position] = replace(request, instructions=system)
                return
        self.messages.insert(0, ModelRequest([SystemPromptPart(system)]))
        self._begin += 1

    def answer(self, response: ModelResponse) -> None:
        """Add what the model said, and what that cost."""
        self.messages.append(response)
        self.usage.incr(response.usage)
        self.usage.requests += 1

    def take(
        self, messages: Sequence[ModelMessage], new: Sequence[ModelMessage], usage: RunUsage
    ) -> None:
        """Take what a run of the engine's own has: all messages, the run's among them, the usage.

        It may have rewritten the history.
        """
        self.messages = list(messages)
        self._begin = len(messages) - len(new)
        self.usage = usage


def mended(message: ModelMessage) -> ModelMessage:
    """Give a reply of the model's without half characters, which no provider takes back."""
    if not isinstance(message, ModelResponse):
        return message
    parts = [_mended_part(part) for part in message.parts]
    return replace(message, parts=parts)


def _mended_part(part: ModelResponsePart) -> ModelResponsePart:
    if isinstance(part, TextPart | ThinkingPart):
        return replace(part, content=whole_characters(part.content))
    if isinstance(part, ToolCallPart):
        return replace(part, args=_mended_value(part.args))
    return part


def _mended_value(value: Any) -> Any:
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {_mended_value(key): _mended_value(each) for key, each in items}
    return list(map(_mended_value, cast("list[Any]", value))) if isinstance(value, list) else value


class Listener:
    """Tells a run's caller what happens.

    Args:
        on_text: each gets each piece of the assistant's text as it comes, one after another. What
            one raises ends the run.
        on_tool_call: gets a ToolEvent when a tool starts and when it ends. What it raises is
            ignored.
        on_reply: is awaited whenever a reply of the model's is complete.

    The first two may be plain functions or async ones.
    """

    def __init__(
        self,
        on_text: Iterable[OnText | None] = (),
        on_tool_call: OnToolCall | None = None,
        on_reply: OnReply | None = None,
    ) -> None:
        """Listen with what is given."""
        self._on_text = [each for each in on_text if each is not None]
        self._on_tool_call = on_tool_call
        self._on_reply = on_reply
        self.raised: BaseException | None = None  # by on_text: it is not the model's failure

    @property
    def wants_text(self) -> bool:
        """Whether text is to be streamed."""
        return bool(self._on_text)

    @property
    def wants_tool_calls(self) -> bool:
        """Whether somebody wants to know of tools."""
        return self._on_tool_call is not None

    async def text(self, delta: str) -> None:
        """Give a piece of text to the caller."""
        try:
            for each in self._on_text if delta else ():
                await _awaited(each(delta))
        except BaseException as error:
            self.raised = error
            raise

    async def tool(self, event: ToolEvent) -> None:
        """Give a tool's event to the caller."""
        if self._on_tool_call is not None:
            with suppress(Exception):
                await _awaited(self._on_tool_call(event))

    async def replied(self) -> None:
        """Say that a reply is complete."""
        if self._on_reply is not None:
            await self._on_reply()


async def _awaited(value: Awaitable[object] | object) -> None:
    if inspect.isawaitable(value):
        await value
