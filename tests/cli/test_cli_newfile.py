"""Writing a file whole or not at all."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import click
import pytest

from turnlog.cli.newfile import write_file
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_what_comes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """A file that somebody makes while the new one is written stays as it is."""
    file = tmp_path / "x"

    def pieces() -> Iterator[bytes]:
        yield b"new"
        file.write_bytes(b"theirs")

    with pytest.raises(click.ClickException, match="the file exists; give --force"):
        write_file(str(file), pieces(), force=False)
    assert file.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no hard links, the file is renamed into its place."""

    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    write_file(str(tmp_path / "x"), [b"a", b"b"], force=False)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x", b"ab")]


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder may be written to and not read, it cannot be synced; the file is there."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(System, "sync_folder", refused)
    write_file(str(tmp_path / "x"), [b"a", b"b"], force=False)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x", b"ab")]


@pytest.mark.parametrize("name", ["new/", "folder/"])
def test_the_name_of_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    """A name that ends in a slash is no file's: nothing is written, whether it is there or not."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(click.ClickException, match="it is the name of a folder; give a file's"):
        write_file(f"{tmp_path}/{name}", [b"x"], force=True)
    assert [file.name for file in tmp_path.rglob("*")] == ["folder"]


@pytest.mark.parametrize("force", [False, True])
def test_what_breaks_off_leaves_nothing(
    tmp_path: Path,
    force: bool,  # noqa: FBT001 - a case
) -> None:
    """Ctrl-C in the middle leaves what was there as it was, and nothing beside it."""
    file = tmp_path / "x"
    if force:
        file.write_bytes(b"old")

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(str(file), pieces(), force=force)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"old"] * force
