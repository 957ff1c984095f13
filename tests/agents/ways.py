"""Each way to run an agent, as one function: what holds for a run holds for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import pydantic_ai
from pydantic_ai.settings import ModelSettings

import turnlog
from turnlog import Message, Result

# Nobody closes the connections that an agent of the engine's keeps, unless its user does.
UNPOOLED = ModelSettings(extra_headers={"connection": "close"})

Perform: TypeAlias = Callable[..., Result[Any]]
Make: TypeAlias = Callable[..., Any]


def by_run(agent: Any, content: Any, **options: Any) -> Result[Any]:
    """Run an agent from plain code."""
    return turnlog.run(agent, content, **options)


def by_arun(agent: Any, content: Any, **options: Any) -> Result[Any]:
    """Run an agent in a loop of its own."""

    async def main() -> Result[Any]:
        return await turnlog.arun(agent, content, **options)

    return asyncio.run(main())


def by_stream(agent: Any, content: Any, **options: Any) -> Result[Any]:
    """Read an agent's stream to its end from plain code."""
    stream = turnlog.stream(agent, content, **options)
    for _ in stream:
        pass
    return stream.result


def by_astream(agent: Any, content: Any, **options: Any) -> Result[Any]:
    """Read an agent's stream to its end in a loop of its own."""

    async def main() -> Result[Any]:
        stream = turnlog.astream(agent, content, **options)
        async for _ in stream:
            pass
        return stream.result

    return asyncio.run(main())


WAYS: dict[str, Perform] = {
    "run": by_run,
    "arun": by_arun,
    "stream": by_stream,
    "astream": by_astream,
}


def ours(model: Any, system: str = "", tools: Any = ()) -> turnlog.Agent:
    """Make an agent of turnlog's."""
    return turnlog.Agent(name="bot", system=system, model=model, tools=tools)


def theirs(model: Any, system: str = "", tools: Any = ()) -> pydantic_ai.Agent[None, str]:
    """Make an agent of the engine's, as a user has it."""
    return pydantic_ai.Agent(
        model, name="bot", instructions=system or None, tools=tools, model_settings=UNPOOLED
    )


AGENTS: dict[str, Make] = {"ours": ours, "theirs": theirs}


def said(turns: Any) -> list[tuple[str, str]]:
    """Give the role and the text of each of some turns."""
    messages: list[Message] = list(turns)
    return [(message.role, message.content) for message in messages]
