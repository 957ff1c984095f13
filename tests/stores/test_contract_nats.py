"""The JetStream store on real servers: the contract, and what is its own.

Source: spec R3; design, section 1, stores; section 4.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import nats
import pytest

from turnlog import Memory, NotWritten, OutcomeUnknown, ReadOnly, StoreError, ThreadReplaced
from turnlog.names import thread_key
from turnlog.stores.base import START
from turnlog.stores.nats import NatsStore, leases, reader, stream
from turnlog.testing import PlainAppend, StoreContract, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from nats_cluster import NatsCluster
    from nats_server import NatsServer
    from proxy import Proxy

    from turnlog.stores.base import Outcome, Position, Store

KEY: Final = thread_key("thread", "nats")
PATIENCE: Final = 60.0
client: Any = nats


class TestNatsStore(StoreContract):
    """The JetStream store keeps the contract on a single server."""

    @pytest.fixture(autouse=True)
    def _stream(self, nats_url: str) -> None:
        self.url = nats_url

    def make_store(self, place: Path) -> Store:
        """Make a store on the test's stream."""
        del place
        return NatsStore(self.url)


class TestNatsCluster(StoreContract):
    """The JetStream store keeps the contract on three servers that replicate."""

    @pytest.fixture(autouse=True)
    def _stream(self, nats_cluster_url: str) -> None:
        self.url = nats_cluster_url

    def make_store(self, place: Path) -> Store:
        """Make a store on the test's stream."""
        del place
        return NatsStore(self.url)


# ---- helpers ----


