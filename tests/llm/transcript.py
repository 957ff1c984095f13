"""What a request carried, whichever provider it was made for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from replies import Body

if TYPE_CHECKING:
    from collections.abc import Iterator


def turns(body: Body) -> list[tuple[str, str]]:
    """Give the role and the text of each turn that a request carried, in their order.

    A turn is a text: a message of two texts is two turns. The roles are "system", "user" and
    "assistant"; what tools say and hear is marked with two others, "call" (`name {"argument": 1}`)
    and "tool" (the result). Thinking is left out.
    """
    system: Body = {"role": "system", "content": body.get("system")}
    return [turn for message in [system, *body["messages"]] for turn in _message_turns(message)]


def _message_turns(message: Body) -> Iterator[tuple[str, str]]:
    role: str = "system" if message["role"] == "developer" else message["role"]
    content: Any = message.get("content") or []
    blocks: list[Body] = [Body(type="text", text=content)] if isinstance(content, str) else content
    calls: list[Body] = message.get("tool_calls") or []
    for block in blocks:
        if block["type"] == "text":
            yield role, block["text"]
        elif block["type"] == "tool_use":
            yield "call", f"{block['name']} {json.dumps(block['input'])}"
        elif block["type"] == "tool_result":
            yield "tool", _text(block.get("content") or "")
    for call in calls:
        yield "call", f"{call['function']['name']} {_spaced(call['function']['arguments'])}"


def _text(content: str | list[Body]) -> str:
    return (
        content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    )


def _spaced(arguments: str) -> str:
    """Give arguments as the other provider's would look; malformed ones as they are."""
    try:
        return json.dumps(json.loads(arguments))
    except ValueError:
        return arguments
