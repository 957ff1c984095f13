"""Text as it comes: `on_text`, and the iterators that `stream` and `astream` give."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from dialogue import ASKED, LOOK, LOOKING, PAID, lookup, replying
from localserver import Failure, Gate, Provider, Reply
from ways import ours, said

import turnlog
from turnlog import ModelFailed

if TYPE_CHECKING:
    from programs import Stored
    from ways import Make, Perform

    from turnlog import Result


# ---- text as it comes ----


@pytest.mark.parametrize("is_async", [False, True])
def test_on_text_gets_each_piece_as_it_comes(
    provider: Provider, model: str, make: Make, perform: Perform, *, is_async: bool
) -> None:
    """`on_text`, plain or async, gets each piece of text, of all replies, in order, once."""
    provider.script(Reply("Let ", "me look.", LOOK), Reply("It ", "is ", "paid."))
    pieces: list[str] = []

    async def later(text: str) -> None:
        await asyncio.sleep(0)
        pieces.append(text)

    on_text = later if is_async else pieces.append
    result = perform(make(model, tools=[lookup]), "Is it paid?", on_text=on_text)
    assert pieces == ["Let ", "me look.", "It ", "is ", "paid."]
    assert result.response == "It is paid."


def test_on_text_gets_a_piece_before_the_next_one_is_there(
    provider: Provider, model: str, make: Make, perform: Perform
) -> None:
    """A piece of text is given when it comes, not when the reply is complete."""
    gate = Gate()
    provider.script(Reply("It is ", gate, "paid."))
    pieces: list[tuple[str, bool]] = []

    def on_text(text: str) -> None:
        pieces.append((text, gate.opened.is_set()))
        gate.open()

    perform(make(model), "Is it paid?", on_text=on_text)
    assert pieces == [("It is ", False), ("paid.", True)]


def test_what_on_text_raises_ends_a_run(
    provider: Provider, model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """An error of `on_text` comes as it is, and what was said by then is written (A02)."""
    provider.script(Reply("It is ", "paid."))

    def on_text(text: str) -> None:
        raise ZeroDivisionError(text)

    with pytest.raises(ZeroDivisionError, match="It is"):
        perform(make(model), "Is it paid?", memory=stored.mem, on_text=on_text)
    asked, reply = stored.reopened()
    assert said([asked]) == [ASKED]
    assert "It is paid.".startswith(reply.content)
    assert reply.meta is not None
    assert reply.meta["interrupted"] is True


# ---- streams ----


def test_a_stream_gives_each_piece_and_then_the_result(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """A stream gives the pieces of all replies in order; at its end there are result and turns."""
    provider.script(Reply("Let ", "me look.", LOOK), Reply("It ", "is ", "paid."))
    stream = turnlog.stream(make(model, tools=[lookup]), "Is it paid?", memory=stored.mem)
    assert list(stream) == ["Let ", "me look.", "It ", "is ", "paid."]
    assert stream.result.response == "It is paid."
    assert said(stream.result.written) == [ASKED, LOOKING, PAID]
    assert stored.reopened() == list(stream.result.written)


def test_an_async_stream_gives_each_piece_and_then_the_result(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """An async stream does the same in a loop, also as a context manager."""
    provider.script(Reply("Let ", "me look.", LOOK), Reply("It ", "is ", "paid."))
    agent = make(model, tools=[lookup])

    async def main() -> Result[Any]:
        async with turnlog.astream(agent, "Is it paid?", memory=stored.mem) as stream:
            pieces = [text async for text in stream]
            assert pieces == ["Let ", "me look.", "It ", "is ", "paid."]
            result = stream.result
        await stream.aclose()
        assert stream.result is result
        return result

    written = asyncio.run(main()).written
    assert said(written) == [ASKED, LOOKING, PAID]
    assert stored.reopened() == list(written)


def test_a_stream_has_no_result_before_its_end(provider: Provider, model: str, make: Make) -> None:
    """The result of a stream that was not read to its end is an error that says so."""
    provider.script(Reply("It is ", "paid."))
    with turnlog.stream(make(model), "Is it paid?") as stream:
        with pytest.raises(RuntimeError, match="not read to its end"):
            _ = stream.result
        assert next(stream) == "It is "
        with pytest.raises(RuntimeError, match="not read to its end"):
            _ = stream.result
        assert list(stream) == ["paid."]
        assert stream.result.response == "It is paid."


def test_a_stream_is_read_once(provider: Provider, model: str, make: Make) -> None:
    """Read again, a stream has no more pieces, asks no model again, and keeps its result."""
    stream = turnlog.stream(make(model), "Hello?")
    assert (list(stream), list(stream), list(stream)) == (["Hello."], [], [])
    assert stream.result.response == "Hello."
    assert len(provider.requests) == 1

    async def main() -> None:
        stream = turnlog.astream(make(model), "Hello?")
        assert [text async for text in stream] == ["Hello."]
        assert [text async for text in stream] == []
        assert stream.result.response == "Hello."

    asyncio.run(main())
    assert len(provider.requests) == 2


def test_a_stream_that_is_never_read_does_nothing(
    provider: Provider, one_model: str, make: Make, stored: Stored
) -> None:
    """A stream asks no model and writes nothing before its first piece is asked for."""
    agent = make(one_model)

    async def main() -> None:
        turnlog.astream(agent, "Hello?", memory=stored.mem)
        async with turnlog.astream(agent, "Hello?", memory=stored.mem) as stream:
            pass
        with pytest.raises(RuntimeError, match="not read to its end"):
            _ = stream.result

    turnlog.stream(agent, "Hello?", memory=stored.mem)
    with turnlog.stream(agent, "Hello?", memory=stored.mem):
        pass
    asyncio.run(main())
    gc.collect()
    assert (provider.requests, stored.reopened()) == ([], [])


def test_an_error_comes_from_the_stream_and_from_its_result(
    provider: Provider, model: str, stored: Stored
) -> None:
    """What the run raises comes from the iteration and from the result; then there is no more."""
    provider.script(*[Failure(500, "Out of order.")] * 2)
    stream = ours(model).stream("Hello?", memory=stored.mem)
    with pytest.raises(ModelFailed, match="Out of order") as raised:
        next(stream)
    with pytest.raises(ModelFailed) as again:
        _ = stream.result
    assert again.value is raised.value
    assert list(stream) == []

    async def main() -> None:
        stream = ours(model).astream("Hello?", memory=stored.mem)
        with pytest.raises(ModelFailed, match="Out of order"):
            async for _ in stream:
                pass
        with pytest.raises(ModelFailed, match="Out of order"):
            _ = stream.result
        assert [text async for text in stream] == []

    asyncio.run(main())
    assert stored.reopened() == []


def test_an_error_comes_after_the_pieces_before_it(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """Where a later request fails, the stream has given what the earlier one said."""
    provider.script(Reply("Let me look.", LOOK), Failure(500, "Out of order."))
    stream = turnlog.stream(make(model, tools=[lookup]), "?", memory=stored.mem)
    pieces: list[str] = []
    with pytest.raises(Exception, match="Out of order"):  # noqa: PT012 - the loop is the statement
        for text in stream:
            pieces.append(text)  # noqa: PERF402 - what came before the error counts
    assert pieces == ["Let me look."]
    assert said(stored.reopened()) == [("user", "?"), LOOKING]


def test_streams_may_be_read_by_turns(provider: Provider, model: str, make: Make) -> None:
    """Two streams may be read piece by piece in one thread, and an agent run in between."""
    provider.reply = replying
    one = turnlog.stream(make(model), "a")
    two = turnlog.stream(make(model), "b")
    both: list[tuple[str, str]] = []
    for pair in zip(one, two, strict=True):
        both.append(pair)
        assert turnlog.run(make(model), "c").response == "re c"
    assert both == list(zip("re a", "re b", strict=True))