@pytest.fixture
def make(nats_url: str) -> Iterator[Callable[..., NatsStore]]:
    """Give a function that makes stores, on the test's stream unless another URL is given."""
    made: list[NatsStore] = []

    def make(url: str = nats_url, **options: Any) -> NatsStore:
        made.append(NatsStore(url, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make: Callable[..., NatsStore]) -> NatsStore:
    """Give a store on the test's stream."""
    return make()


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[Proxy]:
    """Give a proxy before the server."""
    from proxy import Proxy  # noqa: PLC0415

    with Proxy(nats_server.port) as proxy:
        yield proxy


def append(store: Store, *texts: str, at: Position = START) -> Outcome:
    """Append turns to the thread KEY."""
    (outcome,) = store.commit([PlainAppend(KEY, *map(line_of, texts), position=at)])
    return outcome


def texts_of(store: Store) -> list[str]:
    """Give the texts of the thread KEY."""
    return [json.loads(line)["content"] for line in store.load(KEY).lines]


def api(server: NatsServer, name: str, request: object = None) -> Any:
    """Call the API of JetStream."""

    async def call() -> Any:
        connection = await client.connect(server.url())
        try:
            payload = b"" if request is None else json.dumps(request).encode()
            answer = await connection.request(f"$JS.API.{name}", payload, timeout=PATIENCE)
            return json.loads(answer.data)
        finally:
            await connection.close()

    return asyncio.run(call())


def publish(server: NatsServer, subject: str, data: bytes, headers: dict[str, str]) -> None:
    """Put a message into a stream, past the store."""

    async def publish() -> None:
        connection = await client.connect(server.url())
        try:
            await connection.jetstream().publish(subject, data, headers=headers)
        finally:
            await connection.close()

    asyncio.run(publish())


def name_of(url: str) -> str:
    """Give the name of a URL's stream."""
    return urlsplit(url).path[1:]


# ---- an answer that gets lost ----


@pytest.mark.parametrize("fault", ["drop", "drop_answer"])
def test_an_append_whose_connection_breaks_is_there_once(
    make: Callable[..., NatsStore], proxy: Proxy, nats_url: str, fault: Any
) -> None:
    """An append succeeds, and is there once, though its request or its answer was lost."""
    store = make(proxy.url(nats_url))
    before = append(store, "before")
    lost = proxy.when("to_server", b"in doubt", fault)
    outcome = append(store, "in doubt", at=before.position)
    assert lost.happened.wait(PATIENCE)
    assert outcome.error is None
    after = append(store, "after", at=outcome.position)
    assert (after.error, after.news.lines) == (None, ())
    assert texts_of(make()) == ["before", "in doubt", "after"]


def test_an_append_is_found_though_others_follow_it(
    make: Callable[..., NatsStore], proxy: Proxy, nats_url: str
) -> None:
    """An append whose answer was lost is found behind others' turns that came meanwhile."""
    store, other = make(proxy.url(nats_url)), make()
    before = append(store, "before")

    def lose_the_answer() -> None:
        proxy.refuse()  # nobody else asks before this is done
        theirs = append(other, "theirs", "too", at=other.load(KEY).position)
        assert theirs.error is None
        proxy.drop()
        proxy.forward()

    lost = proxy.when("to_client", b'"seq":', lose_the_answer)
    outcome = append(store, "mine", at=before.position)
    assert lost.happened.wait(PATIENCE)
    assert outcome.error is None
    assert outcome.position.lines == 2
    assert texts_of(other) == ["before", "mine", "theirs", "too"]
    (news,) = store.commit([PlainAppend(KEY, position=outcome.position)])
    assert list(news.news.lines) == [line_of("theirs"), line_of("too")]


def test_an_append_that_was_refused_is_decided_anew(
    make: Callable[..., NatsStore], proxy: Proxy, nats_url: str
) -> None:
    """Where others came first and the answer that says so was lost, it is decided on their news."""
    store, other = make(proxy.url(nats_url)), make()
    before = append(store, "before")
    append(other, "theirs", at=before.position)
    lost = proxy.when("to_server", b"mine", "drop_answer")
    outcome = append(store, "mine", at=before.position)
    assert lost.happened.wait(PATIENCE)
    assert list(outcome.news.lines) == [line_of("theirs")]
    assert texts_of(other) == ["before", "theirs", "mine"]


def test_an_outcome_that_stays_unknown_is_said(
    make: Callable[..., NatsStore], proxy: Proxy, nats_url: str
) -> None:
    """Where nobody answers any more it is OutcomeUnknown, and the same key then appends once."""
    memory = Memory(make(proxy.url(nats_url), lock_timeout=5.0), lock_timeout=5.0)
    thread = memory.open("thread", "nats").append("before")
    proxy.when("to_server", b"in doubt", proxy.black_hole)
    with pytest.raises(OutcomeUnknown):
        thread.append("in doubt", key="k")
    proxy.forward()
    again = Memory(make()).open("thread", "nats").append("in doubt", key="k").append("after")
    again.refresh()
    assert [turn.content for turn in again.messages()] == ["before", "in doubt", "after"]


def test_where_nothing_was_sent_nothing_was_written(
    make: Callable[..., NatsStore], proxy: Proxy, nats_url: str
) -> None:
    """An append without a connection is NotWritten within the time, and later the store goes on."""
    store = make(proxy.url(nats_url), lock_timeout=5.0)
    position = append(store, "before").position
    proxy.cut()
    refused = append(store, "never", at=position)
    while isinstance(refused.error, OutcomeUnknown):  # the cut was not noticed before
        refused = append(store, "never", at=position)
    assert isinstance(refused.error, NotWritten)
    with pytest.raises(StoreError):
        store.load(KEY)
    proxy.forward()
    assert append(store, "after", at=position).error is None
    assert texts_of(store) == ["before", "after"]


# ---- servers that go and come ----


def test_servers_that_are_away_are_said(make: Callable[..., NatsStore]) -> None:
    """With no server at the address each call fails in time, and says what to see to."""
    store = make("nats://me:s3cret@127.0.0.1:1/S", lock_timeout=0.2)
    calls: list[Callable[[], object]] = [
        lambda: store.load(KEY),
        lambda: store.tail(KEY, 1),
        lambda: list(store.threads()),
        lambda: store.delete(KEY),
        lambda: store.try_turn_lock(KEY),
        lambda: store.watch(KEY, lambda: None),
    ]
    errors: list[object] = [append(store, "x").error, append(store).error]
    for call in calls:
        with pytest.raises(StoreError) as caught:
            call()
        errors.append(caught.value)
    assert [isinstance(error, NotWritten) for error in errors] == [True] * 2 + [False] * 6
    for error in errors:
        assert "within 0.2 s" in str(error)
        assert "see that the servers run" in str(error)
        assert "s3cret" not in f"{error!r} {error} {store!r}"


def test_a_store_goes_on_over_a_restart(
    make: Callable[..., NatsStore], nats_server: NatsServer
) -> None:
    """A store that was open when its server was killed goes on when it runs again."""
    store, other = make(), make()
    told = threading.Event()
    stop = store.watch(KEY, told.set)
    position = append(store, "before").position
    release = store.try_turn_lock(KEY)
    assert release is not None
    nats_server.kill()
    nats_server.start()
    position = append(store, "after", at=position).position
    assert texts_of(store) == texts_of(other) == ["before", "after"]
    assert other.try_turn_lock(KEY) is None
    release()
    assert told.wait(PATIENCE)  # of the connection's return
    told.clear()
    append(other, "told", at=position)
    assert told.wait(PATIENCE)
    stop()


def test_a_connection_that_is_given_up_is_closed(
    make: Callable[..., NatsStore], proxy: Proxy, nats_url: str
) -> None:
    """Where a server says nothing, the next is asked, and no socket is left open (a warning is)."""
    store = make(proxy.url(nats_url))
    position = append(store, "before").position
    silent = proxy.when("to_client", b"INFO", "black_hole")
    proxy.drop()
    append(store, "after", at=position)
    assert silent.happened.wait(PATIENCE)
    assert texts_of(store) == ["before", "after"]


def test_a_stream_that_was_deleted_is_made_anew(
    make: Callable[..., NatsStore], nats_server: NatsServer, nats_url: str
) -> None:
    """Of a stream that was deleted under open stores no thread is left, and none comes back."""
    store, other = make(), make()
    positions = [append(store, "old").position]
    positions.append(append(store, "old too", at=positions[0]).position)
    nats_server.delete_stream(nats_url)
    assert list(other.threads()) == []
    assert texts_of(other) == []
    assert isinstance(append(store, "late", at=positions[1]).error, ThreadReplaced)
    assert append(other, "new").error is None
    assert append(other, "new too", at=other.load(KEY).position).error is None
    for position in positions:
        assert isinstance(append(store, "late", at=position).error, ThreadReplaced)
    assert texts_of(store) == ["new", "new too"]


@pytest.mark.timeout(300)
def test_a_killed_leader_loses_and_doubles_nothing(
    nats_cluster: NatsCluster, nats_cluster_url: str
) -> None:
    """While eight writers append, the leader is killed: each acknowledged turn is there once."""
    writers, threads, more = 8, 3, 8
    done = [0] * writers
    ended = threading.Event()

    def write(writer: int) -> list[str]:
        acknowledged: list[str] = []
        with Memory(NatsStore(nats_cluster_url)) as memory:
            while not ended.is_set():
                text = f"{writer} {len(acknowledged)}"
                while True:
                    try:
                        thread = memory.open(str(len(acknowledged) % threads))
                        thread.append(text, key=text)
                        break
                    except StoreError:
                        assert not ended.is_set()
                acknowledged.append(text)
                done[writer] = len(acknowledged)
        return acknowledged

    def wait_for_more() -> None:
        goals = [count + more for count in done]
        from serverprocess import wait_until  # noqa: PLC0415

        wait_until(lambda: all(map(int.__ge__, done, goals)), "each writer has gone on", 120)

    with ThreadPoolExecutor(writers) as pool:
        writing = [pool.submit(write, writer) for writer in range(writers)]
        try:
            wait_for_more()
            leader = nats_cluster.leader_of(name_of(nats_cluster_url))
            nats_cluster.kill(leader)
            wait_for_more()
            nats_cluster.start(leader)
            wait_for_more()
        finally:
            ended.set()
        acknowledged = [writer.result(PATIENCE) for writer in writing]
    with Memory(NatsStore(nats_cluster_url)) as memory:
        found = [[turn.content for turn in memory.open(str(n)).messages()] for n in range(threads)]
    for writer, texts in enumerate(acknowledged):
        for number, thread in enumerate(found):
            own = [text for text in thread if text.startswith(f"{writer} ")]
            assert own == texts[number::threads]


# ---- what servers do not take ----


def test_one_server_keeps_no_three_replicas(
    make: Callable[..., NatsStore], nats_server: NatsServer
) -> None:
    """Three replicas on a single server are refused, and the way out is named."""
    store = make(nats_server.url("REPLICAS"))
    error = append(store, "x").error
    assert isinstance(error, NotWritten)
    assert "?replicas=1" in str(error)
    assert list(store.threads()) == []


def test_a_full_stream_is_said(
    make: Callable[..., NatsStore], nats_server: NatsServer, nats_url: str
) -> None:
    """What a full stream does not take is NotWritten in the server's words; the rest stays."""
    store = make()
    position = append(store, "before").position
    found = api(nats_server, f"STREAM.INFO.{name_of(nats_url)}")["config"]
    api(nats_server, f"STREAM.UPDATE.{name_of(nats_url)}", found | {"max_bytes": 5000})
    huge = PlainAppend(KEY, line_of("x" * 8000), position=position)
    small = PlainAppend(thread_key("small", "nats"), line_of("small"))
    refused, taken = store.commit([huge, small])
    assert isinstance(refused.error, NotWritten)
    assert "maximum bytes exceeded" in str(refused.error)
    assert taken.error is None
    assert append(store, "after", at=position).error is None
    assert texts_of(store) == ["before", "after"]


def test_turns_larger_than_messages_may_be() -> None:
    """Turns go in parts over a server that takes small messages only, and leave none behind."""
    from nats_server import NatsServer  # noqa: PLC0415

    with NatsServer(max_payload=4096) as server, closing(NatsStore(server.new_stream_url())) as one:
        position = append(one, "before").position
        outcome = append(one, "x" * 50_000, "y" * 3000, "z", at=position)
        assert outcome.error is None
        assert append(one, "after", at=outcome.position).error is None
        assert texts_of(one) == ["before", "x" * 50_000, "y" * 3000, "z", "after"]
        assert [line_of("after")] == list(one.tail(KEY, 1).lines)
        late = append(one, "l" * 50_000)
        assert [*late.news.lines][-1:] == [line_of("after")]
        assert one.delete(KEY)
        assert isinstance(append(one, "l" * 50_000, at=position).error, ThreadReplaced)
        assert _messages(server) == 0


def _messages(server: NatsServer) -> int:
    """Give how many messages are in the streams of a server."""
    return sum(info["state"]["messages"] for info in api(server, "STREAM.LIST")["streams"])


def test_a_large_turn_outlives_a_deletion_just_before_it(
    make: Callable[..., NatsStore], proxy: Proxy, nats_url: str
) -> None:
    """Where a deletion took a large turn's parts and not its message, they are there again."""
    store, other = make(proxy.url(nats_url)), make()

    def delete() -> None:
        proxy.refuse()  # nobody else asks before this is done
        other.delete(KEY)
        proxy.forward()

    deleted = proxy.when("to_server", b'"parts":', delete)
    assert append(store, "x" * (3 << 20)).error is None
    assert deleted.happened.wait(PATIENCE)
    assert texts_of(other) == ["x" * (3 << 20)]


def test_a_server_that_takes_next_to_nothing_is_refused() -> None:
    """Where messages may have too few bytes, it is NotWritten, and the limit is named."""
    from nats_server import NatsServer  # noqa: PLC0415

    with NatsServer(max_payload=1500) as server, closing(NatsStore(server.new_stream_url())) as one:
        error = append(one, "x").error
        assert isinstance(error, NotWritten)
        assert "1500 bytes" in str(error)


UNFIT: Final[dict[str, dict[str, object]]] = {
    "max_age": {"max_age": 3_600_000_000_000},
    "max_msgs_per_subject": {"max_msgs_per_subject": 100},
    "discard": {"max_bytes": 1 << 20, "discard": "old"},
    "retention": {"retention": "interest"},
    "storage": {"storage": "memory"},
    "no_ack": {"no_ack": True},
    "the subjects": {"subjects": ["FOREIGN"]},
}


@pytest.mark.parametrize("flaw", UNFIT)
def test_a_stream_that_loses_turns_is_refused(
    flaw: str, make: Callable[..., NatsStore], nats_server: NatsServer, nats_url: str
) -> None:
    """A stream of somebody else's that would lose turns is refused, and its flaw is named."""
    name = name_of(nats_url)
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "discard": "new"}
    assert "error" not in api(nats_server, f"STREAM.CREATE.{name}", config | UNFIT[flaw])
    error = append(make(), "x").error
    assert isinstance(error, NotWritten)
    assert flaw in str(error)


