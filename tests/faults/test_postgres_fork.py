"""PostgreSQL: children that are forked, and tasks on a loop that nothing may block."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import blockbuster
import psycopg
import pytest
from blockbuster import BlockBusterFunction
from machine import in_child
from postgreslook import check_tables, hang_commits, hanging, let_commits_go, query, sessions
from psycopg import waiting
from serverprocess import wait_until
from serverstorm import contents

from turnlog import Memory
from turnlog.stores.postgres import notifier  # so that no test's loop waits for it to be imported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import LiteralString

    from postgres_server import PostgresServer

    from turnlog import MemoryThread

# What was asked last by who tells of appends, and by who listens and has looked once.
NOTIFIED_OR_LISTENING: LiteralString = """
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
    AND (query LIKE '%pg_notify(%' OR query LIKE '%AS w (namespace, id)%')
"""
# Python warns of a fork while other threads run: that is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture
def held_up(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """Give the server; what hangs in it goes on at the end."""
    yield postgres_server
    let_commits_go(postgres_server)


def test_fork_in_the_middle_of_an_append(
    held_up: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child works that was forked while its parent appends, waits and locks, and so does that."""
    monkeypatch.setattr(notifier, "_IDLE", 1000.0)  # its session does not end in the meantime
    with Memory(postgres_url) as memory:
        thread = memory.open("t").append("first")
        refreshing = threading.Thread(target=memory.open("other").refresh, args=(60,))
        refreshing.start()
        wait_until(lambda: len(query(postgres_url, NOTIFIED_OR_LISTENING)) == 2, "both are there")
        with thread.turn_lock():
            hang_commits(held_up)
            appending = threading.Thread(target=thread.append, args=("parent's",))
            appending.start()
            wait_until(lambda: hanging(postgres_url), "the parent's append hangs")
            before = sessions(postgres_url)

            def child() -> list[str]:
                query(held_up.url(), "ALTER SYSTEM RESET synchronous_standby_names")
                query(held_up.url(), "SELECT pg_reload_conf()")
                thread.append("child's")
                asyncio.run(append(thread))
                assert thread.turn_lock(0.01)
                with pytest.raises(TimeoutError), thread.turn_lock(0.05):
                    pass
                memory.close()
                return [m.content for m in thread.messages()]

            found = in_child(child)
        appending.join()
        wait_until(lambda: sessions(postgres_url) <= before, "the child's sessions end")
        assert sessions(postgres_url) == before  # and none of the parent's
        thread.append("last")
        memory.open("other").append("news")
        refreshing.join()
        assert len(memory.open("other")) == 1
    assert found == ["first", "parent's", "child's", "child's, too"]
    assert contents(postgres_url, ["t"])["t"] == [*found, "last"]
    check_tables(postgres_url)


async def append(thread: MemoryThread) -> None:
    """Append from a task."""
    await thread.aappend("child's, too")


# Forks while it has connections open, and both go on; the child ends as programs do.
FORKS = """
import os, sys
import turnlog
memory = turnlog.Memory(sys.argv[1])
thread = memory.open("t").append("parent 0")
with thread.turn_lock():
    child = os.fork()
    thread.append("child 0" if child == 0 else "parent 1")
if child:
    status = os.waitpid(child, 0)[1]
    thread.append("parent 2")
    print(status)
"""


def test_a_child_that_ends_as_programs_do(postgres_url: str) -> None:
    """A forked child that ends, with all that Python does then, leaves its parent's connections."""
    program = [sys.executable, "-W", "ignore:.*multi-threaded:DeprecationWarning", "-c", FORKS]
    done = subprocess.run(
        [*program, postgres_url], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
    [turns] = contents(postgres_url, ["t"]).values()
    assert sorted(turns) == ["child 0", "parent 0", "parent 1", "parent 2"]


# ---- tasks ----


@pytest.fixture
def no_waiting_for_servers(no_blocking: None) -> Iterator[None]:
    """Make every call fail, too, that waits for a PostgreSQL server in a running event loop."""
    del no_blocking
    waits = ((psycopg.Connection, "wait"), (waiting, "wait_conn"))
    functions = [BlockBusterFunction(owner, name) for owner, name in waits]
    for function in functions:
        function.activate()
    yield
    for function in functions:
        function.deactivate()


@pytest.mark.usefixtures("no_waiting_for_servers")
def test_loop_is_never_blocked(postgres_server: PostgresServer, postgres_url: str) -> None:
    """No call of a task's waits for the server in the loop, not while that is away either."""

    async def main() -> None:
        async with Memory(postgres_url) as memory, Memory(postgres_url) as other:
            thread = await memory.aopen("t")
            await thread.aappend("first")
            news = asyncio.create_task(thread.arefresh(60))
            await (await other.aopen("t")).aappend("second")
            await news
            assert len(thread) == 2
            async with thread.turn_lock():
                await asyncio.to_thread(postgres_server.stop, "immediate")
                appends = [asyncio.create_task(thread.aappend(f"{n}")) for n in range(5)]
                opening = asyncio.create_task(other.aopen("u"))
                await asyncio.to_thread(postgres_server.start)
                await asyncio.gather(*appends, opening)
            assert (await memory.apeek("t", last=1))[0].content == "4"
            assert await other.adelete("t")
            with pytest.raises(blockbuster.BlockingError):
                memory.open("v")

    asyncio.run(main())


@pytest.mark.usefixtures("no_waiting_for_servers")
def test_cancelled(held_up: PostgresServer, postgres_url: str) -> None:
    """A cancelled append ends when its outcome is known, and its turn is there."""

    async def main() -> None:
        async with Memory(postgres_url) as memory:
            thread = await memory.aopen("t")
            await thread.aappend("first")
            await asyncio.to_thread(hang_commits, held_up)
            appending = asyncio.create_task(thread.aappend("second"))
            await asyncio.to_thread(wait_until, lambda: hanging(postgres_url), "it hangs")
            appending.cancel()
            done, _ = await asyncio.wait([appending], timeout=0.1)
            assert not done
            await asyncio.to_thread(let_commits_go, held_up)
            with pytest.raises(asyncio.CancelledError):
                await appending
            assert len(thread) == 2

    asyncio.run(main())
    assert contents(postgres_url, ["t"]) == {"t": ["first", "second"]}
