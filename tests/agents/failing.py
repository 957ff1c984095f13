"""Runs that are to fail: an agent asked about an invoice, how it fails, and what its error has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest
from dialogue import ASKED
from localserver import ToolCall
from ways import said

from turnlog import Agent, RunFailed

if TYPE_CHECKING:
    from turnlog import MemoryThread

Options: TypeAlias = dict[str, Any]

QUESTION: Final = ASKED[1]

# How a run fails that the provider refuses: what its error says, and what it says to do.
STATUSES: Final = {
    400: ("refused the request", "provider's words"),
    401: ("refused the key", "{key}"),
    403: ("refused the key", "{key}"),
    404: ("knows no model", "look at the model's name"),
    413: ("refused the request", "provider's words"),
    429: ("too many requests", "run it again later"),
    500: ("failed", "run it again later"),
    503: ("failed", "run it again later"),
    529: ("failed", "run it again later"),
}


def look(id: int) -> str:
    """Look an invoice up."""
    return f"invoice {id} is paid"


def helper(model: str, *tools: Any, max_turns: int = 10) -> Agent:
    """Make an agent of ours."""
    return Agent(name="Helper", model=model, tools=tools or [look], max_turns=max_turns)


def failure(agent: Agent, thread: MemoryThread, options: Options) -> RunFailed:
    """Run an agent; give the error that it ends with."""
    with pytest.raises(RunFailed) as caught:
        agent.run(QUESTION, memory=thread, **options)
    return caught.value


def assert_nothing_was_said(error: RunFailed, thread: MemoryThread) -> None:
    """Check that a run without any reply wrote nothing, and that its error tells so."""
    assert said(thread.messages()) == []
    assert error.written == ()
    assert said(error.conversation) == [ASKED]
    assert len(error.messages) == 1
    assert error.usage.requests == 0


# ---- tools that fail ----


def fails() -> str:
    """Fail."""
    raise LookupError("no such invoice")


async def fails_later() -> str:
    """Fail, having waited."""
    await asyncio.sleep(0)
    raise LookupError("no such invoice")


def unknown(count: int) -> list[ToolCall]:
    """Give calls of a tool that there is not."""
    return [ToolCall("lookup") for _ in range(count)]
