"""PostgreSQL: a network that drops, delays, half-closes and swallows what is sent over it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from postgreslook import COMMIT, check_tables
from proxy import Proxy
from serverprocess import wait_until
from serverstorm import Storm, contents

from turnlog import Memory, OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_server import PostgresServer
    from proxy import Action, Direction

SYNC = b"S\x00\x00\x00\x04"  # the end of a request
READY = b"Z\x00\x00\x00\x05"  # the end of an answer
# Where a connection is dropped, and at how many messages of a batch that is, at the least.
PLACES: dict[str, tuple[int, Direction, bytes, Action]] = {
    "in a request": (4, "to_server", SYNC, "drop"),
    "in place of its answer": (4, "to_server", SYNC, "drop_answer"),
    "before a commit": (1, "to_server", COMMIT, "drop"),
    "in place of its answer ": (1, "to_server", COMMIT, "drop_answer"),
    "at the end of an answer": (6, "to_client", READY, "drop"),
}


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    """Give a proxy before the server."""
    with Proxy(postgres_server.port) as proxy:
        yield proxy


async def append_to_all(memory: Memory, ids: list[str], content: str) -> None:
    """Append to threads at once, in one batch."""
    threads = [await memory.aopen(id_) for id_ in ids]
    await asyncio.gather(*(thread.aappend(content) for thread in threads))


@pytest.mark.parametrize("place", PLACES)
def test_dropped_at_each_message(proxy: Proxy, postgres_url: str, place: str) -> None:
    """Wherever in a batch's messages its connection is dropped, the batch is there once."""
    least, direction, pattern, action = PLACES[place]
    expected: dict[str, list[str]] = {"old": [], "busy": []}
    number = 0
    with Memory(proxy.url(postgres_url)) as memory, Memory(postgres_url) as other:
        for number in range(1, 100):
            ids = ["old", "busy", f"new {number}", f"new and busy {number}"]
            for id_ in ids:
                memory.open(id_)  # and what the other one appends is not known
            for id_ in (ids[1], ids[3]):
                other.open(id_).append("other's")
            dropped = proxy.when(direction, pattern, action, nth=number)
            asyncio.run(append_to_all(memory, ids, "mine"))
            for id_ in ids:
                expected.setdefault(id_, []).extend(["other's"] * ("busy" in id_) + ["mine"])
            if not dropped.found:
                break
            # It may have been on another connection, which the batch did not wait for.
            wait_until(dropped.happened.is_set, f"{action} at message {number}")
    assert least < number < 99
    assert contents(postgres_url, expected) == expected
    check_tables(postgres_url)


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_half_closed(proxy: Proxy, postgres_url: str, direction: Direction) -> None:
    """A connection that one end has closed is no loss, before an append and in the middle of it."""
    with Memory(proxy.url(postgres_url)) as memory:
        thread = memory.open("t").append("first")
        proxy.half_close(direction)
        thread.append("second")
        closed = proxy.when("to_server", b"third", lambda: proxy.half_close(direction))
        thread.append("third")
        assert closed.happened.wait(60)
    assert contents(postgres_url, ["t"]) == {"t": ["first", "second", "third"]}


def test_one_connection_is_swallowed(proxy: Proxy, postgres_url: str) -> None:
    """An append that is swallowed is done over another connection; what comes late does nothing."""
    ids = ["t", "new", "deleted"]
    with Memory(proxy.url(postgres_url), lock_timeout=10) as memory:
        memory.open("t").append("first")
        for id_ in ids:
            swallowed = proxy.when("to_server", b"second", "black_hole")
            memory.open(id_).append("second")
            assert swallowed.happened.is_set()
        memory.delete("deleted")
        lost = proxy.connections
        proxy.forward()
        wait_until(lambda: proxy.connections < lost - 2, "what was swallowed has arrived")
        for id_ in ids:
            memory.open(id_).append("last")
    assert contents(postgres_url, ids) == {
        "t": ["first", "second", "last"],
        "new": ["second", "last"],
        "deleted": ["last"],
    }
    check_tables(postgres_url)


def test_all_is_swallowed(proxy: Proxy, postgres_url: str) -> None:
    """Where the whole network is silent, an append is in doubt, and all else fails, in a while."""
    with Memory(proxy.url(postgres_url), lock_timeout=4) as memory:
        thread = memory.open("t").append("first")
        proxy.black_hole()
        with pytest.raises(OutcomeUnknown, match=r"'t'.*try again"):
            thread.append("second", key="k")
        with pytest.raises(OutcomeUnknown):
            thread.append("never")
        with pytest.raises(StoreError, match=r"'t'.*try again"):
            memory.open("t")
        proxy.forward()
        memory.open("t").append("second", key="k").append("third")
    assert contents(postgres_url, ["t"]) == {"t": ["first", "second", "third"]}
    check_tables(postgres_url)


def test_turn_lock_of_a_lost_connection(proxy: Proxy, postgres_url: str) -> None:
    """A turn lock that could not be let go of, as the network fell silent, is taken again."""
    with Memory(proxy.url(postgres_url), lock_timeout=10) as memory:
        thread = memory.open("t")
        swallowed = proxy.when("to_server", b"pg_advisory_unlock", "black_hole")
        for _ in range(2):
            with thread.turn_lock(30):
                thread.append("one after the other")
        assert swallowed.happened.is_set()


def test_swallowed_for_a_while(proxy: Proxy, postgres_url: str) -> None:
    """Writers go on where all was swallowed, refused, reset or slow for a while."""
    with Storm(proxy.url(postgres_url), threads=2, processes=2) as storm:
        for fault in (
            proxy.black_hole,
            proxy.cut,
            proxy.drop,
            lambda: proxy.delay(to_server=0.02, to_client=0.02),
        ):
            fault()
            time.sleep(0.3)  # for as long as it lasts
            proxy.forward()
            storm.wait_for_progress()
    storm.check()
    assert not storm.errors
    check_tables(postgres_url)
