"""NATS: servers that die, are cut off and run full while eight writers append."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from machine import needs_root, tiny_tmpfs
from nats_server import NatsServer
from proxy import Proxy
from serverprocess import wait_until
from serverstorm import Storm

from turnlog import Memory, NotWritten

if TYPE_CHECKING:
    from pathlib import Path

    from nats_cluster import NatsCluster

# So many that they compete for one of them now and then.
MANY = [f"thread-{number}" for number in range(24)]


@pytest.mark.parametrize("patience", [60.0, 0.3])
def test_a_server_that_comes_and_goes(
    nats_server: NatsServer, nats_url: str, patience: float
) -> None:
    """Eight writers go on over a server that dies and a network that fails, nothing lost."""
    with Proxy(nats_server.port) as proxy:

        def kill() -> None:
            nats_server.kill()
            nats_server.start()

        with Storm(proxy.url(nats_url), lock_timeout=patience) as storm:
            for fault in (kill, nats_server.restart, kill, proxy.drop, kill, nats_server.restart):
                fault()
                storm.wait_for_progress()
        storm.check()


@pytest.mark.timeout(300)
def test_three_faults_in_a_row(nats_cluster: NatsCluster, nats_cluster_url: str) -> None:
    """Eight writers go on over a killed leader, a restarted node and cut connections."""
    with Storm(nats_cluster_url, MANY) as storm:
        leader = nats_cluster.leader_of(urlsplit(nats_cluster_url).path[1:])
        nats_cluster.kill(leader)
        storm.wait_for_progress()
        nats_cluster.start(leader)
        second, third = ((leader + step) % len(nats_cluster.nodes) for step in (1, 2))
        nats_cluster.stop(second)
        nats_cluster.start(second)
        storm.wait_for_progress()
        nats_cluster.proxies[third].drop()
        storm.wait_for_progress()
    storm.check()


@pytest.mark.timeout(300)
def test_a_node_that_is_cut_off(nats_cluster: NatsCluster, nats_cluster_url: str) -> None:
    """Eight writers go on while the node that leads is cut off, and when it is back."""
    with Storm(nats_cluster_url, MANY) as storm:
        leader = nats_cluster.leader_of(urlsplit(nats_cluster_url).path[1:])
        nats_cluster.cut_off(leader, "black_hole")
        storm.wait_for_progress()
        nats_cluster.heal(leader)
        storm.wait_for_progress()
    storm.check()


@needs_root
def test_a_full_disk(tmp_path: Path) -> None:
    """Where others fill the disk writers are told of it, and go on once the server is back."""
    with tiny_tmpfs(tmp_path / "data", "size=16m") as disk, NatsServer(tmp_path) as server:
        url = server.new_stream_url()
        with Storm(url, lock_timeout=1.0) as storm:
            ballast = disk / "ballast"
            fill(ballast)
            wait_until(lambda: storm.errors, "a writer is told")
            ballast.unlink()
            server.restart()  # until then it answers nothing, as its log says
            storm.wait_for_progress()
        storm.check()
        assert "no space left on device" in server.log


def fill(file: Path) -> None:
    """Write to a file until there is no room."""
    with file.open("wb", buffering=0) as written, suppress(OSError):
        while True:
            written.write(bytes(1024))


@needs_root
def test_no_room_left(tmp_path: Path) -> None:
    """Where the server has no room it says so, nothing is written, and a deletion makes room."""
    with tiny_tmpfs(tmp_path / "data", "size=16m"), NatsServer(tmp_path) as server:
        url = server.new_stream_url()
        with Storm(url, lock_timeout=20.0) as storm, Memory(url) as memory:
            with pytest.raises(NotWritten, match=r"refused it: .*(insufficient|maximum|exceeded)"):
                fill_thread(memory)
            wait_until(lambda: storm.errors, "the writers are told, too")
            memory.delete("large")
            storm.wait_for_progress()
        storm.check()
        assert all("refused it" in error for error in storm.errors)


def fill_thread(memory: Memory) -> None:
    """Append until it is refused."""
    thread = memory.open("large")
    while True:
        thread.append("x" * 500_000)
