"""Room: bounds what waits to be committed, in bytes.

Who comes when it is full waits in line until others have left, so that a burst of appends costs
the memory that the bound allows and no more. Nobody overtakes those in line.

To find that it is not full costs a look at one attribute. What is taken may pass the bound by one
append of each thread.

Source: design, section 5.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from turnlog.interrupts import release_if_owned, wait_interruptibly

if TYPE_CHECKING:
    from collections.abc import Callable


class _Place:
    """A place in line."""

    __slots__ = ("called", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], object]) -> None:
        self.size = size
        self.wake = wake
        self.called = False  # told to come in; its room is held for it until it has come


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
        self._held = 0  # by the places that were called, and have not come yet
        self._line: dict[_Place, None] = {}  # in order

    def take(self, size: int) -> None:
        """Take room."""
        self._taken += size
        if self._taken + self._held >= self._size:
            self.full = True

    def leave(self, size: int) -> None:
        """Give room back, and let those in line come in for whom there is room now."""
        self._taken -= size
        for place in list(self._line):
            if self._taken + self._held >= self._size:
                break
            # One that was collected meanwhile has gone out of the line.
            if not place.called and place in self._line:
                self._call(place)
        self.full = self._taken + self._held >= self._size

    def _call(self, place: _Place) -> None:
        """Tell a place's caller to come in, and hold its room for it."""
        place.called = True
        self._held += place.size
        try:
            place.wake()
        except RuntimeError:  # its loop was closed, or it was woken before: it needs no room
            del self._line[place]
            self._held -= place.size

    def set_taken(self, size: int) -> None:
        """Count again what tickets take, after an exception from outside; call those in line again.

        One that was called may not have been woken.
        """
        self._taken = size
        self._held = 0
        for place in self._line:
            place.called = False
        self.leave(0)

    def wait(self, size: int) -> None:
        """Wait in line for room of a size, to be taken at once. Blocks."""
        called = threading.Lock()
        called.acquire()
        place = _Place(size, called.release)
        try:
            self._line_up(place)
            wait_interruptibly(lambda seconds: called.acquire(timeout=seconds))
            self._come(place)
        except BaseException:
            self._give_up(place)
            raise

    async def await_(self, size: int) -> None:
        """Wait in line for room of a size, to be taken at once. Does not block the loop."""
        import asyncio  # noqa: PLC0415 - takes as long to import as all the rest

        loop = asyncio.get_running_loop()
        called = asyncio.Event()
        place = _Place(size, lambda: loop.call_soon_threadsafe(called.set))
        try:
            self._line_up(place)
            await called.wait()
            self._come(place)
        except GeneratorExit:  # the task was collected, maybe while its OS thread has the mutex
            self._come(place)
            raise
        except BaseException:
            self._give_up(place)
            raise

    def _line_up(self, place: _Place) -> None:
        with self._mutex:
            self._line[place] = None
            self.leave(0)

    def _come(self, place: _Place) -> None:
        """Come in from the line."""
        with self._mutex:
            if place in self._line:
                del self._line[place]
                if place.called:
                    self._held -= place.size
                self.leave(0)

    def _give_up(self, place: _Place) -> None:
        """Go away after an exception, which may have been raised at any line."""
        release_if_owned(self._mutex)
        with self._mutex:
            self._line.pop(place, None)
            self.set_taken(self._taken)
