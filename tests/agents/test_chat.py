"""Chat: a conversation sent to a model in each way that there is, and what comes of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from localserver import MODELS, Broken, Failure, Provider, Reply, ToolCall, turns
from sent import results, shown
from ways import said

import turnlog
from turnlog import (
    Agent,
    Capability,
    CapabilityDenied,
    Conversation,
    InvalidTurn,
    Memory,
    Message,
    ModelFailed,
    RunFailed,
    RunningLoop,
    ToolsFailed,
    sandbox,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnlog import ToolEvent

EARLIER: Final = Conversation(
    [
        Message("system", "Be brief."),
        Message("user", "My invoice is wrong."),
        Message("assistant", "Which one?"),
    ]
)
WORDS: Final = "Number 7."
QUESTION: Final = ("user", WORDS)
REPLY: Final = ("assistant", "Hello.")


# ---- each way to say something to a model; gives the conversation with the reply ----


def by_chat(conv: Conversation, **options: Any) -> Conversation:
    """Send a conversation from plain code."""
    return conv.add(WORDS).add(turnlog.chat(conv.add(WORDS), **options), role="assistant")


def by_achat(conv: Conversation, **options: Any) -> Conversation:
    """Send a conversation in a loop."""
    reply = asyncio.run(turnlog.achat(conv.add(WORDS), **options))
    return conv.add(WORDS).add(reply, role="assistant")


def by_stream(conv: Conversation, **options: Any) -> Conversation:
    """Read a reply's stream from plain code."""
    stream = turnlog.stream(conv.add(WORDS), **options)
    assert "".join(stream).endswith(stream.result.response)
    return stream.result.conversation


def by_astream(conv: Conversation, **options: Any) -> Conversation:
    """Read a reply's stream in a loop."""

    async def main() -> Conversation:
        stream = turnlog.astream(conv.add(WORDS), **options)
        pieces = [piece async for piece in stream]
        assert "".join(pieces).endswith(stream.result.response)
        return stream.result.conversation

    return asyncio.run(main())


def by_say(conv: Conversation, **options: Any) -> Conversation:
    """Say something from plain code."""
    return conv.say(WORDS, **options)


def by_asay(conv: Conversation, **options: Any) -> Conversation:
    """Say something in a loop."""
    return asyncio.run(conv.asay(WORDS, **options))


def by_say_as(conv: Conversation, **options: Any) -> Conversation:
    """Say something to a model that is told to be something else, from plain code."""
    return conv.say_as("Be kind.", WORDS, **options)


def by_asay_as(conv: Conversation, **options: Any) -> Conversation:
    """Say something to a model that is told to be something else, in a loop."""
    return asyncio.run(conv.asay_as("Be kind.", WORDS, **options))


AS_IT_IS: Final = [by_chat, by_achat, by_stream, by_astream, by_say, by_asay]
AS_ANOTHER: Final = [by_say_as, by_asay_as]

by_each_way = pytest.mark.parametrize("ask", [*AS_IT_IS, *AS_ANOTHER])
by_ways_as_it_is = pytest.mark.parametrize("ask", AS_IT_IS)
by_ways_as_another = pytest.mark.parametrize("ask", AS_ANOTHER)


# ---- what is sent, and what comes back ----


