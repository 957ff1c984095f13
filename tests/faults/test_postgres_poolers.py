"""PostgreSQL: a pooler before the server, which gives its connections to several programs."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from pgbouncer import PgBouncer
from postgreslook import check_tables, query, sessions
from proxy import Proxy
from serverprocess import wait_until
from serverstorm import Storm, contents

from turnlog import Memory, StoreError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pgbouncer import PoolMode
    from postgres_server import PostgresServer

REFUSED = r"'t'.*pooler.*pool_mode = session.*server's own port"


@pytest.fixture
def session_url(postgres_server: PostgresServer, postgres_url: str) -> Iterator[str]:
    """Yield the URL of an empty database by way of a pooler in session mode."""
    with PgBouncer(postgres_server) as pooler:
        yield pooler.url(postgres_url)


def test_session_mode(session_url: str) -> None:
    """In session mode all works: appends, turn locks, news and their waiters (C47)."""
    with Memory(session_url) as memory, Memory(session_url) as other:
        thread = memory.open("t").append("first")
        with thread.turn_lock():
            waiting = threading.Thread(target=lambda: thread.refresh(wait=60))
            waiting.start()
            other.open("t").append("second")
            waiting.join()
            thread.append("third")
    assert contents(session_url, ["t"]) == {"t": ["first", "second", "third"]}


def test_session_mode_with_faults(
    postgres_server: PostgresServer, postgres_url: str, session_url: str
) -> None:
    """In session mode writers go on after the server's processes were ended (C47)."""
    with Storm(session_url, threads=2, processes=2) as storm:
        postgres_server.terminate_backends("turnlog")
        storm.wait_for_progress()
    storm.check()
    check_tables(postgres_url)


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize(
    "settings",
    [{"default_pool_size": 1}, {}, {"server_round_robin": 1, "min_pool_size": 3}],
    ids=["one", "last used", "round robin"],
)
def test_other_modes(
    postgres_server: PostgresServer, postgres_url: str, mode: PoolMode, settings: dict[str, int]
) -> None:
    """A pooler in another mode is refused at once, and nothing is made or set (C47)."""
    with PgBouncer(postgres_server, mode, **settings) as pooler:
        url = pooler.url(postgres_url)
        for read_only in (False, True):
            with (
                Memory(url, read_only=read_only) as memory,
                pytest.raises(StoreError, match=REFUSED),
            ):
                memory.open("t")
        for _ in range(3):
            assert shown(url, "enable_seqscan") == "on"
    assert query(postgres_url, "SELECT FROM pg_tables WHERE schemaname = 'public'") == []


def test_transaction_mode_beside_others(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A pooler in transaction mode is refused also while others use all of its sessions (C47)."""
    with (
        PgBouncer(postgres_server, "transaction", default_pool_size=4) as pooler,
        busy(pooler.url(postgres_url)),
    ):
        for _ in range(5):
            with (
                Memory(pooler.url(postgres_url)) as memory,
                pytest.raises(StoreError, match=REFUSED),
            ):
                memory.open("t")


@contextmanager
def busy(url: str) -> Generator[None]:
    """Have four others use a pooler meanwhile, one short transaction after the other."""
    ending = threading.Event()

    def use() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            while not ending.wait(0.001):
                with connection.transaction():
                    connection.execute("SELECT pg_sleep(0.001)")

    others = [threading.Thread(target=use) for _ in range(4)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        ending.set()
        for other in others:
            other.join()


def test_names_of_statements(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Statements that another program left in a session have other names than ours (C48)."""
    with ExitStack() as stack:
        pooler = stack.enter_context(PgBouncer(postgres_server, server_reset_query=""))
        url = pooler.url(postgres_url)
        others = [stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(4)]
        for other in others:
            for number in range(20):
                other.execute(f"SELECT {number} -- mine".encode(), prepare=True)
        for other in others:
            other.close()
        with Memory(url) as memory:
            thread = memory.open("t").append("first").append("second")
            assert [m.content for m in thread.messages()] == ["first", "second"]


def test_a_session_of_others_is_not_ended(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A session that a pooler gave to another program, as ours was cut, is not ended (C46)."""
    with ExitStack() as stack:
        pooler = stack.enter_context(PgBouncer(postgres_server))
        url = pooler.url(postgres_url)
        proxy = stack.enter_context(Proxy(pooler.port))
        memory = stack.enter_context(Memory(proxy.url(url)))
        thread = memory.open("t")
        with thread.turn_lock():
            thread.append("first")
            ours = sessions(postgres_url)
            proxy.drop()
            # The pooler gives them to the next ones that come, which are in a transaction then.
            others: list[psycopg.Connection] = []
            wait_until(
                lambda: taken(stack, url, others) >= ours & processes(postgres_url),
                "all of ours are others' now",
            )
            assert ours & taken(stack, url, others)
        thread.append("second")
        with thread.turn_lock():
            thread.append("third")
        for other in others:
            assert other.execute("SELECT 'still there'").fetchone() == ("still there",)
    assert contents(postgres_url, ["t"]) == {"t": ["first", "second", "third"]}


def taken(stack: ExitStack, url: str, others: list[psycopg.Connection]) -> set[int]:
    """Begin one more transaction of another program; return the server's processes of all."""
    other = psycopg.connect(url)
    stack.callback(other.close)
    others.append(other)
    rows = [other.execute("SELECT pg_backend_pid()").fetchone() for other in others]
    return {row[0] for row in rows if row is not None}


def processes(url: str) -> set[int]:
    """Return all processes of the server."""
    return {pid for (pid,) in query(url, "SELECT pid FROM pg_stat_activity")}


def shown(url: str, setting: str) -> object:
    """Return a setting of a new session."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT current_setting(%s)", [setting]).fetchone()
    return row and row[0]
