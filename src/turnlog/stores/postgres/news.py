"""News between processes by NOTIFY and LISTEN: what the writers tell, and who is told.

A NOTIFY inside an append's transaction would have the server do one commit after the other, each
with its own sync, whoever appends to whatever (twice as slow with eight writers). So a writer tells
right after the commit, on a connection of its own, in a transaction that waits for no disk; of what
comes within some milliseconds, at once.

A writer that dies between the two has told nobody, and some servers (a standby, a pooler, other
engines) have no LISTEN. So who listens also looks every few seconds, at all it watches with one
query, and where it cannot listen twice a second.

Source: PostgreSQL documentation, NOTIFY and LISTEN; design, section 1, stores.
"""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import psycopg

from turnlog.names import ThreadKey
from turnlog.stores.watchers import Watchers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from turnlog.stores.postgres.connections import Bounded, Connections
    from turnlog.stores.postgres.statements import Statements

_GATHERING: Final = 0.02  # seconds
_IDLE: Final = 30.0
_MOST_PENDING: Final = 10_000
_LOOK: Final = 5.0
_LOOK_WITHOUT_LISTEN: Final = 0.5
_WAKE: Final = 0.25  # to see whether it shall end; asks the server nothing
_LONGEST_NAP: Final = 5.0
_EVERY_THREAD: Final = ""  # as a payload
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
            outbox.put({f"{key.namespace}/{key.id}" for key in keys})
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
                connection.execute(_NOTIFY, (self._channel, list(pending)))
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
        self._pending: set[str] = set()
        self._ending = threading.Event()

    def put(self, payloads: set[str]) -> None:
        """Add to it. The caller holds `changed`."""
        if len(self._pending) + len(payloads) > _MOST_PENDING:
            payloads = {_EVERY_THREAD}
            self._pending.clear()
        self._pending |= payloads
        self.changed.notify()

    def put_back(self, payloads: set[str]) -> None:
        """Add what could not be told; at the end nobody waits for it: who listens will look."""
        with self.changed:
            if not self._ending.is_set():
                self.put(payloads)

    def take(self) -> set[str]:
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


class Listener:
    """Tells those who watch threads what other processes, or this one, have changed.

    Args:
        connections: where its connection comes from.
        statements: the SQL.
        channel: where to listen.
    """

    def __init__(self, connections: Connections, statements: Statements, channel: str) -> None:
        """Listen to nothing yet."""
        self._connections = connections
        self._statements = statements
        self._channel = channel
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: who watches is in the parent."""
        self._mutex = threading.Lock()
        self._watchers = Watchers()
        self._listening: threading.Thread | None = None
        self._end = threading.Event()

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when a thread changes; give what ends that. Blocks at first.

        Raises:
            psycopg.Error: the server cannot be reached.
        """
        with self._mutex:
            if self._listening is None:
                session = _Session(self._connections.connect(), self._channel)
                self._end = threading.Event()
                listening = threading.Thread(
                    target=self._listen,
                    args=(session, self._end),
                    name="turnlog-listen",
                    daemon=True,
                )
                stop = self._watchers.add(key, changed)
                listening.start()
                self._listening = listening
                return stop
            return self._watchers.add(key, changed)

    def _listen(self, session: _Session | None, end: threading.Event) -> None:
        nap = _WAKE
        while True:
            try:
                if session is None:
                    session = _Session(self._connections.connect(), self._channel)
                    self._watchers.tell_all()  # what was told meanwhile, nobody heard
                while not self._ended(end):
                    self._once(session)
                    nap = _WAKE
            except psycopg.Error:
                pass  # it is looked for anew below
            else:
                session.connection.close()
                return
            if session is not None:
                session.connection.close()
                session = None
            if end.wait(nap) or self._ended(end):
                return
            nap = min(2 * nap, _LONGEST_NAP)

    def _ended(self, end: threading.Event) -> bool:
        with self._mutex:
            if not end.is_set() and self._watchers.watched():
                return False
            if self._end is end:
                self._listening = None
            return True

    def _once(self, session: _Session) -> None:
        for payload in session.heard():
            if payload == _EVERY_THREAD:
                self._watchers.tell_all()
            else:
                namespace, _, id_ = payload.partition("/")
                self._watchers.tell(ThreadKey(namespace, id_))
        for key in session.looked(self._statements, self._watchers.watched()):
            self._watchers.tell(key)

    def close(self) -> None:
        """End it. Who still watches is told once more, and has to watch anew."""
        with self._mutex:
            listening, watchers = self._listening, self._watchers
            self._end.set()
        watchers.tell_all()
        if listening is not None:
            listening.join(2 * _WAKE)
        self.after_fork()


class _Session:
    """A connection that listens, or cannot."""

    def __init__(self, connection: Bounded, channel: str) -> None:
        self.connection = connection
        self._look_at = 0.0
        self._states: dict[ThreadKey, tuple[object, int]] | None = None
        self._listens = True
        try:
            connection.execute(f"LISTEN {channel}".encode())
        except psycopg.Error:
            if connection.closed:
                raise
            self._listens = False

    def heard(self) -> list[str]:
        """Give what came within a moment."""
        if not self._listens:
            time.sleep(_WAKE)
            return []
        return [notice.payload for notice in self.connection.notifies(timeout=_WAKE, stop_after=1)]

    def looked(self, statements: Statements, keys: Collection[ThreadKey]) -> list[ThreadKey]:
        """Now and then look at all that is watched; give what has changed since."""
        if time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + (_LOOK if self._listens else _LOOK_WITHOUT_LISTEN)
        names = {
            "namespaces": [key.namespace for key in keys],
            "ids": [key.id for key in keys],
        }
        rows = self.connection.execute(statements.states, names).fetchall()
        states = {ThreadKey(row[0], row[1]): (row[2], row[3]) for row in rows}
        before, self._states = self._states, states
        if before is None:  # nothing was looked at yet: who began to watch has not read since
            return list(keys)
        return [key for key in keys if states.get(key) != before.get(key)]
