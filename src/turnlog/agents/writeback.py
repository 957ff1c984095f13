"""Writeback: what was said in a run goes to its thread, and no cancellation keeps it from there.

At the end of the run its turns are appended as one unit; or, eagerly, the input before the first
request and each reply when it is complete. The append is shielded: a cancellation, and a second
one, go on their way after it. It takes as long as the store takes.

Source: spec R21 to R23; design, section 6.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from turnlog.display import counted
from turnlog.errors import InvalidTurn, OutcomeUnknown, TurnlogError, WritebackFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnlog.message import Message
    from turnlog.thread import MemoryThread

WritebackMode: TypeAlias = bool | Literal["eager"]


class Writeback:
    """Writes a run's turns to a thread, each once.

    Args:
        thread: the thread; None for a run without memory.
        mode: True to write at the end, "eager" to write each turn when it is complete, False not to
            write.
        subject: whose run it is, for errors.

    Attributes:
        written: the turns that the thread has.
        failed: why some could not be written.

    Raises:
        InvalidTurn: the mode is none of these.
        CapabilityDenied, ReadOnly, Closed: the thread would take no turns.
    """

    def __init__(self, thread: MemoryThread | None, mode: WritebackMode, subject: str) -> None:
        """Check that there may be written, before anything is asked of a model."""
        if mode not in (True, False, "eager"):
            raise InvalidTurn(subject, f"writeback is {mode!r}", "use True, False or 'eager'")
        self._thread = thread if mode else None
        self._eager = mode == "eager"
        self.written: tuple[Message, ...] = ()
        self.failed: WritebackFailed | None = None
        if self._thread is not None:
            self._thread.check_may_append()

    async def soon(self, turns: Sequence[Message]) -> None:
        """Append what is complete, where that is done eagerly."""
        if self._eager:
            await self.now(turns)

    async def now(self, turns: Sequence[Message]) -> None:
        """Append those of the run's turns that were not appended before.

        Raises:
            WritebackFailed: the store could not do it.
        """
        new = turns[len(self.written) :]
        if self._thread is None or not new:
            return
        cancelled: asyncio.CancelledError | None = None
        lost: TurnlogError | None = None
        try:
            with anyio.CancelScope(shield=True):  # else the loop would spin until it is done
                await self._thread.aextend(new)
        except asyncio.CancelledError as cancellation:  # after the outcome (contract, point 7)
            cancelled, cause = cancellation, cancellation.__cause__
            lost = cause if isinstance(cause, TurnlogError) else None
        except TurnlogError as error:
            lost = error
        except Warning:  # where warnings are errors: it comes after the append
            self.written += tuple(new)
            raise
        if lost is not None:
            failed = self._failed(self._thread, new, lost)
            failed.__context__ = cancelled
            raise failed from lost
        self.written += tuple(new)
        if cancelled is not None:
            raise cancelled

    def _failed(
        self, thread: MemoryThread, turns: Sequence[Message], error: TurnlogError
    ) -> WritebackFailed:
        unknown = isinstance(error, OutcomeUnknown)
        hint = "open the thread again, and look whether it has them" if unknown else error.hint
        failed = WritebackFailed(
            thread.key,
            f"the run's {counted(len(turns), 'turn')} could not be written back ({error.what})",
            f"they are in .turns of this error; {hint}",
        )
        failed.turns = tuple(turns)
        self.failed = failed
        return failed
