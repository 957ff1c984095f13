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
        self._early: set[ThreadKey] = set()  # who listen, and there was no stream yet
        self._looking: asyncio.Task[None] | None = None

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Watch a thread, as `Store.watch` says.

        Raises:
            Failure: the servers could not do it.
        """
        stop = self._watchers.add(key, changed)
        try:
            listening = self._session.run(partial(self._listen, key))
        except BaseException:
            stop()
            raise
        return _Stop(self, key, listening, stop)

    async def _listen(self, key: ThreadKey, session: Session) -> _Listening:
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
            if not await _is_told_of(session.turns, deadline):
                self._begin_with_stream(key, session.turns)
        except BaseException:
            await self._leave(key, listening)
            raise
        return listening

    async def _subscribe(self, key: ThreadKey, listening: _Listening, client: Client) -> None:
        async def heard(_: Msg) -> None:
            self._watchers.tell(key)

        try:
            listening.subscription = await subscribe(
                client, self._session.subjects.news(key), heard
            )
        except errors.Error as error:
            raise Failure(f"it cannot be listened to: {error}", "try again") from error

    # ---- when there is no stream yet ----

    def _begin_with_stream(self, key: ThreadKey, stream: Stream) -> None:
        self._early.add(key)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(stream))

    async def _look(self, stream: Stream) -> None:
        """Look for the stream; tell who came before it, since its first news may have been missed.

        Whoever makes it and leads it need not know at once that somebody listens.
        """
        try:
            while not self._early.isdisjoint(self._listening):
                await asyncio.sleep(_AGAIN)
                with suppress(Failure):
                    if await _is_told_of(stream, Deadline(self._patience)):
                        break
        finally:
            self._looking = None
        early, self._early = self._early, set()
        for key in early:
            self._watchers.tell(key)

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

    def stop(self, key: ThreadKey, listening: _Listening) -> None:
        """Listen no more for one who watched; nothing where that was a forked child's parent."""
        if self._listening.get(key) is listening:
            with suppress(Failure):  # the store was closed
                self._session.run(lambda _: self._leave(key, listening))

    async def _leave(self, key: ThreadKey, listening: _Listening) -> None:
        if self._listening.get(key) is not listening:
            return
        listening.wanted -= 1
        if not listening.wanted:
            del self._listening[key]
            if listening.subscription is not None:
                with suppress(errors.Error):
                    await listening.subscription.unsubscribe()


class _Stop:
    """What ends a watch; once."""

    def __init__(
        self, watches: Watches, key: ThreadKey, listening: _Listening, stop: Callable[[], None]
    ) -> None:
        self._watches = watches
        self._key = key
        self._listening = listening
        self._stop: Callable[[], None] | None = stop

    def __call__(self) -> None:
        """End it."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()
            self._watches.stop(self._key, self._listening)


async def _is_told_of(stream: Stream, deadline: Deadline) -> bool:
    """Say whether the stream is there; raise Refused where it does not tell of its messages."""
    found = await stream.look(deadline)
    wanted = stream.wanted.republish
    if found is not None and wanted is not None and found.republish != wanted:
        raise Refused(
            f"the stream {stream.name} does not tell of its messages",
            f"have it republish {wanted.src} to {wanted.dest}, headers only: nats stream edit",
        )
    return found is not None
