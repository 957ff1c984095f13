"""Contract 8: a file that is replaced, cut or removed under an open thread (C18, C27)."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from bytesofit import put, turn
from machine import tree
from systems import Notes, Watched
from writers import contents, lines_on_disk

from turnlog import Memory, MemoryThread, Message, StoreError, ThreadReplaced
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def by_rename(file: Path) -> None:
    """Replace the file by another one, as editors and synchronisers do."""
    other = file.with_name("other")
    other.write_bytes(turn("of another file"))
    other.replace(file)


def by_unlink(file: Path) -> None:
    """Remove the file."""
    file.unlink()


def by_cut(file: Path) -> None:
    """Cut the file short."""
    os.truncate(file, 10)


def to_nothing(file: Path) -> None:
    """Cut the file to nothing."""
    os.truncate(file, 0)


def with_its_folder(file: Path) -> None:
    """Remove the namespace's folder."""
    shutil.rmtree(file.parent)


def with_the_root(file: Path) -> None:
    """Remove the whole memory."""
    shutil.rmtree(file.parents[1])


def with_the_folder_renamed(file: Path) -> None:
    """Move the namespace's folder away, and put another there."""
    file.parent.rename(file.parents[1] / "old")
    put(file.parents[1], turn("of another folder"))


def by_hard_link(file: Path) -> None:
    """Move the name away: the file has as many links as before, but not this one."""
    os.link(file, file.with_name("other"))
    file.unlink()


def anew_in_place(file: Path) -> None:
    """Write the file anew, shorter, as an editor does that keeps the file."""
    file.write_bytes(turn("x"))


def anew_and_longer(file: Path) -> None:
    """Write the file anew, longer: where the thread had read to is now inside of a line."""
    file.write_bytes(turn("x" * 300) + turn("y" * 300))


