"""Contract 4: no room, or no leave, to write. The file stays as it was, and the thread goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from machine import in_child, limited, mounted, needs_root, tiny_ext4, tiny_tmpfs
from writers import contents, lines_on_disk

from turnlog import Memory, MemoryThread, Message, NotWritten, OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import Generator

Refused: TypeAlias = "pytest.ExceptionInfo[NotWritten]"


@pytest.fixture(params=["tmpfs", "ext4"])
def full_soon(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Path]:
    """Give a folder on a file system that a few turns fill, and that has a file to remove."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    place = tmp_path / "disk"
    with tiny_tmpfs(place) if request.param == "tmpfs" else tiny_ext4(place):
        room = os.statvfs(place)
        (place / "filler").write_bytes(b"z" * (room.f_bavail * room.f_frsize // 2))
        yield place


def refusal(thread: MemoryThread, size: int) -> Refused:
    """Append what there is no room for, and look at what the error says."""
    with pytest.raises(NotWritten, match=r"thread 't' in namespace 'default'") as refused:
        thread.append("x" * size)
    assert isinstance(refused.value.__cause__, OSError)
    assert isinstance(refused.value, OSError)
    assert "nothing was appended" in str(refused.value)
    return refused


def fill(thread: MemoryThread, file: Path) -> tuple[list[str], bytes]:
    """Append until there is no room; give the turns, and the file as it was before the failure."""
    turns: list[str] = []
    size = 20_000 if os.statvfs(file.parent.parent).f_blocks < 100 else 700_000
    while True:
        before = file.read_bytes()
        turn = f"{len(turns)} ".ljust(size, "x")
        try:
            thread.append(turn)
        except NotWritten:
            return turns, before
        turns.append(turn)


def test_full_disk(full_soon: Path) -> None:
    """On a full disk append raises each time, leaves the file as it was, and goes on with room."""
    # C07, C08, C32, Contract 4.
    root = full_soon / "memory"
    file = root / "default" / "t.jsonl"
    with Memory(root) as memory:
        thread = memory.open("t").append("first")
        turns, before = fill(thread, file)
        assert file.read_bytes() == before
        for _ in range(3):
            refused = refusal(thread, 5_000_000)
            assert "free space on the disk" in refused.value.hint
            assert isinstance(refused.value.__cause__, OSError)
            assert refused.value.__cause__.errno == errno.ENOSPC
            assert file.read_bytes() == before
            assert [m.content for m in thread.messages()] == ["first", *turns]
        (full_soon / "filler").unlink()
        thread.append("there is room again", key="k")
        thread.append("there is room again", key="k")
        assert [m.content for m in thread.messages()] == ["first", *turns, "there is room again"]
    assert lines_on_disk(root) == ["first", *turns, "there is room again"] == contents(root)


def test_full_disk_of_a_unit_and_of_tasks(full_soon: Path) -> None:
    """An extend without room leaves none of its turns, and a task gets the error too."""
    root = full_soon / "memory"
    with Memory(root) as memory:
        thread = memory.open("t").append("first")
        unit = [Message("user", "x" * 900_000) for _ in range(9)]
        with pytest.raises(NotWritten):
            thread.extend(unit)
        with pytest.raises(NotWritten):
            asyncio.run(_aappend(thread, "x" * 8_000_000))
        assert lines_on_disk(root) == ["first"]
        asyncio.run(_aappend(thread, "small"))
    assert contents(root) == ["first", "small"]


async def _aappend(thread: MemoryThread, content: str) -> None:
    await thread.aappend(content)


def test_full_disk_at_the_first_append(full_soon: Path) -> None:
    """A first append without room leaves no turn; it works when there is room (C07)."""
    root = full_soon / "memory"
    with Memory(root) as memory:
        thread = memory.open("t")
        refusal(thread, 9_000_000)
        assert contents(root) == []
        thread.append("small")
    assert contents(root) == ["small"]


@needs_root
def test_no_inode_left(tmp_path: Path) -> None:
    """Without an inode for its file a first append is refused; with one it works (C32)."""
    with tiny_tmpfs(tmp_path / "disk", "nr_inodes=20") as disk:
        count = 0
        with suppress(OSError):
            while True:
                (disk / str(count)).touch()
                count += 1
        root = disk / "memory"
        with Memory(root) as memory:
            thread = memory.open("t")
            for freed in range(3):  # one for the root, one for the namespace, one for the file
                refusal(thread, 1)
                assert list(memory.threads()) == []
                (disk / str(freed)).unlink()
            thread.append("there is room")
        assert contents(root) == ["there is room"]


def unlimited(limit: int) -> None:
    """Lift this process' limit again."""
    _, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (hard, hard))


def test_limit_on_file_size(root: Path) -> None:
    """A limit on the size of files cuts a write short: it is undone, and the error says how (C07).

    This needs no root: it is the full disk of every machine.
    """
    file = root / "default" / "t.jsonl"

    def work() -> tuple[list[str], list[int | None]]:
        seen: list[str] = []
        numbers: list[int | None] = []
        with Memory(root) as memory:
            thread = memory.open("t").append("first")
            before = file.read_bytes()
            for _ in range(3):
                refused = refusal(thread, 5_000)
                assert file.read_bytes() == before
                seen.append(refused.value.hint)
                cause = refused.value.__cause__
                numbers.append(cause.errno if isinstance(cause, OSError) else None)
            thread.append("short")
            unlimited(resource.RLIMIT_FSIZE)
            thread.append("long".ljust(5_000))
        return seen, numbers

    hints, numbers = limited(resource.RLIMIT_FSIZE, 2_000, work)
    assert numbers == [errno.EFBIG] * 3
    assert all("ulimit -f" in hint for hint in hints)
    assert lines_on_disk(root) == ["first", "short", "long".ljust(5_000)]


def test_limit_on_open_files(root: Path) -> None:
    """Without a descriptor an append is refused; it works when there is one (Contract 4)."""
    with Memory(root) as memory:
        memory.open("t").append("first")

    def work() -> str:
        with Memory(root) as memory:
            thread, new = memory.open("t"), memory.open("new")
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            )
            refused = refusal(thread, 1)
            with pytest.raises(NotWritten):
                new.append("x")
            with pytest.raises(StoreError):
                memory.open("another")
            unlimited(resource.RLIMIT_NOFILE)
            thread.append("second")
            new.append("third")
        return refused.value.hint

    assert "ulimit -n" in in_child(work)
    assert contents(root) == ["first", "second"]
    assert contents(root, "new") == ["third"]


