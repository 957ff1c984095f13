"""Session: a connection, the event loop it lives in, and what is done over it."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from turnlog.stores.nats.connection import Connection
from turnlog.stores.nats.failures import Failure
from turnlog.stores.nats.loops import closed
from turnlog.stores.nats.names import Subjects
from turnlog.stores.nats.reader import Reader
from turnlog.stores.nats.stream import Stream, config_of_locks, config_of_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from turnlog.stores.nats.location import Location
    from turnlog.stores.nats.loops import BackgroundLoop, BorrowedLoop

    _Result = TypeVar("_Result")


class Session:
    """A connection in a loop, made when it is first used.

    Args:
        location: where the servers are.
        kind: the kind of the loop.
        follower: a session that is to look at its streams again whenever this one hears that
            one was edited; None for one that does not listen.

    Attributes:
        subjects: where the threads are.
        connection: the connection.
        turns: the stream of the threads.
        locks: the stream of the turn locks.
        reader: reads threads.
    """

    def __init__(
        self,
        location: Location,
        kind: type[BorrowedLoop | BackgroundLoop],
        follower: Session | None = None,
    ) -> None:
        """Prepare a session."""
        self.subjects: Subjects = Subjects(location.stream)
        self._location = location
        self._kind = kind
        self._follower = follower
        self._mutex = threading.RLock()  # a finalizer may close it while we hold it
        self._loop: BorrowedLoop | BackgroundLoop | None = None
        self._closed = False
        self._renew()

    def _renew(self) -> None:
        location, subjects = self._location, self.subjects
        self.connection: Connection = (
            Connection(location)
            if self._follower is None
            else Connection(location, subjects.edits, self._hear_of_edit)
        )
        self.turns: Stream = Stream(self.connection, config_of_turns(location, subjects))
        self.locks: Stream = Stream(self.connection, config_of_locks(location, subjects))
        self.reader: Reader = Reader(self.turns, subjects)

    def _hear_of_edit(self) -> None:
        for session in (self, self._follower):
            if session is not None:
                session.turns.forget()
                session.locks.forget()

    def run(self, work: Callable[[Session], Coroutine[Any, Any, _Result]]) -> _Result:
        """Do some work over the connection. Blocks.

        Raises:
            Failure: the session was closed, or cannot be used here; and what the work raises.
        """
        with self._mutex:
            if self._closed:
                raise closed()
            loop = self._loop = self._loop or self._new_loop()
        try:
            return loop.run(partial(work, self))
        except Exception:
            raise
        except BaseException:
            # A signal's handler raised, who knows where: what the client keeps may be broken.
            self._begin_anew(loop)
            raise

    def _new_loop(self) -> BorrowedLoop | BackgroundLoop:
        try:
            return self._kind()
        except (OSError, RuntimeError) as error:
            hint = "raise the limits on open files and OS threads (ulimit -n, -u)"
            raise Failure(f"the system has nothing to give: {error}", hint) from error

    def _begin_anew(self, spoilt: BorrowedLoop | BackgroundLoop) -> None:
        with self._mutex:
            if self._loop is not spoilt:
                return
            self._loop, connection = None, self.connection
            self._renew()
        spoilt.close(connection.close)

    def close(self) -> None:
        """End it. May be called again."""
        with self._mutex:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close(self.connection.close)

    def after_fork(self) -> None:
        """In a forked child: leave the parent's connection alone; one of its own is made later."""
        self._mutex = threading.RLock()
        loop, self._loop = self._loop, None
        if loop is not None:
            self.connection.abandon()
            loop.leave_alone(self.connection)
        self._renew()
