"""Calls and tools that fail, and replies with calls: what goes back to the model, what is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pydantic_ai
import pytest
from dialogue import ASKED, LOOKING
from failing import QUESTION, Options, fails, fails_later, failure, helper, unknown
from localserver import Provider, Reply, ToolCall
from sent import results
from ways import said

from turnlog import ToolsFailed

if TYPE_CHECKING:
    from programs import Stored

    from turnlog import MemoryThread


# ---- what goes back to the model ----

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
    texts = [ASKED, LOOKING, ("assistant", "I cannot.")]
    assert said(thread.messages()) == texts


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


# ---- too many that failed ----


@pytest.mark.parametrize("counts", [(5,), (7,), (2, 3), (1, 1, 1, 1, 3)])
def test_five_failed_calls_in_a_row_end_the_run(
    provider: Provider, model: str, stored: Stored, counts: tuple[int, ...]
) -> None:
    """The error says what failed last, and the texts that came with the calls are written."""
    provider.script(*[Reply(f"Try {n}.", *unknown(count)) for n, count in enumerate(counts)])
    error = failure(helper(model), stored.mem, {})
    assert isinstance(error, ToolsFailed)
    assert "agent 'Helper'" in error.subject
    assert "5 tool calls in a row failed" in error.what
    assert "there is no tool 'lookup'" in error.what
    assert ".messages" in error.hint
    texts = [ASKED, *[("assistant", f"Try {n}.") for n in range(len(counts))]]
    assert said(stored.reopened()) == said(error.conversation) == said(error.written) == texts
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
    assert said(thread.messages()) == [ASKED, LOOKING]
    assert [part.part_kind for part in result.messages[-1].parts] == ["tool-return"] * 2


def test_with_its_turns_used_up_on_tools_alone_the_reply_is_empty(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """Where no text came the reply is "", and the input is written: the run ended well."""
    provider.script(Reply(ToolCall("look", {"id": 7})))
    result = helper(model, max_turns=1).run(QUESTION, memory=thread, **options)
    assert result.response == ""
    assert said(thread.messages()) == [ASKED]
