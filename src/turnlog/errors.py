"""The error family: what a caller can catch.

```
TurnlogError
├── InvalidName          a namespace or id that is not a plain name (also a ValueError)
├── InvalidTurn          a role, content, meta, key or expect that is no good (also a ValueError)
├── CapabilityDenied     the sandbox took the capability away (also a PermissionError)
├── ForeignThread        a memory was given a thread of another memory (also a ValueError)
├── UnknownStore         no store is known by the URL (also a ValueError)
├── UnknownModel         no model is known by the name (also a ValueError)
├── MissingKey           the environment has no key for the model's provider
├── MissingExtra         a package is missing that an extra installs (also an ImportError)
├── RunningLoop          a call that blocks was made where an event loop runs (also a RuntimeError)
├── RunFailed            a run or a chat ended without its reply; it carries what was said
│   ├── ModelFailed      the model or its provider failed
│   └── ToolsFailed      five tool calls in a row failed
├── Closed               the memory, or the handle of a deleted thread, takes no more calls
├── Conflict             append(expect=n): the thread holds other than n turns; nothing was written
└── StoreError           the store could not do it (also an OSError)
    ├── NotAThread       what stands under the name is not a thread's file, or is another name's
    ├── DamagedThread    strict=True: the thread has lines that cannot be read
    ├── NotWritten       the append failed and nothing of it is in the thread
    │   ├── ReadOnly     the memory was opened for reading (also a PermissionError)
    │   ├── LockTimeout  another process kept the lock too long (also a TimeoutError)
    │   └── ThreadReplaced  the file was replaced, truncated or removed under the open thread
    ├── OutcomeUnknown   the append failed, and so did rolling it back: reopen, retry by its key
    └── WritebackFailed  a run's turns could not be appended to its thread; it carries them

TurnlogWarning (a UserWarning)
├── TornTailWarning          an unfinished append was found at the end of a thread and set aside
├── CutReplyWarning          `chat` gives a reply that the limit of tokens or a filter cut short
├── DamageWarning            a thread has lines that cannot be read; every other turn is there
└── UnsafeFileSystemWarning  the memory lies where turnlog cannot promise durability
```

Every message says what it concerns (a thread by its name), what was wrong and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class TurnlogError(Exception):
    """The base of every error that turnlog raises on purpose.

    Attributes:
        subject: what the error concerns, as it stands in the message.
        what: what was wrong.
        hint: what the user can do.
    """

    def __init__(self, subject: object, what: str, hint: str) -> None:
        """Compose the message from its three parts."""
        super().__init__(f"{subject}: {what}; {hint}")
        self.subject: str = str(subject)
        self.what: str = what
        self.hint: str = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the parts, so that an error crosses a process boundary whole."""
        return (type(self), (self.subject, self.what, self.hint), dict(self.__dict__))


class InvalidName(TurnlogError, ValueError):
    """Raised when a namespace or an id is not a plain name. Nothing was created."""


class InvalidTurn(TurnlogError, ValueError):
    """Raised when a role, content, meta, key or expect cannot be kept. Nothing was written."""


class CapabilityDenied(TurnlogError, PermissionError):
    """Raised when `sandbox` took away a capability that an operation needs. Nothing was done."""


class ForeignThread(TurnlogError, ValueError):
    """Raised when a memory is given an open thread of another memory. Nothing was done."""


class UnknownStore(TurnlogError, ValueError):
    """Raised when a memory's location has a scheme that no store is known by."""


class UnknownModel(TurnlogError, ValueError):
    """Raised when no model is known by a name, or something is given that is no model."""


class MissingKey(TurnlogError):
    """Raised when a model's provider needs a key that the environment does not have.

    Also where the key has a character that cannot be sent, such as a newline at its end.
    """


class MissingExtra(TurnlogError, ImportError):
    """Raised when something needs a package that is not installed; the message has the pip line."""

    @classmethod
    def of(cls, subject: str, extra: str) -> MissingExtra:
        """Make the error for one of turnlog's extras."""
        return cls(subject, f"it needs the extra {extra!r}", f"pip install 'turnlog[{extra}]'")


class RunningLoop(TurnlogError, RuntimeError):
    """Raised when a call that blocks is made in a thread that runs an event loop.

    The message names the call to await instead.
    """


