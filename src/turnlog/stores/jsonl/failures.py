"""From the system's errors to ours: what happened to which thread, and what the user can do."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from turnlog.errors import NotAThread, StoreError, TurnlogError

if TYPE_CHECKING:
    from collections.abc import Generator

_Error = TypeVar("_Error", bound=StoreError)

_PERMISSION = (
    "give this user read and write permission, or read permission and use "
    "Memory(..., read_only=True)"
)
_OTHER_FILE_SYSTEM = (
    "use a local file system with flock and fsync, such as ext4 or xfs, or a server store"
)
_HINTS = {
    errno.ENOSPC: "free space on the disk; the thread goes on as soon as there is room",
    errno.EDQUOT: "free space within your quota; the thread goes on as soon as there is room",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or go on in a new thread",
    errno.EACCES: _PERMISSION,
    errno.EPERM: f"{_PERMISSION}; an attribute of the file may forbid it too (lsattr shows them)",
    errno.EROFS: "the file system is read-only: read with Memory(..., read_only=True)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "the system has no more open files to give; close some",
    errno.EEXIST: "something else stands beside it under the name of one of its own files (a link, "
    "say, under that of its .torn): move that away",
    errno.EIO: "the device failed: check it and the system's log before you go on",
    errno.EBADF: "another part of the program closed turnlog's descriptor: find what closes one "
    "twice; the next append opens the file again",
    errno.ENOMEM: "its file is too large for this machine's memory: read it on another, or with "
    "Memory.peek",
    errno.ENOLCK: "the file system has no locks to give: use a local one",
    errno.ENAMETOOLONG: "give a shorter id or namespace, or another root",
    errno.ESTALE: "the file system lost the file: mount it again, and open the thread again",
    errno.EINTR: "try again",
}
# What says that a file system lacks a call: turnlog makes none with an argument that is not valid.
_UNSUPPORTED = frozenset((errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY))
_NO_THREAD = {
    errno.ELOOP: "a symbolic link stands under its name",
    errno.ENOTDIR: "its namespace is not a folder, or a symbolic link to one",
    errno.EISDIR: "a folder stands under its name",
    errno.ENXIO: "a special file stands under its name",
    errno.ENODEV: "a special file stands under its name",
}


def failure(kind: type[_Error], subject: object, doing: str, error: OSError) -> StoreError:
    """Make our error of the system's; the caller raises it from `error`.

    Args:
        kind: the error to make, unless the system's says that there is no thread here at all.
        subject: the thread, or the store.
        doing: what failed, such as "append failed".
        error: the system's error.
    """
    number = error.errno or 0
    if number in _NO_THREAD:
        return no_thread(subject, _NO_THREAD[number])
    error = unsupported(error, "what turnlog needs")
    if isinstance(error, Unsupported):
        said, hint = error.strerror, _OTHER_FILE_SYSTEM
    else:
        said = os.strerror(number) if number else str(error)
        hint = _HINTS.get(number, "see the cause for the system's own error")
    own = kind(subject, f"{doing}: {said}", hint)
    own.errno = error.errno
    return own


class Unsupported(OSError):
    """Raised in place of the system's error where a file system lacks a call."""


def unsupported(error: OSError, call: str) -> OSError:
    """Return an error that names the call which a file system lacks; another error as it is."""
    number = error.errno
    if number not in _UNSUPPORTED or isinstance(error, Unsupported):
        return error
    return Unsupported(number, f"its file system does not support {call} ({os.strerror(number)})")


def no_thread(subject: object, what: str) -> NotAThread:
    """Make the error for a name that leads to something else than its thread."""
    return NotAThread(subject, what, "move it away, or choose another name")


@contextmanager
def translated(subject: object, doing: str) -> Generator[None]:
    """Raise the system's errors in the block as StoreError, and ours as they are."""
    try:
        yield
    except TurnlogError:
        raise
    except OSError as error:
        raise failure(StoreError, subject, doing, error) from error
    except MemoryError as error:
        without = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        raise failure(StoreError, subject, doing, without) from error
