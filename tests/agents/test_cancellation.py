"""R23: a run that is cancelled writes back what was said, and the cancellation goes on."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from localserver import Gate, Provider, Reply, Signal, Thinking, ToolCall, turns
from stops import (
    HEARING,
    INPUT,
    LISTENING,
    PARTIAL,
    STOPPING,
    Ears,
    by_cancel,
    by_cancelling_at,
    by_scope,
    kept,
    remembering,
    turns_of,
    unheard,
)
from ways import ours

import turnlog
from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from replies import Answer, Body
    from stops import Turn
    from ways import Make

    from turnlog import MemoryThread

LOOK = ToolCall("look")
LOOKING = ("assistant", "Let me look.", False)


def look() -> str:
    """Look it up."""
    return "found"


async def goes_on(provider: Provider, agent: Any, mem: MemoryThread) -> list[tuple[str, str]]:
    """Run the agent again, which the provider has to find legal; give what it was sent."""
    provider.script("It is.")
    result = await turnlog.arun(agent, "And now?", memory=mem)
    assert result.response == "It is."
    return turns(provider.requests[-1])


# ---- where it is cancelled ----


@pytest.mark.parametrize("listening", LISTENING)
def test_waiting_for_the_first_byte(
    provider: Provider, model: str, make: Make, root: Path, listening: str
) -> None:
    """Cancelled before the provider says anything, the input is in the thread (R23, A01)."""
    gate = Gate()
    provider.script(Reply(gate, "It is paid."))
    agent, ears = make(model), Ears()

    async def act(mem: MemoryThread) -> None:
        await by_cancel(LISTENING[listening](agent, mem, ears), gate.reached)
        assert turns_of(mem.messages()) == [INPUT]
        await provider.calls[0].disconnected.aexpect()

    remembering(Memory(root), act)
    assert ears.text == ""
    assert kept(root) == [INPUT]


STEPS = {
    "text": ("It ", "is "),
    "after thinking": (Thinking("Hm."), "It is "),
    "with a call begun": ("It is ", LOOK),
}


@pytest.mark.parametrize("listening", HEARING)
@pytest.mark.parametrize("steps", STEPS)
def test_in_the_middle_of_a_reply(  # noqa: PLR0913, PLR0917 - the fixtures
    provider: Provider, model: str, make: Make, root: Path, steps: str, listening: str
) -> None:
    """Cancelled in a streamed reply, what was seen is kept, marked, and sent on (A01 to A04)."""
    gate = Gate()
    provider.script(Reply(*STEPS[steps], gate, "paid."))
    agent, ears = make(model, tools=[look]), Ears()

    async def act(mem: MemoryThread) -> None:
        await by_cancel(HEARING[listening](agent, mem, ears), ears.heard)
        assert turns_of(mem.messages()) == [INPUT, PARTIAL]
        await provider.calls[0].disconnected.aexpect()
        assert await goes_on(provider, agent, mem) == [
            ("user", "Is it paid?"),
            ("assistant", "It is "),
            ("user", "And now?"),
        ]

    remembering(Memory(root), act)
    assert kept(root)[:2] == [INPUT, PARTIAL]


@pytest.mark.parametrize("listening", LISTENING)
def test_between_two_rounds(
    provider: Provider, model: str, make: Make, root: Path, listening: str
) -> None:
    """Cancelled in the second round, the text beside the first one's tool call is there (R21)."""
    gate = Gate()
    provider.script(Reply("Let me look.", LOOK), Reply(gate, "It is paid."))
    agent, ears = make(model, tools=[look]), Ears()

    async def act(mem: MemoryThread) -> None:
        await by_cancel(LISTENING[listening](agent, mem, ears), gate.reached)
        assert turns_of(mem.messages()) == [INPUT, LOOKING]
        await provider.calls[1].disconnected.aexpect()

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, LOOKING]


