"""Replies that end before their end, or hold no text: marked where cut, an error where empty."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pydantic_ai
import pytest
from dialogue import ASKED, LOOK, LOOKING, lookup
from failing import QUESTION, Options, failure, helper
from localserver import MODELS, Provider, Reply, Thinking
from pydantic_ai.exceptions import UnexpectedModelBehavior
from ways import UNPOOLED, said

import turnlog
from turnlog import Conversation, CutReplyWarning, ModelFailed

if TYPE_CHECKING:
    from programs import Stored
    from ways import Make

    from turnlog import MemoryThread, Message

CUT = ("assistant", "It is")
REASONS: dict[Any, str] = {"length": "length", "refused": "content_filter"}


def reason(turn: Message) -> object:
    """Give why a turn ends."""
    return (turn.meta or {}).get("finish_reason")


# ---- cut, with a text ----


@pytest.mark.parametrize("stop", REASONS)
def test_a_reply_that_was_cut_is_marked(  # noqa: PLR0913, PLR0917 - a table's row
    provider: Provider, model: str, make: Make, options: Options, stored: Stored, stop: Any
) -> None:
    """A reply cut at the limit of tokens, or by a filter, is a turn whose meta says so (A15)."""
    provider.script(Reply("It ", "is", stop=stop), "Yes.")
    result = turnlog.run(make(model), QUESTION, memory=stored.mem, **options)
    assert result.response == CUT[1]
    turnlog.run(make(model), "Go on.", memory=stored.mem, **options)
    assert said(stored.reopened())[:2] == [ASKED, CUT]
    expected = [None, REASONS[stop], None, None]
    assert [reason(turn) for turn in stored.reopened()] == expected
    assert reason(result.conversation[-1]) == REASONS[stop]


def test_the_result_of_a_stream_tells_that_it_was_cut(provider: Provider, one_model: str) -> None:
    """The last turn of a stream's conversation is marked, of an agent's and a chat's (A15)."""
    provider.script(*[Reply("It ", "is", stop="length")] * 2)
    asked = Conversation().add(QUESTION)
    for stream in (
        turnlog.stream(helper(one_model), QUESTION),
        turnlog.stream(asked, model=one_model),
    ):
        assert "".join(stream) == CUT[1]
        assert reason(stream.result.conversation[-1]) == "length"


def test_a_chat_warns_of_a_reply_that_was_cut(provider: Provider, model: str) -> None:
    """`chat` gives the text alone, so it warns that the text was cut; `say` marks it (A15)."""
    asked = Conversation().add(QUESTION)
    provider.script(*[Reply("It is", stop="length")] * 2)
    with pytest.warns(CutReplyWarning, match="limit of tokens; give a greater max_tokens"):
        assert turnlog.chat(asked, model=model) == CUT[1]
    assert reason(Conversation().say(QUESTION, model=model)[-1]) == "length"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert turnlog.chat(asked, model=model) == "Hello."


# ---- no text ----

EMPTY: list[Any] = [
    pytest.param(Reply(stop="length"), "limit of tokens before it said", id="length"),
    pytest.param(Reply(Thinking("Hm."), stop="length"), "while it was thinking", id="both"),
    pytest.param(Reply(Thinking("Hm."), " ", stop="length"), "while it was", id="blank"),
    pytest.param(Reply(Thinking("Hm.")), "thought, but said nothing", id="thought"),
    pytest.param(Reply(stop="refused"), "refused to answer", id="refused"),
]


@pytest.mark.parametrize(("reply", "what"), EMPTY)
def test_a_run_without_a_text_says_why(  # noqa: PLR0913, PLR0917 - a table's row
    provider: Provider, model: str, options: Options, thread: MemoryThread, reply: Reply, what: str
) -> None:
    """No text for such a reason is an error that says so, and nothing is written (A15, A08)."""
    provider.script(reply)
    error = failure(helper(model), thread, options)
    assert isinstance(error, ModelFailed)
    assert what in error.what
    assert model.partition(":")[2] in error.what
    assert said(thread.messages()) == []


@pytest.mark.parametrize(("reply", "what"), EMPTY)
def test_a_chat_without_a_text_says_why(
    provider: Provider, one_model: str, reply: Reply, what: str
) -> None:
    """`chat`, `say` and `stream` raise the same error for it (A15)."""
    asked = Conversation().add(QUESTION)
    provider.script(*[reply] * 3)
    for ask in (
        lambda: turnlog.chat(asked, model=one_model),
        lambda: asked.say("So?", model=one_model),
        lambda: list(turnlog.stream(asked, model=one_model)),
    ):
        with pytest.raises(ModelFailed, match=what):
            ask()


def test_a_run_that_ends_in_thoughts_keeps_what_was_said(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """What came beside tools is written with its input, and the error tells of it (A15, R23)."""
    provider.script(Reply(LOOKING[1], LOOK), Reply(Thinking("Hm."), stop="length"))
    error = failure(helper(model, lookup), thread, options)
    assert "while it was thinking" in error.what
    assert said(thread.messages()) == said(error.written) == [ASKED, LOOKING]


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
def test_an_agent_of_pydantic_ais_without_a_text_says_why(
    provider: Provider, wire: str, options: Options, thread: MemoryThread
) -> None:
    """pydantic-ai's own error names the limit of tokens; nothing is written (A15)."""
    provider.script(Reply(Thinking("Hm."), stop="length"))
    agent = pydantic_ai.Agent(MODELS[wire], model_settings=UNPOOLED)
    with pytest.raises(UnexpectedModelBehavior, match="token limit") as raised:
        turnlog.run(agent, QUESTION, memory=thread, **options)
    assert any("nothing was written back" in note for note in raised.value.__notes__)
    assert said(thread.messages()) == []
