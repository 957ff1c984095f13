"""Outgoing: what a pydantic-ai agent of the user's sends to its model, in turnlog's order.

Nothing of this is in the run's own history: it shapes each request on its way to the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelRequest, SystemPromptPart

from turnlog.engine.history import alternating, mended_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai import RunContext
    from pydantic_ai.models import ModelRequestContext


class Outgoing(AbstractCapability[Any]):
    """Sends turns of one role as one message, and a thread's system turns behind the agent's own.

    Args:
        system: the texts of the thread's system turns.
    """

    def __init__(self, system: Sequence[str]) -> None:
        """Take the texts of the system turns that are to be sent."""
        super().__init__()
        self._system = system

    def get_ordering(self) -> CapabilityOrdering:
        """Run behind all the agent's own capabilities, on what they have made of the request."""
        return CapabilityOrdering(position="innermost")

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Return the request as it goes out."""
        del ctx
        messages, parameters = request_context.messages, request_context.model_request_parameters
        if self._system:
            # A provider may send the system prompt and the instructions by two ways, and either
            # first: as instructions all of them keep their order.
            own, messages = _without_opening(messages)
            parts = [*own, *(parameters.instruction_parts or ())]
            parts += [InstructionPart(text, dynamic=True) for text in self._system]
            parameters = replace(parameters, instruction_parts=parts)
        return replace(
            request_context,
            messages=alternating(map(mended_message, messages)),
            model_request_parameters=parameters,
        )


def _without_opening(
    messages: Sequence[ModelMessage],
) -> tuple[list[InstructionPart], list[ModelMessage]]:
    """Return the system prompt that messages open with, as instructions, and the rest."""
    if not messages or not isinstance(first := messages[0], ModelRequest):
        return [], list(messages)
    prompts: list[InstructionPart] = []
    for part in first.parts:
        if not isinstance(part, SystemPromptPart):
            break
        prompts.append(InstructionPart(part.content))
    rest = first.parts[len(prompts) :]
    return prompts, [*([replace(first, parts=rest)] if rest else []), *messages[1:]]
