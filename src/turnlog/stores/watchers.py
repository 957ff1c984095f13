"""Watchers: who wants to be told of which thread, for the stores that have to tell them."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from turnlog.errors import StoreError
from turnlog.interrupts import release_if_owned

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnlog.names import ThreadKey

    _Changed: TypeAlias = Callable[[], None]


def no_os_thread(key: ThreadKey, error: RuntimeError) -> StoreError:
    """Make the error for a thread that cannot be watched, since the system gives no OS thread."""
    return StoreError(key, f"it cannot be watched: {error}", "end some of the process's threads")


class Watchers:
    """The callbacks of those who watch threads. Its methods may be called in any OS thread."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._mutex = threading.RLock()  # a signal's handler may watch while we hold it
        self._by_key: dict[ThreadKey, dict[object, _Changed]] = {}

    def add(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when a thread's watchers are told; give what ends that."""
        watch = object()
        with self._mutex:
            self._by_key.setdefault(key, {})[watch] = changed
        return partial(self._remove, key, watch)

    def _remove(self, key: ThreadKey, watch: object) -> None:
        with self._mutex:
            of_thread = self._by_key.get(key)
            if of_thread is not None and of_thread.pop(watch, None) and not of_thread:
                del self._by_key[key]

    def watched(self) -> list[ThreadKey]:
        """Give the threads that somebody watches."""
        with self._mutex:
            return list(self._by_key)

    def tell(self, key: ThreadKey) -> None:
        """Tell a thread's watchers. The caller holds no lock that they might want."""
        with self._mutex:
            watching = list(self._by_key.get(key, {}).values())
        for changed in watching:
            changed()

    def release(self) -> None:
        """Release what an exception from outside has left locked by this OS thread."""
        release_if_owned(self._mutex)

    def tell_all(self) -> None:
        """Tell everybody."""
        for key in self.watched():
            self.tell(key)

    def after_fork(self) -> None:
        """In a forked child: who watches is in the parent."""
        self._mutex = threading.RLock()
        self._by_key.clear()
