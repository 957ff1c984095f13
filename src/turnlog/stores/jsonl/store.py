"""JsonlStore: threads as JSONL files under a root folder, one folder a namespace.

Lock order: a commit never waits for a file's lock; all the others hold one file's lock and wait for
it a bounded time. So nothing can deadlock. docs/architecture.md has the whole order.

Source: spec R3; design, sections 3 to 5.
"""

from __future__ import annotations

import datetime as dt
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from turnlog.errors import ReadOnly, StoreError
from turnlog.interrupts import LOOK, DeferredSignals
from turnlog.names import is_plain
from turnlog.stores.base import START, Append, Outcome, Read, ThreadInfo
from turnlog.stores.jsonl import doctor
from turnlog.stores.jsonl.failures import translated
from turnlog.stores.jsonl.folders import Folders, root_at
from turnlog.stores.jsonl.lockfile import LockFiles
from turnlog.stores.jsonl.openfiles import most_open, with_descriptors
from turnlog.stores.jsonl.osfile import System, is_folder, is_regular, native
from turnlog.stores.jsonl.repair import TORN_SUFFIX
from turnlog.stores.jsonl.strays import strays_in_namespace, strays_in_root
from turnlog.stores.jsonl.threadfile import SUFFIX, ThreadFile
from turnlog.stores.jsonl.watch import file_poller
from turnlog.stores.jsonl.writer import BatchWriter

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import TypeVar

    from turnlog.names import ThreadKey
    from turnlog.stores.base import Position
    from turnlog.stores.jsonl.doctor import Examination
    from turnlog.stores.jsonl.strays import Stray

    _Result = TypeVar("_Result")

# With some days to spare, so that these times exist in every time zone.
_EARLIEST: Final = dt.datetime(1, 1, 3, tzinfo=dt.UTC)
_LATEST: Final = dt.datetime(9999, 12, 29, tzinfo=dt.UTC)


