"""Runs of pydantic-ai agents that rewrite their own messages: the thread has all that was said."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pydantic_ai
import pytest
from dialogue import ASKED, PAID
from localserver import Broken, Failure, Gate, Reply, ToolCall
from pydantic_ai import RunContext, UsageLimitExceeded, UsageLimits
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)
from ways import UNPOOLED, WAYS, said

import turnlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from localserver import Provider
    from programs import Stored
    from pydantic_ai.models import ModelRequestContext
    from ways import Perform

    from turnlog import Message

STEPS = [("assistant", f"Step {number}.") for number in range(1, 6)]
MORE = ("user", "Also look at invoice 8, please.")


@pytest.fixture(params=["run", "astream"])
def perform(request: pytest.FixtureRequest) -> Perform:
    """Give two ways to run an agent: one has its replies whole, one streamed."""
    return WAYS[request.param]


def last_four(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Keep the last four messages."""
    return messages[-4:]


def copied(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Keep copies of all messages, with other texts in those of the model."""
    return [
        ModelResponse([TextPart("...")], timestamp=message.timestamp)
        if isinstance(message, ModelResponse) and not message.tool_calls
        else message
        for message in messages
    ]


def forgetting(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Keep the last two messages alone, behind another input."""
    if len(messages) <= 2:
        return messages
    return [ModelRequest([UserPromptPart("Go on.")]), *messages[-2:]]


PROCESSORS = [last_four, copied, forgetting]
MODES: list[Any] = [True, "eager"]


def agent(model: str, processor: Any = None, *tools: Any) -> pydantic_ai.Agent[None, str]:
    """Make an agent of pydantic-ai's whose history goes through a processor."""
    capabilities: list[Any] = [ProcessHistory(processor)] if processor else []
    return pydantic_ai.Agent(
        model, capabilities=capabilities, tools=tools or [look], model_settings=UNPOOLED
    )


def look() -> str:
    """Look."""
    return "ok"


def steps() -> list[Reply]:
    """Give five replies that ask for a tool."""
    return [Reply(text, ToolCall("look")) for _, text in STEPS]


# ---- texts ----


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_trims_its_own_messages_is_written_whole(  # noqa: PLR0913, PLR0917 - a table's row
    provider: Provider, one_model: str, perform: Perform, stored: Stored, processor: Any, mode: Any
) -> None:
    """Every text is written once, in order, whatever a history processor does (A10, R21)."""
    mem = stored.mem.append("Hello?").append("Hi.", role="assistant")
    provider.script(*steps(), "It is paid.")
    result = perform(agent(one_model, processor), ASKED[1], memory=mem, writeback=mode)
    assert result.response == "It is paid."
    assert said(stored.reopened())[2:] == said(result.written) == [ASKED, *STEPS, PAID]
    assert said(result.conversation)[2:] == [ASKED, *STEPS, PAID]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_trims_and_then_hits_a_limit(
    provider: Provider, one_model: str, perform: Perform, stored: Stored, mode: Any
) -> None:
    """What a run had said that trims its messages is written where a limit ends it (A10, R23)."""
    provider.script(*steps(), "It is paid.")
    with pytest.raises(UsageLimitExceeded) as raised:
        perform(
            agent(one_model, forgetting),
            ASKED[1],
            memory=stored.mem,
            writeback=mode,
            usage_limits=UsageLimits(request_limit=3),
        )
    assert said(stored.reopened()) == [ASKED, *STEPS[:3]]
    assert any("4 turns written back" in note for note in raised.value.__notes__)


def test_a_reply_that_a_limit_of_tokens_stops_is_written(
    provider: Provider, one_model: str, perform: Perform, stored: Stored
) -> None:
    """A reply that the limit of tokens counts out is in the thread, marked interrupted (R23)."""
    provider.script(Reply("It is paid.", usage=(10, 50)))
    limits = UsageLimits(total_tokens_limit=20)
    with pytest.raises(UsageLimitExceeded):
        perform(agent(one_model, forgetting), ASKED[1], memory=stored.mem, usage_limits=limits)
    assert said(stored.reopened()) == [ASKED, PAID]
    assert interrupted(stored.mem.messages()[-1])


def test_a_stream_breaks_in_a_run_that_trims(
    provider: Provider, model: str, stored: Stored
) -> None:
    """A stream that breaks off leaves all that came before, and what was seen of it (A10)."""
    provider.script(*steps()[:2], Reply("It is ", "pa", Broken()))
    with pytest.raises(ModelAPIError):
        turnlog.run(agent(model, forgetting), ASKED[1], memory=stored.mem, on_text=str)
    assert said(stored.reopened()) == [ASKED, *STEPS[:2], ("assistant", "It is pa")]
    assert interrupted(stored.mem.messages()[-1])


def test_a_run_that_trims_is_cancelled(provider: Provider, one_model: str, stored: Stored) -> None:
    """Stopped, a run that trims its messages has written back all that it said (A10, R23)."""
    provider.script(*steps()[:2], Reply("It is ", Gate(), "paid."))

    async def stopped() -> None:
        def hear(piece: str) -> None:
            if piece == "It is ":
                task.cancel()

        bot = agent(one_model, forgetting)
        task = asyncio.create_task(turnlog.arun(bot, ASKED[1], memory=stored.mem, on_text=hear))
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(stopped())
    assert said(stored.reopened()) == [ASKED, *STEPS[:2], ("assistant", "It is ")]
    assert interrupted(stored.mem.messages()[-1])


def test_a_run_that_trims_is_cancelled_before_its_reply_is_whole(
    provider: Provider, one_model: str, stored: Stored
) -> None:
    """Of a reply that is not streamed nothing is known; all before it is written (A10, R23)."""
    gate = Gate()
    provider.script(*steps()[:2], Reply(gate, "It is paid."))

    async def stopped() -> None:
        bot = agent(one_model, forgetting)
        task = asyncio.create_task(turnlog.arun(bot, ASKED[1], memory=stored.mem))
        await gate.reached.aexpect()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(stopped())
    assert said(stored.reopened()) == [ASKED, *STEPS[:2]]


def interrupted(turn: Message) -> bool:
    """Say whether a turn is marked."""
    return (turn.meta or {}).get("interrupted") is True


# ---- what the user says meanwhile ----


def enqueues(*content: Any, priority: Any = "asap") -> Callable[..., str]:
    """Make a tool during which the user writes again."""

    def look(context: RunContext[None]) -> str:
        """Look, while the user writes."""
        context.enqueue(*content, priority=priority)
        return "ok"

    return look


BOTH = ("assistant", "7 is paid, 8 is not.")


@pytest.mark.parametrize("processor", [None, forgetting])
@pytest.mark.parametrize("mode", MODES)
def test_what_the_user_writes_while_the_agent_works_is_a_turn(  # noqa: PLR0913, PLR0917 - a table's row
    provider: Provider, model: str, perform: Perform, stored: Stored, processor: Any, mode: Any
) -> None:
    """A message that is enqueued in a tool is a user's turn, ahead of the reply to it (A11)."""
    provider.script(Reply("Let me look.", ToolCall("look")), BOTH[1])
    bot = agent(model, processor, enqueues(MORE[1]))
    result = perform(bot, ASKED[1], memory=stored.mem, writeback=mode)
    turns = [ASKED, ("assistant", "Let me look."), MORE, BOTH]
    assert said(stored.reopened()) == said(result.written) == turns
    assert said(result.conversation) == turns


@pytest.mark.parametrize("mode", MODES)
def test_what_the_user_writes_for_when_the_agent_is_done(
    provider: Provider, one_model: str, perform: Perform, stored: Stored, mode: Any
) -> None:
    """A message that waits for the reply is a turn behind it, and has a reply of its own (A11)."""
    provider.script(ToolReply(), "It is paid.", "8 is not.")
    bot = agent(one_model, None, enqueues(MORE[1], priority="when_idle"))
    result = perform(bot, ASKED[1], memory=stored.mem, writeback=mode)
    assert result.response == "8 is not."
    assert said(stored.reopened()) == [ASKED, PAID, MORE, ("assistant", "8 is not.")]


def ToolReply() -> Reply:  # noqa: N802 - it is made like a Reply
    """Give a reply that only asks for the tool."""
    return Reply(ToolCall("look"))


def test_what_the_user_writes_while_the_history_is_processed(
    provider: Provider, one_model: str, perform: Perform, stored: Stored
) -> None:
    """A message that comes while a hook works on the request is a turn too, once (A11)."""

    class Slow(AbstractCapability[Any]):
        async def before_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            if ctx.run_step == 1:
                ctx.enqueue(MORE[1])
            return request_context

    provider.script(BOTH[1])
    bot = pydantic_ai.Agent(one_model, capabilities=[Slow()], model_settings=UNPOOLED)
    perform(bot, ASKED[1], memory=stored.mem)
    assert said(stored.reopened()) == [ASKED, MORE, BOTH]


@pytest.mark.parametrize("on_text", [None, str])
def test_a_run_is_stopped_before_the_reply_to_what_the_user_wrote_meanwhile(
    provider: Provider, one_model: str, stored: Stored, on_text: Any
) -> None:
    """Stopped before the reply, the thread has what the user wrote meanwhile (A11, A01)."""
    gate = Gate()
    provider.script(ToolReply(), Reply(gate, "x"))

    async def stopped() -> None:
        bot = agent(one_model, forgetting, enqueues(MORE[1]))
        task = asyncio.create_task(turnlog.arun(bot, ASKED[1], memory=stored.mem, on_text=on_text))
        await gate.reached.aexpect()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(stopped())
    assert said(stored.reopened()) == [ASKED, MORE]


def test_a_run_is_stopped_before_what_the_user_wrote_meanwhile_is_sent(
    provider: Provider, one_model: str, stored: Stored
) -> None:
    """What waits to be sent when the run is stopped is the thread's last turn (A11, A01)."""
    written = asyncio.Event()

    async def hang(context: RunContext[None]) -> str:
        """Hang, while the user writes."""
        context.enqueue(MORE[1])
        written.set()
        await asyncio.Event().wait()
        return "never"

    provider.script(Reply("Let me look.", ToolCall("hang")))

    async def stopped() -> None:
        task = asyncio.create_task(
            turnlog.arun(agent(one_model, None, hang), ASKED[1], memory=stored.mem)
        )
        await written.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(stopped())
    assert said(stored.reopened()) == [ASKED, ("assistant", "Let me look."), MORE]


def test_a_run_that_fails_without_a_word_writes_nothing_of_what_the_user_wrote_meanwhile(
    provider: Provider, one_model: str, stored: Stored
) -> None:
    """A run without any reply writes nothing, so that trying again doubles nothing (A08, A11)."""
    provider.script(ToolReply(), Failure(500, "Oops."))
    with pytest.raises(ModelAPIError) as raised:
        turnlog.run(agent(one_model, None, enqueues(MORE[1])), ASKED[1], memory=stored.mem)
    assert said(stored.reopened()) == []
    assert any("nothing was written back" in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    ("content", "turns"),
    [
        ([SystemPromptPart("Be quick.")], []),
        (["See:", BinaryContent(b"\x89PNG", media_type="image/png")], [("user", "See:")]),
        (
            [ModelResponse([TextPart("I was told.")]), ModelRequest([UserPromptPart("By whom?")])],
            [("assistant", "I was told."), ("user", "By whom?")],
        ),
        ([" "], []),
    ],
)
def test_what_else_may_be_enqueued(
    provider: Provider, one_model: str, stored: Stored, content: Any, turns: Any
) -> None:
    """Texts of the user's and of the assistant's are turns; a system text is none (A11, R22)."""
    provider.script(ToolReply(), "It is paid.")
    turnlog.run(agent(one_model, None, enqueues(*content)), ASKED[1], memory=stored.mem)
    assert said(stored.reopened()) == [ASKED, *turns, PAID]
