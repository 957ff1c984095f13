"""A model with a strict template takes what is sent: each role in turn, the system's text first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pydantic_ai
import pytest
from localserver import MODELS, Gate, Provider, Reply
from pydantic_ai.messages import ImageUrl, ModelRequest, ModelResponse, TextPart, UserPromptPart
from ways import UNPOOLED, ours, said, theirs
from wires import Turns, Wire, conversation, spelt, strict

import turnlog
from turnlog import Conversation, InvalidTurn, Message

if TYPE_CHECKING:
    from programs import Stored
    from ways import Make

    from turnlog import Memory

ABOUT_TO_ASK: Turns = [("u", "First."), ("u", "Second.")]


# ---- each role in turn ----


def test_after_a_stop_before_the_first_word_a_strict_model_goes_on(
    provider: Provider, make: Make, stored: Stored
) -> None:
    """A run that was stopped before a word leaves its input, and the next run still works (A12)."""
    agent, gate = make(MODELS["openai"]), Gate()

    async def stop_before_the_first_word() -> None:
        provider.script(Reply(gate, "x"))
        task = asyncio.create_task(turnlog.arun(agent, "First.", memory=stored.mem))
        await gate.reached.aexpect()
        task.cancel()
        await asyncio.wait([task])
        gate.open()

    asyncio.run(stop_before_the_first_word())
    provider.reply = strict
    for text in ("Second.", "Third."):
        assert turnlog.run(agent, text, memory=stored.mem).response == "Hello."
    first, second = ("user", "First.\n\nSecond."), ("user", "Third.")
    sent = [(message["role"], message["content"]) for message in provider.requests[-1]["messages"]]
    assert sent == [first, ("assistant", "Hello."), second]
    assert [text for _, text in said(stored.reopened())] == [
        *("First.", "Second.", "Hello.", "Third.", "Hello."),
    ]


# What a thread holds, and what is sent of it ahead of "now".
SENT: tuple[tuple[Turns, Turns], ...] = (
    (ABOUT_TO_ASK, [("u", "First.\n\nSecond.\n\nnow")]),
    ([("u", "1"), ("s", "2"), ("u", "3")], [("s", "2"), ("u", "1\n\n3\n\nnow")]),
    (
        [("u", "1"), ("a", "2"), ("s", "3"), ("a", "4"), ("s", "5")],
        [("s", "3\n\n5"), ("u", "1"), ("a", "2\n\n4"), ("u", "now")],
    ),
    ([("u", "1"), ("a", " "), ("a", ""), ("u", "2")], [("u", "1\n\n2\n\nnow")]),
)


def test_turns_of_one_role_go_out_as_one_message(
    strict_wire: Wire, make: Make, memory: Memory
) -> None:
    """On every wire each role speaks in turn, in one text; the thread stays as it is (A12, A17)."""
    agent = make(strict_wire.model)
    for number, (turns, sent) in enumerate(SENT):
        mem = memory.open(str(number)).extend(conversation(*turns))
        assert turnlog.run(agent, "now", memory=mem).response == "Hello."
        told, messages = system_and_rest(strict_wire.sent()[-1])
        assert [("system", "\n\n".join(told))] * bool(told) + messages == spelt(sent)
        assert said(mem.messages())[: len(turns)] == spelt(turns)


def system_and_rest(request: Turns) -> tuple[list[str], Turns]:
    """Return the system's texts of a request, which are ahead of all others, and the rest."""
    told = [text for role, text in request if role == "system"]
    assert [role for role, _ in request[: len(told)]] == ["system"] * len(told)
    return "\n\n".join(told).split("\n\n") if told else [], request[len(told) :]


def test_a_conversation_goes_out_so_too(strict_wire: Wire) -> None:
    """`chat` and `say` send a conversation with each role in turn, streamed or not (A12)."""
    conv = conversation(*ABOUT_TO_ASK, ("a", "x"), ("a", "y"), ("u", "3"))
    options: Any = {"model": strict_wire.model, "on_text": str}
    assert turnlog.chat(conv, **options) == "Hello."
    assert conv.say("4", model=strict_wire.model).last_reply == "Hello."
    assert strict_wire.sent() == [
        [("user", "First.\n\nSecond."), ("assistant", "x\n\ny"), ("user", last)]
        for last in ("3", "3\n\n4")
    ]


