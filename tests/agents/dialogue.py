"""What the tests' agents hear and say: an invoice is asked for, and looked up by a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localserver import Reply, ToolCall, turns
from pydantic_ai.messages import TextPart, UserPromptPart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_ai.messages import ModelMessage

ASKED = ("user", "Is it paid?")
LOOKING = ("assistant", "Let me look.")
PAID = ("assistant", "It is paid.")
HELLO = ("assistant", "Hello.")  # what the provider says by itself

LOOK = ToolCall("lookup", {"invoice": 7})


def lookup(invoice: int) -> str:
    """Look an invoice up."""
    return f"invoice {invoice}: found"


def replying(body: dict[str, Any]) -> Reply:
    """Reply to an input with it, letter by letter."""
    return Reply(*f"re {turns(body)[-1][1]}")


def texts_in(messages: Iterable[ModelMessage]) -> list[str]:
    """Give the texts of some of the engine's messages."""
    return [
        part.content
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart | TextPart) and isinstance(part.content, str)
    ]
