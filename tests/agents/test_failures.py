"""Failures of a run: what is in the thread after one, what the error says, and what it carries."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import pydantic_ai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from localserver import (
    MODELS,
    Broken,
    Failure,
    Gate,
    Provider,
    Refusal,
    Reply,
    StreamError,
    ToolCall,
    environment,
    serving,
    turns,
)
from pydantic_ai import UsageLimits
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)
from sent import results
from ways import said

import turnlog
from turnlog import Agent, Conversation, Memory, ModelFailed, RunFailed, ToolsFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from programs import Reopened

    from turnlog import MemoryThread, Message

    Kept: TypeAlias = Callable[[], list[Message]]

Options: TypeAlias = dict[str, Any]
Error = TypeVar("Error", bound=BaseException)

QUESTION: Final = "Is it paid?"
ASKED: Final = ("user", QUESTION)
KEYS: Final = {MODELS["anthropic"]: "ANTHROPIC_API_KEY", MODELS["openai"]: "OPENAI_API_KEY"}


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def options(request: pytest.FixtureRequest) -> Options:
    """Give the options of a run that gets its replies whole, and of one that has them streamed."""
    return {"on_text": str} if request.param else {}


@pytest.fixture
def thread(memory: Memory) -> MemoryThread:
    """Give an empty thread."""
    return memory.open("t")


@pytest.fixture
def kept(root: Path, reopened: Reopened) -> Kept:
    """Give what reads the thread in a new process."""
    return lambda: reopened(root, "t")


def look(id: int) -> str:
    """Look an invoice up."""
    return f"invoice {id} is paid"


def helper(model: str, *tools: Any, max_turns: int = 10) -> Agent:
    """Make an agent of ours."""
    return Agent(name="Helper", model=model, tools=tools or [look], max_turns=max_turns)


def failure(agent: Agent, thread: MemoryThread, options: Options) -> RunFailed:
    """Run an agent; give the error that it ends with."""
    with pytest.raises(RunFailed) as caught:
        agent.run(QUESTION, memory=thread, **options)
    return caught.value


def assert_nothing_was_said(error: RunFailed, thread: MemoryThread) -> None:
    """Check that a run without any reply wrote nothing, and that its error tells so."""
    assert said(thread.messages()) == []
    assert error.written == ()
    assert said(error.conversation) == [ASKED]
    assert len(error.messages) == 1
    assert error.usage.requests == 0


# ---- the provider refuses ----

STATUSES: Final = {
    400: ("refused the request", "provider's words"),
    401: ("refused the key", "{key}"),
    403: ("refused the key", "{key}"),
    404: ("knows no model", "look at the model's name"),
    413: ("refused the request", "provider's words"),
    429: ("too many requests", "run it again later"),
    500: ("failed", "run it again later"),
    503: ("failed", "run it again later"),
    529: ("failed", "run it again later"),
}


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
    provider: Provider, model: str, options: Options, thread: MemoryThread, kept: Kept
) -> None:
    """A run that failed without any reply and is tried again has its input once (A08)."""
    provider.script(Failure(500, "Oops."), Failure(529, "Overloaded."), "Yes.")
    agent = helper(model)
    failure(agent, thread, options)
    failure(agent, thread, options)
    agent.run(QUESTION, memory=thread, **options)
    assert turns(provider.requests[-1]) == [ASKED]
    assert said(kept()) == [ASKED, ("assistant", "Yes.")]


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
    provider: Provider, model: str, options: Options, thread: MemoryThread, kept: Kept
) -> None:
    """The input and what the assistant had said are in the thread, and the error carries all."""
    thread.append("Earlier.")
    provider.script(
        Reply("Let me look.", ToolCall("look", {"id": 7}), usage=(12, 5)), Failure(500, "Oops.")
    )
    error = failure(helper(model), thread, options)
    turns_of_run = [ASKED, ("assistant", "Let me look.")]
    assert said(kept()) == [("user", "Earlier."), *turns_of_run]
    assert said(error.written) == turns_of_run
    assert list(error.written) == list(thread.messages())[1:]
    assert error.conversation == thread.messages()
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


# ---- the connection ----


@pytest.mark.usefixtures("provider")
def test_a_provider_that_cannot_be_reached(
    wire: str, monkeypatch: pytest.MonkeyPatch, thread: MemoryThread
) -> None:
    """Where nobody listens the error speaks of the connection and the network; nothing is kept."""
    with serving() as gone:
        pass
    for name, value in environment(gone).items():
        monkeypatch.setenv(name, value)
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
    provider: Provider, model: str, thread: MemoryThread, kept: Kept, end: str
) -> None:
    """The text that was seen is written, marked interrupted, and sent with the next run (A03)."""
    step, what, hint = ENDS[end]
    heard: list[str] = []
    provider.script(Reply("It is ", "pa", step), "It is paid.")
    agent = helper(model)
    error = failure(agent, thread, {"on_text": heard.append})
    assert what in error.what
    assert hint in error.hint
    assert "".join(heard) == "It is pa"
    turns_kept = kept()
    assert said(turns_kept) == [ASKED, ("assistant", "It is pa")]
    assert (turns_kept[1].meta or {})["interrupted"] is True
    assert turns_kept == list(error.written) == list(error.conversation)
    agent.run("Go on.", memory=thread)
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
    assert said(thread.messages()) == [ASKED, ("assistant", "Let me look.")]
    assert agent.run("Go on.", memory=thread).response == "Hello."


def test_a_chat_gives_up_when_its_time_is_over(
    provider: Provider, model: str, options: Options
) -> None:
    """With `timeout=` a chat that gets no answer ends, says so, and leaves the provider alone."""
    provider.script(Reply(Gate()))
    asked = Conversation().add(QUESTION)
    with pytest.raises(ModelFailed) as caught:
        turnlog.chat(asked, model=model, timeout=0.2, on_text=options.get("on_text"))
    assert "gave no reply in time" in caught.value.what
    assert "longer timeout" in caught.value.hint
    assert caught.value.conversation == asked
    assert len(provider.requests) == 1
    provider.disconnected.expect()


# ---- tools ----

BAD_CALLS: Final = {
    "malformed": (ToolCall("look", '{"id": 7'), "the arguments do not fit: "),
    "array": (ToolCall("look", "[7]"), "the arguments do not fit: "),
    "number": (ToolCall("look", "7"), "the arguments do not fit: "),
    "string": (ToolCall("look", '"7"'), "the arguments do not fit: "),
    "null": (ToolCall("look", "null"), "the arguments do not fit: "),
    "missing": (ToolCall("look", {}), "the arguments do not fit: id: Field required"),
    "kind": (ToolCall("look", {"id": "seven"}), "the arguments do not fit: id: Input should be"),
    "unexpected": (ToolCall("look", {"id": 7, "by": 1}), "the arguments do not fit: by: "),
    "unknown": (ToolCall("lookup", {"id": 7}), "there is no tool 'lookup'; the tools are: look"),
}


@pytest.mark.parametrize("bad", BAD_CALLS)
def test_a_call_that_cannot_be_made_goes_back_to_the_model(
    provider: Provider, model: str, options: Options, thread: MemoryThread, bad: str
) -> None:
    """Malformed arguments, ones that do not fit and unknown tools are told; the run goes on."""
    call, words = BAD_CALLS[bad]
    events: list[Any] = []
    provider.script(Reply("Let me look.", call), "I cannot.")
    result = helper(model).run(QUESTION, memory=thread, on_tool_call=events.append, **options)
    assert result.response == "I cannot."
    [told] = results(provider.requests[-1])
    assert f"Error: {words}" in told
    assert [event["event"] for event in events] == ["start", "end"]
    assert events[1]["error"].startswith(words)
    texts = [ASKED, ("assistant", "Let me look."), ("assistant", "I cannot.")]
    assert said(thread.messages()) == texts


def fails() -> str:
    """Fail."""
    raise LookupError("no such invoice")


async def fails_later() -> str:
    """Fail, having waited."""
    await asyncio.sleep(0)
    raise LookupError("no such invoice")


def fails_where_awaited() -> Any:
    """Give something that fails when it is awaited."""
    return fails_later()


def raises_cancelled() -> str:
    """Raise what a cancellation raises, without one."""
    raise asyncio.CancelledError


async def awaits_a_cancelled_task() -> str:
    """Wait for a task that somebody else has cancelled."""
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task
    return "never"


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (fails, "LookupError: no such invoice"),
        (fails_later, "LookupError: no such invoice"),
        (fails_where_awaited, "LookupError: no such invoice"),
        (raises_cancelled, "cancelled"),
        (awaits_a_cancelled_task, "cancelled"),
    ],
)
def test_what_a_tool_raises_goes_back_to_the_model(
    provider: Provider, model: str, thread: MemoryThread, tool: Any, words: str
) -> None:
    """What a sync or an async tool raises is told to the model, a foreign cancellation too."""
    provider.script(Reply(ToolCall(tool.__name__)), "It failed.")
    result = helper(model, tool).run(QUESTION, memory=thread)
    [told] = results(provider.requests[-1])
    assert "Error: " in told
    assert words in told
    assert result.response == "It failed."
    assert said(thread.messages()) == [ASKED, ("assistant", "It failed.")]


HALF: Final = "half a \ud83d"


def fails_in_half() -> str:
    """Fail with half a character in the words."""
    raise LookupError(HALF)


def gives_half() -> dict[str, str]:
    """Give half a character in a map."""
    return {"text": HALF}


class Half:
    """What has half a character for its text."""

    def __str__(self) -> str:
        """Give it."""
        return HALF


def gives_an_object() -> object:
    """Give an object."""
    return Half()


@pytest.mark.parametrize("tool", [fails_in_half, gives_half, gives_an_object])
def test_half_a_character_from_a_tool_is_sent_as_a_whole_one(
    provider: Provider, model: str, thread: MemoryThread, tool: Any
) -> None:
    """What a tool gives or raises with half a character in it is sent with U+FFFD there (C13)."""
    provider.script(Reply(ToolCall(tool.__name__)))
    assert helper(model, tool).run(QUESTION, memory=thread).response == "Hello."
    [told] = results(provider.requests[-1])
    assert "half a \ufffd" in told


@pytest.mark.parametrize(
    "steps", [(" \n", ToolCall("look", {"id": 7})), ("Wait.", ToolCall("look", {"id": 7}), "So.")]
)
def test_a_reply_that_is_no_good_to_send_back_is_mended(
    provider: Provider, model: str, options: Options, thread: MemoryThread, steps: Any
) -> None:
    """White space beside a call, and text behind one, do not make the next request fail (R22)."""
    provider.script(Reply(*steps), "It is paid.")
    result = helper(model).run(QUESTION, memory=thread, **options)
    assert result.response == "It is paid."
    assert results(provider.requests[-1]) == ["invoice 7 is paid"]


def unknown(count: int) -> list[ToolCall]:
    """Give calls of a tool that there is not."""
    return [ToolCall("lookup") for _ in range(count)]


@pytest.mark.parametrize("counts", [(5,), (7,), (2, 3), (1, 1, 1, 1, 3)])
def test_five_failed_calls_in_a_row_end_the_run(
    provider: Provider, model: str, thread: MemoryThread, kept: Kept, counts: tuple[int, ...]
) -> None:
    """The error says what failed last, and the texts that came with the calls are written."""
    provider.script(*[Reply(f"Try {n}.", *unknown(count)) for n, count in enumerate(counts)])
    error = failure(helper(model), thread, {})
    assert isinstance(error, ToolsFailed)
    assert "agent 'Helper'" in error.subject
    assert "5 tool calls in a row failed" in error.what
    assert "there is no tool 'lookup'" in error.what
    assert ".messages" in error.hint
    texts = [ASKED, *[("assistant", f"Try {n}.") for n in range(len(counts))]]
    assert said(kept()) == said(error.conversation) == said(error.written) == texts
    assert error.usage.requests == len(provider.requests) == len(counts)


@pytest.mark.parametrize("bad", [*BAD_CALLS])
def test_the_history_that_an_error_carries_can_be_sent_again(
    provider: Provider, model: str, options: Options, thread: MemoryThread, bad: str
) -> None:
    """A provider takes an error's messages as a history: each call in it has an answer (A04)."""
    call, _ = BAD_CALLS[bad]
    provider.script(Reply("Once.", call, call), Reply("Again.", call, call, call, call))
    error = failure(helper(model), thread, options)

    async def again() -> str:
        async with pydantic_ai.Agent(model) as agent:
            return (await agent.run("And now?", message_history=list(error.messages))).output

    assert asyncio.run(again()) == "Hello."
    assert len(results(provider.requests[-1])) == 6


