"""PostgresStore: threads as rows, a row a turn, on a PostgreSQL server or one that speaks like it.

Source: spec R3; design, section 1, stores.
"""

from __future__ import annotations

import copy
import datetime as dt
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from msgspec.structs import replace
from psycopg import errors

from turnlog.errors import LockTimeout, NotWritten, ReadOnly, StoreError, UnsafeFileSystemWarning
from turnlog.names import is_plain
from turnlog.stores.base import Outcome, Position, Read, ThreadInfo
from turnlog.stores.postgres import schema
from turnlog.stores.postgres.connections import Connections, StillLocked
from turnlog.stores.postgres.failures import failure, not_written
from turnlog.stores.postgres.listener import Listener
from turnlog.stores.postgres.location import parse
from turnlog.stores.postgres.notifier import Notifier, channel_of
from turnlog.stores.postgres.reader import read, rows_of
from turnlog.stores.postgres.statements import Statements
from turnlog.stores.postgres.turnlocks import TurnLocks
from turnlog.stores.postgres.writer import Writer
from turnlog.stores.records import read_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.base import Append
    from turnlog.stores.postgres.connections import Bounded

_PAGE: Final = 1000  # threads
_COMMITS: Final = 2  # at once: the server works on one while the next is put together


class PostgresStore:
    """Threads in a database: a row a turn, in tables that are made at the first use.

    Args:
        url: a libpq URL, with `schema`, `table_prefix` and `max_connections` as parameters of ours.
        read_only: write nothing; then the tables need not be there, and a role that may only read
            is enough.
        lock_timeout: the longest wait, in seconds: for another process' lock on a thread, for the
            server's answer, and for a server that is away.

    Raises:
        UnknownStore: libpq cannot read the URL.
    """

    def __init__(self, url: str, *, read_only: bool = False, lock_timeout: float = 30.0) -> None:
        """Prepare a store; the server is spoken to when the first thread is used."""
        self.read_only = read_only
        self._location = parse(url)
        self.commits_at_once: int = min(_COMMITS, self._location.max_connections)
        self._connections = Connections(
            self._location, read_only=read_only, patience=max(lock_timeout, 0.1)
        )
        self._statements = Statements(self._location)
        self._writer = Writer(self._connections, self._statements, read_only=read_only)
        self._turn_locks = TurnLocks(self._connections)
        channel = channel_of(self._location.tables)
        self._notifier = Notifier(self._connections, channel)
        self._listener = Listener(self._connections, self._statements, channel)
        self._mutex = threading.Lock()
        self._prepared = False
        self._tries: int = 0
        self._failure: StoreError | psycopg.Error | None = None
        self._untold: list[UnsafeFileSystemWarning] = []

    def __repr__(self) -> str:
        """Show where it is, and no password."""
        return f"PostgresStore({self._location.shown!r})"

    def _prepare(self) -> None:
        """Make the tables at the first use, or only look at them. One does it for all who come."""
        if self._prepared:
            return
        tries = self._tries
        with self._mutex:
            if self._tries != tries and self._failure is not None:
                raise copy.copy(self._failure)  # which is as good as a failure of our own
            if self._prepared:
                return
            try:
                self._connections.run_apart(self._look_at_tables)
                self._prepared, self._failure = True, None
            except (StoreError, psycopg.Error) as error:
                self._failure = error
                raise
            finally:
                self._tries += 1

    def _look_at_tables(self, connection: Bounded) -> None:
        if self.read_only:
            schema.version(connection, self._location)
        else:
            schema.bring_up_to_date(connection, self._location)
        if connection.execute("SHOW fsync").fetchone() == ("off",):
            self._untold.append(_unsafe(self))

    # ---- reading ----

    def load(self, key: ThreadKey) -> Read:
        """Read a thread's rows from its start."""
        with _translated(key, "it cannot be read"):
            self._prepare()
            (seen,) = self._connections.run(
                lambda connection: read(connection, self._statements, [key], [0])
            )
        found = Read()
        if seen is not None:
            found = read_of(seen.lines, Position(seen.life, seen.turns, seen.turns))
        warnings, self._untold = tuple(self._untold), []
        return replace(found, warnings=warnings)

    def tail(self, key: ThreadKey, count: int) -> Read:
        """Read a thread's last rows."""
        parameters = {"namespace": key.namespace, "id": key.id, "count": count}
        with _translated(key, "it cannot be read"):
            rows = self._rows(self._statements.tail, parameters)
        if not rows:
            return Read()
        life, turns = rows[0][:2]
        return read_of([row[2] for row in rows if row[2] is not None], Position(life, turns, turns))

    def load_end(self, key: ThreadKey) -> Read:
        """Find the end of a thread, to append at, without its turns."""
        return self.tail(key, 0)

    def threads(self, namespace: str | None = None) -> Iterator[ThreadInfo]:
        """List the threads' rows, by pages: another process' changes meanwhile may show."""
        parameters: dict[str, Any] = {"namespace": namespace or "", "id": "", "page": _PAGE}
        statement = self._statements.threads if namespace is None else self._statements.threads_of
        while True:
            with _translated(self, "its threads cannot be listed"):
                rows = self._rows(statement, parameters)
            for row in rows:
                if is_plain(row[0]) and is_plain(row[1]):  # else the row is another program's
                    yield ThreadInfo(row[0], row[1], row[2], row[3].astimezone(dt.UTC))
            if len(rows) < _PAGE:
                return
            parameters |= {"namespace": rows[-1][0], "id": rows[-1][1]}

    def _rows(self, statement: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        self._prepare()
        return self._connections.run(lambda connection: rows_of(connection, statement, parameters))

    # ---- writing ----

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Write the whole batch in one transaction, but for threads that others appended to."""
        try:
            self._prepare()
        except (StoreError, psycopg.Error) as error:
            return [_refused(append, error) for append in batch]
        outcomes = self._writer.commit(batch)
        changed = [
            append.key
            for append, outcome in zip(batch, outcomes, strict=True)
            if outcome.position.offset > outcome.news.position.offset
        ]
        if changed:
            self._notifier.tell(changed)
        return outcomes

    def delete(self, key: ThreadKey) -> bool:
        """Delete a thread's rows."""
        self._check_writable(key)
        existed = False

        def delete(connection: Bounded) -> bool:
            nonlocal existed
            parameters = {"namespace": key.namespace, "id": key.id}
            with connection.transaction():
                if connection.execute(self._statements.delete_thread, parameters).rowcount:
                    # Nobody can make it anew before this is committed; else they would be his.
                    connection.execute(self._statements.delete_turns, parameters)
                    existed = True  # also where the end of the commit is not heard
            return existed

        with _translated(key, "it cannot be deleted"):
            self._prepare()
            self._connections.run(delete)
        self._notifier.tell([key])
        return existed

    def try_turn_lock(self, key: ThreadKey) -> Callable[[], None] | None:
        """Take an advisory lock of the server's."""
        self._check_writable(key)
        with _translated(key, "its turn lock cannot be taken"):
            return self._turn_locks.try_lock(key)

    def _check_writable(self, key: ThreadKey) -> None:
        if self.read_only:
            raise ReadOnly.of(key)

    # ---- news, and the end ----

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Listen for news of a thread."""
        with _translated(key, "it cannot be watched"):
            self._prepare()
            return self._listener.watch(key, changed)

    def after_fork(self) -> None:
        """Leave the parent's connections alone."""
        self._mutex = threading.Lock()
        self._connections.after_fork()
        self._turn_locks.after_fork()
        self._notifier.after_fork()
        self._listener.after_fork()

    def close(self) -> None:
        """Close the connections, once it is told what is still to be told."""
        self._listener.close()
        self._notifier.close()
        self._turn_locks.close()
        self._connections.close()


@contextmanager
def _translated(subject: object, doing: str) -> Generator[None]:
    """Raise the server's errors in the block as StoreError."""
    try:
        yield
    except (errors.LockNotAvailable, StillLocked) as error:
        raise LockTimeout(
            subject,
            f"{doing}: another session has kept it locked for too long",
            "try again, or find the session: pg_stat_activity lists them",
        ) from error
    except psycopg.Error as error:
        raise failure(StoreError, subject, doing, error) from error


def _refused(append: Append, error: StoreError | psycopg.Error) -> Outcome:
    key, known = append.key, append.position
    if isinstance(error, psycopg.Error):
        return Outcome(Read(position=known), known, not_written(key, error))
    own = NotWritten(key, f"{error.what}; nothing was written", error.hint)
    own.__cause__ = error
    return Outcome(Read(position=known), known, own)


def _unsafe(store: PostgresStore) -> UnsafeFileSystemWarning:
    return UnsafeFileSystemWarning(
        f"{store!r}: the server runs with fsync off: what it acknowledges may be lost in a crash; "
        f"set fsync = on"
    )
