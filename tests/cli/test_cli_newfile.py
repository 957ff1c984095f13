"""Writing a file whole or not at all."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import click
import pytest

from turnlog.cli.newfile import write_file

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
