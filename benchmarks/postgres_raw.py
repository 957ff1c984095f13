"""The rows of turnlog's table by raw SQL: as quick as a turn gets into PostgreSQL without it."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, Final, TypeAlias

import psycopg
from atonce import timed
from files import line
from psycopg_pool import AsyncConnectionPool
from text import numbered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

Values: TypeAlias = tuple[str, str, int, str, uuid.UUID]  # of a row
Work: TypeAlias = "Callable[[psycopg.AsyncConnection, Values], Awaitable[None]]"

CHANNEL: Final = "bare_news"
_TABLES: Final = """
    CREATE TABLE bare_turn (LIKE turnlog_turn INCLUDING ALL);
    CREATE TABLE bare_thread (LIKE turnlog_thread INCLUDING ALL)
"""
_INSERT: Final = (
    "INSERT INTO bare_turn (namespace, id, seq, line, append) VALUES (%s, %s, %b, %s, %s)"
)
_INSERT_AND_NOTIFY: Final = f"""
    WITH kept AS ({_INSERT}) SELECT pg_notify('{CHANNEL}', %s)
"""
_COUNT: Final = """
    INSERT INTO bare_thread AS t (namespace, id, life, turns, size, modified)
    VALUES (%s, %s, %s, 1, %b, now()) ON CONFLICT (namespace, id)
    DO UPDATE SET turns = t.turns + 1, size = t.size + excluded.size, modified = now()
"""
_KEPT: Final = "SELECT count(*) FROM turnlog_turn WHERE id LIKE %s"


def connected(url: str) -> psycopg.Connection:
    """Connect, with a transaction a statement."""
    return psycopg.connect(url, autocommit=True)


def make_tables(url: str) -> None:
    """Make tables with the columns and the indexes of turnlog's own, which are there."""
    with connected(url) as connection:
        connection.execute(_TABLES)


def check_kept(url: str, name: str, turns: int) -> None:
    """See that turnlog has so many turns of the threads whose ids begin with a name."""
    with connected(url) as connection:
        found = connection.execute(_KEPT, (f"{name}-%",)).fetchall()
    if found != [(turns,)]:
        raise SystemExit(f"{name}: of {turns} turns {found} were kept")


def rows(id_: str) -> Iterator[Values]:
    """Give the rows of a thread's turns, without end."""
    text = line(("user", numbered(0, 0))).decode().rstrip("\n")
    for seq in itertools.count():
        yield "default", id_, seq, text, uuid.uuid4()


def insert(cursor: psycopg.Cursor, row: Values) -> None:
    """Insert a row, in a transaction of its own."""
    cursor.execute(_INSERT, row, prepare=True)


def insert_in_transaction(cursor: psycopg.Cursor, row: Values) -> None:
    """Insert a row between BEGIN and COMMIT."""
    with cursor.connection.transaction():
        cursor.execute(_INSERT, row, prepare=True)


def insert_and_notify(cursor: psycopg.Cursor, row: Values) -> None:
    """Insert a row and tell of it, in one transaction."""
    cursor.execute(_INSERT_AND_NOTIFY, (*row, row[1]), prepare=True)


def notify(cursor: psycopg.Cursor, row: Values) -> None:
    """Tell of a row."""
    cursor.execute("SELECT pg_notify(%s, %s)", (CHANNEL, row[1]), prepare=True)


async def append(connection: psycopg.AsyncConnection, row: Values) -> None:
    """Insert a row, in a transaction of its own."""
    await connection.execute(_INSERT, row, prepare=True)


async def append_and_count(connection: psycopg.AsyncConnection, row: Values) -> None:
    """Keep what turnlog keeps: insert a row and count it in its thread's, in one transaction."""
    namespace, id_, _, text, life = row
    async with connection.transaction():
        await connection.execute(_COUNT, (namespace, id_, life, len(text)), prepare=True)
        await connection.execute(_INSERT, row, prepare=True)


async def at_once(
    url: str, connections: int, work: Work, tasks: Sequence[Sequence[Values]]
) -> float:
    """Have each task do its rows, through a pool; give the seconds."""
    pool = AsyncConnectionPool(
        url,
        min_size=connections,
        max_size=connections,
        kwargs={"autocommit": True},
        open=False,
    )

    async def do_each(rows: Sequence[Values]) -> None:
        for row in rows:
            async with pool.connection() as connection:
                await work(connection, row)

    async with pool:
        await pool.wait()
        return await timed([do_each(rows) for rows in tasks])
