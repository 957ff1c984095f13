"""Failures of the caller's own: what its functions raise, and an option that there is not."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from dialogue import ASKED
from failing import QUESTION, Options, helper
from localserver import Gate, Provider, Reply, ToolCall
from sent import results
from ways import said

import turnlog

if TYPE_CHECKING:
    from turnlog import MemoryThread


class Stop(Exception):
    """Raised by a caller's own function."""


def raising(_: object) -> None:
    """Raise at once."""
    raise Stop


async def raising_later(_: object) -> None:
    """Raise, having waited."""
    await asyncio.sleep(0)
    raise Stop


@pytest.mark.parametrize("on_text", [raising, raising_later])
def test_what_on_text_raises_ends_the_run(
    provider: Provider, model: str, thread: MemoryThread, on_text: Any
) -> None:
    """It comes to the caller as it is, when what was said by then is in the thread."""
    provider.script(Reply("It is ", Gate(), "paid."))
    with pytest.raises(Stop):
        helper(model).run(QUESTION, memory=thread, on_text=on_text)
    assert said(thread.messages()) == [ASKED, ("assistant", "It is ")]
    assert (thread.messages()[-1].meta or {})["interrupted"] is True
    provider.disconnected.expect()


@pytest.mark.parametrize("on_tool_call", [raising, raising_later])
def test_what_on_tool_call_raises_is_ignored(
    provider: Provider, model: str, options: Options, thread: MemoryThread, on_tool_call: Any
) -> None:
    """The tool runs, and the run goes on, as if nobody had listened."""
    provider.script(Reply(ToolCall("look", {"id": 7})), "It is paid.")
    helper(model).run(QUESTION, memory=thread, on_tool_call=on_tool_call, **options)
    assert results(provider.requests[-1]) == ["invoice 7 is paid"]
    assert said(thread.messages()) == [ASKED, ("assistant", "It is paid.")]


def test_an_option_that_there_is_not_is_refused(
    provider: Provider, model: str, thread: MemoryThread
) -> None:
    """A slip in an option's name is a TypeError that names it: no run goes on without memory."""
    agent: Any = helper(model)
    entry: Any = turnlog
    for call in (agent.run, agent.stream, partial(entry.run, agent), partial(entry.stream, agent)):
        with pytest.raises(TypeError, match="memroy"):
            list(call(QUESTION, memroy=thread))
    assert provider.requests == []