def test_a_stream_with_too_few_replicas_is_refused(
    make: Callable[..., NatsStore], nats_url: str
) -> None:
    """A stream that keeps fewer copies than the URL asks for is not written to."""
    assert append(make(), "x").error is None
    error = append(make(nats_url.replace("replicas=1", "replicas=3")), "y").error
    assert isinstance(error, NotWritten)
    assert "1 of 3 replicas" in str(error)


# ---- who may ----


def test_credentials_are_used_and_not_shown() -> None:
    """A user's password lets in, a wrong one does not, and no text shows either."""
    from nats_server import NatsServer  # noqa: PLC0415

    with NatsServer(user="me", password="s3cr@t/") as server:
        url = server.new_stream_url()
        with closing(NatsStore(url)) as right:
            assert append(right, "x").error is None
            assert "s3cr" not in repr(right)
        for wrong in (url.replace("s3cr", "f4lse"), url.replace("me:", "you:"), _without(url)):
            with closing(NatsStore(wrong)) as store:
                errors = [append(store, "x").error]
                with pytest.raises(StoreError) as caught:
                    store.load(KEY)
                for error in (*errors, caught.value):
                    assert "does not let us in" in str(error)
                    assert "f4lse" not in repr(error)


def _without(url: str) -> str:
    return f"nats://{url.rpartition('@')[2]}"


