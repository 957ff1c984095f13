"""Looks into a PostgreSQL database of the store's, past the store; and has its commits hang."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import psycopg
from serverprocess import wait_until

if TYPE_CHECKING:
    from typing import LiteralString

    from postgres_server import PostgresServer

COMMIT: Final = b"COMMIT\0"  # as it is sent; the settings of a new connection say READ COMMITTED
# A thread's row beside its turns, where they do not agree; and turns whose thread is missing.
_WRONG: Final = """
    SELECT * FROM (
        SELECT namespace, id, turns, size FROM turnlog_thread
    ) AS t FULL JOIN (
        SELECT namespace, id, count(*) AS turns, sum(octet_length(line) + 1) AS size,
            min(seq) AS first, max(seq) + 1 AS next
        FROM turnlog_turn GROUP BY namespace, id
    ) AS r USING (namespace, id)
    WHERE t.turns IS DISTINCT FROM r.turns OR t.size IS DISTINCT FROM r.size
    OR r.first <> 0 OR r.next <> r.turns
"""
_STORES: Final = "application_name = 'turnlog' AND datname = current_database()"
_SESSIONS: Final = f"SELECT pid FROM pg_stat_activity WHERE {_STORES}"
_HANGING: Final = "SELECT pid FROM pg_stat_activity WHERE wait_event IN ('SyncRep', 'PgSleep')"
_PROBE: Final = f"{_HANGING} AND application_name = 'probe'"


def query(url: str, sql: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
    """Run a statement on a connection of its own, which waits for no standby; give its rows."""
    local = "-c synchronous_commit=local"
    with psycopg.connect(url, autocommit=True, options=local) as connection:
        cursor = connection.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


def check_tables(url: str) -> None:
    """Check that places have no gap, and that each thread's row counts its turns and their size."""
    assert query(url, _WRONG) == []


def sessions(url: str) -> set[int]:
    """Give the processes of the server that serve a store in the URL's database."""
    return {pid for (pid,) in query(url, _SESSIONS)}


def hanging(url: str) -> set[int]:
    """Give those of them that hang in a commit."""
    return {pid for (pid,) in query(url, f"{_HANGING} AND {_STORES}")}


def hang_commits(server: PostgresServer) -> None:
    """Have all commits wait, once they are on the server's disk, for a missing standby."""
    server.set(synchronous_standby_names="nobody")
    with psycopg.connect(server.url(), autocommit=True, application_name="probe") as probe:
        hang = threading.Thread(target=_commit_until_it_hangs, args=(probe,))
        hang.start()
        wait_until(lambda: query(server.url(), _PROBE), "commits hang")
        query(server.url(), "SELECT pg_terminate_backend(%s)", probe.info.backend_pid)
        hang.join()


def let_commits_go(server: PostgresServer) -> None:
    """Have them wait no longer."""
    server.set(synchronous_standby_names="")


def _commit_until_it_hangs(probe: psycopg.Connection) -> None:
    try:
        while True:
            probe.execute("SELECT pg_logical_emit_message(true, '', '')")
    except psycopg.OperationalError:
        return


def lines(url: str, id: str = "t") -> list[str]:
    """Give the lines of a thread, in the order of their places."""
    rows = query(url, "SELECT line FROM turnlog_turn WHERE id = %s ORDER BY seq", id)
    return [line for (line,) in rows]
