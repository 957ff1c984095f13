"""NATS: a node that led the stream, does not know that it leads no more, and answers all the same.

A message goes to each node that takes itself for the leader, and the first answer counts. So what
such a one says proves nothing.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import nats
import pytest

from turnlog import Memory, MemoryThread, ThreadReplaced
from turnlog.names import thread_key
from turnlog.stores.nats import NatsStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats_cluster import NatsCluster

SLOW: Final = 0.2  # seconds, for each step between two nodes
WRONG_LAST: Final = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 0"}
NO_MESSAGE: Final = {"code": 404, "err_code": 10037, "description": "no message found"}
IDS: Final = [str(number) for number in range(40)]
client: Any = nats


class Deposed:
    """Stands for such a node: answers, once each, before the one that leads can.

    Args:
        cluster: slow from node to node while this answers.
        url: the stream's.
    """

    def __init__(self, cluster: NatsCluster, url: str) -> None:
        """Be at a node that does not lead."""
        self.name: str = urlsplit(url).path[1:]
        self.cluster = cluster
        leader = cluster.leader_of(self.name)
        self.node = cluster.nodes[(leader + 1) % len(cluster.nodes)]
        self.answered = 0

    def url(self) -> str:
        """Give the URL of the same stream at this node."""
        return self.node.url(self.name, replicas=len(self.cluster.nodes))

    async def answer(self, subject: str, answer: object) -> None:
        """Answer what is sent to a subject next."""
        connection = await client.connect(self.node.url())

        async def asked(message: Any) -> None:
            await message.respond(json.dumps(answer).encode())
            await connection.flush()
            self.answered += 1
            await connection.close()

        await connection.subscribe(subject, cb=asked)
        await connection.flush()


@pytest.fixture
def deposed(nats_cluster: NatsCluster, nats_cluster_url: str) -> Iterator[Deposed]:
    """Give one who led a stream that has a thread, "known", with one turn."""
    with Memory(nats_cluster_url) as memory:
        memory.open("known").append("first")
    nats_cluster.delay(SLOW)
    yield Deposed(nats_cluster, nats_cluster_url)
    nats_cluster.delay(0)


@pytest.mark.parametrize("id_", ["known", "new"])
def test_an_append_that_one_refuses_and_another_takes(deposed: Deposed, id_: str) -> None:
    """An append is there once where one node says that another came, and the leader takes it."""

    async def main() -> list[str]:
        async with Memory(NatsStore(deposed.url())) as memory:
            thread = await memory.aopen(id_)
            await deposed.answer(f"{deposed.name}.default.{id_}.turns", {"error": WRONG_LAST})
            await thread.aappend("mine")
            await thread.aappend("next")
            return [message.content for message in await memory.apeek(id_, last=100)]

    assert asyncio.run(main()) == [*["first"] * (id_ == "known"), "mine", "next"]
    assert deposed.answered == 1


@pytest.mark.parametrize("state", [None, {"last_seq": 1}])
def test_a_thread_that_one_does_not_know(deposed: Deposed, state: object) -> None:
    """A thread is not replaced where a node that is behind has not got it yet."""
    api = "$JS.API.STREAM"

    async def main() -> list[str]:
        async with Memory(NatsStore(deposed.url())) as memory:
            thread = await memory.aopen("known")
            await deposed.answer(f"{api}.MSG.GET.{deposed.name}", {"error": NO_MESSAGE})
            if state is not None:
                await deposed.answer(f"{api}.INFO.{deposed.name}", {"state": state})
            await thread.arefresh()
            await thread.aappend("second")
            return [message.content for message in thread.messages()]

    assert asyncio.run(main()) == ["first", "second"]
    assert deposed.answered == (1 if state is None else 2)


def test_a_thread_that_is_gone(nats_cluster: NatsCluster, nats_cluster_url: str) -> None:
    """A thread is replaced where somebody else has deleted it, and where its stream is gone."""
    with Memory(nats_cluster_url) as memory, Memory(nats_cluster_url) as other:
        thread = memory.open("t").append("first")
        other.delete("t")
        with pytest.raises(ThreadReplaced):
            thread.append("second")
        thread = memory.open("u").append("first")
        nats_cluster.delete_stream(nats_cluster_url)
        with pytest.raises(ThreadReplaced):
            thread.append("second")


def test_news_of_a_stream_that_is_made_later(nats_cluster: NatsCluster) -> None:
    """Who waits for news before there is a stream gets them, though its leader hears of it late."""
    nodes = nats_cluster.nodes
    for _ in range(4):  # any node may come to lead it
        name = urlsplit(nats_cluster.new_stream_url()).path[1:]
        nats_cluster.link(0, 2).delay(to_server=0.3, to_client=0.3)
        with (
            Memory(nodes[0].url(name, replicas=3)) as waiting,
            Memory(nodes[1].url(name, replicas=3)) as writing,
        ):
            told, thread = threading.Event(), writing.open("t")
            stop = waiting.store.watch(thread_key("t", "default"), told.set)
            told.clear()
            thread.append("first")
            assert told.wait(60)
            stop()
        nats_cluster.delay(0)
        nats_cluster.delete_stream(nats_cluster.url(name))


@pytest.mark.timeout(300)
def test_a_leader_that_is_cut_off_and_comes_back(nats_cluster: NatsCluster) -> None:
    """Appends are there once while a node that led comes back, and hears of them before it does."""
    for _ in range(3):
        url = nats_cluster.new_stream_url()
        name = urlsplit(url).path[1:]
        with Memory(url) as memory:
            for id_ in IDS:
                memory.open(id_).append("first")
        old = nats_cluster.leader_of(name)
        nats_cluster.cut_off(old, "black_hole")
        new = nats_cluster.leader_of(name)
        between = next(number for number in range(3) if number not in (old, new))
        with Memory(nats_cluster.nodes[between].url(name, replicas=3)) as memory:
            threads = [memory.open(id_).append("second") for id_ in IDS]  # which the old one lacks
            nats_cluster.link(between, new).delay(to_server=SLOW, to_client=SLOW)
            appending = threading.Thread(target=append_to_all, args=(threads,))
            appending.start()
            nats_cluster.link(old, between).forward()
            appending.join()
            nats_cluster.delay(0)
            nats_cluster.heal(old)
        with Memory(url) as memory:
            found = [[message.content for message in memory.open(id_).messages()] for id_ in IDS]
        assert found == [["first", "second", "third"]] * len(IDS)
        nats_cluster.delete_stream(url)


def append_to_all(threads: list[MemoryThread]) -> None:
    """Append to threads at once."""

    async def main() -> None:
        await asyncio.gather(*(thread.aappend("third") for thread in threads))

    asyncio.run(main())
