"""Writeback: what of a run is in the thread afterwards, in which order, and when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pydantic_ai
import pytest
from dialogue import ASKED, HELLO, LOOK, LOOKING, PAID, lookup
from localserver import Gate, Provider, Reply, Thinking, ToolCall, turns
from pydantic import BaseModel
from pydantic_ai import BinaryContent, ImageUrl, NativeOutput, PromptedOutput, TextOutput
from pydantic_ai.messages import CachePoint, StructuredContent, TextContent
from ways import UNPOOLED, ours, said

import turnlog
from turnlog import (
    InvalidTurn,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from programs import Stored
    from ways import Make, Perform


# ---- what is written ----


def test_the_input_and_each_text_are_written_in_order_and_once(
    provider: Provider, model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """The input and each text, also the one beside a tool call, are turns, once, in order (R21)."""
    provider.script(Reply("Let me ", "look.", LOOK), "It is paid.")
    mem = stored.mem.append("Hello?").append("Hello!", role="assistant")
    result = perform(make(model, tools=[lookup]), "Is it paid?", memory=mem)
    assert said(result.written) == [ASKED, LOOKING, PAID]
    assert list(mem.messages())[2:] == list(result.written)
    assert stored.reopened() == list(mem.messages())


def test_one_unit_holds_the_whole_run(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """A run's turns are one atomic unit of the file, as its lines say (R21)."""
    provider.script(Reply("Let me look.", LOOK), "It is paid.")
    turnlog.run(make(model, tools=[lookup]), "Is it paid?", memory=stored.mem)
    assert [(line.get("more"), line.get("unit")) for line in stored.lines()] == [
        (True, None),
        (True, None),
        (None, 3),
    ]


