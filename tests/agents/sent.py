"""What a request told a provider of tools, whichever wire format it took."""

from __future__ import annotations

from typing import Any, NamedTuple

from localserver import turns


class Shown(NamedTuple):
    """A tool as a model is shown it."""

    name: str
    description: str
    schema: dict[str, Any]


def shown(body: dict[str, Any]) -> list[Shown]:
    """Give the tools that a request showed its model."""
    tools: list[dict[str, Any]] = body.get("tools", [])
    functions = [tool.get("function", tool) for tool in tools]
    return [
        Shown(
            function["name"],
            function.get("description", ""),
            function["input_schema"] if "input_schema" in function else function["parameters"],
        )
        for function in functions
    ]


def results(body: dict[str, Any]) -> list[str]:
    """Give what a request told its model that tools gave, all of them up to now."""
    return [text for role, text in turns(body) if role == "tool"]
