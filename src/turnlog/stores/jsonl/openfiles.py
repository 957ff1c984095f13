"""The files that writers keep open for their next append, within what the process may have open.

All the stores of a process share one bound, since the system counts what a process has open. A file
that is kept open and not in use is only a cache: it is closed when another one needs its place, and
all of them are when the system refuses to open anything more.

Source: design, section 5.
"""

from __future__ import annotations

import errno
import resource
import threading
import weakref
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from turnlog.interrupts import release_if_owned

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnlog.names import ThreadKey
    from turnlog.stores.jsonl.threadfile import ThreadFile

_Opened = TypeVar("_Opened")

_MOST: Final = 1024
_LEAST: Final = 8
_NO_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE))


class NoRoomError(Exception):
    """No more files can be open at once; those that are open are in use."""


class OpenFiles:
    """The files of one writer, by their threads. Used by one OS thread at a time.

    From `acquire` to `release` what was opened or asked for is in use; after it, it is only kept.
    """

    def __init__(self) -> None:
        """Hold no file yet."""
        self._files: OrderedDict[ThreadKey, ThreadFile] = OrderedDict()
        self._in_use: set[ThreadKey] = set()
        self._mutex = threading.RLock()  # an exception may leave it acquired: `release_all`
        _everyone.append(weakref.ref(self, _everyone.remove))

    def __len__(self) -> int:
        """Give how many are open."""
        return len(self._files)

    def acquire(self) -> None:
        """Keep other OS threads from using and closing files."""
        self._mutex.acquire()

    def release(self) -> None:
        """Have no file in use any more."""
        self._in_use.clear()
        self._mutex.release()

    def unlock_used(self) -> None:
        """Release the locks on the files in use."""
        for key in self._in_use:
            if key in self._files:
                self._files[key].unlock()

    def release_all(self) -> None:
        """Do as `release`, however often this OS thread has acquired it."""
        self._in_use.clear()
        release_if_owned(self._mutex)

    def get(self, key: ThreadKey, open_file: Callable[[], ThreadFile | None]) -> ThreadFile | None:
        """Give a thread's file, opened if need be; None where there is none.

        Raises:
            NoRoomError: it would be one too many, and others are in use; they must end first.
            OSError: it cannot be opened.
        """
        file = self._files.get(key)
        if file is not None and not file.is_open():
            self.drop(key)
            file = None
        if file is None:
            file = self._open(open_file)
            if file is None:
                return None
            self._files[key] = file
        self._files.move_to_end(key)
        self._in_use.add(key)
        return file

    def drop(self, key: ThreadKey) -> None:
        """Close a thread's file, if it is open."""
        self._in_use.discard(key)
        file = self._files.pop(key, None)
        if file is not None:
            file.close()

    def close_kept(self) -> bool:
        """Close the files that are not in use; say whether there were any."""
        kept = len(self._files) - len(self._in_use)
        for _ in range(kept):  # what is in use was moved to the end
            self._files.popitem(last=False)[1].close()
        return kept > 0

    def close_kept_if_idle(self) -> bool:
        """Do as `close_kept`, from outside; nothing while a writer uses them."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            return self.close_kept()
        finally:
            self._mutex.release()

    def _open(self, open_file: Callable[[], ThreadFile | None]) -> ThreadFile | None:
        most = most_open()
        while sum(map(len, _known())) >= most:
            if len(self._files) > len(self._in_use):
                self._files.popitem(last=False)[1].close()
            elif not _close_kept_of_others():
                if self._in_use:
                    raise NoRoomError
                break  # what others have in use is theirs, and one is little
        try:
            return with_descriptors(open_file, self)
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS and self._in_use:
                raise NoRoomError from None
            raise

    def forget(self, key: ThreadKey) -> None:
        """Do as `drop`, from outside."""
        with self._mutex:
            self.drop(key)

    def close(self) -> None:
        """Close all the files, from outside."""
        with self._mutex:
            self.close_kept()

    def after_fork(self) -> None:
        """In a forked child: close the files, and use no lock that the parent may have held."""
        self._mutex = threading.RLock()
        self._in_use.clear()
        while self._files:
            with suppress(OSError):  # whatever else had closed it: all the others must be let go of
                self._files.popitem()[1].close()


_everyone: list[weakref.ref[OpenFiles]] = []


def most_open() -> int:
    """Give how many files the process may keep open: a quarter of what the system allows it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_LEAST, min(_MOST, soft // 4))


def with_descriptors(open_file: Callable[[], _Opened], own: OpenFiles | None = None) -> _Opened:
    """Open something; where the process has too much open, close what is only kept and try again.

    Args:
        open_file: opens it.
        own: the files that the caller has acquired.

    Raises:
        OSError: as `open_file` does.
    """
    try:
        return open_file()
    except OSError as error:
        if error.errno not in _NO_DESCRIPTORS:
            raise
        closed = own is not None and own.close_kept()
        if not (_close_kept_of_others() or closed):
            raise
    return open_file()


def _known() -> list[OpenFiles]:
    return [files for known in _everyone.copy() if (files := known()) is not None]


def _close_kept_of_others() -> bool:
    """Close what all keep who have no file in use right now; say whether there was any."""
    closed = [files.close_kept_if_idle() for files in _known()]
    return any(closed)
