"""Connection: one client of the servers, in one event loop, that comes back by itself.

It knows how to send and to wait for answers, and nothing of streams. An answer is one to a subject
of its own, below an inbox that is subscribed to once: so a thousand requests are under way without
a task or a timer for each.

Nothing is kept back while there is no connection: whoever asks is told so, and asks again. When the
connection is lost, all who wait for an answer are told at once.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nats import errors
from nats.aio.client import Client

from turnlog.stores.nats.failures import OutOfTime, Refused, Unanswered, Unsent
from turnlog.stores.nats.loops import end_all

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Collection

    from nats.aio.client import Srv
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from turnlog.stores.nats.deadline import Deadline
    from turnlog.stores.nats.location import Location

_CONNECT: Final = 2  # seconds, for one server
_AGAIN: Final = 0.1  # seconds between two tries to connect to a server
_PING: Final = 10  # seconds between two looks whether an idle connection is still there
_PROBE: Final = 1  # seconds
_CLOSE: Final = 2  # seconds
_DENIED: Final = re.compile(r'permissions violation for publish to "(.*)"')


class _Client(Client):
    """The package's client; but where a server gave no answer, that connection is closed."""

    async def _connect_to_server(self, s: Srv) -> None:
        former: Any = getattr(self, "_transport", None)
        if former is not None:
            former.close()  # else it would be dropped as it is: a socket left open
        await super()._connect_to_server(s)


