"""PostgreSQL: no room on the server's disk, and no connection left."""

from __future__ import annotations

import asyncio
import random
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest
from machine import mounted, needs_root
from postgres_server import PostgresServer
from postgreslook import check_tables
from serverprocess import new_folder, remove_folder, wait_until
from serverstorm import Storm, contents

from turnlog import Memory, MemoryThread, NotWritten, StoreError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

PLACES = 9  # for those who are no superusers


@contextmanager
def small_disk(place: Path, size: str) -> Generator[Path]:
    """Mount a file system in memory."""
    with mounted(place, "-t", "tmpfs", "-o", f"size={size}", "tmpfs") as disk:
        yield disk


def enlarge(disk: Path, size: str) -> None:
    """Make room."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


@needs_root
def test_full_disk(postgres_server: PostgresServer) -> None:
    """Where the tables' disk is full nothing is written, and it goes on once there is room."""
    with small_disk(postgres_server.folder / "disk", "1m") as disk:
        url = postgres_server.new_database(on=disk)
        try:
            with Memory(url) as memory:
                expected = fill(memory.open("t"))
                with pytest.raises(
                    NotWritten, match=r"nothing was written.*; free space on the server's disk"
                ):
                    asyncio.run(extend(memory))
                assert contents(url, ["t", "u"]) == {"t": expected, "u": []}
                enlarge(disk, "20m")
                asyncio.run(extend(memory))
                memory.open("t").append("there is room")
            found = contents(url, ["t", "u"])
            assert found["t"] == [*expected, "there is room"]
            assert len(found["u"]) == 1
            check_tables(url)
        finally:
            postgres_server.drop_database(url)


def fill(thread: MemoryThread) -> list[str]:
    """Append until there is no room."""
    turns: list[str] = []
    while True:
        turn = incompressible(1_500)
        try:
            thread.append(turn)
        except NotWritten:
            return turns
        turns.append(turn)


async def extend(memory: Memory) -> None:
    """Append a turn from a task that needs much room."""
    thread = await memory.aopen("u")
    await thread.aappend(incompressible(200_000))


def incompressible(size: int) -> str:
    """Give a text that takes so much room on a disk, whoever compresses it."""
    return random.randbytes(size // 2).hex()


@needs_root
def test_full_log() -> None:
    """A server whose log has no room ends, and writers go on when it is back, with nothing lost."""
    folder = new_folder("full-log")
    with ExitStack() as stack:
        stack.callback(remove_folder, folder)
        disk = stack.enter_context(small_disk(folder / "disk", "40m"))
        (disk / "wal").mkdir()
        server = stack.enter_context(PostgresServer(wal=disk / "wal"))
        url = server.new_database()
        with Storm(url, threads=2, processes=2) as storm:
            with Memory(url, lock_timeout=1) as memory:
                while server.running:  # it comes back by itself as long as that is enough
                    with suppress(StoreError):
                        memory.open("filler").append(incompressible(1_000_000))
            enlarge(disk, "200m")
            server.start()
            storm.wait_for_progress()
        storm.check()
        check_tables(url)


@pytest.fixture(scope="module")
def small_server() -> Iterator[PostgresServer]:
    """Give a server that takes few connections."""
    with PostgresServer(
        max_connections=PLACES + 3, reserved_connections=0, superuser_reserved_connections=3
    ) as server:
        server.new_user("bot", "secret")
        yield server


@pytest.fixture
def bot_url(small_server: PostgresServer) -> Iterator[str]:
    """Give the URL of a database there for one who is no superuser."""
    url = small_server.new_database(owner="bot")
    yield small_server.url(url.rpartition("/")[2], "bot", "secret")
    small_server.drop_database(url)


def test_no_connection_left(small_server: PostgresServer, bot_url: str) -> None:
    """Where others hold all connections the error says so; an append waits for one to be free."""
    with Memory(bot_url, lock_timeout=5) as hasty, Memory(bot_url, lock_timeout=60) as memory:
        thread = memory.open("t").append("first")
        small_server.terminate_backends()
        others: list[psycopg.Connection] = []
        # Those that have just been ended have their places for a moment yet.
        wait_until(lambda: takes_all(bot_url, others), "all connections are taken")
        with pytest.raises(StoreError, match=r"'t'.*connection slots.*raise max_connections"):
            hasty.open("t")
        appending = threading.Thread(target=thread.append, args=("second",))
        appending.start()
        for other in others:
            other.close()
        appending.join()
    assert contents(bot_url, ["t"]) == {"t": ["first", "second"]}


def takes_all(url: str, taken: list[psycopg.Connection]) -> bool:
    """Take the connections that are free; say whether all are taken now."""
    with suppress(psycopg.OperationalError):
        while True:
            taken.append(psycopg.connect(url))
    return len(taken) == PLACES


def test_more_threads_than_connections(bot_url: str) -> None:
    """Many OS threads of two memories that open and append at once share few connections."""
    with ExitStack() as stack:
        urls = (f"{bot_url}?max_connections={count}" for count in (1, 2))
        memories = [stack.enter_context(Memory(url)) for url in urls]

        def work(number: int) -> None:
            memories[number % 2].open(f"t{number // 4}").append(f"{number % 4} 0")

        with ThreadPoolExecutor(100) as workers:
            list(workers.map(work, range(100)))
    found = contents(bot_url, [f"t{n}" for n in range(25)])
    assert all(sorted(turns) == [f"{n} 0" for n in range(4)] for turns in found.values())
