"""Runs: what is sent, what comes back, and from where an agent may be run."""

from __future__ import annotations

import asyncio
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from dialogue import ASKED, HELLO, LOOK, LOOKING, PAID, lookup, replying, texts_in
from localserver import Provider, Reply, ToolCall, turns
from programs import Stored, program
from ways import WAYS, ours, said

import turnlog
from turnlog import Agent, InvalidTurn, RunningLoop

if TYPE_CHECKING:
    from pathlib import Path

    from ways import Make, Perform

    from turnlog import Memory, Result


# ---- what is sent, and what comes back ----


def test_a_run_gives_its_result(
    provider: Provider, model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """A run sends system text, turns and input, and its result has all that came of it (R19)."""
    provider.script(
        Reply("Let me look.", LOOK, usage=(100, 10)), Reply("It is paid.", usage=(200, 20))
    )
    mem = stored.mem.append("Hello?").append("Hi.", role="assistant")
    agent = make(model, "Be a support agent.", [lookup])
    result = perform(agent, "Is it paid?", memory=mem)

    first, second = map(turns, provider.requests)
    system, earlier = ("system", "Be a support agent."), [("user", "Hello?"), ("assistant", "Hi.")]
    assert first == [system, *earlier, ASKED]
    assert second == [
        *first,
        LOOKING,
        ("call", 'lookup {"invoice": 7}'),
        ("tool", "invoice 7: found"),
    ]
    assert result.response == result.output == "It is paid."
    assert said(result.written) == [ASKED, LOOKING, PAID]
    assert said(result.conversation) == [*earlier, ASKED, LOOKING, PAID]
    assert result.usage.requests == 2
    assert (result.usage.input_tokens, result.usage.output_tokens) == (300, 30)
    assert texts_in(result.messages) == [
        "Hello?",
        "Hi.",
        "Is it paid?",
        "Let me look.",
        "It is paid.",
    ]
    assert [part.part_kind for message in result.messages for part in message.parts] == [
        "user-prompt",
        "text",
        "user-prompt",
        "text",
        "tool-call",
        "tool-return",
        "text",
    ]


def test_a_run_without_memory_writes_nothing(
    model: str, make: Make, perform: Perform, root: Path
) -> None:
    """Without memory a run gives the same result, and there is no thread (R19)."""
    result = perform(make(model), "Is it paid?")
    assert result.response == result.output == "Hello."
    assert said(result.conversation) == [ASKED, HELLO]
    assert texts_in(result.messages) == ["Is it paid?", "Hello."]
    assert result.written == ()
    assert not root.exists()


def test_the_agents_own_methods_are_the_functions(model: str, memory: Memory) -> None:
    """`bot.run`, `arun`, `stream` and `astream` do what the module's functions do with it (R19)."""
    bot = Agent(name="bot", model=model)
    mem = memory.open("t")
    blocking = bot.stream("stream", memory=mem)

    async def main() -> Result[str]:
        await bot.arun("arun", memory=mem)
        stream = bot.astream("astream", memory=mem)
        assert [text async for text in stream] == ["Hello."]
        return stream.result

    assert bot.run("run", memory=mem).response == "Hello."
    assert list(blocking) == ["Hello."]
    assert len(blocking.result.conversation) == 4
    assert len(asyncio.run(main()).conversation) == 8
    inputs = [("user", way) for way in ("run", "stream", "arun", "astream")]
    assert said(mem.messages())[::2] == inputs


@pytest.mark.parametrize("content", ["", " \n\t", None, []])
def test_an_input_that_says_nothing_is_refused(
    provider: Provider, one_model: str, make: Make, stored: Stored, content: Any
) -> None:
    """An input that is missing or blank is refused before a model is asked."""
    agent = make(one_model)
    for perform in WAYS.values():
        with pytest.raises(InvalidTurn):
            perform(agent, content, memory=stored.mem)
    assert (provider.requests, stored.reopened()) == ([], [])


@pytest.mark.parametrize("content", [7, b"text", ["text"], turnlog.Message("user", "text")])
def test_an_input_that_is_no_text_is_refused(
    provider: Provider, one_model: str, perform: Perform, stored: Stored, content: Any
) -> None:
    """The input of an agent of ours is a str; the error says what it was given."""
    with pytest.raises(InvalidTurn, match=f"the input is of type {type(content).__name__}"):
        perform(ours(one_model), content, memory=stored.mem)
    assert (provider.requests, stored.reopened()) == ([], [])


@pytest.mark.parametrize("agent", [None, "bot", Agent, object()])
def test_what_is_no_agent_is_refused(agent: Any, perform: Perform) -> None:
    """Only an agent of turnlog's or of the engine's is run; the error says so."""
    with pytest.raises(InvalidTurn, match=r"give a turnlog\.Agent or a pydantic_ai\.Agent"):
        perform(agent, "Hello?")


# ---- from where ----


def test_a_call_that_blocks_is_refused_where_a_loop_runs(
    provider: Provider, one_model: str, make: Make, stored: Stored
) -> None:
    """In a running loop's thread `run` and `stream` raise at once, and name what to await."""
    agent = make(one_model)

    async def main() -> None:
        with pytest.raises(RunningLoop, match="await arun"):
            turnlog.run(agent, "Hello?", memory=stored.mem)
        with pytest.raises(RunningLoop, match="await arun"):
            ours(one_model).run("Hello?", memory=stored.mem)
        stream = turnlog.stream(agent, "Hello?", memory=stored.mem)
        with pytest.raises(RunningLoop, match="astream"):
            next(stream)

    asyncio.run(main())
    assert (provider.requests, len(stored.mem)) == ([], 0)


def test_a_loop_may_have_a_thread_run_an_agent(model: str, make: Make, stored: Stored) -> None:
    """`run` may block a thread that a loop has for such work."""
    agent = make(model)

    async def main() -> Result[Any]:
        return await asyncio.to_thread(turnlog.run, agent, "Hello?", memory=stored.mem)

    assert asyncio.run(main()).response == "Hello."
    assert len(stored.reopened()) == 2


@pytest.mark.parametrize("name", ["run", "arun"])
def test_one_agent_runs_in_several_threads_at_once(
    provider: Provider, model: str, memory: Memory, name: str
) -> None:
    """The same Agent runs in many threads at once, each with a loop of its own."""
    barrier = threading.Barrier(6, timeout=60)

    def meeting(body: dict[str, Any]) -> Reply:
        barrier.wait()
        return replying(body)

    provider.reply = meeting
    bot = ours(model)

    def work(number: int) -> list[str]:
        mem = memory.open(f"t{number}")
        return [WAYS[name](bot, f"{number} {i}", memory=mem).response for i in range(3)]

    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(work, range(6)))
    assert replies == [[f"re {number} {i}" for i in range(3)] for number in range(6)]
    assert [len(memory.open(f"t{number}")) for number in range(6)] == [6] * 6


