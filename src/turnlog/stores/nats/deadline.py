"""Deadline: how long something may still take."""

from __future__ import annotations

import time


class Deadline:
    """So many seconds from now, or from the last time that there was any progress.

    Args:
        seconds: how long.
    """

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self.seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Begin again, since there was progress."""
        self._at = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """The seconds that are left, 0 at least."""
        return max(0.0, self._at - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._at
