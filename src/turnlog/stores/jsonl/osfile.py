"""Every call that the JSONL store makes to the operating system, and nothing else.

The seam where tests inject faults: give `JsonlStore(root, system=...)` a subclass of `System`.
Each method does one thing, blocks, and raises OSError as the system gives it. A path here is the
system's bytes, decoded as UTF-8: names of threads are UTF-8 on the disk, whatever the locale is.
`absolute` makes such a path of a location, and `native` makes what Python's own calls take.

No descriptor here is a standard stream's. A program that was started with one closed would have the
system give its number to a file, and what the program prints would land in it.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_FOLDER_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hold us up
_READ_AT_ONCE: Final = 1 << 30  # the system takes little more in one call
_BLOCK: Final = 1 << 24
NO_FILE: Final = frozenset((errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV))
_WOULD_BLOCK: Final = frozenset((errno.EWOULDBLOCK, errno.EAGAIN))
_LAST_STANDARD: Final = 2  # the number of standard error
_MOUNTS: Final = "/proc/self/mountinfo"


def _name(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def absolute(location: str) -> str:
    """Return the absolute path of a location that the program gave, as the calls here take it.

    A `~` or `~user` at its beginning is that user's home, if the system knows it.

    Raises:
        OSError: it is relative, and there is no working directory.
        LookupError: the system knows no home of such a user.
        ValueError: the system can have no such path.
    """
    try:
        path = os.fsencode(location)
    except UnicodeEncodeError:  # it is not from the system, so the locale does not matter
        path = _name(location)
    if b"\0" in path:
        raise ValueError
    path = os.path.expanduser(path)
    if path.startswith(b"~"):
        raise LookupError
    return _text(os.path.abspath(path))


def native(path: str) -> str:
    """Return a path as Python's own calls take it."""
    return os.fsdecode(_name(path))


@contextmanager
def _opened_folder(path: str, flags: int) -> Generator[int]:
    """Open a folder, and take the numbers of standard streams that are closed meanwhile."""
    opened: list[int] = []
    try:
        while not opened or opened[-1] <= _LAST_STANDARD:
            opened.append(os.open(_name(path), flags))
        yield opened[-1]
    finally:
        for fd in opened:
            os.close(fd)


