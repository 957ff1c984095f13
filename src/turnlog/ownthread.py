"""Work in OS threads of our own, for what may block for long while an event loop goes on.

Never in the loop's pool: it may have been shut down, and all of its threads may be waiting for what
this work lets go of. Where the system has no more threads, the work is done in the caller's.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

_Result = TypeVar("_Result")

_MOST_WORKERS: Final = 32


def in_own_thread(work: Callable[[], _Result]) -> Future[_Result]:
    """Do something in an OS thread of its own; it goes on when its future is cancelled."""
    future: Future[_Result] = _running()
    try:
        _thread(lambda: _do(work, future), "turnlog-own").start()
    except RuntimeError:  # the system has no more of them: better here than never
        _do(work, future)
    return future


class Workers:
    """OS threads that share the work which they are given; each ends when there is none left.

    Args:
        most: how many there are at most, about.
    """

    def __init__(self, most: int) -> None:
        """Begin with none of them."""
        self._most = most
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._threads: set[threading.Thread] = set()

    def submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        """Have something done; it is done although its future is cancelled."""
        future: Future[_Result] = _running()
        self._jobs.append((work, future))
        if len(self._threads) < self._most and not self._start() and not self._threads:
            self._work()
        return future

    def _start(self) -> bool:
        thread = _thread(self._serve, "turnlog-worker")
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.discard(thread)
            return False
        except BaseException:
            self._threads.discard(thread)
            raise
        return True

    def _serve(self) -> None:
        this = threading.current_thread()
        while True:
            self._work()
            self._threads.discard(this)
            if not self._jobs:
                return
            self._threads.add(this)  # work came that was left to this thread

    def _work(self) -> None:
        with suppress(IndexError):  # there is none left
            while True:
                _do(*self._jobs.popleft())

    def after_fork(self) -> None:
        """In a forked child: forget the parent's work and threads."""
        self._jobs.clear()
        self._threads.clear()


def _running() -> Future[Any]:
    from concurrent.futures import Future  # noqa: PLC0415 - loaded when it is needed

    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _thread(work: Callable[[], None], name: str) -> threading.Thread:
    return threading.Thread(target=work, name=name, daemon=True)


def _do(work: Callable[[], _Result], future: Future[_Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it is the awaiting task's
        future.set_exception(error)


workers: Final = Workers(_MOST_WORKERS)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=workers.after_fork)
