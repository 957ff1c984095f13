"""JetStream: the limits of a stream are edited while programs use it."""

from __future__ import annotations

import contextlib
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from nats_server import NatsServer, with_streams
from proxy import Proxy
from serverprocess import wait_until

from turnlog import Memory, MemoryThread, NotWritten, OutcomeUnknown, StoreError
from turnlog.stores.nats import stream

EDITS: Final[dict[str, dict[str, object]]] = {
    "--discard=new": {"discard": "old", "max_bytes": 1 << 20},
    "--discard=new ": {"discard": "old", "max_msgs": 100},
    "--max-age=0s": {"max_age": 3600},
    "--max-msgs-per-subject=-1": {"max_msgs_per_subject": 10},
    "--max-age=0s --max-msgs-per-subject=-1 --discard=new": {
        "discard": "old", "max_msgs": 100, "max_age": 3600,
    },
}  # fmt: skip
MENDED: Final[dict[str, object]] = {
    "discard": "new", "max_bytes": -1, "max_msgs": -1, "max_age": 0,
    "max_msgs_per_subject": -1,
}  # fmt: skip


def edit(servers: list[str], url: str, changes: dict[str, object], suffix: str = "") -> None:
    """Change the configuration of a URL's stream, as `nats stream edit` does."""

    async def change(streams: Any) -> None:
        config = (await streams.stream_info(urlsplit(url).path[1:] + suffix)).config
        await streams.update_stream(config.evolve(**changes))

    with_streams(servers, change)


def refusal(thread: MemoryThread) -> str:
    """Append; give the words of the refusal, or none. Nothing else may go wrong."""
    try:
        thread.append("more")
    except NotWritten as error:
        return str(error)
    return ""


def wait_for_refusal(thread: MemoryThread, remedy: str) -> None:
    """Append until that is refused; see that each further one is, with the remedy."""
    wait_until(lambda: refusal(thread), "an append is refused")
    assert remedy.strip() in refusal(thread)
    assert "put that back: nats stream edit " in refusal(thread)


@pytest.mark.parametrize("remedy", EDITS)
def test_an_edit_is_noticed(nats_server: NatsServer, nats_url: str, remedy: str) -> None:
    """Where a stream begins to forget, appends are refused until that is put back (C53)."""
    servers = [nats_server.url()]
    with Memory(nats_url) as memory:
        thread = memory.open("t").append("first")
        edit(servers, nats_url, EDITS[remedy])
        wait_for_refusal(thread, remedy)
        edit(servers, nats_url, MENDED)
        thread.append("last")
        assert thread.messages()[-1].content == "last"


def test_an_edit_is_noticed_in_a_cluster(nats_cluster_url: str) -> None:
    """The same holds where three servers keep the stream (C53)."""
    servers = [f"nats://{host}" for host in urlsplit(nats_cluster_url).netloc.split(",")]
    (remedy, *_) = EDITS
    with Memory(nats_cluster_url) as memory:
        thread = memory.open("t").append("first")
        edit(servers, nats_cluster_url, EDITS[remedy])
        wait_for_refusal(thread, remedy)


def test_an_edit_of_the_locks(nats_server: NatsServer, nats_url: str) -> None:
    """Where the stream of the turn locks begins to forget otherwise, none is given (C53)."""
    with Memory(nats_url) as memory:
        thread = memory.open("t").append("first")
        with thread.turn_lock():
            pass
        edit([nats_server.url()], nats_url, {"max_age": 1, "duplicate_window": 1}, "_LOCKS")

        def is_refused() -> bool:
            with contextlib.suppress(StoreError), thread.turn_lock():
                return False
            return True

        wait_until(is_refused, "a turn lock is refused")
        with pytest.raises(StoreError, match=r"_LOCKS --max-age=15s --max-msgs-per-subject=1"):
            thread.turn_lock().__enter__()


def test_an_edit_while_the_connection_was_lost(nats_server: NatsServer, nats_url: str) -> None:
    """An edit that a program could not hear of is noticed when it is connected again (C53)."""
    (remedy, *_) = EDITS
    with Proxy(nats_server.port) as proxy, Memory(proxy.url(nats_url)) as memory:
        thread = memory.open("t").append("first")
        proxy.cut()
        edit([nats_server.url()], nats_url, EDITS[remedy])
        proxy.forward()
        with pytest.raises((NotWritten, OutcomeUnknown), match=r"not fit: .*\(discard\)"):
            thread.append("sent or not, but never taken")
        thread = memory.open("t")
        assert remedy in refusal(thread)
        assert [m.content for m in thread.messages()] == ["first"]


def test_an_edit_that_may_not_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may not hear of edits notices one when it looks the next time (C53)."""
    monkeypatch.setattr(stream, "_LOOK_AGAIN", 0.0)
    (remedy, *_) = EDITS
    allowed = ["S.>", "S_LOCKS.>", "S_NEWS.>", "$JS.API.>", "_INBOX.>"]
    rights = {"publish": allowed, "subscribe": allowed}
    users = [{"user": "r", "password": "p", "permissions": rights}, {"user": "a", "password": "a"}]
    with NatsServer() as server:
        server.stop()
        server.configure({"authorization": {"users": users}})
        server.start()
        url = server.url("S", replicas=1)
        with Memory(url.replace("//", "//r:p@")) as memory:
            thread = memory.open("t").append("first")
            edit([server.url().replace("//", "//a:a@")], url, EDITS[remedy])
            assert remedy in refusal(thread)
