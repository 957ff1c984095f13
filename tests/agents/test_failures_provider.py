"""A provider that refuses: what the error of the run says, and what is in the thread after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from dialogue import ASKED, LOOKING
from failing import QUESTION, STATUSES, Options, assert_nothing_was_said, failure, helper
from localserver import MODELS, Failure, Provider, Reply, ToolCall, turns
from pydantic_ai.exceptions import ModelAPIError
from ways import said

from turnlog import ModelFailed

if TYPE_CHECKING:
    from programs import Stored

    from turnlog import MemoryThread

KEYS: Final = {MODELS["anthropic"]: "ANTHROPIC_API_KEY", MODELS["openai"]: "OPENAI_API_KEY"}


@pytest.mark.parametrize("status", STATUSES)
def test_a_run_that_is_refused_writes_nothing_and_says_why(
    provider: Provider, model: str, options: Options, thread: MemoryThread, status: int
) -> None:
    """The error tells who, why in the provider's words, and what to do; nothing is written."""
    provider.script(Failure(status, "These are its words."))
    error = failure(helper(model), thread, options)
    what, hint = STATUSES[status]
    assert isinstance(error, ModelFailed)
    assert "agent 'Helper'" in error.subject
    assert what in error.what
    assert model.partition(":")[2] in error.what
    assert f"status {status}: These are its words." in error.what
    assert hint.format(key=KEYS[model]) in error.hint
    assert str(error) == f"{error.subject}: {error.what}; {error.hint}"
    assert isinstance(error.__cause__, ModelAPIError)
    assert_nothing_was_said(error, thread)


def test_trying_a_failed_run_again_does_not_double_the_input(
    provider: Provider, model: str, options: Options, stored: Stored
) -> None:
    """A run that failed without any reply and is tried again has its input once (A08)."""
    provider.script(Failure(500, "Oops."), Failure(529, "Overloaded."), "Yes.")
    agent = helper(model)
    failure(agent, stored.mem, options)
    failure(agent, stored.mem, options)
    agent.run(QUESTION, memory=stored.mem, **options)
    assert turns(provider.requests[-1]) == [ASKED]
    assert said(stored.reopened()) == [ASKED, ("assistant", "Yes.")]


def test_too_many_requests_are_tried_again_by_the_client(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """Where the provider says so, its client tries again, and the run ends well, written once."""
    provider.script(Failure(429, "Slow down.", retry=True), "Yes.")
    result = helper(model).run(QUESTION, memory=thread, **options)
    assert len(provider.requests) == 2
    assert result.response == "Yes."
    assert said(thread.messages()) == [ASKED, ("assistant", "Yes.")]


def test_too_many_requests_for_too_long_end_the_run(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """Where the client gives up, the error says so, and nothing is written."""
    provider.script(*[Failure(429, "Slow down.", retry=True)] * 3)
    error = failure(helper(model), thread, options)
    assert len(provider.requests) == 3
    assert "too many requests" in error.what
    assert "run it again in" in error.hint
    assert_nothing_was_said(error, thread)


def test_the_error_tells_how_long_the_provider_asks_to_wait(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """Where the provider says for how long, the error passes it on."""
    provider.script(Failure(429, "Slow down.", headers={"retry-after": "7"}))
    assert failure(helper(model), thread, options).hint == "run it again in 7 s"


# ---- it failed after something had been said ----


def test_what_was_said_before_the_failure_is_written_with_its_input(
    provider: Provider, model: str, options: Options, stored: Stored
) -> None:
    """The input and what the assistant had said are in the thread, and the error carries all."""
    stored.mem.append("Earlier.")
    provider.script(
        Reply("Let me look.", ToolCall("look", {"id": 7}), usage=(12, 5)), Failure(500, "Oops.")
    )
    error = failure(helper(model), stored.mem, options)
    turns_of_run = [ASKED, LOOKING]
    assert said(stored.reopened()) == [("user", "Earlier."), *turns_of_run]
    assert said(error.written) == turns_of_run
    assert list(error.written) == list(stored.mem.messages())[1:]
    assert error.conversation == stored.mem.messages()
    assert (error.usage.requests, error.usage.input_tokens, error.usage.output_tokens) == (1, 12, 5)
    [heard] = error.messages[-1].parts
    assert heard.content == "invoice 7 is paid"


def test_a_failure_after_tools_alone_writes_nothing(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """Where the assistant had only called tools it had said nothing, and nothing is written."""
    provider.script(Reply(ToolCall("look", {"id": 7})), Failure(500, "Oops."))
    error = failure(helper(model), thread, options)
    assert said(thread.messages()) == []
    assert error.written == ()
    assert said(error.conversation) == [ASKED]
    assert len(error.messages) == 3
