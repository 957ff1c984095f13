"""The tests' proxy breaks connections as it is told, at the very place that it is told."""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import nats
import psycopg
import pytest
from nats_server import NatsServer
from proxy import Proxy
from serverprocess import LOOPBACK, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy import Action, Direction

nats_client: Any = nats  # its types are loose


class Echo(socketserver.StreamRequestHandler):
    """Sends each line back, and says goodbye at the end."""

    def handle(self) -> None:
        """Serve one connection."""
        with suppress(ConnectionResetError):
            for line in self.rfile:
                self.wfile.write(line)
            self.wfile.write(b"goodbye\n")


@pytest.fixture(scope="module")
def echo() -> Iterator[int]:
    """Give the port of a server that sends each line back."""
    with socketserver.ThreadingTCPServer((LOOPBACK, 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    """Give a proxy before that server."""
    with Proxy(echo) as proxy:
        yield proxy


def connected(proxy: Proxy) -> socket.socket:
    """Connect through a proxy."""
    return socket.create_connection((LOOPBACK, proxy.port), PATIENCE)


def say(connection: socket.socket, line: bytes) -> bytes:
    """Send a line, and give what comes back."""
    connection.sendall(line)
    return connection.recv(100)


def silent(connection: socket.socket) -> bool:
    """Say whether nothing comes for a moment."""
    connection.settimeout(0.1)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        connection.settimeout(PATIENCE)


def test_forward(proxy: Proxy) -> None:
    """All passes in both directions, and so does the end of either."""
    with connected(proxy) as connection:
        assert say(connection, b"hello\n") == b"hello\n"
        assert proxy.connections == 1
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b"goodbye\n"
        assert connection.recv(100) == b""


def test_refuse(proxy: Proxy) -> None:
    """New connections are refused until it forwards again, and those that are there go on."""
    with connected(proxy) as connection:
        assert say(connection, b"a\n") == b"a\n"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)
        assert say(connection, b"b\n") == b"b\n"
        proxy.forward()
        with connected(proxy) as another:
            assert say(another, b"c\n") == b"c\n"


def test_drop(proxy: Proxy) -> None:
    """Connections that are there are reset, and new ones are taken."""
    with connected(proxy) as connection:
        assert say(connection, b"a\n") == b"a\n"
        proxy.drop()
        assert proxy.connections == 0
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connected(proxy) as connection:
        assert say(connection, b"b\n") == b"b\n"


def test_black_hole(proxy: Proxy) -> None:
    """Nothing arrives, on new connections either, until it forwards again: then all does."""
    with connected(proxy) as old:
        assert say(old, b"a\n") == b"a\n"
        proxy.black_hole()
        with connected(proxy) as new:
            for connection in (old, new):
                connection.sendall(b"b\n")
            assert silent(old)
            assert silent(new)
            proxy.forward()
            for connection in (old, new):
                assert connection.recv(100) == b"b\n"


def test_delay(proxy: Proxy) -> None:
    """Each direction has its own delay."""
    with connected(proxy) as connection:
        proxy.delay(to_server=0.1, to_client=0.2)
        began = time.monotonic()
        assert say(connection, b"a\n") == b"a\n"
        assert time.monotonic() - began >= 0.3


def test_half_close(proxy: Proxy) -> None:
    """The receiver of one direction sees its end, and the other direction goes on."""
    with connected(proxy) as connection:
        assert say(connection, b"a\n") == b"a\n"
        proxy.half_close("to_server")
        assert connection.recv(100) == b"goodbye\n"
    with connected(proxy) as connection:
        assert say(connection, b"a\n") == b"a\n"
        proxy.half_close("to_client")
        assert connection.recv(100) == b""


@pytest.mark.parametrize(
    ("pieces", "passes", "stays"),
    [
        ([b"1 stop 2 stop 3"], b"1 stop 2 ", b"stop 3"),
        ([b"1 stop 2 st", b"op 3"], b"1 stop 2 st", b"op 3"),
    ],
)
def test_a_pattern(pieces: list[bytes], passes: bytes, stays: bytes) -> None:
    """What is before the n-th pattern passes, and it does not, also where it comes in pieces."""
    with (
        socket.create_server((LOOPBACK, 0)) as listening,
        Proxy(listening.getsockname()[1]) as proxy,
        connected(proxy) as client,
        listening.accept()[0] as server,
    ):
        rule = proxy.when("to_client", b"stop", "black_hole", nth=2)
        server.sendall(pieces[0])
        assert client.recv(len(passes), socket.MSG_WAITALL) == passes
        for piece in pieces[1:]:
            server.sendall(piece)
        assert rule.happened.wait(PATIENCE)
        assert silent(client)
        proxy.forward()
        assert client.recv(len(stays), socket.MSG_WAITALL) == stays


def test_a_function(proxy: Proxy) -> None:
    """A function is called when the pattern comes and before it passes, and may end all."""
    rule = proxy.when("to_server", b"stop", proxy.cut)
    with connected(proxy) as connection:
        with pytest.raises(ConnectionResetError):
            say(connection, b"stop\n")
        assert rule.happened.wait(PATIENCE)
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)


def test_a_function_that_fails(echo: int) -> None:
    """What a function raises is not lost."""
    proxy = Proxy(echo)
    proxy.when("to_server", b"stop", lambda: 1 // 0)
    with connected(proxy) as connection:
        assert say(connection, b"stop\n") == b"stop\n"
    with pytest.raises(ZeroDivisionError):
        proxy.close()


@pytest.mark.parametrize(
    ("direction", "action", "rows"),
    [("to_server", "drop", 0), ("to_server", "drop_answer", 1), ("to_client", "drop", 1)],
)
def test_a_lost_commit(postgres_url: str, direction: Direction, action: Action, rows: int) -> None:
    """A COMMIT that did not arrive did nothing; one whose answer was lost is done all the same."""
    with psycopg.connect(postgres_url, autocommit=True) as direct:
        direct.execute("CREATE TABLE t ()")
        with Proxy(direct.info.port) as proxy:
            rule = proxy.when(direction, b"COMMIT", action)
            with psycopg.connect(proxy.url(postgres_url)) as lost:
                lost.execute("INSERT INTO t DEFAULT VALUES")
                with pytest.raises(psycopg.OperationalError):
                    lost.commit()
            assert rule.happened.is_set()
        assert direct.execute("SELECT count(*) FROM t").fetchone() == (rows,)


@pytest.mark.parametrize(
    ("direction", "pattern", "messages"), [("to_server", "PUB T", 0), ("to_client", "seq", 1)]
)
def test_a_lost_publish(direction: Direction, pattern: str, messages: int) -> None:
    """A message that did not arrive is not kept; one whose acknowledgement was lost is."""

    async def main(server: NatsServer, proxy: Proxy) -> None:
        direct = await nats_client.connect(server.url())
        await direct.jetstream().add_stream(name="T", subjects=["T"])
        lost = await nats_client.connect(proxy.url(server.url()), allow_reconnect=False)
        rule = proxy.when(direction, pattern.encode(), "drop")
        with pytest.raises(nats_client.errors.Error):
            await lost.jetstream(timeout=1).publish("T", b"hello")
        assert await asyncio.to_thread(rule.happened.wait, PATIENCE)
        info = await direct.jetstream().stream_info("T")
        assert info.state.messages == messages
        await direct.close()

    with NatsServer() as server, Proxy(server.port) as proxy:
        asyncio.run(main(server, proxy))
