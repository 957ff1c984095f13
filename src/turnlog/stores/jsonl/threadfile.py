"""One open file of a thread: locked, verified, read forward, appended to, rolled back.

Every append goes the same way, under the file's lock from the second step to the last:

    lock · verify that the file is still the one that was opened · read forward what others
    appended, mending a torn end · write · sync · unlock

so what the caller holds is the file, and a failed append can be cut off again.

Source: design, section 4, points 3 to 5 and 8.
"""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from zlib import crc32

from msgspec.structs import replace

from turnlog.errors import LockTimeout, OutcomeUnknown, ThreadReplaced, TornTailWarning
from turnlog.stores.base import START, Position, Problem, Read
from turnlog.stores.jsonl import format as fileformat
from turnlog.stores.jsonl.damage import is_damaged_beyond_measure
from turnlog.stores.jsonl.failures import no_thread, unsupported
from turnlog.stores.jsonl.format import Tail
from turnlog.stores.jsonl.osfile import identity_of, is_regular, write_all
from turnlog.stores.jsonl.repair import TORN_SUFFIX, mend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.jsonl.osfile import System

SUFFIX: Final = ".jsonl"
_LONGEST_NAP: Final = 0.002
_LOST: Final = -1  # in place of a descriptor that is not the file's any more
_TAIL: Final = 1 << 15  # some 50 turns of usual length


