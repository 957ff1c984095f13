"""Room: bounds what waits to be committed, in bytes.

Who comes when it is full waits in line until others have left, so that a burst of appends costs
the memory that the bound allows and no more. Nobody overtakes those in line.

To find that it is not full costs a look at one attribute. What is taken may pass the bound by one
append of each thread.

Source: design, section 5.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from turnlog.interrupts import wait_interruptibly

if TYPE_CHECKING:
    from collections.abc import Callable


class _Place:
    """A place in line."""

    __slots__ = ("called", "gone", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], object]) -> None:
        self.size = size
        self.wake = wake
        self.called = False  # told to come in; its room is held for it
        self.gone = False


class Room:
    """Room for so many bytes.

    Args:
        size: how many.
        mutex: of whom it belongs to; `take` and `leave` are called with it held.

    Attributes:
        full: whether who comes now has to wait.
    """

    def __init__(self, size: int, mutex: threading.RLock) -> None:
        """Begin with all of it free."""
        self.full: bool = False
        self._size = size
        self._mutex = mutex
        self._taken = 0
        self._line: deque[_Place] = deque()

    def take(self, size: int) -> None:
        """Take room."""
        self._taken += size
        if self._taken >= self._size:
            self.full = True

    def leave(self, size: int) -> None:
        """Give room back, and let those in line come in for whom there is room now."""
        self._taken -= size
        while self._line and (self._line[0].gone or self._taken < self._size):
            place = self._line.popleft()
            if not place.gone and _call(place):
                self._taken += place.size
        self.full = bool(self._line) or self._taken >= self._size

    def wait(self, size: int) -> None:
        """Wait in line for room of a size, to be taken at once. Blocks."""
        called = threading.Event()
        place = _Place(size, called.set)
        try:
            self._line_up(place)
            wait_interruptibly(called.wait)
        finally:
            self._come(place)

    async def await_(self, size: int) -> None:
        """Wait in line for room of a size, to be taken at once. Does not block the loop."""
        import asyncio  # noqa: PLC0415 - takes as long to import as all the rest

        loop = asyncio.get_running_loop()
        called = asyncio.Event()
        place = _Place(size, lambda: loop.call_soon_threadsafe(called.set))
        try:
            self._line_up(place)
            await called.wait()
        finally:
            self._come(place)

    def _line_up(self, place: _Place) -> None:
        with self._mutex:
            self._line.append(place)
            self.leave(0)

    def _come(self, place: _Place) -> None:
        """Come in from the line, or go away where the wait was broken off."""
        with self._mutex:
            place.gone = True
            self.leave(place.size if place.called else 0)


def _call(place: _Place) -> bool:
    """Tell who waits to come in; say whether that is still possible."""
    try:
        place.wake()
    except RuntimeError:  # its loop was closed: nobody waits any more
        return False
    place.called = True
    return True
