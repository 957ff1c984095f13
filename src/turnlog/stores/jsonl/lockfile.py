"""The turn lock of a thread, as a file beside its own: `<id>.jsonl.lock`, empty.

It is not the thread's file, so that appends go on while somebody holds it. A dead holder's lock is
let go of by the system. The file stays; what counts is the lock on it.

Source: design, section 6.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnlog.stores.jsonl.osfile import System

LOCK_SUFFIX: Final = ".lock"


def try_turn_lock(system: System, folder: str, name: str) -> Callable[[], None] | None:
    """Lock the file beside a thread's file if nobody has it; never wait.

    Args:
        system: the system's calls.
        folder: the namespace's folder.
        name: the thread's file in it.

    Returns:
        What lets go of the lock; None where somebody has it.

    Raises:
        OSError: it cannot be locked; a FileNotFoundError where there is no such folder.
    """
    fd = system.open_file(folder, name + LOCK_SUFFIX, write=True, create=True)
    try:
        if system.try_lock(fd, shared=False) and _stands(system, fd, folder, name):
            return partial(_let_go, system, fd, os.getpid())
    except BaseException:
        system.close(fd)
        raise
    system.close(fd)
    return None


def _stands(system: System, fd: int, folder: str, name: str) -> bool:
    """Tell whether the file that was locked still stands there, not removed with its thread."""
    own = system.status(fd)
    try:
        there = system.status_of(f"{folder}/{name}{LOCK_SUFFIX}")
    except FileNotFoundError:
        return False
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _let_go(system: System, fd: int, holder: int) -> None:
    # A lock is shared with a forked child: it is the parent's to let go of, not the child's. And
    # closing is not enough, since a child may have the file too.
    if os.getpid() == holder:
        system.unlock(fd)
    system.close(fd)
