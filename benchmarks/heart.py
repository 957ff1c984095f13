"""How late an event loop is: a task that sleeps 1 ms at a time, and when it woke."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Self

_BEAT: Final = 0.001


class Heart:
    """Beats in the running loop, and keeps by how much each beat was late, in seconds."""

    async def __aenter__(self) -> Self:
        """Begin to beat."""
        self.late: list[float] = []
        self._beating = True
        self._task = asyncio.create_task(self._beats())
        await asyncio.sleep(0.01)
        self.late.clear()
        return self

    async def _beats(self) -> None:
        while self._beating:
            start = time.perf_counter()
            await asyncio.sleep(_BEAT)
            self.late.append(time.perf_counter() - start - _BEAT)

    async def __aexit__(self, *_: object) -> None:
        """Stop when the last beat has come."""
        self._beating = False
        await self._task

    @property
    def worst(self) -> float:
        """The longest delay."""
        return max(self.late)

    @property
    def p99(self) -> float:
        """The 99th percentile of the delays; a stall counts for each of the beats that it took."""
        beats: list[float] = []
        for late in self.late:
            rest = late
            while rest > 0:
                beats.append(rest)
                rest -= _BEAT
        return sorted(beats)[int(len(beats) * 0.99)] if beats else 0.0
