"""Writes a file whole or not at all, and over another one only where that is wanted.

The bytes go to a file beside it, which gets the name when all of them are on the disk.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from turnlog.display import one_line
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_LINKS: Final = frozenset((errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK))


def write_file(path: str, pieces: Iterable[bytes], *, force: bool) -> None:
    """Write a file, 0600 as a thread's own.

    Args:
        path: its path; of a symbolic link, the file that it leads to is meant.
        pieces: its bytes.
        force: put it in the place of one that is there.

    Raises:
        ClickException: something is there, and it is not to be replaced, or is no regular file.
        OSError: it could not be written; what was there is as it was.
    """
    if path.endswith("/"):
        raise click.ClickException(f"{one_line(path)}: it is the name of a folder; give a file's")
    target = os.path.realpath(path.encode("utf-8", "surrogateescape"))
    folder = os.path.dirname(target)
    _check_target(target, path, force=force)
    system = System()
    fd, beside = tempfile.mkstemp(prefix=b".turnlog-", dir=folder)
    try:
        with open(fd, "wb") as file:
            file.writelines(pieces)
            file.flush()
            system.sync(file.fileno())
        _name(beside, target, path, force=force)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise
    with suppress(PermissionError):  # a folder that may be written to but not read
        system.sync_folder(folder.decode("utf-8", "surrogateescape"))


def _check_target(target: bytes, path: str, *, force: bool) -> None:
    try:
        status = os.lstat(target)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise click.ClickException(f"{one_line(path)}: it is there, and is not a regular file")
    if not force:
        raise _there(path)


def _there(path: str) -> click.ClickException:
    return click.ClickException(f"{one_line(path)}: the file exists; give --force to replace it")


def _name(beside: bytes, target: bytes, path: str, *, force: bool) -> None:
    """Give the new file its name; a link, unlike a renaming, never replaces what came meanwhile."""
    if not force:
        try:
            os.link(beside, target)
        except FileExistsError:
            raise _there(path) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            os.unlink(beside)
            return
    os.replace(beside, target)
