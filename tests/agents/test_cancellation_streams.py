"""R23: a stream that is left, or whose reader is cancelled, writes back what was seen of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from localserver import Gate, Provider, Reply, StreamError, ToolCall
from stops import (
    HEARING,
    INPUT,
    LISTENING,
    PARTIAL,
    QUESTION,
    Ears,
    by_cancel,
    kept,
    remembering,
    turns_of,
    until,
)
from ways import ours

import turnlog
from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from ways import Make

    from turnlog import MemoryThread, TextStream

WHOLE = ("assistant", "It is paid.", False)


@pytest.fixture
def gate(provider: Provider) -> Gate:
    """Have the provider stop in the middle of its reply."""
    gate = Gate()
    provider.script(Reply("It is ", gate, "paid."))
    return gate


# ---- it is left ----


async def left_unheld(mem: MemoryThread, agent: Any) -> None:
    """Leave a stream that nobody holds."""
    async for piece in turnlog.astream(agent, QUESTION, memory=mem):
        assert piece == "It is "
        break


async def left_and_dropped(mem: MemoryThread, agent: Any) -> None:
    """Leave a stream, and let go of it."""
    stream = turnlog.astream(agent, QUESTION, memory=mem)
    async for piece in stream:
        assert piece == "It is "
        break
    with pytest.raises(RuntimeError, match="not read to its end"):
        assert stream.result


@pytest.mark.parametrize("leave", [left_unheld, left_and_dropped])
@pytest.mark.usefixtures("gate")
def test_left_early(
    provider: Provider, model: str, make: Make, root: Path, leave: Callable[..., Any]
) -> None:
    """A stream that is left by a break is stopped, and what was seen is in the thread (A02)."""
    agent = make(model)

    async def act(mem: MemoryThread) -> None:
        await leave(mem, agent)
        await until(lambda: len(mem) == 2)
        await provider.calls[0].disconnected.aexpect()

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, PARTIAL]


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.usefixtures("gate")
def test_left_at_the_end_of_the_loop(  # noqa: PLR0913 - the fixtures
    provider: Provider, model: str, make: Make, memory: Memory, root: Path, *, held: bool
) -> None:
    """A stream that is left where the loop ends is in the thread when the loop is closed (R23)."""
    agent = make(model)
    streams: list[TextStream[Any]] = []

    async def act(mem: MemoryThread) -> None:
        stream = turnlog.astream(agent, QUESTION, memory=mem)
        streams.extend([stream] if held else [])
        async for _ in stream:
            break

    async def main() -> None:
        await act(await memory.aopen("t"))

    asyncio.run(main())
    provider.calls[0].disconnected.expect()
    assert kept(root) == [INPUT, PARTIAL]


async def closed_by_block(stream: TextStream[Any]) -> None:
    """Leave the block of a stream."""
    async with stream:
        assert await anext(stream) == "It is "


async def closed_by_error(stream: TextStream[Any]) -> None:
    """Leave the block of a stream by an error, which goes on."""

    async def fails() -> None:
        async with stream:
            async for piece in stream:
                raise LookupError(piece)

    with pytest.raises(LookupError, match="It is "):
        await fails()


async def closed_by_call(stream: TextStream[Any]) -> None:
    """Close a stream, twice."""
    assert await anext(stream) == "It is "
    await stream.aclose()
    await stream.aclose()


@pytest.mark.parametrize("close", [closed_by_block, closed_by_error, closed_by_call])
@pytest.mark.usefixtures("gate")
def test_closed(
    provider: Provider, model: str, make: Make, root: Path, close: Callable[..., Any]
) -> None:
    """When a stream has been closed, what was seen is on disk, and it gives no more (R23)."""
    agent = make(model)

    async def act(mem: MemoryThread) -> None:
        stream = turnlog.astream(agent, QUESTION, memory=mem)
        await close(stream)
        assert turns_of(mem.messages()) == [INPUT, PARTIAL]
        await provider.calls[0].disconnected.aexpect()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, PARTIAL]


def test_closed_at_its_end(provider: Provider, model: str, make: Make, root: Path) -> None:
    """A stream that was read to its end is whole, once, also when it is closed and cancelled."""
    provider.script("It is paid.")
    agent, ears = make(model), Ears()

    async def act(mem: MemoryThread) -> None:
        async with turnlog.astream(agent, QUESTION, memory=mem) as stream:
            async for piece in stream:
                ears(piece)
        assert stream.result.response == ears.text == "It is paid."
        await stream.aclose()

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, WHOLE]


def test_never_begun(provider: Provider, model: str, make: Make, root: Path) -> None:
    """A stream that nobody reads asks nothing and writes nothing."""
    agent = make(model)

    async def act(mem: MemoryThread) -> None:
        turnlog.astream(agent, QUESTION, memory=mem)
        async with turnlog.astream(agent, QUESTION, memory=mem):
            pass

    remembering(Memory(root), act)
    assert provider.requests == []
    assert kept(root) == []


# ---- its reader is cancelled ----


async def read_and_think(mem: MemoryThread, agent: Any, ears: Ears) -> None:
    """Read a stream, and wait for ever between two pieces."""
    async for piece in turnlog.astream(agent, QUESTION, memory=mem):
        ears(piece)
        await asyncio.get_running_loop().create_future()


async def read_in_a_block_and_think(mem: MemoryThread, agent: Any, ears: Ears) -> None:
    """Do as much in the stream's block."""
    async with turnlog.astream(agent, QUESTION, memory=mem) as stream:
        async for piece in stream:
            ears(piece)
            await asyncio.get_running_loop().create_future()