@by_ways_as_it_is
def test_a_conversation_is_sent_as_it_is(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """The model gets each turn with its role and text, and the reply stands behind the question."""
    conv = ask(EARLIER, model=model)
    assert turns(provider.requests[-1]) == [*said(EARLIER), QUESTION]
    assert said(conv) == [*said(EARLIER), QUESTION, REPLY]
    assert len(EARLIER) == 3


@by_ways_as_another
def test_a_model_can_be_something_else_for_once(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """`say_as` sends its own system text alone; the result has the conversation's own again."""
    conv = ask(EARLIER, model=model)
    sent = turns(provider.requests[-1])
    assert sorted(sent) == sorted([("system", "Be kind."), *said(EARLIER)[1:], QUESTION])
    assert said(conv) == [*said(EARLIER), QUESTION, REPLY]


@by_each_way
def test_a_conversations_own_model_is_asked(
    provider: Provider, wire: str, ask: Callable[..., Conversation]
) -> None:
    """Without `model=` it is the conversation's; the given one goes first; both stay what it is."""
    own = Conversation(EARLIER, model=MODELS[wire], metadata={"for": "user-42"})
    other = MODELS["openai" if wire == "anthropic" else "anthropic"]
    for conv in (ask(own), ask(own, model=other), ask(own, model=None)):
        assert (conv.model, conv.metadata) == (own.model, own.metadata)
    asked = [body["model"] for body in provider.requests]
    assert [f":{name}" in MODELS[wire] for name in asked] == [True, False, True]


@pytest.mark.parametrize("ask", [by_stream, by_astream, by_say, by_asay, *AS_ANOTHER])
def test_a_reply_tells_its_model_and_what_it_used(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """The reply's meta has the model and its tokens, as a thread's turn has them."""
    provider.script(Reply("Paid.", usage=(12, 5)))
    [reply] = ask(EARLIER, model=model)[-1:]
    name = model.partition(":")[2]
    assert reply.meta == {"model": name, "input_tokens": 12, "output_tokens": 5}
    assert reply.at is not None


@by_each_way
def test_an_empty_reply_is_no_turn(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """A chat gives ""; what is said stands in the conversation without a reply."""
    provider.script(Reply())
    conv = ask(EARLIER, model=model)
    if ask in {by_chat, by_achat}:
        assert conv.last_reply == ""
    else:
        assert said(conv) == [*said(EARLIER), QUESTION]


def test_a_conversation_goes_on_turn_by_turn(provider: Provider, model: str) -> None:
    """What one saying gives is what the next one sends; each value stays as it was."""
    provider.script("First.", "Second.")
    empty = Conversation(model=model)
    first = empty.say("One.")
    second = first.say("Two.")
    assert said(first) == [("user", "One."), ("assistant", "First.")]
    assert said(second) == [*said(first), ("user", "Two."), ("assistant", "Second.")]
    assert turns(provider.requests[-1]) == [*said(first), ("user", "Two.")]
    assert said(empty) == []


def test_a_model_goes_on_from_its_own_words(provider: Provider, model: str) -> None:
    """A conversation that ends with the assistant's words is sent so (semantics, the engine)."""
    begun = EARLIER.add("I mean").add("number", role="assistant")
    assert turnlog.chat(begun, model=model) == "Hello."
    assert turns(provider.requests[-1]) == said(begun)


def test_chatting_with_a_threads_turns_leaves_the_thread_alone(
    provider: Provider, model: str, memory: Memory
) -> None:
    """What `messages()` gives is sent like any conversation; nothing is written to the thread."""
    thread = memory.open("t")
    thread.extend(EARLIER)
    conv = thread.messages().say(WORDS, model=model)
    assert turns(provider.requests[-1]) == [*said(EARLIER), QUESTION]
    assert said(conv)[-1] == REPLY
    assert said(thread.messages()) == said(EARLIER)


TEXTS = st.text(min_size=1, max_size=8).filter(str.strip)
ROLES = st.sampled_from(["user", "assistant", "system"])
TURNS = st.lists(st.builds(Message, ROLES, TEXTS), max_size=6)
LAST = st.builds(Message, st.sampled_from(["user", "assistant"]), TEXTS)


def of(role: str, sent: list[tuple[str, str]]) -> str:
    """Give what was said in one role; neighbours may be together, white space at the end cut."""
    texts = [text for r, text in sent if r == role and "speaks first" not in text]
    return "\n\n".join(texts).rstrip()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spoken=TURNS, last=LAST)
def test_any_conversation_can_be_sent(
    provider: Provider, model: str, spoken: list[Message], last: Message
) -> None:
    """Whatever roles come in whatever order, the provider takes it, and gets all that was said."""
    conv = Conversation([*spoken, last])
    assert turnlog.chat(conv, model=model) == "Hello."
    sent = turns(provider.requests[-1])
    for role in ("user", "assistant", "system"):
        assert of(role, sent) == of(role, said(conv))


# ---- the options ----


@by_ways_as_it_is
def test_a_system_text_is_sent_beside_the_conversations_own(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """`system=` is sent, the conversation's own system message too, and is no turn of it."""
    conv = ask(EARLIER, model=model, system="Speak French.")
    system = {text for role, text in turns(provider.requests[-1]) if role == "system"}
    assert "Speak French." in "".join(system)
    assert "Be brief." in "".join(system)
    assert said(conv) == [*said(EARLIER), QUESTION, REPLY]


@by_each_way
def test_the_models_settings_are_sent(provider: Provider, ask: Callable[..., Conversation]) -> None:
    """`max_tokens=`, `temperature=` and `reasoning_effort=` are in the request."""
    ask(EARLIER, model="claude-haiku-4-5", max_tokens=99, temperature=0.5)
    assert provider.requests[-1]["max_tokens"] == 99
    assert provider.requests[-1]["temperature"] == 0.5
    ask(EARLIER, model="gpt-5-mini", max_tokens=99, reasoning_effort="high")
    assert provider.requests[-1]["max_completion_tokens"] == 99
    assert provider.requests[-1]["reasoning_effort"] == "high"
    ask(EARLIER, model="gpt-5-mini")
    assert provider.requests[-1]["max_completion_tokens"] == 4096


@by_each_way
def test_each_piece_of_text_is_told_as_it_comes(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """`on_text` gets the pieces in order, whichever way the reply is taken."""
    heard: list[str] = []
    provider.script(Reply("It ", "is ", "paid."))
    conv = ask(EARLIER, model=model, on_text=heard.append)
    assert heard == ["It ", "is ", "paid."]
    assert conv.last_reply == "It is paid."


def look(id: int) -> str:
    """Look an invoice up."""
    return f"invoice {id} is paid"


@by_each_way
def test_tools_run_and_are_told_of(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """A chat's tools are shown, run and answered as an agent's; the texts beside are turns too."""
    events: list[ToolEvent] = []
    provider.script(Reply("Let me look.", ToolCall("look", {"id": 7})), "It is paid.")
    conv = ask(EARLIER, model=model, tools=[look], on_tool_call=events.append)
    assert [tool.name for tool in shown(provider.requests[0])] == ["look"]
    assert results(provider.requests[-1]) == ["invoice 7 is paid"]
    assert [event["event"] for event in events] == ["start", "end"]
    assert conv.last_reply == "It is paid."
    if ask not in {by_chat, by_achat, by_stream, by_astream}:
        assert said(conv)[-2:] == [("assistant", "Let me look."), ("assistant", "It is paid.")]


@by_each_way
def test_tools_can_be_shown_without_being_run(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """With `tool_mode="none"` the model sees the tools, none runs, and the reply is its text."""
    events: list[ToolEvent] = []
    provider.script(Reply("I would look.", ToolCall("look", {"id": 7})))
    options: Any = {"tools": [look], "tool_mode": "none", "on_tool_call": events.append}
    conv = ask(EARLIER, model=model, **options)
    assert [tool.name for tool in shown(provider.requests[0])] == ["look"]
    assert (len(provider.requests), events) == (1, [])
    assert conv.last_reply == "I would look."


@by_each_way
def test_rounds_of_tools_are_limited(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """With `max_tool_rounds` used up the last text is the reply, and the last tools have run."""
    seen: list[int] = []

    def note(id: int) -> str:
        """Note an id."""
        seen.append(id)
        return "noted"

    provider.script(Reply("One.", ToolCall("note", {"id": 1})), Reply(ToolCall("note", {"id": 2})))
    conv = ask(EARLIER, model=model, tools=[note], max_tool_rounds=2)
    assert seen == [1, 2]
    assert len(provider.requests) == 2
    assert conv.last_reply == "One."


def test_ten_rounds_are_made_unless_told_otherwise(provider: Provider, model: str) -> None:
    """A model that never stops to call its tools is asked ten times."""
    provider.reply = Reply("Again.", ToolCall("look", {"id": 7}))
    assert turnlog.chat(EARLIER.add(WORDS), model=model, tools=[look]) == "Again."
    assert len(provider.requests) == 10


# ---- what is no good ----


@by_each_way
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"tool_mode": "perhaps"}, "'auto' or 'none'"),
        ({"reasoning_effort": "lots"}, "use one of none"),
        ({"max_tool_rounds": 0}, "1 or more"),
        ({"max_tool_rounds": "2"}, "1 or more"),
    ],
)
def test_an_option_that_is_no_good_is_refused(
    provider: Provider, model: str, ask: Callable[..., Conversation], option: Any, words: str
) -> None:
    """The error names the option, what was given and what may be; nothing is asked."""
    [(name, value)] = option.items()
    with pytest.raises(InvalidTurn) as caught:
        ask(EARLIER, model=model, **option)
    assert caught.value.what == f"{name} is {value!r}"
    assert words in caught.value.hint
    assert provider.requests == []


@by_each_way
def test_an_option_that_there_is_not_is_refused(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """A slip in an option's name is a TypeError that names it, as of any function."""
    with pytest.raises(TypeError, match="temprature"):
        ask(EARLIER, model=model, temprature=0)
    assert provider.requests == []


@pytest.mark.parametrize(
    "conv", [Conversation(), Conversation([Message("user", " \n"), Message("assistant", "")])]
)
def test_a_conversation_without_any_text_is_refused(
    provider: Provider, model: str, conv: Conversation
) -> None:
    """There is nothing to send: the error says so, and what to do; nothing is asked."""
    with pytest.raises(InvalidTurn, match="no text to send to a model; add what the user says"):
        turnlog.chat(conv, model=model)
    assert provider.requests == []


# ---- failures ----


@by_each_way
def test_an_error_leaves_the_conversation_as_it_was(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """A failed saying changes nothing: the error carries what was said, the value is the old."""
    before = Conversation(EARLIER)
    provider.script(Failure(500, "Oops."))
    with pytest.raises(ModelFailed) as caught:
        ask(before, model=model)
    assert before == EARLIER
    error = caught.value
    assert error.subject == "conversation"
    assert "status 500: Oops." in error.what
    assert said(error.conversation)[-3:] == [*said(EARLIER)[1:], QUESTION]
    assert error.usage.requests == 0
    assert error.written == ()
    assert len(provider.requests) == 1


@by_each_way
def test_a_failed_chat_carries_what_was_said_in_it(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """The error of a chat that failed after a first text has it, with the engine's messages."""
    provider.script(Reply("Let me look.", ToolCall("look", {"id": 7})), Failure(500, "Oops."))
    with pytest.raises(ModelFailed) as caught:
        ask(EARLIER, model=model, tools=[look])
    assert said(caught.value.conversation)[-2:] == [QUESTION, ("assistant", "Let me look.")]
    assert caught.value.usage.requests == 1
    assert caught.value.messages[-1].parts[0].content == "invoice 7 is paid"


@pytest.mark.parametrize("ask", [by_stream, by_astream])
def test_a_stream_that_breaks_gives_what_came_and_then_the_error(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """The reader has had the pieces; the error's conversation ends with them, interrupted."""
    heard: list[str] = []
    provider.script(Reply("It is ", "pa", Broken()))
    with pytest.raises(ModelFailed, match="the connection to") as caught:
        ask(EARLIER, model=model, on_text=heard.append)
    assert heard == ["It is ", "pa"]
    last = caught.value.conversation[-1]
    assert (last.content, last.meta["interrupted"]) == ("It is pa", True)


@by_each_way
def test_five_failed_calls_end_a_chat_too(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """A chat has the rule of five; its error carries the history, with an answer to each call."""
    provider.script(Reply("Try.", *[ToolCall("lookup")] * 6))
    with pytest.raises(ToolsFailed, match="5 tool calls in a row failed") as caught:
        ask(EARLIER, model=model, tools=[look])
    assert isinstance(caught.value, RunFailed)
    assert len(caught.value.messages[-1].parts) == 6
    assert said(caught.value.conversation)[-1] == ("assistant", "Try.")


# ---- where it may not be ----

AGENT: Final = Agent(model="offline")
ASKED: Final = Conversation(model="offline").add(WORDS)
ANY: Final[Any] = turnlog

BLOCKING: Final[dict[str, tuple[Callable[[], object], str]]] = {
    "chat": (lambda: ANY.chat(ASKED), "achat"),
    "say": (lambda: ASKED.say(WORDS), "asay"),
    "say_as": (lambda: ASKED.say_as("Be kind.", WORDS), "asay_as"),
    "stream": (lambda: next(ANY.stream(ASKED)), "astream"),
    "run": (lambda: ANY.run(AGENT, WORDS), "arun"),
    "Agent.run": (lambda: AGENT.run(WORDS), "arun"),
    "Agent.stream": (lambda: next(AGENT.stream(WORDS)), "astream"),
    "turnlog.stream of an agent": (lambda: next(ANY.stream(AGENT, WORDS)), "astream"),
}


@pytest.mark.parametrize("name", BLOCKING)
def test_a_call_that_blocks_is_refused_in_a_running_loop(name: str) -> None:
    """The error says that a loop runs, and names what to await instead; nothing is left behind."""
    call, instead = BLOCKING[name]

    async def main() -> RunningLoop:
        with pytest.raises(RunningLoop) as caught:
            call()
        return caught.value

    error = asyncio.run(main())
    assert isinstance(error, RuntimeError)
    assert "event loop" in error.what
    assert error.hint.split()[-1] == instead
    call()  # outside of a loop it works


def test_what_blocks_works_beside_a_running_loop() -> None:
    """In another thread than the loop's, a call that blocks is right."""

    async def main() -> object:
        return await asyncio.to_thread(BLOCKING["chat"][0])

    assert "offline" in str(asyncio.run(main()))


@by_each_way
def test_a_sandbox_can_take_the_model_away(
    provider: Provider, model: str, ask: Callable[..., Conversation]
) -> None:
    """Without the capability LLM nothing is asked, and the error has the form of all (R17)."""
    with (
        sandbox(deny=Capability.LLM),
        pytest.raises(
            CapabilityDenied, match=r"Permission denied: llm/chat requires 'llm' capability"
        ),
    ):
        ask(EARLIER, model=model)
    assert provider.requests == []
    assert said(ask(EARLIER, model=model))[-1] == REPLY


@pytest.mark.parametrize("run", ["run", "stream"])
def test_a_sandbox_can_take_the_model_away_from_a_run(
    provider: Provider, model: str, memory: Memory, run: str
) -> None:
    """A run in such a sandbox asks nothing and writes nothing (R17)."""
    thread = memory.open("t")
    agent: Any = Agent(name="Helper", model=model)
    with (
        sandbox(deny=Capability.LLM),
        pytest.raises(
            CapabilityDenied, match=r"Permission denied: agent/run requires 'llm' capability"
        ),
    ):
        list(getattr(agent, run)(WORDS, memory=thread))
    assert provider.requests == []
    assert said(thread.messages()) == []
