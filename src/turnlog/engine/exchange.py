"""Exchange: what a run has come to so far, as the engine has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart
from pydantic_ai.usage import RunUsage

from turnlog.engine.history import (
    alternating,
    sendable,
    with_readable_arguments,
    without_end,
    without_system,
)
from turnlog.wire import BETWEEN, whole_characters

if TYPE_CHECKING:
    from collections.abc import Sequence


class Exchange:
    """What the engine's messages of a run are, up to now.

    Args:
        history: what was said before the run.

    Attributes:
        messages: the history, and what the run adds.
        usage: what the run has used.
        system: what the model is told to be; "" for nothing.
        spoken: what is written back: the replies, and what the user said meanwhile. Unlike
            `messages`, it only grows.
    """

    def __init__(self, history: Sequence[ModelMessage] = ()) -> None:
        """Begin with the history."""
        self.messages: list[ModelMessage] = list(history)
        self.usage: RunUsage = RunUsage()
        self.system: str = ""
        self.spoken: list[ModelMessage] = []
        self._begin = len(self.messages)

    @property
    def new(self) -> Sequence[ModelMessage]:
        """What came after the history."""
        return self.messages[self._begin :]

    @property
    def response(self) -> str:
        """The reply, as text; where the last one only asked for tools, the last text before it."""
        return whole_characters(self._said)

    @property
    def _said(self) -> str:
        responses = [message for message in self.spoken if isinstance(message, ModelResponse)]
        if not responses:
            return ""
        if not responses[-1].tool_calls:
            return responses[-1].text or ""
        return next((each.text for each in reversed(responses) if each.text), "")

    def sendable(self) -> list[ModelMessage]:
        """Return the messages as every provider takes them, with what the model is told to be.

        The system texts go ahead of all: first the agent's own, then those of the turns.
        """
        sent, system = without_system([*self.messages[: self._begin], *map(sendable, self.new)])
        messages = alternating(sent)
        if messages and isinstance(messages[-1], ModelResponse):  # the model is to go on from it
            messages[-1] = without_end(messages[-1])
        texts = [whole_characters(self.system), *system]
        if any(text.strip() for text in texts):
            _instruct(messages, BETWEEN.join(text for text in texts if text.strip()))
        return messages

    def ask(self, request: ModelRequest) -> None:
        """Add what is sent to the model; behind another request it goes out with that one."""
        last = self.messages[-1] if self.messages else None
        if isinstance(last, ModelRequest):
            request = replace(request, parts=[*last.parts, *request.parts])
            self.messages.pop()
            self._begin = min(self._begin, len(self.messages))
        self.messages.append(request)

    def answer(self, response: ModelResponse) -> None:
        """Add what the model said, and what that cost."""
        self.messages.append(with_readable_arguments(response))
        self.spoken.append(response)
        self.usage.incr(response.usage)
        self.usage.requests += 1

    def take(self, messages: Sequence[ModelMessage], usage: RunUsage) -> None:
        """Take all messages and the usage of a run of the engine's own, which may rewrite them."""
        self.messages = list(messages)
        self.usage = usage


def _instruct(messages: list[ModelMessage], system: str) -> None:
    """Put into messages what the model is told to be; the engine takes it from the last request."""
    for position in reversed(range(len(messages))):
        request = messages[position]
        if isinstance(request, ModelRequest):
            messages[position] = replace(request, instructions=system)
            return
    messages.insert(0, ModelRequest([SystemPromptPart(system)]))
