"""Contract 8: what stands under a thread's name and is not its file is refused at once."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from bytesofit import put, turn
from machine import needs_root, tiny_ext4, tree
from writers import contents, lines_on_disk

from turnlog import Memory, NotAThread, StoreError
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def link(place: Path, elsewhere: Path) -> None:
    """Put a symbolic link to another file there."""
    elsewhere.write_bytes(turn("secret"))
    place.symlink_to(elsewhere)


def dangling_link(place: Path, elsewhere: Path) -> None:
    """Put a symbolic link there that leads to nothing, yet."""
    place.symlink_to(elsewhere)


def pipe(place: Path, _: Path) -> None:
    """Put a pipe there that nobody reads."""
    os.mkfifo(place)


def folder(place: Path, _: Path) -> None:
    """Put a folder there."""
    place.mkdir()


def local_socket(place: Path, elsewhere: Path) -> None:
    """Put a socket there; its path may be too long for one, so it is made elsewhere."""
    here = os.open(place.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listening:
        os.fchdir(here)
        listening.bind(place.name)
    os.chdir(elsewhere.parent)
    os.close(here)


def device(place: Path, _: Path) -> None:
    """Put a device there that takes and gives bytes without end."""
    try:
        os.mknod(place, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("needs root, to make a device")


@pytest.mark.parametrize("kind", [link, dangling_link, pipe, folder, local_socket, device])
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.timeout(60)
def test_not_a_file(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[[Path, Path], None],
    read_only: bool,  # noqa: FBT001
) -> None:
    """What is not a regular file is refused, without waiting, following or changing it."""
    monkeypatch.chdir(tmp_path)
    place = root / "default" / "t.jsonl"
    place.parent.mkdir(parents=True)
    kind(place, tmp_path / "elsewhere")
    before = tree(tmp_path)
    with Memory(root, read_only=read_only) as memory:
        for _ in range(2):
            with pytest.raises(NotAThread, match="thread 't' in namespace 'default'"):
                memory.open("t")
        assert list(memory.threads()) == []
        if not read_only:
            memory.open("u").append("the others go on")
    if read_only:
        assert tree(tmp_path) == before
    if kind is folder:
        place.rmdir()
    else:
        place.unlink()
    if not read_only:
        assert contents(root, "u") == ["the others go on"]


@pytest.mark.parametrize("kind", [link, dangling_link, pipe, folder])
@pytest.mark.timeout(60)
def test_under_an_open_thread(
    root: Path, tmp_path: Path, memory: Memory, kind: Callable[[Path, Path], None]
) -> None:
    """What takes the place of an open thread's file is not written to, nor waited for (C27)."""
    place = root / "default" / "t.jsonl"
    thread = memory.open("t").append("first")
    place.unlink()
    kind(place, tmp_path / "elsewhere")
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreError, match="thread 't' in namespace 'default'"):
            thread.append("second")
    assert tree(tmp_path) == before
    assert [m.content for m in thread.messages()] == ["first"]


def test_namespace_is_a_link(root: Path, tmp_path: Path) -> None:
    """A symbolic link under a namespace's name is not followed, at open or at append (R10)."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root.mkdir()
    (root / "default").symlink_to(elsewhere)
    with Memory(root) as memory:
        with pytest.raises(NotAThread, match="symbolic link"):
            memory.open("t")
        (root / "default").unlink()
        thread = memory.open("t")
        (root / "default").symlink_to(elsewhere)
        with pytest.raises(NotAThread, match="symbolic link"):
            thread.append("first")
        assert list(memory.threads()) == []
    assert list(elsewhere.iterdir()) == []


def test_namespace_is_a_file(root: Path) -> None:
    """A file under a namespace's name is refused and stays as it was."""
    root.mkdir()
    (root / "default").write_bytes(b"precious")
    with Memory(root) as memory:
        with pytest.raises(NotAThread, match="not a folder"):
            memory.open("t")
        assert list(memory.threads()) == []
        assert list(memory.threads("default")) == []
    assert (root / "default").read_bytes() == b"precious"


def test_root_is_a_link(root: Path, tmp_path: Path) -> None:
    """The root itself may be a symbolic link: where the memory lies is the user's choice."""
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")
    with Memory(root) as memory:
        memory.open("t").append("first")
    assert lines_on_disk(tmp_path / "elsewhere") == ["first"]


class FoldsCase(System):
    """A file system that takes `User` and `user` for one name, and keeps the first spelling."""

    def found(self, folder: str, name: str) -> str:
        """Give the name as it is spelled in the folder."""
        try:
            names = os.listdir(folder)
        except OSError:
            return name
        return next((there for there in names if there.casefold() == name.casefold()), name)

    def path(self, path: str) -> str:
        """Give the path of a namespace's folder or of a file in one, as it is spelled."""
        above, name = os.path.split(path)
        if os.path.basename(above) != "memory":
            above = os.path.join(os.path.dirname(above), self.found(*os.path.split(above)))
        return os.path.join(above, self.found(above, name))

    def open_file(
        self,
        folder: str,
        name: str,
        *,
        write: bool = False,
        create: bool = False,
        exclusive: bool = False,
    ) -> int:
        """Open a file whatever the case of its name is."""
        folder = self.path(folder)
        return super().open_file(
            folder, self.found(folder, name), write=write, create=create, exclusive=exclusive
        )

    def status_of(self, path: str) -> os.stat_result:
        """Look at a file whatever the case of its name is."""
        return super().status_of(self.path(path))

    def make_folder(self, path: str) -> bool:
        """Make a folder unless one of that name in any case is there."""
        return super().make_folder(self.path(path))

    def names(self, folder: str) -> list[str]:
        """Give the names as they are spelled."""
        return super().names(self.path(folder))

    def scan(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """Give the entries as they are spelled."""
        return super().scan(self.path(folder))


def two_spellings(root: Path, system: System) -> None:
    """Check that a second spelling of a thread's name does not share its file."""
    with Memory(JsonlStore(root, system=system)) as memory:
        memory.open("User").append("mine")
        for name, namespace in (("user", "default"), ("USER", "default"), ("User", "Default")):
            with pytest.raises(NotAThread, match="folds case"):
                memory.open(name, namespace=namespace)
        late = memory.open("late")
        memory.open("LATE").append("first")
        with pytest.raises(NotAThread, match="folds case"):
            late.append("second")
        assert [m.content for m in memory.open("User").messages()] == ["mine"]
        memory.open("other").append("x")
    assert contents(root, "LATE") == ["first"]


def test_file_system_that_folds_case(root: Path) -> None:
    """Where case is folded, `User` and `user` do not share a file: the second is refused (R10)."""
    two_spellings(root, FoldsCase())


@needs_root
def test_real_file_system_that_folds_case(tmp_path: Path) -> None:
    """The same on an ext4 that folds case, where the kernel has one (R10)."""
    with tiny_ext4(tmp_path / "disk", "-O", "casefold") as disk:
        root = disk / "memory"
        root.mkdir()
        done = subprocess.run(["chattr", "+F", root], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no folding here: {done.stderr.strip()}")
        two_spellings(root, System())


def test_case_is_kept_apart_elsewhere(root: Path, memory: Memory) -> None:
    """Where case is kept apart, `User` and `user` are two threads."""
    put(root, turn("x"), "probe")
    if (root / "default" / "PROBE.jsonl").exists():
        pytest.skip("this file system folds case")
    memory.open("User").append("one")
    memory.open("user").append("two")
    assert contents(root, "User") == ["one"]
    assert contents(root, "user") == ["two"]
