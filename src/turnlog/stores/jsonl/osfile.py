"""Every call that the JSONL store makes to the operating system, and nothing else.

The seam where tests inject faults: give `JsonlStore(root, system=...)` a subclass of `System`.
Each method does one thing, blocks, and raises OSError as the system gives it. Names are UTF-8 on
the disk, whatever the locale is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hold us up
_READ_AT_ONCE: Final = 1 << 30
_WOULD_BLOCK: Final = frozenset((errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES))


def _name(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


class System:
    """The operating system, as a store of append-only files needs it."""

    def open_file(
        self, folder: str, name: str, *, write: bool = False, create: bool = False
    ) -> int:
        """Open `name` in `folder`, following a symbolic link in neither; give the descriptor.

        Files are made 0600. Writing is appending, always.
        """
        flags = os.O_RDWR | os.O_APPEND if write else os.O_RDONLY
        at = os.open(_name(folder), _FOLDER_FLAGS)
        try:
            flags |= _FILE_FLAGS | (os.O_CREAT if create else 0)
            return os.open(_name(name), flags, 0o600, dir_fd=at)
        finally:
            os.close(at)

    def close(self, fd: int) -> None:
        """Close a descriptor; this lets go of its lock."""
        os.close(fd)

    def try_lock(self, fd: int, *, shared: bool) -> bool:
        """Lock the open file if nobody has it; never wait."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _WOULD_BLOCK:
                return False
            raise
        return True

    def unlock(self, fd: int) -> None:
        """Let go of the lock."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def status(self, fd: int) -> os.stat_result:
        """Give the status of an open file."""
        return os.fstat(fd)

    def status_of(self, path: str) -> os.stat_result:
        """Give the status of what stands at a path; of a symbolic link, its own."""
        return os.lstat(_name(path))

    def read(self, fd: int, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset`, or up to the file's end where that comes first."""
        found = os.pread(fd, min(size, _READ_AT_ONCE), offset)
        if len(found) == size or not found:
            return found
        parts = [found]
        while found and (missing := size - sum(map(len, parts))):
            found = os.pread(fd, min(missing, _READ_AT_ONCE), offset + size - missing)
            parts.append(found)
        return b"".join(parts)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Append once; give how many bytes the system took, which may be fewer than given."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """Wait until the file's data and size are on the device."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)

    def sync_folder(self, path: str) -> None:
        """Wait until the folder's entries are on the device."""
        fd = os.open(_name(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    def own_as(self, fd: int, like: os.stat_result) -> None:
        """Give an open file the owner and mode of another, as far as the process may."""
        status = os.fstat(fd)
        with suppress(PermissionError):
            if (status.st_uid, status.st_gid) != (like.st_uid, like.st_gid):
                os.fchown(fd, like.st_uid, like.st_gid)
        with suppress(PermissionError):
            if status.st_mode != like.st_mode:
                os.fchmod(fd, stat.S_IMODE(like.st_mode))

    def drop_cache(self, fd: int, offset: int) -> None:
        """Ask that what the cache holds from `offset` on be read from the device next time."""
        if sys.platform == "linux":
            os.posix_fadvise(fd, offset, 0, os.POSIX_FADV_DONTNEED)

    def make_folder(self, path: str) -> bool:
        """Make one folder, 0700; False where something stands there already."""
        try:
            os.mkdir(_name(path), 0o700)
        except FileExistsError:
            return False
        return True

    def real_path(self, path: str) -> str:
        """Give the path with every symbolic link in it followed."""
        return _text(os.path.realpath(_name(path)))

    def may_write(self, folder: str) -> bool:
        """Tell whether the process may make files in a folder."""
        return os.access(_name(folder), os.W_OK | os.X_OK)

    def rename(self, old: str, new: str) -> None:
        """Give a file a new path in the same file system, over what stands there."""
        os.rename(_name(old), _name(new))

    def unlink(self, path: str) -> None:
        """Remove a file's name from its folder."""
        os.unlink(_name(path))

    def scan(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """Give the name and status of each entry of a folder, following no symbolic link."""
        with os.scandir(_name(folder)) as entries:
            for entry in entries:
                try:
                    yield _text(entry.name), entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed since the folder was read

    def names(self, folder: str) -> list[str]:
        """Give the names in a folder, as they are spelled there."""
        return list(map(_text, os.listdir(_name(folder))))

    def file_system(self, path: str) -> str:
        """Give the type of the file system that holds a path, or "" where it cannot be told."""
        try:
            device = os.stat(_name(path)).st_dev
            table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        number = f"{os.major(device)}:{os.minor(device)}"
        for line in reversed(table.splitlines()):
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == number:
                return rest.split()[0]
        return ""


def is_regular(status: os.stat_result) -> bool:
    """Tell whether it is the status of a regular file."""
    return stat.S_ISREG(status.st_mode)


def is_link(status: os.stat_result) -> bool:
    """Tell whether it is the status of a symbolic link."""
    return stat.S_ISLNK(status.st_mode)


def is_folder(status: os.stat_result) -> bool:
    """Tell whether it is the status of a folder."""
    return stat.S_ISDIR(status.st_mode)


def write_all(system: System, fd: int, data: bytes) -> None:
    """Append all of `data`, in one write unless the system takes less at once."""
    written = system.write(fd, data)
    rest = memoryview(data)[written:] if written < len(data) else b""
    while rest:
        rest = rest[system.write(fd, rest) :]
