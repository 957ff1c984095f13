"""Connections to the server: made when needed, bounded in number and in patience, made anew.

A connection waits a bounded time for each answer, so a server, or a network, that says nothing any
more is no different from one that is gone. What was lost is made anew as long as patience lasts.
Then its session is ended first, if the server still has it: what was under way there has landed, or
never will. Which of the two is its caller's to find out.

Until the first connection was made, what will not heal by waiting (a wrong password, no such
database) is raised at once, and a server that is away is waited for some seconds only: there may be
none.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import Connection, Cursor, OperationalError, errors
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from turnlog.interrupts import DeferredSignals
from turnlog.stores.postgres import sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

    from psycopg.abc import PQGen

    from turnlog.stores.postgres.location import Location

_Result = TypeVar("_Result")


class Lost(OperationalError):
    """Raised where a connection was lost in the middle of something, with the words of why."""


class StillLocked(OperationalError):
    """Raised by work that has to be done again, since another session is in its way."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("another session keeps its row locked")


_SHORTEST_NAP: Final = 0.02
_LONGEST_NAP: Final = 1.0
_POOL_WAIT: Final = 1.0
_FIRST_PATIENCE: Final = 5.0
_POOLER_PATIENCE: Final = 2.0  # for another session of a pooler
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 2, 5  # for each host's answer; libpq knows no shorter one

_IN_THE_WAY: Final = (
    Lost,
    errors.LockNotAvailable,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.TooManyConnections,
    StillLocked,
)

# Said by libpq, or by a server that comes up or goes down: it may be otherwise soon.
_PASSING: Final = (
    "refused", "timeout", "timed out", "unexpectedly", "reset by peer", "broken pipe",
    "starting up", "shutting down", "recovery", "too many", "remaining connection slots",
    "unreachable", "no such file",
)  # fmt: skip

