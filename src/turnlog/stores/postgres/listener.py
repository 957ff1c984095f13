"""Listens for what other processes tell by NOTIFY, and tells who watches.

A writer may die before it has told, and some servers (a standby, a pooler, other engines) have no
LISTEN. So besides, it looks at all that is watched with one query every few seconds, and where it
cannot listen twice a second.

Source: PostgreSQL documentation, LISTEN; design, section 1, stores.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import psycopg

from turnlog.names import ThreadKey
from turnlog.stores.postgres.notifier import EVERY_THREAD
from turnlog.stores.postgres.reader import names_of
from turnlog.stores.watchers import Watchers, no_os_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from turnlog.stores.postgres.connections import Bounded, Connections
    from turnlog.stores.postgres.statements import Statements

_LOOK: Final = 5.0  # seconds
_LOOK_WITHOUT_LISTEN: Final = 0.5
_WAKE: Final = 0.25  # to see whether it shall end; asks the server nothing
_LONGEST_NAP: Final = 5.0


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
            StoreError: the system has no OS thread to give.
        """
        with self._mutex:
            stop = self._watchers.add(key, changed)
            try:
                if self._listening is None:
                    self._start()
            except RuntimeError as error:  # no more of them, or the interpreter is ending
                stop()
                raise no_os_thread(key, error) from error
            except BaseException:
                stop()
                raise
            return stop

    def _start(self) -> None:
        session = _Session(self._connections.connect(), self._channel)
        self._end = threading.Event()
        listening = threading.Thread(
            target=self._listen, args=(session, self._end), name="turnlog-listen", daemon=True
        )
        try:
            listening.start()
        except BaseException:
            session.connection.close()
            raise
        self._listening = listening

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
            namespace, _, id_ = payload.partition("/")
            key = ThreadKey(namespace, id_)
            if key == EVERY_THREAD:
                self._watchers.tell_all()
            else:
                self._watchers.tell(key)
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
        rows = self.connection.execute(statements.states, names_of(keys)).fetchall()
        states = {ThreadKey(row[0], row[1]): (row[2], row[3]) for row in rows}
        before, self._states = self._states, states
        if before is None:  # nothing was looked at yet: who began to watch has not read since
            return list(keys)
        return [key for key in keys if states.get(key) != before.get(key)]