class JsonlStore:
    """Threads as files: `<root>/<namespace>/<id>.jsonl`.

    Args:
        root: the folder of the memory; made, with its parents, by the first append. A relative
            path is taken from the working directory of now, `~` and `~user` are a user's home.
        read_only: write nothing, whatever is found.
        lock_timeout: the longest wait, in seconds, for another process' lock on a thread.
        system: the operating system's calls; tests give one that fails.

    Raises:
        UnknownStore: the root is empty, in the home of an unknown user, or no path at all.
        StoreError: the root is relative, and the working directory was removed.
    """

    commits_at_once: int = 1  # more would take turns at one disk
    commits_in_caller: bool = True

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
        self._folders = Folders(self._system, root_at(root))
        self._turn_locks = LockFiles(self._system)
        self._locked_files: set[ThreadFile] = set()  # that are read, deleted or repaired right now
        self._openings = threading.BoundedSemaphore(most_open() // 2)  # so many files at once
        self._writer = BatchWriter(self._folders, read_only=read_only)
        self._poller = file_poller(self._system, self._folders)

    def __repr__(self) -> str:
        """Show where it is."""
        return f"JsonlStore({self.root!r})"

    @property
    def root(self) -> str:
        """The absolute path of the folder."""
        return native(self._folders.root)

    def load(self, key: ThreadKey) -> Read:
        """Read a thread's file from its start, mending what a crash left at its end."""
        return self._opened(key, self._load)

    def load_end(self, key: ThreadKey) -> Read:
        """Read the end of a thread's file as `load` does, and no more of it than that takes.

        Its position is the thread's end, to append at; its lines are some of the last turns.
        """
        return self._opened(key, self._load_end)

    def _opened(self, key: ThreadKey, load: Callable[[ThreadFile], Read]) -> Read:
        with translated(key, "it cannot be opened"):
            read = self._locked(key, load, write=not self.read_only)
            if read is None:
                if not self.read_only:
                    self._folders.check_may_create(key)
                read = Read()
        return replace(read, warnings=(*read.warnings, *self._folders.warnings()))

    def _load(self, file: ThreadFile) -> Read:
        return self._load_from(file, START)

    def _load_end(self, file: ThreadFile) -> Read:
        return self._load_from(file, file.near_end())

    def _load_from(self, file: ThreadFile, begin: Position) -> Read:
        read = file.read(begin, must_mend=False)
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
        opened = partial(self._folders.open, key, write=write)
        with DeferredSignals() as signals, self._opening(signals):
            while (file := with_descriptors(opened)) is not None:
                try:
                    self._locked_files.add(file)
                    file.lock(self._lock_timeout, signals.let_through)
                    stands = file.stands()
                    result = use(file) if stands else None
                    self._let_go(file)
                except BaseException:
                    self._let_go(file)
                    raise
                if stands:
                    return result
        return None

    @contextmanager
    def _opening(self, signals: DeferredSignals) -> Generator[None]:
        """Wait until one more file may be open."""
        openings = self._openings
        while not openings.acquire(timeout=LOOK):
            signals.let_through()
        try:
            yield
        finally:
            if openings is self._openings:  # else a signal's handler has forked this child
                openings.release()

    def _let_go(self, file: ThreadFile) -> None:
        """Unlock and close a file. May be called again."""
        if file not in self._locked_files:
            return  # also in a child that a signal's handler forked: the file is its parent's
        try:
            file.unlock()  # closing is not enough: a child that is just being forked has it too
        finally:
            self._locked_files.remove(file)
            file.close()

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Write to each file of the batch, then sync them side by side."""
        return self._writer.commit(batch)

    def threads(self, namespace: str | None = None) -> Iterator[ThreadInfo]:
        """List the threads' files. Names that are not plain are other programs'.

        What cannot be listed does not hide the others: its error comes after them.
        """
        failed: list[StoreError] = []
        for name in self._namespaces(failed) if namespace is None else [namespace]:
            for id_, size, modified in self._files(name, failed):
                if is_plain(id_):
                    yield ThreadInfo(name, id_, size, _utc(modified))
        if failed:
            raise failed[0]

    def _files(self, namespace: str, failed: list[StoreError]) -> list[tuple[str, int, float]]:
        """Give id, size and time of each file; no more, since there may be very many."""
        return sorted(
            (entry.removesuffix(SUFFIX), status.st_size, status.st_mtime)
            for entry, status in self._listed(self._folders.of(namespace), failed)
            if entry.endswith(SUFFIX) and is_regular(status)
        )

    def _namespaces(self, failed: list[StoreError]) -> list[str]:
        entries = self._listed(self._folders.root, failed)
        return sorted(name for name, status in entries if is_plain(name) and is_folder(status))

    def _listed(
        self, folder: str, failed: list[StoreError]
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Go through what a folder holds; an error ends it, and is added to those that failed."""
        try:
            yield from self._entries(folder)
        except StoreError as error:
            failed.append(error)

    def _entries(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        with translated(self, "its threads cannot be listed"):
            try:
                if is_folder(self._system.status_of(folder)) or folder == self._folders.root:
                    yield from self._system.scan(folder)  # else `open` refuses it too
            except (FileNotFoundError, NotADirectoryError):
                return

    def delete(self, key: ThreadKey) -> bool:
        """Remove a thread's file and what was set aside from it, if there is any; durable."""
        self._check_writable(key)
        with translated(key, "it cannot be deleted"):
            existed = self._locked(key, self._delete, write=True) is not None
            if not existed:
                with suppress(FileNotFoundError):  # who removed it may not have come to the sync
                    self._system.sync_folder(self._folders.of(key.namespace))
            self._forget(key)
            self._turn_locks.remove(key, self._folders.of(key.namespace), key.id + SUFFIX)
            return existed

    def _delete(self, file: ThreadFile) -> bool:
        name = file.name
        for companion in (name + TORN_SUFFIX, doctor.rewritten_name(name)):
            with suppress(FileNotFoundError):  # first, so that a crash in between leaves no orphan
                self._system.unlink(f"{file.folder}/{companion}")
        self._system.unlink(f"{file.folder}/{name}")
        self._system.sync_folder(file.folder)
        return True

    def examine(self, key: ThreadKey) -> Examination | None:
        """Read a thread's whole file and say what is wrong with it. Blocks; writes nothing.

        Nothing is mended either, whether the store is read-only or not.

        Returns:
            What was found; None where the thread has no file.

        Raises:
            LockTimeout: a writer kept it locked for too long.
            StoreError: it could not be read; a NotAThread where the name leads to something else.
        """
        with translated(key, "it cannot be examined"):
            return self._locked(key, partial(doctor.examine, self._system), write=False)

    def repair(self, key: ThreadKey) -> Examination | None:
        """Leave only turns in a thread's file, each on a line of its own, durably. Blocks.

        What is no turn, the unfinished append at the end included, is moved to `<id>.jsonl.torn`.
        The turns stay as they are, byte for byte and in their order. A turn that gives a key twice
        is one of them: its problem remains. A file without damage is only synced. Where there
        is damage the file is replaced by a new one, of the same owner as far as may be: open
        threads notice, and raise ThreadReplaced. A crash in the middle loses no byte: the thread
        is as it was or repaired, and calling this again does the rest.

        Returns:
            What was found before the repair; None where the thread has no file.

        Raises:
            ReadOnly: the store only reads.
            LockTimeout: another process kept it locked for too long; nothing was changed.
            NotAThread: what stands under its name is no regular file, or holds no turn at all and
                more than an unfinished append: it may be another program's. Nothing was changed.
            ThreadReplaced: a program that ignores the lock changed it during the repair.
            StoreError: it could not be repaired; every turn is still there.
        """
        self._check_writable(key)
        with translated(key, "it cannot be repaired"):
            use = partial(doctor.repair, self._system, self._folders)
            try:
                return self._locked(key, use, write=True)
            finally:
                self._forget(key)

    def _forget(self, key: ThreadKey) -> None:
        self._writer.forget(key)

    def strays(self, namespace: str | None = None) -> Iterator[Stray]:
        """List what lies in the memory's folders and belongs to no thread. Blocks; reads no file.

        A thread's own are `<id>.jsonl` and, beside it, `.torn` and `.lock`. All the rest is given,
        by its path: files with other names, folders, symbolic links (they are not followed), what
        was set aside from a thread that is gone, what a repair left that was killed.

        Args:
            namespace: look into this one only; by default into all, and into the root.

        Raises:
            StoreError: a folder, or an entry of it, could not be listed; after all the others.
        """
        failed: list[StoreError] = []
        if namespace is None:
            yield from strays_in_root(self._listed(self._folders.root, failed))
        for name in self._namespaces(failed) if namespace is None else [namespace]:
            yield from strays_in_namespace(name, self._listed(self._folders.of(name), failed))
        if failed:
            raise failed[0]

    def try_turn_lock(self, key: ThreadKey) -> Callable[[], None] | None:
        """Lock the file `<id>.jsonl.lock` beside the thread's; it is made, with its folder."""
        self._check_writable(key)
        name = key.id + SUFFIX
        with translated(key, "its turn lock cannot be taken"):
            folder = self._folders.of(key.namespace)
            lock = partial(self._turn_locks.try_lock, key, folder, name)
            try:
                return with_descriptors(lock)
            except FileNotFoundError:
                self._folders.make(folder)
                return with_descriptors(lock)

    def watch(self, key: ThreadKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Look at the status of the thread's file every 0.1 s, in one OS thread for all of them."""
        return self._poller.watch(key, changed)

    def _check_writable(self, key: ThreadKey) -> None:
        if self.read_only:
            raise ReadOnly.of(key)

    def after_fork(self) -> None:
        """Let go of the parent's files."""
        self._openings = threading.BoundedSemaphore(most_open() // 2)
        while self._locked_files:
            with suppress(OSError):
                self._locked_files.pop().close()  # or this child keeps a dead parent's lock
        self._turn_locks.after_fork()
        self._writer.after_fork()
        self._poller.after_fork()

    def close(self) -> None:
        """Close the files, and look at none any more."""
        self._writer.close()
        self._poller.close()


def _utc(seconds: float) -> dt.datetime:
    """Return a time of the system's; beyond what Python can hold, the nearest that it can."""
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return _LATEST if seconds > 0 else _EARLIEST