async def told_and_think(mem: MemoryThread, agent: Any, ears: Ears) -> None:
    """Wait for ever in an async on_text."""

    async def hear(piece: str) -> None:
        ears(piece)
        await asyncio.get_running_loop().create_future()

    await turnlog.arun(agent, QUESTION, memory=mem, on_text=hear)


@pytest.mark.parametrize("reader", [read_and_think, read_in_a_block_and_think, told_and_think])
@pytest.mark.usefixtures("gate")
def test_cancelled_between_two_pieces(
    provider: Provider, model: str, make: Make, root: Path, reader: Callable[..., Any]
) -> None:
    """A reader that is cancelled while it does something else leaves what it has seen (A02)."""
    agent, ears = make(model), Ears()

    async def act(mem: MemoryThread) -> None:
        await by_cancel(reader(mem, agent, ears), ears.heard)
        if reader is read_and_think:
            await until(lambda: len(mem) == 2)
        assert turns_of(mem.messages()) == [INPUT, PARTIAL]
        await provider.calls[0].disconnected.aexpect()

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, PARTIAL]


@pytest.mark.parametrize("listening", HEARING)
def test_cancelled_as_a_piece_comes(
    provider: Provider, model: str, make: Make, root: Path, listening: str
) -> None:
    """Cancelled at whichever moment of a piece's coming, what was seen is there, once (A02)."""
    agent = make(model)

    async def act(mem: MemoryThread) -> None:
        for moment in range(15):
            before, after, ears, have = Gate(), Gate(), Ears(), len(mem)
            provider.script(Reply("It is ", before, "nearly ", after, "paid."))
            task = asyncio.ensure_future(HEARING[listening](agent, mem, ears))
            await ears.heard.aexpect()
            before.open()
            after.reached.expect()  # the loop stands still: the piece has come, and was not read
            for _ in range(moment):
                await asyncio.sleep(0)
            assert task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            asked, (role, text, interrupted) = turns_of(mem.messages())[have:]
            assert (asked, role, interrupted) == (INPUT, "assistant", True)
            assert text.startswith(ears.text)
            assert text in {"It is ", "It is nearly "}
            await provider.calls[-1].disconnected.aexpect()

    remembering(Memory(root), act)
    assert len(kept(root)) == 30


