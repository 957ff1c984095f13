"""The tests' NATS servers lose nothing, break as they are told, and take over from each other."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import uuid
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import nats
import pytest
from nats_server import NatsServer
from serverprocess import LOOPBACK, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats_cluster import NatsCluster

client: Any = nats  # its types are loose
unanswered = (TimeoutError, client.errors.Error)


class Stream:
    """A stream that is made, and written."""

    def __init__(self, *servers: str, name: str = "T") -> None:
        """Make it, on all of the servers."""
        self.name = name

        async def make(streams: Any) -> None:
            await streams.add_stream(name=name, subjects=[name], num_replicas=len(servers))

        asyncio.run(self._with(servers, make, PATIENCE))

    def publish(self, *servers: str, patience: float = 60) -> int:
        """Publish to one of the servers until it is acknowledged; give the place in the stream."""
        headers = {"Nats-Msg-Id": uuid.uuid4().hex}

        async def publish(streams: Any) -> int:
            async with asyncio.timeout(patience):
                while True:
                    try:
                        return (await streams.publish(self.name, headers=headers)).seq
                    except (client.errors.TimeoutError, client.js.errors.Error):
                        await asyncio.sleep(0.05)

        return asyncio.run(self._with(servers, publish))

    async def _with(self, servers: Any, work: Callable[[Any], Any], patience: float = 1) -> Any:
        connection = await client.connect(
            list(servers),
            connect_timeout=1,
            reconnect_time_wait=0.05,
        )
        try:
            return await work(connection.jetstream(timeout=patience))
        finally:
            await connection.close()


@pytest.mark.parametrize("end", [NatsServer.stop, NatsServer.kill])
def test_restart(end: Callable[[NatsServer], None]) -> None:
    """A server that was stopped or killed has all that it acknowledged when it is back."""
    with NatsServer(sync_interval="always") as server:
        stream = Stream(server.url())
        assert stream.publish(server.url()) == 1
        end(server)
        assert server.asked("varz") is None
        server.start()
        assert stream.publish(server.url()) == 2
    assert not server.folder.exists()


def test_pause() -> None:
    """A server that stands still answers nothing until it goes on."""
    with NatsServer() as server:
        server.pause()
        with socket.create_connection((LOOPBACK, server.port)) as connection:
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            server.resume()
            connection.settimeout(PATIENCE)
            assert connection.recv(4) == b"INFO"


def test_settings() -> None:
    """A server asks for the user and the password, speaks TLS, and says what is too large."""
    with NatsServer(user="ann", password="secret", tls=True, max_payload=1000) as server:
        context = ssl.create_default_context(cafile=server.certificate)
        assert urlsplit(server.url()).scheme == "tls"
        # Not by the client: it leaves connections by TLS open, of which Python warns.
        for password, answer in (("secret", "PONG"), ("wrong", "-ERR 'Authorization Violation'")):
            with socket.create_connection((LOOPBACK, server.port)) as plain:
                said = plain.recv(4096).removeprefix(b"INFO ")
                with context.wrap_socket(plain, server_hostname="localhost") as safe:
                    login = json.dumps({"user": "ann", "pass": password, "verbose": False})
                    safe.sendall(f"CONNECT {login}\r\nPING\r\n".encode())
                    assert safe.recv(4096).decode().strip() == answer
        assert json.loads(said)["max_payload"] == 1000


def test_streams(nats_server: NatsServer, nats_url: str) -> None:
    """A test's stream, and those beside it, are deleted in the end, and others are not."""
    assert nats_url.endswith("?replicas=1")
    mine = urlsplit(nats_url).path[1:]
    names = [mine, f"{mine}_LOCKS", f"{mine}0"]
    streams = [Stream(nats_server.url(), name=name) for name in names]
    nats_server.delete_stream(nats_url)
    for stream in streams[:2]:
        with pytest.raises(unanswered):
            stream.publish(nats_server.url(), patience=0.1)
    assert streams[2].publish(nats_server.url()) == 1
    nats_server.delete_stream(nats_server.url(names[2]))


@pytest.fixture
def stream(nats_cluster: NatsCluster, nats_cluster_url: str) -> Stream:
    """Give a stream on all nodes of the cluster."""
    return Stream(*nats_cluster.urls(), name=urlsplit(nats_cluster_url).path[1:])


def test_a_new_leader(nats_cluster: NatsCluster, stream: Stream) -> None:
    """When the leader is killed the others go on with another, and it comes back to them."""
    assert stream.publish(*nats_cluster.urls()) == 1
    leader = nats_cluster.leader_of(stream.name)
    nats_cluster.kill(leader)
    assert stream.publish(*nats_cluster.urls()) == 2
    assert nats_cluster.leader_of(stream.name) != leader
    nats_cluster.start(leader)
    assert stream.publish(nats_cluster.urls()[leader]) == 3


@pytest.mark.parametrize("how", ["cut", "black_hole"])
def test_a_node_that_is_cut_off(
    nats_cluster: NatsCluster, stream: Stream, how: Literal["cut", "black_hole"]
) -> None:
    """A leader that is cut off acknowledges nothing, and follows another when it is back."""
    servers = nats_cluster.urls()
    leader = nats_cluster.leader_of(stream.name)
    nats_cluster.cut_off(leader, how, clients=False)
    with pytest.raises(unanswered):
        stream.publish(servers[leader], patience=1)
    kept = stream.publish(*servers[:leader], *servers[leader + 1 :])
    assert nats_cluster.leader_of(stream.name) != leader
    nats_cluster.heal(leader)
    assert stream.publish(servers[leader]) > kept


def test_all_nodes_are_killed(nats_cluster: NatsCluster, stream: Stream) -> None:
    """A cluster that was killed as a whole has all that it acknowledged when it is back."""
    assert stream.publish(*nats_cluster.urls()) == 1
    nats_cluster.kill()
    nats_cluster.start()
    assert stream.publish(*nats_cluster.urls()) == 2
