"""Commits a batch to its files: each locked, read forward and written, then all synced at once.

A file whose lock another process has is left for another time (busy), so no file waits for
another, and since nothing here waits for a lock while it holds one, nothing can deadlock. Between
the last write and the end of the syncs all the batch's locks are held.

An exception from outside may be raised at any line, where a caller's own thread commits. What has
no outcome by then is cut off, every lock is released, and the rest of the batch is committed again.

Source: design, sections 4 and 5; cases C33 to C35 and C45.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from turnlog.errors import NotWritten, OutcomeUnknown, TurnlogError
from turnlog.stores.base import START, Append, BrokenOff, Outcome, Read
from turnlog.stores.jsonl.failures import failure
from turnlog.stores.jsonl.format import ends_unit
from turnlog.stores.jsonl.openfiles import NoRoomError, OpenFiles
from turnlog.stores.jsonl.syncing import SyncThreads
from turnlog.stores.jsonl.threadfile import replaced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.jsonl.folders import Folders
    from turnlog.stores.jsonl.threadfile import ThreadFile

_TRIES: Final = 16


class BatchWriter:
    """Appends to many files, and keeps the latest of them open. One commit at a time.

    Args:
        folders: the memory's folders.
        read_only: read forward only.
    """

    def __init__(self, folders: Folders, *, read_only: bool) -> None:
        """Hold no file yet."""
        self._folders = folders
        self._read_only = read_only
        self._files = OpenFiles()
        self._syncs = SyncThreads()

    def commit(self, batch: Sequence[Append]) -> list[Outcome]:
        """Commit a batch, as `Store.commit` says."""
        rounds: Sequence[_Round] = ()
        try:
            rounds = list(map(_Round, batch))
            self._commit(rounds)
            return [round_.outcome for round_ in rounds]
        except BaseException as error:  # noqa: BLE001 - it is raised when the outcomes are known
            raised = error
        rounds = rounds or list(map(_Round, batch))
        try:
            self._break_off(rounds)
            self._commit([round_ for round_ in rounds if not round_.ended])
        except BaseException as error:  # noqa: BLE001 - likewise
            self._break_off(rounds)
            for round_ in rounds:
                round_.refuse(error)
        raise BrokenOff([round_.outcome for round_ in rounds], raised)

    def _commit(self, rounds: Sequence[_Round]) -> None:
        waiting = deque(rounds)
        while waiting:
            self._files.acquire()
            self._commit_first(waiting)
            self._files.release()

    def _commit_first(self, waiting: deque[_Round]) -> None:
        """Commit the first of what waits, as many as there may be files open."""
        rounds: list[_Round] = []
        while waiting:
            rounds.append(waiting.popleft())
            if not self._write(rounds[-1]):
                waiting.appendleft(rounds.pop())
                break
        self._sync([round_ for round_ in rounds if round_.unsynced])
        for round_ in rounds:
            round_.end()

    def _break_off(self, rounds: Sequence[_Round]) -> None:
        """After an exception from outside: cut off what has no outcome, and release every lock."""
        self._files.acquire()
        self._syncs.abandon()
        for round_ in rounds:
            round_.break_off()
        self._files.unlock_used()
        self._files.release_all()

    def _write(self, round_: _Round) -> bool:
        """Do a thread's part up to its sync; False where others have to end before it."""
        append = round_.append
        try:
            file = self._lock(append.key, create=False)
            if file is None:
                if round_.position != START:
                    raise replaced(append.key, "its file was removed")
                if append.decide(Read()):
                    file = self._lock(append.key, create=True)
            if file is not None:
                round_.write(file)
        except NoRoomError:
            return False
        except _BusyError:
            round_.busy = True
        except OSError as error:
            round_.fail(error)
        return True

    def _lock(self, key: ThreadKey, *, create: bool) -> ThreadFile | None:
        """Give the thread's file, locked and standing under its name."""
        opened = partial(self._folders.open, key, write=not self._read_only, create=create)
        for _ in range(_TRIES):
            file = self._files.get(key, opened)
            if file is None:
                return None
            if not file.try_lock():
                raise _BusyError
            stands = False
            try:
                stands = file.stands()
            finally:
                if not stands:  # it was replaced: look at what stands there now
                    self._files.drop(key)
            if stands:
                return file
        raise _BusyError

    def _sync(self, rounds: list[_Round]) -> None:
        if len(rounds) == 1:
            rounds[0].sync()
        elif rounds:
            self._sync_side_by_side(rounds)
        new: dict[str, list[_Round]] = {}
        for round_ in rounds:
            if round_.file is not None and not round_.file.entry_synced:
                new.setdefault(round_.file.folder, []).append(round_)
        for group in new.values():
            try:
                self._folders.sync([r.file for r in group if r.file is not None])
            except OSError as error:
                for round_ in group:
                    round_.fail(error)

    def _sync_side_by_side(self, rounds: list[_Round]) -> None:
        self._syncs.run([round_.sync for round_ in rounds])

    def forget(self, key: ThreadKey) -> None:
        """Close a thread's file: it was removed or replaced, and its room is the disk's again."""
        self._files.forget(key)

    def after_fork(self) -> None:
        """Let go of the parent's files without unlocking them: the locks are shared with it."""
        self._syncs.after_fork()
        self._files.after_fork()

    def close(self) -> None:
        """Close the files and end the threads."""
        self._files.close()
        self._syncs.close()


