"""Memory.peek: the last turns of a stored thread, without the rest of it (C17)."""

from __future__ import annotations

import asyncio
import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from turnlog import (
    Capability,
    CapabilityDenied,
    Closed,
    Conversation,
    DamageWarning,
    InvalidName,
    InvalidTurn,
    Memory,
    Message,
    NotAThread,
    StoreError,
    sandbox,
)
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from pathlib import Path

LINE = '{"role":"user","content":"%s"}\n'
KIB = 1024


class Reads(System):
    """The real system, which notes how much of a file was read, and refuses to write."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self.read_at: list[tuple[int, int]] = []

    def read(self, fd: int, offset: int, size: int) -> bytes:
        """Note the reading."""
        data = super().read(fd, offset, size)
        self.read_at.append((offset, len(data)))
        return data

    @property
    def bytes_read(self) -> int:
        """How many bytes were read."""
        return sum(size for _, size in self.read_at)


def texts(conv: Conversation) -> list[str]:
    """Give the texts of a conversation."""
    return [message.content for message in conv]


def put(root: Path, data: bytes, id: str = "t") -> Path:
    """Put a file where a thread's is."""
    file = root / "default" / f"{id}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


# ---- what it gives ----


@pytest.mark.parametrize("location", ["a folder", "memory://"])
def test_peek_gives_the_last_turns(root: Path, location: str) -> None:
    """A peek is the last turns as the open thread has them, or all; in either store."""
    with Memory(root if location == "a folder" else location) as memory:
        mem = memory.open("t", namespace="n")
        mem.append("rule", role="system", meta={"a": 1, "b": None}).append("half \ud800", key="k")
        mem.extend([Message("user", "q"), Message("assistant", "a")])
        conv = mem.messages()
        for last in range(7):
            found = memory.peek("t", "n", last=last)
            assert isinstance(found, Conversation)
            assert found == conv.last(last)
        assert memory.peek("t", namespace="n", last=10**30) == conv
        assert memory.peek("t", last=3) == Conversation()  # another namespace


def test_peek_needs_no_open_thread(root: Path) -> None:
    """A memory that never opened the thread peeks at it, and it is not open then either."""
    with Memory(root) as memory:
        memory.open("t").append("a").append("b")
    with Memory(root) as memory:
        assert texts(memory.peek("t", last=1)) == ["b"]
        assert not memory._threads  # pyright: ignore[reportPrivateUsage]


def test_peek_at_what_is_not_there(root: Path) -> None:
    """Where there is no thread, or no memory at all, a peek is empty and makes nothing."""
    with Memory(root) as memory:
        assert memory.peek("t", last=3) == Conversation()
        assert not root.exists()
        memory.open("u").append("x")
        assert memory.peek("t", last=3) == memory.peek("u", "other", last=3) == Conversation()
        assert [path.name for path in root.rglob("*")] == ["default", "u.jsonl"]
        put(root, b"")
        assert memory.peek("t", last=3) == Conversation()


def test_peek_sees_what_others_appended(root: Path) -> None:
    """A peek reads the file: it shows what another memory appended, though the open thread not."""
    with Memory(root) as memory, Memory(root) as peer:
        mem = memory.open("t").append("mine")
        peer.open("t").append("theirs")
        assert texts(memory.peek("t", last=2)) == ["mine", "theirs"]
        assert len(mem) == 1
        mem.append("mine again")
        assert texts(peer.peek("t", last=2)) == ["theirs", "mine again"]
        memory.delete(mem)
        assert peer.peek("t", last=2) == Conversation()


def test_what_was_peeked_at_is_a_value(root: Path) -> None:
    """A peek stays as it is, whatever is appended or deleted after it."""
    with Memory(root) as memory:
        mem = memory.open("t").append("a")
        conv = memory.peek("t", last=5)
        mem.append("b")
        memory.delete("t")
        assert texts(conv.add("c")) == ["a", "c"]


# ---- what it asks for ----


def test_peek_is_checked_before_anything_is_read(root: Path) -> None:
    """A bad name, a negative number, a closed memory: each is its own error, as everywhere."""
    memory: Any = Memory(root)
    for last in (-1, "1", 1.5, None):
        with pytest.raises(InvalidTurn, match=re.escape(f"peek({last!r})")):
            memory.peek("t", last=last)
        with pytest.raises(InvalidTurn, match=re.escape(f"peek({last!r})")):
            asyncio.run(memory.apeek("t", last=last))
    with pytest.raises(InvalidName):
        memory.peek("../t", last=1)
    with pytest.raises(InvalidName):
        memory.peek("t", "..", last=1)
    with pytest.raises(TypeError):
        memory.peek("t")
    with pytest.raises(TypeError):
        memory.peek("t", "default", 3)
    memory.close()
    with pytest.raises(Closed):
        memory.peek("t", last=1)
    with pytest.raises(Closed):
        asyncio.run(memory.apeek("t", last=1))


def test_peek_needs_fs_read_alone(root: Path) -> None:
    """A sandbox without FS_READ denies a peek, and one without anything else grants it."""
    with Memory(root) as memory:
        memory.open("t").append("a")
        with sandbox(deny=Capability.FS_READ):
            with pytest.raises(CapabilityDenied, match="memory/peek requires 'fs-read'"):
                memory.peek("t", last=1)
            with pytest.raises(CapabilityDenied):
                asyncio.run(memory.apeek("t", last=1))
        with sandbox(deny=~Capability.FS_READ):
            assert texts(memory.peek("t", last=1)) == ["a"]
            assert texts(asyncio.run(memory.apeek("t", last=1))) == ["a"]


