"""PostgreSQL: a standby that takes over under writers, and what can be done with it before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from postgres_server import PostgresServer
from postgreslook import check_tables, query
from serverprocess import LOOPBACK, wait_until
from serverstorm import Storm, contents

from turnlog import Memory, NotWritten, ReadOnly

if TYPE_CHECKING:
    from collections.abc import Iterator

SYNCHRONOUS = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """Give a server and its standby, without which it acknowledges nothing."""
    with PostgresServer() as primary, primary.standby() as standby:
        primary.set(synchronous_standby_names="*")
        wait_until(lambda: query(primary.url(), SYNCHRONOUS), "the standby is in step")
        yield primary, standby


def url_of_both(url: str, *ports: int) -> str:
    """Give the URL of a database that is on several servers."""
    user, _, rest = url.rpartition("@")
    hosts = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    return f"{user}@{hosts}/{rest.rpartition('/')[2]}"


@pytest.mark.parametrize("attributes", ["?target_session_attrs=read-write", ""])
def test_failover(pair: tuple[PostgresServer, PostgresServer], attributes: str) -> None:
    """When the primary is killed writers go on with its standby, and lose nothing acknowledged."""
    # Without the attributes they find a server there that can only be read, until it is promoted.
    primary, standby = pair
    url = url_of_both(primary.new_database(), primary.port, standby.port)
    with Storm(f"{url}{attributes}") as storm:
        primary.kill()
        if not attributes:
            wait_until(lambda: "in a read-only transaction" in standby.log, "they try to write")
        standby.promote()
        storm.wait_for_progress()
    storm.check()
    assert not storm.errors
    check_tables(url)


def test_standby(pair: tuple[PostgresServer, PostgresServer]) -> None:
    """A memory that only reads is at home on a standby, one that writes is told why it cannot."""
    primary, standby = pair
    url = primary.new_database()
    with Memory(url) as memory:
        memory.open("t").append("first").append("second")
    standby.catch_up()
    own = standby.url(url.rpartition("/")[2])
    with Memory(own, read_only=True) as memory:
        thread = memory.open("t")
        assert [m.content for m in thread.messages()] == ["first", "second"]
        assert [info.id for info in memory.threads()] == ["t"]
        assert memory.peek("t", last=1)[0].content == "second"
        with pytest.raises(ReadOnly):
            thread.append("third")
        with Memory(url) as writing:
            writing.open("t").append("third")
        assert len(thread.refresh(60)) == 3  # there is nobody there to tell of it
    with Memory(own, lock_timeout=5) as memory, pytest.raises(NotWritten, match="primary"):
        memory.open("t").append("fourth")
    assert contents(url, ["t"]) == {"t": ["first", "second", "third"]}