class RunFailed(TurnlogError):
    """Raised when a run, or a chat, ended without its reply. The cause, if any, is the engine's.

    Attributes:
        messages: the full history as the engine has it, up to where it failed.
        conversation: the same as a Conversation: texts only.
        usage: what it used, as the engine counts it.
        written: the turns that were written back to the thread; none where nothing was said.
    """

    messages: Sequence[Any] = ()
    conversation: Any = ()
    usage: Any = None
    written: Sequence[Any] = ()


class ModelFailed(RunFailed):
    """Raised when the model, or its provider, could not give a reply."""


class ToolsFailed(RunFailed):
    """Raised when five tool calls in a row failed, each of which the model was told of."""


class Closed(TurnlogError):
    """Raised when a closed memory, or the handle of a deleted thread, is used."""


class Conflict(TurnlogError):
    """Raised by `append(expect=n)` when the thread does not hold n turns. Nothing was written.

    Attributes:
        expected: the number of turns that the caller expected.
        actual: the number of turns that the thread holds.
        turns: the messages from position `expected` on: a Conversation of what came in between.
    """

    def __init__(  # noqa: PLR0913 - the three parts of a message, and the three of a conflict
        self,
        subject: object,
        what: str,
        hint: str,
        *,
        expected: int = 0,
        actual: int = 0,
        turns: Sequence[Any] = (),
    ) -> None:
        """Keep the turns that came beside the message."""
        super().__init__(subject, what, hint)
        self.expected: int = expected
        self.actual: int = actual
        self.turns: Sequence[Any] = turns


class StoreError(TurnlogError, OSError):
    """Raised when the store could not read or write; the system's own error is its cause."""


class NotAThread(StoreError):
    """Raised when a name leads to something that is no thread of that very name."""


class DamagedThread(StoreError):
    """Raised with `strict=True` when a thread has lines that cannot be read."""


class NotWritten(StoreError):
    """Raised when an append failed and nothing of it is in the thread. It is safe to retry."""


class ReadOnly(NotWritten, PermissionError):
    """Raised when a memory that was opened for reading is asked to write."""

    @classmethod
    def of(cls, thread: object) -> ReadOnly:
        """Make the error for a thread that was to be written to."""
        return cls(
            thread,
            "its memory was opened with read_only=True; nothing was written",
            "open it for writing",
        )


class LockTimeout(NotWritten, TimeoutError):
    """Raised when another process held a thread's lock for longer than `lock_timeout`."""

    @classmethod
    def after(cls, thread: object, seconds: float) -> LockTimeout:
        """Make the error for a thread whose lock did not come free in time."""
        return cls(
            thread,
            f"another process has kept it locked for {seconds:g} s; nothing was written",
            "try again, or find the process that hangs: fuser names it for a file, "
            "pg_stat_activity for a row",
        )


class ThreadReplaced(NotWritten):
    """Raised when a thread's file was replaced, truncated or removed while it was open."""


class OutcomeUnknown(StoreError):
    """Raised when an append failed and whether it is in the thread cannot be known.

    The handle takes no more appends: open the thread anew, and look, or retry with the same `key`.
    """


class WritebackFailed(StoreError):
    """Raised when what was said in a run could not be appended to its thread.

    Its cause is the store's own error: after a NotWritten, `mem.extend(error.turns)` is safe to
    try. It is raised in place of what ended the run, which is its context: a cancellation too, as
    in asyncio's TaskGroup, since lost turns must not pass in silence.

    Attributes:
        turns: the turns that were not written, as `extend` takes them.
        result: the run's result, where the run itself had ended well; else None.
    """

    turns: Sequence[Any] = ()
    result: Any = None


class TurnlogWarning(UserWarning):
    """The base of turnlog's warnings."""


class TornTailWarning(TurnlogWarning):
    """Issued when an append that never finished was found at a thread's end and set aside."""


class DamageWarning(TurnlogWarning):
    """Issued once for an open thread that has lines which cannot be read."""


class CutReplyWarning(TurnlogWarning):
    """Issued when `chat` gives a reply that the limit of tokens or the provider's filter cut."""


class UnsafeFileSystemWarning(TurnlogWarning):
    """Issued when a memory's folder lies on a file system without the guarantees turnlog needs."""
