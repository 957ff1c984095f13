"""PostgreSQL: connections that are ended and servers that die while eight writers append."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from postgreslook import check_tables, query
from proxy import Proxy
from serverstorm import Storm, contents

from turnlog import Memory, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from postgres_server import PostgresServer

ALL: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'turnlog' AND datname = current_database()
"""
SOME: Final = f"{ALL} AND random() < 0.5"


def test_terminated_at_random(postgres_url: str) -> None:
    """Eight writers go on however often connections are ended, with nothing lost or twice."""
    ended = 0
    with Storm(postgres_url) as storm:
        for _ in range(20):
            ended += len(query(postgres_url, SOME))
            storm.wait_for_progress(2)
    assert ended > 20
    storm.check()
    assert not storm.errors
    check_tables(postgres_url)


@pytest.mark.parametrize("patience", [60.0, 0.3])
def test_faults_in_a_row(
    postgres_server: PostgresServer, postgres_url: str, patience: float
) -> None:
    """Eight writers go on over a server that dies and a network that fails, with nothing lost."""
    with Proxy(postgres_server.port) as proxy:

        def kill() -> None:
            postgres_server.kill()
            postgres_server.start()

        def stop() -> None:
            postgres_server.restart("immediate")

        with Storm(proxy.url(postgres_url), lock_timeout=patience) as storm:
            for fault in (kill, proxy.drop, stop, kill, proxy.drop, stop):
                fault()
                storm.wait_for_progress()
        storm.check()
    assert bool(storm.errors) == (patience < 1)  # who has no patience is told that it failed
    check_tables(postgres_url)


def test_sessions_that_may_not_be_ended(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Where a role may end no session, not one of its own either, it goes on all the same."""
    postgres_server.new_user("bot", "secret")
    query(postgres_url, "GRANT CREATE ON SCHEMA public TO bot")
    query(postgres_url, "REVOKE EXECUTE ON FUNCTION pg_terminate_backend(int, bigint) FROM public")
    try:
        with Memory(postgres_url.replace("postgres@", "bot:secret@")) as memory:
            thread = memory.open("t").append("first")
            for content in ("second", "third"):
                query(postgres_url, ALL)
                thread.append(content)
            memory.open("u")
        assert contents(postgres_url, ["t"]) == {"t": ["first", "second", "third"]}
    finally:
        query(postgres_url, "DROP OWNED BY bot")
        query(postgres_url, "DROP ROLE bot")


class Taken(list[Any]):
    """Sessions of which another OS thread takes the last one when somebody has looked."""

    def __len__(self) -> int:
        """Say that there is one."""
        return 1


def test_a_lost_session_that_another_thread_sees_to(postgres_url: str) -> None:
    """Of several who would end a lost session one does so, and the others go on."""
    with Memory(postgres_url) as memory:
        memory.store._connections._lost = Taken()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        memory.open("t").append("first")
    assert contents(postgres_url, ["t"]) == {"t": ["first"]}


CALLS: Final[dict[str, Callable[[Memory], object]]] = {
    "open": lambda memory: memory.open("another"),
    "append": lambda memory: memory.open("t").append("second"),
    "extend": lambda memory: memory.open("new").extend([Message("user", "first")], key="k"),
    "refresh": lambda memory: memory.open("t").refresh(),
    "wait for news": lambda memory: memory.open("t").refresh(0.01),
    "peek": lambda memory: memory.peek("t", last=1)[0],
    "list": lambda memory: [info.id for info in memory.threads()],
    "take the turn lock": lambda memory: memory.open("t").turn_lock(0.1).__enter__(),
    "delete": lambda memory: memory.delete("t"),
    "close": lambda memory: memory.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_first_call_after_a_restart(
    postgres_server: PostgresServer, postgres_url: str, call: str
) -> None:
    """Whatever is called first after the server was restarted works at once."""
    with Memory(postgres_url) as memory:
        thread = memory.open("t").append("first")
        with thread.turn_lock():
            thread.refresh(0.01)
        memory.open("new")
        postgres_server.restart("immediate")
        CALLS[call](memory)
