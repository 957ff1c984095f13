"""PostgreSQL: clients that hold on to a row, and batches that want the same rows."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
import serverbatches
from postgreslook import COMMIT, check_tables, query
from proxy import Proxy
from serverbatches import OLD
from serverstorm import check_order, contents
from writers import go, line, running

from turnlog import LockTimeout, Memory, MemoryThread, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Generator

    from postgres_server import PostgresServer

SOON = """
    DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 5', current_database());
    END $$
"""
# It changes a thread's row and makes another thread, and does not commit.
HOLDER = """
import sys, psycopg
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("SELECT FROM turnlog_thread WHERE id = 'old 1' FOR UPDATE")
    connection.execute(
        "INSERT INTO turnlog_thread VALUES ('default', 'new 1', gen_random_uuid(), 1, 1, now())"
    )
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def stopped_holder(url: str) -> Generator[subprocess.Popen[str]]:
    """Start a client that stands still in the middle of a transaction, by SIGSTOP."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert line(process) == "held"
            process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()


def test_a_client_that_stands_still(postgres_url: str) -> None:
    """A row that a stopped client holds up costs its own thread only, and that until it is free."""
    ids = [f"{age} {n}" for age in ("old", "new") for n in range(3)]
    held = {"old 1", "new 1"}

    async def main() -> None:
        async with (
            Memory(postgres_url, lock_timeout=60) as patient,
            Memory(postgres_url, lock_timeout=5) as hasty,
        ):
            for id_ in ids[:3]:
                await (await patient.aopen(id_)).aappend("first")
            with stopped_holder(postgres_url) as holder:
                outcomes = await append_to_all(hasty, ids, "hasty")
                for id_ in ids:
                    assert isinstance(outcomes[id_], LockTimeout if id_ in held else MemoryThread)
                tasks = {
                    id_: asyncio.create_task((await patient.aopen(id_)).aappend("patient"))
                    for id_ in ids
                }
                await asyncio.gather(*(task for id_, task in tasks.items() if id_ not in held))
                assert not any(tasks[id_].done() for id_ in held)
                holder.kill()
                await asyncio.gather(*tasks.values())
            for id_ in held:
                await (await hasty.aopen(id_)).aappend("hasty again")

    asyncio.run(main())
    for id_, turns in contents(postgres_url, ids).items():
        first = ["first"] if "old" in id_ else []
        hasty = ["patient", "hasty again"] if id_ in held else ["hasty", "patient"]
        assert turns == first + hasty
    check_tables(postgres_url)


async def append_to_all(memory: Memory, ids: list[str], content: str) -> dict[str, object]:
    """Append to threads at once; give what came of each."""
    threads = [await memory.aopen(id_) for id_ in ids]
    outcomes = await asyncio.gather(
        *(thread.aappend(content) for thread in threads), return_exceptions=True
    )
    return dict(zip(ids, outcomes, strict=True))


def test_a_writer_that_is_cut_off_in_a_transaction(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A store that falls silent in the middle of a transaction holds up others for its patience."""
    with (
        Proxy(postgres_server.port) as proxy,
        Memory(proxy.url(postgres_url), lock_timeout=5) as silent,
        Memory(postgres_url, lock_timeout=60) as memory,
    ):
        thread = silent.open("t").append("first")
        other = memory.open("t").append("second")  # so that the next one takes the row's lock
        swallowed = proxy.when("to_server", COMMIT, proxy.black_hole)
        appending = threading.Thread(target=fails_in_doubt, args=(thread,))
        appending.start()
        assert swallowed.happened.wait(60)
        other.append("third")
        appending.join()
        proxy.forward()
        other.append("last")
    assert contents(postgres_url, ["t"]) == {"t": ["first", "second", "third", "last"]}
    check_tables(postgres_url)


def fails_in_doubt(thread: MemoryThread) -> None:
    """Append what can be known to nobody."""
    with pytest.raises(OutcomeUnknown):
        thread.append("in doubt")


def test_batches_never_wait_for_each_other(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Batches of four processes over the same threads, old, new and deleted, never deadlock."""
    # The server looks for deadlocks before the store gives up to wait for a row.
    query(postgres_url, SOON)
    before = postgres_server.log.count("deadlock detected")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                running("work", postgres_url, f"p{n}", 60, program=serverbatches.__file__)
            )
            for n in range(4)
        ]
        for process in processes:
            assert line(process) == "ready"
        for process in processes:
            go(process)
        acknowledged = [int(line(process)) for process in processes]
        assert [process.wait(60) for process in processes] == [0] * 4
    assert postgres_server.log.count("deadlock detected") == before
    found = contents(postgres_url, OLD)
    assert sum(map(len, found.values())) == sum(acknowledged)
    for turns in found.values():
        check_order(turns)
    check_tables(postgres_url)
