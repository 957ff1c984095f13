"""The folders of a memory: where a thread's file stands, made, checked and synced.

`<root>/<namespace>/<id>.jsonl`. A new file survives a power cut only when the entries of all the
folders that lead to it are on the device; another process may have made them and died before its
sync, so each process syncs them itself, once.

Source: spec R3, R10; design, section 3, names, and section 4, points 1 and 10.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from turnlog.errors import StoreError, UnknownStore, UnsafeFileSystemWarning
from turnlog.stores.jsonl.failures import failure, no_thread, unsupported
from turnlog.stores.jsonl.osfile import absolute, is_folder
from turnlog.stores.jsonl.threadfile import SUFFIX, ThreadFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.jsonl.osfile import System

_MOST_REMEMBERED: Final = 4096

# Where flock or fsync do not reach the other side, or not surely.
_UNSAFE: Final = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs", "vboxsf"),
        *("fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.davfs2"),
    )
)


def root_at(location: str | os.PathLike[str]) -> str:
    """Return the absolute path of a memory's root, as the system's calls take it.

    Raises:
        UnknownStore: the location is empty, names the home of an unknown user, or is no path.
        StoreError: it is relative, and there is no working directory.
    """
    place = os.fsdecode(location)
    subject = f"location {place!r}"
    if not place.strip():
        raise UnknownStore(subject, "it is empty", "give a folder, or a store's URL")
    try:
        return absolute(place)
    except LookupError:
        raise UnknownStore(
            subject,
            "the system does not know whose home that is",
            "give an absolute path; a folder of such a name is written ./~name",
        ) from None
    except ValueError:
        hint = "give one without NUL and without halves of characters"
        raise UnknownStore(subject, "it is not a path", hint) from None
    except OSError as error:
        doing = "the working directory that it is relative to is gone"
        raise failure(StoreError, subject, doing, error) from error


class Folders:
    """A root folder with a folder for each namespace.

    Args:
        system: the system's calls.
        root: the absolute path of the root; it need not exist yet.
    """

    def __init__(self, system: System, root: str) -> None:
        """Know where the root is; look at nothing."""
        self.root = root
        self._system = system
        self._synced: OrderedDict[str, int] = OrderedDict()  # to the number of what was synced
        self._exact: set[str] = set()
        self._checked = False

    def of(self, namespace: str) -> str:
        """Give the path of a namespace's folder."""
        return f"{self.root}/{namespace}"

    def open(self, key: ThreadKey, *, write: bool, create: bool = False) -> ThreadFile | None:
        """Open a thread's file; None where there is none, unless it is to be made."""
        folder = self.of(key.namespace)
        try:
            file = ThreadFile(self._system, key, folder, write=write, create=create)
        except FileNotFoundError:
            if not create:
                return None
            self.make(folder)
            file = ThreadFile(self._system, key, folder, write=write, create=True)
        try:
            self._check_spelling(key, self.root, key.namespace, key.namespace.swapcase())
            self._check_spelling(key, folder, file.name, key.id + SUFFIX.upper())
        except BaseException:
            file.close()
            raise
        return file

    def make(self, folder: str) -> None:
        """Make a folder, and those above it; not synced."""
        try:
            made = self._system.make_folder(folder)
        except FileNotFoundError:
            self.make(os.path.dirname(folder))
            made = self._system.make_folder(folder)
        if made:
            self._synced.pop(folder, None)
            self._exact.discard(folder)

    def _check_spelling(self, key: ThreadKey, folder: str, name: str, variant: str) -> None:
        """Refuse what a file system that folds case gives for another spelling of the name."""
        if folder in self._exact or name == variant:
            return
        if self._identity(folder, name) != self._identity(folder, variant):
            if len(self._exact) == _MOST_REMEMBERED:
                self._exact.clear()
            self._exact.add(folder)  # it does not fold case: no need to look again
            return
        if name not in self._system.names(folder):
            raise no_thread(key, "this file system folds case, and the name is there in another")

    def _identity(self, folder: str, name: str) -> tuple[int, int] | str:
        try:
            status = self._system.status_of(f"{folder}/{name}")
        except FileNotFoundError:
            return name
        return (status.st_dev, status.st_ino)

    def check_may_create(self, key: ThreadKey) -> None:
        """Raise where a thread that does not exist could not be made."""
        folder = namespace = self.of(key.namespace)
        while (status := self._status(folder)) is None:
            folder = os.path.dirname(folder)
        if folder == namespace and not is_folder(status):
            raise no_thread(key, "its namespace is not a folder, or a symbolic link to one")
        self._system.check_may_write(folder)

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return self._system.status_of(path)
        except FileNotFoundError:
            return None

    def sync(self, files: Sequence[ThreadFile]) -> None:
        """Make the entries that lead to newly opened files durable.

        Raises:
            OSError: a folder could not be synced; all the files are to be taken as not durable.
        """
        try:
            for folder in dict.fromkeys(file.folder for file in files):
                self._system.sync_folder(folder)
                self._sync_entry(folder, self.root)
        except OSError as error:
            raise unsupported(error, "fsync of a folder") from error
        for file in files:
            file.entry_synced = True
        while len(self._synced) > _MOST_REMEMBERED:
            self._synced.popitem(last=False)

    def _sync_entry(self, folder: str, parent: str) -> None:
        """Make the entry of a folder durable, and those above it in its file system."""
        status = self._system.status_of(folder)
        if self._synced.get(folder) == status.st_ino:
            return
        above = self._system.real_path(parent)
        if self._system.status_of(above).st_dev != status.st_dev:
            return  # the root of a file system has no entry
        try:
            self._system.sync_folder(above)
        except PermissionError:
            if parent == self.root:
                raise
            return  # not ours to read, so not one that we made
        if above != os.path.dirname(above):
            self._sync_entry(above, os.path.dirname(above))
        self._synced[folder] = status.st_ino

    def _file_system(self) -> str:
        place = self.root
        while self._status(place) is None:  # it is made by the first append
            place = os.path.dirname(place)
        return self._system.file_system(place)

    def warnings(self) -> tuple[UnsafeFileSystemWarning, ...]:
        """Give a warning, once, where the file system is known not to keep the contract."""
        if self._checked:
            return ()
        try:
            kind = self._file_system()
        except OSError:
            return ()  # it does not tell now; what matters of such an error is met elsewhere
        self._checked = True
        if kind not in _UNSAFE:
            return ()
        return (
            UnsafeFileSystemWarning(
                f"memory {self.root!r} lies on a file system of type {kind!r}, where locks and "
                f"syncs may not hold: durability and several processes are not promised there; "
                f"use a local disk, or a server store"
            ),
        )