def test_a_token_lets_in() -> None:
    """A token in the URL lets in where the server asks for one."""
    from nats_server import NatsServer  # noqa: PLC0415

    with NatsServer() as server:
        server.stop()
        server.configure({"authorization": {"token": "s3cret"}})
        server.start()
        url = server.new_stream_url()
        with closing(NatsStore(url.replace("//", "//s3cret@"))) as store:
            assert append(store, "x").error is None
        with closing(NatsStore(url.replace("//", "//f4lse@"))) as store:
            assert isinstance(append(store, "x").error, NotWritten)


def test_a_permission_that_is_missing_is_said() -> None:
    """Who may read and not write is told so at once, and reads."""
    from nats_server import NatsServer  # noqa: PLC0415

    with NatsServer() as server:
        url = server.new_stream_url()
        with closing(NatsStore(url)) as store:
            append(store, "x")
        server.stop()
        reader = {"user": "r", "password": "p", "permissions": {"publish": ["$JS.API.>"]}}
        server.configure({"authorization": {"users": [reader]}})
        server.start()
        with closing(NatsStore(url.replace("//", "//r:p@"))) as store:
            assert texts_of(store) == ["x"]
            error = append(store, "y", at=store.load(KEY).position).error
            assert isinstance(error, NotWritten)
            assert "permissions violation" in str(error)
            assert texts_of(store) == ["x"]


