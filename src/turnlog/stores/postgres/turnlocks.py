"""The turn locks of a store: advisory locks of the server, all on one connection.

The server lets go of them when the connection ends, so the lock of a process that died is free. A
connection that is lost takes its locks with it, also of those who do not know of it yet: what must
not happen twice is for `append(expect=...)` to see to, which no lost lock can fool.

Source: PostgreSQL documentation, 13.3.5, advisory locks.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import psycopg

from turnlog.stores.postgres.connections import keep_for_parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnlog.names import ThreadKey
    from turnlog.stores.postgres.connections import Bounded, Connections


class TurnLocks:
    """The turn locks that one store holds.

    Args:
        connections: where a connection for them comes from.
    """

    def __init__(self, connections: Connections) -> None:
        """Hold none."""
        self._connections = connections
        self._mutex = threading.Lock()
        self._held: set[int] = set()
        self._connection: Bounded | None = None

    def try_lock(self, key: ThreadKey) -> Callable[[], None] | None:
        """Take a thread's lock, if nobody has it.

        Raises:
            psycopg.Error: the server could not be asked.
        """
        number = _number(self._connections.location.tables, key)
        with self._mutex:
            try:
                return self._take(number)
            except psycopg.OperationalError:
                if self._connection is not None and not self._connection.closed:
                    raise
                return self._take(number)  # on another one

    def _take(self, number: int) -> Callable[[], None] | None:
        if self._connection is None or self._connection.closed:
            self._held.clear()  # they go with the connection, and here is how
            lost, self._connection = self._connection, None
            if lost is not None:
                self._connections.lost(lost)
            self._connection = self._connections.connect()
        if number in self._held:
            return None
        query = "SELECT pg_try_advisory_lock(%s)"
        row = self._connection.execute(query, (number,)).fetchone()
        if row is None or not row[0]:
            return None
        self._held.add(number)
        return partial(self._release, self._connection, number)

    def _release(self, connection: Bounded, number: int) -> None:
        with self._mutex:
            if connection is not self._connection or number not in self._held:
                return  # another life of the lock, or it went with its connection
            self._held.discard(number)
            with suppress(psycopg.Error):  # then it goes with the connection
                connection.execute("SELECT pg_advisory_unlock(%s)", (number,))

    def after_fork(self) -> None:
        """In a forked child: hold none."""
        keep_for_parent(self._connection)
        self._connection = None
        self._mutex = threading.Lock()
        self._held.clear()

    def close(self) -> None:
        """Let go of all."""
        with self._mutex:
            connection, self._connection = self._connection, None
            self._held.clear()
        if connection is not None:
            connection.close()


def _number(tables: str, key: ThreadKey) -> int:
    """Give the number of a thread's lock, in whatever process."""
    digest = blake2b(f"{tables}/{key.namespace}/{key.id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
