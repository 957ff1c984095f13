"""The reference store: threads in a dictionary, for tests and for threads that need no disk."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from turnlog.codec import keys_of
from turnlog.interrupts import release_if_owned
from turnlog.stores.base import START, Append, Outcome, Position, Read, ThreadInfo, replaced
from turnlog.stores.watchers import Watchers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from turnlog.names import ThreadKey


@dataclass(slots=True)
class _Life:
    """One thread, from its first line to its deletion."""

    number: int
    lines: list[bytes] = field(default_factory=list[bytes])
    modified: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))

    def read(self, start: int) -> Read:
        lines = self.lines[start:]
        end = len(self.lines)
        return Read(lines, Position(self.number, end, end), keys_of(lines))


class InMemoryStore:
    """A store that keeps its threads as long as it lives. Nothing is durable beyond the process.

    Share one between several memories to stand for several processes on one store.
    """

    read_only = False
    commits_at_once: int = 1
    commits_in_caller: bool = True

    def __init__(self) -> None:
        """Make an empty store."""
        self._lives: dict[ThreadKey, _Life] = {}
        self._numbers = itertools.count(1)
        self._turn_locks: set[ThreadKey] = set()
        self._mutex = threading.RLock()
        self._watchers = Watchers()

    def load(self, key: ThreadKey) -> Read:
        """Read a thread from its start."""
        with self._mutex:
            life = self._lives.get(key)
            return life.read(0) if life else Read()

    def tail(self, key: ThreadKey, count: int) -> Read:
        """Read the end of a thread."""
        with self._mutex:
            life = self._lives.get(key)
            return life.read(max(0, len(life.lines) - count)) if life else Read()

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Append to each thread of the batch."""
        try:
            return [self._append(append) for append in batch]
        except BaseException:
            self._watchers.release()
            release_if_owned(self._mutex)
            raise

    def _append(self, append: Append) -> Outcome:
        with self._mutex:
            outcome = self._appended(append)
        if outcome.position != outcome.news.position:
            self._watchers.tell(append.key)
        return outcome

    def _appended(self, append: Append) -> Outcome:
        life = self._lives.get(append.key)
        known = append.position
        if known != START and (life is None or life.number != known.incarnation):
            return Outcome(Read(position=known), known, replaced(append.key))
        news = life.read(known.offset) if life else Read()
        lines = append.decide(news)
        if not lines:
            return Outcome(news, news.position)
        if life is None:
            life = self._lives[append.key] = _Life(next(self._numbers))
        life.lines.extend(lines)
        life.modified = dt.datetime.now(dt.UTC)
        return Outcome(news, Position(life.number, len(life.lines), len(life.lines)))

    def threads(self, namespace: str | None = None) -> Iterator[ThreadInfo]:
        """List the threads, by namespace and id."""
        with self._mutex:
            lives = sorted(self._lives.items())
        for key, life in lives:
            if namespace in {None, key.namespace}:
                size = sum(len(line) + 1 for line in life.lines)
                yield ThreadInfo(key.namespace, key.id, size, life.modified)

    def delete(self, key: ThreadKey) -> bool:
        """Forget a thread."""
        with self._mutex:
            existed = self._lives.pop(key, None) is not None
        if existed:
            self._watchers.tell(key)
        return existed

    def try_turn_lock(self, key: ThreadKey) -> Callable[[], None] | None:
        """Take a thread's turn lock."""
        with self._mutex:
            if key in self._turn_locks:
                return None
            self._turn_locks.add(key)
            return partial(self._turn_locks.discard, key)

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Tell of each append and of the deletion."""
        return self._watchers.add(key, changed)

    def after_fork(self) -> None:
        """Free the child of the locks that the parent's threads held, and of its watchers."""
        self._mutex = threading.RLock()
        self._turn_locks.clear()
        self._watchers.after_fork()

    def close(self) -> None:
        """Keep the threads: another memory may be opened on this store."""
