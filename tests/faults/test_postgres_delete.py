"""PostgreSQL: threads that are deleted while others append to them, and connections are lost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
from postgreslook import COMMIT, check_tables, query
from proxy import Proxy
from serverstorm import Storm, check_order, contents
from serverwriters import OK, REFUSED

from turnlog import Memory

if TYPE_CHECKING:
    from postgres_server import PostgresServer

SOME = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'turnlog' AND datname = current_database() AND random() < 0.3
"""


def test_a_thread_that_comes_into_being(postgres_server: PostgresServer, postgres_url: str) -> None:
    """To delete a thread that another one makes at this moment takes no turn away from it."""
    with (
        Proxy(postgres_server.port) as proxy,
        Memory(proxy.url(postgres_url)) as memory,
        Memory(postgres_url) as other,
    ):
        memory.open("t")

        def make() -> None:
            other.open("t").append("first").append("second")

        nothing_found = proxy.when("to_client", b"DELETE 0", make)
        assert not memory.delete("t")
        assert nothing_found.happened.is_set()
    assert contents(postgres_url, ["t"]) == {"t": ["first", "second"]}
    check_tables(postgres_url)


def test_delete_waits(postgres_url: str) -> None:
    """To delete a thread whose row somebody holds waits until it is free."""
    with Memory(postgres_url) as memory, psycopg.connect(postgres_url) as holder:
        memory.open("t").append("first")
        holder.execute("SELECT FROM turnlog_thread FOR UPDATE")
        deleting = threading.Thread(target=memory.delete, args=("t",))
        deleting.start()
        deleting.join(0.5)  # for longer than one try takes
        assert deleting.is_alive()
        holder.rollback()
        deleting.join()
    assert contents(postgres_url, ["t"]) == {"t": []}


def test_lost_answer(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A deletion whose connection is lost, before it or after it was done, is done, and says so."""
    with Proxy(postgres_server.port) as proxy, Memory(proxy.url(postgres_url)) as memory:
        for action in ("drop", "drop_answer"):
            memory.open("t").append("first")
            lost = proxy.when("to_server", COMMIT, action)
            assert memory.delete("t")
            assert lost.happened.is_set()
            assert not memory.delete("t")
            check_tables(postgres_url)


def test_deleted_again_and_again(postgres_url: str) -> None:
    """What is appended after a thread was deleted is there, whatever connections were lost."""
    ids = ("a", "b")
    with Storm(postgres_url, ids, threads=3, processes=3) as storm, Memory(postgres_url) as memory:
        for number in range(20):
            query(postgres_url, SOME)
            memory.delete(ids[number % 2])
            storm.wait_for_progress(1)
        storm.wait_for_progress(5)
    assert not storm.failures
    found = contents(postgres_url, ids)
    there = [(id_, turn) for id_, turns in found.items() for turn in turns]
    assert len(set(there)) == len(there)
    assert there
    kept: dict[tuple[str, str], list[bool]] = {}
    for id_, turn in storm.turns(OK):
        kept.setdefault((id_, turn.split()[0]), []).append((id_, turn) in there)
    for of_one in kept.values():  # a deletion takes what is before it, and nothing after
        assert of_one == sorted(of_one)
    assert not set(storm.turns(REFUSED)) & set(there)
    for turns in found.values():
        check_order(turns)
    check_tables(postgres_url)
