"""A gateway may split a character over two pieces of a stream: those given hold whole ones."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from localserver import MODELS, Provider, Reply, ToolCall
from ways import ours, said

import turnlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from programs import Stored
    from ways import Make

SPLIT = ("Great \ud83d", "\ude00 news", ", and ", "\ud83d", "\ude00", ".")
WHOLE = ["Great ", "\U0001f600 news", ", and ", "\U0001f600", "."]


def by_callback(agent: Any, mem: Any) -> list[str]:
    """Take the pieces by `on_text`."""
    pieces: list[str] = []
    turnlog.run(agent, "Hi", memory=mem, on_text=pieces.append)
    return pieces


def by_iterator(agent: Any, mem: Any) -> list[str]:
    """Take the pieces of a stream."""
    return list(turnlog.stream(agent, "Hi", memory=mem))


both = pytest.mark.parametrize("take", [by_callback, by_iterator])


@both
def test_half_a_character_waits_for_its_other_half(
    provider: Provider, model: str, make: Make, stored: Stored, take: Callable[..., list[str]]
) -> None:
    """Pieces hold whole characters, and the thread the text, on both wires (A13)."""
    provider.script(Reply(*SPLIT))
    assert take(make(model), stored.mem) == WHOLE
    assert said(stored.reopened())[1] == ("assistant", "".join(WHOLE))


@both
def test_a_half_that_stays_alone_is_a_replacement_character(
    provider: Provider, one_model: str, make: Make, stored: Stored, take: Callable[..., list[str]]
) -> None:
    """A lone half is given as U+FFFD, at a reply's end too; the thread keeps it as it is (A13)."""

    def look() -> str:
        """Look."""
        return "seen"

    provider.script(
        Reply("a\ud83d", "b", "\ude00", "c\ud83d", ToolCall("look")), Reply("\ude00d", "\ud83d")
    )
    pieces = take(make(one_model, tools=[look]), stored.mem)
    assert pieces == ["a", "\ufffdb", "\ufffd", "c", "\ufffd", "\ufffdd", "\ufffd"]
    texts = [text for role, text in said(stored.reopened()) if role == "assistant"]
    assert texts == ["a\ud83db\ude00c\ud83d", "\ude00d\ud83d"]


def test_printing_a_piece_never_fails(provider: Provider, one_model: str, stored: Stored) -> None:
    """What takes only UTF-8, as standard output does, takes every piece (A13)."""
    provider.script(Reply(*SPLIT, "\ud83d"))
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    result = ours(one_model).run("Hi", memory=stored.mem, on_text=out.write)
    assert out.buffer.getvalue().decode() == "".join(WHOLE) + "\ufffd" == result.response


@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_callback_that_raises_loses_nothing_of_what_was_said(
    provider: Provider, one_model: str, make: Make, stored: Stored, at: int
) -> None:
    """Its error comes as it is, at whichever piece; the text so far is in the thread (A13)."""
    provider.script(Reply(*SPLIT, "\ud83d"))
    pieces: list[str] = []

    def on_text(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == at + 1:
            raise KeyError(at)

    with pytest.raises(KeyError):
        turnlog.run(make(one_model), "Hi", memory=stored.mem, on_text=on_text)
    question, reply = stored.reopened()
    assert said([question]) == [("user", "Hi")]
    given = "".join(pieces).removesuffix("\ufffd")
    assert reply.content.startswith(given)
    assert ("interrupted" in (reply.meta or {})) == (at != len(WHOLE))


def test_a_chat_gives_whole_characters_too(provider: Provider) -> None:
    """The pieces of a conversation's reply hold whole characters (A13)."""
    provider.script(Reply(*SPLIT))
    conv = turnlog.Conversation().add("Hi")
    assert list(turnlog.stream(conv, model=MODELS["openai"])) == WHOLE