def test_tls_is_spoken_or_nothing(nats_server: NatsServer) -> None:
    """A `tls:` URL trusts what it names, and sends no password to a server without TLS."""
    from nats_server import NatsServer  # noqa: PLC0415

    with NatsServer(tls=True, user="me", password="s3cret") as server:
        url = server.url("S", replicas=1)
        with closing(NatsStore(f"{url}&tls_ca={server.certificate}")) as store:
            assert append(store, "x").error is None
            assert texts_of(store) == ["x"]
        for bad in (url, f"{url}&tls_ca={server.folder / 'none'}"):
            with closing(NatsStore(bad, lock_timeout=1.0)) as store, pytest.raises(StoreError):
                store.load(KEY)
    plain = nats_server.url("S").replace("nats://", "tls://me:s3cret@")
    with closing(NatsStore(plain)) as store, pytest.raises(StoreError, match="not speak TLS"):
        store.load(KEY)


def test_a_store_that_only_reads_writes_nothing(
    make: Callable[..., NatsStore], nats_server: NatsServer, nats_url: str
) -> None:
    """A read-only store makes no stream, refuses what writes, and reads what others wrote."""
    reader = make(read_only=True)
    assert reader.read_only
    assert texts_of(reader) == []
    assert isinstance(append(reader, "x").error, ReadOnly)
    for call in (reader.delete, reader.try_turn_lock):
        with pytest.raises(ReadOnly):
            call(KEY)
    info = api(nats_server, f"STREAM.INFO.{name_of(nats_url)}")
    assert info["error"]["description"] == "stream not found"
    append(make(), "x")
    assert texts_of(reader) == ["x"]
    assert append(reader).error is None


# ---- threads that are long, or not whole ----


