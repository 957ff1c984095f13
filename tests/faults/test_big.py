"""Large turns, long threads, many threads (C17, C30)."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from bytesofit import put, seen, turn
from systems import Notes, Watched
from writers import contents, lines_on_disk, result

from turnlog import Memory, Message
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from pathlib import Path

MEGABYTE = 1 << 20


def test_turn_of_64_megabytes(root: Path, memory: Memory) -> None:
    """A turn of 64 MB is kept and comes back the same, and the thread goes on."""
    text = "0123456789abcdef" * (4 * MEGABYTE)
    thread = memory.open("t").append("first").append(text).append("last")
    assert [m.content for m in thread.messages()] == ["first", text, "last"]
    assert os.path.getsize(root / "default" / "t.jsonl") > 64 * MEGABYTE
    assert contents(root) == ["first", text, "last"]
    with Memory(root) as another:
        another.open("t").append("another's")
    assert [m.content for m in thread.append("next").messages()][3:] == ["another's", "next"]


def test_turn_of_many_escapes(root: Path, memory: Memory) -> None:
    """A large turn whose characters are all escaped, or take four bytes, comes back the same."""
    for text in ("\n" * MEGABYTE, "🙂" * (MEGABYTE // 2), "\u2028\x00" * (MEGABYTE // 4)):
        memory.open(f"{ord(text[0])}").append(text)
        assert contents(root, f"{ord(text[0])}") == [text]


def test_large_turn_of_a_task(root: Path, memory: Memory) -> None:
    """A large turn that a task appends next to small ones of other tasks is whole."""

    async def main() -> None:
        thread = await memory.aopen("t")
        sizes = [1, 8 * MEGABYTE, 2, 3]
        await asyncio.gather(*(thread.aappend("x" * size) for size in sizes))

    asyncio.run(main())
    assert list(map(len, lines_on_disk(root))) == [1, 8 * MEGABYTE, 2, 3]


def test_100_000_turns(root: Path, memory: Memory) -> None:
    """A thread of 100,000 turns keeps their order; it opens, is read and goes on as any other."""
    thread = memory.open("t")
    for start in range(0, 99_999, 33_333):
        numbers = range(start, start + 33_333)
        thread.extend([Message("user", f"turn {i}") for i in numbers])
    thread.append("turn 99999")
    expected = [f"turn {i}" for i in range(100_000)]
    assert len(thread) == 100_000
    assert [m.content for m in thread.messages()] == expected
    with Memory(root) as another:
        again = another.open("t")
        assert len(again.messages()) == 100_000
        assert [m.content for m in again.messages()] == expected
        assert [m.content for m in again.messages().last(3)] == expected[-3:]
        assert again.messages()[50_000].content == "turn 50000"
        again.append("one more")
    assert thread.refresh().messages()[-1].content == "one more"
    assert lines_on_disk(root) == [*expected, "one more"]


def test_100_000_turns_of_which_some_are_damaged(root: Path) -> None:
    """Damage here and there in a long thread costs only itself, and its places are exact (C31)."""
    lines = [turn(f"turn {i}") for i in range(100_000)]
    bad = {7, 30_000, 30_001, 77_777, 99_998}
    for number in bad:
        lines[number] = b"\xff" * number + b"\n"
    put(root, b"".join(lines))
    found = seen(root)
    assert len(found.messages) == 100_000 - len(bad)
    assert [(p.line, p.offset, p.length) for p in found.problems] == [
        (number + 1, sum(map(len, lines[:number])), number) for number in sorted(bad)
    ]


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_memory_near_the_text_s_size(root: Path) -> None:
    """Opening a thread takes memory near its text's size, and reading it takes no more (C17)."""
    count, text = 200_000, "x" * 200
    file = put(root, turn(text) * count)
    size = file.stat().st_size
    (said,) = result("peak", root, "t")
    opened, read, number, letters = map(int, said.split())
    assert (number, letters) == (count, count * 200)
    assert size < opened < 2 * size + 60 * MEGABYTE
    assert read < 2 * size + 60 * MEGABYTE


def test_listing_reads_no_turns(root: Path) -> None:
    """Threads are listed by their files' status alone, however large they are (C17)."""
    for number in range(300):
        put(root, turn("x"), str(number))
    with put(root, turn("x"), "huge").open("r+b") as huge:
        huge.truncate(1 << 33)  # eight gigabytes, of which next to nothing is on the disk
    notes = Notes()
    with Memory(JsonlStore(root, system=Watched(notes))) as memory:
        listed = list(memory.threads())
    assert [info.id for info in listed] == sorted([*map(str, range(300)), "huge"])
    assert {info.size for info in listed} == {len(turn("x")), 1 << 33}
    assert not {"open_file", "read"} & set(notes.names())
