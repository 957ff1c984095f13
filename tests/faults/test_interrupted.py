"""Contract 7: Ctrl-C in the middle of an append lets it complete, and is raised after it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from systems import Gate, Together, Watched
from writers import contents, lines_on_disk

from turnlog import Memory, MemoryThread, Message, NotWritten
from turnlog.stores.jsonl import JsonlStore
from turnlog.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("collected")


class Presses:
    """Presses Ctrl-C, for real, at a call of one kind; several times if need be."""

    def __init__(self, call: str, times: int = 1) -> None:
        """Wait for that call."""
        self.call = call
        self.times = times
        self.pressed = 0

    def __call__(self, call: str, _: tuple[Any, ...]) -> None:
        """Send the signal, where it is time to."""
        if call == self.call and not self.pressed:
            while self.pressed < self.times:
                self.pressed += 1
                os.kill(os.getpid(), signal.SIGINT)


def opened(root: Path, before: Callable[[str, tuple[Any, ...]], None]) -> MemoryThread:
    """Open a thread with one turn, over a system with something before its calls from then on."""
    befores = Together()
    thread = Memory(JsonlStore(root, system=Watched(befores))).open("t").append("first")
    befores.befores.append(before)
    return thread


def checked(root: Path, thread: MemoryThread, expected: list[str]) -> None:
    """Check that the thread and its file show the same turns, and that it goes on."""
    assert [m.content for m in thread.messages()] == expected
    assert lines_on_disk(root) == expected == contents(root)
    thread.append("next")
    assert lines_on_disk(root) == [*expected, "next"]


@pytest.mark.parametrize("call", ["try_lock", "status_of", "write", "sync", "unlock"])
@pytest.mark.parametrize("times", [1, 3])
def test_at_every_step(root: Path, call: str, times: int) -> None:
    """Ctrl-C at any step of an append is raised when the turn is durable; then it goes on."""
    handler = signal.getsignal(signal.SIGINT)
    presses = Presses(call, times)
    thread = opened(root, presses)
    with pytest.raises(KeyboardInterrupt):
        thread.append("second")
    assert presses.pressed == times
    assert signal.getsignal(signal.SIGINT) is handler
    checked(root, thread, ["first", "second"])


def test_extend(root: Path) -> None:
    """Ctrl-C in the middle of an extend leaves all of its turns (Contract 7)."""
    thread = opened(root, Presses("write"))
    with pytest.raises(KeyboardInterrupt):
        thread.extend([Message("user", "second"), Message("assistant", "third")])
    checked(root, thread, ["first", "second", "third"])


def waits(thread: int) -> bool:
    """Tell whether an OS thread stands still until its ticket is done."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    return frame is not None and frame.f_code is Ticket.wait.__code__


def test_while_it_waits_for_another(root: Path) -> None:
    """Ctrl-C while another thread commits for this one is raised after the commit."""
    gate = Gate("sync")
    thread = opened(root, gate)
    leading = threading.Thread(target=thread.append, args=("second",))
    leading.start()
    main = threading.get_ident()

    def press() -> None:
        while not waits(main):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        gate.opened.set()

    assert gate.reached.wait(60)
    pressing = threading.Thread(target=press, daemon=True)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        thread.append("third")
    leading.join()
    pressing.join()
    checked(root, thread, ["first", "second", "third"])


def test_of_a_failing_append(root: Path) -> None:
    """Ctrl-C in an append that fails leaves nothing of it, and the lock is let go of."""

    def before(call: str, _: tuple[Any, ...]) -> None:
        if call == "sync" and not pressed:
            pressed.append(call)
            os.kill(os.getpid(), signal.SIGINT)
            raise OSError(5, os.strerror(5))

    pressed: list[str] = []
    thread = opened(root, before)
    with pytest.raises(KeyboardInterrupt) as raised:
        thread.append("second")
    assert isinstance(raised.value.__cause__, NotWritten)
    checked(root, thread, ["first"])


def test_handler_of_the_user(root: Path) -> None:
    """A handler of the user's own is called after the append, once, and stays in place."""
    called: list[list[str]] = []

    def handler(number: int, _: object) -> None:
        assert number == signal.SIGINT
        called.append(lines_on_disk(root))

    before = signal.signal(signal.SIGINT, handler)
    try:
        opened(root, Presses("sync")).append("second")
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert called == [["first", "second"]]


def test_ignored(root: Path) -> None:
    """Where the user ignores Ctrl-C, so does an append."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        thread = opened(root, Presses("sync")).append("second")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    checked(root, thread, ["first", "second"])


def test_in_asyncio(root: Path) -> None:
    """Ctrl-C in asyncio.run cancels the task that appends, after the append (Contract 7)."""
    befores = Together()
    memory = Memory(JsonlStore(root, system=Watched(befores)))

    async def main() -> None:
        thread = await memory.aopen("t")
        await thread.aappend("first")
        befores.befores.append(Presses("sync"))
        await thread.aappend("second")
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    checked(root, memory.open("t"), ["first", "second"])


def test_between_appends(root: Path) -> None:
    """Ctrl-C between two appends is raised at once: nothing holds it up."""
    with Memory(root) as memory:
        thread = memory.open("t").append("first")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        checked(root, thread, ["first"])
