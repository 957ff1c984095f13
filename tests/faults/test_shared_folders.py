"""Folders that several users share: what lies beside a thread's file, and whose (C42, C54)."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bytesofit import aside, put, seen, turn
from machine import in_child, needs_root

from turnlog import DamageWarning, Memory, NotWritten, StoreError, TornTailWarning
from turnlog.names import thread_key
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

ANNE, BEN, TEAM, OWN_GROUP = 12_001, 12_002, 12_100, 12_200
TORN = turn("first") + turn("second")[:-20]


@pytest.fixture
def shared() -> Generator[Path]:
    """Return a memory's folder that a group shares, as an administrator sets it up."""
    above = Path(tempfile.mkdtemp())
    above.chmod(0o755)
    root = above / "memory"
    for folder in (root, root / "default"):
        folder.mkdir()
        os.chown(folder, ANNE, TEAM)
        folder.chmod(0o2770)
    yield root
    shutil.rmtree(above)


def give_to_the_group(file: Path) -> None:
    """Change a file to the group, as a member of it does."""
    os.chown(file, ANNE, TEAM)
    file.chmod(0o660)


def as_user(user: int, work: Callable[[], Any]) -> Any:
    """Run something as a user with a group of its own who is in the team."""

    def inside() -> Any:
        os.setgroups([TEAM])
        os.setgid(OWN_GROUP)
        os.setuid(user)
        return work()

    return in_child(inside)


def owner(path: Path) -> tuple[int, int, int]:
    """Return whose a file is, and what others may do with it."""
    status = path.stat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def lock_and_append(root: Path, text: str) -> list[str]:
    """Take a thread's turn lock, append, and give what it holds then."""
    with warnings.catch_warnings(), Memory(root) as memory:
        warnings.simplefilter("ignore", TornTailWarning)
        thread = memory.open("t")
        with thread.turn_lock(timeout=5):
            thread.append(text)
        return [message.content for message in thread.messages()]


@needs_root
@pytest.mark.parametrize("first", [ANNE, BEN])
def test_two_users_take_one_turn_lock(shared: Path, first: int) -> None:
    """Of two users of a group either one may take the turn lock first (C54)."""
    file = put(shared, turn("0"))
    give_to_the_group(file)
    second = BEN if first == ANNE else ANNE
    assert as_user(first, lambda: lock_and_append(shared, "1")) == ["0", "1"]
    assert as_user(second, lambda: lock_and_append(shared, "2")) == ["0", "1", "2"]
    assert owner(file.with_name("t.jsonl.lock")) == (first, TEAM, 0o660)


@needs_root
def test_a_lock_that_was_there_before_its_thread(shared: Path) -> None:
    """A turn lock that is older than its thread can be taken by all who may make the thread."""

    def lock() -> None:
        with Memory(shared) as memory, memory.open("t").turn_lock(timeout=5):
            pass

    as_user(ANNE, lock)
    as_user(BEN, lock)
    assert owner(shared / "default" / "t.jsonl.lock") == (ANNE, TEAM, 0o660)


@needs_root
def test_what_one_user_set_aside_another_adds_to(shared: Path) -> None:
    """What is set aside has the thread's mode and group: the next user can add to it (C54)."""
    file = put(shared, TORN)
    give_to_the_group(file)
    assert as_user(BEN, lambda: lock_and_append(shared, "1")) == ["first", "1"]
    torn = file.with_name("t.jsonl.torn")
    assert owner(torn) == (BEN, TEAM, 0o660)
    with file.open("ab") as other:
        other.write(turn("third")[:-30])
    assert as_user(ANNE, lambda: lock_and_append(shared, "2")) == ["first", "1", "2"]
    assert torn.read_bytes().endswith(turn("third")[:-30])


@needs_root
def test_a_repair_by_the_second_user(shared: Path) -> None:
    """A file that another user repairs stays the group's, with the rights that it gave (C54)."""
    file = put(shared, turn("first") + b"oops\n" + turn("second"))
    give_to_the_group(file)
    as_user(BEN, lambda: JsonlStore(shared).repair(thread_key("t")))
    assert owner(file) == (BEN, TEAM, 0o660)
    assert as_user(ANNE, lambda: lock_and_append(shared, "3")) == ["first", "second", "3"]


