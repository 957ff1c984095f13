"""Keeps Ctrl-C waiting while something must not be broken off, and hears it while one waits.

Source: design, section 4, point 7.
"""

from __future__ import annotations

import importlib
import math
import threading
import time
from contextlib import suppress
from signal import SIGINT
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# What the signal module itself calls, without its enums: they take longer than all of a ticket.
_signals: Final[Any] = importlib.import_module("_signal")

# Seconds. A signal wakes what waits only where it reaches the main thread, and only once that has
# begun to wait: for one that comes as it is about to, or that the system gives to another OS
# thread, whoever may wait for long has to look.
LOOK: Final = 1.0


class Uninterrupted:
    """Keeps Ctrl-C waiting until the end of the block. In the main thread; else it does nothing."""

    __slots__ = ("_noted", "previous")

    def __enter__(self) -> None:
        """Take SIGINT's place, where this is the thread that signals reach."""
        self._noted: tuple[int, FrameType | None] | None = None
        self.previous: Any = None
        if threading.get_ident() == threading.main_thread().ident:
            previous = _signals.getsignal(SIGINT)
            if callable(previous):
                try:
                    _signals.signal(SIGINT, self._note)
                    self.previous = previous
                except ValueError:  # a subinterpreter has no signals
                    pass

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = (number, frame)

    def __exit__(self, *_: object) -> None:
        """Give it back, and let through what came meanwhile."""
        if self.previous is not None:
            _signals.signal(SIGINT, self.previous)
            if self._noted is not None:
                self.previous(*self._noted)


def restore_interrupts() -> None:
    """In a forked child: undo what an append of the parent's main thread had set for a while."""
    handler = _signals.getsignal(SIGINT)
    keeper = getattr(handler, "__self__", None)
    if isinstance(keeper, Uninterrupted):
        with suppress(ValueError):  # not the main thread
            _signals.signal(SIGINT, keeper.previous)


def wait_interruptibly(wait: Callable[[float], bool], seconds: float | None = None) -> bool:
    """Wait, and let Ctrl-C through within a second. Blocks.

    Args:
        wait: waits at most so many seconds, and says whether what it waits for has come.
        seconds: how long to wait; None is for ever.

    Returns:
        Whether it has come.
    """
    deadline = time.monotonic() + (math.inf if seconds is None else seconds)
    while True:
        left = deadline - time.monotonic()
        if wait(max(0.0, min(left, LOOK))):
            return True
        if left <= LOOK:
            return False
