"""Appends to NATS JetStream: beside a bare publish of the same bytes with the same headers."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import nats
from atonce import append_each, append_new, timed
from nats.js.errors import APIError, NoStreamResponseError
from table import Row, duration, median, ratio
from text import numbered

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from turnlog import MemoryThread

_BLOCK: Final = 20
_STREAM: Final = "TURNLOG"
_BARE: Final = "BARE"
_ID: Final = "Nats-Msg-Id"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_NO_PEERS: Final = 10005  # of the servers' errors
_PATIENCE: Final = 60.0  # seconds
_client: Final[Any] = nats  # its types say too little


class Sizes(NamedTuple):
    """How much is appended.

    Attributes:
        appends: the appends one after another.
        threads: the threads that are appended to at once, with a task each.
    """

    appends: int
    threads: int


class _Run(NamedTuple):
    """One repetition: the seconds of each."""

    append: float
    publish: float
    new_threads: float
    open_threads: float
    in_order: float
    gathered: float


def jetstream_rows(
    what: str, url: str, replicas: int, repetitions: int, sizes: Sizes
) -> Iterator[Row]:
    """Measure appends one at a time, and many at once.

    Args:
        what: which servers they are.
        url: the servers' URL.
        replicas: how many of them keep each turn.
        repetitions: how often it is measured.
        sizes: how much is appended.
    """
    runs = [
        asyncio.run(_run(url, replicas, f"run-{repetition}", sizes))
        for repetition in range(repetitions)
    ]
    appends, publishes = [run.append for run in runs], [run.publish for run in runs]
    yield Row(
        f"{what}: append to a thread",
        duration(median(appends)),
        f"bare publish: {duration(median(publishes))}",
        f"{ratio(appends, publishes):.2f} x the time",
    )
    threads = sizes.threads
    for case, owns in (
        ("new threads are opened and appended to at once", [run.new_threads for run in runs]),
        ("open threads are appended to at once", [run.open_threads for run in runs]),
    ):
        for limit, others in (
            ("bare publishes, one after another", [run.in_order for run in runs]),
            ("bare publishes, gathered", [run.gathered for run in runs]),
        ):
            yield Row(
                f"{what}: {threads:,} {case}",
                f"{threads / median(owns):,.0f} turns/s",
                f"{limit}: {threads / median(others):,.0f} turns/s",
                f"{ratio(others, owns):.2f} x the speed",
            )


async def _run(url: str, replicas: int, name: str, sizes: Sizes) -> _Run:
    ids = [f"{name}-{number}" for number in range(sizes.threads)]
    async with Memory(f"{url}/{_STREAM}?replicas={replicas}") as memory, _connected(url) as streams:
        thread = await (await memory.aopen(f"{name}-alone")).aappend(numbered(0, 0))
        bare = await _Bare.like(streams, name)
        before = await _messages(streams)
        append, publish = await _in_turns(thread, bare, max(1, sizes.appends // _BLOCK))
        new_threads = await append_new(memory, ids)
        threads = [await memory.aopen(id_) for id_ in ids]
        open_threads = await append_each(threads, 1)
        kept = await _messages(streams) - before
        if kept != len(thread) - 1 + 2 * len(ids):
            raise SystemExit(f"{url}: {kept} messages came of {len(thread) - 1 + 2 * len(ids)}")
        in_order = await timed([bare.publish_each([f"order-{id_}" for id_ in ids])])
        gathered = await timed([bare.publish(f"gathered-{id_}") for id_ in ids])
    return _Run(append, publish, new_threads, open_threads, in_order, gathered)


async def _in_turns(thread: MemoryThread, bare: _Bare, blocks: int) -> tuple[float, float]:
    """Give the median seconds of an append and of a publish; they take turns in blocks."""
    appends: list[float] = []
    publishes: list[float] = []
    last = await bare.publish("alone")
    for _ in range(blocks):
        for _ in range(_BLOCK):
            start = time.perf_counter()
            thread.append(numbered(0, 0))
            appends.append(time.perf_counter() - start)
        for _ in range(_BLOCK):
            start = time.perf_counter()
            last = await bare.publish("alone", last)
            publishes.append(time.perf_counter() - start)
    return median(appends), median(publishes)


# ---- bare publishes ----


@asynccontextmanager
async def _connected(url: str) -> AsyncGenerator[Any]:
    """Give JetStream over a connection of its own."""
    addresses = url.partition("://")[2].split(",")
    connection = await _client.connect([f"nats://{address}" for address in addresses])
    try:
        yield connection.jetstream(timeout=_PATIENCE)
    finally:
        await connection.close()


async def _messages(streams: Any) -> int:
    """Count the messages in turnlog's stream."""
    found: int = (await streams.stream_info(_STREAM)).state.messages
    return found


async def _is_made(streams: Any, config: Any) -> bool:
    try:
        await streams.add_stream(config)
    except APIError as error:
        if error.err_code != _NO_PEERS:  # a node that is busy seems to be away
            raise
        return False
    return True


class _Bare:
    """Publishes to a stream like turnlog's, on subjects of a name, what turnlog has published."""

    def __init__(self, streams: Any, name: str, message: Any) -> None:
        self._streams = streams
        self._name = name
        self._payload: bytes = message.data
        self._headers: dict[str, str] = message.headers

    @classmethod
    async def like(cls, streams: Any, name: str) -> _Bare:
        """Make the stream where there is none yet; look at the last message of turnlog's."""
        info = await streams.stream_info(_STREAM)
        config = info.config.evolve(name=_BARE, subjects=[f"{_BARE}.>"], republish=None)
        async with asyncio.timeout(_PATIENCE):
            while not await _is_made(streams, config):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.1)
        bare = cls(streams, name, await streams.get_msg(_STREAM, seq=info.state.last_seq))
        await bare._answered()
        return bare

    async def _answered(self) -> None:
        """Wait until the stream takes messages: in a cluster it has no leader at first."""
        async with asyncio.timeout(_PATIENCE):
            while True:
                with suppress(NoStreamResponseError):
                    await self.publish("first")
                    return
                await asyncio.sleep(0.01)

    async def publish(self, subject: str, last: int = 0) -> int:
        """Publish where the last message has a number; give the new one's."""
        own = {_ID: uuid.uuid4().hex, _EXPECTED: str(last)}
        subject = f"{_BARE}.{self._name}.{subject}"
        answer = await self._streams.publish(subject, self._payload, headers=self._headers | own)
        sequence: int = answer.seq
        return sequence

    async def publish_each(self, subjects: Sequence[str]) -> None:
        """Publish to one subject after another."""
        for subject in subjects:
            await self.publish(subject)