@needs_root
def test_no_right_is_given_to_another_group(shared: Path) -> None:
    """Where a new file cannot have the group of the old one, its group gets no right to it."""
    file = put(shared, TORN)
    give_to_the_group(file)
    (shared / "default").chmod(0o777)  # and not setgid: a new file has its maker's own group
    file.chmod(0o666)

    def outside() -> None:
        os.setgroups([])
        os.setgid(OWN_GROUP)
        os.setuid(BEN)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornTailWarning)
            Memory(shared).open("t")

    shared.chmod(0o777)
    in_child(outside)
    assert owner(file.with_name("t.jsonl.torn")) == (BEN, OWN_GROUP, 0o606)


@pytest.mark.parametrize("content", [b"", b"another's\n"])
def test_torn_that_is_a_hard_link(root: Path, tmp_path: Path, content: bytes) -> None:
    """A `.torn` with a second name keeps its bytes, owner and mode, and the error says so (C42)."""
    victim = tmp_path / "victim"
    victim.write_bytes(content)
    victim.chmod(0o640)
    file = put(root, TORN)
    file.chmod(0o666)
    torn = file.with_name("t.jsonl.torn")
    os.link(victim, torn)
    before = owner(victim)
    with pytest.warns(TornTailWarning, match="could not be moved aside yet"):
        thread = Memory(root).open("t")
    with pytest.raises(NotWritten, match=r"\.torn\): move that away"):
        thread.append("next")
    with pytest.raises(StoreError, match=r"\.torn\): move that away"):
        JsonlStore(root).repair(thread_key("t"))
    assert (victim.read_bytes(), owner(victim), file.read_bytes()) == (content, before, TORN)
    torn.unlink()
    with pytest.warns(TornTailWarning):
        thread.append("next")
    assert (aside(file), owner(torn)[2]) == (TORN[len(turn("first")) :], 0o666)


def test_torn_that_is_something_else(root: Path, tmp_path: Path) -> None:
    """A symbolic link, a folder or a pipe in the place of `.torn` is not followed (C42)."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    file = put(root, TORN)
    torn = file.with_name("t.jsonl.torn")
    for make in (lambda: torn.symlink_to(victim), torn.mkdir, lambda: os.mkfifo(torn)):
        make()
        with pytest.warns(TornTailWarning, match="could not be moved aside yet"):
            thread = Memory(root).open("t")
        with pytest.raises(NotWritten, match=r"thread 't'.*\.torn\): move that away"):
            thread.append("next")
        assert (victim.read_bytes(), file.read_bytes()) == (b"", TORN)
        torn.rmdir() if torn.is_dir() else torn.unlink()


@pytest.mark.parametrize("kind", ["a hard link", "a symbolic link", "a file"])
def test_new_that_is_there_already(root: Path, tmp_path: Path, kind: str) -> None:
    """What stands where a repair writes its new file is never opened; only its name goes (C42)."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"another's")
    file = put(root, turn("first") + b"oops\n" + turn("second"))
    new = file.with_name(".t.jsonl.new")
    if kind == "a hard link":
        os.link(victim, new)
    elif kind == "a symbolic link":
        new.symlink_to(victim)
    else:
        new.write_bytes(b"of a repair that was killed")
    JsonlStore(root).repair(thread_key("t"))
    assert victim.read_bytes() == b"another's"
    assert file.read_bytes() == turn("first") + turn("second")
    assert not new.exists()


def test_special_bits_are_not_copied(root: Path) -> None:
    """What is made beside a thread's file has neither set-user-id nor set-group-id bits (C42)."""
    file = put(root, turn("first") + b"oops\n" + turn("second")[:-20])
    file.chmod(0o6775)
    seen(root)
    assert owner(file.with_name("t.jsonl.torn"))[2] == 0o664
    with Memory(root) as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        with memory.open("t").turn_lock():
            assert owner(file.with_name("t.jsonl.lock"))[2] == 0o664
    JsonlStore(root).repair(thread_key("t"))
    assert owner(file)[2] == 0o664