class Connection:
    """A connection to one of the servers, and another one when it is lost.

    Args:
        location: where the servers are.
        events: subjects at which the servers tell of what happened.
        heard: called for each of those messages, and whenever it is connected: some may have been
            missed before.

    Attributes:
        trouble: what went wrong last.
        lives: how often it was connected: what one was told by the servers holds for one of them.
        returned: called whenever it is connected, for what has to be done anew.
        lost: called whenever the connection is lost.
    """

    def __init__(
        self,
        location: Location,
        events: Collection[str] = (),
        heard: Callable[[], object] | None = None,
    ) -> None:
        """Begin without a connection."""
        self._location = location
        self._events = events
        self._heard = heard
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._up = asyncio.Event()
        self._asked: dict[str, tuple[str, asyncio.Future[Msg]]] = {}
        self._count = 0
        self._inbox = ""
        self.trouble: str = "no server has answered"
        self.lives: int = 0
        self.returned: Callable[[Client], Awaitable[None]] | None = None
        self.lost: set[Callable[[], object]] = set()

    # ---- asking ----

    async def ask(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None
    ) -> asyncio.Future[Msg]:
        """Send a message, and give where its answer will be. Its owner cancels what he gives up.

        The answer raises Unanswered where the connection is lost before it comes, and Refused
        where one may not send there.

        Raises:
            Unsent: nothing was sent.
        """
        client = self._client
        if client is None or not client.is_connected:
            raise Unsent
        self._count += 1
        reply = f"{self._inbox}.{self._count}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(partial(self._forget, reply))
        self._asked[reply] = subject, answer
        try:
            await client.publish(subject, payload, reply=reply, headers=headers)
        except errors.Error as error:
            answer.cancel()
            self.trouble = str(error)
            raise Unsent from error
        return answer

    def _forget(self, reply: str, answer: asyncio.Future[Msg]) -> None:
        del self._asked[reply]
        if not answer.cancelled():
            answer.exception()  # nobody may be left who would look at it

    async def answer(self, subject: str, payload: bytes, seconds: float) -> Msg:
        """Send a request and give its answer.

        Raises:
            Unsent: nothing was sent.
            Unanswered: no answer came in time, or the connection was lost.
            Refused: one may not send there.
        """
        answer = await self.ask(subject, payload)
        await asyncio.wait((answer,), timeout=seconds)
        if not answer.done():
            answer.cancel()
            await self.probe()
            raise Unanswered
        return answer.result()

    async def tell(self, subject: str, payload: bytes = b"") -> None:
        """Send a message to whoever listens, where there is a connection."""
        if self._client is not None and self._client.is_connected:
            with suppress(errors.Error):
                await self._client.publish(subject, payload)

    async def probe(self) -> None:
        """Look whether anybody is there where no answer came; if not, connect anew."""
        client = self._client
        if client is not None and client.is_connected:
            try:
                await client.flush(timeout=_PROBE)
            except errors.Error:
                self.trouble = "the server does not answer any more"
                await client.force_reconnect()

    async def _answered(self, message: Msg) -> None:
        _, answer = self._asked.get(message.subject, ("", None))
        if answer is not None and not answer.done():
            answer.set_result(message)

    # ---- the connection ----

    @property
    def max_payload(self) -> int:
        """The size of the largest message that the server takes."""
        return self._client.max_payload if self._client is not None else 0

    async def client(self, deadline: Deadline) -> Client:
        """Give the client when it is connected.

        Raises:
            OutOfTime: no server could be reached.
            Refused: they do not let us in.
        """
        while True:
            client = self._client
            if client is not None and client.is_connected:
                return client
            if client is None or client.is_closed:
                await self._connect_once(client, deadline)
                continue
            self._up.clear()  # we may see that it is lost before we are told
            try:
                await asyncio.wait_for(self._up.wait(), deadline.left)
            except TimeoutError:
                raise OutOfTime.after(deadline.seconds, self.trouble) from None

    async def _connect_once(self, former: Client | None, deadline: Deadline) -> None:
        """Make a client, unless somebody else has done so meanwhile."""
        async with self._connecting:
            if self._client is not former:
                return
            try:
                self._client = await self._connect(deadline)
            except errors.Error as error:  # it was lost again at once
                self._note(error)
                if deadline.over:
                    raise OutOfTime.after(deadline.seconds, self.trouble) from None
                await asyncio.sleep(_AGAIN)

    async def _connect(self, deadline: Deadline) -> Client:
        client = _Client()
        barred: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        connecting = asyncio.ensure_future(client.connect(**self._options(client, barred)))
        try:
            await asyncio.wait(
                (connecting, barred), timeout=deadline.left, return_when=asyncio.FIRST_COMPLETED
            )
            self._check_connected(connecting, barred, deadline)
            self._inbox = client.new_inbox()
            await subscribe(client, f"{self._inbox}.*", self._answered)
            for event in self._events:
                await subscribe(client, event, self._hear)
            await self._has_returned(client)
        except BaseException:
            try:
                await end_all((connecting,))
            finally:
                await _close(client)
            raise
        return client

    def _check_connected(
        self,
        connecting: asyncio.Future[None],
        barred: asyncio.Future[Refused],
        deadline: Deadline,
    ) -> None:
        if barred.done():
            raise barred.result()
        if not connecting.done():
            raise OutOfTime.after(deadline.seconds, self.trouble)
        connecting.result()

    def _options(self, client: Client, barred: asyncio.Future[Refused]) -> dict[str, Any]:
        location = self._location

        async def failed(error: Exception) -> None:
            self._note(error)
            if barred.done():
                return
            if "authori" in str(error).lower():
                hint = "see the user, password or token in the URL"
                barred.set_result(Refused(f"the server does not let us in: {error}", hint))
            elif isinstance(error, errors.SecureConnWantedError):
                hint = "have the server ask for it, or begin the URL with nats://"
                barred.set_result(Refused("the server does not speak TLS", hint))

        return {
            "servers": list(location.servers),
            "name": "turnlog",
            "error_cb": failed,
            "disconnected_cb": self._was_lost,
            "closed_cb": self._was_lost,
            "reconnected_cb": partial(self._has_returned, client),
            "connect_timeout": _CONNECT,
            "reconnect_time_wait": _AGAIN,
            "max_reconnect_attempts": -1,
            "ping_interval": _PING,
            "pending_size": 0,
            "tls": _tls_context(location),
            **self._credentials(client),
        }

    def _credentials(self, client: Client) -> dict[str, Any]:
        """Give the credentials, as functions: they are asked when it is known who will get them."""

        def given(secret: str) -> Callable[[], str]:
            def give() -> str:
                self._check_tls(client)
                return secret

            return give

        location = self._location
        secrets = {"user": location.user, "password": location.password, "token": location.token}
        return {name: given(secret) for name, secret in secrets.items() if secret is not None}

    def _check_tls(self, client: Client) -> None:
        """Raise where a server does not speak TLS and should: else the client goes on without."""
        # It is not given otherwise.
        info: dict[str, Any] = client._server_info  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        if self._location.tls and not info.get("tls_required"):
            raise errors.SecureConnWantedError

    async def _has_returned(self, client: Client) -> None:
        self._check_tls(client)
        self.lives += 1
        self._up.set()
        await self._hear()
        if self.returned is not None:
            await self.returned(client)

    async def _hear(self, _: Msg | None = None) -> None:
        if self._heard is not None:
            self._heard()

    async def _was_lost(self) -> None:
        self._up.clear()
        for _, answer in list(self._asked.values()):
            if not answer.done():
                answer.set_exception(Unanswered())
        for told in list(self.lost):
            told()

    def _note(self, error: Exception) -> None:
        self.trouble = str(error) or type(error).__name__
        denied = _DENIED.search(self.trouble)
        if denied:
            # The client gives it in small letters. Of several that fit, none is told.
            fitting = [
                answer
                for subject, answer in self._asked.values()
                if subject.lower() == denied[1] and not answer.done()
            ]
            if len(fitting) == 1:
                fitting[0].set_exception(Refused.permission(self.trouble))

    # ---- the end ----

    async def close(self) -> None:
        """Let go of the connection."""
        if self._client is not None:
            await _close(self._client)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's socket, and say nothing on it."""
        writer = _writer_of(self._client)
        shared: socket.socket | None = writer and writer.get_extra_info("socket")
        if shared is not None and shared.fileno() >= 0:
            # Its number stays taken, so that no later file of the child is closed in its place.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, shared.fileno())
            os.close(nothing)


def _writer_of(client: Client | None) -> asyncio.StreamWriter | None:
    transport: Any = getattr(client, "_transport", None)
    return getattr(transport, "_io_writer", None)


async def _close(client: Client) -> None:
    """Close a client, without what a server that stands still does not take."""
    closing = asyncio.ensure_future(client.close())
    await asyncio.wait((closing,), timeout=_CLOSE)
    writer = _writer_of(client)
    if not closing.done() and writer is not None:
        writer.transport.abort()
        await asyncio.wait((closing,), timeout=_AGAIN)
    await end_all((closing,))


async def subscribe(
    client: Client, subject: str, heard: Callable[[Msg], Awaitable[None]]
) -> Subscription:
    """Have what is sent to a subject handed on."""
    return await client.subscribe(subject, cb=heard)  # pyright: ignore[reportUnknownMemberType]


def _tls_context(location: Location) -> ssl.SSLContext | None:
    try:
        return location.tls_context()
    except OSError as error:
        hint = "see the files that the URL names with tls_ca, tls_cert and tls_key"
        raise Refused(f"TLS cannot be spoken: {error}", hint) from error
