"""Whatever the system says, in whichever call, reaches the caller as one of our errors (C36)."""

from __future__ import annotations

import asyncio
import errno
import os
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from bytesofit import put, turn
from systems import Watched

from turnlog import Memory, StoreError, ThreadKey, TornTailWarning
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = ThreadKey("default", "t")
# What is there before: a thread with a torn end, one whose end was cut out, and no thread at all.
TORN = turn("first") + turn("torn")[:-20]
DAMAGED = turn("first") + b"no turn\n" + turn("second")


class FailsAt:
    """Fails the call of some number, whichever it is; several threads may call."""

    def __init__(self, number: int, error: int) -> None:
        """Count down to it."""
        self.left = number
        self.error = error
        self.failed: str | None = None

    def __call__(self, call: str, args: tuple[Any, ...]) -> None:
        """Fail, where it is time to. The system closes what it says it cannot close."""
        self.left -= 1
        if self.left == -1:
            self.failed = call
            if call == "close":
                os.close(args[0])
            raise OSError(self.error, os.strerror(self.error), call)


class Quick(Watched):
    """A system that waits for no device: these tests cut no power."""

    def sync(self, fd: int) -> None:
        """Say that it is done."""

    def sync_folder(self, path: str) -> None:
        """Say that it is done."""


def untroubled(_: str, __: tuple[Any, ...]) -> None:
    """Let every call work."""


def store_of(memory: Memory) -> JsonlStore:
    """Return the memory's store."""
    assert isinstance(memory.store, JsonlStore)
    return memory.store


def appended(memory: Memory) -> None:
    """Open a thread, append twice, and refresh."""
    memory.open("t").append("a").append("b").refresh()


async def in_a_loop(memory: Memory) -> None:
    """Append in a loop to two threads at once."""
    threads = [await memory.aopen(name) for name in ("t", "u")]
    done = await asyncio.gather(*(t.aappend("a") for t in threads), return_exceptions=True)
    for error in done:
        if isinstance(error, BaseException):
            raise error


def locked(memory: Memory) -> None:
    """Take a turn lock."""
    with memory.open("t").turn_lock(timeout=5):
        pass


def watched(memory: Memory) -> None:
    """Begin to watch a thread, and end it."""
    store_of(memory).watch(KEY, lambda: None)()


def listed(memory: Memory) -> None:
    """List all that there is."""
    list(memory.threads())
    list(store_of(memory).strays())


ACTS: dict[str, Callable[[Memory], object]] = {
    "open": lambda memory: memory.open("t"),
    "append": appended,
    "append in a loop": lambda memory: asyncio.run(in_a_loop(memory)),
    "peek": lambda memory: memory.peek("t", last=3),
    "delete": lambda memory: memory.open("t").append("a") and memory.delete("t"),
    "threads": listed,
    "turn lock": locked,
    "watch": watched,
    "examine": lambda memory: store_of(memory).examine(KEY),
    "repair": lambda memory: store_of(memory).repair(KEY),
}


CASES = [
    *((act, before) for act in ACTS for before in ("no thread", "torn")),
    *((act, "damaged") for act in ("examine", "repair")),
]


@pytest.mark.parametrize(("act", "before"), CASES)
def test_every_call(root: Path, open_files: Callable[[], list[str]], act: str, before: str) -> None:
    """Whichever call fails, the error is ours, and neither a lock nor a file is left (C36)."""
    warnings.simplefilter("ignore")
    data = {"no thread": b"", "torn": TORN, "damaged": DAMAGED}[before]
    for number in range(200):
        place = root / str(number)
        if data:
            put(place, data)
        fails = FailsAt(number, errno.EINTR if number % 2 else errno.EIO)
        memory = Memory(JsonlStore(place, system=Quick(fails)), lock_timeout=5)
        with suppress(StoreError):
            ACTS[act](memory)
        fails.left = 10**9
        store = JsonlStore(place, lock_timeout=0, system=Quick(untroubled))
        with Memory(store, lock_timeout=0) as another:
            another.open("t").append("last")
            assert another.peek("t", last=1)[0].content == "last"
            with another.open("t").turn_lock(timeout=0):
                pass
        memory.close()
        assert open_files() == [], fails.failed
        if fails.failed is None:
            return
    pytest.fail("it makes more than two hundred calls")


@pytest.mark.parametrize("before", [b"", TORN], ids=["no thread", "torn"])
def test_every_call_of_the_end(root: Path, before: bytes) -> None:
    """Closing a memory raises nothing: all that was acknowledged is on the disk (C36)."""
    warnings.simplefilter("ignore", TornTailWarning)
    if before:
        put(root, before)
    fails = FailsAt(10**9, errno.EIO)
    for number in range(5):
        memory = Memory(JsonlStore(root, system=Quick(fails)))
        memory.open("t").append("a")
        fails.left = number
        memory.close()
        fails.left = 10**9


def test_the_first_opening_of_all(root: Path) -> None:
    """A folder that cannot be looked at is an error of ours at the very first opening (C36)."""
    put(root, turn("first"))
    seen: list[str] = []
    for error in (errno.EIO, errno.EINTR, errno.EACCES, errno.ESTALE, errno.ELOOP, 12345):
        for number in range(30):
            fails = FailsAt(number, error)
            try:
                Memory(JsonlStore(root, system=Quick(fails))).open("t")
            except StoreError:
                seen.append(fails.failed or "")
            if fails.failed is None:
                break
    assert {"open_file", "status", "try_lock", "status_of", "read", "sync"} <= set(seen)
