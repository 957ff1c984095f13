"""PostgreSQL: an append that is broken off in the middle of its commit."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

import pytest
from postgreslook import check_tables, hang_commits, hanging, let_commits_go, query, sessions
from proxy import Proxy
from serverprocess import wait_until
from serverstorm import contents

from turnlog import Memory, MemoryThread, NotWritten

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from postgres_server import PostgresServer

    Fault: TypeAlias = Callable[[PostgresServer, Proxy, int], object]

# A commit hangs before anything of it is kept, in the sessions that there are.
HANG_BEFORE = """
    CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('test.go_on', true) IS NULL THEN
            PERFORM pg_sleep(1000);
        END IF;
        RETURN new;
    END $$;
    CREATE CONSTRAINT TRIGGER late AFTER INSERT ON turnlog_turn
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hang();
"""
LATER_GO_ON = """
    DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET test.go_on = yes', current_database());
    END $$
"""


def terminate(server: PostgresServer, _: Proxy, backend: int) -> None:
    """End the backend that is in the commit."""
    query(server.url(), "SELECT pg_terminate_backend(%s)", backend)


def cut(_: PostgresServer, proxy: Proxy, __: int) -> None:
    """Cut the client off; the backend stays in the commit, and does not know."""
    proxy.drop()


def kill(server: PostgresServer, _: Proxy, __: int) -> None:
    """Kill the whole server, and start it again."""
    server.kill()
    server.start()


@contextmanager
def in_the_background(work: Callable[[], object]) -> Generator[None]:
    """Do something in another OS thread while the block runs; raise what that raises."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    worker = threading.Thread(target=guarded)
    worker.start()
    try:
        yield
    finally:
        worker.join(100)
    assert not worker.is_alive()
    for error in raised:
        raise error


def lone(thread: MemoryThread, _: Memory) -> Callable[[], object]:
    """Give an append that nobody is in the way of."""
    return lambda: thread.append("in doubt")


def contended(thread: MemoryThread, other: Memory) -> Callable[[], object]:
    """Give an append to a thread that another has appended to."""
    other.open("t").append("between")
    return lambda: thread.append("in doubt")


def first(thread: MemoryThread, _: Memory) -> Callable[[], object]:
    """Give an append that makes its thread."""
    return lambda: thread.memory.open("new").append("in doubt")


@pytest.mark.parametrize("fault", [terminate, cut, kill])
@pytest.mark.parametrize("prepare", [lone, contended, first])
@pytest.mark.parametrize("kept", [False, True])
def test_broken_off(
    postgres_server: PostgresServer,
    postgres_url: str,
    kept: bool,  # noqa: FBT001
    prepare: Callable[[MemoryThread, Memory], Callable[[], object]],
    fault: Fault,
) -> None:
    """An append whose commit is broken off, before or after it took effect, is there once."""
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(postgres_server.port))
        memory = stack.enter_context(Memory(proxy.url(postgres_url), lock_timeout=60))
        thread = memory.open("t").append("first")
        memory.open("new")
        with Memory(postgres_url) as other:
            work = prepare(thread, other)
        if kept:
            hang_commits(postgres_server)
        else:
            query(postgres_url, HANG_BEFORE)
        stack.enter_context(in_the_background(work))
        stack.callback(let_go, postgres_server, postgres_url)
        wait_until(lambda: hanging(postgres_url), "the append hangs in its commit")
        query(postgres_url, LATER_GO_ON)
        before = sessions(postgres_url)
        [backend] = hanging(postgres_url)
        fault(postgres_server, proxy, backend)
        wait_until(lambda: sessions(postgres_url) - before, "it is tried again")
    found = contents(postgres_url, ["t", "new"])
    assert [*found["t"], *found["new"]].count("in doubt") == 1
    check_tables(postgres_url)


@pytest.mark.parametrize("kept", [False, True])
def test_cancelled_on_the_server(
    postgres_server: PostgresServer,
    postgres_url: str,
    kept: bool,  # noqa: FBT001
) -> None:
    """A commit that somebody cancels is told to have failed, or stays where it is on the disk."""
    with Memory(postgres_url) as memory:
        thread = memory.open("t").append("first")
        if kept:
            hang_commits(postgres_server)
        else:
            query(postgres_url, HANG_BEFORE)
        outcome = nullcontext() if kept else pytest.raises(NotWritten, match="canceling statement")

        def work() -> None:
            with outcome:
                thread.append("second")

        with in_the_background(work):
            wait_until(lambda: hanging(postgres_url), "the append hangs in its commit")
            [backend] = hanging(postgres_url)
            query(postgres_url, "SELECT pg_cancel_backend(%s)", backend)
        let_commits_go(postgres_server)
    postgres_server.kill()
    postgres_server.start()
    assert contents(postgres_url, ["t"]) == {"t": ["first", "second"] if kept else ["first"]}
    check_tables(postgres_url)


def let_go(server: PostgresServer, url: str) -> None:
    """Let all go on that hang."""
    let_commits_go(server)
    for backend in hanging(url):
        query(url, "SELECT pg_terminate_backend(%s)", backend)
