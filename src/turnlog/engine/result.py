"""Result: what a run gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.usage import RunUsage

    from turnlog.conversation import Conversation
    from turnlog.message import Message

Output = TypeVar("Output")


@dataclass(frozen=True)
class Result(Generic[Output]):
    """What a run gave.

    Attributes:
        response: the reply; "" for an empty one. Where the turns were used up the last text; of a
            structured output its JSON text.
        output: what the agent gave: of a `turnlog.Agent` the response, of an agent of the engine's
            its typed output.
        messages: the full history as the engine has it: what was sent ahead, the input, tool
            calls and their results, the reply.
        conversation: the turns that were sent ahead, the input and the replies: texts only.
        usage: what the run used, as the engine counts it: requests, input and output tokens.
        written: the turns that were written back, as the thread has them.
    """

    response: str
    output: Output
    messages: Sequence[ModelMessage]
    conversation: Conversation
    usage: RunUsage
    written: tuple[Message, ...] = ()