def test_a_long_thread_is_read_forward_and_from_its_end(make: Callable[..., NatsStore]) -> None:
    """A thread of more messages than one page holds is read whole, and from any place on."""
    store, other = make(), make()
    position, positions = START, [START]
    for number in range(1100):
        position = append(store, str(number), at=position).position
        positions.append(position)
    texts = [str(number) for number in range(1100)]
    assert texts_of(other) == texts
    for count in (1, 5, 16, 17, 40, 500, 1099, 1100, 5000):
        found = [json.loads(line)["content"] for line in other.tail(KEY, count).lines]
        assert found == texts[len(texts) - len(found) :]
        assert min(count, 1100) <= len(found) < count + 100
    for start in (0, 1, 500, 1090, 1096, 1099, 1100):
        (outcome,) = other.commit([PlainAppend(KEY, position=positions[start])])
        assert [json.loads(line)["content"] for line in outcome.news.lines] == texts[start:]
        assert outcome.position == position


@pytest.mark.parametrize("count", [3, 12])
def test_a_message_that_is_missing_costs_itself(
    count: int, make: Callable[..., NatsStore], nats_server: NatsServer, nats_url: str
) -> None:
    """Where somebody removed a message, the others are read, and a problem says which turns."""
    store = make()
    position = START
    positions: list[Position] = []
    for number in range(count):
        position = append(store, str(number), at=position).position
        positions.append(position)
    request = {"seq": positions[1].mark[0]}
    assert api(nats_server, f"STREAM.MSG.DELETE.{name_of(nats_url)}", request)["success"]
    read = make().load(KEY)
    assert list(read.lines) == [line_of(str(n)) for n in range(count) if n != 1]
    (problem,) = read.problems
    assert (problem.line, problem.reason[:18]) == (2, "the turns 2 to 2 a")
    assert append(store, "after", at=read.position).error is None
    assert append(store, "late", at=positions[0]).news.problems