class _BusyError(Exception):
    """Another process has the lock."""


class _Round:
    """One thread's part in a batch."""

    __slots__ = (
        "_end",
        "_error",
        "_news",
        "_outcome",
        "_wrote",
        "append",
        "busy",
        "file",
        "position",
        "unsynced",
    )

    def __init__(self, append: Append) -> None:
        self.append = append
        self.position = append.position
        self._outcome: Outcome | None = None
        self._reset()

    def _reset(self) -> None:
        self.file: ThreadFile | None = None
        self.busy = False
        self.unsynced = False
        self._wrote = False
        self._news = Read(position=self.position)
        self._end = self.position
        self._error: TurnlogError | None = None

    @property
    def ended(self) -> bool:
        """Whether its outcome is known."""
        return self._outcome is not None

    @property
    def outcome(self) -> Outcome:
        """What became of it; once it has ended."""
        if self._outcome is None:
            raise AssertionError
        return self._outcome

    def write(self, file: ThreadFile) -> None:
        """Read forward, let the caller decide, and write what it gives."""
        self.file = file
        if self.position.offset and self.position.incarnation == file.identity:
            file.entry_synced = True  # a position in it was given only when its entry was durable
        self._news = file.read(self.position)
        self._end = self._news.position
        lines = self.append.decide(self._news)
        if lines and self._news.lines and ends_unit(self._news.lines[-1]):
            # Its writer may have been killed before its sync. What a power cut left of the unit
            # would not be at the file's end any more, and so not be told from turns.
            self.sync()
            if self._error is not None:
                return
        if lines:
            self._wrote = self.unsynced = True
            self._end = file.append(self._news.position, lines)
        # Turns of a writer that was killed before its sync must not be built upon as they are.
        self.unsynced = bool(lines or self._news.lines) and file.writable

    def sync(self) -> None:
        """Make what was written durable."""
        try:
            if self.file is not None:
                self.file.sync()
                self.unsynced = False
        except OSError as error:
            self.fail(error)
            if self._news.lines:  # what others wrote is not durable either: as if it was not read
                self._forget()

    def _forget(self) -> None:
        if self.file is not None:
            self.file.forget(self.position)
        self._end = self.position
        self._news = Read(position=self.position)

    def fail(self, error: OSError) -> None:
        """Cut off what was written, and keep the reason."""
        if self._error is not None:
            return
        if isinstance(error, TurnlogError):
            self._error = error
        else:
            self._error = failure(NotWritten, self.append.key, "nothing was appended", error)
            self._error.__cause__ = error
        self._cut_off()

    def _cut_off(self) -> None:
        self.unsynced = False
        if self.file is None or not self._wrote:
            return
        self._end = self._news.position
        try:
            self.file.roll_back(self._end)
        except OutcomeUnknown as unknown:
            self._error = unknown

    def end(self) -> None:
        """Note its outcome, and unlock its file: what it wrote is durable, or was cut off."""
        if self.unsynced:  # never to be acknowledged
            message = f"{self.append.key}: what was written was not synced"
            raise AssertionError(message)
        self._outcome = Outcome(self._news, self._end, self._error, self.busy)
        if self.file is not None:
            self.file.unlock()

    def break_off(self) -> None:
        """Cut off what it wrote, unless its outcome is known; then it can be tried again."""
        if self._outcome is not None:
            return
        self._error = None
        self._cut_off()
        if self._error is not None:
            self.end()
        else:
            self._reset()

    def refuse(self, error: BaseException) -> None:
        """Note that it was not written, unless its outcome is known."""
        if self._outcome is None:
            key = self.append.key
            self._error = NotWritten(
                key, f"the commit was broken off ({error!r}); nothing was appended", "try again"
            )
            self._error.__cause__ = error
            self.end()
