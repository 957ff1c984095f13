"""Poller: tells of changed threads by looking at them every so often.

For stores that nobody tells of what other processes do: files, and servers that send no news.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from turnlog.stores.watchers import Watchers, no_os_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from turnlog.names import ThreadKey

_REST: Final = 9  # times as long as it looked, so that looking takes a tenth of the time at most


class Poller:
    """Watches threads, as `Store.watch` says, in one daemon OS thread while any is watched.

    Args:
        look: gives a value that is another one after each change of a thread. One that comes back,
            such as one for all threads that do not exist, hides what was done and undone between
            two looks. It may block, and raise StoreError. It is called by whoever begins to watch
            and by the OS thread.
        period: the seconds between two looks at a thread; more where there are very many.
    """

    def __init__(self, look: Callable[[ThreadKey], Hashable], period: float) -> None:
        """Watch nothing yet."""
        self._look = look
        self._period = period
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: watch nothing; who watches is in the parent."""
        self._mutex = threading.RLock()  # a signal's handler may watch while we hold it
        self._forget()

    def _forget(self) -> None:
        self._watchers = Watchers()
        self._seen: dict[ThreadKey, Hashable] = {}
        self._end: threading.Event | None = None  # of the OS thread that looks

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Watch a thread, as `Store.watch` says.

        Raises:
            StoreError: it cannot be looked at, or the system has no OS thread to give.
        """
        seen = self._look(key)
        with self._mutex:
            stop = self._watchers.add(key, changed)
            is_news = self._seen.setdefault(key, seen) != seen
            self._seen[key] = seen
            try:
                self._start()
            except RuntimeError as error:  # no more of them, or the interpreter is ending
                stop()
                raise no_os_thread(key, error) from error
        if is_news:
            self._watchers.tell(key)
        return stop

    def _start(self) -> None:
        if self._end is None:
            end = threading.Event()
            looking = threading.Thread(
                target=self._poll, args=(end,), name="turnlog-watch", daemon=True
            )
            looking.start()
            self._end = end

    def _poll(self, end: threading.Event) -> None:
        before = took = 0.0
        # By the shorter of two looks: one that stood still for once is no measure.
        while not end.wait(max(self._period, _REST * min(before, took))):
            began = time.monotonic()
            if not self._look_at_all(end):
                return
            before, took = took, time.monotonic() - began

    def _look_at_all(self, end: threading.Event) -> bool:
        """Tell of what has changed; say whether to go on."""
        for key in self._watchers.watched():
            before = self._seen.get(key)
            state = self._state(key)
            with self._mutex:
                if end.is_set():
                    return False
                known = self._seen.get(key)
                is_news = known != state
                if known == before:  # else who has just begun to watch has looked later than this
                    self._seen[key] = state
            if is_news:
                self._watchers.tell(key)
        with self._mutex:
            watched = self._watchers.watched()
            self._seen = {key: self._seen[key] for key in watched}
            if not watched and self._end is end:
                self._end = None
            return bool(watched)

    def _state(self, key: ThreadKey) -> Hashable:
        """Look at a thread. That it cannot be looked at is a change: who reads is told why."""
        try:
            return self._look(key)
        except Exception as error:  # noqa: BLE001 - it must not end the looking at the others
            return type(error)

    def close(self) -> None:
        """End the OS thread. Who still watches is told once more, and has to watch anew."""
        with self._mutex:
            if self._end is not None:
                self._end.set()
            watchers = self._watchers
            self._forget()
        watchers.tell_all()
