"""JsonlStore: threads as JSONL files under a root folder, one folder a namespace.

Lock order: a commit never waits for a file's lock; `load` and `delete` hold one lock and wait for
it a bounded time. So nothing can deadlock.

Source: spec R3; design, sections 3 to 5.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from turnlog.errors import ReadOnly
from turnlog.names import is_plain
from turnlog.stores.base import START, Append, Outcome, Read, ThreadInfo
from turnlog.stores.jsonl.failures import translated
from turnlog.stores.jsonl.folders import Folders
from turnlog.stores.jsonl.lockfile import LOCK_SUFFIX, try_turn_lock
from turnlog.stores.jsonl.osfile import System, is_folder, is_regular
from turnlog.stores.jsonl.repair import TORN_SUFFIX
from turnlog.stores.jsonl.threadfile import SUFFIX, ThreadFile
from turnlog.stores.jsonl.writer import BatchWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from turnlog.names import ThreadKey

    _Result = TypeVar("_Result")


class JsonlStore:
    """Threads as files: `<root>/<namespace>/<id>.jsonl`.

    Args:
        root: the folder of the memory; made, with its parents, by the first append. A relative
            path is taken from the working directory of now.
        read_only: write nothing, whatever is found.
        lock_timeout: the longest wait, in seconds, for another process' lock on a thread.
        system: the operating system's calls; tests give one that fails.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        read_only: bool = False,
        lock_timeout: float = 30.0,
        system: System | None = None,
    ) -> None:
        """Prepare a store; the disk is touched when the first thread is."""
        self.read_only = read_only
        self._lock_timeout = lock_timeout
        self._system = system or System()
        self._folders = Folders(self._system, os.path.abspath(root))
        self._mutex = threading.Lock()  # two memories may share a store
        self._writer = BatchWriter(self._folders, read_only=read_only)

    def __repr__(self) -> str:
        """Show where it is."""
        return f"JsonlStore({self._folders.root!r})"

    def load(self, key: ThreadKey) -> Read:
        """Read a thread's file from its start, mending what a crash left at its end."""
        with translated(key, "it cannot be opened"):
            read = self._locked(key, self._load, write=not self.read_only)
            if read is None:
                if not self.read_only:
                    self._folders.check_may_create(key)
                read = Read()
        return replace(read, warnings=(*read.warnings, *self._folders.warnings()))

    def _load(self, file: ThreadFile) -> Read:
        read = file.read(START, must_mend=False)
        if not self.read_only and read.position.offset:
            # A writer that was killed may have left whole turns that no sync has reached.
            try:
                file.sync()
            except OSError:
                file.forget(START)
                raise
            self._folders.sync([file])
        return read

    def tail(self, key: ThreadKey, count: int) -> Read:
        """Read the end of a thread's file, and no more of it than that takes."""
        with translated(key, "it cannot be read"):
            return self._locked(key, lambda file: file.tail(count), write=False) or Read()

    def _locked(
        self, key: ThreadKey, use: Callable[[ThreadFile], _Result], *, write: bool
    ) -> _Result | None:
        """Use a thread's file under its lock, while it stands; None where there is none."""
        while (file := self._folders.open(key, write=write)) is not None:
            try:
                file.lock(self._lock_timeout)
                if file.stands():
                    return use(file)
            finally:
                file.unlock()  # closing is not enough: a child forked meanwhile has the file too
                file.close()
        return None

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Write to each file of the batch, then sync them side by side."""
        with self._mutex:
            return self._writer.commit(batch)

    def threads(self, namespace: str | None = None) -> Iterator[ThreadInfo]:
        """List the threads' files. Names that are not plain are other programs'."""
        for name in self._namespaces() if namespace is None else [namespace]:
            files = (
                (entry.removesuffix(SUFFIX), status)
                for entry, status in self._entries(self._folders.of(name))
                if entry.endswith(SUFFIX) and is_regular(status)
            )
            for id_, status in sorted(files):
                if is_plain(id_):
                    modified = dt.datetime.fromtimestamp(status.st_mtime, dt.UTC)
                    yield ThreadInfo(name, id_, status.st_size, modified)

    def _namespaces(self) -> list[str]:
        entries = self._entries(self._folders.root)
        return sorted(name for name, status in entries if is_plain(name) and is_folder(status))

    def _entries(self, folder: str) -> list[tuple[str, os.stat_result]]:
        with translated(self, "its threads cannot be listed"):
            try:
                if not is_folder(self._system.status_of(folder)) and folder != self._folders.root:
                    return []  # a symbolic link, say: `open` refuses it too
                return list(self._system.scan(folder))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, key: ThreadKey) -> bool:
        """Remove a thread's file and what was set aside from it."""
        self._check_writable(key)
        with translated(key, "it cannot be deleted"):
            return self._locked(key, self._delete, write=True) is not None

    def _delete(self, file: ThreadFile) -> bool:
        path = f"{file.folder}/{file.name}"
        for suffix in (LOCK_SUFFIX, TORN_SUFFIX):
            with suppress(FileNotFoundError):  # first, so that a crash in between leaves no orphan
                self._system.unlink(path + suffix)
        self._system.unlink(path)
        self._system.sync_folder(file.folder)
        return True

    def try_turn_lock(self, key: ThreadKey) -> Callable[[], None] | None:
        """Lock the file `<id>.jsonl.lock` beside the thread's; it is made, with its folder."""
        self._check_writable(key)
        name = key.id + SUFFIX
        with translated(key, "its turn lock cannot be taken"):
            folder = self._folders.of(key.namespace)
            try:
                return try_turn_lock(self._system, folder, name)
            except FileNotFoundError:
                self._folders.make(folder)
                return try_turn_lock(self._system, folder, name)

    def _check_writable(self, key: ThreadKey) -> None:
        if self.read_only:
            raise ReadOnly(key, "the memory was opened with read_only=True", "open it for writing")

    def after_fork(self) -> None:
        """Let go of the parent's files."""
        self._mutex = threading.Lock()
        self._writer.after_fork()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()
