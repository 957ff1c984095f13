"""Servers whose disk is cut off under eight writers, as a power cut does it.

What was not synced is lost. What was acknowledged counts
where the writer was told before the cut: a sync that is under way may still succeed after it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import pytest
from machine import make_ext4, mounted, needs_root
from nats_server import NatsServer
from postgres_server import PostgresServer
from postgreslook import check_tables
from proxy import Proxy
from serverprocess import new_folder, remove_folder
from serverstorm import Storm, check_order, contents
from serverwriters import OK, REFUSED

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path
    from typing import Self

IDS: Final = ("a", "b", "c")
SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN
WITHOUT_THE_LOG: Final = 2

pytestmark = needs_root


class Disk:
    """A disk on a folder, that can lose power and what was not synced."""

    def __init__(self, place: Path, image: Path) -> None:
        """Make it in a file; entering it mounts it."""
        self._place: Final = place
        self._image: Final = image
        self._mount: Final = ExitStack()
        make_ext4(image, size="512M")

    def __enter__(self) -> Self:
        """Mount it."""
        self._mount.enter_context(
            mounted(self._place, "-t", "ext4", "-o", "loop", str(self._image))
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Unmount it."""
        self._mount.close()

    def sync(self) -> None:
        """Bring to it all that is written by now."""
        subprocess.run(["sync", "-f", str(self._place)], check=True)

    def lose_power(self, kill: Callable[[], object]) -> None:
        """Cut it off under who uses it, kill that one, and have the power back."""
        folder = os.open(self._place, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", WITHOUT_THE_LOG))
        except OSError as error:
            pytest.skip(f"this file system cannot be cut off: {error}")
        finally:
            os.close(folder)
        kill()
        self._mount.close()
        self.__enter__()


def cut(
    storm: Storm,
    disk: Disk,
    proxy: Proxy,
    kill: Callable[[], object],
    start: Callable[[], object],
) -> set[tuple[str, str]]:
    """Cut a server's power under a storm and start it again; give what was acknowledged before."""
    proxy.black_hole()  # it lives on for a moment without its disk; nobody may hear of that
    acknowledged = set(storm.turns(OK))
    disk.lose_power(kill)
    proxy.drop()
    proxy.forward()
    start()
    storm.wait_for_progress()
    return acknowledged


def missing(storm: Storm, url: str, acknowledged: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Give what was acknowledged and is not there; all else is as the writers were told."""
    assert not storm.failures
    found = contents(url, IDS)
    there = [(id_, content) for id_, turns in found.items() for content in turns]
    assert len(there) == len(set(there))
    assert set(storm.turns(REFUSED)).isdisjoint(there)
    for turns in found.values():
        check_order(turns)
    return acknowledged - set(there)


@contextmanager
def nats_on_a_disk(place: Path, sync_interval: str | None) -> Generator[tuple[NatsServer, Disk]]:
    """Run a server whose data is on a disk of its own."""
    with (
        Disk(place / "data", place / "image") as disk,
        NatsServer(place, sync_interval=sync_interval) as server,
    ):
        yield server, disk


@contextmanager
def postgres_on_a_disk() -> Generator[tuple[PostgresServer, Disk]]:
    """Run a server all of which is on a disk of its own, in a folder that its user can enter."""
    folder = new_folder("postgres-disk")
    try:
        with (
            Disk(folder / "disk", folder / "image") as disk,
            PostgresServer(folder / "disk") as server,
        ):
            disk.sync()  # which `initdb` was told not to do
            yield server, disk
    finally:
        remove_folder(folder)


def test_nats_that_syncs_always(tmp_path: Path) -> None:
    """A single NATS server that syncs always has all that it acknowledged, after each cut."""
    with nats_on_a_disk(tmp_path, "always") as (server, disk):
        url = server.new_stream_url()
        with Proxy(server.port) as proxy, Storm(proxy.url(url), IDS) as storm:
            acknowledged = set[tuple[str, str]]()
            for _ in range(2):
                acknowledged |= cut(storm, disk, proxy, server.kill, server.start)
        assert not missing(storm, url, acknowledged)


def test_postgres() -> None:
    """PostgreSQL has all that it acknowledged, after each cut."""
    with postgres_on_a_disk() as (server, disk):
        url = server.new_database()

        def kill() -> None:
            server.stop("immediate")

        with Proxy(server.port) as proxy, Storm(proxy.url(url), IDS) as storm:
            acknowledged = set[tuple[str, str]]()
            for _ in range(2):
                acknowledged |= cut(storm, disk, proxy, kill, server.start)
        assert not missing(storm, url, acknowledged)
        check_tables(url)


def test_nats_that_syncs_now_and_then(tmp_path: Path) -> None:
    """Of a single NATS server's threads a beginning is left, with all that was synced."""
    with nats_on_a_disk(tmp_path, None) as (server, disk):
        url = server.new_stream_url()
        with Storm(url, IDS, lock_timeout=2.0) as storm:
            synced = set(storm.turns(OK))
            disk.sync()
            storm.wait_for_progress()
            before = contents(url, IDS)
            acknowledged = set(storm.turns(OK))
            disk.lose_power(server.kill)
        server.start()
        left = contents(url, IDS)
        for id_ in IDS:
            both = min(len(before[id_]), len(left[id_]))
            assert before[id_][:both] == left[id_][:both]
        lost = missing(storm, url, acknowledged)
        assert not lost & synced
        with Memory(url) as memory:
            for id_ in IDS:
                memory.open(id_).append("goes on")
        assert contents(url, IDS) == {id_: [*left[id_], "goes on"] for id_ in IDS}
