"""Failures of a user's own agent of the engine's: its error comes as it is, with a note of ours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pydantic_ai
import pytest
from dialogue import ASKED, LOOKING
from failing import QUESTION, STATUSES, Options, fails, fails_later, look, unknown
from localserver import Broken, Failure, Provider, Refusal, Reply, ToolCall
from pydantic_ai import UsageLimits
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)
from ways import said

import turnlog

if TYPE_CHECKING:
    from turnlog import MemoryThread

Error = TypeVar("Error", bound=BaseException)


def engine_failure(
    agent: pydantic_ai.Agent[None, Any], thread: MemoryThread, kind: type[Error], **options: Any
) -> Error:
    """Run an agent of the engine's; give the error that it ends with."""

    async def main() -> Error:
        async with agent:
            with pytest.raises(kind) as caught:
                await turnlog.arun(agent, QUESTION, memory=thread, **options)
        return caught.value

    return asyncio.run(main())


def note_of(error: BaseException) -> str:
    """Give the one note of an error."""
    [note] = error.__notes__
    assert note.startswith("turnlog: ")
    assert "'t'" in note or "Helper" in note
    return note


def theirs(model: str, *tools: Any) -> pydantic_ai.Agent[None, Any]:
    """Make an agent of the engine's."""
    return pydantic_ai.Agent(model, name="Helper", tools=tools or [look])


ONE_REQUEST: Final = UsageLimits(request_limit=1)


def test_the_usage_limit_of_an_engines_agent(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """The engine's error comes as it is; what was said is written, and a note says how much."""
    provider.script(Reply("Let me look.", ToolCall("look", {"id": 7})))
    error = engine_failure(
        theirs(model), thread, UsageLimitExceeded, usage_limits=ONE_REQUEST, **options
    )
    assert "2 turns written back" in note_of(error)
    assert said(thread.messages()) == [ASKED, LOOKING]


def test_the_usage_limit_of_an_engines_agent_that_said_nothing(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """Where the assistant had said nothing, nothing is written, and the note says so (A08)."""
    provider.script(Reply(ToolCall("look", {"id": 7})))
    error = engine_failure(
        theirs(model), thread, UsageLimitExceeded, usage_limits=ONE_REQUEST, **options
    )
    assert "nothing was written back" in note_of(error)
    assert said(thread.messages()) == []


@pytest.mark.parametrize("tool", [fails, fails_later])
def test_what_a_tool_of_an_engines_agent_raises(
    provider: Provider, model: str, options: Options, thread: MemoryThread, tool: Any
) -> None:
    """A tool's own error comes through an engine's agent, once what was said is written."""
    provider.script(Reply("Let me look.", ToolCall(tool.__name__)))
    error = engine_failure(theirs(model, tool), thread, LookupError, **options)
    assert error.args == ("no such invoice",)
    assert "2 turns written back" in note_of(error)
    assert said(thread.messages()) == [ASKED, LOOKING]


def test_an_engines_agent_that_gets_no_reply(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """Empty replies are the engine's UnexpectedModelBehavior; then nothing is written."""
    provider.script(Reply(), Reply())
    error = engine_failure(theirs(model), thread, UnexpectedModelBehavior, **options)
    assert "nothing was written back" in note_of(error)
    assert said(thread.messages()) == []


def test_an_engines_agent_whose_model_calls_what_there_is_not(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """The engine gives up after its own retries; both texts are written with the input."""
    provider.script(Reply("Once.", *unknown(1)), Reply("Again.", *unknown(1)))
    error = engine_failure(theirs(model), thread, UnexpectedModelBehavior, **options)
    assert "3 turns written back" in note_of(error)
    assert said(thread.messages()) == [ASKED, ("assistant", "Once."), ("assistant", "Again.")]


@pytest.mark.parametrize("status", [401, 429, 500])
def test_the_provider_of_an_engines_agent_refuses(
    provider: Provider, model: str, options: Options, thread: MemoryThread, status: int
) -> None:
    """The engine's error comes with a note that explains it in words; nothing is written."""
    provider.script(Failure(status, "These are its words."))
    error = engine_failure(theirs(model), thread, ModelAPIError, **options)
    note = note_of(error)
    assert STATUSES[status][0] in note
    assert f"status {status}: These are its words." in note
    assert "nothing was written back" in note
    assert said(thread.messages()) == []


def test_the_stream_of_an_engines_agent_breaks(
    provider: Provider, model: str, thread: MemoryThread
) -> None:
    """The text that was seen is written, marked interrupted, and the engine's error goes on."""
    provider.script(Reply("It is ", "pa", Broken()))
    error = engine_failure(theirs(model), thread, ModelAPIError, on_text=str)
    assert "2 turns written back" in note_of(error)
    assert said(thread.messages()) == [ASKED, ("assistant", "It is pa")]
    assert (thread.messages()[-1].meta or {})["interrupted"] is True


def test_a_refusal_to_an_engines_agent(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """A refusal is the engine's ContentFilterError, with its words; nothing is written."""
    provider.script(Reply(Refusal("I will not.")))
    error = engine_failure(theirs(model), thread, ContentFilterError, **options)
    assert "I will not." in str(error)
    assert "nothing was written back" in note_of(error)
    assert said(thread.messages()) == []