# A library's warnings are for whoever set up logging, not for standard error.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class Bounded(Connection[tuple[Any, ...]]):
    """A connection that waits no longer than its patience, in seconds, for an answer.

    Attributes:
        patience: how long, in seconds.
        session: what the server knows it by; empty where it does not tell.
        swollen: it holds memory for a statement so large that it is better made anew.
    """

    patience: float | None = None
    session: tuple[Any, ...] = ()
    swollen: bool = False

    _asking: Cursor[tuple[Any, ...]] | None = None

    def put(self, statement: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Execute a statement that gives back little; the server plans it once.

        On a cursor that is kept, and its last result with it: a new one each time would take a
        tenth of an append's time.
        """
        if self._asking is None:
            self._asking = self.cursor(binary=True)
        return self._asking.execute(statement, parameters, prepare=True).fetchall()

    def wait(
        self, gen: PQGen[_Result], interval: float = 0.1, timeout: float | None = None
    ) -> _Result:
        """Wait for an answer; close the connection where none comes."""
        try:
            return super().wait(gen, interval, self.patience if timeout is None else timeout)
        except OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.close()
            raise


class Connections:
    """The connections of one store.

    Args:
        location: where to connect.
        read_only: whether the server shall refuse to write.
        patience: the longest wait, in seconds: for an answer, and for a server that is away.
    """

    def __init__(self, location: Location, *, read_only: bool, patience: float) -> None:
        """Connect to nothing yet."""
        self.location = location
        self.patience = patience
        timeout = math.ceil(max(_SHORTEST_TIMEOUT, min(_LONGEST_TIMEOUT, patience)))
        self._parameters: dict[str, Any] = {
            "connect_timeout": timeout,
            **location.parameters,
            "client_encoding": "UTF8",  # else PGCLIENTENCODING, which libpq may not know
            "context": sessions.plain_adapters(),
            "autocommit": True,
        }
        self._read_only = read_only
        self._mutex = threading.Lock()
        self._pool: ConnectionPool[Bounded] | None = None
        self._connected = False  # ever
        self._lost: list[tuple[Any, ...]] = []  # sessions
        self._pooler_checked = False

    def run(self, work: Callable[[Bounded], _Result]) -> _Result:
        """Do work on a connection; do it again where that is lost, or another one was in the way.

        The work may be done more than once, and finds out by itself what became of an earlier try.

        Raises:
            psycopg.Error: it failed, or was still failing when patience ended.
        """
        return self._persist(self._borrowed, work)

    def run_apart(self, work: Callable[[Bounded], _Result]) -> _Result:
        """Do work as `run` does, on a connection beside the pool's, which is closed after it."""
        return self._persist(lambda _: closing(self.connect()), work)

    def _persist(
        self,
        take: Callable[[float], AbstractContextManager[Bounded]],
        work: Callable[[Bounded], _Result],
    ) -> _Result:
        began = time.monotonic()
        for nap in _naps():
            try:
                with take(began + self.patience) as connection:
                    return work(connection)
            except psycopg.Error as error:
                patience = self.patience if self._connected else min(self.patience, _FIRST_PATIENCE)
                late = time.monotonic() + nap > began + patience
                if late or not self.worth_another_try(error):
                    raise
            time.sleep(nap)
        raise AssertionError  # the naps never end

    def connect(self) -> Bounded:
        """Make a connection beside the pool's; its caller closes it. One try."""
        connection = Bounded.connect(**self._parameters)
        try:
            self._prepare(connection)
            self._end_lost_sessions(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Bounded) -> None:
        connection.patience = self.patience / 2  # what is lost is to be tried once more
        sessions.check_encoding(connection)
        if not self._pooler_checked:
            self._pooler_checked = self._check_pooler(connection)
        connection.session = sessions.set_up(
            connection, read_only=self._read_only, patience=self.patience
        )
        self._connected = True

    def _check_pooler(self, connection: Bounded) -> bool:
        """Raise Unfit if a pooler shares its sessions; return False if that is not known yet."""

        def other() -> Bounded:
            made = Bounded.connect(**self._parameters)
            made.patience = min(_POOLER_PATIENCE, self.patience / 2)
            return made

        if not sessions.is_pooled(connection):
            return True
        try:
            sessions.check_not_shared(connection, other)
        except sessions.Unfit:
            raise
        except psycopg.Error:
            if connection.closed:
                raise
            return False  # it has no other session to give just now
        return True

    @contextmanager
    def _borrowed(self, deadline: float) -> Generator[Bounded]:
        pool = self._opened()
        connection: Bounded | None = None
        try:
            with DeferredSignals():  # a handler that raises could lose the pool a connection
                connection = self._taken_from(pool, deadline)
            self._end_lost_sessions(connection)
            yield connection
        except psycopg.Error as error:
            if connection is None:
                raise
            if connection.closed:
                self.lost(connection)
                pool.drain()  # the others are lost too, more likely than not
                raise Lost(str(error)) from error
            if isinstance(error, errors.ReadOnlySqlTransaction) and not self._read_only:
                connection.close()  # a primary that is one no more
                pool.drain()
            if isinstance(error, errors.InvalidSqlStatementName):  # which another session has
                raise sessions.shared_session() from error
            raise
        except BaseException:
            if connection is not None:
                connection.close()  # in whatever state it was
            raise
        finally:
            with DeferredSignals():
                if connection is not None:
                    _give_back(pool, connection)

    def _taken_from(self, pool: ConnectionPool[Bounded], deadline: float) -> Bounded:
        try:
            return pool.getconn(min(_POOL_WAIT, max(0.001, deadline - time.monotonic())))
        except PoolTimeout:
            self.connect().close()  # which says what is wrong, unless all are in use
            raise

    def lost(self, connection: Bounded) -> None:
        """Have the session of a lost connection ended, as soon as there is another one."""
        self._pooler_checked = False  # it may come back as another one
        if connection.session:
            self._lost.append(connection.session)

    def _end_lost_sessions(self, connection: Bounded) -> None:
        while True:
            try:
                session = self._lost.pop()
            except IndexError:  # asked first, another OS thread might take it in between
                return
            try:
                sessions.end(connection, session)
            except psycopg.Error:
                if connection.closed:
                    self._lost.append(session)
                    raise
                # This server lets nobody do so: then what is under way may land a little later.

    def _opened(self) -> ConnectionPool[Bounded]:
        with self._mutex:
            if self._pool is None:
                self._pool = ConnectionPool(
                    connection_class=Bounded,
                    kwargs=self._parameters,
                    min_size=0,
                    max_size=self.location.max_connections,
                    open=False,
                    configure=self._prepare,
                    reconnect_timeout=0.0,  # whoever wants one tries again
                    num_workers=1,
                )
                self._pool.open()
            return self._pool

    def worth_another_try(self, error: psycopg.Error) -> bool:
        """Tell whether it may be otherwise on another connection, or a little later."""
        if isinstance(error, _IN_THE_WAY):
            return True
        if isinstance(error, sessions.Unfit):
            return False
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return not self._read_only
        if error.sqlstate is not None or not isinstance(error, OperationalError):
            return False
        return self._connected or any(word in _unquoted(error) for word in _PASSING)

    def after_fork(self) -> None:
        """In a forked child: leave the parent's connections alone, and its pool."""
        keep_for_parent(self._pool)
        self._pool = None
        self._lost = []  # which the parent sees to
        self._mutex = threading.Lock()

    def close(self) -> None:
        """Close the connections that nobody uses; the others, when they are given back."""
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def _give_back(pool: ConnectionPool[Bounded], connection: Bounded) -> None:
    if connection.swollen:
        connection.close()
    pool.putconn(connection)


def _unquoted(error: psycopg.Error) -> str:
    """Give libpq's words without the names of databases and roles."""
    return re.sub('"[^"]*"', "", str(error))


_parents: Final[list[object]] = []


def keep_for_parent(thing: object) -> None:
    """In a forked child: never end a parent's connection, which would speak on its socket."""
    _parents.append(thing)


def _naps() -> Iterator[float]:
    nap = _SHORTEST_NAP
    while True:
        yield nap
        nap = min(2 * nap, _LONGEST_NAP)
