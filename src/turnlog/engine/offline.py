"""The offline model: a small rule-based responder that needs no key and no network.

It is no language model and says so. It is there to try a program, and to see that a thread is
remembered: its reply quotes what the user said before.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pydantic_ai.messages import ModelMessage

OFFLINE: Final = "offline"


def offline_model() -> FunctionModel:
    """Give the responder as a model of the engine's."""
    return FunctionModel(_respond, stream_function=_stream, model_name=OFFLINE)


def reply_to(said: Sequence[str]) -> str:
    """Give the responder's reply to what the user has said, the newest last."""
    newest, earlier = said[-1], said[:-1]
    reply = f"(offline responder, no language model) You say: {_short(newest)}"
    if not earlier:
        return f"{reply} This is our first turn."
    turns = "once" if len(earlier) == 1 else f"{len(earlier)} times"
    return f"{reply} You wrote {turns} before; first: {_short(earlier[0])}" + (
        f" and last: {_short(earlier[-1])}" if len(earlier) > 1 else ""
    )


def _short(text: str, width: int = 60) -> str:
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= width else f'"{line[: width - 1]}…"'


def _said(messages: Sequence[ModelMessage]) -> list[str]:
    return [
        part.content
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart) and isinstance(part.content, str)
    ]


async def _respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info  # a coroutine, since the engine would have a function wait for a thread
    return ModelResponse([TextPart(reply_to(_said(messages)))])


async def _stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:  # noqa: ARG001
    for word in re.findall(r"\S+\s*", reply_to(_said(messages))):
        yield word
