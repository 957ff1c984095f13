"""A TCP proxy that breaks connections in the ways that networks do, at the moment a test chooses.

    with Proxy(server.port) as proxy:
        client = connect(proxy.url(server.url()))
        lost = proxy.when("to_client", b"COMMIT", "drop")  # done, and nobody is told
        ...
        assert lost.happened.is_set()
        proxy.refuse()    # no new connections
        proxy.drop()      # reset those that are there
        proxy.black_hole()
        proxy.forward()   # all is well again

It runs in a thread of its own, and its methods are called from any other.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from serverprocess import LOOPBACK, PATIENCE, Port, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Self

Direction: TypeAlias = Literal["to_server", "to_client"]
Action: TypeAlias = "Literal['drop', 'drop_answer', 'black_hole'] | Callable[[], object]"
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CHUNK: Final = 1 << 18
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Rule:
    """What is to happen when a pattern passes.

    Attributes:
        happened: set once it has happened.
        error: what its function raised; `Proxy.close` raises it.
    """

    def __init__(self, direction: Direction, pattern: bytes, action: Action, nth: int) -> None:
        """Make it; see `Proxy.when`."""
        self.direction: Final = direction
        self.pattern: Final = pattern
        self.action: Final = action
        self.happened: Final = threading.Event()
        self.error: BaseException | None = None
        self._missing = nth

    @property
    def found(self) -> bool:
        """Tell whether its pattern has passed: then it has happened, or soon will."""
        return not self._missing

    def find(self, before: bytes, data: bytes) -> tuple[int | None, bytes]:
        """Look for the pattern that it waits for, in `data` and at its border to `before`.

        Gives where in `data` that one begins, or None; and what the next call gets as `before`.
        """
        seen = before + data
        start = 0
        while self._missing and (at := seen.find(self.pattern, start)) >= 0:
            start = at + len(self.pattern)
            self._missing -= 1
            if not self._missing:
                return max(0, at - len(before)), b""
        return None, seen[max(start, len(seen) - len(self.pattern) + 1) :]

    def call(self) -> None:
        """Call its function."""
        assert callable(self.action)
        try:
            self.action()
        except BaseException as error:  # noqa: BLE001 - kept for the test
            self.error = error
        self.happened.set()


class _Dropped(Exception):
    """A rule says that the connection ends here."""


class _Connection:
    """A client's connection and the proxy's own to the server."""

    def __init__(self, proxy: Proxy, client: Streams) -> None:
        self._proxy = proxy
        self._client = client
        self._server: Streams | None = None
        self._before: dict[Rule, bytes] = {}
        self._answer_goes: Rule | None = None
        self._ended: set[Direction] = set()
        self._flowing: Final = asyncio.Event()

    async def run(self, port: int) -> None:
        """Connect to the server, and forward until both sides have ended."""
        try:
            await self._flowing.wait()
            await self._proxy.greet(*self._client)
            self._server = await asyncio.open_connection(LOOPBACK, port)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump("to_server", self._client[0], self._server[1]))
                pumps.create_task(self._pump("to_client", self._server[0], self._client[1]))
            for _, writer in self._both():
                writer.close()
        except* (OSError, _Dropped):
            pass
        finally:
            self.reset()

    def reset(self) -> None:
        """Cut both sides: each sees a reset. Nothing, where they have ended."""
        for _, writer in self._both():
            _reset(writer)

    def flow(self, *, flows: bool) -> None:
        """Let it flow, or hold it back."""
        if flows:
            self._flowing.set()
        else:
            self._flowing.clear()

    def half_close(self, direction: Direction) -> None:
        """Tell the receiver of one direction that nothing more comes; the other goes on."""
        if self._server is not None and direction not in self._ended:
            self._ended.add(direction)
            writer = self._server[1] if direction == "to_server" else self._client[1]
            with suppress(OSError):
                if writer.can_write_eof():
                    writer.write_eof()
                else:  # TLS has no half
                    writer.close()

    def _both(self) -> tuple[Streams, ...]:
        return (self._client,) if self._server is None else (self._client, self._server)

    async def _pump(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(_CHUNK):
            await self._flowing.wait()
            await asyncio.sleep(self._proxy.delays[direction])
            if direction in self._ended:
                continue
            if direction == "to_client" and self._answer_goes:
                self._answer_goes.happened.set()
                raise _Dropped
            for rule in self._proxy.rules(direction):
                data = await self._apply(rule, data, writer)
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        await self._flowing.wait()
        self.half_close(direction)

    async def _apply(self, rule: Rule, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        """Do what a rule says if its pattern is there; give what is still to be forwarded."""
        at, self._before[rule] = rule.find(self._before.get(rule, b""), data)
        if at is None:
            return data
        if rule.action == "drop_answer":
            self._answer_goes = rule
            return data
        writer.write(data[:at])
        await writer.drain()
        if rule.action == "drop":
            rule.happened.set()
            raise _Dropped
        if rule.action == "black_hole":
            self._flowing.clear()
            rule.happened.set()
        else:
            # In a thread, since it may call the proxy, which may end this very task.
            await asyncio.to_thread(rule.call)
        return data[at:]


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.is_closing():
        near: socket.socket = writer.get_extra_info("socket")
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()


class Proxy(Server):
    """A port that leads to another port of this machine, for as long as it is let."""

    def __init__(self, target: int) -> None:
        """Start to forward to a port."""
        self._target: Final = target
        self._port: Final = Port()
        self._rules: Final[list[Rule]] = []
        self._connections: Final[dict[asyncio.Task[None], _Connection]] = {}
        self._listener: asyncio.Server | None = None
        self._flows = True
        self.delays: dict[Direction, float] = {}
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._run, name=f"proxy to {target}")
        self._thread.daemon = True  # it does not keep a test run from ending
        self._thread.start()
        self.start()

    @property
    def port(self) -> int:
        """Give the port to connect to."""
        return self._port.number

    def url(self, url: str) -> str:
        """Give the URL that leads to the same through this proxy."""
        return re.sub(rf":{self._target}(?!\d)", f":{self.port}", url)

    @property
    def connections(self) -> int:
        """Give the number of open connections."""
        return len(self._connections)

    # ---- what passes; each call has taken effect when it returns ----

    def start(self) -> Self:
        """Forward: it does from the beginning."""
        self.forward()
        return self

    def forward(self) -> None:
        """Take connections and forward all; what was held back goes on, and delays end."""
        self.delay()
        self._do(self._listen(), self._hold(flows=True))

    def refuse(self) -> None:
        """Refuse new connections; those that are there go on."""
        self._do(self._refuse())

    def drop(self) -> None:
        """Reset all connections now; new ones are taken as before."""
        self._do(self._drop())

    def cut(self) -> None:
        """Refuse new connections, and reset those that are there."""
        self._do(self._refuse(), self._drop())

    def black_hole(self) -> None:
        """Take connections and forward nothing, as a network that fell in two does.

        Nobody is told, not of an end either, until `forward`: then all that was sent arrives.
        """
        self._do(self._hold(flows=False))

    def delay(self, *, to_server: float = 0.0, to_client: float = 0.0) -> None:
        """Hold back each piece that passes for so many seconds."""
        self.delays = {"to_server": to_server, "to_client": to_client}

    def half_close(self, direction: Direction) -> None:
        """Tell one end of each connection that nothing more comes; the other direction goes on."""
        self._do(self._half_close(direction))

    def when(self, direction: Direction, pattern: bytes, action: Action, *, nth: int = 1) -> Rule:
        """Do something, once: when a pattern passes the n-th time, on whatever connection.

        All that comes before the pattern is forwarded first. The action:
            "drop": reset the connection; the pattern does not arrive.
            "drop_answer": let it arrive, and reset the connection in place of the next answer.
            "black_hole": the connection stays, and from the pattern on nothing arrives.
            a function: call it, and then go on; it may end servers and change this proxy.
        """
        rule = Rule(direction, pattern, action, nth)
        self._rules.append(rule)
        return rule

    def rules(self, direction: Direction) -> list[Rule]:
        """Give those of one direction."""
        return [rule for rule in self._rules if rule.direction == direction]

    def close(self) -> None:
        """Reset all connections, and end; raise what a rule's function raised."""
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._port.close()
        for rule in self._rules:
            if rule.error is not None:
                raise rule.error

    # ---- in the loop's thread ----

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Do what comes before all that is forwarded: nothing here."""

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            # A connection that came at the last moment is reset, and closed in the next rounds.
            self._loop.run_until_complete(asyncio.sleep(0.01))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    def _do(self, *steps: Coroutine[object, object, None]) -> None:
        for step in steps:
            asyncio.run_coroutine_threadsafe(step, self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        if self._listener is None:
            # asyncio sends small pieces at once only where the protocol is said.
            near = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            near.bind((LOOPBACK, self.port))
            self._listener = await asyncio.start_server(self._accepted, sock=near)

    async def _refuse(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            for near in listener.sockets:  # or one that it is just accepting is left open
                self._loop.remove_reader(near.fileno())
            await asyncio.sleep(0)
            listener.close()

    async def _hold(self, *, flows: bool) -> None:
        self._flows = flows
        for connection in self._connections.values():
            connection.flow(flows=flows)

    async def _drop(self) -> None:
        tasks = list(self._connections)
        for task, connection in list(self._connections.items()):
            connection.reset()  # one that has not begun would not do so when it is cancelled
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the loop closes a transport in its next round

    async def _half_close(self, direction: Direction) -> None:
        for connection in self._connections.values():
            connection.half_close(direction)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None:  # it came at the last moment
            _reset(writer)
            return
        connection = _Connection(self, (reader, writer))
        connection.flow(flows=self._flows)
        task = self._loop.create_task(connection.run(self._target))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)
