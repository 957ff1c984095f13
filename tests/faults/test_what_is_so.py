"""Errors name what is so, and their hints help (C50)."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from bytesofit import put, turn
from machine import needs_root, tiny_tmpfs
from systems import Fails, Together, Watched

from turnlog import LockTimeout, Memory, NotWritten, StoreError
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

UNSUPPORTED = [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP]


@pytest.mark.parametrize("error", UNSUPPORTED, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("call", "name"),
    [("try_lock", "flock"), ("sync", "fdatasync"), ("sync_folder", "fsync of a folder")],
)
def test_unsupported_call(root: Path, call: str, name: str, error: int) -> None:
    """A file system without flock or fsync is named as what it is, with a way out (C50)."""
    before = Together()
    with Memory(JsonlStore(root, system=Watched(before))) as memory:
        thread = memory.open("t")
        before.befores.append(Fails(call, error))
        with pytest.raises(NotWritten) as failed:
            thread.append("first")
    what = f"does not support {name} ({os.strerror(error)})"
    assert what in failed.value.what
    assert "use a local file system" in failed.value.hint
    assert failed.value.errno == error


@pytest.mark.parametrize("error", UNSUPPORTED, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["try_lock", "open_file", "read"])
def test_unsupported_call_of_an_opening(root: Path, call: str, error: int) -> None:
    """A call that the file system lacks when a thread is opened is no invalid argument (C50)."""
    put(root, turn("first"))
    system = Watched(Fails(call, error))
    refused = pytest.raises(StoreError, match=r"file system does not support.*use a local")
    with Memory(JsonlStore(root, system=system)) as memory, refused:
        memory.open("t")


def test_unsupported_turn_lock(root: Path) -> None:
    """A turn lock on a file system without flock says so (C50)."""
    system = Watched(Fails("try_lock", errno.EOPNOTSUPP))
    with Memory(JsonlStore(root, system=system)) as memory:
        lock = memory.open("t").turn_lock()
        with pytest.raises(StoreError, match=r"turn lock.*does not support flock"), lock:
            pass


def test_lock_that_is_denied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that the system denies is not another process', so it is not waited for (C50)."""
    put(root, turn("first"))
    monkeypatch.setattr(fcntl, "flock", denied)
    refused = pytest.raises(StoreError, match="Permission denied")
    with Memory(root, lock_timeout=0.1) as memory, refused as failed:
        memory.open("t")
    assert not isinstance(failed.value, LockTimeout)


def denied(_: int, operation: int) -> None:
    """Deny a lock, as a rule of the system's security does."""
    if operation != fcntl.LOCK_UN:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def read_only(disk: Path) -> Generator[None]:
    """Have a mounted file system read-only for a while."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, capture_output=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True, capture_output=True)


@needs_root
def test_read_only_file_system(tmp_path: Path) -> None:
    """A file system that is read-only is named so, whether the thread is there or not (C50)."""
    with tiny_tmpfs(tmp_path / "disk") as disk:
        put(disk, turn("first"))
        with read_only(disk):
            for id_ in ("t", "new"):
                with Memory(disk) as memory, pytest.raises(StoreError) as failed:
                    memory.open(id_)
                assert "Read-only file system" in failed.value.what
                assert "read_only=True" in failed.value.hint
                assert failed.value.errno == errno.EROFS
            with Memory(disk / "new") as memory, pytest.raises(StoreError, match="Read-only"):
                memory.open("t")
            with Memory(disk, read_only=True) as memory:
                assert memory.open("t").messages()[0].content == "first"
                assert len(memory.open("new")) == 0


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (errno.EPERM, "lsattr"),
        (errno.ENAMETOOLONG, "shorter id"),
        (errno.ESTALE, "open the thread again"),
        (errno.EINTR, "try again"),
        (errno.EBADF, "another part of the program"),
        (errno.ENOMEM, "too large for this machine"),
    ],
)
def test_hints(root: Path, error: int, hint: str) -> None:
    """What a person can do about an error stands in its hint (C50)."""
    put(root, turn("first"))
    system = Watched(Fails("open_file", error))
    with Memory(JsonlStore(root, system=system)) as memory, pytest.raises(StoreError) as failed:
        memory.open("t")
    assert hint in failed.value.hint
    assert os.strerror(error) in failed.value.what
