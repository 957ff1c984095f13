"""Consumer: reads messages of a stream in their order, a page at a time.

It is one of the servers' short-lived kind, in the memory of one of them. When it breaks in the
middle, whoever reads makes another one and goes on where he was: so it is the "ordered consumer" of
the servers' clients, but for reading up to an end.

A cluster puts it on any of its servers, and that one may not have yet what was acknowledged.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import json  # noqa: TID251 - the servers speak JSON
from nats import errors

from turnlog.stores.nats.api import NO_STREAM, PREFIX, ConsumerInfo, call, checked
from turnlog.stores.nats.connection import subscribe
from turnlog.stores.nats.deadline import Deadline
from turnlog.stores.nats.failures import Broken, OutOfTime

if TYPE_CHECKING:
    from typing import Self

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from turnlog.stores.nats.stream import Stream

_PAGE: Final = 1000  # messages
_PAGE_BYTES: Final = 8 << 20
_PATIENCE: Final = 5.0  # seconds, without a message
_PATIENCE_TO_MAKE: Final = 1.5
_IDLE: Final = 30_000_000_000  # nanoseconds, until a server forgets a consumer
_END: Final = frozenset(("404", "408"))


class Consumer:
    """A reading of the messages whose subjects match a pattern; `async with` it.

    Args:
        stream: the stream.
        pattern: what the subjects match.
        start: where to begin, as the servers' API says it.
        deadline: for the beginning.

    Attributes:
        server: where a cluster has put it; None where there is one server only.

    Raises on entering:
        Broken: the servers did not do it: another one may be made.
        OutOfTime: there is no connection.
        Refused: one may not read.
    """

    def __init__(
        self, stream: Stream, pattern: str, start: dict[str, Any], deadline: Deadline
    ) -> None:
        """Prepare a reading."""
        self.server: str | None = None
        self._stream = stream
        self._pattern = pattern
        self._start = start
        self._deadline = deadline
        self._name = f"turnlog-{secrets.token_hex(8)}"
        self._page: list[Msg] = []
        self._count = 0
        self._status = ""
        self._woken = asyncio.Event()
        self._client: Client | None = None
        self._subscription: Subscription | None = None

    async def __aenter__(self) -> Self:
        """Begin."""
        connection = self._stream.connection
        self._client = await connection.client(self._deadline)
        connection.lost.add(self._was_lost)
        config: dict[str, Any] = {
            "name": self._name,
            "filter_subject": self._pattern,
            "ack_policy": "none",
            "inactive_threshold": _IDLE,
            "mem_storage": True,
            "num_replicas": 1,
            **self._start,
        }
        name = f"CONSUMER.CREATE.{self._stream.name}.{self._name}.{self._pattern}"
        request = {"stream_name": self._stream.name, "config": config}
        try:
            inbox = self._client.new_inbox()
            self._subscription = await subscribe(self._client, inbox, self._got)
            deadline = Deadline(min(self._deadline.left, _PATIENCE_TO_MAKE))
            made = await call(connection, name, request, ConsumerInfo, deadline)
            if checked(made, NO_STREAM).error is not None:
                self._status = "404"  # no stream, and nothing in it
            elif made.cluster is not None:
                self.server = made.cluster.leader
        except (errors.Error, OutOfTime) as error:
            # A cluster may have put it on a server that is gone: there it stays, by this name.
            await self._end()
            raise Broken from error
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End, wherever it is."""
        await self._end()

    async def _end(self) -> None:
        connection = self._stream.connection
        connection.lost.discard(self._was_lost)
        if self._subscription is not None and self._client is not None:
            with suppress(errors.Error):
                await self._subscription.unsubscribe()
            await connection.tell(f"{PREFIX}.CONSUMER.DELETE.{self._stream.name}.{self._name}")

    def _was_lost(self) -> None:
        self._status = "lost"
        self._woken.set()

    async def _got(self, message: Msg) -> None:
        status = message.headers.get("Status") if message.headers and not message.data else None
        if status is None:
            self._page.append(message)
        else:
            self._status = status
        self._woken.set()

    async def page(self) -> list[Msg]:
        """Give the next messages; none at the end.

        Raises:
            Broken: it cannot go on.
        """
        if self._status in _END or self._subscription is None:
            return []
        self._page = []
        connection = self._stream.connection
        most = max(_PAGE_BYTES, 2 * connection.max_payload)
        request = {"batch": _PAGE, "max_bytes": most, "no_wait": True}
        subject = f"{PREFIX}.CONSUMER.MSG.NEXT.{self._stream.name}.{self._name}"
        await self._request(subject, json.encode(request))
        while len(self._page) < _PAGE and not self._status:
            self._woken.clear()
            try:
                await asyncio.wait_for(self._woken.wait(), _PATIENCE)
            except TimeoutError:
                await connection.probe()
                raise Broken from None
        return self._checked()

    async def _request(self, subject: str, payload: bytes) -> None:
        if self._client is None or self._subscription is None:
            return
        try:
            await self._client.publish(subject, payload, reply=self._subscription.subject)
        except errors.Error as error:
            raise Broken from error

    def _checked(self) -> list[Msg]:
        """Give the page; raise Broken where it is not what comes next."""
        for message in self._page:
            self._count += 1
            if message.metadata.sequence.consumer != self._count:
                raise Broken
        if self._status not in _END:
            if self._status and not self._page:
                raise Broken  # the consumer is gone, or its server
            self._status = ""
        return self._page