@pytest.mark.parametrize("listening", HEARING)
def test_in_the_middle_of_the_second_reply(
    provider: Provider, model: str, make: Make, root: Path, listening: str
) -> None:
    """Cancelled in the second reply, the first one's text and the partial one are two turns."""
    gate = Gate()
    provider.script(Reply("Let me look.", LOOK), Reply("It is ", gate, "paid."))
    agent, ears = make(model, tools=[look]), Ears(until="Let me look.It is ")

    async def act(mem: MemoryThread) -> None:
        await by_cancel(HEARING[listening](agent, mem, ears), ears.heard)
        assert turns_of(mem.messages()) == [INPUT, LOOKING, PARTIAL]
        await provider.calls[1].disconnected.aexpect()

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, LOOKING, PARTIAL]


AFTER_A_TOOL = [("user", "Is it paid?"), ("assistant", "Let me look."), ("user", "And now?")]


@pytest.mark.parametrize("listening", LISTENING)
def test_in_an_async_tool(
    provider: Provider, model: str, make: Make, root: Path, listening: str
) -> None:
    """Cancelled in an async tool, the tool is cancelled, and the next request is legal (A04)."""
    provider.script(Reply("Let me look.", LOOK))
    began, ended = Signal(), Signal()

    async def look() -> str:
        """Look it up."""
        began.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    agent = make(model, tools=[look])

    async def act(mem: MemoryThread) -> None:
        await by_cancel(LISTENING[listening](agent, mem, Ears()), began)
        assert ended.is_set()
        assert turns_of(mem.messages()) == [INPUT, LOOKING]
        assert await goes_on(provider, agent, mem) == AFTER_A_TOOL

    remembering(Memory(root), act)
    assert kept(root)[:2] == [INPUT, LOOKING]


class SlowTool:
    """A sync tool that stands still until the test lets it go on.

    Attributes:
        threads: those that it stands still in.
    """

    def __init__(self) -> None:
        """Make one that nobody has called."""
        self.began = Signal()
        self.release = Signal()
        self.threads: set[threading.Thread] = set()

    def look(self) -> str:
        """Look it up."""
        self.threads.add(threading.current_thread())
        self.began.set()
        self.release.wait()
        return "too late"

    def end(self) -> None:
        """Let it go on, and wait for its end."""
        self.release.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("listening", LISTENING)
def test_in_a_sync_tool(
    provider: Provider, model: str, make: Make, root: Path, listening: str
) -> None:
    """Cancelled in a sync tool, the run ends at once, the tool goes on, and all is legal (A04)."""
    provider.script(Reply("Let me look.", LOOK))
    tool = SlowTool()
    agent = make(model, tools=[tool.look])

    async def act(mem: MemoryThread) -> None:
        await by_cancel(LISTENING[listening](agent, mem, Ears()), tool.began)
        assert turns_of(mem.messages()) == [INPUT, LOOKING]
        assert await goes_on(provider, agent, mem) == AFTER_A_TOOL

    remembering(Memory(root), act, busy=tool.threads)
    assert not tool.release.is_set()
    assert [thread.is_alive() for thread in tool.threads] == [True]
    tool.end()
    assert [text for _, text, _ in kept(root)] == [text for _, text in AFTER_A_TOOL] + ["It is."]


def test_in_a_sync_tool_by_a_scope(provider: Provider, model: str, root: Path) -> None:
    """A scope of anyio's does not wait for a sync tool either."""
    provider.script(Reply("Let me look.", LOOK))
    tool = SlowTool()
    agent = ours(model, tools=[tool.look])

    async def act(mem: MemoryThread) -> None:
        await by_scope(unheard(agent, mem, Ears()), tool.began)

    remembering(Memory(root), act, busy=tool.threads)
    assert not tool.release.is_set()
    tool.end()
    assert kept(root) == [INPUT, LOOKING]


# ---- by what it is cancelled ----


@pytest.mark.parametrize("listening", HEARING)
@pytest.mark.parametrize("way", STOPPING)
def test_by_whatever_stops_it(  # noqa: PLR0913, PLR0917 - the fixtures
    provider: Provider, one_model: str, make: Make, root: Path, way: str, listening: str
) -> None:
    """Whatever cancels a run gets its own exception, and what was said is in the thread (R23)."""
    gate = Gate()
    provider.script(Reply("It is ", gate, "paid."))
    agent, ears = make(one_model), Ears()

    async def act(mem: MemoryThread) -> None:
        await STOPPING[way](HEARING[listening](agent, mem, ears), ears.heard)
        assert turns_of(mem.messages()) == [INPUT, PARTIAL]
        await provider.calls[0].disconnected.aexpect()

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, PARTIAL]


