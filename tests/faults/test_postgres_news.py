"""PostgreSQL: who waits for news is told, and asks the server nothing meanwhile."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest
from postgreslook import query
from proxy import Proxy
from serverprocess import wait_until
from writers import go, line, running

from turnlog import Memory, StoreError
from turnlog.stores.postgres import listener

if TYPE_CHECKING:
    from collections.abc import Generator

    from postgres_server import PostgresServer

# All that the waiting memory asks is in the server's log.
LOGGED: Final = "application_name=waiter&options=-c%20log_statement%3Dall"
ASKED: Final = ("LOG:  statement: ", "LOG:  execute ")
LOOK: Final = "AS w (namespace, id)"  # in what who listens asks once
BY_HAND: Final = """
    WITH grown AS (
        UPDATE turnlog_thread SET turns = turns + 1 WHERE id = 't' RETURNING turns - 1 AS seq
    )
    INSERT INTO turnlog_turn SELECT 'default', 't', grown.seq, line, append
    FROM grown, turnlog_turn WHERE turnlog_turn.seq = 0
"""


@pytest.fixture
def no_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have news come by being told alone."""
    monkeypatch.setattr(listener, "_LOOK", 1000.0)


@contextmanager
def waiting(server: PostgresServer, url: str) -> Generator[None]:
    """Wait for news of a thread from the moment that all is quiet; they have come at the end."""
    with Memory(f"{url}?{LOGGED}") as memory:
        thread = memory.open("t")
        held = len(thread)
        looks = server.log.count(LOOK)
        refreshing = threading.Thread(target=thread.refresh, args=(100,))
        refreshing.start()
        wait_until(lambda: server.log.count(LOOK) > looks, "it listens, and has looked")
        wait_until(lambda: quiet(server), "it has read")
        yield
        refreshing.join(50)
        assert not refreshing.is_alive()
        assert len(thread) == held + 1


def asked(server: PostgresServer) -> int:
    """Count what was asked so far."""
    return sum(map(server.log.count, ASKED))


def quiet(server: PostgresServer) -> bool:
    """Say whether nothing is asked for a while."""
    before = asked(server)
    time.sleep(0.5)
    return asked(server) == before


def append_in_a_process(url: str) -> None:
    """Append a turn in a process of its own, which tells of it in its own time."""
    with running("append", url, "t", "other", 1, 0) as process:
        assert line(process) == "ready"
        go(process)
        assert line(process) == "0"
        assert process.wait(60) == 0


@pytest.mark.usefixtures("no_looking")
def test_told(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Another process's append is told to one who waits, and who asks nothing until then."""
    for _ in range(2):  # a thread that is not there yet, and one that is
        with waiting(postgres_server, postgres_url):
            before = asked(postgres_server)
            time.sleep(1)  # it waits
            assert asked(postgres_server) == before
            append_in_a_process(postgres_url)
    with waiting(postgres_server, postgres_url):
        listens = postgres_server.log.count("LISTEN")
        postgres_server.restart("immediate")
        wait_until(lambda: postgres_server.log.count("LISTEN") > listens, "it listens again")
        append_in_a_process(postgres_url)


@pytest.mark.usefixtures("no_looking")
def test_told_when_it_can_be_reached_again(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Who was cut off when news was told learns of it when the connection is back."""
    with (
        Proxy(postgres_server.port) as proxy,
        waiting(postgres_server, proxy.url(postgres_url)),
    ):
        proxy.cut()
        append_in_a_process(postgres_url)
        proxy.forward()


def test_what_nobody_told(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """News that its writer told nobody of, as he died, is found by looking now and then."""
    monkeypatch.setattr(listener, "_LOOK", 2.0)
    with Memory(postgres_url) as memory:
        memory.open("t").append("first")
    with waiting(postgres_server, postgres_url):
        query(postgres_url, BY_HAND)


def test_no_os_thread_to_listen(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no OS thread for it, waiting is refused, and works later (C58)."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "turnlog-listen":
            raise RuntimeError("can't start new thread")
        start(self)

    with Memory(postgres_url) as memory:
        thread = memory.open("t").append("first")
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(StoreError, match=r"thread 't'.*cannot be watched"):
                thread.refresh(wait=1)
        assert len(thread.refresh(wait=0.01)) == 1
