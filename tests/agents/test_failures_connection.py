"""A connection that fails: before an answer, in the middle of one, and where none comes in time."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Final

import pytest
from dialogue import ASKED, LOOKING
from failing import QUESTION, Options, assert_nothing_was_said, failure, helper
from localserver import (
    MODELS,
    Broken,
    Gate,
    Provider,
    Reply,
    StreamError,
    ToolCall,
    environment,
    serving,
    turns,
)
from ways import said

import turnlog
from turnlog import Conversation, ModelFailed

if TYPE_CHECKING:
    from programs import Stored

    from turnlog import MemoryThread


@pytest.mark.usefixtures("provider")
def test_a_provider_that_cannot_be_reached(
    wire: str, monkeypatch: pytest.MonkeyPatch, thread: MemoryThread
) -> None:
    """Where nobody listens the error speaks of the connection and the network; nothing is kept."""
    with serving() as gone:
        pass
    with socket.socket() as taken:  # a port of its own, so that nobody else listens there either
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for name, value in environment(gone).items():
            monkeypatch.setenv(name, re.sub(r"(?<=:)\d+", str(port), value))
        error = failure(helper(MODELS[wire]), thread, {})
    assert isinstance(error, ModelFailed)
    assert "agent 'Helper'" in error.subject
    assert "the connection to" in error.what
    assert "network" in error.hint
    assert_nothing_was_said(error, thread)


def test_a_connection_that_breaks_before_the_answer(
    provider: Provider, model: str, thread: MemoryThread
) -> None:
    """Where the answer never begins the client tries again, and then nothing is written."""
    provider.script(*[Reply(Broken())] * 3)
    error = failure(helper(model), thread, {})
    assert len(provider.requests) == 3
    assert "the connection to" in error.what
    assert_nothing_was_said(error, thread)


ENDS: Final = {
    "broken": (Broken(), "the connection to", "network"),
    "error": (StreamError("Overloaded."), "Overloaded.", "run it again"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_stream_that_ends_before_any_text(
    provider: Provider, model: str, thread: MemoryThread, end: str
) -> None:
    """A stream that begins and breaks, or brings an error, before any text leaves nothing."""
    step, what, hint = ENDS[end]
    provider.script(Reply("", step))
    error = failure(helper(model), thread, {"on_text": str})
    assert isinstance(error, ModelFailed)
    assert what in error.what
    assert hint in error.hint
    assert_nothing_was_said(error, thread)


@pytest.mark.parametrize("end", ENDS)
def test_a_stream_that_ends_after_some_text(
    provider: Provider, model: str, stored: Stored, end: str
) -> None:
    """The text that was seen is written, marked interrupted, and sent with the next run (A03)."""
    step, what, hint = ENDS[end]
    heard: list[str] = []
    provider.script(Reply("It is ", "pa", step), "It is paid.")
    agent = helper(model)
    error = failure(agent, stored.mem, {"on_text": heard.append})
    assert what in error.what
    assert hint in error.hint
    assert "".join(heard) == "It is pa"
    turns_kept = stored.reopened()
    assert said(turns_kept) == [ASKED, ("assistant", "It is pa")]
    assert (turns_kept[1].meta or {})["interrupted"] is True
    assert turns_kept == list(error.written) == list(error.conversation)
    agent.run("Go on.", memory=stored.mem)
    assert turns(provider.requests[-1]) == [ASKED, ("assistant", "It is pa"), ("user", "Go on.")]


def test_a_stream_that_breaks_in_a_tool_call_runs_no_tool(
    provider: Provider, model: str, thread: MemoryThread
) -> None:
    """The text beside a call that never came whole is kept, and the thread can be sent (A04)."""
    provider.script(Reply("Let me look.", ToolCall("look", {"id": 7}), Broken()))
    calls: list[object] = []
    agent = helper(model)
    failure(agent, thread, {"on_text": str, "on_tool_call": calls.append})
    assert calls == []
    assert said(thread.messages()) == [ASKED, LOOKING]
    assert agent.run("Go on.", memory=thread).response == "Hello."


def test_a_chat_gives_up_when_its_time_is_over(
    provider: Provider, model: str, options: Options
) -> None:
    """With `timeout=` a chat that gets no answer ends, says so, and leaves the provider alone."""
    provider.script(Reply(Gate()))
    asked = Conversation().add(QUESTION)
    with pytest.raises(ModelFailed) as caught:
        turnlog.chat(asked, model=model, timeout=3, on_text=options.get("on_text"))
    assert "gave no reply in time" in caught.value.what
    assert "longer timeout" in caught.value.hint
    assert caught.value.conversation == asked
    provider.disconnected.expect()
    assert len(provider.requests) == 1