def test_more_threads_than_open_files(root: Path) -> None:
    """A process with few descriptors serves many threads: files are closed and opened as needed."""

    def work() -> int:
        async def main(memory: Memory) -> None:
            threads = [memory.open(str(i)) for i in range(100)]
            await asyncio.gather(*(thread.aappend("x") for thread in threads))
            await asyncio.gather(*(thread.aappend("y") for thread in threads))

        with Memory(root) as memory:
            asyncio.run(main(memory))
            return sum(len(contents(root, str(i))) for i in range(100))

    # What this process has open already does not count against the memory.
    spare = 32 + len(os.listdir("/dev/fd"))
    assert limited(resource.RLIMIT_NOFILE, spare, work) == 200


@needs_root
def test_read_only_mount_under_an_open_thread(root: Path) -> None:
    """A file system that becomes read-only refuses the append and names read_only (Contract 4)."""
    root.mkdir()
    with mounted(root, "--bind", str(root)), Memory(root) as memory:
        with Memory(root) as another:
            another.open("t").append("first")
        thread = memory.open("t")
        subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
        refused = refusal(thread, 1)
        assert "read_only=True" in refused.value.hint
        assert [m.content for m in thread.messages()] == ["first"]
        subprocess.run(["mount", "-o", "remount,bind,rw", str(root)], check=True)
        thread.append("second")
        assert contents(root) == ["first", "second"]


@needs_root
def test_file_system_shut_down_by_an_error(tmp_path: Path) -> None:
    """A file system that its kernel made read-only after an error refuses the append."""
    with tiny_ext4(tmp_path / "disk", mount="errors=remount-ro") as disk:
        device = os.path.basename(
            subprocess.run(
                ["findmnt", "-n", "-o", "SOURCE", str(disk)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
        )
        trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
        if not trigger.exists():
            pytest.skip("this kernel has no error to give")
        with Memory(disk / "memory") as memory:
            thread = memory.open("t").append("first")  # its file stays open for writing
            file = disk / "memory" / "default" / "t.jsonl"
            before = file.read_bytes()
            trigger.write_text("1\n")
            refused = refusal(thread, 1)
            assert "read_only=True" in refused.value.hint
            assert file.read_bytes() == before
        with Memory(disk / "memory", read_only=True) as memory:
            assert [m.content for m in memory.open("t").messages()] == ["first"]


def change_flag(flag: str, file: Path) -> None:
    """Give a file a flag of its file system, or take it away."""
    done = subprocess.run(["chattr", flag, str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no flags here: {done.stderr.strip()}")


@needs_root
def test_immutable_file(tmp_path: Path) -> None:
    """An immutable file refuses appends as NotWritten and goes on when it is not any more."""
    with tiny_ext4(tmp_path / "disk") as disk:
        with Memory(disk) as memory:
            memory.open("t").append("first")
            thread = Memory(disk).open("t")
            change_flag("+i", disk / "default" / "t.jsonl")
            refusal(thread, 1)
            with pytest.raises(StoreError, match="read_only=True"):
                Memory(disk).open("t")
            with Memory(disk, read_only=True) as reader:
                assert len(reader.open("t")) == 1
            change_flag("-i", disk / "default" / "t.jsonl")
            thread.append("second")
        assert contents(disk) == ["first", "second"]


@needs_root
def test_append_only_file(tmp_path: Path) -> None:
    """A file with the append-only flag takes appends; one that cannot be undone is unknown."""
    # The flag lets a line be written but not be cut off again: a real rollback that fails.
    with tiny_ext4(tmp_path / "disk") as disk:
        file = disk / "default" / "t.jsonl"

        def work() -> int:
            with Memory(disk) as memory:
                thread = memory.open("t").append("first")
                change_flag("+a", file)
                thread.append("second")
                resource.setrlimit(
                    resource.RLIMIT_FSIZE, (1_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
                )
                with pytest.raises(OutcomeUnknown, match=r"thread 't'.*same key"):
                    thread.append("x" * 5_000, key="k")
                with pytest.raises(OutcomeUnknown):
                    thread.append("another")
                return len(thread)

        assert in_child(work) == 2
        change_flag("-a", file)
        with Memory(disk) as memory, pytest.warns(match="never finished"):
            memory.open("t").append("x" * 5_000, key="k")
        assert lines_on_disk(disk) == ["first", "second", "x" * 5_000]
