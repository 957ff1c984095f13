"""The seam for faults inside a process: operating systems that fail, wait or take notes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from turnlog.stores.jsonl.osfile import System

Arguments: TypeAlias = tuple[Any, ...]
Before: TypeAlias = Callable[[str, Arguments], None]

CALLS = frozenset(name for name in vars(System) if not name.startswith("_"))


@dataclass
class Watched(System):
    """The real system, with `before(call, arguments)` ahead of each call; it may raise instead."""

    before: Before

    def __getattribute__(self, name: str) -> Any:
        """Give a call of the system with what comes before it."""
        attribute = super().__getattribute__(name)
        if name not in CALLS:
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            self.before(name, args)
            return attribute(*args, **kwargs)

        return call


@dataclass
class Fails:
    """Makes calls of one kind fail: the first `skip` of them work, the next `times` do not."""

    call: str
    error: int
    skip: int = 0
    times: int = 1

    def __call__(self, call: str, _: Arguments) -> None:
        """Fail, where it is time to."""
        if call != self.call:
            return
        if self.skip:
            self.skip -= 1
        elif self.times:
            self.times -= 1
            raise OSError(self.error, os.strerror(self.error))


@dataclass
class Together:
    """Several of them on one system, in order; they may be changed as it runs."""

    befores: list[Before] = field(default_factory=list[Before])

    def __call__(self, call: str, args: Arguments) -> None:
        """Have each of them look at the call."""
        for before in self.befores:
            before(call, args)


@dataclass
class Gate:
    """Holds every call of one kind, from any thread, until it is opened."""

    call: str
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def __call__(self, call: str, _: Arguments) -> None:
        """Wait, where it is a call to be held."""
        if call == self.call:
            self.reached.set()
            if not self.opened.wait(60):
                message = "the test never opened its gate"
                raise TimeoutError(message)


@dataclass
class Notes:
    """Notes the names of all calls, and what they were given."""

    calls: list[tuple[str, Arguments]] = field(default_factory=list[tuple[str, Arguments]])

    def __call__(self, call: str, args: Arguments) -> None:
        """Note a call."""
        self.calls.append((call, args))

    def names(self, *of: str) -> list[str]:
        """Give the names of the calls, of some kinds only if any are given, in their order."""
        return [call for call, _ in self.calls if not of or call in of]


@dataclass
class ShortWrites(System):
    """Takes at most `most` bytes at a write, as the system may."""

    most: int

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write less than what is given."""
        return super().write(fd, data[: self.most])


@dataclass
class Skips(System):
    """A faulty program: it leaves out the syncs of a kind ("sync", "sync_folder" or ".torn")."""

    kind: str

    def sync(self, fd: int) -> None:
        """Wait for the device, or pretend to."""
        name = os.readlink(f"/proc/self/fd/{fd}")
        if self.kind != "sync" and not (self.kind == ".torn" and name.endswith(".torn")):
            super().sync(fd)

    def sync_folder(self, path: str) -> None:
        """Wait for the device, or pretend to."""
        if self.kind != "sync_folder":
            super().sync_folder(path)
