"""PostgreSQL: settings of roles, databases, URLs and the environment that change what is said."""

from __future__ import annotations

import datetime as dt
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import psycopg.postgres
import pytest
from postgreslook import check_tables, query
from psycopg.adapt import AdaptersMap
from psycopg.types.string import StrDumperVarchar, TextBinaryLoader, TextLoader

from turnlog import Memory, Message, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_server import PostgresServer

CONTENT = "back\\slash, 'quotes', \0, \udc80, é, 漢字, 🙂, {NULL}, \u2028, %s, $1"
SETTINGS = {
    "client_encoding": "LATIN1",
    "DateStyle": "SQL, DMY",
    "TimeZone": "<odd>+03:17",
    "bytea_output": "escape",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "search_path": "other, pg_catalog",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1s",
    "lock_timeout": "1s",
    "idle_in_transaction_session_timeout": "1s",
    "idle_session_timeout": "1s",
    "transaction_timeout": "1s",
    "exit_on_error": "on",
    "synchronous_commit": "off",
    "row_security": "on",
    "plan_cache_mode": "force_custom_plan",
}
# What a schema that comes first may have in the place of PostgreSQL's own.
SHADOWS = """
    CREATE SCHEMA other;
    CREATE FUNCTION other.now() RETURNS timestamptz LANGUAGE sql
    AS $$ SELECT 'infinity'::timestamptz $$;
    CREATE FUNCTION other.octet_length(text) RETURNS int LANGUAGE sql
    AS $$ SELECT 1 / 0 $$;
    CREATE FUNCTION other.convert_to(text, text) RETURNS bytea LANGUAGE sql
    AS $$ SELECT ''::bytea $$;
    CREATE FUNCTION other.pg_try_advisory_lock(bigint) RETURNS bool LANGUAGE sql
    AS $$ SELECT false $$;
"""


SLOW = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN new; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON turnlog_turn FOR EACH ROW EXECUTE FUNCTION slow();
"""


@pytest.fixture
def role_url(postgres_server: PostgresServer, postgres_url: str) -> Iterator[str]:
    """Yield the URL of an empty database for a role that is no superuser."""
    postgres_server.new_user("odd", "secret")
    query(postgres_url, "GRANT ALL ON SCHEMA public TO odd")
    yield postgres_server.url(postgres_url.rpartition("/")[2], "odd", "secret")
    query(postgres_url, "DROP OWNED BY odd CASCADE")
    query(postgres_url, "DROP ROLE odd")


def set_for_role(url: str, role: str, setting: str, value: str) -> None:
    """Have each new session of a role begin with a setting."""
    with psycopg.connect(url, autocommit=True) as connection:
        literal = value if setting == "search_path" else f"'{value}'"
        connection.execute(f"ALTER ROLE {role} SET {setting} = {literal}".encode())


def use(url: str) -> None:
    """Append, read, list, lock, wait for news and delete; see that all is as it was said."""
    before = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    with Memory(url) as memory, Memory(url) as other:
        thread = memory.open("NULL").append(CONTENT)
        with thread.turn_lock(10):
            waiting = threading.Thread(target=thread.refresh, kwargs={"wait": 60})
            waiting.start()
            other.open("NULL").extend([Message("assistant", CONTENT), Message("user", CONTENT)])
            waiting.join()
            thread.append("last", meta={"key": CONTENT}, key=CONTENT)
        assert len(thread) == 4
        (listed,) = memory.threads()
        assert before < listed.modified < before + dt.timedelta(minutes=2)
    with Memory(url, read_only=True) as memory:
        assert [m.content for m in memory.open("NULL").messages()] == [CONTENT] * 3 + ["last"]
        assert [m.content for m in memory.peek("NULL", last=2)] == [CONTENT, "last"]
    with Memory(url) as memory:
        assert memory.delete("NULL")


@pytest.mark.parametrize("other", [{}, {"client_encoding": "SQL_ASCII", "DateStyle": "German"}])
def test_settings_of_a_role(postgres_url: str, role_url: str, other: dict[str, str]) -> None:
    """Whatever a role's sessions begin with, what comes back is what was said (C48)."""
    query(postgres_url, SHADOWS)
    query(postgres_url, "GRANT USAGE ON SCHEMA other TO odd")
    known = settings_known(postgres_url)
    for setting, value in (SETTINGS | other).items():
        if setting in known:
            set_for_role(postgres_url, "odd", setting, value)
    use(role_url)
    check_tables(postgres_url)


@pytest.mark.parametrize("way", ["URL", "environment"])
def test_settings_of_a_connection(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The same holds where the URL or libpq's environment say all of this at once (C48)."""
    known = settings_known(postgres_url)
    options = " ".join(
        f"-c {name}={value.replace(' ', chr(92) + ' ')}"
        for name, value in SETTINGS.items()
        if name in known
    )
    url = postgres_url
    if way == "URL":
        url += f"?client_encoding=LATIN1&options={quote(options)}"
    else:
        monkeypatch.setenv("PGOPTIONS", options)
        monkeypatch.setenv("PGCLIENTENCODING", "SJIS")
        monkeypatch.setenv("PGDATESTYLE", "Postgres, DMY")
        monkeypatch.setenv("PGTZ", "Asia/Kathmandu")
    use(url)


def test_adapters_of_the_program(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program has psycopg make of values does not change what the store reads (C48)."""
    adapters = AdaptersMap(psycopg.adapters)
    for name in ("uuid", "timestamptz", "int8", "bytea"):
        adapters.register_loader(name, TextLoader)
        adapters.register_loader(name, TextBinaryLoader)
    adapters.register_dumper(str, StrDumperVarchar)
    monkeypatch.setattr(psycopg.postgres, "adapters", adapters)
    use(postgres_url)


def settings_known(url: str) -> set[str]:
    """Return the names of the server's settings."""
    return {name for (name,) in query(url, "SELECT name FROM pg_settings")}


def test_statement_timeout(postgres_url: str, role_url: str) -> None:
    """A statement that takes longer than a role's sessions allow is not cut off (C48)."""
    set_for_role(postgres_url, "odd", "statement_timeout", "300ms")
    with Memory(role_url) as memory:
        thread = memory.open("t").append("first")
        query(postgres_url, SLOW)
        thread.append("second")
        assert [m.content for m in memory.open("t").messages()] == ["first", "second"]


def test_hidden_rows(postgres_url: str, role_url: str) -> None:
    """Rows that row security hides are no absent turns: the role is refused (C48)."""
    with Memory(postgres_url) as memory:
        memory.open("t").append("hidden")
    query(
        postgres_url, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO odd"
    )
    query(postgres_url, "ALTER TABLE turnlog_turn ENABLE ROW LEVEL SECURITY")
    with (
        Memory(role_url) as memory,
        pytest.raises(StoreError, match=r"'t'.*row-level security.*BYPASSRLS"),
    ):
        memory.open("t")
