"""Contract 1 and 5: a power cut at any moment, in a model of the disk and on a real file system."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import struct
import subprocess
import warnings
from contextlib import ExitStack, suppress
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from bytesofit import put, turn
from machine import make_ext4, mounted, needs_root
from powercut import SECTOR, Disk, Quick, Recorder, explore
from writers import Process, contents, each_in_order, go, line, running

from turnlog import Memory, Message, NotWritten, TornTailWarning
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    # What may be there after so many acknowledgements: each a list of turns.
    Allowed = list[list[list[str]]]
    Work = Callable[[Memory, Recorder], Allowed]

LONG, LONGER = "x" * 90, "y" * 200


def one_by_one(units: list[list[str]]) -> Allowed:
    """Give what may be there when each unit is appended after the one before was acknowledged."""
    whole = [[*chain.from_iterable(units[:number])] for number in range(len(units) + 1)]
    return [whole[number : number + 2] for number in range(len(whole))]


def appends(memory: Memory, recorder: Recorder) -> Allowed:
    """Append turns of several sizes to a new thread."""
    return extend_by([["first"], [LONG], ["third"], [LONGER]], memory, recorder)


def extends(memory: Memory, recorder: Recorder) -> Allowed:
    """Extend a thread by units of several turns."""
    return extend_by([["first"], ["a", LONG, "c"], ["d", "e"], ["last"]], memory, recorder)


def aligned(memory: Memory, recorder: Recorder) -> Allowed:
    """Extend a thread by turns whose lines end just where sectors do, or next to it."""
    size = len(turn("")) + len(',"more":true')
    units = [
        ["x" * (2 * SECTOR - size + shift), "y" * (3 * SECTOR - size + shift), "z"]
        for shift in range(-1, 2)
    ]
    return extend_by(units, memory, recorder)


def extend_by(units: list[list[str]], memory: Memory, recorder: Recorder) -> Allowed:
    """Extend a thread by one unit after the other."""
    thread = memory.open("t")
    for count, unit in enumerate(units, 1):
        thread.extend(Message("user", content) for content in unit)
        recorder.done(count)
    return one_by_one(units)


def fails_once(memory: Memory, recorder: Recorder) -> Allowed:
    """Have a sync fail, and go on."""
    thread = memory.open("t").append("first")
    recorder.done(1)
    recorder.fail_next = True
    with suppress(NotWritten):
        thread.append(LONG)
    recorder.done(2)  # from here on it is not there, and never will be
    thread.append("second")
    recorder.done(3)
    return [
        [[], ["first"]],
        [["first"], ["first", LONG]],
        [["first"], ["first", "second"]],
        [["first", "second"]],
    ]


def deletes(memory: Memory, recorder: Recorder) -> Allowed:
    """Delete a thread, and begin it anew."""
    thread = memory.open("t").append(LONG)
    recorder.done(1)
    memory.delete(thread)
    recorder.done(2)
    memory.open("t").append("first")
    recorder.done(3)
    return [[[], [LONG]], [[LONG], []], [[], ["first"]], [["first"]]]


def mends(memory: Memory, recorder: Recorder) -> Allowed:
    """Mend a torn tail (see `test_mend`) and append."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TornTailWarning)
        memory.open("t").append("third")
    recorder.done(1)
    return [[["first", "second"], ["first", "second", "third"]], [["first", "second", "third"]]]


def mends_again(memory: Memory, recorder: Recorder) -> Allowed:
    """Mend a torn tail whose copy is synced only at the second try."""
    recorder.fail_next = True
    return mends(memory, recorder)


WORK = [appends, extends, aligned, fails_once, deletes]


def explored(
    tmp_path: Path,
    work: Work,
    *,
    skip: str = "",
    before: bytes | None = None,
) -> tuple[int, list[str]]:
    """Run some work on a new memory, and check every state that a power cut may leave of it."""
    old = tmp_path / "old"
    root = old / "above" / "memory"
    old.mkdir()
    base = Disk(set(), {}, {})
    recorder = Recorder(skip=skip)
    torn = b""
    if before is not None:
        file = put(root, before)
        base.folders |= {str(root.parent), str(root), str(root / "default")}
        base.names[str(file)] = recorder.files[str(file)] = -1
        base.files[-1] = before
        torn = before.split(b"\n")[-1]
    with Memory(JsonlStore(root, system=recorder)) as memory:
        allowed = work(memory, recorder)

    def check(new: Path, count: int) -> None:
        check_state(new / "above" / "memory", allowed[count], torn)

    return explore(recorder, old, base, tmp_path / "new", check)


def check_state(root: Path, allowed: list[list[str]], torn: bytes) -> None:
    """Check that what a power cut left opens whole, and goes on."""
    file = root / "default" / "t.jsonl"
    copy = root / "default" / "t.jsonl.torn"
    if torn:
        left = file.read_bytes() + b"|" + (copy.read_bytes() if copy.exists() else b"")
        assert torn in left, "bytes are lost"
    found = opened(root)
    assert found in allowed, "lost" if len(found) < len(allowed[0]) else "not whole"
    assert opened(root, then="next") == [*found, "next"]
    assert opened(root) == [*found, "next"]


