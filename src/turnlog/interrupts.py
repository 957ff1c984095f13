"""Defers signals while something must not be broken off, and lets Ctrl-C through while one waits.

A handler of a signal may raise: Ctrl-C's does, so does an alarm that ends a job, or one that calls
`sys.exit` at SIGTERM. Python runs it in the main thread, between any two steps of what runs there.

Source: design, section 4, point 7; cases C33 and C45.
"""

from __future__ import annotations

import importlib
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# What the signal module itself calls, without its enums: they take longer than all of a ticket.
_signals: Final[Any] = importlib.import_module("_signal")

# Seconds. A signal wakes what waits only where it reaches the main thread, and only once that has
# begun to wait: for one that comes as it is about to, or that the system gives to another OS
# thread, whoever may wait for long has to look.
LOOK: Final = 1.0

# Those by which programs end or limit work. To look for a handler of every signal would take twice
# as long; a handler of another one that raises is an exception from outside like any other.
_DEFERRED: Final[tuple[int, ...]] = tuple(
    getattr(_signals, name)
    for name in (
        *("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGBREAK", "SIGUSR1", "SIGUSR2", "SIGCHLD"),
        *("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGXFSZ", "SIGPIPE", "SIGIO"),
    )
    if hasattr(_signals, name)
)


class DeferredSignals:
    """Keeps handlers of signals waiting until `end`. In the main thread; else it does nothing.

    An exception at any line leaves no handler replaced where both ways out call `end`:

        try:
            signals.begin()
            ...
            signals.end()
        except BaseException:
            signals.end()
            raise

    A `with` block does the same, for what is not to withstand exceptions of other kinds: those
    that another OS thread sets.
    """

    __slots__ = ("_note", "_noted", "_previous")

    def __init__(self) -> None:
        """Defer nothing yet."""
        self._previous: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._noted: list[tuple[int, FrameType | None]] = []
        self._note = self._noted_by  # one object, to be told from other handlers

    def begin(self) -> None:
        """Take the place of every handler, where this is the thread that signals reach."""
        if threading.get_ident() != threading.main_thread().ident:
            return
        for number in _DEFERRED:
            handler = _signals.getsignal(number)
            if callable(handler):
                self._previous[number] = handler
                try:
                    _signals.signal(number, self._note)
                except ValueError as error:
                    trace = error.__traceback__
                    if trace is not None and trace.tb_next is not None:
                        raise  # a handler has
                    self._previous.clear()  # a subinterpreter has no signals
                    return

    def _noted_by(self, number: int, frame: FrameType | None) -> None:
        self._noted.append((number, frame))

    def end(self) -> None:
        """Put the handlers back, and call those whose signals came. May be called again.

        Raises:
            BaseException: what a handler raises. Of several, one that is not an Exception, such as
                SystemExit, comes before the others.
        """
        raised: BaseException | None = None
        while self._previous:
            try:
                self._finish()
            except BaseException as error:  # noqa: BLE001 - the other handlers have to be put back
                raised = _graver(raised, error)
        if raised is not None:
            raise raised

    def _finish(self) -> None:
        for number, handler in self._previous.items():
            if _signals.getsignal(number) is self._note:
                _signals.signal(number, handler)
        self.let_through()
        self._previous = {}

    def let_through(self) -> None:
        """Call the handlers whose signals came, where an exception would do no harm."""
        while self._noted:
            number, frame = self._noted[0]
            del self._noted[0]
            self._previous[number](number, frame)

    def forget(self) -> None:
        """In a forked child: put the handlers back; what came meanwhile came to the parent."""
        self._noted.clear()
        self.end()

    def __enter__(self) -> Self:
        """Begin."""
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self.end()


def _graver(first: BaseException | None, second: BaseException) -> BaseException:
    """Return the exception that must not be swallowed, or else the later one."""
    if first is None or first is second:
        return second
    if isinstance(second, Exception) and not isinstance(first, Exception):
        first, second = second, first
    second.__context__ = first
    return second


def release_if_owned(mutex: threading.RLock) -> None:
    """Release a mutex that an exception has left acquired by this OS thread, however often."""
    own: Any = mutex
    while own._is_owned():  # noqa: SLF001 - as Condition does
        own.release()


def restore_signals() -> None:
    """In a forked child: undo what an append of the parent's main thread had set for a while."""
    for number in _DEFERRED:
        while isinstance(keeper := _keeper_of(number), DeferredSignals):
            keeper.forget()  # there may be another, within which it had begun
            if _keeper_of(number) is keeper:
                break


def _keeper_of(number: int) -> object:
    return getattr(_signals.getsignal(number), "__self__", None)


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