@pytest.mark.parametrize("listening", LISTENING)
def test_by_the_end_of_the_loop(  # noqa: PLR0913, PLR0917 - the fixtures
    provider: Provider, model: str, make: Make, memory: Memory, root: Path, listening: str
) -> None:
    """A run that its loop leaves behind at its end writes back before the loop is closed (R23)."""
    gate = Gate()
    provider.script(Reply("Let me look.", LOOK), Reply(gate, "It is paid."))
    agent = make(model, tools=[look])
    left: list[asyncio.Task[None]] = []

    async def main() -> None:
        mem = await memory.aopen("t")
        left.append(asyncio.ensure_future(LISTENING[listening](agent, mem, Ears())))
        await gate.reached.aexpect()

    asyncio.run(main())
    assert left[0].cancelled()
    provider.calls[1].disconnected.expect()
    assert kept(root) == [INPUT, LOOKING]


@pytest.mark.parametrize("listening", HEARING)
def test_twice_in_a_row(
    provider: Provider, model: str, make: Make, root: Path, listening: str
) -> None:
    """However soon the second cancellation follows the first, what was said is in the thread."""
    agent = make(model)

    async def act(mem: MemoryThread) -> None:
        for turns_between in range(15):
            gate, ears, have = Gate(), Ears(), len(mem)
            provider.script(Reply("It is ", gate, "paid."))
            task = asyncio.ensure_future(HEARING[listening](agent, mem, ears))
            await ears.heard.aexpect()
            task.cancel()
            for _ in range(turns_between):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert turns_of(mem.messages())[have:] == [INPUT, PARTIAL], turns_between
            await provider.calls[-1].disconnected.aexpect()

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, PARTIAL] * 15


# ---- at each await of a run ----


def answer(body: Body) -> Answer:
    """Ask for the tool first, and reply then."""
    asked = turns(body)[-1][0] == "user"
    return Reply("Let me look.", LOOK) if asked else Reply("It ", "is ", "paid.")


def check_said(said: Sequence[Turn], heard: str) -> None:
    """Check that turns are what a run says, up to some point, and all that was heard of it."""
    whole = ["Is it paid?", "Let me look.", "It is paid."]
    texts = [text for _, text, _ in said]
    assert texts[:1] == whole[:1]
    for text, expected, (_, _, interrupted) in zip(texts, whole, said, strict=False):
        assert text == expected or (expected.startswith(text) and interrupted)
    assert texts[:-1] == whole[: len(texts) - 1]
    assert "".join(texts[1:]).startswith(heard)


@pytest.mark.parametrize("listening", HEARING)
@pytest.mark.parametrize("times", [1, 1_000_000], ids=["once", "again and again"])
def test_at_each_await(  # noqa: PLR0913, PLR0917 - the fixtures
    provider: Provider, one_model: str, make: Make, root: Path, times: int, listening: str
) -> None:
    """At whichever await it is cancelled, once or at all that follow, what was heard is kept."""
    provider.reply = answer
    agent = make(one_model, tools=[look])
    said: dict[str, list[Turn]] = {}

    async def act(mem: MemoryThread) -> None:
        for number in range(1_000):
            thread, ears = await mem.memory.aopen(str(number)), Ears()
            awaits = range(number, number + times)
            ended = await by_cancelling_at(HEARING[listening](agent, thread, ears), awaits)
            said[thread.id] = turns_of(thread.messages())
            check_said(said[thread.id], ears.text)
            if ended:
                return

    # The engine leaves one of its own, where it is cancelled in the moment a stream opens.
    remembering(Memory(root), act, besides="ScopedTask.__init__.<locals>.run")
    assert 10 < len(said) < 1_000
    assert list(said.values())[-1][-1] == ("assistant", "It is paid.", False)
    with Memory(root) as memory:
        assert {name: turns_of(memory.open(name).messages()) for name in said} == said