# ---- limits ----


def test_with_its_turns_used_up_the_last_text_is_the_reply(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """No error: the last round's tools run, the last text is the reply, and is written once."""
    seen: list[int] = []

    def note(id: int) -> str:
        """Note an id."""
        seen.append(id)
        return "noted"

    provider.script(Reply("Let me look.", ToolCall("note", {"id": 1})))
    provider.script(Reply(ToolCall("note", {"id": 2}), ToolCall("note", {"id": 3})))
    result = helper(model, note, max_turns=2).run(QUESTION, memory=thread, **options)
    assert seen == [1, 2, 3]
    assert len(provider.requests) == 2
    assert result.response == "Let me look."
    assert said(thread.messages()) == [ASKED, ("assistant", "Let me look.")]
    assert [part.part_kind for part in result.messages[-1].parts] == ["tool-return"] * 2


def test_with_its_turns_used_up_on_tools_alone_the_reply_is_empty(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """Where no text came the reply is "", and the input is written: the run ended well."""
    provider.script(Reply(ToolCall("look", {"id": 7})))
    result = helper(model, max_turns=1).run(QUESTION, memory=thread, **options)
    assert result.response == ""
    assert said(thread.messages()) == [ASKED]


# ---- a user's own agent of the engine's ----


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
    assert said(thread.messages()) == [ASKED, ("assistant", "Let me look.")]


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
    assert said(thread.messages()) == [ASKED, ("assistant", "Let me look.")]


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


# ---- replies without a text ----


@pytest.mark.parametrize("steps", [(), ("",), (" ",), ("\n\t", " ")])
def test_an_empty_reply_is_no_turn(
    provider: Provider, model: str, options: Options, thread: MemoryThread, steps: Any
) -> None:
    """An empty or white reply is given as it is, without an error; only the input is written."""
    provider.script(Reply(*steps))
    result = helper(model).run(QUESTION, memory=thread, **options)
    assert result.response == "".join(steps)
    assert said(thread.messages()) == said(result.written) == [ASKED]


def test_a_refusal_is_an_error_that_says_so(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """A refusal is no empty reply: the error has the provider's words, and nothing is written."""
    provider.script(Reply(Refusal("I will not.")))
    error = failure(helper(model), thread, options)
    assert isinstance(error, ModelFailed)
    assert "agent 'Helper'" in error.subject
    assert "refused to answer" in error.what
    assert "I will not." in error.what
    assert "in another way" in error.hint
    assert said(thread.messages()) == []
    assert error.written == ()


def test_a_text_that_a_refusal_cut_short_is_kept(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """What was said before the provider's filter stepped in is in the thread, with its input."""
    provider.script(Reply("I can say that", stop="refused"))
    result = helper(model).run(QUESTION, memory=thread, **options)
    assert result.response == "I can say that"
    assert said(thread.messages()) == [ASKED, ("assistant", "I can say that")]


# ---- the caller's own functions ----


class Stop(Exception):
    """Raised by a caller's own function."""


def raising(_: object) -> None:
    """Raise at once."""
    raise Stop


async def raising_later(_: object) -> None:
    """Raise, having waited."""
    await asyncio.sleep(0)
    raise Stop


@pytest.mark.parametrize("on_text", [raising, raising_later])
def test_what_on_text_raises_ends_the_run(
    provider: Provider, model: str, thread: MemoryThread, on_text: Any
) -> None:
    """It comes to the caller as it is, when what was said by then is in the thread."""
    provider.script(Reply("It is ", Gate(), "paid."))
    with pytest.raises(Stop):
        helper(model).run(QUESTION, memory=thread, on_text=on_text)
    assert said(thread.messages()) == [ASKED, ("assistant", "It is ")]
    assert (thread.messages()[-1].meta or {})["interrupted"] is True
    provider.disconnected.expect()


@pytest.mark.parametrize("on_tool_call", [raising, raising_later])
def test_what_on_tool_call_raises_is_ignored(
    provider: Provider, model: str, options: Options, thread: MemoryThread, on_tool_call: Any
) -> None:
    """The tool runs, and the run goes on, as if nobody had listened."""
    provider.script(Reply(ToolCall("look", {"id": 7})), "It is paid.")
    helper(model).run(QUESTION, memory=thread, on_tool_call=on_tool_call, **options)
    assert results(provider.requests[-1]) == ["invoice 7 is paid"]
    assert said(thread.messages()) == [ASKED, ("assistant", "It is paid.")]


def test_an_option_that_there_is_not_is_refused(
    provider: Provider, model: str, thread: MemoryThread
) -> None:
    """A slip in an option's name is a TypeError that names it: no run goes on without memory."""
    agent: Any = helper(model)
    entry: Any = turnlog
    for call in (agent.run, agent.stream, partial(entry.run, agent), partial(entry.stream, agent)):
        with pytest.raises(TypeError, match="memroy"):
            list(call(QUESTION, memroy=thread))
    assert provider.requests == []


# ---- any script ----


class Round(NamedTuple):
    """A reply: the pieces of its text, and the arguments of the calls beside it."""

    pieces: list[str]
    calls: list[str]


GOOD, BAD = '{"id": 7}', '{"id": "seven"}'
PIECES = st.sampled_from(["Yes", "Let me ", "look", " ", "\n", "ß\N{SLIGHTLY SMILING FACE}", "\0"])
ROUNDS = st.lists(
    st.builds(
        Round,
        st.lists(PIECES | st.text(max_size=3), max_size=3),
        st.lists(st.sampled_from([GOOD, BAD]), min_size=1, max_size=4),
    ),
    max_size=5,
)
LAST = st.lists(PIECES, max_size=3).map("".join) | st.none()


class Expected(NamedTuple):
    """What a script of replies comes to.

    Attributes:
        rounds: those that are followed.
        too_many: whether too many calls failed in a row.
        texts: what is said in them.
    """

    rounds: list[Round]
    too_many: bool
    texts: list[str]


def expected(rounds: list[Round]) -> Expected:
    """Tell how far a script is followed, and what is said by then: the model of our loop."""
    failed = 0
    followed: list[Round] = []
    for each in rounds:
        followed.append(each)
        for call in each.calls:
            failed = failed if failed == 5 else failed + 1 if call == BAD else 0
        if failed == 5:
            break
    return Expected(followed, failed == 5, ["".join(each.pieces) for each in followed])


numbers = itertools.count()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.tuples(ROUNDS, LAST), options=st.sampled_from([{}, {"on_text": str}]))
def test_a_thread_has_the_texts_of_any_script_in_order(
    provider: Provider,
    model: str,
    memory: Memory,
    script: tuple[list[Round], str | None],
    options: Options,
) -> None:
    """The turns are the input and each text that is not blank; a failure without any has none."""
    rounds, last = script
    followed, too_many, texts = expected(rounds)
    for pieces, calls in followed:
        provider.script(Reply(*pieces, *[ToolCall("look", call) for call in calls]))
    if not too_many:
        provider.script(Failure(500, "Oops.") if last is None else last)
    thread = memory.open(f"t{next(numbers)}")
    if too_many or last is None:
        written = failure(helper(model), thread, options).written
    else:
        result = helper(model).run(QUESTION, memory=thread, **options)
        assert result.response == last
        texts.append(last)
        written = result.written
    spoken = [("assistant", text) for text in texts if text.strip()]
    nothing = not spoken and (too_many or last is None)
    assert said(thread.messages()) == ([] if nothing else [ASKED, *spoken])
    assert tuple(thread.messages()) == tuple(written)
