"""Runs syncs side by side, in a few OS threads that live as long as their store.

Not an executor's threads: an exception from outside, in the midst of a call of an executor, can
leave its locks taken for good. Here the calling thread takes none.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MOST_AT_ONCE: Final = 8


class _Work:
    """Calls to be made, by the calling thread and its helpers."""

    def __init__(self, calls: Iterable[Callable[[], None]]) -> None:
        self.waiting = deque(calls)
        self._helpers: set[int] = set()  # the OS threads that make calls, beside the calling one
        self.raised: BaseException | None = None
        self._ended: SimpleQueue[None] = SimpleQueue()

    def do(self) -> None:
        """Make calls until none waits."""
        with suppress(IndexError):
            while True:
                self.waiting.popleft()()

    def help(self) -> None:
        """Make calls as a helper, and say when that has ended."""
        helper = threading.get_ident()
        self._helpers.add(helper)  # before it takes a call, so that it is waited for
        try:
            self.do()
        except BaseException as error:  # noqa: BLE001 - it is raised where the work is waited for
            self.raised = error
        self._helpers.discard(helper)
        self._ended.put(None)

    def wait(self) -> None:
        """Wait for the helpers; no call waits any more. May be called again after an exception."""
        while self._helpers:
            self._ended.get()


class SyncThreads:
    """Makes calls side by side. For one calling thread at a time."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: start without threads."""
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._started = 0
        self._work = _Work(())

    def run(self, calls: Iterable[Callable[[], None]]) -> None:
        """Make calls side by side; return when all have ended. Blocks.

        Raises:
            BaseException: what a call raised; others may not have been made.
        """
        work = self._work = _Work(calls)
        helpers = min(_MOST_AT_ONCE, len(work.waiting)) - 1
        self._start(helpers)
        for _ in range(min(helpers, self._started)):
            self._queue.put(work)
        work.do()
        work.wait()
        if work.raised is not None:
            raise work.raised

    def _start(self, count: int) -> None:
        with suppress(RuntimeError):  # the interpreter is ending, or has no more threads
            while self._started < count:
                thread = threading.Thread(target=_serve, args=(self._queue,), daemon=True)
                thread.name = "turnlog-sync"
                thread.start()
                self._started += 1

    def abandon(self) -> None:
        """After an exception: make no more calls, and wait for those under way. Blocks."""
        self._work.waiting.clear()
        self._work.wait()

    def close(self) -> None:
        """End the threads. May be called again."""
        for _ in range(self._started):
            self._queue.put(None)
        self._started = 0


def _serve(queue: SimpleQueue[_Work | None]) -> None:
    while (work := queue.get()) is not None:
        work.help()
        del work  # or it would keep the files of its last batch