def test_servers_that_have_less_than_was_read_are_said(
    make: Callable[..., NatsStore],
    nats_server: NatsServer,
    nats_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where what was read is there no more, nothing is written behind it, and it is said."""
    monkeypatch.setattr(reader, "_LAST_LOOK", 1000.0)  # seconds before the end: at once
    store = make()
    before = append(store, "before").position
    last = append(store, "lost", at=before).position
    request = {"seq": last.mark[0]}
    assert api(nats_server, f"STREAM.MSG.DELETE.{name_of(nats_url)}", request)["success"]
    error = append(store, "after", at=last).error
    assert isinstance(error, NotWritten)
    assert "less of it than was read" in str(error)
    assert texts_of(store) == ["before"]
    assert append(store, "after", at=before).error is None


@pytest.mark.parametrize("headers", [{}, {"Turnlog": "{}"}, {"Turnlog": '{"format":2}'}])
def test_a_foreign_message_is_said(
    make: Callable[..., NatsStore],
    nats_server: NatsServer,
    nats_url: str,
    headers: dict[str, str],
) -> None:
    """A message that no turnlog of this version wrote is not taken for turns, and is named."""
    store = make()
    position = append(store, "x").position
    subject = f"{name_of(nats_url)}.nats.thread.turns"
    publish(nats_server, subject, b"foreign", headers)
    with pytest.raises(StoreError, match=str(position.mark[0] + 1)):
        store.load(KEY)
    assert isinstance(append(store, "y", at=position).error, NotWritten)
    assert [info.id for info in store.threads()] == []


def test_parts_of_a_writer_that_died_are_not_seen(
    make: Callable[..., NatsStore], nats_server: NatsServer, nats_url: str
) -> None:
    """Parts that no message followed are no turns and no thread, and go with the thread."""
    store = make()
    neighbour = thread_key("neighbour", "nats")
    store.commit([PlainAppend(neighbour, line_of("n"))])
    subject = f"{name_of(nats_url)}.nats.thread.0123456789abcdef01234567"
    publish(nats_server, subject, b"half a turn", {"Turnlog-Part": "0"})
    assert texts_of(store) == []
    assert [info.id for info in store.threads()] == ["neighbour"]
    assert append(store, "x").error is None
    assert texts_of(store) == ["x"]
    assert store.delete(KEY) is True
    assert api(nats_server, f"STREAM.INFO.{name_of(nats_url)}")["state"]["messages"] == 1


def test_foreign_subjects_are_no_threads(
    make: Callable[..., NatsStore], nats_server: NatsServer, nats_url: str
) -> None:
    """What others put into the stream at subjects of their own is not listed."""
    name = name_of(nats_url)
    store = make()
    append(store, "x")
    for subject in ("a.%.turns", "a.b%2.turns", "a", "a.b.c.d"):
        publish(nats_server, f"{name}.{subject}", b"x", {"Turnlog": '{"count":1,"size":1}'})
    assert [(info.namespace, info.id) for info in store.threads()] == [KEY]


# ---- turn locks ----


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have turn locks end some seconds after their holders, and be renewed all the time."""
    monkeypatch.setattr(stream, "LEASE", 5.0)
    monkeypatch.setattr(leases, "_RENEW", 0.1)


@pytest.mark.usefixtures("short_leases")
def test_the_turn_lock_of_a_dead_holder_comes_free(make: Callable[..., NatsStore]) -> None:
    """Where a holder goes away without a word, another one has the lock after a while."""
    holder, waiter = make(), make()
    assert holder.try_turn_lock(KEY) is not None
    assert waiter.try_turn_lock(KEY) is None
    holder.after_fork()  # it has forgotten all it held, as one that died
    taken: list[object] = []
    _until(lambda: taken.append(waiter.try_turn_lock(KEY)) or taken[-1])
    assert taken[0] is None


@pytest.mark.usefixtures("short_leases")
def test_a_living_holder_keeps_the_turn_lock(
    make: Callable[..., NatsStore], nats_server: NatsServer, nats_url: str
) -> None:
    """A holder that lives has the lock for longer than it lasts, and takes it again if it ended."""
    holder, waiter = make(), make()
    release = holder.try_turn_lock(KEY)
    assert release is not None
    name = f"{name_of(nats_url)}_LOCKS"

    def renewals() -> int:
        return api(nats_server, f"STREAM.INFO.{name}")["state"]["last_seq"]

    def renewed(times: int) -> None:
        first = renewals()
        _until(lambda: renewals() > first + times)
        assert waiter.try_turn_lock(KEY) is None

    renewed(60)  # which takes longer than a lock lasts
    nats_server.kill()
    nats_server.start()
    renewed(5)
    api(nats_server, f"STREAM.PURGE.{name}")  # as if it had ended while the server was away
    renewed(5)
    release()
    assert waiter.try_turn_lock(KEY) is not None


@pytest.mark.parametrize("fault", ["drop", "drop_answer"])
def test_a_turn_lock_whose_connection_breaks_is_held(
    make: Callable[..., NatsStore], proxy: Proxy, nats_url: str, fault: Any
) -> None:
    """A turn lock is taken though its request or its answer was lost."""
    holder, waiter = make(proxy.url(nats_url)), make()
    lost = proxy.when("to_server", f"PUB {name_of(nats_url)}_LOCKS.".encode(), fault)
    release = holder.try_turn_lock(KEY)
    assert lost.happened.wait(PATIENCE)
    assert release is not None
    assert waiter.try_turn_lock(KEY) is None
    release()
    assert waiter.try_turn_lock(KEY) is not None


def _until(condition: Callable[[], object]) -> None:
    from serverprocess import wait_until  # noqa: PLC0415

    wait_until(condition, "it comes true")


# ---- news ----


def test_a_stream_that_tells_nothing_is_not_watched(
    make: Callable[..., NatsStore], nats_server: NatsServer, nats_url: str
) -> None:
    """A stream that does not tell of its messages is written to and read, and not watched."""
    name = name_of(nats_url)
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "discard": "new"}
    assert "error" not in api(nats_server, f"STREAM.CREATE.{name}", config)
    store = make()
    assert append(store, "x").error is None
    with pytest.raises(StoreError, match="republish"):
        store.watch(KEY, lambda: None)


def test_who_watches_is_told_after_a_gap(
    make: Callable[..., NatsStore], proxy: Proxy, nats_url: str
) -> None:
    """Who was cut off while a thread changed is told when the connection is back."""
    store, other = make(proxy.url(nats_url)), make()
    told = threading.Event()
    stop = store.watch(KEY, told.set)
    proxy.cut()
    append(other, "missed")
    told.clear()  # of the connection's beginning
    proxy.forward()
    assert told.wait(PATIENCE)
    stop()


