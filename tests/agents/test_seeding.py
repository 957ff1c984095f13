"""Seeding: what of a thread is sent ahead of a run's input."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import localserver
import pytest
from localserver import Gate, Provider, Reply, ToolCall
from programs import Stored, program
from ways import ours, said, theirs
from wires import OPENING, Turns, Wire, conversation, joined, spelt

import turnlog
from turnlog import Agent, Conversation, InvalidTurn, Memory, Message

if TYPE_CHECKING:
    from pathlib import Path

    from ways import Make, Perform


# ---- what is sent ahead ----


def test_all_turns_are_sent_ahead_of_the_input(
    any_wire: Wire, make: Make, perform: Perform, stored: Stored
) -> None:
    """The thread's turns are sent ahead of the input, each once, in their order (R19, R20)."""
    mem = stored.mem
    for number in range(20):
        mem.append(f"question {number}").append(f"answer {number}", role="assistant")
    perform(make(any_wire.model), "Any update?", memory=mem)
    assert any_wire.sent() == [[*said(mem.messages())[:40], ("user", "Any update?")]]


def test_each_run_is_seeded_with_the_ones_before(
    any_wire: Wire, make: Make, stored: Stored
) -> None:
    """Each run on a thread sends what the runs before it have written back (R19 to R21)."""
    agent = make(any_wire.model)
    for text in ("One", "Two", "Three"):
        turnlog.run(agent, text, memory=stored.mem)
    exchanged = [(("user", text), ("assistant", "Hello.")) for text in ("One", "Two", "Three")]
    flat = [turn for pair in exchanged for turn in pair]
    assert any_wire.sent() == [flat[:1], flat[:3], flat[:5]]


def test_a_run_without_memory_sends_its_input_alone(any_wire: Wire, make: Make) -> None:
    """Without memory each run begins anew."""
    agent = make(any_wire.model)
    turnlog.run(agent, "One")
    turnlog.run(agent, "Two")
    assert any_wire.sent() == [[("user", "One")], [("user", "Two")]]


