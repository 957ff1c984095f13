"""A user's own agents of the engine's: what their own run takes is passed through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pydantic_ai
import pytest
from dialogue import ASKED, HELLO, LOOK, LOOKING, lookup, texts_in
from localserver import MODELS, Provider, Reply, ToolCall, turns
from pydantic import BaseModel
from pydantic_ai import RunContext, UsageLimitExceeded, UsageLimits
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from ways import UNPOOLED, said, theirs

import turnlog

if TYPE_CHECKING:
    from programs import Stored
    from ways import Make, Perform


# ---- the engine's own agents, with what their own run takes ----


def test_deps_reach_the_tools_of_an_engines_agent(
    provider: Provider, model: str, perform: Perform, stored: Stored
) -> None:
    """`deps` are passed through to the agent's tools (R19)."""

    def who(context: RunContext[str]) -> str:
        """Say who asks."""
        return f"it is {context.deps}"

    provider.script(Reply(ToolCall("who")), "Hello, Ada.")
    agent = pydantic_ai.Agent(model, deps_type=str, tools=[who], model_settings=UNPOOLED)
    result = perform(agent, "Who am I?", memory=stored.mem, deps="Ada")
    assert result.response == "Hello, Ada."
    assert turns(provider.requests[1])[-1] == ("tool", "it is Ada")


def test_a_usage_limit_is_passed_through_and_its_error_comes_as_it_is(
    provider: Provider, model: str, perform: Perform, stored: Stored
) -> None:
    """The engine's own error ends the run, with a note of what was written back (R23)."""
    provider.script(Reply("Let me look.", LOOK), "It is paid.")
    with pytest.raises(UsageLimitExceeded) as raised:
        perform(
            theirs(model, tools=[lookup]),
            "Is it paid?",
            memory=stored.mem,
            usage_limits=UsageLimits(request_limit=1),
        )
    assert any("2 turns written back" in note for note in raised.value.__notes__)
    assert len(provider.requests) == 1
    assert said(stored.reopened()) == [ASKED, LOOKING]


HISTORY: list[ModelMessage] = [
    ModelRequest([UserPromptPart("Earlier?")]),
    ModelResponse([TextPart("Earlier.")]),
]


def test_a_message_history_is_sent_after_the_threads_turns(
    provider: Provider, model: str, perform: Perform, stored: Stored
) -> None:
    """`message_history` goes out between the thread's turns and the input, and is not written."""
    mem = stored.mem.append("Hello?").append("Hi.", role="assistant")
    result = perform(theirs(model), "Is it paid?", memory=mem, message_history=HISTORY)
    sent = [*said(mem.messages())[:2], ("user", "Earlier?"), ("assistant", "Earlier."), ASKED]
    assert turns(provider.requests[0]) == sent
    assert texts_in(result.messages) == [*(text for _, text in sent), "Hello."]
    assert said(stored.reopened())[2:] == said(result.written) == [ASKED, HELLO]


@pytest.mark.parametrize(
    "before", [[], [("user", "Hello?"), ("assistant", "Hi.")], [("system", "Be brief.")]]
)
def test_an_engines_agents_own_system_texts_are_sent_once_with_each_run(
    provider: Provider, model: str, stored: Stored, before: Any
) -> None:
    """Its `system_prompt` and `instructions` go out with every run, whatever the thread holds."""
    for role, text in before:
        stored.mem.append(text, role=role)
    agent = pydantic_ai.Agent(
        model, system_prompt="Be kind.", instructions="Be quick.", model_settings=UNPOOLED
    )
    turnlog.run(agent, "One", memory=stored.mem)
    turnlog.run(agent, "Two", memory=stored.mem)
    for request in provider.requests:
        sent = "\n\n".join(text for role, text in turns(request) if role == "system")
        own = [text for role, text in before if role == "system"]
        assert sorted(sent.split("\n\n")) == sorted(["Be kind.", "Be quick.", *own])
    assert said(stored.reopened()) == [*before, ("user", "One"), HELLO, ("user", "Two"), HELLO]


def test_what_is_given_for_one_run_goes_to_the_engine(provider: Provider, stored: Stored) -> None:
    """A `model` and its settings that are given for one run are that run's, and its meta tells."""
    agent = theirs(MODELS["openai"])
    turnlog.run(
        agent,
        "Hello?",
        memory=stored.mem,
        model=MODELS["anthropic"],
        model_settings={**UNPOOLED, "temperature": 0.5},
    )
    [call] = provider.calls
    assert call.path == "/v1/messages"
    assert call.body["temperature"] == 0.5
    meta = stored.mem.messages()[-1].meta
    assert meta is not None
    assert meta["model"] == MODELS["anthropic"].partition(":")[2]


def test_an_argument_that_the_engine_does_not_take_is_its_error(
    provider: Provider, one_model: str, perform: Perform, stored: Stored
) -> None:
    """A misspelt argument is refused, with nothing asked and nothing written."""
    with pytest.raises(TypeError, match="dependencies"):
        perform(theirs(one_model), "Hello?", memory=stored.mem, dependencies=1)
    assert (provider.requests, stored.reopened()) == ([], [])


def test_any_agent_of_the_engines_is_taken(model: str, perform: Perform, stored: Stored) -> None:
    """An agent that wraps another one of the engine's is run as it is."""
    result = perform(WrapperAgent(theirs(model)), "Hello?", memory=stored.mem)
    assert result.response == "Hello."
    assert len(stored.reopened()) == 2


class Invoice(BaseModel):
    """What is known of an invoice."""

    number: int


def test_a_stream_of_a_structured_output_ends_with_it(
    provider: Provider, model: str, stored: Stored
) -> None:
    """A stream gives the text beside a structured output; the output is in its result."""
    provider.script(Reply("Here ", "it is.", ToolCall("final_result", {"number": 7})))
    agent = pydantic_ai.Agent(model, output_type=Invoice, model_settings=UNPOOLED)
    stream = turnlog.stream(agent, "Which one?", memory=stored.mem)
    assert list(stream) == ["Here ", "it is."]
    assert stream.result.output == Invoice(number=7)
    assert stream.result.response == '{"number":7}'


def test_a_tool_of_an_engines_agent_is_told_of(
    provider: Provider, model: str, make: Make, perform: Perform
) -> None:
    """`on_tool_call` is given when each tool starts and ends, for either kind of agent."""
    provider.script(Reply(LOOK), "It is paid.")
    events: list[Any] = []
    perform(make(model, tools=[lookup]), "Is it paid?", on_tool_call=events.append)
    start, end = events
    assert start == {"event": "start", "tool": "lookup", "args": {"invoice": 7}}
    assert end.pop("duration_ms") >= 0
    assert end == {**start, "event": "end", "result": "invoice 7: found", "error": None}