@pytest.mark.parametrize("listening", HEARING)
def test_cancelled_as_the_run_fails(
    provider: Provider, model: str, make: Make, root: Path, listening: str
) -> None:
    """Cancelled at whichever moment of the provider's failure, it is the cancellation that comes.

    Unless the failure had come before; and what was seen is there, once.
    """
    agent = make(model)

    async def act(mem: MemoryThread) -> None:
        for moment in range(25):
            gate, ears, have = Gate(), Ears(), len(mem)
            provider.script(Reply("It is ", gate, StreamError("Overloaded")))
            task = asyncio.ensure_future(HEARING[listening](agent, mem, ears))
            await ears.heard.aexpect()
            gate.open()
            for _ in range(moment):
                await asyncio.sleep(0)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                assert "Overloaded" in str(task.exception())
            assert turns_of(mem.messages())[have:] == [INPUT, PARTIAL]

    remembering(Memory(root), act)
    assert kept(root) == [INPUT, PARTIAL] * 25


# ---- read by plain code ----


def left_plain(mem: MemoryThread, agent: Any) -> None:
    """Leave a stream that nobody holds."""
    for piece in turnlog.stream(agent, QUESTION, memory=mem):
        assert piece == "It is "
        break


def closed_plain(mem: MemoryThread, agent: Any) -> None:
    """Close a stream, twice."""
    stream = turnlog.stream(agent, QUESTION, memory=mem)
    assert next(stream) == "It is "
    stream.close()
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)


def block_plain(mem: MemoryThread, agent: Any) -> None:
    """Leave the block of a stream by an error, which goes on."""

    def fails() -> None:
        with turnlog.stream(agent, QUESTION, memory=mem) as stream:
            for piece in stream:
                raise LookupError(piece)

    with pytest.raises(LookupError, match="It is "):
        fails()


@pytest.mark.parametrize("leave", [left_plain, closed_plain, block_plain])
@pytest.mark.usefixtures("gate")
def test_left_by_plain_code(
    provider: Provider, model: str, make: Make, root: Path, leave: Callable[..., Any]
) -> None:
    """A plain stream that was left, closed or whose block has ended is on disk at once (R23)."""
    agent = make(model)
    with Memory(root) as memory:
        mem = memory.open("t")
        leave(mem, agent)
        assert turns_of(mem.messages()) == [INPUT, PARTIAL]
        provider.calls[0].disconnected.expect()
    assert kept(root) == [INPUT, PARTIAL]


# ---- the loop is never blocked ----


def look() -> str:
    """Look it up."""
    return "found"


@pytest.fixture
def agent(provider: Provider, one_model: str, make: Make) -> Any:
    """Give an agent that has run before: what is imported and read at first use was."""
    agent = make(one_model, tools=[look])
    provider.script(Reply("Let me look.", ToolCall("look")))
    turnlog.run(agent, QUESTION, on_text=lambda _: None)
    turnlog.run(agent, QUESTION)
    return agent


@pytest.mark.parametrize("listening", LISTENING)
@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("make", [ours])  # the engine's makes its client anew, in the loop
def test_the_loop_is_never_blocked(  # noqa: PLR0913 - the fixtures
    provider: Provider,
    agent: Any,
    root: Path,
    no_blocking: None,
    listening: str,
    *,
    cancelled: bool,
) -> None:
    """A run, a streamed one and a stream, to the end or cancelled, never block the loop (A07)."""
    del no_blocking
    gate = Gate()
    provider.script(Reply("Let me look.", ToolCall("look")), Reply("It is ", gate, "paid."))

    async def act(mem: MemoryThread) -> None:
        work = LISTENING[listening](agent, mem, Ears())
        if cancelled:
            await by_cancel(work, gate.reached)
        else:
            gate.open()
            await work

    remembering(Memory(root), act)
    assert kept(root)[:2] == [INPUT, ("assistant", "Let me look.", False)]
