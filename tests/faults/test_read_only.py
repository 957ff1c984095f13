"""Contract 9: reading never writes, and needs no permission to."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bytesofit import put, turn, unit
from machine import in_child, mounted, needs_root, tree
from systems import Notes, Watched
from writers import go, line, rest, running

from turnlog import Memory, Message, NotWritten, ReadOnly, StoreError
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

NOBODY = 65534
WRITES = {
    "write",
    "truncate",
    "sync",
    "sync_folder",
    "make_folder",
    "unlink",
}


@pytest.fixture
def public() -> Generator[Path]:
    """Give a folder whose path everyone may go along; pytest's own are for its user alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def damaged_memory(root: Path) -> dict[str, list[str]]:
    """Make threads with all that a writer would mend; give the turns that a reader sees."""
    whole = turn("first") + turn("second")
    put(root, whole, "whole")
    put(root, whole + turn("third")[:30], "torn")
    put(root, whole + turn("third")[:-1], "no newline")
    put(root, whole + b"\0" * 5_000, "NULs")
    put(root, whole + b"oops\n" + turn("third"), "damaged")
    put(root, whole + unit("a", "b", "c")[:-5], "unit")
    put(root, b"", "empty")
    return {
        "whole": ["first", "second"],
        "torn": ["first", "second"],
        "no newline": ["first", "second", "third"],
        "NULs": ["first", "second"],
        "damaged": ["first", "second", "third"],
        "unit": ["first", "second"],
        "empty": [],
        "missing": [],
    }


def readable(root: Path) -> None:
    """Let everyone read a memory, and nobody but its owner write to it."""
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def read_all(root: Path, ids: list[str]) -> dict[str, list[str]]:
    """Read threads as a reader does; try to write to each in every way that there is."""
    found: dict[str, list[str]] = {}
    with Memory(root, read_only=True) as memory:
        assert memory.read_only
        for id_ in ids:
            thread = memory.open(id_)
            attempts: list[Callable[[], Any]] = [
                lambda thread=thread: thread.append("x"),
                lambda thread=thread: thread.extend([Message("user", "x")]),
                lambda thread=thread: asyncio.run(thread.aappend("x")),
                lambda thread=thread: thread.fork("copy"),
                lambda thread=thread: memory.delete(thread.id),
            ]
            for attempt in attempts:
                with pytest.raises(ReadOnly, match="read_only=True") as refused:
                    attempt()
                assert isinstance(refused.value, PermissionError)
                assert isinstance(refused.value, NotWritten)
            found[id_] = [m.content for m in thread.refresh().messages()]
        assert {info.id for info in memory.threads()} == set(ids) - {"missing"}
    return found


@pytest.mark.filterwarnings("ignore::turnlog.DamageWarning")
def test_nothing_is_written(root: Path) -> None:
    """A read-only memory reads everything, refuses to write, and leaves every byte and time."""
    expected = damaged_memory(root)
    before = tree(root)
    assert read_all(root, list(expected)) == expected
    assert tree(root) == before


@pytest.mark.filterwarnings("ignore::turnlog.DamageWarning")
def test_no_call_that_writes(root: Path) -> None:
    """A read-only memory makes no call to the system that could write anything (Contract 9)."""
    expected = damaged_memory(root)
    notes = Notes()
    with Memory(JsonlStore(root, read_only=True, system=Watched(notes))) as memory:
        for id_ in expected:
            memory.open(id_).refresh()
        list(memory.threads())
    assert not WRITES & {call for call, _ in notes.calls}
    assert "read" in notes.names()


def test_missing_memory(root: Path) -> None:
    """A read-only memory over a folder that does not exist is empty, and makes nothing."""
    with Memory(root, read_only=True) as memory:
        assert list(memory.threads()) == []
        thread = memory.open("t")
        assert len(thread.messages()) == 0
        with pytest.raises(ReadOnly):
            thread.append("x")
        thread.refresh()
        assert not root.exists()
        with Memory(root) as writer:
            writer.open("t").append("first")
        assert [m.content for m in thread.refresh().messages()] == ["first"]


