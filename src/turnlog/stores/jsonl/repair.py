"""Mends the end of a thread's file after a crash. The caller holds its lock.

The order makes it safe to crash anywhere in it: copy aside, sync the copy, then change, sync. A
second repair after such a crash finds the copy and does not make another.

Source: design, section 4, point 5.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from zlib import crc32

from msgspec.structs import replace

from turnlog.stores.jsonl.osfile import NO_FILE, is_regular, open_beside, write_all

if TYPE_CHECKING:
    import os

    from turnlog.stores.base import Position
    from turnlog.stores.jsonl.format import Tail
    from turnlog.stores.jsonl.osfile import System

TORN_SUFFIX: Final = ".torn"


def mend(
    system: System, fd: int, place: tuple[str, str], position: Position, tail: Tail
) -> Position:
    """Make the file's end sound, durably; give the position of the new end.

    Args:
        system: the system's calls.
        fd: the open file.
        place: its folder and name; torn bytes go to the end of name + ".torn" there.
        position: where the sound part of the file ends.
        tail: what stands after it.

    Raises:
        OSError: the repair failed; the file has lost nothing.
    """
    if tail.torn:
        folder, name = place
        set_aside(system, (folder, name + TORN_SUFFIX), tail.torn, system.status(fd))
        system.truncate(fd, position.offset)
    if tail.unterminated:
        write_all(system, fd, b"\n")
        size, checksum = position.mark
        position = replace(
            position,
            offset=position.offset + 1,
            lines=position.lines + 1,
            mark=(size + 1, crc32(b"\n", checksum)),
            unterminated=False,
        )
    system.sync(fd)
    return position


def set_aside(system: System, place: tuple[str, str], torn: bytes, like: os.stat_result) -> None:
    """Append bytes to a file of their own, durably, unless they are its last already.

    Args:
        system: the system's calls.
        place: its folder and name.
        torn: the bytes.
        like: the status of the file that they are from; a new one gets its owner and mode.

    Raises:
        OSError: it failed; the file has no copy, or a part of one.
    """
    folder, name = place
    not_ours = FileExistsError(errno.EEXIST, f"{name} is a link, or no regular file")
    try:
        fd = open_beside(system, folder, name, lambda: like)
    except OSError as error:
        if error.errno in NO_FILE:
            raise not_ours from error
        raise
    try:
        status = system.status(fd)
        if not is_regular(status) or status.st_nlink > 1:  # it may be another's, elsewhere
            raise not_ours
        size = status.st_size
        begin = size - len(torn)
        if not _stands_at(system, fd, begin, torn):
            ended = size == 0 or system.read(fd, size - 1, 1) == b"\n"
            write_all(system, fd, torn if ended else b"\n" + torn)
            begin = size
        try:
            system.sync(fd)
        except OSError:
            with suppress(OSError):  # the cache shows a copy that the device may not have
                system.truncate(fd, begin)
            raise
    finally:
        system.close(fd)
    system.sync_folder(folder)


def _stands_at(system: System, fd: int, begin: int, torn: bytes) -> bool:
    """Tell whether a file has bytes from a place on, and they are a piece of their own."""
    if begin < 0 or system.read(fd, begin, len(torn)) != torn:
        return False
    return begin == 0 or system.read(fd, begin - 1, 1) == b"\n"
