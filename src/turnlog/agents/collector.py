"""Collector: what a run of a pydantic-ai agent says, taken as it comes.

A history processor may rewrite the run's own messages at any request, so they cannot tell in the
end what was said. Each reply is taken when it is complete, and each enqueued message when it is
delivered, ahead of the reply to it.

A reply is kept when its tools are called or when it ends the run. The agent's validators, output
functions and hooks may refuse it. Then the model is asked again or the run fails, and the reply is
left out. They may also change it. Then it is kept as the caller gets it.

Source: spec R21 to R23; design, section 6, writeback.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent as EngineAgent
from pydantic_ai import DeferredToolRequests
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import (
    BinaryContent,
    EnqueuedMessagesEvent,
    FunctionToolCallEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    TextPart,
)
from pydantic_ai.output import PendingModelResponse
from pydantic_ai.usage import RequestUsage
from pydantic_core import from_json

from turnlog.engine.history import attachment_note, json_text
from turnlog.engine.shield import is_cancellation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pydantic_ai import RunContext
    from pydantic_ai.messages import AgentStreamEvent
    from pydantic_ai.result import FinalResult
    from pydantic_ai.run import AgentRun


class Collector(AbstractCapability[Any]):
    """Takes what one run says. It is a capability of the run, so that hooks tell it of each step.

    Args:
        spoken: what was said is added here, in order. What is there does not change any more.
        on_kept: is awaited when a reply is kept whose tools are about to run.
    """

    def __init__(self, spoken: list[ModelMessage], on_kept: Callable[[], Awaitable[None]]) -> None:
        """Begin with nothing said."""
        self._spoken = spoken
        self._on_kept = on_kept
        self._delivered: set[str] = set()
        self._early = False  # a text beside tool calls may be the output
        self._validated = False  # the agent has output validators
        self._asked = False  # the model is asked and has not replied
        self._last: ModelResponse | None = None
        self._open: list[ModelMessage] = []  # the last reply, as long as it may be refused
        self._called = self._ended = self._kept = False  # what the last reply came to

    # ---- what the run's steps bring ----

    def ask(self, run: AgentRun[Any, Any]) -> None:
        """Note that the model is about to be asked."""
        self._keep()
        self._deliver(run.ctx.state.event_stream_buffer)
        self._early = run.ctx.deps.end_strategy == "early"
        self._validated = bool(run.ctx.deps.output_validators)
        self._asked = True

    def reply(self, run: AgentRun[Any, Any], response: ModelResponse) -> None:
        """Take a complete reply, unless it is one of the history's whose tools run first."""
        if self._asked:
            self._deliver(run.ctx.state.event_stream_buffer)
            self._take(response)

    def break_off(self, response: ModelResponse, *, whole: bool = False) -> None:
        """Take what a stream had brought when it broke off: the caller has seen it."""
        self._take(response if whole else replace(response, state="interrupted"))
        self._keep()

    def end(self, run: AgentRun[Any, Any], final: FinalResult[Any]) -> None:
        """Take the output that the caller gets."""
        self._end_with(final)
        self._keep()
        self._deliver(run.ctx.state.event_stream_buffer)

    def fail(self, run: AgentRun[Any, Any], error: BaseException) -> None:
        """Take what is left of a run that was cancelled or failed."""
        cancelled = is_cancellation(error)
        self._deliver(run.ctx.state.event_stream_buffer)
        if self._asked:
            self._take_uncollected(run.all_messages(), cancelled=cancelled)
        elif cancelled and not (self._called or self._ended):
            self._open = [replace(each, state="interrupted") for each in self._open]
        elif not (cancelled or self._called):
            self._refuse()
        self._keep()
        for pending in run.pending_messages:
            self._spoken += [each for each in pending.messages if isinstance(each, ModelRequest)]

    # ---- hooks ----

    def get_ordering(self) -> CapabilityOrdering:
        """Stand outside of all others, to see what they make of a step."""
        return CapabilityOrdering(position="outermost")

    @property
    def has_on_event(self) -> bool:
        """Return False: replies need not be streamed for the sake of this capability."""
        return False

    def listens_to(self, event: AgentStreamEvent) -> bool:
        """Return whether an event is one to hear of, in the streams that there are."""
        return isinstance(event, EnqueuedMessagesEvent | FunctionToolCallEvent)

    async def on_event(self, ctx: RunContext[Any], *, event: AgentStreamEvent) -> None:
        """Take what is delivered to the model, and keep a reply whose tools are called."""
        del ctx
        if isinstance(event, EnqueuedMessagesEvent):
            self._deliver([event])
        elif not self._called:
            self._called = True
            if not self._early:
                self._keep()
                await self._on_kept()

    async def after_node_run(self, ctx: RunContext[Any], *, node: Any, result: Any) -> Any:
        """Note whether a reply ended the run, or was refused and the model is asked again."""
        del ctx
        if EngineAgent.is_call_tools_node(node):
            if EngineAgent.is_end_node(result):
                self._end_with(result.data)
            elif not self._called:
                self._refuse()
        return result

    # ---- the last reply ----

    def _take(self, response: ModelResponse) -> None:
        self._keep()
        self._asked = False
        self._last, self._open = response, [response]
        self._called = self._ended = self._kept = False

    def _keep(self) -> None:
        self._kept = self._kept or bool(self._open)
        self._spoken += self._open
        self._open = []

    def _refuse(self) -> None:
        """Leave out what the last reply says, but not what it used."""
        if self._open and self._last is not None:
            self._open = [replace(self._last, parts=[])]

    def _end_with(self, final: FinalResult[Any]) -> None:
        self._ended = True
        last = self._last or ModelResponse([])
        text = _shown(final, last, validated=self._validated)
        before: list[ModelMessage] = [] if self._kept else [last]
        if text is None:
            self._open = before
        elif final.tool_name is None and not self._kept:
            self._open = [replace(last, parts=[TextPart(text)])]
        else:  # it comes after the text beside the call that brought it
            self._open = [*before, replace(last, parts=[TextPart(text)], usage=RequestUsage())]

    # ---- what else was said ----

    def _deliver(self, events: Iterable[AgentStreamEvent]) -> None:
        """Take the messages that were enqueued and delivered, each once."""
        for event in events:
            if isinstance(event, EnqueuedMessagesEvent) and event.enqueue_id not in self._delivered:
                self._delivered.add(event.enqueue_id)
                self._spoken += event.messages

    def _take_uncollected(self, messages: list[ModelMessage], *, cancelled: bool) -> None:
        """Take a reply that came, but was stopped by a limit or a cancellation before its step."""
        last = messages[-1] if messages else None
        if not isinstance(last, ModelResponse) or any(last is each for each in self._spoken):
            return
        if cancelled or last.state == "interrupted":
            self.break_off(last)


def _shown(final: FinalResult[Any], response: ModelResponse, *, validated: bool) -> str | None:
    """Return the output as a turn's text, or None where the response's own text is that."""
    output = final.output
    if output is None or isinstance(output, DeferredToolRequests | PendingModelResponse):
        return None
    if isinstance(output, BinaryContent):
        return None if response.text else attachment_note(output)
    text = output if isinstance(output, str) else json_text(output)
    if final.tool_name is not None:
        return text
    said = _output_text(response)
    if isinstance(output, str):
        return None if text == said else text
    try:
        return None if from_json(said) == from_json(text) else text
    except ValueError:  # a function has made the output of a plain text
        return text if validated else None


def _output_text(response: ModelResponse) -> str:
    """Return the text of a response that pydantic-ai takes for its output.

    What stands ahead of a provider's own tool call is not part of it, unless nothing comes after.
    """
    text = before = ""
    for part in response.parts:
        if isinstance(part, TextPart):
            text += part.content
        elif isinstance(part, NativeToolCallPart):
            text, before = "", text or before
    return text or before