def test_nothing_is_on_disk_until_the_run_has_ended(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """A run writes at its end, so that another process never finds half of it (R21)."""
    gate = Gate()
    provider.script(Reply("Let me look.", LOOK), Reply(gate, "It is paid."))

    async def main() -> None:
        agent = make(model, tools=[lookup])
        task = asyncio.create_task(turnlog.arun(agent, "Is it paid?", memory=stored.mem))
        await gate.reached.aexpect()
        assert await asyncio.to_thread(stored.reopened) == []
        gate.open()
        written = list((await task).written)
        assert await asyncio.to_thread(stored.reopened) == written

    asyncio.run(main())
    assert len(stored.lines()) == 3


def test_times_do_not_go_back(one_model: str, make: Make, stored: Stored) -> None:
    """The turns of a run have the times at which they were said, in the thread's order."""
    mem = stored.mem.append("Hello?")
    turnlog.run(make(one_model), "Is it paid?", memory=mem)
    times = [message.at for message in mem.append("Thanks.").messages()]
    assert len(times) == 4
    assert times == sorted(filter(None, times))


@pytest.mark.parametrize("text", ["", " \n\t", "\u2028"])
def test_an_empty_reply_is_no_turn(
    provider: Provider, model: str, perform: Perform, stored: Stored, text: str
) -> None:
    """A reply that is empty, or white space alone, ends the run well and is no turn (R21)."""
    provider.script(Reply(text))
    result = perform(ours(model), "Is it paid?", memory=stored.mem)
    assert result.response.strip() == ""
    assert said(result.written) == [ASKED]
    assert stored.reopened() == list(stored.mem.messages()) == list(result.written)


def test_an_empty_text_beside_a_tool_call_is_no_turn(
    provider: Provider, one_model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """Replies that only call tools leave no turn behind, however many there are (R22)."""
    provider.script(Reply(LOOK), Reply(" ", LOOK), Reply("\n", LOOK), "It is paid.")
    perform(make(one_model, tools=[lookup]), "Is it paid?", memory=stored.mem)
    assert said(stored.mem.messages()) == [ASKED, PAID]


def test_text_is_written_as_the_model_gave_it(
    provider: Provider, model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """No character of the input or of a reply is changed: white space, NUL, separators, emoji."""
    text = "\n  a\0b\u2028\u0085c\r\n\U0001f9f5 "
    provider.script(Reply(*text))
    perform(make(model), f"q{text}", memory=stored.mem)
    assert said(stored.reopened()) == [("user", f"q{text}"), ("assistant", text)]


def test_only_text_is_written(
    provider: Provider, model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """Thinking, tool calls, their results and the system text are never in the file (R22)."""
    provider.script(
        Reply(Thinking("first a thought"), "Let me look.", LOOK),
        Reply(Thinking("another thought"), "It is paid."),
    )
    perform(make(model, "Be a support agent.", [lookup]), "Is it paid?", memory=stored.mem)
    assert len(provider.requests) == 2
    assert said(stored.reopened()) == [ASKED, LOOKING, PAID]
    data = stored.path.read_text(encoding="utf-8")
    assert [word for word in ("thought", "lookup", "found", "support") if word in data] == []


# ---- the meta ----


def test_meta_tells_the_model_and_what_each_turn_used(
    provider: Provider, model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """An assistant turn's meta has the model and the tokens since the turn before it (R21)."""
    provider.script(
        Reply(LOOK, usage=(100, 10)),
        Reply("Let me look.", LOOK, usage=(200, 20)),
        Reply(LOOK, usage=(400, 40)),
        Reply(LOOK, usage=(800, 80)),
        Reply("It is paid.", usage=(1600, 160)),
    )
    result = perform(make(model, tools=[lookup]), "Is it paid?", memory=stored.mem)
    name = model.partition(":")[2]
    assert [message.meta for message in stored.reopened()] == [
        None,
        {"model": name, "input_tokens": 300, "output_tokens": 30},
        {"model": name, "input_tokens": 2800, "output_tokens": 280},
    ]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (3100, 310)


def test_meta_tells_no_usage_where_the_provider_tells_none(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """Where the provider counts no tokens, the meta of the turn says nothing of them."""
    provider.script(Reply("Hello.", usage=(0, 0)))
    turnlog.run(make(model), "Hello?", memory=stored.mem)
    assert stored.mem.messages()[-1].meta == {"model": model.partition(":")[2]}


# ---- structured outputs of the engine's agents ----


class Invoice(BaseModel):
    """What is known of an invoice."""

    number: int
    paid: bool


INVOICE = Invoice(number=7, paid=True)
AS_JSON = '{"number":7,"paid":true}'


def words(text: str) -> list[str]:
    """Give the words of a text."""
    return text.split()


def by_tool(*text: str) -> Reply:
    """Give a structured output as a model gives it by default: by a tool."""
    return Reply(*text, ToolCall("final_result", INVOICE.model_dump()))


@pytest.mark.parametrize(
    ("kind", "reply", "output", "texts"),
    [
        pytest.param(Invoice, by_tool(), INVOICE, [AS_JSON], id="tool"),
        pytest.param(Invoice, by_tool("Here."), INVOICE, ["Here.", AS_JSON], id="tool, text"),
        pytest.param([str, Invoice], by_tool(), INVOICE, [AS_JSON], id="tool of two"),
        pytest.param([str, Invoice], Reply("No."), "No.", ["No."], id="text of two"),
        pytest.param(NativeOutput(Invoice), Reply(AS_JSON), INVOICE, [AS_JSON], id="native"),
        pytest.param(PromptedOutput(Invoice), Reply(AS_JSON), INVOICE, [AS_JSON], id="prompted"),
        pytest.param(TextOutput(words), Reply("a b"), ["a", "b"], ["a b"], id="text function"),
    ],
)
def test_a_structured_output_is_written_as_its_json_text(  # noqa: PLR0913, PLR0917 - a table's row
    provider: Provider,
    model: str,
    perform: Perform,
    stored: Stored,
    kind: Any,
    reply: Reply,
    output: object,
    texts: list[str],
) -> None:
    """A typed output is a turn of JSON text, after the text beside it; a text stays text (R21)."""
    provider.script(reply)
    agent = pydantic_ai.Agent(model, output_type=kind, model_settings=UNPOOLED)
    result = perform(agent, "Is it paid?", memory=stored.mem)
    assert result.output == output
    assert result.response == texts[-1]
    assert said(stored.reopened()) == [ASKED, *(("assistant", text) for text in texts)]
    metas = [message.meta for message in result.written[1:]]
    assert all(meta and meta["model"] == model.partition(":")[2] for meta in metas)
    assert result.conversation == turnlog.Conversation(result.written)


def test_a_structured_output_that_was_tried_again_is_written_once(
    provider: Provider, model: str, stored: Stored
) -> None:
    """Arguments that do not fit the output's type are tool traffic: only the output is a turn."""
    provider.script(Reply(ToolCall("final_result", {"number": "seven"})), by_tool())
    agent = pydantic_ai.Agent(model, output_type=Invoice, model_settings=UNPOOLED)
    assert turnlog.run(agent, "Is it paid?", memory=stored.mem).output == INVOICE
    assert said(stored.reopened()) == [ASKED, ("assistant", AS_JSON)]
    meta = stored.mem.messages()[-1].meta
    assert meta is not None
    assert (meta["input_tokens"], meta["output_tokens"]) == (2, 2)


def test_an_output_type_of_the_run_is_written_likewise(
    provider: Provider, model: str, perform: Perform, stored: Stored
) -> None:
    """An output type that is given for one run alone is the one that counts (R21)."""
    provider.script(by_tool())
    agent = pydantic_ai.Agent(model, model_settings=UNPOOLED)
    result = perform(agent, "Is it paid?", memory=stored.mem, output_type=Invoice)
    assert result.output == INVOICE
    assert said(stored.reopened()) == [ASKED, ("assistant", AS_JSON)]


PICTURE = BinaryContent(b"\x89PNG", media_type="image/png")
NOTE = "[attachment: image/png]"


@pytest.mark.parametrize(
    ("prompt", "text", "attachments"),
    [
        (["What is it?", PICTURE], "What is it?", 1),
        (["This", PICTURE, "or this", ImageUrl("https://example.org/a.png")], "This\n\nor this", 2),
        ([PICTURE], NOTE, 1),
        ([PICTURE, " ", ImageUrl("https://example.org/a")], f"{NOTE}\n[attachment: image]", 2),
        ([CachePoint(), PICTURE, CachePoint()], NOTE, 1),
        (["What is it?", CachePoint()], "What is it?", None),
        ([TextContent("One"), StructuredContent({"two": 2})], 'One\n\n{"two":2}', None),
        (["One", "two"], "One\n\ntwo", None),
    ],
)
def test_pictures_are_counted_beside_the_text(
    stored: Stored, prompt: Any, text: str, attachments: int | None
) -> None:
    """A turn is the text of a prompt, or a note of each picture where there is none (A16, R22)."""
    agent = pydantic_ai.Agent("test")
    turnlog.run(agent, prompt, memory=stored.mem)
    asked = stored.reopened()[0]
    assert (asked.role, asked.content) == ("user", text)
    assert asked.meta == ({"attachments": attachments} if attachments else None)


def test_a_run_after_a_picture_is_sent_a_note_in_its_place(
    provider: Provider, model: str, stored: Stored
) -> None:
    """Later runs are told that the user began with a picture, not the assistant (A16, R20)."""
    agent = pydantic_ai.Agent(model, model_settings=UNPOOLED)
    turnlog.run(agent, [PICTURE], memory=stored.mem)
    turnlog.run(agent, "And now?", memory=stored.mem)
    sent = [("user", NOTE), HELLO, ("user", "And now?")]
    assert turns(provider.requests[1]) == sent


@pytest.mark.parametrize("prompt", [[], [CachePoint()], [" ", CachePoint()], [TextContent("")]])
def test_a_prompt_without_a_text_or_an_attachment_is_refused(stored: Stored, prompt: Any) -> None:
    """A cache point alone is no input: nothing is asked and nothing written (A16)."""
    with pytest.raises(InvalidTurn, match="no input"):
        turnlog.run(pydantic_ai.Agent("test"), prompt, memory=stored.mem)
    assert stored.reopened() == []


# ---- eager ----


def test_eager_writes_each_turn_when_it_is_complete(
    provider: Provider, model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """Eagerly, the input is on disk before the model is asked, each reply before its tools run."""
    found: list[list[tuple[str, str]]] = []

    def look() -> str:
        """Look at what another process finds."""
        found.append(said(stored.reopened()))
        return "looked"

    def replying(*steps: str | ToolCall) -> Callable[[object], Reply]:
        def replying_late(body: object) -> Reply:
            del body
            look()
            return Reply(*steps)

        return replying_late

    provider.script(replying("Let me look.", ToolCall("look")), replying("It is paid."))
    agent = make(model, tools=[look])
    result = perform(agent, "Is it paid?", memory=stored.mem, writeback="eager")
    assert found == [[ASKED], [ASKED, LOOKING], [ASKED, LOOKING]]
    assert said(stored.mem.messages()) == [ASKED, LOOKING, PAID]
    assert stored.reopened() == list(stored.mem.messages()) == list(result.written)
    assert all("more" not in line for line in stored.lines())


def test_eager_writes_a_structured_output_once(
    provider: Provider, model: str, perform: Perform, stored: Stored
) -> None:
    """Eagerly, the text beside a structured output and its JSON text are written once each."""
    provider.script(by_tool("Let me look."))
    agent = pydantic_ai.Agent(model, output_type=Invoice, model_settings=UNPOOLED)
    result = perform(agent, "Is it paid?", memory=stored.mem, writeback="eager")
    assert said(stored.reopened()) == [ASKED, LOOKING, ("assistant", AS_JSON)]
    assert stored.reopened() == list(result.written)


# ---- not at all ----


def test_without_writeback_the_thread_stays_as_it_was(
    model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """With writeback=False the run is seeded from the thread and nothing is written to it."""
    mem = stored.mem.append("Hello?").append("Hi.", role="assistant")
    before = stored.path.read_bytes()
    result = perform(make(model), "Is it paid?", memory=mem, writeback=False)
    assert result.response == "Hello."
    assert result.written == ()
    assert len(result.conversation) == 4
    assert len(mem) == 2
    assert stored.path.read_bytes() == before


@pytest.mark.parametrize("mode", ["lazy", "", None, 2, [], {}])
def test_an_unknown_mode_is_refused_at_once(
    provider: Provider, one_model: str, make: Make, stored: Stored, mode: Any
) -> None:
    """A writeback that is none of True, False and "eager" is refused before a model is asked."""
    with pytest.raises(InvalidTurn, match="use True, False or 'eager'"):
        turnlog.run(make(one_model), "Hello?", memory=stored.mem, writeback=mode)
    assert (provider.requests, len(stored.mem)) == ([], 0)
