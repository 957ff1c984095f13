"""What a scripted provider says: replies made of steps, failures, gates that a test opens.

Nothing in here knows a provider's wire format: see anthropic_wire.py and openai_wire.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

Body: TypeAlias = dict[str, Any]
Stop: TypeAlias = Literal["end", "length", "tools", "refused"]

_LIMIT: Final = 100.0  # seconds; what has not come by then will not come


class Signal(threading.Event):
    """Something that the provider sees happen; a test may wait for it, but not for ever."""

    def expect(self) -> None:
        """Wait for it in a thread; raise TimeoutError where it does not come."""
        if not self.wait(_LIMIT):
            raise TimeoutError(f"it did not happen within {_LIMIT:.0f} seconds")

    async def aexpect(self) -> None:
        """Wait for it in an event loop; raise TimeoutError where it does not come."""
        # A thread that waits would outlive a test that is cancelled here, and hold up its loop.
        end = time.monotonic() + _LIMIT
        while not self.is_set():
            if time.monotonic() > end:
                raise TimeoutError(f"it did not happen within {_LIMIT:.0f} seconds")
            await asyncio.sleep(0.001)


class Gate:
    """A step at which the provider stops until the test opens it.

    Attributes:
        reached: the provider stands at the gate, and all that came before has been sent.
        opened: the gate is open.
    """

    def __init__(self) -> None:
        """Make a gate that is shut."""
        self.reached = Signal()
        self.opened = Signal()

    def open(self) -> None:
        """Let the provider go on."""
        self.opened.set()


@dataclass(frozen=True)
class Broken:
    """A step at which the provider closes the connection, with the answer unfinished."""


@dataclass(frozen=True)
class ToolCall:
    """A step: the model calls a tool.

    Attributes:
        name: of the tool.
        arguments: a str is sent as it is, so that it may be malformed.
        id: of the call; by default another one each time it is sent.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict[str, Any])
    id: str | None = None

    @property
    def json(self) -> str:
        """The arguments as they go out."""
        arguments = self.arguments
        return arguments if isinstance(arguments, str) else json.dumps(dict(arguments))

    def pieces(self) -> tuple[str, str]:
        """Give the arguments in two, as a stream brings them."""
        half = (len(self.json) + 1) // 2
        return self.json[:half], self.json[half:]


@dataclass(frozen=True)
class Thinking:
    """A step: what the model thinks (Anthropic's thinking, others' `reasoning_content`)."""

    text: str


@dataclass(frozen=True)
class Refusal:
    """A step: the model will not answer, and says why."""

    text: str


@dataclass(frozen=True)
class StreamError:
    """A step: an error where the stream's next event would be; the answer ends with it."""

    message: str = "Overloaded"


Step: TypeAlias = str | ToolCall | Thinking | Refusal | Gate | Broken | StreamError


class Reply:
    """An answer, step by step; a str is one delta of text, and the empty one only begins it.

    Attributes:
        steps: what it is made of.
        usage: input and output tokens.
        stop: why it ends; by default what follows from its steps.
    """

    def __init__(
        self, *steps: Step, usage: tuple[int, int] = (1, 1), stop: Stop | None = None
    ) -> None:
        """Make an answer of steps."""
        self.steps = steps
        self.usage = usage
        self.stop: Stop = stop or self._natural_stop()

    def _natural_stop(self) -> Stop:
        if any(isinstance(step, Refusal) for step in self.steps):
            return "refused"
        return "tools" if any(isinstance(step, ToolCall) for step in self.steps) else "end"

    @property
    def refusal(self) -> str | None:
        """Why the model will not answer."""
        return "".join(step.text for step in self.steps if isinstance(step, Refusal)) or None


@dataclass(frozen=True)
class Failure:
    """An HTTP error in place of an answer, in the provider's own shape.

    Attributes:
        status: the HTTP status.
        message: what the provider says.
        kind: Anthropic's `type` of the error, OpenAI's `code`; by default the status's usual one.
        retry: the SDKs may try again, and do so at once.
        headers: further ones.
    """

    status: int
    message: str
    kind: str | None = None
    retry: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def all_headers(self) -> dict[str, str]:
        """Give the headers; without one that tells how long, the SDKs wait half a second."""
        advice = {"retry-after-ms": "1"} if self.retry else {"x-should-retry": "false"}
        return {**advice, **self.headers}


Answer: TypeAlias = str | Reply | Failure
Scripted: TypeAlias = Answer | Callable[[Body], Answer]


class Refused(Exception):
    """The provider refuses a request; the text says why."""


class Encoder(Protocol):
    """Puts one answer into a provider's events, as bytes of its stream."""

    def __init__(self, body: Body, reply: Reply) -> None:
        """Take the request and its answer."""

    def start(self) -> bytes:
        """Give what comes ahead of the first step."""
        ...

    def step(self, step: str | ToolCall | Thinking | Refusal | StreamError) -> bytes:
        """Give a step's events."""
        ...

    def end(self) -> bytes:
        """Give what comes after the last step."""
        ...


class Wire(Protocol):
    """A provider's wire format: a module that has these."""

    @property
    def OVERLOADED(self) -> int:  # noqa: N802
        """The status of a provider that is overloaded."""
        ...

    @property
    def Events(self) -> type[Encoder]:  # noqa: N802
        """How it streams."""
        ...

    def check(self, body: Body, /) -> None:
        """Raise Refused where the provider would."""

    def answer(self, body: Body, reply: Reply, /) -> Body:
        """Give an answer as one JSON object."""
        ...

    def error(self, failure: Failure, /) -> Body:
        """Give an error as a JSON object."""
        ...


def events(encoder: Encoder, reply: Reply) -> Iterator[bytes | Gate | Broken]:
    """Give an answer's stream: the bytes to send, with the gates and breaks between them."""
    started = False
    for step in reply.steps:
        if isinstance(step, Gate | Broken):
            yield step
            continue
        if not started:
            started = True
            yield encoder.start()
        if step:
            yield encoder.step(step)
        if isinstance(step, StreamError):
            return
    if not started:
        yield encoder.start()
    yield encoder.end()


_numbers = itertools.count(1)


def fresh_id(prefix: str) -> str:
    """Give an id that no other call or message in this process has."""
    return f"{prefix}_{next(_numbers)}"
