"""Who watches threads is told by the servers: news are messages that nobody stores.

The stream tells of each message of a thread when it has stored it (its `republish`), and whoever
deletes a thread tells of that. To watch is to listen, which costs the servers next to nothing, so
there may be very many who do. When the connection was lost in between, all are told.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from nats import errors

from turnlog.stores.nats.connection import subscribe
from turnlog.stores.nats.deadline import Deadline
from turnlog.stores.nats.failures import Failure, Refused
from turnlog.stores.watchers import Watchers

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from turnlog.names import ThreadKey
    from turnlog.stores.nats.session import Session
    from turnlog.stores.nats.stream import Stream

_AGAIN: Final = 1.0  # seconds


class _Listening:
    """A thread's news, and how many want them.

    Attributes:
        subscription: the news; None where they are not listened to yet.
        wanted: by how many.
    """

    def __init__(self) -> None:
        self.subscription: Subscription | None = None
        self.wanted = 0


class Watches:
    """The threads that a store watches.

    Args:
        session: where the news come from, with a loop that goes on by itself.
        patience: the longest wait for the servers, in seconds.
    """

    def __init__(self, session: Session, patience: float) -> None:
        """Watch nothing."""
        self._session = session
        self._patience = patience
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: watch nothing; who watches is in the parent."""
        self._watchers = Watchers()
        # Of the loop alone:
        self._listening: dict[ThreadKey, _Listening] = {}
        self._client: Client | None = None
        self._returning: asyncio.Task[None] | None = None

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Watch a thread, as `Store.watch` says.

        Raises:
            Failure: the servers could not do it.
        """
        stop = self._watchers.add(key, changed)
        try:
            self._session.run(partial(self._listen, key))
        except BaseException:
            stop()
            raise
        return _Stop(self, key, stop)

    async def _listen(self, key: ThreadKey, session: Session) -> None:
        connection, deadline = session.connection, Deadline(self._patience)
        connection.returned = self._has_returned
        connection.lost.add(self._was_lost)
        listening = self._listening.setdefault(key, _Listening())
        listening.wanted += 1
        try:
            self._client = await connection.client(deadline)
            if listening.subscription is None:
                await self._subscribe(key, listening, self._client)
            # The one who leads the stream answers, and by then he knows that we listen.
            await _check_tells(session.turns, deadline)
        except BaseException:
            await self._leave(key)
            raise

    async def _subscribe(self, key: ThreadKey, listening: _Listening, client: Client) -> None:
        async def heard(_: Msg) -> None:
            self._watchers.tell(key)

        try:
            listening.subscription = await subscribe(
                client, self._session.subjects.news(key), heard
            )
        except errors.Error as error:
            raise Failure(f"it cannot be listened to: {error}", "try again") from error

    # ---- when the connection was lost ----

    async def _has_returned(self, client: Client) -> None:
        if client is not self._client:  # which keeps what it has subscribed to, over any pause
            self._client = client
            for key, listening in list(self._listening.items()):
                with suppress(Failure):  # it is lost already, and will return
                    await self._subscribe(key, listening, client)
        self._watchers.tell_all()

    def _was_lost(self) -> None:
        if self._listening and self._returning is None:
            self._returning = asyncio.get_running_loop().create_task(self._return())

    async def _return(self) -> None:
        """Connect again, though nobody asks."""
        try:
            while self._listening:
                with suppress(Failure):
                    await self._session.connection.client(Deadline(self._patience))
                    return
                await asyncio.sleep(_AGAIN)
        finally:
            self._returning = None

    # ---- the end ----

    def stop(self, key: ThreadKey) -> None:
        """Listen no more for one who watched."""
        if key in self._listening:
            with suppress(Failure):  # the store was closed
                self._session.run(lambda _: self._leave(key))

    async def _leave(self, key: ThreadKey) -> None:
        listening = self._listening.get(key)
        if listening is None:
            return
        listening.wanted -= 1
        if not listening.wanted:
            del self._listening[key]
            if listening.subscription is not None:
                with suppress(errors.Error):
                    await listening.subscription.unsubscribe()


class _Stop:
    """What ends a watch; once."""

    def __init__(self, watches: Watches, key: ThreadKey, stop: Callable[[], None]) -> None:
        self._watches = watches
        self._key = key
        self._stop: Callable[[], None] | None = stop

    def __call__(self) -> None:
        """End it."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()
            self._watches.stop(self._key)


async def _check_tells(stream: Stream, deadline: Deadline) -> None:
    """Raise Refused where the stream is there and does not tell of its messages."""
    found = await stream.look(deadline)
    wanted = stream.wanted.republish
    if found is not None and wanted is not None and found.republish != wanted:
        raise Refused(
            f"the stream {stream.name} does not tell of its messages",
            f"have it republish {wanted.src} to {wanted.dest}, headers only: nats stream edit",
        )
