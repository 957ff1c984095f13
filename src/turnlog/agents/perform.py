"""One run: seed it from the thread, have it speak, write back what was said, however it ends.

Ended well, or cancelled, the input and all replies are written back. Failed, they are written where
there was a reply; a run that got none writes nothing, so that trying it again does not say the
input twice.

Source: spec R19 to R24; design, section 6.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypedDict, TypeVar, cast

from pydantic_ai.exceptions import RunCancelled

from turnlog.agents.writeback import Writeback, WritebackMode
from turnlog.capability import Capability, require
from turnlog.conversation import Conversation
from turnlog.engine.exchange import Exchange, Listener, OnText, OnToolCall
from turnlog.engine.history import history_of, input_turn, turns_in
from turnlog.engine.result import Output, Result
from turnlog.errors import InvalidTurn, RunFailed, WritebackFailed

if TYPE_CHECKING:
    from turnlog.message import Message
    from turnlog.thread import MemoryThread

_Said = TypeVar("_Said", covariant=True)  # noqa: PLC0105 - the name that a reader needs

Seed: TypeAlias = Callable[[Conversation], Conversation]


class RunOptions(TypedDict, total=False):
    """What every run takes beside its input.

    Attributes:
        memory: the thread that the run starts from and writes its turns back to.
        seed: gives the turns to send ahead from the thread's, such as
            `lambda conv: conv.last(40)`; all of them unless given.
        conversation: turns to send ahead after the thread's, which are not written back.
        writeback: True (the default) to append the run's turns to the thread in the end, as one
            unit; "eager" to append the input before the first request, and each reply when it is
            complete; False not to append them.
        on_text: gets each piece of text as it comes, and has the reply streamed. A plain function
            or an async one; what it raises ends the run.
        on_tool_call: gets a `ToolEvent` when a tool starts and when it ends. A plain function or
            an async one; what it raises is ignored.
    """

    memory: MemoryThread | None
    seed: Seed | None
    conversation: Conversation | None
    writeback: WritebackMode
    on_text: OnText | None
    on_tool_call: OnToolCall | None


class Speaker(Protocol[_Said]):
    """What a run has speak: our loop, or an agent of the engine's."""

    @property
    def name(self) -> str:
        """Its name, for errors."""
        ...

    async def speak(
        self, content: str | Sequence[Any], at: dt.datetime, exchange: Exchange, listener: Listener
    ) -> _Said | None:
        """Put the input to the exchange, and go on until there is a reply.

        Returns:
            The output, where it is more than the reply's text.
        """
        ...

    def explain(self, error: Exception, written: int) -> None:
        """Say in an error that is not one of ours what it concerns, and how much was written."""
        ...


async def perform(
    speaker: Speaker[Output],
    content: str | Sequence[Any],
    options: RunOptions,
    give: OnText | None = None,
) -> Result[Output]:
    """Run a speaker on an input.

    Args:
        speaker: who speaks.
        content: the input.
        options: the run's options.
        give: gets each piece of text too, after the options' `on_text`.

    Returns:
        The result.

    Raises:
        RunFailed: it ended without its reply, in our loop.
        WritebackFailed: what was said could not be written back.
        InvalidTurn, CapabilityDenied, ReadOnly, Closed: before anything was done.
    """
    return await _Run(speaker, content, options, give).perform()


class _Run(Generic[Output]):
    """One run on its way."""

    def __init__(
        self,
        speaker: Speaker[Output],
        content: str | Sequence[Any],
        options: RunOptions,
        give: OnText | None,
    ) -> None:
        self._memory = options.get("memory")
        self._subject = str(self._memory.key) if self._memory is not None else speaker.name
        require(Capability.LLM, "agent/run", self._subject)
        self._speaker = speaker
        self._content = content
        self._options = options
        self._at = dt.datetime.now(dt.UTC)
        self._input = input_turn(content, self._at)
        mode = options.get("writeback", True)
        self._writeback = Writeback(self._memory, mode, self._subject)
        self._listener = Listener(
            [options.get("on_text"), give], options.get("on_tool_call"), self._replied
        )
        self._seed = Conversation()
        self._exchange = Exchange()

    async def perform(self) -> Result[Output]:
        try:
            self._seed = await self._seeded()
            await self._writeback.soon([self._input])
            self._exchange = Exchange(history_of(self._seed))
            output = await self._speaker.speak(
                self._content, self._at, self._exchange, self._listener
            )
        except WritebackFailed:
            raise
        except BaseException as error:
            await self._ended_by(error)
            raise
        return await self._ended_well(output)

    async def _seeded(self) -> Conversation:
        """Give the turns to send ahead; what other processes appended is among them."""
        given = Conversation()
        if self._memory is not None:
            await self._memory.arefresh()
            given = self._memory.messages()
        seed = self._options.get("seed")
        if seed is not None:
            given = self._checked(seed(given), "seed gave")
        more = self._options.get("conversation")
        return given if more is None else given + self._checked(more, "conversation is")

    def _checked(self, given: object, what: str) -> Conversation:
        if isinstance(given, Conversation):
            return given
        raise InvalidTurn(
            self._subject,
            f"{what} a {type(given).__name__}, not a Conversation",
            "give a turnlog.Conversation, such as conv.last(40)",
        )

    def _turns(self) -> list[Message]:
        """Give what was said in the run up to now."""
        return [self._input, *turns_in(self._exchange.new, self._exchange.structured)]

    async def _replied(self) -> None:
        await self._writeback.soon(self._turns())

    async def _ended_by(self, error: BaseException) -> None:
        """Write back what was said until it was cancelled or failed."""
        turns = self._turns()
        cancelled = not isinstance(error, Exception) or isinstance(error, RunCancelled)
        if cancelled or len(turns) > 1:
            await self._writeback.now(turns)
        if isinstance(error, RunFailed):
            error.messages = tuple(self._exchange.messages)
            error.conversation = self._seed + turns
            error.usage = self._exchange.usage
            error.written = self._writeback.written
        elif isinstance(error, Exception):
            self._speaker.explain(error, len(self._writeback.written))

    async def _ended_well(self, output: Output | None) -> Result[Output]:
        turns = self._turns()
        response = self._exchange.response
        result = Result(
            response=response,
            output=cast("Output", response if output is None else output),
            messages=tuple(self._exchange.messages),
            conversation=self._seed + turns,
            usage=self._exchange.usage,
        )
        try:
            await self._writeback.now(turns)
        except WritebackFailed as error:
            error.result = result
            raise
        return replace(result, written=self._writeback.written)
