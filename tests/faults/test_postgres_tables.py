"""PostgreSQL: how the tables are made and brought up to date, and roles that may do little."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from postgreslook import check_tables, query, sessions
from serverprocess import wait_until
from serverstorm import contents
from writers import go, line, rest, running

from turnlog import Memory, NotWritten, ReadOnly, StoreError
from turnlog.stores.postgres import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_server import PostgresServer

# A step that a later version might bring, which takes longer than a lock is waited for at a time.
STEP = """
    ALTER TABLE $turn ADD COLUMN role text;
    UPDATE $turn SET role = line::json ->> 'role';
    SELECT pg_sleep(0.3);
"""
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"


def open_and_append(url: str, content: str) -> list[str]:
    """Open a thread in a memory of its own and append to it; give its turns."""
    with Memory(url) as memory:
        return [m.content for m in memory.open("t").append(content).messages()]


def test_made_by_many_at_once(postgres_url: str) -> None:
    """Tables in a schema that is not there yet are made by processes that all start at once."""
    url = f"{postgres_url}?schema=some_schema&table_prefix=some_"
    with ExitStack() as stack:
        processes = [
            stack.enter_context(running("first_opens", url, "t", f"p{n}", 5)) for n in range(3)
        ]
        for process in processes:
            assert line(process) == "ready"
        for process in processes:
            go(process)
        for process in processes:
            assert len(rest(process)) == 5
            assert process.wait(60) == 0
    expected = sorted(f"p{n}.{i} 0" for n in range(3) for i in range(5))
    assert sorted(contents(url, ["t"])["t"]) == expected
    assert query(postgres_url, TABLES) == []
    assert contents(postgres_url, ["t"]) == {"t": []}  # other tables, of other names


@pytest.mark.parametrize("version", range(len(schema.STEPS) + 1))
def test_brought_up_to_date(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Tables of each earlier version are brought up to the next by many at once, and keep all."""
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "STEPS", schema.STEPS[:version])
        old = Memory(postgres_url)
        if version:
            expected = ["a first", "a second"]
            for content in expected:
                old.open("t").append(content)
        else:
            expected = []
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, STEP))
    with ExitStack() as stack:
        stack.callback(old.close)
        memories = [stack.enter_context(Memory(postgres_url)) for _ in range(8)]
        workers = [threading.Thread(target=memory.open, args=("t",)) for memory in memories]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for number, memory in enumerate([*memories, old]):
            memory.open("t").append(f"{number}")
            expected.append(f"{number}")
    assert contents(postgres_url, ["t"]) == {"t": expected}
    assert query(postgres_url, "SELECT steps FROM turnlog_version") == [(len(schema.STEPS),)]
    assert query(postgres_url, "SELECT count(*) FROM turnlog_turn WHERE role = 'user'") == [
        (len(expected) - 9 if version else 0,)
    ]
    check_tables(postgres_url)


