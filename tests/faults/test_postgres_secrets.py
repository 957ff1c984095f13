"""PostgreSQL: passwords that are told to nobody, and TLS."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from postgres_tls import TlsFront
from postgreslook import query
from serverprocess import LOOPBACK
from serverstorm import contents

from turnlog import Memory, StoreError, UnknownStore
from turnlog.stores.postgres.connections import Bounded

if TYPE_CHECKING:
    from postgres_server import PostgresServer

PARTS = ("hunter2", "sesame")
# One password each, as somebody may write it into a URL who has not heard of percent-encoding.
PASSWORDS = [
    f"hunter2{between}sesame"
    for between in ("", *"@/?#:%& []+=,;'\"\\$", "%00", "@x:1", "://", "%40")
]
PLACES = [
    "postgresql://bot:{}@{}/postgres",
    "postgresql://:{}@{}/postgres",
    "postgresql://bot:{}@{}/postgres?schema=x-y",
    "postgresql://bot:{}@{}/no_such_database",
    "postgresql://bot:{}@{}:wrong/postgres",
    "postgresql://bot:{}@nowhere.invalid/postgres",
    "postgresql://bot:{}@[::1/postgres",
    "postgresql://{1}/postgres?user=bot&password={0}",
    "postgresql://{1}/postgres?password={0}&sslmode=require",
    "postgresql://{1}/postgres?sslmode=disable;password={0}",
    "postgresql://{1}/postgres?schema=a?password={0}",
    "postgresql://{1}/postgres?passwd={0}",
    "postgresql://{1}/postgres?max_connections=0;password={0}",
]


def told(url: str, log: pytest.LogCaptureFixture) -> str:
    """Use a URL that is no good; give all that the user, or a log, was told."""
    log.clear()
    shown = ""
    try:
        with Memory(url) as memory:
            shown = repr(memory)
            memory.open("t")
    except (StoreError, UnknownStore) as error:
        trace = traceback.format_exception(error)
        return "\n".join([shown, repr(error), str(error), *trace, log.text])
    raise AssertionError("it is good")


@pytest.mark.parametrize("place", PLACES)
def test_passwords(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """Whatever is wrong with a URL, no part of its password is told."""
    caplog.set_level(logging.DEBUG)
    for password in PASSWORDS:
        said = told(place.format(password, f"{LOOPBACK}:{postgres_server.port}"), caplog)
        assert not [part for part in PARTS if part in said], password


def test_password_of_a_memory_that_works(
    postgres_server: PostgresServer, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A memory over a URL with a password shows all of the URL but that."""
    caplog.set_level(logging.DEBUG)
    postgres_server.new_user("bot", PASSWORDS[0])
    query(postgres_url, "GRANT CREATE ON SCHEMA public TO bot")
    url = postgres_url.replace("postgres@", f"bot:{PASSWORDS[0]}@")
    try:
        with Memory(url) as memory:
            memory.open("t").append("first")
            host = f"{LOOPBACK}:{postgres_server.port}"
            database = url.rpartition("/")[2]
            assert repr(memory) == f"<Memory over PostgresStore('postgresql://{host}/{database}')>"
        assert not [part for part in PARTS if part in caplog.text]
    finally:
        query(postgres_url, "DROP OWNED BY bot")
        query(postgres_url, "DROP ROLE bot")


# ---- what no waiting heals ----


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Give a list that has as many items as connections were tried."""
    made: list[None] = []
    connect = Bounded.connect

    def counting(*arguments: Any, **parameters: Any) -> Bounded:
        made.append(None)
        return connect(*arguments, **parameters)

    monkeypatch.setattr(Bounded, "connect", counting)
    return made


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("bot:wrong@{}/postgres", "password authentication failed"),
        ("timeout:wrong@{}/postgres", "password authentication failed"),
        ("postgres@{}/timeout", "does not exist"),
        ("postgres@nowhere.invalid/postgres", "nowhere.invalid"),
        ("postgres@{}/postgres?sslmode=require", "does not support SSL"),
        ("postgres@{}/postgres?sslmode=nonsense", "nonsense"),
    ],
)
def test_told_at_once(
    postgres_server: PostgresServer, attempts: list[None], where: str, why: str
) -> None:
    """What no waiting heals is told at the first try, with its reason."""
    url = where.format(f"{LOOPBACK}:{postgres_server.port}")
    with Memory(f"postgresql://{url}") as memory, pytest.raises(StoreError, match=why):
        memory.open("t")
    assert len(attempts) == 1


def test_tls(postgres_server: PostgresServer, postgres_url: str, attempts: list[None]) -> None:
    """TLS is used and verified as the URL says; another's certificate is refused at once."""
    with TlsFront(postgres_server.port) as front, TlsFront(postgres_server.port) as other:
        url = f"{front.url(postgres_url)}?sslmode=verify-full&sslrootcert="
        with Memory(f"{url}{front.certificate}") as memory:
            memory.open("t").append("first").refresh()
        attempts.clear()
        refused = pytest.raises(StoreError, match="certificate verify failed")
        with Memory(f"{url}{other.certificate}") as memory, refused:
            memory.open("t")
        assert len(attempts) == 1
    assert contents(postgres_url, ["t"]) == {"t": ["first"]}
