"""Speakers: the two that a run can have speak, our loop and a user's own agent of the engine's.

A user's own agent keeps its ways: its tools run together, its limits and its errors are the
engine's. Its errors come as they are, with a note that says what they concern.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, cast

from pydantic_ai import Agent as EngineAgent
from pydantic_ai.capabilities import ProcessEventStream, ReinjectSystemPrompt
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import FunctionToolCallEvent, FunctionToolResultEvent

from turnlog.agents.collector import Collector
from turnlog.agents.outgoing import Outgoing
from turnlog.display import counted
from turnlog.engine.failures import explained, hide_key
from turnlog.engine.history import request_of, without_system
from turnlog.engine.listener import call_began, call_ended
from turnlog.engine.loop import Asking, converse, text_in
from turnlog.engine.result import Output
from turnlog.engine.shield import cancel, ended, is_cancellation, opened
from turnlog.wire import whole_characters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from pydantic_ai.agent import AbstractAgent, ModelRequestNode
    from pydantic_ai.messages import AgentStreamEvent
    from pydantic_ai.result import AgentStream, FinalResult
    from pydantic_ai.run import AgentRun

    from turnlog.agents.perform import Input
    from turnlog.engine.exchange import Exchange
    from turnlog.engine.listener import Listener, ToolEvent


class LoopSpeaker:
    """Our loop, on a model and its tools."""

    def __init__(self, name: str, system: str, asking: Callable[[str], Awaitable[Asking]]) -> None:
        """Take what the model is told to be, and what gives how to ask, for a subject of errors."""
        self.name = name
        self._system = system
        self._asking = asking

    async def speak(self, given: Input, exchange: Exchange, listener: Listener) -> str:
        """Send the input, and go on until there is a reply."""
        asking = await self._asking(given.subject)
        exchange.system = self._system
        exchange.ask(request_of(str(given.content), given.at))
        async with opened(asking.model):
            await converse(exchange, asking, listener)
        return exchange.response

    def explain(self, error: Exception, subject: str, written: int) -> None:
        """Leave it as it is: what is not ours is the caller's own."""


class EngineSpeaker(Generic[Output]):
    """A user's own agent of the engine's.

    Args:
        agent: the agent.
        arguments: what its own `iter` takes: deps, model, usage_limits, output_type, and so on.
    """

    def __init__(self, agent: AbstractAgent[Any, Any], arguments: Mapping[str, Any]) -> None:
        """Take the agent as it is."""
        self._agent = agent
        self._arguments = dict(arguments)

    @property
    def name(self) -> str:
        """The agent's name, as ours have it."""
        return f"agent {self._agent.name!r}" if self._agent.name else "agent"

    async def speak(self, given: Input, exchange: Exchange, listener: Listener) -> Output:
        """Run the agent on the input, step by step.

        In a task of its own: the engine puts away what a stream has brought after the first
        cancellation, and a second one in the middle of that would lose it.
        """
        task = asyncio.create_task(self._speak(_sendable(given.content), exchange, listener))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancellation:
            cancel(task, *cancellation.args)
            await ended(task)
            if not task.cancelled():
                task.exception()  # seen
            raise
        return task.result()

    async def _speak(
        self, content: str | Sequence[Any], exchange: Exchange, listener: Listener
    ) -> Output:
        arguments = self._arguments.copy()
        history, system = without_system(exchange.messages)
        history += arguments.pop("message_history", None) or ()
        # With a history the engine sends no system prompt of the agent's own, nor does it put that
        # back where there is another one: so the thread's are put in on the way out.
        collector = Collector(exchange.spoken, listener.replied)
        capabilities: list[Any] = [
            *(arguments.pop("capabilities", None) or ()),
            ReinjectSystemPrompt(),
            Outgoing(system),
            collector,
        ]
        handler = arguments.pop("event_stream_handler", None)
        if handler is not None:
            capabilities.append(ProcessEventStream(handler))
        run: AgentRun[Any, Any] | None = None
        try:
            async with self._agent.iter(
                content,
                message_history=history,
                capabilities=capabilities,
                **arguments,
            ) as run:
                final = await self._go_through(run, collector, listener)
            if run.result is not None:  # hooks may have changed what the last step gave
                final = replace(final, output=run.result.output)
            collector.end(run, final)
        except BaseException as error:
            if run is not None:
                collector.fail(run, error)
            raise
        finally:
            if run is not None:
                exchange.take(run.all_messages(), run.usage)
        return cast("Output", final.output)

    async def _go_through(
        self, run: AgentRun[Any, Any], collector: Collector, listener: Listener
    ) -> FinalResult[Any]:
        async for node in run:
            if EngineAgent.is_end_node(node):
                return node.data
            if EngineAgent.is_model_request_node(node):
                collector.ask(run)
                if listener.wants_text:
                    await self._stream(node, run, collector, listener)
            elif EngineAgent.is_call_tools_node(node):
                collector.reply(run, node.model_response)
                if listener.wants_tool_calls:
                    async with node.stream(run.ctx) as events:
                        await _tell(events, listener)
        raise AssertionError(run)  # a run that raises nothing comes to its end

    async def _stream(
        self,
        node: ModelRequestNode[Any, Any],
        run: AgentRun[Any, Any],
        collector: Collector,
        listener: Listener,
    ) -> None:
        """Stream a reply. Of one that breaks off, what was seen is taken at once.

        A cancellation may keep pydantic-ai from taking it; but what a hook refuses at the end of
        the stream is not taken.
        """
        stream: AgentStream[Any, Any] | None = None
        whole = False
        try:
            async with node.stream(run.ctx) as stream:
                async for event in stream:
                    await listener.text(text_in(event))
                whole = True
                await listener.replied()
        except BaseException as error:
            heard = whole and error is listener.raised
            if stream is not None and (heard or not whole or is_cancellation(error)):
                collector.break_off(stream.response, whole=heard)
            raise

    def explain(self, error: Exception, subject: str, written: int) -> None:
        """Note in an error what it means and what was written; it stays what it is."""
        kept = f"{counted(written, 'turn')} written back" if written else "nothing was written back"
        what = ""
        hide_key(error)
        if isinstance(error, ModelAPIError):
            what = "{}; {}; ".format(*explained(error, error.model_name))
        error.add_note(f"turnlog: {subject}: {what}{kept}")


def _sendable(content: str | Sequence[Any]) -> str | Sequence[Any]:
    """Give an input without half characters, which no provider takes."""
    if isinstance(content, str):
        return whole_characters(content)
    return [whole_characters(item) if isinstance(item, str) else item for item in content]


async def _tell(events: AsyncIterator[AgentStreamEvent], listener: Listener) -> None:
    """Tell of the tools that the engine calls."""
    started: dict[str, tuple[float, ToolEvent]] = {}
    async for event in events:
        if isinstance(event, FunctionToolCallEvent):
            start = call_began(event.part)
            started[event.tool_call_id] = time.perf_counter(), start
            await listener.tool(start)
        elif isinstance(event, FunctionToolResultEvent) and event.tool_call_id in started:
            begin, start = started.pop(event.tool_call_id)
            text = event.part.model_response_str(wrap_if_error=False)
            error = None if event.part.outcome == "success" else text
            await listener.tool(call_ended(start, text, error, time.perf_counter() - begin))
