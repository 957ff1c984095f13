"""PostgreSQL: turns and batches that are large, and text and names with every odd character."""

from __future__ import annotations

import asyncio
import hashlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from postgreslook import COMMIT, check_tables, lines, query
from proxy import Proxy
from serverstorm import contents

from turnlog import InvalidName, Memory, Message
from turnlog.stores.postgres import reader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from postgres_server import PostgresServer

    from turnlog import MemoryThread

MEGABYTE = 1 << 20
MADE_LARGE = """
    WITH made AS (
        INSERT INTO turnlog_turn
        SELECT namespace, id, n, replace(line, 'first', repeat('x', 10485760)), append
        FROM turnlog_turn, generate_series(1, 30) AS n
    )
    UPDATE turnlog_thread SET turns = 31
"""
READS = """
import gc, sys
import psutil
from turnlog import Memory
from turnlog.names import thread_key

def resident():
    gc.collect()
    return psutil.Process().memory_info().rss

with Memory(sys.argv[1]) as memory:
    memory.open("small")
    before = resident()
    read = memory.store.load(thread_key("t"))
    assert sum(map(len, read.lines)) > 300 << 20
    held = resident()
    del read
    print(before, held, resident())
"""
# Characters of every kind, and what servers give a meaning.
TEXTS = (
    "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), 0x1F600, 0x10FFFF])),
    *("\\u0000", "\\", '"', "\r\n\u2028", "\udc00\ud800 halves"),
    *("'; DROP TABLE turnlog_turn; --", "$1 %s %(id)s {} $thread"),
)
NAMES = (
    *("a%b", "100%s", "it's", 'q"q', "$thread", "a b", "-", "*", "a,b{c}", "NULL"),
    *("ünï", "日本", "🙂", "İ", "x" * 240, "É" * 120),
)


def test_a_large_turn(postgres_url: str) -> None:
    """A turn of a hundred megabytes is kept and read back, byte by byte."""
    content = "0123456789" * (10 * MEGABYTE)
    with Memory(postgres_url) as memory:
        memory.open("t").append("before").append(content).append("after")
    with Memory(postgres_url) as memory:
        found = memory.open("t").messages()
        assert [len(message.content) for message in found] == [6, len(content), 5]
        assert digest(found[1].content) == digest(content)
        assert memory.peek("t", last=1)[0].content == "after"
    check_tables(postgres_url)


def digest(text: str) -> bytes:
    """Give what tells two large texts apart, and does not fill a page when a test fails."""
    return hashlib.sha256(text.encode()).digest()


def test_long_threads(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread is read in pages, bounded in turns and in bytes, and an append is found in them."""
    monkeypatch.setattr(reader, "_PAGE", 7)
    monkeypatch.setattr(reader, "_MOST", 2000)
    turns = [f"{n} {'x' * (n % 5 * 500)}" for n in range(100)]
    ids = ["t", "empty", "u"]
    with Proxy(postgres_server.port) as proxy, Memory(proxy.url(postgres_url)) as memory:
        threads = {id_: memory.open(id_).extend([Message("user", "first")]) for id_ in ids}
        with Memory(postgres_url) as other:
            for id_ in ("t", "u"):
                other.open(id_).extend([Message("user", turn) for turn in turns])
            lost = proxy.when("to_server", COMMIT, "drop_answer")
            asyncio.run(append_to_all(threads.values(), "mine"))
            assert lost.happened.is_set()
    assert contents(postgres_url, ids) == {
        "t": ["first", *turns, "mine"],
        "empty": ["first", "mine"],
        "u": ["first", *turns, "mine"],
    }
    check_tables(postgres_url)


async def append_to_all(threads: Iterable[MemoryThread], content: str) -> None:
    """Append to threads in one batch."""
    await asyncio.gather(*(thread.aappend(content) for thread in threads))


def test_what_is_large_is_let_go(postgres_url: str) -> None:
    """A large thread that was read is not kept in memory when it is let go of."""
    with Memory(postgres_url) as memory:
        memory.open("t").append("first")
    query(postgres_url, MADE_LARGE)
    measured = subprocess.run(  # by itself: what other tests have freed would be used again
        [sys.executable, "-c", READS, postgres_url], capture_output=True, text=True, check=True
    )
    before, held, after = map(int, measured.stdout.split())
    assert held - before > 300 * MEGABYTE
    assert after - before < 200 * MEGABYTE  # a page


def test_a_large_batch(postgres_url: str) -> None:
    """Sixty-four megabytes that many threads append at once are all kept."""
    ids = [f"t{n}" for n in range(16)]

    async def main() -> None:
        async with Memory(postgres_url) as memory:
            threads = [await memory.aopen(id_) for id_ in ids]
            turns = [Message("user", f"{n}".ljust(MEGABYTE)) for n in range(4)]
            await asyncio.gather(*(thread.aextend(turns) for thread in threads))

    asyncio.run(main())
    for turns in contents(postgres_url, ids).values():
        assert [turn.rstrip() for turn in turns] == ["0", "1", "2", "3"]
        assert {len(turn) for turn in turns} == {MEGABYTE}
    check_tables(postgres_url)


def test_every_character(postgres_url: str, tmp_path: Path) -> None:
    """Every text is given back as it was, and its line is the one that a file would hold."""
    texts = list(TEXTS)
    for location in (postgres_url, tmp_path):
        with Memory(location) as memory:
            thread = memory.open("t")
            for text in texts:
                thread.append(text, meta={text[:100]: text[:100]}, key=text[:100] + "key")
            thread.append(texts[0], key=texts[0][:100] + "key")  # it is there
    assert contents(postgres_url, ["t"]) == {"t": texts}
    with Memory(postgres_url) as memory:
        found = memory.open("t")
        assert [m.meta for m in found.messages()] == [{text[:100]: text[:100]} for text in texts]
        assert [found.index_of(text[:100] + "key") for text in texts] == list(range(len(texts)))
    assert without_time(lines(postgres_url)) == without_time(
        (tmp_path / "default" / "t.jsonl").read_text("utf-8").split("\n")[:-1]
    )


def without_time(found: list[str]) -> list[str]:
    """Give lines without the part that tells when they were made."""
    return [re.sub(r'"at":"[^"]*"', "", line) for line in found]


def test_every_name(postgres_url: str) -> None:
    """Names hold whatever a file's may, and are listed in the order of their characters."""
    pairs = sorted((namespace, id_) for namespace in NAMES for id_ in NAMES)

    async def main() -> None:
        async with Memory(postgres_url) as memory:
            for namespace, id_ in pairs:
                await memory.aopen(id_, namespace)
            await asyncio.gather(*(append(memory, *pair) for pair in pairs))
            news = asyncio.create_task(memory.open(NAMES[-2], NAMES[-2]).arefresh(60))
            async with Memory(postgres_url) as other:
                await append(other, NAMES[-2], NAMES[-2])
                await news

    async def append(memory: Memory, namespace: str, id_: str) -> None:
        await (await memory.aopen(id_, namespace)).aappend(f"{namespace}/{id_}")

    asyncio.run(main())
    with Memory(postgres_url) as memory:
        assert [(info.namespace, info.id) for info in memory.threads()] == pairs
        for namespace, id_ in pairs:
            assert memory.peek(id_, namespace, last=1)[0].content == f"{namespace}/{id_}"
            assert memory.delete(id_, namespace)
        with pytest.raises(InvalidName):
            memory.open("a\0b")
    check_tables(postgres_url)
