"""Contract 10: what is not promised is said, once, where the system tells."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING

import pytest
from writers import contents

from turnlog import Memory, UnsafeFileSystemWarning
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from pathlib import Path


class Mounted(System):
    """A system whose file systems are all of one type."""

    def __init__(self, kind: str) -> None:
        """Be told the type."""
        self.kind = kind

    def file_system(self, path: str) -> str:
        """Give that type."""
        assert path
        return self.kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"])
@pytest.mark.parametrize("there", [True, False])
def test_unsafe(root: Path, kind: str, there: bool) -> None:  # noqa: FBT001
    """A memory on a network's file system warns once, naming it, and works (Contract 10)."""
    if there:
        with Memory(root) as memory:
            memory.open("t").append("first")
    with Memory(JsonlStore(root, system=Mounted(kind))) as memory:
        with pytest.warns(UnsafeFileSystemWarning) as told:
            memory.open("t")
        assert len(told) == 1
        message = str(told[0].message)
        assert repr(kind) in message
        assert str(root) in message
        assert "use a local disk" in message
        memory.open("t").append("second")
        memory.open("u").append("x")
    assert contents(root)[-1] == "second"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "apfs", "overlay", ""])
def test_safe(root: Path, kind: str) -> None:
    """A memory on a local disk, or where the system does not tell, warns of nothing."""
    with warnings.catch_warnings(), Memory(JsonlStore(root, system=Mounted(kind))) as memory:
        warnings.simplefilter("error")
        memory.open("t").append("first")
    assert contents(root) == ["first"]


def test_unsafe_in_a_task(root: Path) -> None:
    """The warning reaches whoever opens the thread in a task too."""
    memory = Memory(JsonlStore(root, system=Mounted("nfs")))

    async def main() -> None:
        await memory.aopen("t")

    with pytest.warns(UnsafeFileSystemWarning):
        asyncio.run(main())


def test_type_of_this_machine_s(root: Path) -> None:
    """The real system tells the type of the file system that a folder lies on, or nothing."""
    root.mkdir()
    kind = System().file_system(str(root))
    assert kind == "" or kind.isprintable()
    assert System().file_system(str(root / "missing")) == ""