def test_peek_at_what_is_no_thread(root: Path) -> None:
    """What stands under the name and is no regular file is refused, as `open` refuses it."""
    with Memory(root) as memory:
        file = put(root, LINE.replace("%s", "x").encode(), "real")
        file.with_name("link.jsonl").symlink_to(file)
        file.with_name("folder.jsonl").mkdir()
        root.joinpath("linked").symlink_to(file.parent)
        root.joinpath("plain").write_text("x")
        for id_, namespace in (("link", "default"), ("folder", "default"), ("real", "linked")):
            with pytest.raises(NotAThread):
                memory.peek(id_, namespace, last=1)
        with pytest.raises(StoreError):
            memory.peek("real", "plain", last=1)


# ---- what it reads ----


def long_thread(root: Path, turns: int, size: int = 60) -> Path:
    """Put a thread of many turns of some size, each with its number."""
    lines = [LINE.replace("%s", f"{number} ".ljust(size, "x")) for number in range(turns)]
    return put(root, "".join(lines).encode())


def test_peek_reads_the_end_alone(root: Path) -> None:
    """Of a file of 100,000 turns, the last 20 cost at most 128 KiB of reading (C17)."""
    size = long_thread(root, 100_000).stat().st_size
    assert size > 80 * 100 * KIB
    for last in (0, 1, 20):
        system = Reads()
        with Memory(JsonlStore(root, system=system)) as memory:
            found = memory.peek("t", last=last)
        assert [m.content.split()[0] for m in found] == [
            str(number) for number in range(100_000 - last, 100_000)
        ]
        assert system.bytes_read <= 128 * KIB


@pytest.mark.parametrize("last", [500, 2_000, 10_000])
def test_peek_reads_in_proportion_to_what_it_gives(root: Path, last: int) -> None:
    """More turns cost more reading, at most some five times their own bytes and 128 KiB."""
    file = long_thread(root, 100_000)
    line = file.stat().st_size / 100_000
    system = Reads()
    with Memory(JsonlStore(root, system=system)) as memory:
        assert len(memory.peek("t", last=last)) == last
    assert system.bytes_read <= 128 * KIB + 6 * last * line


def test_peek_at_huge_turns_grows_as_far_as_it_must(root: Path) -> None:
    """Turns of megabytes are found by a few readings, each longer than the one before."""
    lines = [LINE.replace("%s", letter * (1 << 20)).encode() for letter in "abcdef"]
    put(root, b"".join(lines))
    system = Reads()
    with Memory(JsonlStore(root, system=system)) as memory:
        found = memory.peek("t", last=2)
    assert [content[0] for content in texts(found)] == ["e", "f"]
    assert [len(content) for content in texts(found)] == [1 << 20] * 2
    assert system.bytes_read <= 4 * (1 << 20) * 4 / 3 * 2
    assert len(system.read_at) <= 6


def test_peek_at_a_torn_end_reads_past_it(root: Path) -> None:
    """A torn end longer than the first reading hides no turn before it, and is left in place."""
    torn = b'{"role":"user","content":"' + b"x" * 200_000
    file = put(root, b"".join(LINE.replace("%s", c).encode() for c in "abc") + torn)
    data, times = file.read_bytes(), file.stat()
    with Memory(root) as memory:
        assert texts(memory.peek("t", last=2)) == ["b", "c"]
        assert texts(memory.peek("t", last=9)) == ["a", "b", "c"]
    assert file.read_bytes() == data
    assert (file.stat().st_mtime_ns, file.stat().st_ctime_ns) == (
        times.st_mtime_ns,
        times.st_ctime_ns,
    )
    assert [path.name for path in file.parent.iterdir()] == ["t.jsonl"]


# ---- damage ----


def test_damage_in_the_part_that_is_read_is_told(root: Path) -> None:
    """A damaged line among those that were read gives a DamageWarning that points at the caller."""
    put(root, LINE.replace("%s", "a").encode() + b"oops\n" + LINE.replace("%s", "b").encode())
    with Memory(root) as memory:
        with pytest.warns(DamageWarning, match="thread 't' in namespace 'default'") as told:
            assert texts(memory.peek("t", last=2)) == ["a", "b"]
        assert [warning.filename for warning in told] == [__file__]

        async def main() -> Conversation:
            return await memory.apeek("t", last=2)

        with pytest.warns(DamageWarning) as told:
            assert texts(asyncio.run(main())) == ["a", "b"]
        assert [warning.filename for warning in told] == [__file__]


def test_damage_far_before_is_not_looked_at(root: Path) -> None:
    """What is damaged before the part that is read costs nothing and is not told."""
    file = long_thread(root, 5_000)
    file.write_bytes(b"oops\n" + file.read_bytes())
    with Memory(root) as memory, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(memory.peek("t", last=3)) == 3
        with pytest.raises(DamageWarning):
            memory.peek("t", last=5_000)


# ---- off the loop ----


@pytest.mark.usefixtures("no_blocking")
def test_apeek_does_not_block_the_loop(root: Path) -> None:
    """`apeek` gives what `peek` gives, and no call to the disk is made in the loop."""
    long_thread(root, 3_000)
    memory = Memory(root)

    async def main() -> list[Conversation]:
        async with memory:
            found = await asyncio.gather(*(memory.apeek("t", last=n) for n in (0, 1, 5, 3_000)))
            return [*found, await memory.apeek("missing", last=1)]

    found = asyncio.run(main())
    assert [len(conv) for conv in found] == [0, 1, 5, 3_000, 0]
    assert found[1] == found[3].last(1)
