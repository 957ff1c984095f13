"""One run: seed it from the thread, have it speak, write back what was said, however it ends.

Ended well, or cancelled, the input and all replies are written back. Failed, they are written where
there was a reply; a run that got none writes nothing, so that trying it again does not say the
input twice.

Source: spec R19 to R24; design, section 6.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
)

import anyio

from turnlog.agents.writeback import Writeback, WritebackMode
from turnlog.capability import Capability, require
from turnlog.conversation import Conversation
from turnlog.engine.exchange import Exchange
from turnlog.engine.history import (
    SystemTurns,
    checked_system_turns,
    history_of,
    input_turn,
    turns_in,
)
from turnlog.engine.listener import Listener, OnText, OnToolCall
from turnlog.engine.options import refuse_unknown
from turnlog.engine.result import Output, Result
from turnlog.engine.shield import is_cancellation
from turnlog.engine.stopping import under_way
from turnlog.errors import CapabilityDenied, InvalidTurn, RunFailed, WritebackFailed
from turnlog.thread import MemoryThread

if TYPE_CHECKING:
    from turnlog.message import Message

_Said = TypeVar("_Said", covariant=True)  # noqa: PLC0105 - the name that a reader needs

Seed: TypeAlias = Callable[[Conversation], Conversation]


class RunOptions(TypedDict, total=False):
    """What every run takes beside its input.

    Attributes:
        memory: the thread that the run starts from and writes its turns back to.
        seed: gives the turns to send ahead from the thread's, such as
            `lambda conv: conv.last(40)`; all of them unless given.
        conversation: turns to send ahead after the thread's, which are not written back.
        system_turns: what the model is told by the system turns among these. "system" (the default)
            sends them as system text behind the agent's own; "user" sends them as the user's text,
            in their place; "omit" leaves them out. The agent's own system text is always first.
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
    system_turns: SystemTurns
    writeback: WritebackMode
    on_text: OnText | None
    on_tool_call: OnToolCall | None


class Speaker(Protocol[_Said]):
    """What a run has speak: our loop, or an agent of the engine's."""

    @property
    def name(self) -> str:
        """Its name, for errors."""
        ...

    async def speak(self, given: Input, exchange: Exchange, listener: Listener) -> _Said:
        """Put the input to the exchange, go on until there is a reply, and give the output."""
        ...

    def explain(self, error: Exception, subject: str, written: int) -> None:
        """Say in an error that is not one of ours what it concerns, and how much was written."""
        ...


class Input(NamedTuple):
    """What a run is given to say.

    Attributes:
        subject: the thread and the agent, for errors.
        content: what the user says.
        at: when.
    """

    subject: str
    content: str | Sequence[Any]
    at: dt.datetime


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
    run = _Run(speaker, content, options, give)
    with under_way():
        return await run.perform()


def _checked_thread(memory: object, name: str) -> MemoryThread | None:
    if memory is None or isinstance(memory, MemoryThread):
        return memory
    raise InvalidTurn(
        name,
        f"memory is a {type(memory).__name__}, not a thread",
        "give what turnlog.open, or the open of a Memory, gives",
    )


class _Run(Generic[Output]):
    """One run on its way."""

    def __init__(
        self,
        speaker: Speaker[Output],
        content: str | Sequence[Any],
        options: RunOptions,
        give: OnText | None,
    ) -> None:
        refuse_unknown(options, RunOptions, "a run")
        self._memory = _checked_thread(options.get("memory"), speaker.name)
        thread = "" if self._memory is None else f"{self._memory.key}, "
        self._subject = f"{thread}{speaker.name}"
        require(Capability.LLM, "agent/run", self._subject)
        self._speaker = speaker
        self._options = options
        now = dt.datetime.now(dt.UTC)
        self._given = Input(self._subject, content, now)
        self._input = input_turn(content, now)
        mode = options.get("writeback", True)
        self._writeback = Writeback(self._memory, mode, self._subject)
        self._listener = Listener(
            [options.get("on_text"), give], options.get("on_tool_call"), self._replied
        )
        self._system_turns: SystemTurns = checked_system_turns(
            options.get("system_turns", "system"), self._subject
        )
        self._seed = Conversation()
        self._exchange = Exchange()

    async def perform(self) -> Result[Output]:
        try:
            self._seed = await self._seeded()
            await self._writeback.soon([self._input])
            self._exchange = Exchange(history_of(self._seed, self._system_turns))
            output = await self._speaker.speak(self._given, self._exchange, self._listener)
        except GeneratorExit:  # nothing can be awaited any more
            raise
        except BaseException as error:
            if error is not self._writeback.failed:
                await self._ended_by(error)
            raise
        return await self._ended_well(output)

    async def _seeded(self) -> Conversation:
        """Give the turns to send ahead; what other processes appended is among them."""
        given = Conversation()
        if self._memory is not None:
            # Shielded, as a writeback is. A run that writes nothing needs no capability to read.
            with anyio.CancelScope(shield=True), suppress(CapabilityDenied):
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
        return [self._input, *turns_in(self._exchange.spoken)]

    async def _replied(self) -> None:
        await self._writeback.soon(self._turns())

    async def _ended_by(self, error: BaseException) -> None:
        """Write back what was said until it was cancelled or failed."""
        turns = self._turns()
        replied = any(turn.role == "assistant" for turn in turns)
        if replied or is_cancellation(error):
            await self._writeback.now(turns)
        if isinstance(error, RunFailed) and not error.messages:  # else it is another run's
            error.messages = tuple(self._exchange.messages)
            error.conversation = self._seed + turns
            error.usage = self._exchange.usage
            error.written = self._writeback.written
        elif isinstance(error, Exception):
            self._speaker.explain(error, self._subject, len(self._writeback.written))

    async def _ended_well(self, output: Output) -> Result[Output]:
        turns = self._turns()
        result = Result(
            response=self._exchange.response,
            output=output,
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
