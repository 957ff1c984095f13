"""Tells other processes by NOTIFY which threads have changed.

A NOTIFY inside an append's transaction would have the server do one commit after the other, each
with its own sync, whoever appends to whatever (half as fast with eight writers). So a writer tells
right after the commit, on a connection of its own, in a transaction that waits for no disk; of what
comes within some milliseconds, at once. A writer that dies in between has told nobody: who listens
looks now and then, too.

Source: PostgreSQL documentation, NOTIFY; design, section 1, stores.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import psycopg

from turnlog.names import ThreadKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnlog.stores.postgres.connections import Bounded, Connections

EVERY_THREAD: Final = ThreadKey("", "")  # which is no thread's
_GATHERING: Final = 0.02  # seconds
_IDLE: Final = 30.0
_MOST_PENDING: Final = 10_000
_LONGEST_NAP: Final = 5.0
_NOTIFY: Final = "SELECT pg_notify(%s, payload) FROM unnest(%b::text[]) AS p (payload)"


def channel_of(tables: str) -> str:
    """Give the channel of a store's news; a database has one set of channels for all schemas."""
    return "turnlog_" + blake2b(tables.encode(), digest_size=8).hexdigest()


class Notifier:
    """Tells other processes which threads have changed, in an OS thread of its own.

    Args:
        connections: where its connection comes from.
        channel: where to tell.
    """

    def __init__(self, connections: Connections, channel: str) -> None:
        """Tell nothing yet."""
        self._connections = connections
        self._channel = channel
        self.after_fork()
        _notifiers.add(self)

    def after_fork(self) -> None:
        """In a forked child: what the parent has to tell, it tells."""
        self._outbox = _Outbox()

    def tell(self, keys: Iterable[ThreadKey]) -> None:
        """Have it told soon. Does not block."""
        outbox = self._outbox
        with outbox.changed:
            outbox.put(set(keys))
            if outbox.telling is None:
                telling = threading.Thread(
                    target=self._work, args=(outbox,), name="turnlog-notify", daemon=True
                )
                with suppress(RuntimeError):  # no more of them, or the interpreter is ending
                    telling.start()
                    outbox.telling = telling

    def _work(self, outbox: _Outbox) -> None:
        connection: Bounded | None = None
        nap = _GATHERING
        while pending := outbox.take():
            try:
                if connection is None:
                    connection = self._connections.connect()
                    connection.execute("SET synchronous_commit = off")
                payloads = [f"{namespace}/{id_}" for namespace, id_ in pending]
                connection.execute(_NOTIFY, (self._channel, payloads))
                nap = _GATHERING
            except psycopg.Error:
                if connection is not None:
                    connection.close()
                connection = None
                nap = min(2 * nap, _LONGEST_NAP)
                outbox.put_back(pending)
            outbox.rest(nap)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Tell what is still to be told, if the server answers, and end."""
        outbox, self._outbox = self._outbox, _Outbox()
        telling = outbox.end()
        if telling is not None:
            telling.join(min(self._connections.patience, _LONGEST_NAP))


_notifiers: Final[WeakSet[Notifier]] = WeakSet()


@atexit.register
def _tell_the_rest() -> None:
    """At the end of the program, tell what memories have to tell that nobody has closed."""
    for notifier in list(_notifiers):
        notifier.close()


class _Outbox:
    """What is to be told.

    Attributes:
        changed: to be held for all but the methods that take it themselves.
        telling: the OS thread that tells it; None where there is none.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.telling: threading.Thread | None = None
        self._pending: set[ThreadKey] = set()
        self._ending = threading.Event()

    def put(self, keys: set[ThreadKey]) -> None:
        """Add to it. The caller holds `changed`."""
        if len(self._pending) + len(keys) > _MOST_PENDING:
            keys = {EVERY_THREAD}
            self._pending.clear()
        self._pending |= keys
        self.changed.notify()

    def put_back(self, keys: set[ThreadKey]) -> None:
        """Add what could not be told; at the end nobody waits for it: who listens will look."""
        with self.changed:
            if not self._ending.is_set():
                self.put(keys)

    def take(self) -> set[ThreadKey]:
        """Take all of it; wait for some. Where there is none for long, the OS thread is to end."""
        with self.changed:
            self.changed.wait_for(lambda: self._pending or self._ending.is_set(), _IDLE)
            pending, self._pending = self._pending, set()
            if not pending:
                self.telling = None
            return pending

    def rest(self, seconds: float) -> None:
        """Let more come, and be woken by none of it."""
        self._ending.wait(seconds)

    def end(self) -> threading.Thread | None:
        """Have the OS thread end when all is told; give it."""
        with self.changed:
            self._ending.set()
            self.changed.notify_all()
            return self.telling
