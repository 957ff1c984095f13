"""The loop: a model and its tools, until it replies without asking for one.

Sema's semantics exactly, which an engine's agent would need to be bent to: tools run one after
another; what a tool, an unknown name or arguments that do not fit raise goes back to the model;
five of these in a row end the run, and a success starts the count anew. With `max_turns` used up
the last text is the reply, and the last round's tools have run. What a stream had given stays in
the exchange, however it ends.

Source: Sema, agent/run; semantics, agent run and the engine; design, section 6.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai import direct
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from turnlog.engine.failures import check_reply, failing
from turnlog.engine.listener import call_began, call_ended
from turnlog.engine.models import fitted
from turnlog.engine.tools import ToolError
from turnlog.errors import InvalidTurn, ToolsFailed

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models import Model

    from turnlog.engine.exchange import Exchange
    from turnlog.engine.listener import Listener
    from turnlog.engine.tools import Toolbox

DEFAULT_MAX_TURNS: Final = 10
MOST_FAILURES: Final = 5
_NOT_CALLED: Final = "not called, since too many calls before it failed"


@dataclass(frozen=True)
class Asking:
    """How a model is asked.

    Attributes:
        subject: who asks, for errors.
        model: the model.
        toolbox: its tools.
        settings: the engine's settings.
        max_turns: how many requests at most.
        runs_tools: whether the tools run; else the model is only shown them.
    """

    subject: str
    model: Model
    toolbox: Toolbox
    settings: ModelSettings = field(default_factory=ModelSettings)
    max_turns: int = DEFAULT_MAX_TURNS
    runs_tools: bool = True

    def request(self, exchange: Exchange) -> dict[str, Any]:
        """Give what the engine's direct requests take."""
        return {
            "model": self.model,
            "messages": exchange.sendable(),
            "model_settings": fitted(self.settings, self.model),
            "model_request_parameters": ModelRequestParameters(
                function_tools=self.toolbox.definitions
            ),
        }


def check_turns(turns: object, option: str, subject: str) -> int:
    """Give the number of requests at most, or raise InvalidTurn for what is none."""
    if type(turns) is int and turns >= 1:
        return turns
    raise InvalidTurn(subject, f"{option} is {turns!r}", "give a number, 1 or more")


async def converse(exchange: Exchange, asking: Asking, listener: Listener) -> None:
    """Go on from the exchange's last request until the model has replied.

    Raises:
        ModelFailed: the model or its provider failed.
        ToolsFailed: five tool calls in a row failed.
    """
    failures = 0
    for _ in range(asking.max_turns):
        response = await _reply(exchange, asking, listener)
        await listener.replied()
        if not response.tool_calls or not asking.runs_tools:
            return
        failures = await _run_tools(exchange, response, asking, listener, failures)


# ---- the model ----


async def _reply(exchange: Exchange, asking: Asking, listener: Listener) -> ModelResponse:
    with failing(asking.subject, asking.model, listener):
        if listener.wants_text:
            response = await _streamed(exchange, asking, listener)
        else:
            response = await direct.model_request(**asking.request(exchange))
            exchange.answer(response)
        check_reply(asking.subject, asking.model, response)
        return response


async def _streamed(exchange: Exchange, asking: Asking, listener: Listener) -> ModelResponse:
    async with direct.model_request_stream(**asking.request(exchange)) as stream:
        try:
            async for event in stream:
                await listener.text(text_in(event))
        finally:  # what has come stays, whatever ends it
            response = stream.get()
            if response.parts or response.state == "complete":
                exchange.answer(response)
    return response


def text_in(event: object) -> str:
    """Give the piece of text that an event of a stream brings; "" where it brings none."""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


# ---- the tools ----


async def _run_tools(
    exchange: Exchange, response: ModelResponse, asking: Asking, listener: Listener, failures: int
) -> int:
    """Run the tools that a reply asks for; give how many calls in a row have failed."""
    results: list[ToolReturnPart] = []
    exchange.ask(ModelRequest(results))
    last: str | None = None
    for call in response.tool_calls:
        if failures == MOST_FAILURES:  # no call may stay without an answer
            results.append(_result(call, f"Error: {_NOT_CALLED}", failed=True))
            continue
        text, last = await _run_tool(call, asking.toolbox, listener)
        results.append(_result(call, text, failed=last is not None))
        failures = 0 if last is None else failures + 1
    if failures == MOST_FAILURES:
        raise ToolsFailed(
            asking.subject,
            f"{MOST_FAILURES} tool calls in a row failed; of the last: {last}",
            "see .messages of this error for all of them; mend the tool or the prompt",
        )
    return failures


async def _run_tool(
    call: ToolCallPart, toolbox: Toolbox, listener: Listener
) -> tuple[str, str | None]:
    """Run one; give what the model gets, and the error in words, if any."""
    start = call_began(call)
    await listener.tool(start)
    begin = time.perf_counter()
    error = None
    try:
        text = await toolbox.call(call)
    except ToolError as failed:
        error = str(failed)
        text = f"Error: {error}"
    await listener.tool(call_ended(start, text, error, time.perf_counter() - begin))
    return text, error


def _result(call: ToolCallPart, text: str, *, failed: bool) -> ToolReturnPart:
    return ToolReturnPart(
        call.tool_name, text, call.tool_call_id, outcome="failed" if failed else "success"
    )
