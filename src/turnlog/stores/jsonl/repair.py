"""Mends the end of a thread's file after a crash. The caller holds its lock.

The order makes it safe to crash anywhere in it: copy aside, sync the copy, then change, sync. A
second repair after such a crash finds the copy and does not make another.

Source: design, section 4, point 5.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final
from zlib import crc32

from msgspec.structs import replace

from turnlog.stores.jsonl.osfile import write_all

if TYPE_CHECKING:
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
        set_aside(system, folder, name + TORN_SUFFIX, tail.torn)
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


def set_aside(system: System, folder: str, name: str, torn: bytes) -> None:
    """Append bytes to a file of their own, durably, unless it ends in them already."""
    fd = system.open_file(folder, name, write=True, create=True)
    try:
        begin = size = system.status(fd).st_size
        if size < len(torn) or system.read(fd, size - len(torn), len(torn)) != torn:
            ended = size == 0 or system.read(fd, size - 1, 1) == b"\n"
            write_all(system, fd, torn if ended else b"\n" + torn)
        else:
            begin = size - len(torn)
        try:
            system.sync(fd)
        except OSError:
            with suppress(OSError):  # the cache shows a copy that the device may not have
                system.truncate(fd, begin)
            raise
    finally:
        system.close(fd)
    system.sync_folder(folder)
