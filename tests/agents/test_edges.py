"""Agents where programs put them: server pools, several loops, exits, other runs' errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from localserver import Gate, Reply
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel

import turnlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from localserver import Provider
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo

    from turnlog import Memory


async def words(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Stream three words."""
    del messages, info
    for word in ("a ", "b ", "c"):
        yield word


def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Give the three words at once."""
    del messages, info
    return ModelResponse([TextPart("a b c")])


def speaking() -> turnlog.Agent:
    """Give an agent that says three words."""
    return turnlog.Agent(model=FunctionModel(whole, stream_function=words, model_name="words"))


def texts(mem: turnlog.MemoryThread) -> list[str]:
    """Give what a thread holds."""
    return [turn.content for turn in mem.messages()]


def test_a_plain_stream_is_read_by_a_servers_pool(memory: Memory) -> None:
    """Each piece of a plain stream may be asked for in another OS thread, of several at once."""
    bot = speaking()

    def read(number: int) -> list[str]:
        stream = bot.stream("x", memory=memory.open(f"t{number}"))
        pieces: list[str] = []
        while (piece := pool.submit(next, stream, None).result(60)) is not None:
            pieces.append(piece)
        return pieces

    with ThreadPoolExecutor(3) as pool, ThreadPoolExecutor(5) as requests:
        assert list(requests.map(read, range(5))) == [["a ", "b ", "c"]] * 5
    assert [texts(memory.open(f"t{number}")) for number in range(5)] == [["x", "a b c"]] * 5


def test_a_stop_button_closes_a_stream_that_another_thread_reads(
    provider: Provider, model: str, memory: Memory
) -> None:
    """close() in another OS thread ends a reader that waits, and what was said is kept (R23)."""
    gate, mem = Gate(), memory.open("t")
    provider.script(Reply("It is ", gate, "paid."))
    stream = turnlog.Agent(model=model).stream("Is it paid?", memory=mem)
    with ThreadPoolExecutor(1) as pool:
        pieces = pool.submit(list[str], stream)
        gate.reached.expect()
        stream.close()
        assert "".join(pieces.result(60)) in {"", "It is "}
    assert texts(mem)[0] == "Is it paid?"
    assert list(stream) == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_closed_stream_gives_nothing_more(memory: Memory, begun: bool) -> None:  # noqa: FBT001
    """A stream that was closed asks no model and gives no piece."""
    mem = memory.open("t")
    stream = speaking().stream("x", memory=mem)
    if begun:
        assert next(stream) == "a "
    stream.close()
    assert list(stream) == []
    assert texts(mem) == (["x", "a "] if begun else [])


def test_a_ready_model_serves_one_loop_after_another(provider: Provider) -> None:
    """An agent on a ready model runs in one event loop after another."""
    bot = turnlog.Agent(model=OpenAIChatModel("gpt-5-mini"))
    provider.script(*["Yes."] * 5)
    replies = [bot.run("One?").response]
    for _ in range(2):
        thread = threading.Thread(target=lambda: replies.append(bot.run("Two?").response))
        thread.start()
        thread.join()
        replies.append(asyncio.run(bot.arun("Three?")).response)
    assert replies == ["Yes."] * 5


def test_a_process_ends_where_a_tool_says_so(root: Path) -> None:
    """sys.exit in a tool ends the process with its status, and what was said is kept (R23)."""
    program = f"""
import sys
import turnlog
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

def bye() -> str:
    sys.exit(3)

def reply(messages, info):
    return ModelResponse([TextPart("Goodbye."), ToolCallPart("bye", {{}})])

mem = turnlog.Memory({str(root)!r}).open("t")
turnlog.Agent(model=FunctionModel(reply), tools=[bye]).run("Stop.", memory=mem)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 3
    with turnlog.Memory(root) as memory:
        assert texts(memory.open("t")) == ["Stop.", "Goodbye."]


@pytest.mark.usefixtures("provider")
def test_a_run_as_the_process_ends_is_told() -> None:
    """Where the interpreter gives no more threads, the error says which agent went unheard."""
    program = """
import atexit
import turnlog

agent = turnlog.Agent(model="anthropic:claude-haiku-4-5")

@atexit.register
def last():
    try:
        agent.run("Goodbye.")
    except turnlog.ModelFailed as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=60, check=True, capture_output=True, text=True
    )
    assert "agent 'agent': claude-haiku-4-5 of anthropic could not reply" in done.stdout


def test_another_runs_error_is_left_as_it_is(memory: Memory) -> None:
    """What a callback raises of another run keeps its own, and this run's turns are written."""
    mem = memory.open("t")

    def fail(_: str) -> None:
        raise turnlog.WritebackFailed("another", "no room", "make room")

    with pytest.raises(turnlog.WritebackFailed, match="another"):
        speaking().run("x", memory=mem, on_text=fail)
    assert texts(mem) == ["x", "a "]


def test_several_failed_calls_are_said_in_words(memory: Memory) -> None:
    """A tool's failures name what it raised, and the run says so (R22)."""

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del messages, info
        return ModelResponse([ToolCallPart("look", {})])

    def look() -> str:
        """Look."""
        raise TimeoutError

    bot = turnlog.Agent(model=FunctionModel(reply), tools=[look])
    with pytest.raises(turnlog.ToolsFailed, match="of the last: TimeoutError"):
        bot.run("x", memory=memory.open("t"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": "x"},
        {"temperature": "hot"},
        {"system": None},
        {"max_turns": 0},
    ],
)
def test_an_argument_that_is_no_good_is_refused_at_once(wrong: dict[str, Any]) -> None:
    """An agent's wrong argument is an error that names it, before anything is asked."""
    with pytest.raises(turnlog.InvalidTurn, match=next(iter(wrong))):
        turnlog.Agent(model="offline", **wrong)


def test_what_cannot_be_run_or_sent_is_refused(memory: Memory) -> None:
    """What is no agent, no conversation or no function is an error that says what to give."""
    conv = turnlog.Conversation().add("x")
    anything: Any = turnlog
    for call in (
        lambda: anything.run(conv, "x"),
        lambda: anything.stream(conv, "x", model="offline"),
        lambda: anything.chat(memory.open("t"), model="offline"),
        lambda: anything.chat("x", model="offline"),
        lambda: conv.say(" ", model="offline"),
        lambda: speaking().run("x", on_text=anything),
        lambda: speaking().run("x", memory=anything),
    ):
        with pytest.raises(turnlog.InvalidTurn):
            call()
