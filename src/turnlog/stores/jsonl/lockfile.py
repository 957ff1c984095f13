"""The turn lock of a thread, as a file beside its own: `<id>.jsonl.lock`, empty.

It is not the thread's file, so that appends go on while somebody holds it. A dead holder's lock is
let go of by the system. The file stays; what counts is the lock on it. It is made with the owner,
group and mode of the thread's file, or of the folder, so that all users who may append may lock.

Source: design, section 6.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from turnlog.errors import StoreError
from turnlog.stores.jsonl.failures import unsupported
from turnlog.stores.jsonl.osfile import NO_FILE, identity_of, is_regular, open_beside

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from turnlog.names import ThreadKey
    from turnlog.stores.jsonl.osfile import System

LOCK_SUFFIX: Final = ".lock"


class LockFiles:
    """The files of the turn locks that this process holds.

    Args:
        system: the system's calls.
    """

    def __init__(self, system: System) -> None:
        """Hold none."""
        self._system = system
        self._held: dict[object, tuple[int, tuple[int, int]]] = {}  # to descriptor and identity

    def try_lock(self, key: ThreadKey, folder: str, name: str) -> Callable[[], None] | None:
        """Lock the file beside a thread's file if nobody has it; never wait.

        Args:
            key: the thread.
            folder: the namespace's folder.
            name: the thread's file in it.

        Returns:
            What lets go of the lock; None where somebody has it.

        Raises:
            OSError: it cannot be locked; a FileNotFoundError where there is no such folder.
            StoreError: something else stands under its name.
        """
        hold = object()
        self._held[hold] = fd, identity = self._opened(key, folder, name)
        try:
            if self._try_lock(fd) and self._stands(identity, folder, name):
                return partial(self._let_go, hold)
        except BaseException:
            self._let_go(hold)
            raise
        self._let_go(hold)
        return None

    def remove(self, key: ThreadKey, folder: str, name: str) -> None:
        """Remove the file beside a thread's file, unless somebody holds its lock."""
        path = f"{folder}/{name}{LOCK_SUFFIX}"
        try:
            if not is_regular(self._system.status_of(path)):
                return
        except FileNotFoundError:
            return
        let_go = self.try_lock(key, folder, name)
        if let_go is not None:
            try:
                self._system.unlink(path)
            finally:
                let_go()

    def _opened(self, key: ThreadKey, folder: str, name: str) -> tuple[int, tuple[int, int]]:
        def like() -> os.stat_result:
            with suppress(FileNotFoundError):
                status = self._system.status_of(f"{folder}/{name}")
                if is_regular(status):
                    return status
            return self._system.status_of(folder)  # all that may make a thread may lock it

        try:
            fd = open_beside(self._system, folder, name + LOCK_SUFFIX, like)
        except OSError as error:
            if error.errno in NO_FILE:
                raise _no_file(key, name + LOCK_SUFFIX) from error
            raise
        try:
            return fd, self._regular_identity(fd, key, name + LOCK_SUFFIX)
        except BaseException:
            self._system.close(fd)
            raise

    def _regular_identity(self, fd: int, key: ThreadKey, name: str) -> tuple[int, int]:
        status = self._system.status(fd)
        if not is_regular(status):
            raise _no_file(key, name)
        return identity_of(status)

    def _try_lock(self, fd: int) -> bool:
        try:
            return self._system.try_lock(fd, shared=False)
        except OSError as error:
            raise unsupported(error, "flock") from error

    def _stands(self, identity: tuple[int, int], folder: str, name: str) -> bool:
        """Tell whether the file that was locked still stands there, not removed with its thread."""
        try:
            there = self._system.status_of(f"{folder}/{name}{LOCK_SUFFIX}")
        except FileNotFoundError:
            return False
        return identity_of(there) == identity

    def _let_go(self, hold: object) -> None:
        held = self._held.pop(hold, None)
        if held is None:
            return  # this is a forked child: the lock is its parent's
        if self._is_open(*held):
            with suppress(OSError):  # closing lets go of it too, unless a child is just forking
                self._system.unlock(held[0])
            with suppress(OSError):  # the system has closed it even then
                self._system.close(held[0])

    def _is_open(self, fd: int, identity: tuple[int, int]) -> bool:
        """Return False where another part of the program closed it: its number may be others'."""
        try:
            return identity_of(self._system.status(fd)) == identity
        except OSError as error:
            return error.errno != errno.EBADF

    def after_fork(self) -> None:
        """In a forked child: close the files. The locks are the parent's, and die with it."""
        for fd, identity in self._held.values():
            with suppress(OSError):
                if self._is_open(fd, identity):
                    self._system.close(fd)
        self._held.clear()


def _no_file(key: ThreadKey, name: str) -> StoreError:
    return StoreError(
        key, f"its turn lock cannot be taken: {name} is not a regular file", "move that away"
    )