WAYS: list[Callable[[Path], None]] = [
    *(by_rename, by_unlink, by_cut, to_nothing, with_its_folder, with_the_root),
    *(with_the_folder_renamed, by_hard_link, anew_in_place),
    anew_and_longer,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("appended", [True, False], ids=["appended", "only opened"])
def test_replaced(root: Path, way: Callable[[Path], None], appended: bool) -> None:  # noqa: FBT001
    """A thread whose file was taken away says so, writes nowhere, and keeps what it has (C27)."""
    with Memory(root) as first:
        first.open("t").append("first").append("second")
    memory = Memory(root)
    thread = memory.open("t")
    if appended:  # then the memory keeps the file open
        thread.append("third")
    held = thread.messages()
    file = root / "default" / "t.jsonl"
    way(file)
    before = tree(root.parent)
    for attempt in (
        lambda: thread.append("lost?", key="k"),
        lambda: thread.extend([Message("user", "lost?")]),
        lambda: asyncio.run(thread.aappend("lost?")),
        thread.refresh,
        lambda: thread.append("lost?", expect=3),
    ):
        with pytest.raises(ThreadReplaced, match=r"thread 't' in namespace 'default'") as replaced:
            attempt()
        assert "open the thread again" in str(replaced.value)
        assert "nothing was written" in str(replaced.value)
    assert thread.messages() == held
    assert not thread.usable
    assert tree(root.parent) == before
    held_now = contents(root)
    again = memory.open("t")
    assert again is not thread
    again.append("it goes on", key="k")
    assert lines_on_disk(root) == [*held_now, "it goes on"]
    memory.close()


def test_unlinked_under_an_open_thread(root: Path, memory: Memory) -> None:
    """When the file disappears the error names the thread, and the next open starts clean (C18)."""
    thread = memory.open("t").append("first")
    (root / "default" / "t.jsonl").unlink()
    with pytest.raises(ThreadReplaced, match="its file was removed"):
        thread.append("second")
    assert [m.content for m in thread.messages()] == ["first"]
    assert not (root / "default" / "t.jsonl").exists()
    again = memory.open("t")
    assert len(again) == 0
    again.extend(thread.messages()).append("second")  # what was in memory can be saved
    assert lines_on_disk(root) == ["first", "second"]


def test_other_threads_go_on(root: Path, memory: Memory) -> None:
    """One replaced thread costs the others of the same batch nothing (Contract 8)."""
    threads = [memory.open(str(i)).append("first") for i in range(3)]
    (root / "default" / "1.jsonl").unlink()

    async def main() -> list[object]:
        appends = (thread.aappend("second") for thread in threads)
        return list(await asyncio.gather(*appends, return_exceptions=True))

    outcomes = asyncio.run(main())
    assert [type(outcome) for outcome in outcomes] == [MemoryThread, ThreadReplaced, MemoryThread]
    assert contents(root, "0") == contents(root, "2") == ["first", "second"]


@pytest.mark.parametrize("kept_open", [True, False])
def test_deleted_and_made_anew(root: Path, kept_open: bool) -> None:  # noqa: FBT001
    """A thread that another process deleted and made anew is another thread: noticed (C27)."""
    # A file system gives the new file the old one's inode number, if nobody holds that open.
    with Memory(root) as here, Memory(root) as there:
        there.open("t").append("one").append("two")
        thread = here.open("t")
        if kept_open:
            thread.append("three")
        there.delete("t")
        new = there.open("t")
        for i in range(9):
            new.append(f"a new life, turn {i}")
        data = (root / "default" / "t.jsonl").read_bytes()
        with pytest.raises(ThreadReplaced):
            thread.append("into what?")
        assert (root / "default" / "t.jsonl").read_bytes() == data
        with pytest.raises(ThreadReplaced):
            thread.refresh()
        assert "one" in [m.content for m in thread.messages()]
        assert "a new life, turn 0" not in [m.content for m in thread.messages()]


def test_appeared_under_an_empty_thread(root: Path, memory: Memory) -> None:
    """A thread that was opened before its file existed takes what another process made of it."""
    thread = memory.open("t")
    with Memory(root) as another:
        another.open("t").append("first")
    thread.append("second")
    assert [m.content for m in thread.messages()] == ["first", "second"] == lines_on_disk(root)


def test_opening_makes_and_loses_nothing(root: Path, memory: Memory) -> None:
    """Opening a thread that exists never wipes it, and one that does not makes no file (C15)."""
    memory.open("t")
    assert not root.exists()
    memory.open("t").append("first")
    before = tree(root)
    for _ in range(3):
        with Memory(root) as another:
            assert len(another.open("t")) == 1
            another.open("u")
    assert tree(root) == before
    with Memory(root) as another:
        another.open("t").append("second")
    assert lines_on_disk(root) == ["first", "second"]


@pytest.mark.parametrize("gone", ["namespace", "root", "root and its parent"])
def test_folders_made_anew_are_synced_anew(root: Path, gone: str) -> None:
    """After its folders were removed, a first append syncs all that it made again (Contract 1)."""
    place = root / "deep" / "memory"
    notes = Notes()
    with Memory(JsonlStore(place, system=Watched(notes))) as memory:
        memory.open("t").append("first")
        folders = {"namespace": place / "default", "root": place}
        shutil.rmtree(folders.get(gone, place.parent))
        notes.calls.clear()
        memory.open("u").append("second")
    synced = {args[0] for call, args in notes.calls if call == "sync_folder"}
    made_in = {
        "namespace": [place / "default", place],
        "root": [place / "default", place, place.parent],
        "root and its parent": [place / "default", place, place.parent, root],
    }
    assert {str(folder) for folder in made_in[gone]} <= synced


@pytest.mark.parametrize("id", ["../t", "a/b", "a\\b", "..", ".", "", ".hidden", "a\0b", "a\nb"])
def test_names_that_lead_elsewhere(root: Path, memory: Memory, id: str) -> None:
    """A name that would lead out of its folder is refused and nothing is created (C16, R10)."""
    for open_ in (
        lambda: memory.open(id),
        lambda: memory.open("t", namespace=id),
        lambda: asyncio.run(memory.aopen(id)),
        lambda: memory.delete(id),
        lambda: memory.threads(id),
    ):
        with pytest.raises(ValueError, match="give a plain name"):
            open_()
    assert list(root.parent.iterdir()) == []


def test_root_that_is_a_file(tmp_path: Path) -> None:
    """A root that is a file is refused with our error, and stays as it was."""
    (tmp_path / "memory").write_bytes(b"precious")
    with Memory(tmp_path / "memory") as memory, pytest.raises(StoreError, match="thread 't'"):
        memory.open("t")
    assert (tmp_path / "memory").read_bytes() == b"precious"