def test_earlier_tool_traffic_is_not_sent_again(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """A later run sends the texts of an earlier one and none of its tool calls (R22, A04)."""

    def lookup() -> str:
        """Look it up."""
        return "found"

    provider.script(Reply("Let me look.", ToolCall("lookup")), "It is paid.")
    agent = make(model, tools=[lookup])
    turnlog.run(agent, "Is it paid?", memory=stored.mem)
    turnlog.run(agent, "Sure?", memory=stored.mem)
    assert {role for role, _ in localserver.turns(provider.requests[1])} >= {"call", "tool"}
    assert joined(localserver.turns(provider.requests[2])) == (
        "",
        [("user", "Is it paid?"), ("assistant", "Let me look.\n\nIt is paid."), ("user", "Sure?")],
    )


def test_only_the_text_of_a_turn_is_sent(provider: Provider, model: str, stored: Stored) -> None:
    """What a turn's meta holds, and its time, stay at home."""
    stored.mem.append("Hello?", meta={"customer": "number 4711"})
    Agent(model=model).run("Any update?", memory=stored.mem)
    request = str(provider.requests[0])
    assert "Hello?" in request
    assert "4711" not in request
    assert f"{stored.mem.messages()[0].at:%Y}" not in request


# ---- system turns ----


def test_system_turns_are_sent_as_system_parts(
    any_wire: Wire, make: Make, perform: Perform, stored: Stored
) -> None:
    """A thread's system turn and the agent's own text are the system's on the wire (R20)."""
    mem = stored.mem.append("Be polite.", role="system").append("Hello?")
    perform(make(any_wire.model, "Be a support agent."), "Any update?", memory=mem)
    system, sent = joined(any_wire.sent()[0])
    assert sorted(system.split("\n\n")) == ["Be a support agent.", "Be polite."]
    assert sent == [("user", "Hello?\n\nAny update?")]


@pytest.mark.parametrize(
    ("turns", "system", "sent"),
    [
        (
            [("u", "1"), ("a", "2"), ("s", "3"), ("a", "4")],
            "3",
            [("u", "1"), ("a", "2\n\n4"), ("u", "now")],
        ),
        ([("u", "1"), ("s", "2"), ("u", "3"), ("s", "4")], "2\n\n4", [("u", "1\n\n3\n\nnow")]),
        (
            [("s", "1"), ("a", "2"), ("s", "3"), ("u", "4")],
            "1\n\n3",
            [("u", OPENING), ("a", "2"), ("u", "4\n\nnow")],
        ),
    ],
)
def test_system_turns_may_stand_anywhere(
    any_wire: Wire, perform: Perform, turns: Turns, system: str, sent: Turns
) -> None:
    """System turns between others are the system's, and those around them stay legal (R20)."""
    result = perform(ours(any_wire.model), "now", conversation=conversation(*turns))
    assert result.response == "Hello."
    assert joined(any_wire.sent()[0]) == (system, spelt(sent))


def test_later_system_turns_reach_an_agent_of_the_engines_in_its_own_way(
    any_wire: Wire, perform: Perform
) -> None:
    """Where a provider has no place for a later system turn the engine sends it with the user's."""
    turns = conversation(("u", "1"), ("a", "2"), ("s", "Be polite."), ("a", "3"))
    assert perform(theirs(any_wire.model), "now", conversation=turns).response == "Hello."
    [sent] = any_wire.sent()
    assert "\n".join(text for _, text in sent).count("Be polite.") == 1
    assert [turn for turn in sent if turn[0] == "assistant"] in (
        [("assistant", "2"), ("assistant", "3")],
        [("assistant", "2\n\n3")],
    )


def test_the_agents_system_text_is_sent_with_each_run_and_never_kept(
    any_wire: Wire, make: Make, stored: Stored
) -> None:
    """The agent's own system text goes out once with every run, and is not in the thread (R21)."""
    agent = make(any_wire.model, "Be a support agent.")
    turnlog.run(agent, "One", memory=stored.mem)
    turnlog.run(agent, "Two", memory=stored.mem)
    assert [joined(sent)[0] for sent in any_wire.sent()] == ["Be a support agent."] * 2
    assert {message.role for message in stored.mem.messages()} == {"user", "assistant"}


# ---- seed= and conversation= ----


def test_seed_gives_the_turns_to_send(
    any_wire: Wire, make: Make, perform: Perform, stored: Stored
) -> None:
    """What `seed` makes of the thread's turns is sent in their place; the thread keeps its own."""
    mem = stored.mem
    for number in range(5):
        mem.append(f"question {number}").append(f"answer {number}", role="assistant")
    given: list[Conversation] = []

    def newest(conv: Conversation) -> Conversation:
        given.append(conv)
        return conv.last(2).map(lambda message: Message(message.role, message.content.upper()))

    result = perform(make(any_wire.model), "Any update?", memory=mem, seed=newest)
    assert [len(conv) for conv in given] == [10]
    assert any_wire.sent() == [
        [("user", "QUESTION 4"), ("assistant", "ANSWER 4"), ("user", "Any update?")]
    ]
    assert said(result.conversation) == [*any_wire.sent()[0], ("assistant", "Hello.")]
    assert said(result.written) == [("user", "Any update?"), ("assistant", "Hello.")]
    assert said(stored.reopened())[:10] == said(given[0])
    assert len(mem) == 12


def test_seed_may_send_nothing(any_wire: Wire, make: Make, stored: Stored) -> None:
    """A seed of no turns begins anew, and what is said is appended to the thread all the same."""
    mem = stored.mem.append("Hello?").append("Hi.", role="assistant")
    agent = make(any_wire.model)
    turnlog.run(agent, "Any update?", memory=mem, seed=lambda _: Conversation())
    assert any_wire.sent() == [[("user", "Any update?")]]
    assert len(stored.reopened()) == 4


def test_seed_of_a_new_thread_is_asked_too(one_model: str, provider: Provider) -> None:
    """A seed is asked where there is no thread, or no turn, and may bring turns of its own."""
    opening = conversation(("u", "Hello?"), ("a", "Hi."))
    Agent(model=one_model).run("Any update?", seed=lambda conv: conv + opening)
    assert localserver.turns(provider.requests[0]) == [*said(opening), ("user", "Any update?")]


@pytest.mark.parametrize("wrong", [None, [Message("user", "x")], "x", conversation, {}])
def test_a_seed_that_gives_no_conversation_is_refused(
    provider: Provider, one_model: str, make: Make, stored: Stored, wrong: Any
) -> None:
    """What `seed` gives must be a Conversation; else no model is asked and nothing is written."""
    agent = make(one_model)
    with pytest.raises(InvalidTurn, match=f"seed gave a {type(wrong).__name__}, not a Conv"):
        turnlog.run(agent, "Any update?", memory=stored.mem, seed=lambda _: wrong)
    assert (provider.requests, len(stored.mem)) == ([], 0)


def test_what_a_seed_raises_comes_as_it_is(
    provider: Provider, one_model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """An error of the `seed` function is the run's; no model is asked and nothing is written."""

    def broken(conv: Conversation) -> Conversation:
        raise ZeroDivisionError(len(conv))

    with pytest.raises(ZeroDivisionError):
        perform(make(one_model), "Any update?", memory=stored.mem.append("Hello?"), seed=broken)
    assert (provider.requests, len(stored.reopened())) == ([], 1)


def test_a_conversation_is_sent_after_the_threads_turns(
    any_wire: Wire, make: Make, perform: Perform, stored: Stored
) -> None:
    """`conversation=` goes out between the thread's turns and the input, and is not written."""
    mem = stored.mem.append("Hello?").append("Hi.", role="assistant")
    more = conversation(("u", "My invoice is wrong."), ("a", "Which one?"))
    result = perform(make(any_wire.model), "Number 7.", memory=mem, conversation=more)
    sent = [*said(mem.messages())[:2], *said(more), ("user", "Number 7.")]
    assert any_wire.sent() == [sent]
    assert said(result.conversation) == [*sent, ("assistant", "Hello.")]
    assert said(stored.reopened())[2:] == [("user", "Number 7."), ("assistant", "Hello.")]


def test_a_conversation_needs_no_thread(any_wire: Wire, make: Make, perform: Perform) -> None:
    """`conversation=` alone seeds a run without memory."""
    more = conversation(("u", "My invoice is wrong."), ("a", "Which one?"))
    result = perform(make(any_wire.model), "Number 7.", conversation=more)
    assert any_wire.sent() == [[*said(more), ("user", "Number 7.")]]
    assert result.written == ()


@pytest.mark.parametrize("wrong", [[Message("user", "x")], "x", ()])
def test_what_is_no_conversation_is_refused(
    provider: Provider, one_model: str, make: Make, stored: Stored, wrong: Any
) -> None:
    """`conversation=` must be a Conversation; else no model is asked and nothing is written."""
    agent = make(one_model)
    with pytest.raises(InvalidTurn, match="conversation is a"):
        turnlog.run(agent, "Any update?", memory=stored.mem, conversation=wrong)
    assert (provider.requests, len(stored.mem)) == ([], 0)


# ---- what others have written ----


def test_the_turns_of_an_interrupted_run_are_sent(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """The part of a reply that a stopped run had given is sent with the next run (A03)."""
    gate = Gate()
    provider.script(Reply("It is ", gate, "paid."), "Yes, it is paid.")
    agent = make(model)

    async def main() -> None:
        async with turnlog.astream(agent, "Is it paid?", memory=stored.mem) as stream:
            assert await anext(stream) == "It is "

    asyncio.run(main())
    gate.open()
    assert stored.reopened()[1].meta == {
        **(stored.mem.messages()[1].meta or {}),
        "interrupted": True,
    }
    turnlog.run(make(model), "Is it?", memory=stored.mem)
    assert localserver.turns(provider.requests[1]) == [
        ("user", "Is it paid?"),
        ("assistant", "It is "),
        ("user", "Is it?"),
    ]


def test_what_other_processes_appended_is_sent(
    any_wire: Wire, make: Make, perform: Perform, stored: Stored
) -> None:
    """Turns that another process appended since the thread was opened are sent too (R20)."""
    mem = stored.mem.append("Hello?")
    with program("append", stored.root, "t", "assistant", "From elsewhere.") as process:
        process.communicate(timeout=100)
    assert len(mem) == 1
    result = perform(make(any_wire.model), "Any update?", memory=mem)
    sent = [("user", "Hello?"), ("assistant", "From elsewhere."), ("user", "Any update?")]
    assert any_wire.sent() == [sent]
    assert said(result.conversation) == [*sent, ("assistant", "Hello.")]
    assert said(stored.reopened()) == said(mem.messages()) == said(result.conversation)


def test_a_memory_for_reading_reads_forward_too(
    provider: Provider, one_model: str, root: Path
) -> None:
    """A run on a memory that may only be read is seeded with what others have appended (R20)."""
    Memory(root).open("t").append("Hello?")
    with Memory(root, read_only=True) as memory:
        mem = memory.open("t")
        with program("append", root, "t", "assistant", "From elsewhere.") as process:
            process.communicate(timeout=100)
        Agent(model=one_model).run("Any update?", memory=mem, writeback=False)
    assert localserver.turns(provider.requests[0])[1] == ("assistant", "From elsewhere.")