def test_a_history_of_the_callers_own_joins_the_threads_turns(
    strict_wire: Wire, stored: Stored
) -> None:
    """What an agent of the engine's is given of history goes on from the thread's turns (A12)."""
    history = [
        ModelRequest([UserPromptPart("2"), UserPromptPart("3")]),
        ModelResponse([TextPart("4")]),
        ModelResponse([TextPart(" ")]),
        ModelResponse([TextPart("5")]),
    ]
    stored.mem.append("1")
    turnlog.run(theirs(strict_wire.model), "6", memory=stored.mem, message_history=history)
    assert strict_wire.sent() == [
        [("user", "1\n\n2\n\n3"), ("assistant", "4\n\n5"), ("user", "6")],
    ]


def test_pictures_stay_where_they_are(provider: Provider, stored: Stored) -> None:
    """An input with a picture is one message with what the user had said before it (A12)."""
    provider.reply = strict
    stored.mem.append("Look:")
    picture = ImageUrl("http://127.0.0.1/a.png")
    turnlog.run(theirs(MODELS["openai"]), ["This.", picture, "You see?"], memory=stored.mem)
    [message] = provider.requests[0]["messages"]
    kinds = [part.get("text", part["type"]) for part in message["content"]]
    assert kinds == ["Look:", "This.", "image_url", "You see?"]


# ---- the system's text ----

TOLD: Turns = [("s", "From the thread."), ("u", "1"), ("a", "2"), ("s", "Later."), ("u", "3")]
OWN = "The agent's own."


def test_the_agents_own_system_text_comes_first(
    strict_wire: Wire, make: Make, stored: Stored
) -> None:
    """A thread's system turns come behind the agent's own, or as `system_turns=` says (A19)."""
    stored.mem.extend(conversation(*TOLD))
    agent = make(strict_wire.model, OWN)
    for system_turns, told, user in CHOICES:
        options: Any = {"system_turns": system_turns} if system_turns else {}
        result = turnlog.run(agent, "now", memory=stored.mem, writeback=False, **options)
        system, rest = system_and_rest(strict_wire.sent()[-1])
        assert system == told
        assert [text for role, text in rest if role == "user"] == user
        assert said(result.conversation)[: len(TOLD)] == spelt(TOLD)


# What is chosen, the system's texts that are sent, and the user's.
CHOICES: tuple[tuple[str, list[str], list[str]], ...] = (
    ("", [OWN, "From the thread.", "Later."], ["1", "3\n\nnow"]),
    ("system", [OWN, "From the thread.", "Later."], ["1", "3\n\nnow"]),
    ("user", [OWN], ["From the thread.\n\n1", "Later.\n\n3\n\nnow"]),
    ("omit", [OWN], ["1", "3\n\nnow"]),
)


def test_all_that_an_engines_agent_is_told_comes_first(strict_wire: Wire, stored: Stored) -> None:
    """A prompt, instructions and a function of the agent's own are ahead of the thread's (A19)."""
    agent = pydantic_ai.Agent(
        strict_wire.model,
        system_prompt="Prompt.",
        instructions="Instructions.",
        model_settings=UNPOOLED,
    )
    agent.instructions(lambda: "Function.")
    stored.mem.extend(conversation(*TOLD))
    turnlog.run(agent, "now", memory=stored.mem, instructions="For this run.")
    told, _ = system_and_rest(strict_wire.sent()[0])
    assert sorted(told[:4]) == ["For this run.", "Function.", "Instructions.", "Prompt."]
    assert told[4:] == ["From the thread.", "Later."]


def test_a_chat_has_the_option_too(strict_wire: Wire) -> None:
    """Of a conversation `system=` comes first, and its system messages as is asked for (A19)."""
    conv = Conversation([Message("user", "Q"), Message("system", "Its own.")])
    choices: Any = {"system": [OWN, "Its own."], "user": [OWN], "omit": [OWN]}
    for choice, told in choices.items():
        turnlog.chat(conv, model=strict_wire.model, system=OWN, system_turns=choice)
        system, rest = system_and_rest(strict_wire.sent()[-1])
        assert system == told
        assert rest == [("user", "Q\n\nIts own." if choice == "user" else "Q")]


def test_an_unknown_choice_is_refused_before_a_model_is_asked(
    provider: Provider, one_model: str, stored: Stored
) -> None:
    """`system_turns` takes three words; any other is an error that names the thread (A19)."""
    wrong: Any = "developer"
    with pytest.raises(InvalidTurn, match=r"thread 't'.*system_turns is 'developer'"):
        turnlog.run(ours(one_model), "now", memory=stored.mem, system_turns=wrong)
    with pytest.raises(InvalidTurn, match="system_turns"):
        turnlog.chat(conversation(("u", "Q")), model=one_model, system_turns=wrong)
    assert not provider.requests