class System:
    """The operating system, as a store of append-only files needs it."""

    def open_file(
        self,
        folder: str,
        name: str,
        *,
        write: bool = False,
        create: bool = False,
        exclusive: bool = False,
    ) -> int:
        """Open `name` in `folder`, following a symbolic link in neither; give the descriptor.

        Files are made 0600. Writing is appending, always. With `exclusive` nothing may stand under
        the name.
        """
        flags = os.O_RDWR | os.O_APPEND if write else os.O_RDONLY
        flags |= _FILE_FLAGS | (os.O_CREAT if create else 0) | (os.O_EXCL if exclusive else 0)
        with _opened_folder(folder, _FOLDER_FLAGS) as at:
            return os.open(_name(name), flags, 0o600, dir_fd=at)

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
        """Read `size` bytes from `offset`, or up to the file's end where that comes first.

        More than the machine has memory is refused at once: a file may be of any size, all holes.
        """
        if size > _READ_AT_ONCE and size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        found = os.pread(fd, size if size <= _READ_AT_ONCE else _BLOCK, offset)
        if len(found) == size or not found:
            return found
        whole = io.BytesIO()  # grows in place: parts that are joined would take twice the memory
        while found:
            whole.write(found)
            read = whole.tell()
            found = os.pread(fd, min(size - read, _BLOCK), offset + read)
        return whole.getvalue()

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
        with _opened_folder(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
            os.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    def own_as(self, fd: int, like: os.stat_result) -> None:
        """Set a file that was just made to the owner, group and mode of another, as far as may be.

        The new file gives no more than the other does: no special bit, no right to execute, and no
        right for a group that is not the other's.
        """
        status = os.fstat(fd)
        if (status.st_uid, status.st_gid) != (like.st_uid, like.st_gid):
            try:
                os.fchown(fd, like.st_uid, like.st_gid)
            except PermissionError:
                with suppress(PermissionError):
                    os.fchown(fd, -1, like.st_gid)
            status = os.fstat(fd)
        mode = like.st_mode & (0o666 if status.st_gid == like.st_gid else 0o606)
        with suppress(PermissionError):
            if stat.S_IMODE(status.st_mode) != mode:
                os.fchmod(fd, mode)

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

    def check_may_write(self, folder: str) -> None:
        """Raise the system's error where the process cannot make files in a folder."""
        if os.access(_name(folder), os.W_OK | os.X_OK):
            return
        read_only = os.statvfs(_name(folder)).f_flag & os.ST_RDONLY
        number = errno.EROFS if read_only else errno.EACCES
        raise OSError(number, os.strerror(number), folder)

    def rename(self, old: str, new: str) -> None:
        """Give a file a new path in the same file system, over what stands there."""
        os.rename(_name(old), _name(new))

    def unlink(self, path: str) -> None:
        """Remove a file's name from its folder."""
        os.unlink(_name(path))

    def scan(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """Give the name and status of each entry of a folder, following no symbolic link.

        An entry without a status does not hide the others: its error comes after them.
        """
        failed: OSError | None = None
        with os.scandir(_name(folder)) as entries:
            for entry in entries:
                try:
                    yield _text(entry.name), entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed since the folder was read
                except OSError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def names(self, folder: str) -> list[str]:
        """Give the names in a folder, as they are spelled there."""
        return list(map(_text, os.listdir(_name(folder))))

    def file_system(self, path: str) -> str:
        """Give the type of the file system that holds a path, or "" where it cannot be told."""
        try:
            device = os.stat(_name(path)).st_dev
            with open(_MOUNTS, "rb") as table:
                lines = table.read().split(b"\n")
        except OSError:
            return ""
        number = f"{os.major(device)}:{os.minor(device)}".encode()
        for line in reversed(lines):
            fields, _, rest = line.partition(b" - ")
            if fields.split(b" ")[2:3] == [number]:
                return _text(rest.partition(b" ")[0])
        return ""


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Return what tells one file from all others: its device and its number there."""
    return (status.st_dev, status.st_ino)


def is_regular(status: os.stat_result) -> bool:
    """Tell whether it is the status of a regular file."""
    return stat.S_ISREG(status.st_mode)


def is_link(status: os.stat_result) -> bool:
    """Tell whether it is the status of a symbolic link."""
    return stat.S_ISLNK(status.st_mode)


def is_folder(status: os.stat_result) -> bool:
    """Tell whether it is the status of a folder."""
    return stat.S_ISDIR(status.st_mode)


def open_beside(system: System, folder: str, name: str, like: Callable[[], os.stat_result]) -> int:
    """Open a file that stands beside a thread's, for appending; make it where there is none.

    Args:
        system: the system's calls.
        folder: its folder.
        name: its name.
        like: gives the status of the file whose owner, group and mode a new one gets.

    Raises:
        OSError: it cannot be opened or made.
    """
    while True:
        # Not in one call: a system may refuse to open another user's file where it might make one.
        with suppress(FileNotFoundError):
            return system.open_file(folder, name, write=True)
        with suppress(FileExistsError):
            fd = system.open_file(folder, name, write=True, create=True, exclusive=True)
            try:
                system.own_as(fd, like())
            except BaseException:
                system.close(fd)
                raise
            return fd


def write_all(system: System, fd: int, data: bytes) -> None:
    """Append all of `data`, in one write unless the system takes less at once."""
    written = system.write(fd, data)
    rest = memoryview(data)[written:] if written < len(data) else b""
    while rest:
        rest = rest[system.write(fd, rest) :]
