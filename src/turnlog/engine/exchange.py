"""Exchange: what a run has come to so far, as the engine has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart
from pydantic_ai.usage import RunUsage

from turnlog.engine.history import sendable
from turnlog.wire import whole_characters

if TYPE_CHECKING:
    from collections.abc import Sequence


class Exchange:
    """What the engine's messages of a run are, up to now.

    Args:
        history: what was said before the run.

    Attributes:
        messages: the history, and what the run adds.
        usage: what the run has used.
        structured: the JSON text of a structured output, which an agent of the engine's gives by a
            tool, beside its text; "" where there is none.
    """

    def __init__(self, history: Sequence[ModelMessage] = ()) -> None:
        """Begin with the history."""
        self.messages: list[ModelMessage] = list(history)
        self.usage: RunUsage = RunUsage()
        self.structured: str = ""
        self._begin = len(self.messages)

    @property
    def new(self) -> Sequence[ModelMessage]:
        """What came after the history."""
        return self.messages[self._begin :]

    @property
    def response(self) -> str:
        """The reply, as text; where the last one only asked for tools, the last text before it."""
        if self.structured:
            return self.structured
        responses = [message for message in self.new if isinstance(message, ModelResponse)]
        if not responses:
            return ""
        if not responses[-1].tool_calls:
            return responses[-1].text or ""
        return next((each.text for each in reversed(responses) if each.text), "")

    def sendable(self) -> list[ModelMessage]:
        """Give the messages as every provider takes them."""
        return [*self.messages[: self._begin], *map(sendable, self.new)]

    def ask(self, request: ModelRequest) -> None:
        """Add what is sent to the model."""
        self.messages.append(request)

    def instruct(self, system: str) -> None:
        """Have the model told what it is to be; the engine takes that from the last request."""
        if not system.strip():
            return
        system = whole_characters(system)
        for position in reversed(range(len(self.messages))):
            request = self.messages[position]
            if isinstance(request, ModelRequest):
                self.messages[position] = replace(request, instructions=system)
                return
        self.messages.insert(0, ModelRequest([SystemPromptPart(system)]))
        self._begin += 1

    def answer(self, response: ModelResponse) -> None:
        """Add what the model said, and what that cost."""
        self.messages.append(response)
        self.usage.incr(response.usage)
        self.usage.requests += 1

    def take(
        self, messages: Sequence[ModelMessage], new: Sequence[ModelMessage], usage: RunUsage
    ) -> None:
        """Take what a run of the engine's own has: all messages, the run's among them, the usage.

        It may have rewritten the history.
        """
        self.messages = list(messages)
        self._begin = len(messages) - len(new)
        self.usage = usage