@needs_root
@pytest.mark.filterwarnings("ignore::turnlog.DamageWarning")
def test_read_only_mount(root: Path, tmp_path: Path) -> None:
    """On a file system that is mounted read-only a read-only memory works (Contract 9)."""
    expected = damaged_memory(root)
    with mounted(tmp_path / "mounted", "--bind", str(root)) as place:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        assert read_all(place, list(expected)) == expected
        with Memory(place) as memory:
            for id_ in expected:
                with pytest.raises(StoreError, match="read_only=True"):
                    memory.open(id_)


@needs_root
@pytest.mark.filterwarnings("ignore::turnlog.DamageWarning")
def test_user_without_write_permission(public: Path) -> None:
    """A user who may read and not write opens read-only, and is told so otherwise (Contract 9)."""
    root = public / "memory"
    expected = damaged_memory(root)
    readable(root)
    before = tree(root)

    def user() -> tuple[dict[str, list[str]], list[str]]:
        found = read_all(root, list(expected))
        told: list[str] = []
        with Memory(root) as memory:
            for id_ in expected:
                with pytest.raises(StoreError) as refused:
                    memory.open(id_)
                told.append(str(refused.value))
        return found, told

    found, told = in_child(user, user=NOBODY)
    assert found == expected
    for id_, message in zip(expected, told, strict=True):
        assert f"thread {id_!r} in namespace 'default'" in message
        assert "write permission" in message
        assert "read_only=True" in message
    assert tree(root) == before


@needs_root
def test_user_who_may_write_the_file_and_not_the_folder(public: Path) -> None:
    """Where only the folder refuses, existing threads take appends and new ones say why."""
    root = public / "memory"
    file = put(root, turn("first"))
    readable(root)
    file.chmod(0o666)

    def user() -> tuple[list[str], str]:
        with Memory(root) as memory:
            thread = memory.open("t").append("second")
            with pytest.raises(StoreError) as refused:
                memory.open("u")
            return [m.content for m in thread.messages()], str(refused.value)

    found, told = in_child(user, user=NOBODY)
    assert found == ["first", "second"]
    assert "write permission" in told
    assert os.listdir(root / "default") == ["t.jsonl"]


@needs_root
def test_user_who_may_not_even_read(public: Path) -> None:
    """Files are their owner's alone: another user gets our error, with nothing shown (R5)."""
    root = public / "memory"
    with Memory(root) as memory:
        memory.open("t").append("secret")
    assert (root.stat().st_mode & 0o777, (root / "default").stat().st_mode & 0o777) == (0o700,) * 2
    assert (root / "default" / "t.jsonl").stat().st_mode & 0o777 == 0o600

    def user() -> list[str]:
        told: list[str] = []
        for read_only in (True, False):
            with Memory(root, read_only=read_only) as memory:
                with pytest.raises(StoreError) as refused:
                    memory.open("t")
                told.append(str(refused.value))
                with pytest.raises(StoreError):
                    list(memory.threads())
        return told

    for message in in_child(user, user=NOBODY):
        assert "thread 't'" in message
        assert "Permission denied" in message


def test_sees_what_others_append(root: Path) -> None:
    """A read-only thread has what other processes appended once it is refreshed."""
    with Memory(root, read_only=True) as reader, running("append", root, "t", "w", 3, 0) as writer:
        thread = reader.open("t")
        assert line(writer) == "ready"
        go(writer)
        rest(writer)
        assert len(thread) == 0
        assert len(thread.refresh()) == 3
        asyncio.run(thread.arefresh())  # pyright: ignore[reportArgumentType]
        assert len(thread.messages()) == 3


def test_unfinished_line_is_passed_over(root: Path) -> None:
    """A line that is not whole yet is left out, and is there when it is (Contract 5, 9)."""
    last = turn("third 안녕")
    file = put(root, turn("first") + turn("second"))
    with Memory(root, read_only=True) as memory:
        thread = memory.open("t")
        for cut in range(len(last) - 1):
            file.write_bytes(turn("first") + turn("second") + last[:cut])
            assert len(thread.refresh()) == 2
            with Memory(root, read_only=True) as another:
                assert len(another.open("t")) == 2
        with file.open("ab") as writer:
            writer.write(last[len(last) - 2 :])
        assert [m.content for m in thread.refresh().messages()][2:] == ["third 안녕"]
        with file.open("ab") as writer:
            writer.write(turn("fourth"))
        assert [m.content for m in thread.refresh().messages()][3:] == ["fourth"]
        assert thread.problems == ()
