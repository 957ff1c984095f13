"""Memory: the registry of threads, keyed on (namespace, id), over one store.

Open threads are held weakly, and the latest of them strongly: as long as anyone holds a thread,
opening its name again gives the same object, and a process that serves a million threads keeps
few of them.

Source: spec R2, R5 to R10; design, sections 2 and 5.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeVar
from weakref import WeakSet, WeakValueDictionary, finalize

from turnlog.capability import Capability, require
from turnlog.codec import decode_turn
from turnlog.commit import GroupCommit
from turnlog.conversation import Conversation
from turnlog.errors import Closed, DamagedThread, ForeignThread
from turnlog.interrupts import DeferredSignals, restore_signals
from turnlog.measure import check_count
from turnlog.names import DEFAULT_NAMESPACE, ThreadKey, check_name, thread_key
from turnlog.news import News
from turnlog.ownthread import in_own_thread, workers
from turnlog.stores.location import store_at
from turnlog.thread import MemoryThread
from turnlog.workingset import WorkingSet, damage_warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from turnlog.errors import DamageWarning
    from turnlog.stores.base import Read, Store, ThreadInfo

    _Parameters = ParamSpec("_Parameters")
    _Result = TypeVar("_Result")

DEFAULT_ROOT: Final = "./.sema/memory"
_MOST_RECENT: Final = 128


class Memory:
    """The threads of one store: a folder, a server's URL, or a `Store` of your own.

    Args:
        location: where the threads are: a path, a store's URL (docs/stores.md lists them), or a
            store. Unless given, the environment's `TURNLOG_URL`, else `./.sema/memory`. A
            relative path is taken from the working directory of this moment, whatever it is later;
            `~` and `~user` are a user's home.
        read_only: open and list threads without ever writing; appends raise ReadOnly. For a path
            or a URL; a store of your own says so itself.
        strict: raise DamagedThread where a thread has lines that cannot be read, instead of
            warning.
        lock_timeout: the longest wait, in seconds, for another process' lock on a thread.

    Raises:
        UnknownStore: no store is known by the URL's scheme, it cannot be read, or it is empty.
        MissingExtra: the store's client library is not installed.

    A context manager, sync and async: it is closed at the end. Touches no disk when made. Safe to
    use from any number of threads and tasks, and after a fork.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | Store | None = None,
        *,
        read_only: bool = False,
        strict: bool = False,
        lock_timeout: float = 30.0,
    ) -> None:
        """Make a memory; nothing is opened yet."""
        if location is None:
            location = os.environ.get("TURNLOG_URL") or DEFAULT_ROOT
        self._store = store_at(location, read_only=read_only, lock_timeout=lock_timeout)
        self._strict = strict
        self._commit = GroupCommit(self._store, lock_timeout)
        self._news = News(self._store)
        self._closed = False
        self._threads: WeakValueDictionary[ThreadKey, MemoryThread] = WeakValueDictionary()
        self._recent: OrderedDict[ThreadKey, MemoryThread] = OrderedDict()
        self._mutex = threading.RLock()  # a signal's handler may open a thread while we hold it
        _memories.add(self)
        # Of a memory that nobody holds any more, nothing is left behind.
        self._collected = finalize(self, _release_apart, self._commit, self._store)
        self._collected.atexit = False

    def __repr__(self) -> str:
        """Show the store."""
        return f"<Memory over {self._store!r}>"

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def read_only(self) -> bool:
        """Whether it only reads."""
        return self._store.read_only

    @property
    def store(self) -> Store:
        """The store that it is over."""
        return self._store

    # ---- opening ----

    def open(self, id: str, namespace: str = DEFAULT_NAMESPACE) -> MemoryThread:
        """Open a thread, or give the open one: as long as it is held, the same object.

        Args:
            id: the thread's name within its namespace; a plain name, since it becomes a file's.
            namespace: a plain name too; "default" unless given.

        Returns:
            The thread, with every turn that was ever appended to it. One that does not exist yet
            is empty, and is made by its first append.

        Raises:
            InvalidName: a name is not plain.
            CapabilityDenied: the sandbox took FS_WRITE away (FS_READ, for a read-only memory).
            LockTimeout: another process kept it locked for too long.
            NotAThread: what stands under the name is not a thread's file, or another spelling's.
            DamagedThread: with `strict`, it has lines that cannot be read.
            StoreError: it cannot be read; or not written to, and the memory is not read-only.
            Closed: the memory was closed.

        Blocks on the disk the first time; in async code use `aopen`. Source: spec R5 to R10.
        """
        key = self._checked_key(id, namespace)
        thread = self._registered(key) or self._loaded(key)
        thread.tell(stacklevel=3)
        return thread

    async def aopen(self, id: str, namespace: str = DEFAULT_NAMESPACE) -> MemoryThread:
        """Open a thread off the event loop. As `open`."""
        key = self._checked_key(id, namespace)
        thread = self._registered(key) or await _off_loop(self._loaded, key)
        thread.tell(stacklevel=3)
        return thread

    def _checked_key(self, id_: str, namespace: str) -> ThreadKey:
        key = thread_key(id_, namespace)
        needed = Capability.FS_READ if self.read_only else Capability.FS_WRITE
        require(needed, "memory/open", key)
        self._check_open(key)
        return key

    def _check_open(self, subject: object) -> None:
        if self._closed:
            raise Closed(subject, "its memory was closed", "open a new Memory")

    def _registered(self, key: ThreadKey) -> MemoryThread | None:
        with self._mutex:
            thread = self._threads.get(key)
            return self._remember(thread) if thread is not None and thread.usable else None

    def _loaded(self, key: ThreadKey) -> MemoryThread:
        working = WorkingSet(key, self._store.load(key))
        if self._strict and working.problems():
            raise _damaged(working)
        with self._mutex:  # of two that loaded it at once, the first stays
            thread = self._threads.get(key)
            if thread is None or not thread.usable:
                thread = self._threads[key] = self._thread(working)
            return self._remember(thread)

    def _open_at_end(self, key: ThreadKey) -> MemoryThread:
        self._checked_key(key.id, key.namespace)
        load: Callable[[ThreadKey], Read] = getattr(self._store, "load_end", self._store.load)
        thread = self._thread(WorkingSet(key, load(key)))
        thread.tell(stacklevel=4)
        return thread

    def _thread(self, working: WorkingSet) -> MemoryThread:
        return MemoryThread(working, self._commit, self._news, self)

    def _remember(self, thread: MemoryThread) -> MemoryThread:
        self._recent[thread.key] = thread
        self._recent.move_to_end(thread.key)
        if len(self._recent) > _MOST_RECENT:
            self._recent.popitem(last=False)
        return thread

    # ---- the stored threads ----

    def peek(self, id: str, namespace: str = DEFAULT_NAMESPACE, *, last: int) -> Conversation:
        """Read the last turns of a stored thread, without the rest and without opening it.

        Args:
            id: the thread's id.
            namespace: its namespace; "default" unless given.
            last: how many turns.

        Returns:
            The turns, or all where there are fewer; none where there is no such thread. Behind half
            a megabyte of damage no more turns are looked for, and a DamageWarning says so.

        Raises:
            InvalidTurn: `last` is not a number, 0 or more.
            InvalidName, CapabilityDenied, Closed: as `open` raises them; it needs FS_READ.
            LockTimeout: another process kept it locked for too long.
            StoreError: it cannot be read.

        Blocks on the disk for as long as reading these turns takes, however long the thread is;
        in async code use `apeek`. Writes nothing: what a crash left is not mended. Source: case
        C17.
        """
        return _told(self._peek(self._peekable(id, namespace, last), last))

    async def apeek(
        self, id: str, namespace: str = DEFAULT_NAMESPACE, *, last: int
    ) -> Conversation:
        """Read the last turns of a stored thread off the event loop. As `peek`."""
        return _told(await _off_loop(self._peek, self._peekable(id, namespace, last), last))

    def _peek(self, key: ThreadKey, last: int) -> tuple[Conversation, DamageWarning | None]:
        read = self._store.tail(key, last)
        lines = read.lines[max(0, len(read.lines) - last) :]
        warning = damage_warning(key) if read.problems else None
        return Conversation(map(decode_turn, lines)), warning

    def _peekable(self, id_: str, namespace: str, last: int) -> ThreadKey:
        key = thread_key(id_, namespace)
        check_count(last, "peek", key)
        require(Capability.FS_READ, "memory/peek", key)
        self._check_open(key)
        return key

    def threads(self, namespace: str | None = None) -> Iterator[ThreadInfo]:
        """List the stored threads without reading their turns, by namespace and id.

        Args:
            namespace: of this namespace only; of all unless given.

        Yields:
            Each thread's namespace, id, size in bytes and last time of writing.

        Raises:
            InvalidName, CapabilityDenied, Closed, StoreError: when it is called; it needs FS_READ.

        Blocks on the disk while it is iterated.
        """
        if namespace is not None:
            check_name(namespace, "namespace")
        require(Capability.FS_READ, "memory/threads", self)
        self._check_open(self)
        return self._store.threads(namespace)

    def delete(
        self,
        thread: str | MemoryThread,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> bool:
        """Delete a whole thread, durably: its turns, and what was set aside from its file.

        Args:
            thread: its id, or the open thread itself.
            namespace: where an id is given, its namespace.

        Returns:
            Whether there was anything to delete.

        Raises:
            ForeignThread: the open thread is another memory's.
            ReadOnly, LockTimeout, StoreError: it could not be deleted.
            InvalidName, CapabilityDenied, Closed: as `open` raises them; it needs FS_WRITE.

        Its open handle takes no more appends; what it has in memory stays readable. Blocks on the
        disk; in async code use `adelete`.
        """
        return self._delete(self._deletable(thread, namespace))

    async def adelete(self, thread: str | MemoryThread, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Delete a whole thread off the event loop. As `delete`."""
        return await _off_loop(self._delete, self._deletable(thread, namespace))

    def _deletable(self, thread: str | MemoryThread, namespace: str) -> ThreadKey:
        if isinstance(thread, MemoryThread):
            if thread.memory is not self:
                raise ForeignThread(
                    thread.key, "it is a thread of another memory", "delete it there"
                )
            key = thread.key
        else:
            key = thread_key(thread, namespace)
        require(Capability.FS_WRITE, "memory/delete", key)
        self._check_open(key)
        return key

    def _delete(self, key: ThreadKey) -> bool:
        with self._mutex:
            thread = self._threads.get(key)
        existed = self._store.delete(key)
        if thread is not None:  # one that was opened since is the new thread's
            thread.end()
        return existed

    # ---- the end ----

    def close(self) -> None:
        """Take no more appends, wait for those under way, and let go of files and threads.

        What the open threads hold in memory stays readable. May be called again. Blocks; in async
        code use `aclose`.
        """
        self._closed = True
        if self._collected.detach() is not None:
            _release(self._commit, self._store)
        self._recent.clear()
        self._news.wake_all()

    async def aclose(self) -> None:
        """Close off the event loop. As `close`."""
        import asyncio  # noqa: PLC0415 - takes as long to import as all the rest

        await asyncio.wrap_future(in_own_thread(self.close))  # whatever keeps all the workers busy

    def __enter__(self) -> Self:
        """Give the memory itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    async def __aenter__(self) -> Self:
        """Give the memory itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.aclose()

    def after_fork(self) -> None:
        """In a forked child: start afresh with files, locks and threads; called by itself."""
        self._mutex = threading.RLock()
        self._commit.after_fork()
        self._store.after_fork()
        self._news.after_fork()
        for thread in list(self._threads.values()):
            thread.after_fork()


def _release(commit: GroupCommit, store: Store) -> None:
    commit.close()
    store.close()


def _release_apart(commit: GroupCommit, store: Store) -> None:
    """Release what a collected memory had, in no thread that waits for it, and in no event loop."""
    in_own_thread(partial(_release, commit, store))


def _told(peeked: tuple[Conversation, DamageWarning | None]) -> Conversation:
    conversation, warning = peeked
    if warning is not None:
        warnings.warn(warning, stacklevel=3)
    return conversation


def _damaged(working: WorkingSet) -> DamagedThread:
    problems = working.problems()
    first = problems[0]
    return DamagedThread(
        working.key,
        f"{len(problems)} of its lines cannot be read in full: line {first.line}: {first.reason}",
        "open it without strict=True to have every other turn",
    )


async def _off_loop(
    work: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
) -> _Result:
    import asyncio  # noqa: PLC0415 - takes as long to import as all the rest

    context = copy_context()
    done = workers.submit(lambda: context.run(work, *args, **kwargs))
    return await asyncio.wrap_future(done)


def open_at_end(memory: Memory, key: ThreadKey) -> MemoryThread:
    """Open a thread to append to it alone; for the command line.

    It shows some of the last turns at most, and is not the thread that `Memory.open` gives. Where
    the store can find a thread's end without its turns, they are not read.

    Raises and blocks as `Memory.open`.
    """
    return memory._open_at_end(key)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


# ---- the process's own ----

_memories: Final[WeakSet[Memory]] = WeakSet()
_default: Memory | None = None
_default_mutex = threading.RLock()


def default_memory() -> Memory:
    """Give the process's default memory, which `turnlog.open` uses; made at its first use.

    It lies where `TURNLOG_URL` says (a path or a store's URL), else in `./.sema/memory`, as of the
    working directory of that moment.
    """
    global _default  # noqa: PLW0603 - one a process is what it is
    with _default_mutex:
        if _default is None or _default.closed:
            _default = Memory()
        return _default


def open(id: str, namespace: str = DEFAULT_NAMESPACE) -> MemoryThread:  # noqa: A001 - the spec's word
    """Open a thread of the process's default memory. As `Memory.open`."""
    return default_memory().open(id, namespace)


async def aopen(id: str, namespace: str = DEFAULT_NAMESPACE) -> MemoryThread:
    """Open a thread of the process's default memory off the event loop. As `Memory.aopen`."""
    memory = _default if _default and not _default.closed else await _off_loop(default_memory)
    return await memory.aopen(id, namespace)


def _after_fork() -> None:
    global _default_mutex  # noqa: PLW0603 - another thread of the parent may have held it
    _default_mutex = threading.RLock()
    try:
        restore_signals()
    finally:
        with (
            DeferredSignals()
        ):  # what a handler raises would leave memories with the parent's locks
            for memory in list(_memories):
                memory.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
