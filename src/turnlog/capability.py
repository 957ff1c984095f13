"""What the running code may do: capabilities, and the sandbox that takes them away.

Carried by a context variable, so that tasks and `asyncio.to_thread` inherit what their creator
has; a bare `threading.Thread` starts with a fresh context, as Python has it. A sandbox can only
take away, never give back.

Source: spec R5, R17; semantics, sandbox.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from enum import Flag, auto
from typing import TYPE_CHECKING, Final

from turnlog.errors import CapabilityDenied

if TYPE_CHECKING:
    from collections.abc import Generator


class Capability(Flag):
    """What code may be allowed to do: a set of flags, joined by `|`. turnlog asks for three.

    FS_READ: to list threads, and to open and refresh those of a read-only memory.
    FS_WRITE: to open a thread, to append to it, to refresh, fork and delete it.
    LLM: to run an agent, and to send a conversation to a model.
    """

    FS_READ = auto()
    FS_WRITE = auto()
    SHELL = auto()
    NETWORK = auto()
    ENV_READ = auto()
    ENV_WRITE = auto()
    PROCESS = auto()
    LLM = auto()
    SERIAL = auto()


_NOTHING: Final = Capability(0)
_denied: Final[ContextVar[Capability]] = ContextVar("denied", default=_NOTHING)


@contextmanager
def sandbox(*, deny: Capability) -> Generator[None]:
    """Take capabilities away for the code inside the `with` block, and for the tasks it starts.

    Args:
        deny: the capabilities to take away, on top of those already taken.

    Does not block and touches no disk.
    """
    token = _denied.set(_denied.get() | deny)
    try:
        yield
    finally:
        _denied.reset(token)


def require(capability: Capability, operation: str, subject: object) -> None:
    """Raise CapabilityDenied where `operation` on `subject` needs what a sandbox took away."""
    denied = _denied.get()
    if denied is _NOTHING or not denied & capability:
        return
    name = str((denied & capability).name).lower().replace("_", "-")
    raise CapabilityDenied(
        f"Permission denied: {operation} requires {name!r} capability",
        f"the sandbox took it away for {subject}",
        "call it outside of the sandbox, or leave this capability out of its deny=",
    )
