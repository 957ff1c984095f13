"""NatsStore: threads as subjects of a stream of NATS JetStream.

Two connections: one for commits, which whoever commits uses in his own OS thread, and one for all
the rest, in a thread of its own.

Source: spec R3; design, section 1, stores; section 4.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from turnlog.errors import ReadOnly
from turnlog.stores.base import START
from turnlog.stores.nats.deadline import Deadline
from turnlog.stores.nats.failures import translated
from turnlog.stores.nats.leases import Leases
from turnlog.stores.nats.location import parse
from turnlog.stores.nats.loops import BackgroundLoop, BorrowedLoop
from turnlog.stores.nats.session import Session
from turnlog.stores.nats.watches import Watches
from turnlog.stores.nats.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.base import Append, Outcome, Read, ThreadInfo


class NatsStore:
    """Threads in a stream, each at a subject of its own; the stream is made by the first append.

    Args:
        url: `nats://user:password@host:port,…/STREAM?replicas=3`, as `location` says.
        read_only: write nothing.
        lock_timeout: the longest wait, in seconds, for servers that are away or that do not answer.

    Raises:
        UnknownStore: the URL cannot be read.
    """

    commits_at_once: int = 1

    def __init__(self, url: str, *, read_only: bool = False, lock_timeout: float = 30.0) -> None:
        """Prepare a store; the servers are spoken to when the first thread is used."""
        self.read_only = read_only
        self._location = parse(url)
        self._patience = max(lock_timeout, 0.1)
        self._committing = Session(self._location, BorrowedLoop)
        self._serving = Session(self._location, BackgroundLoop, self._committing)
        self._writer = Writer(self._committing, self._patience, read_only=read_only)
        self._leases = Leases(self._serving, self._patience)
        self._watches = Watches(self._serving, self._patience)

    def __repr__(self) -> str:
        """Show where it is, and no credentials."""
        return f"NatsStore({self._location.shown!r})"

    # ---- reading ----

    def load(self, key: ThreadKey) -> Read:
        """Read a thread's messages from the first."""
        with translated(key, "it cannot be read"):
            return self._serving.run(
                lambda session: session.reader.read(key, START, Deadline(self._patience))
            )

    def tail(self, key: ThreadKey, count: int) -> Read:
        """Read a thread's last messages."""
        with translated(key, "it cannot be read"):
            return self._serving.run(
                lambda session: session.reader.tail(key, count, Deadline(self._patience))
            )

    def load_end(self, key: ThreadKey) -> Read:
        """Find the end of a thread, to append at, without its turns."""
        return self.tail(key, 0)

    def threads(self, namespace: str | None = None) -> Iterator[ThreadInfo]:
        """List the last message of each thread."""
        with translated(self, "its threads cannot be listed"):
            found = self._serving.run(
                lambda session: session.reader.threads(namespace, Deadline(self._patience))
            )
        yield from found

    # ---- writing ----

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Publish a message for each thread of the batch, side by side."""
        return self._writer.commit(batch)

    def delete(self, key: ThreadKey) -> bool:
        """Purge a thread's subject, and all below it."""
        self._check_writable(key)
        with translated(key, "it cannot be deleted"):
            return self._serving.run(partial(_delete, key, Deadline(self._patience)))

    def try_turn_lock(self, key: ThreadKey) -> Callable[[], None] | None:
        """Take a lease."""
        self._check_writable(key)
        with translated(key, "its turn lock cannot be taken"):
            return self._leases.try_take(key)

    def _check_writable(self, key: ThreadKey) -> None:
        if self.read_only:
            raise ReadOnly.of(key)

    # ---- news, and the end ----

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Listen for a thread's news."""
        with translated(key, "it cannot be watched"):
            return self._watches.watch(key, changed)

    def after_fork(self) -> None:
        """Leave the parent's connections alone."""
        self._committing.after_fork()
        self._serving.after_fork()
        self._leases.after_fork()
        self._watches.after_fork()

    def close(self) -> None:
        """Let go of the turn locks and the connections."""
        self._leases.close()
        self._committing.close()
        self._serving.close()


async def _delete(key: ThreadKey, deadline: Deadline, session: Session) -> bool:
    existed = await session.turns.last(session.subjects.turns(key), deadline) is not None
    await session.turns.purge(session.subjects.thread(key), deadline)
    if existed:
        await session.connection.tell(session.subjects.news(key))
    return existed
