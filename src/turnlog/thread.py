"""MemoryThread: a named, persistent, append-only log of turns.

Source: spec R6 to R17; design, sections 2 and 4.
"""

from __future__ import annotations

import datetime as dt
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from turnlog.capability import Capability, require
from turnlog.codec import encode_turn
from turnlog.conversation import Conversation
from turnlog.errors import Closed, InvalidTurn, ReadOnly
from turnlog.message import Message, Role, Scalar
from turnlog.news import News, check_wait
from turnlog.ticket import Ticket
from turnlog.turnlock import TurnLock, TurnQueue
from turnlog.workingset import WorkingSet, again

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence

    from turnlog.commit import GroupCommit
    from turnlog.names import ThreadKey
    from turnlog.stores.base import Problem, Store

_TURN_SIZE: Final = 1024  # what a turn that waits takes in memory beside its text, in bytes, about


class Opener(Protocol):
    """The memory that a thread belongs to, as the thread needs it: to fork into another thread."""

    @property
    def read_only(self) -> bool:
        """Whether it may only be read."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def open(self, id: str, namespace: str = ...) -> MemoryThread:
        """Open another thread of the same memory."""
        ...

    async def aopen(self, id: str, namespace: str = ...) -> MemoryThread:
        """Open another thread of the same memory, off the loop."""
        ...

    @property
    def store(self) -> Store:
        """The store that keeps the thread."""
        ...


class MemoryThread:
    """A memory thread: what `open` gives, and all that is done to a thread goes through.

    Do not make one yourself. The same (namespace, id) is the same object for as long as anyone
    holds it, so identity is equality. Safe to use from any number of threads and tasks at once.
    It cannot be pickled: open it by its name in the other process.
    """

    __slots__ = (
        "__weakref__",
        "_commit",
        "_memory",
        "_news",
        "_read_only",
        "_turn_queue",
        "_working",
    )

    def __init__(
        self, working: WorkingSet, commit: GroupCommit, news: News, memory: Opener
    ) -> None:
        """Be the handle of a working set; for `Memory` only."""
        self._working = working
        self._commit = commit
        self._news = news
        self._memory = memory
        self._read_only = memory.read_only
        # By the memory, which is to live as long as somebody holds the lock: it sees to forks.
        self._turn_queue = TurnQueue(lambda: memory.store.try_turn_lock(working.key))

    # ---- what it is ----

    @property
    def id(self) -> str:
        """Its id."""
        return self.key.id

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.key.namespace

    @property
    def key(self) -> ThreadKey:
        """Its namespace and id."""
        return self._working.key

    @property
    def memory(self) -> Opener:
        """The memory that it was opened in."""
        return self._memory

    @property
    def usable(self) -> bool:
        """Whether it takes calls; not after it was deleted, replaced or left in doubt."""
        return self._working.ended is None

    def __len__(self) -> int:
        """Give the number of turns, as known now."""
        return len(self._working)

    def __bool__(self) -> bool:
        """A thread is true, also when it is empty."""
        return True

    def __repr__(self) -> str:
        """Name the thread."""
        return f"<MemoryThread {self.id!r} in namespace {self.namespace!r}: {len(self)} turns>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        message = (
            f"{self.key}: a memory thread cannot be pickled or copied; "
            f"open it by its name: turnlog.open({self.id!r}, namespace={self.namespace!r})"
        )
        raise TypeError(message)

    # ---- reading ----

    def messages(self) -> Conversation:
        """Take a snapshot of the thread, in constant time: later appends do not change it.

        Never blocks, touches no disk, and needs no capability. What other processes appended is
        in it once this thread was opened, appended to or refreshed after that. Source: spec R16,
        R17, R18.
        """
        return Conversation.over(self._working.turns())

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What of the thread's file cannot be read, or not in full, in the file's order.

        Its bytes stay in the file. The first look checks each line that was loaded by the letter
        (some 10 us a line); no disk is touched. Source: design, section 4, point 6.
        """
        return self._working.problems()

    def index_of(self, key: str) -> int | None:
        """Say which turn was appended with an idempotency key.

        Args:
            key: the `key` that `append` or `extend` was given.

        Returns:
            The position in `messages()` of the turn (of the first turn of an extend), or None.

        Touches no disk.
        """
        return self._working.index_of(key)

    # ---- appending ----

    def append(
        self,
        content: str,
        *,
        role: Role = "user",
        meta: Mapping[str, Scalar] | None = None,
        key: str | None = None,
        expect: int | None = None,
    ) -> MemoryThread:
        """Append one turn; it is durable on disk when this returns.

        Args:
            content: the text.
            role: "user" (the default), "assistant" or "system".
            meta: what to keep beside the text: a flat mapping from str to scalars.
            key: an idempotency key: where the thread has a turn with it already, also from before
                a restart, nothing is appended (`index_of` says which turn it is).
            expect: append only if the thread holds this many turns.

        Returns:
            This thread, so that calls chain.

        Raises:
            InvalidTurn: the turn cannot be kept as it is.
            CapabilityDenied: the sandbox took FS_WRITE away.
            Conflict: the thread does not hold `expect` turns; it has the turns that came.
            NotWritten: it failed, and nothing of it is in the thread.
            OutcomeUnknown: it failed, and whether it is in the thread cannot be known.
            Closed: the memory was closed, or the thread deleted.

        Blocks until the disk has the turn; in async code use `aappend`. Source: spec R11 to R15.
        """
        self._run((self._message(content, role, meta),), key, expect)
        return self

    async def aappend(
        self,
        content: str,
        *,
        role: Role = "user",
        meta: Mapping[str, Scalar] | None = None,
        key: str | None = None,
        expect: int | None = None,
    ) -> MemoryThread:
        """Append one turn off the event loop; it is durable when this resolves.

        As `append`. Cancelled after it was submitted, it completes before the cancellation goes
        on. Source: spec R13 to R15; design, section 4, point 7.
        """
        await self._arun((self._message(content, role, meta),), key, expect)
        self.tell(3)
        return self

    def extend(
        self, messages: Iterable[Message], *, key: str | None = None, expect: int | None = None
    ) -> MemoryThread:
        """Append several turns as one: all or none of them, contiguous, also over a crash.

        Args:
            messages: the turns; one that has a time keeps it. None at all is allowed.
            key: an idempotency key for them together.
            expect: append only if the thread holds this many turns.

        Returns, raises and blocks as `append`.
        """
        self._run(self._checked(messages), key, expect)
        return self

    async def aextend(
        self, messages: Iterable[Message], *, key: str | None = None, expect: int | None = None
    ) -> MemoryThread:
        """Append several turns as one, off the event loop. As `extend` and `aappend`."""
        await self._arun(self._checked(messages), key, expect)
        self.tell(3)
        return self

    def refresh(self, wait: float = 0.0) -> MemoryThread:
        """Read forward what other processes appended, and wait for it where there is none yet.

        Args:
            wait: how many seconds to wait at most until the thread holds more turns than when this
                was called; 0, unless given, is only to read.

        Returns:
            This thread, also where nothing came.

        Raises:
            InvalidTurn: `wait` is not a finite number, 0 or more.
            CapabilityDenied: the sandbox took FS_WRITE away (FS_READ, in a read-only memory).
            NotWritten: it could not be read; a ThreadReplaced where the file is another now.
            StoreError: it could not be watched.
            Closed: the memory was closed, or the thread deleted, also while this waits.

        Blocks on the disk, as long as the reading takes, and while it waits; in async code use
        `arefresh`. Who waits is told by the store: nothing is read until there is something.
        """
        check_wait(wait, self.key)
        if wait:
            self._news.wait(self.key, wait, self._check_may_read, partial(self._came, len(self)))
        else:
            self._commit.run(self._reading())
        self.tell(3)
        return self

    async def arefresh(self, wait: float = 0.0) -> MemoryThread:
        """Read forward what other processes appended, off the event loop. As `refresh`.

        Who waits takes no OS thread, and may be cancelled at any time.
        """
        check_wait(wait, self.key)
        if wait:
            came = partial(self._acame, len(self))
            await self._news.await_(self.key, wait, self._check_may_read, came)
        else:
            await self._commit.arun(self._reading())
        self.tell(3)
        return self

    def fork(
        self,
        id: str,
        *,
        namespace: str | None = None,
        upto: int | None = None,
    ) -> MemoryThread:
        """Copy the thread's turns into a new thread, which goes its own way from there.

        Args:
            id: the new thread's id.
            namespace: its namespace; this thread's unless given.
            upto: copy the turns before this position; all that are known unless given.

        Returns:
            The new thread.

        Raises:
            Conflict: that thread exists and has turns.
            InvalidName: the new name is not plain.
            CapabilityDenied, NotWritten, OutcomeUnknown, Closed: as `append` raises them.

        Blocks on the disk; in async code use `afork`.
        """
        thread = self._memory.open(id, self.namespace if namespace is None else namespace)
        return thread.extend(self._working.turns()[:upto], expect=0)

    async def afork(
        self,
        id: str,
        *,
        namespace: str | None = None,
        upto: int | None = None,
    ) -> MemoryThread:
        """Copy the thread's turns into a new thread, off the event loop. As `fork`."""
        thread = await self._memory.aopen(id, self.namespace if namespace is None else namespace)
        return await thread.aextend(self._working.turns()[:upto], expect=0)

    # ---- one after another ----

    def turn_lock(self, timeout: float | None = None) -> TurnLock:
        """Give the thread's turn lock, which keeps others out from one turn to the next.

        Only those are kept out who take it too, in this process and in all others over the same
        store. Of those who wait on this very object the first to come is the first to go; beyond
        it there is no order. Appends need no lock, and go on.

        Args:
            timeout: how long to wait for it, in seconds; for ever unless given.

        Returns:
            A context manager, sync and async: `with mem.turn_lock():`. Entering waits, and raises
            LockTimeout after `timeout`. What was appended before is in `messages()` after a
            `refresh()`. It may not be nested. A holder that dies lets go of it.

        Raises:
            CapabilityDenied: the sandbox took FS_WRITE away.
            ReadOnly: its memory was opened for reading.
            Closed: the memory was closed, or the thread deleted.

        Entering touches the disk, and blocks but in `async with`. Source: design, section 6.
        """
        self.check_may_append("memory/turn-lock")
        return TurnLock(self.key, self._turn_queue, timeout)

    def check_may_append(self, operation: str = "memory/append") -> None:
        """Raise now what an append would raise for certain; for a run, before it asks a model.

        Args:
            operation: what is to be done, for the error.

        Raises:
            CapabilityDenied: the sandbox took FS_WRITE away.
            ReadOnly: its memory was opened for reading.
            Closed: the memory was closed, or the thread deleted.

        Touches no disk.
        """
        self._check_may_write(operation)
        self._check_open()

    def after_fork(self) -> None:
        """In a forked child: nobody waits or holds here; called by the memory."""
        self._turn_queue.after_fork()

    # ---- making tickets ----

    def _message(self, content: str, role: Role, meta: Mapping[str, Scalar] | None) -> Message:
        try:
            return Message(role, content, dt.datetime.now(dt.UTC), meta)
        except InvalidTurn as error:
            raise InvalidTurn(self.key, error.what, error.hint) from None

    def _checked(self, messages: Iterable[Message]) -> list[Message]:
        now = dt.datetime.now(dt.UTC)
        checked: list[Message] = []
        for message in messages:
            if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
                kind = type(message).__name__
                raise InvalidTurn(
                    self.key, f"extend was given a {kind}, not a Message", "give turnlog.Message"
                )
            timed = message.at is not None
            checked.append(
                message if timed else Message(message.role, message.content, now, message.meta)
            )
        return checked

    def _ticket(self, messages: Sequence[Message], key: str | None, expect: int | None) -> Ticket:
        self._check_may_write("memory/append")
        if key is not None or expect is not None:
            key = self._checked_conditions(key, expect)
        return Ticket(
            self._working,
            _lines(messages, key),
            key=key,
            expect=expect,
            size=_size(messages),
        )

    def _check_may_write(self, operation: str) -> None:
        require(Capability.FS_WRITE, operation, self.key)
        if self._read_only:
            raise ReadOnly.of(self.key)
        if self._working.ended is not None:
            raise again(self._working.ended)

    def _checked_conditions(self, key: object, expect: object) -> str | None:
        if key is not None and not (isinstance(key, str) and key):
            raise InvalidTurn(self.key, f"the key is {key!r}", "give a str that is not empty")
        if expect is not None and (type(expect) is not int or expect < 0):
            raise InvalidTurn(self.key, f"expect is {expect!r}", "give a number of turns")
        return None if key is None else str.__str__(key)

    def _reading(self) -> Ticket:
        self._check_may_read()
        return Ticket(self._working)

    def _check_may_read(self) -> None:
        # Reading forward mends a torn end, so it is a kind of writing, where there may be any.
        needed = Capability.FS_READ if self._read_only else Capability.FS_WRITE
        require(needed, "memory/refresh", self.key)
        if self._working.ended is not None:
            raise again(self._working.ended)
        self._check_open()

    def _check_open(self) -> None:
        if self._memory.closed:
            raise Closed(self.key, "its memory was closed", "open a new Memory")

    def _came(self, held: int) -> bool:
        self._commit.run(self._reading())
        return len(self) > held

    async def _acame(self, held: int) -> bool:
        await self._commit.arun(self._reading())
        return len(self) > held

    def _run(self, messages: Sequence[Message], key: str | None, expect: int | None) -> None:
        if messages and self._commit.full:
            self._commit.wait_for_room(_size(messages))
        self._commit.run(self._ticket(messages, key, expect))
        self.tell()

    def _arun(
        self, messages: Sequence[Message], key: str | None, expect: int | None
    ) -> Coroutine[Any, Any, None]:
        if messages and self._commit.full:
            return self._await_room_and_run(messages, key, expect)
        return self._commit.arun(self._ticket(messages, key, expect))

    async def _await_room_and_run(
        self, messages: Sequence[Message], key: str | None, expect: int | None
    ) -> None:
        await self._commit.await_room(_size(messages))
        await self._commit.arun(self._ticket(messages, key, expect))

    def end(self) -> None:
        """Take no more calls, since it was deleted; for `Memory` only."""
        self._working.end()
        self._news.wake(self.key)

    def tell(self, stacklevel: int = 4) -> None:
        """Issue the warnings that reading the thread gave rise to, each once.

        After an append they come when it is durable, so where warnings are errors it is there.
        """
        untold = self._working.untold
        if not untold:
            return
        with suppress(IndexError):  # another thread may have told the last one
            while untold:
                warnings.warn(untold.popleft(), stacklevel=stacklevel)


def _lines(messages: Sequence[Message], key: str | None) -> Sequence[bytes]:
    if len(messages) == 1:
        return (encode_turn(messages[0], key=key),)
    last = len(messages) - 1
    return [
        encode_turn(
            message,
            key=key if i == 0 else None,
            more=i < last,
            unit=last + 1 if i == last else None,
        )
        for i, message in enumerate(messages)
    ]


def _size(messages: Sequence[Message]) -> int:
    size = _TURN_SIZE * len(messages)
    for message in messages:
        size += len(message.content)
    return size