# ---- processes and threads of the system ----


FORKING: Final = """
import os, sys
from turnlog import Memory
from turnlog.stores.nats import NatsStore

memory = Memory(NatsStore(sys.argv[1]))
thread = memory.open("thread", "nats").append("parent")
release = memory._store.try_turn_lock(thread.key)
stop = memory._store.watch(thread.key, lambda: None)
child = os.fork()
if child == 0:
    thread.append("child")
    assert memory._store.try_turn_lock(thread.key) is None, "it is the parent's"
    release()
    stop()
    assert memory._store.try_turn_lock(thread.key) is None, "it is still the parent's"
    memory.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
thread.append("parent again")
print([turn.content for turn in thread.messages()])
release()
assert memory._store.try_turn_lock(thread.key) is not None
"""


def test_a_forked_child_has_connections_of_its_own(nats_url: str) -> None:
    """After a fork, parent and child append to one thread, and the parent keeps its turn lock."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORKING,
            nats_url,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['parent', 'child', 'parent again']\n"


CLOSING: Final = """
import os, sys
from turnlog import Memory
from turnlog.stores.nats import NatsStore

memory = Memory(NatsStore(sys.argv[1]))
memory.open("thread", "nats").append("parent")
going_on, end = os.pipe()
child = os.fork()
if child == 0:
    os.close(end)
    os.read(going_on, 1)
    os._exit(0)
memory.close()
print("closed", flush=True)
sys.stdin.read()
os.close(end)
os.waitpid(child, 0)
"""


def _connections(server: NatsServer) -> int:
    """Give how many a server has; -1 where it does not say."""
    said: Any = server.asked("connz")
    return said["num_connections"] if said else -1


def test_a_child_does_not_keep_its_parents_connections() -> None:
    """A parent's connections are gone when it closes them, though a child was forked meanwhile."""
    from nats_server import NatsServer  # noqa: PLC0415

    with (
        NatsServer() as server,
        subprocess.Popen(
            [sys.executable, "-c", CLOSING, server.new_stream_url()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as parent,
    ):
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"closed\n"
        _until(lambda: _connections(server) == 0)
    assert parent.returncode == 0


def test_a_store_is_used_where_a_loop_runs(make: Callable[..., NatsStore]) -> None:
    """A blocking call works in an OS thread that runs an event loop of its own, too."""
    store = make()

    async def main() -> list[str]:
        position = append(store, "a").position
        append(store, "b", at=position)
        return texts_of(store)

    assert asyncio.run(main()) == ["a", "b"]


def test_a_closed_store_says_so(make: Callable[..., NatsStore]) -> None:
    """A store that was closed fails at once, and lets go of its turn locks."""
    store, other = make(), make()
    append(store, "x")
    release = store.try_turn_lock(KEY)
    assert release is not None
    store.close()
    assert other.try_turn_lock(KEY) is not None
    release()
    assert isinstance(append(store, "y").error, NotWritten)
    with pytest.raises(StoreError, match="closed"):
        store.load(KEY)


def test_a_store_is_closed_though_the_server_stands_still(
    make: Callable[..., NatsStore], nats_server: NatsServer
) -> None:
    """What a server does not take keeps no store from being closed."""
    store = make(lock_timeout=2.0)
    known = append(store, "before").position
    nats_server.pause()
    try:
        outcome = append(store, *["x" * 900_000] * 24, at=known)
        assert outcome.error is not None
        closing = threading.Thread(target=store.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()
    finally:
        nats_server.resume()
    assert texts_of(make()) == ["before"]


def test_many_threads_of_one_process_use_a_store(make: Callable[..., NatsStore]) -> None:
    """OS threads that load, list, lock and watch at once each get their own answers."""
    store = make()
    keys = [thread_key(f"t{number}", "nats") for number in range(16)]
    store.commit([PlainAppend(key, line_of(key.id)) for key in keys])

    def use(number: int) -> Sequence[bytes]:
        key = keys[number % len(keys)]
        release = store.try_turn_lock(thread_key(f"own{number}", "nats"))
        assert release is not None
        stop = store.watch(key, lambda: None)
        assert len(list(store.threads("nats"))) == 16
        stop()
        release()
        return store.load(key).lines

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(use, range(64)))
    assert found == [[line_of(keys[number % 16].id)] for number in range(64)]
