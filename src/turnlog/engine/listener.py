"""Listener: who is told of what happens in a run while it goes on."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Required, TypeAlias, TypedDict

from turnlog.errors import InvalidTurn
from turnlog.wire import whole_characters

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart

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
    except (ValueError, TypeError, AssertionError):  # no JSON, or no object
        return {}


OnText: TypeAlias = Callable[[str], Awaitable[object] | object]
OnToolCall: TypeAlias = Callable[[ToolEvent], Awaitable[object] | object]
OnReply: TypeAlias = Callable[[], Awaitable[None]]


class Listener:
    """Tells a run's caller what happens.

    Args:
        on_text: each gets each piece of the assistant's text as it comes, one after another. A
            piece holds whole characters only: half a character waits for its other half, and is
            U+FFFD where none comes. What one raises ends the run.
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
        for each in (*self._on_text, on_tool_call):
            if each is not None and not callable(each):  # pyright: ignore[reportUnnecessaryComparison]
                raise InvalidTurn("run", f"{each!r} is not a function", "give on_text= a function")
        self._on_tool_call = on_tool_call
        self._on_reply = on_reply
        self._half = ""  # of a character, whose other half is to come
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
        text = self._half + delta
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        await self._tell(whole_characters(text.removesuffix(self._half)))

    async def _tell(self, text: str) -> None:
        try:
            for each in self._on_text if text else ():
                await _awaited(each(text))
        except BaseException as error:
            self.raised = error
            raise

    async def tool(self, event: ToolEvent) -> None:
        """Give a tool's event to the caller."""
        if self._on_tool_call is not None:
            with suppress(Exception):
                await _awaited(self._on_tool_call(event))

    async def replied(self) -> None:
        """Say that a reply is complete: what waits for its other half waits in vain."""
        half, self._half = self._half, ""
        await self._tell(whole_characters(half))
        if self._on_reply is not None:
            await self._on_reply()


async def _awaited(value: Awaitable[object] | object) -> None:
    if inspect.isawaitable(value):
        await value