def opened(root: Path, *, then: str | None = None) -> list[str]:
    """Open the thread as the next process does, and append to it."""
    with warnings.catch_warnings(), Memory(JsonlStore(root, system=Quick())) as memory:
        warnings.simplefilter("ignore")
        thread = memory.open("t")
        if then is not None:
            thread.append(then)
        assert thread.problems == (), f"damage is left: {thread.problems}"
        return [message.content for message in thread.messages()]


@pytest.mark.parametrize("work", WORK)
def test_every_state(tmp_path: Path, work: Work) -> None:
    """A power cut at any moment leaves whole units, and all that were acknowledged (Contract 1)."""
    count, wrong = explored(tmp_path, work)
    assert wrong == []
    assert count > 20


def test_mend_whose_copy_was_not_synced(tmp_path: Path) -> None:
    """A copy that only the cache has is none: the next repair makes another (Contract 4, C25)."""
    torn = turn(LONG)[:-20]
    before = turn("first") + turn("second") + torn
    count, wrong = explored(tmp_path, mends_again, before=before)
    assert wrong == []
    assert count > 20


def test_mend(tmp_path: Path) -> None:
    """A power cut in the middle of a repair loses no byte of what was torn (Contract 5)."""
    torn = turn(LONG)[:-20]
    count, wrong = explored(tmp_path, mends, before=turn("first") + turn("second") + torn)
    assert wrong == []
    assert count > 20


@pytest.mark.parametrize(
    ("work", "skip", "found"),
    [
        (appends, "sync", "lost"),
        (extends, "sync", "lost"),
        (appends, "folder", "lost"),
        (appends, "default", "lost"),
        (appends, "memory", "lost"),
        (appends, "above", "lost"),
        (appends, "old", "lost"),
        (deletes, "default", "not whole"),
    ],
)
def test_model_finds(
    tmp_path: Path,
    work: Work,
    skip: str,
    found: str,
) -> None:
    """A program that leaves out the sync of a file or of any folder is found by the model."""
    _, wrong = explored(tmp_path, work, skip=skip)
    assert any(found in what for what in wrong)


def test_model_finds_a_copy_that_is_not_synced(tmp_path: Path) -> None:
    """A repair that cuts before its copy is synced is found: the model can fail."""
    torn = turn(LONG)[:-20]
    before = turn("first") + turn("second") + torn
    _, wrong = explored(tmp_path, mends, skip="torn", before=before)
    assert "bytes are lost" in str(wrong)


def test_batch(tmp_path: Path) -> None:
    """Of a batch that a power cut broke, each turn is there whole or not, and none moved."""
    contents_ = [f"{i} ".ljust(40 * (i + 1), "x") for i in range(4)]
    recorder = Recorder()
    old = tmp_path / "old"
    root = old / "memory"
    old.mkdir()

    async def main(memory: Memory) -> None:
        thread = await memory.aopen("t")
        await asyncio.gather(*(thread.aappend(content) for content in contents_))
        recorder.done(4)

    with Memory(JsonlStore(root, system=recorder)) as memory:
        asyncio.run(main(memory))

    def check(new: Path, count: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Memory(JsonlStore(new / "memory", system=Quick())) as memory:
                found = [m.content for m in memory.open("t").append("next").messages()]
        assert found == [*(content for content in contents_ if content in found), "next"]
        assert len(found) > count

    count, wrong = explore(recorder, old, Disk(set(), {}, {}), tmp_path / "new", check)
    assert wrong == []
    assert count > 20


SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
WITHOUT_THE_LOG = 2


def acknowledged(process: Process, so_far: int) -> int:
    """Give the last acknowledgement that a process has written by now."""
    assert process.stdout is not None
    said = ""
    while select.select([process.stdout], [], [], 0)[0]:
        part = os.read(process.stdout.fileno(), 1 << 16).decode()
        said += part
        if not part:
            break
    whole = said.split("\n")[:-1]
    return int(whole[-1]) if whole else so_far


@needs_root
@pytest.mark.parametrize("wait_for", [1, 6])
def test_real_file_system(tmp_path: Path, wait_for: int) -> None:
    """A real file system that is cut off under its writers has every acknowledged turn (R13)."""
    image, place = tmp_path / "image", tmp_path / "disk"
    make_ext4(image, size="64M")
    last: dict[str, int] = {}
    with mounted(place, "-t", "ext4", "-o", "loop", str(image)), ExitStack() as stack:
        root = place / "memory"
        writers = {
            str(number): stack.enter_context(running(what, root, "t", str(number), 0, size))
            for number, (what, size) in enumerate((("append", 50), ("extend", 5_000)))
        }
        for writer in writers.values():
            assert line(writer) == "ready"
            go(writer)
        for name, writer in writers.items():
            for _ in range(wait_for):
                last[name] = int(line(writer))
        # A sync that is under way may still succeed after the cut: what it acknowledges then does
        # not count. So what was written by now is read before it.
        last = {name: acknowledged(writer, last[name]) for name, writer in writers.items()}
        folder = os.open(place, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", WITHOUT_THE_LOG))
        except OSError as error:
            pytest.skip(f"this file system cannot be cut off: {error}")
        finally:
            os.close(folder)
        for writer in writers.values():
            writer.kill()
    with mounted(place, "-t", "ext4", "-o", "loop", str(image)):
        found = each_in_order(contents(root))
        for name, number in last.items():
            assert found[name] > number
        assert found["1"] % 3 == 0
        subprocess.run(["sync", "-f", str(place)], check=True)
