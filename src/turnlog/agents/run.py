"""run, arun, stream and astream: an agent of ours or of the engine's, with a memory.

Source: spec R19; design, section 6.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack, cast, overload

from pydantic_ai.agent import AbstractAgent

from turnlog.agents.agent import Agent
from turnlog.agents.perform import RunOptions, perform
from turnlog.agents.speakers import EngineSpeaker
from turnlog.conversation import Conversation
from turnlog.engine.blocking import run_blocking
from turnlog.engine.chat import ChatOptions, answer
from turnlog.engine.history import input_turn
from turnlog.engine.stream import BlockingTextStream, TextStream
from turnlog.errors import InvalidTurn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pydantic_ai.messages import UserContent
    from pydantic_ai.output import OutputSpec

    from turnlog.agents.perform import Seed
    from turnlog.agents.writeback import WritebackMode
    from turnlog.engine.history import SystemTurns
    from turnlog.engine.listener import OnText, OnToolCall
    from turnlog.engine.result import Result
    from turnlog.thread import MemoryThread

Output = TypeVar("Output")
_Content: TypeAlias = "str | Sequence[UserContent]"

_OPTIONS: Final = frozenset(RunOptions.__annotations__)


@overload
def run(agent: Agent, content: str, /, **options: Unpack[RunOptions]) -> Result[str]: ...
@overload
def run(
    agent: AbstractAgent[Any, Any],
    content: _Content,
    /,
    *,
    output_type: OutputSpec[Output],
    memory: MemoryThread | None = None,
    seed: Seed | None = None,
    conversation: Conversation | None = None,
    system_turns: SystemTurns = "system",
    writeback: WritebackMode = True,
    on_text: OnText | None = None,
    on_tool_call: OnToolCall | None = None,
    **options: Any,
) -> Result[Output]: ...
@overload
def run(
    agent: AbstractAgent[Any, Output],
    content: _Content,
    /,
    *,
    memory: MemoryThread | None = None,
    seed: Seed | None = None,
    conversation: Conversation | None = None,
    system_turns: SystemTurns = "system",
    writeback: WritebackMode = True,
    on_text: OnText | None = None,
    on_tool_call: OnToolCall | None = None,
    **options: Any,
) -> Result[Output]: ...
def run(agent: Any, content: Any, /, **options: Any) -> Result[Any]:
    """Run an agent on an input. As `arun`, for plain code.

    Raises:
        RunningLoop: it is called where an event loop runs: await `arun` there.
        KeyboardInterrupt: Ctrl-C; what was said by then is written back first.

    Blocks until the run has ended and its turns are on disk.
    """
    return run_blocking(lambda: arun(agent, content, **options), "arun")


@overload
async def arun(agent: Agent, content: str, /, **options: Unpack[RunOptions]) -> Result[str]: ...
@overload
async def arun(
    agent: AbstractAgent[Any, Any],
    content: _Content,
    /,
    *,
    output_type: OutputSpec[Output],
    memory: MemoryThread | None = None,
    seed: Seed | None = None,
    conversation: Conversation | None = None,
    system_turns: SystemTurns = "system",
    writeback: WritebackMode = True,
    on_text: OnText | None = None,
    on_tool_call: OnToolCall | None = None,
    **options: Any,
) -> Result[Output]: ...
@overload
async def arun(
    agent: AbstractAgent[Any, Output],
    content: _Content,
    /,
    *,
    memory: MemoryThread | None = None,
    seed: Seed | None = None,
    conversation: Conversation | None = None,
    system_turns: SystemTurns = "system",
    writeback: WritebackMode = True,
    on_text: OnText | None = None,
    on_tool_call: OnToolCall | None = None,
    **options: Any,
) -> Result[Output]: ...
async def arun(agent: Any, content: Any, /, **options: Any) -> Result[Any]:
    """Run an agent on an input: one of ours, or a `pydantic_ai.Agent` of one's own.

    Args:
        agent: the agent.
        content: what the user says. The engine's agents take pictures and files beside text too;
            the thread gets the text, and how many others there were in the turn's meta.
        options: those of `RunOptions`, `memory` first of all; for an agent of the engine's also
            what its own `run` takes: deps, model, usage_limits, output_type, and so on. A
            `message_history` is sent after the thread's turns.

    Returns:
        The result, when the turns are on disk. A structured output is written back as its JSON
        text.

    Raises:
        Exception: what an agent of the engine's raises comes as it is, with a note that says what
            was written back; its messages are in the engine's `capture_run_messages`.
        RunFailed, WritebackFailed and others: as `Agent.arun` says.

    Cancelled, it writes back the input and what the assistant had said, and then goes on with the
    cancellation. The event loop never waits for the disk. Source: spec R19 to R24.
    """
    if isinstance(agent, Conversation):
        raise InvalidTurn("run", "a Conversation is no agent", "send it with turnlog.chat")
    return await _performing(agent, content, options)(None)


@overload
def stream(
    subject: Agent, content: str, /, **options: Unpack[RunOptions]
) -> BlockingTextStream[str]: ...
@overload
def stream(subject: Conversation, /, **options: Unpack[ChatOptions]) -> BlockingTextStream[str]: ...
@overload
def stream(
    subject: AbstractAgent[Any, Any],
    content: _Content,
    /,
    *,
    output_type: OutputSpec[Output],
    memory: MemoryThread | None = None,
    seed: Seed | None = None,
    conversation: Conversation | None = None,
    system_turns: SystemTurns = "system",
    writeback: WritebackMode = True,
    on_text: OnText | None = None,
    on_tool_call: OnToolCall | None = None,
    **options: Any,
) -> BlockingTextStream[Output]: ...
@overload
def stream(
    subject: AbstractAgent[Any, Output],
    content: _Content,
    /,
    *,
    memory: MemoryThread | None = None,
    seed: Seed | None = None,
    conversation: Conversation | None = None,
    system_turns: SystemTurns = "system",
    writeback: WritebackMode = True,
    on_text: OnText | None = None,
    on_tool_call: OnToolCall | None = None,
    **options: Any,
) -> BlockingTextStream[Output]: ...
def stream(subject: Any, content: Any = None, /, **options: Any) -> BlockingTextStream[Any]:
    """Run an agent, or send a conversation; give an iterator of the reply's text. As `astream`.

    Raises:
        RunningLoop: it is read where an event loop runs: use `astream` there.

    Each step blocks until there is a piece of text.
    """
    return BlockingTextStream(_performing(subject, content, options))


@overload
def astream(subject: Agent, content: str, /, **options: Unpack[RunOptions]) -> TextStream[str]: ...
@overload
def astream(subject: Conversation, /, **options: Unpack[ChatOptions]) -> TextStream[str]: ...
@overload
def astream(
    subject: AbstractAgent[Any, Any],
    content: _Content,
    /,
    *,
    output_type: OutputSpec[Output],
    memory: MemoryThread | None = None,
    seed: Seed | None = None,
    conversation: Conversation | None = None,
    system_turns: SystemTurns = "system",
    writeback: WritebackMode = True,
    on_text: OnText | None = None,
    on_tool_call: OnToolCall | None = None,
    **options: Any,
) -> TextStream[Output]: ...
@overload
def astream(
    subject: AbstractAgent[Any, Output],
    content: _Content,
    /,
    *,
    memory: MemoryThread | None = None,
    seed: Seed | None = None,
    conversation: Conversation | None = None,
    system_turns: SystemTurns = "system",
    writeback: WritebackMode = True,
    on_text: OnText | None = None,
    on_tool_call: OnToolCall | None = None,
    **options: Any,
) -> TextStream[Output]: ...
def astream(subject: Any, content: Any = None, /, **options: Any) -> TextStream[Any]:
    """Run an agent, or send a conversation; give an async iterator of the reply's text.

    Args:
        subject: an agent of ours or of the engine's, or a conversation.
        content: what the user says, to an agent.
        options: what `arun`, or `achat`, takes.

    Returns:
        The pieces of text as they come; `result` of the iterator is there when it has ended. An
        agent's run begins, and a conversation is sent, with the first piece that is asked for.

    What the run raises comes from the iteration. Left early, it is cancelled, and what it had said
    is written back.
    """
    return TextStream(_performing(subject, content, options))


def _performing(
    subject: object, content: Any, options: dict[str, Any]
) -> Callable[[OnText | None], Coroutine[Any, Any, Result[Any]]]:
    """Give what runs a subject, and gives each piece of text to a function."""
    if isinstance(subject, Agent):
        return subject.performing(content, cast("RunOptions", options))
    if isinstance(subject, Conversation):
        if content is not None:
            raise InvalidTurn(
                "stream", "a conversation takes no input", "add it: conv.add(...), then stream that"
            )
        return lambda give: answer(subject, cast("ChatOptions", options), give)
    if not isinstance(subject, AbstractAgent):
        raise InvalidTurn(
            "run",
            f"a {type(subject).__name__} is no agent",
            "give a turnlog.Agent or a pydantic_ai.Agent",
        )
    agent = cast("AbstractAgent[Any, Any]", subject)
    if not _says_something(content):
        raise InvalidTurn("run", "there is no input", "give what the user says")
    own = cast("RunOptions", {name: options[name] for name in options if name in _OPTIONS})
    others = {name: options[name] for name in options if name not in _OPTIONS}
    speaker = EngineSpeaker[Any](agent, others)
    return lambda give: perform(speaker, content, own, give)


def _says_something(content: object) -> bool:
    """Return whether an input for an agent of pydantic-ai's holds a text or an attachment."""
    if not isinstance(content, Sequence):
        return False
    items = cast("Sequence[Any]", content)
    return bool(input_turn(items, dt.datetime.now(dt.UTC)).content.strip())