def test_a_step_that_fails(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails leaves the tables as they were, and may be tried again."""
    open_and_append(postgres_url, "first")
    steps = schema.STEPS
    monkeypatch.setattr(schema, "STEPS", (*steps, STEP, "SELECT 1 / 0"))
    with pytest.raises(StoreError, match="division by zero"):
        open_and_append(postgres_url, "never")
    monkeypatch.setattr(schema, "STEPS", steps)
    assert open_and_append(postgres_url, "second") == ["first", "second"]
    monkeypatch.setattr(schema, "STEPS", (*steps, STEP))
    assert open_and_append(postgres_url, "third") == ["first", "second", "third"]


@pytest.mark.parametrize("read_only", [False, True])
def test_newer_tables(postgres_url: str, read_only: bool) -> None:  # noqa: FBT001
    """Tables of a newer turnlog are refused, with the versions named, and stay as they are."""
    open_and_append(postgres_url, "first")
    newer = len(schema.STEPS) + 1
    query(postgres_url, "UPDATE turnlog_version SET steps = steps + 1")
    with (
        Memory(postgres_url, read_only=read_only) as memory,
        pytest.raises(StoreError, match=f"version {newer}.*upgrade turnlog"),
    ):
        memory.open("t")
    assert query(postgres_url, "SELECT steps FROM turnlog_version") == [(newer,)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_other_encodings(postgres_server: PostgresServer, postgres_url: str, encoding: str) -> None:
    """A database that cannot hold every text is refused before anything is made in it."""
    name = postgres_url.rpartition("/")[2]
    postgres_server.drop_database(postgres_url)
    postgres_server.execute(
        f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
    )
    with pytest.raises(StoreError, match=f"{encoding}.*ENCODING 'UTF8'"):
        open_and_append(postgres_url, "first")
    assert query(postgres_url, TABLES) == []


def test_reads_where_nothing_is(postgres_url: str) -> None:
    """A memory that only reads finds nothing where there are no tables, and makes none."""
    for url in (postgres_url, f"{postgres_url}?schema=missing"):
        with Memory(url, read_only=True) as memory:
            thread = memory.open("t")
            assert len(thread.refresh()) == 0
            assert list(memory.threads()) == []
            assert len(memory.peek("t", last=3)) == 0
            with pytest.raises(ReadOnly):
                thread.append("first")
    assert query(postgres_url, TABLES) == []
    assert query(postgres_url, "SELECT FROM pg_namespace WHERE nspname = 'missing'") == []


# ---- roles ----


@pytest.fixture
def roles(postgres_server: PostgresServer, postgres_url: str) -> Iterator[None]:
    """Have tables with a turn, a role that may write to them and one that may read them."""
    open_and_append(postgres_url, "first")
    postgres_server.new_user("writer", "secret")
    postgres_server.new_user("reader", "secret")
    tables = "ON ALL TABLES IN SCHEMA public"
    query(postgres_url, f"GRANT SELECT {tables} TO reader, writer")
    query(postgres_url, f"GRANT INSERT, UPDATE, DELETE {tables} TO writer")
    yield
    query(postgres_url, "DROP OWNED BY reader, writer")
    query(postgres_url, "DROP ROLE reader, writer")


def of(role: str, url: str) -> str:
    """Give the URL for a role."""
    return url.replace("postgres@", f"{role}:secret@")


@pytest.mark.usefixtures("roles")
def test_a_role_that_may_write(postgres_url: str) -> None:
    """A role that may not make tables, but write to them, is all that a memory needs."""
    url = of("writer", postgres_url)
    assert open_and_append(url, "second") == ["first", "second"]
    with Memory(url) as memory:
        with memory.open("t").turn_lock():
            memory.open("u").append("first")
        assert memory.delete("t")
    assert contents(postgres_url, ["t", "u"]) == {"t": [], "u": ["first"]}


@pytest.mark.usefixtures("roles")
def test_a_role_that_may_read(postgres_url: str) -> None:
    """A role that may read is enough to read; what it may not is refused at once, and named."""
    url = of("reader", postgres_url)
    with Memory(url, read_only=True) as memory:
        assert [m.content for m in memory.open("t").messages()] == ["first"]
        assert [info.id for info in memory.threads()] == ["t"]
    with Memory(url) as memory:
        for id_ in ("t", "u"):
            with pytest.raises(NotWritten, match=r"permission denied.*read_only=True"):
                memory.open(id_).append("second")
        with pytest.raises(StoreError, match="permission denied"):
            memory.delete("t")
    assert contents(postgres_url, ["t"]) == {"t": ["first"]}


# ---- plans ----

SCANS = """
    SELECT relname, seq_scan FROM pg_stat_user_tables
    WHERE relname IN ('turnlog_thread', 'turnlog_turn') ORDER BY relname
"""


def test_threads_are_found_by_their_key(postgres_url: str) -> None:
    """Batches and openings look no table through, also where they were planned for tiny ones."""

    async def main() -> None:
        async with Memory(postgres_url) as memory:
            threads = [await memory.aopen(f"t{number}") for number in range(50)]
            for turn in range(8):
                await asyncio.gather(*(thread.aappend(str(turn)) for thread in threads))
        async with Memory(postgres_url) as memory:
            for thread in threads:
                assert len(await memory.aopen(thread.id)) == 8

    with Memory(postgres_url) as memory:
        memory.open("one").append("alone")
    query(postgres_url, "ANALYZE turnlog_thread")
    query(postgres_url, "ANALYZE turnlog_turn")
    wait_until(lambda: not sessions(postgres_url), "what it did is counted")
    before = query(postgres_url, SCANS)
    assert [name for name, _ in before] == ["turnlog_thread", "turnlog_turn"]
    asyncio.run(main())
    wait_until(lambda: not sessions(postgres_url), "what they did is counted")
    assert query(postgres_url, SCANS) == before


@pytest.mark.parametrize(
    ("query_part", "what"),
    [("", "CREATE on the schema"), ("?schema=not_there", "CREATE on the database")],
)
def test_role_that_may_not_make_the_tables(
    postgres_server: PostgresServer, postgres_url: str, query_part: str, what: str
) -> None:
    """A role that may not make the tables, which are missing, is told what it lacks (C50)."""
    postgres_server.new_user("bot", "secret")
    query(postgres_url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    url = postgres_url.replace("postgres@", "bot:secret@")
    try:
        with Memory(f"{url}{query_part}") as memory, pytest.raises(StoreError) as failed:
            memory.open("t").append("first")
        assert "permission denied" in failed.value.what
        assert what in failed.value.hint
    finally:
        query(postgres_url, "DROP OWNED BY bot")
        query(postgres_url, "DROP ROLE bot")