class ThreadFile:
    """A thread's file, open. Not for use by several threads at once.

    Args:
        system: the system's calls.
        key: the thread.
        folder: its namespace's folder.
        write: open for appending too.
        create: make the file where there is none.

    Raises:
        OSError: it cannot be opened.
        NotAThread: it is not a regular file.
    """

    def __init__(
        self, system: System, key: ThreadKey, folder: str, *, write: bool, create: bool = False
    ) -> None:
        """Open the file."""
        self._system = system
        self.key: ThreadKey = key
        self.folder: str = folder
        self.name: str = key.id + SUFFIX
        self._path = f"{folder}/{self.name}"
        self.writable: bool = write
        self.entry_synced: bool = False  # whether the folders' entries that lead to it are durable
        self.fd: int = system.open_file(folder, self.name, write=write, create=create)
        try:
            self.identity: tuple[int, int] = self._regular_identity()
        except BaseException:
            system.close(self.fd)
            raise
        self._end = 0

    def _regular_identity(self) -> tuple[int, int]:
        status = self._system.status(self.fd)
        if not is_regular(status):
            raise no_thread(self.key, "what stands under its name is not a regular file")
        return identity_of(status)

    def is_open(self) -> bool:
        """Return whether the descriptor is still this file's; if not, leave it alone from now on.

        Another part of the program may close it by mistake. The system then gives its number to
        the next file that is opened, which must not be written to, locked or closed here.
        """
        if self.fd < 0:
            return False
        try:
            if identity_of(self._system.status(self.fd)) == self.identity:
                return True
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
        self.fd = _LOST
        return False

    def try_lock(self) -> bool:
        """Lock the file if no other process has it: for writing if it is open so, else shared."""
        try:
            return self._system.try_lock(self.fd, shared=not self.writable)
        except OSError as error:
            raise unsupported(error, "flock") from error

    def lock(self, timeout: float, meanwhile: Callable[[], None]) -> None:
        """Lock the file, waiting at most `timeout` seconds; raise LockTimeout after it.

        While it waits it calls `meanwhile` again and again, which may raise.
        """
        deadline = time.monotonic() + timeout
        nap = 0.0002
        while not self.try_lock():
            if time.monotonic() >= deadline:
                raise LockTimeout.after(self.key, timeout)
            meanwhile()
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)

    def unlock(self) -> None:
        """Let go of the lock. Where that fails, close the file, which lets go of it too."""
        if self.fd < 0:
            return
        try:
            self._system.unlock(self.fd)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the file, which lets go of its lock.

        An error is not raised: the system has closed the descriptor even then, and all that was
        acknowledged is synced.
        """
        try:
            is_open = self.is_open()
        except OSError:  # the system does not tell, so the descriptor is most likely ours
            is_open = True
        if is_open:
            with suppress(OSError):
                self._system.close(self.fd)
            self.fd = _LOST

    def stands(self) -> bool:
        """Tell whether the file still stands under its name; its size is noted for `read`."""
        try:
            status = self._system.status_of(self._path)
        except FileNotFoundError:
            return False
        self._end = status.st_size
        return identity_of(status) == self.identity

    def read(self, begin: Position, *, must_mend: bool = True) -> Read:
        """Read from a position to the end that `stands` noted, mending what a crash left there.

        Args:
            begin: where to begin.
            must_mend: fail where the end cannot be mended; else read what is sound, and warn.

        Raises:
            ThreadReplaced: the position is not one of this file.
            OSError: it cannot be read, or not mended.
        """
        self._check(begin)
        if begin.offset == self._end and begin.incarnation is not None:
            read, tail = Read(position=begin), Tail(unterminated=begin.unterminated)
        else:
            buffer = self._system.read(self.fd, begin.offset, self._end - begin.offset)
            read, tail = fileformat.scan(buffer, begin, self.identity)
        if tail.sound or not self.writable:
            return read
        moved = f"were moved to {self.name}{TORN_SUFFIX}"
        position = read.position
        try:
            position = mend(self._system, self.fd, (self.folder, self.name), position, tail)
        except OSError as error:
            if must_mend:
                raise
            moved = f"could not be moved aside yet ({error.strerror})"
        warnings = (_torn_warning(self.key, tail.torn, moved),) if tail.torn else ()
        return replace(read, position=position, warnings=warnings)

    def tail(self, count: int) -> Read:
        """Read the last `count` turns before the end that `stands` noted; mend nothing.

        Lets go of the lock when the very end is read: what lies before it does not change, and a
        writer would have to wait for all the readers. Where the end is damaged beyond measure fewer
        turns are read, and the problems say so.
        """
        buffer = self._last_bytes()
        self.unlock()
        return self._scan_back(buffer, count)[1]

    def near_end(self) -> Position:
        """Return a position before the end that `stands` noted, for `read` to find the end from.

        A turn lies behind it, unless it is the file's start: what lies before a turn says nothing
        of what lies behind it.
        """
        position, read = self._scan_back(self._last_bytes(), 1)
        return position if read.lines else START

    def _last_bytes(self) -> bytes:
        size = min(self._end, _TAIL)
        return self._system.read(self.fd, self._end - size, size)

    def _scan_back(self, buffer: bytes, count: int) -> tuple[Position, Read]:
        """Read the last `count` turns, from the last bytes back; say from where on it was.

        Only what lies before a unit that is not whole could tell something else of it: where the
        lines that were read are enough, what lies before them does not matter.
        """
        begin = self._end - len(buffer)
        while True:
            line = (buffer.find(b"\n") + 1 or len(buffer)) if begin else 0
            position = Position(self.identity, begin + line)
            read, tail = fileformat.scan(buffer[line:], position, self.identity)
            if len(read.lines) >= count or begin == 0:
                return position, read
            if is_damaged_beyond_measure(buffer[:line], read, tail.torn):
                unread = Problem(1, 0, begin + line, "it lies before damage, and was not read")
                return position, replace(read, problems=read.problems or (unread,))
            before = max(0, begin - 3 * len(buffer))
            buffer = self._system.read(self.fd, before, begin - before) + buffer
            begin = before

    def _check(self, begin: Position) -> None:
        """Raise ThreadReplaced unless the position is one of this file."""
        if begin.incarnation is not None and begin.incarnation != self.identity:
            raise replaced(self.key, "its file was replaced by another")
        if begin.offset > self._end:
            raise replaced(self.key, "its file was cut shorter than what was read of it")
        if begin.offset:
            # The number of a removed file is given to a new one, and an editor may write in place.
            # The times of the file cannot tell: a change may follow our own within a clock's tick.
            size, checksum = begin.mark
            if crc32(self._system.read(self.fd, begin.offset - size, size)) != checksum:
                raise replaced(self.key, "its file was changed where it had been read")

    def append(self, end: Position, lines: Sequence[bytes]) -> Position:
        """Write lines after the position `end`, which `read` gave; give the new end. Not synced."""
        data = b"\n".join((*lines, b""))
        try:
            write_all(self._system, self.fd, data)
        except OSError as error:
            if error.errno == errno.EBADF:  # closed, or another's that only reads this very file
                self.unlock()
                self.fd = _LOST
            raise
        mark = fileformat.mark_behind(end.mark, data)
        return Position(self.identity, end.offset + len(data), end.lines + len(lines), mark)

    def sync(self) -> None:
        """Wait until what was written is on the device."""
        try:
            self._system.sync(self.fd)
        except OSError as error:
            raise unsupported(error, "fdatasync") from error

    def forget(self, begin: Position) -> None:
        """Have the next reader see what the device has from a position on, not the cache.

        A sync that failed leaves pages in the cache that the device does not have, marked clean.
        """
        with suppress(OSError):  # it is advice
            self._system.drop_cache(self.fd, begin.offset)

    def roll_back(self, end: Position) -> None:
        """Cut off what was written after the position `end`, durably.

        Raises:
            OutcomeUnknown: this failed too.
        """
        try:
            if self.is_open():
                self._cut_off(end)
            else:
                self._check_ends(end)
        except OSError as error:
            self.forget(end)
            raise OutcomeUnknown(
                self.key,
                f"an append failed, and so did rolling it back ({error.strerror})",
                "open the thread again and look; trying again with the same key is safe",
            ) from error

    def _cut_off(self, end: Position) -> None:
        if self._system.status(self.fd).st_size != end.offset:
            self._system.truncate(self.fd, end.offset)
            self._system.sync(self.fd)

    def _check_ends(self, end: Position) -> None:
        """Raise where something was written after a position: without a descriptor it stays."""
        if not self.stands() or self._end != end.offset:
            raise OSError(errno.EBADF, "another part of the program closed its descriptor")


def replaced(key: ThreadKey, what: str) -> ThreadReplaced:
    """Make the error for a file that is not the one that was opened any more."""
    return ThreadReplaced(
        key,
        f"{what} while the thread was open; nothing was written",
        "what was read is still in messages(); close the memory or drop the handle, "
        "then open the thread again",
    )


def _torn_warning(key: ThreadKey, torn: bytes, moved: str) -> TornTailWarning:
    return TornTailWarning(
        f"{key}: it ended in {len(torn)} bytes of an append that never finished; they {moved}, "
        f"and every turn before them is there"
    )