def test_one_agent_runs_in_one_loop_after_another(model: str, make: Make, stored: Stored) -> None:
    """The same agent runs in several `asyncio.run` calls one after another, and from plain code."""
    agent = make(model)
    for i in range(3):
        for perform in WAYS.values():
            assert perform(agent, f"number {i}", memory=stored.mem).response == "Hello."
    assert len(stored.reopened()) == 24


def test_one_agent_runs_before_and_after_a_fork(
    provider: Provider, model: str, stored: Stored
) -> None:
    """An agent that has run before a fork runs in the child, both ways, and in the parent (C28)."""
    provider.reply = replying
    with program("fork_and_run", stored.root, "t", model) as process:
        out, _ = process.communicate(timeout=100)
    assert (process.returncode, out.split()) == (0, ["parent", "child", "child", "parent"])
    inputs = ["before", "child run", "child arun", "after"]
    pairs = [(("user", text), ("assistant", f"re {text}")) for text in inputs]
    assert said(stored.reopened()) == [turn for pair in pairs for turn in pair]


def test_no_thread_that_used_tls_ends_with_a_run(
    monkeypatch: pytest.MonkeyPatch, model: str, perform: Perform, stored: Stored
) -> None:
    """What made a model goes on: with what OpenSSL locks at its end, a fork would hang (C28)."""
    threads: list[threading.Thread] = []
    new = ssl.SSLContext.__new__

    def noted(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return new(*args, **kwargs)

    monkeypatch.setattr(ssl.SSLContext, "__new__", noted)
    perform(ours(model), "Hi", memory=stored.mem)
    assert threads
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(0.2)
        assert thread.is_alive()


name_of_caller: ContextVar[str] = ContextVar("name_of_caller")


def test_tools_and_callbacks_see_the_callers_context(
    provider: Provider, model: str, make: Make, perform: Perform
) -> None:
    """What the caller has set in a context variable is seen by its tools and its callbacks."""
    seen: list[str] = []

    def look() -> str:
        """Look who calls."""
        seen.append(name_of_caller.get("nobody"))
        return "looked"

    provider.script(Reply(ToolCall("look")), "Done.")

    def on_text(text: str) -> None:
        seen.append(f"{name_of_caller.get('nobody')}: {text}")

    token = name_of_caller.set("Ada")
    perform(make(model, tools=[look]), "Look.", on_text=on_text)
    name_of_caller.reset(token)
    assert seen == ["Ada", "Ada: Done."]
