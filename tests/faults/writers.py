"""Programs that the tests start as processes of their own; each does one thing to a memory.

`python writers.py WHAT ROOT ...`. A line on stdout is an acknowledgement: it is written when the
call that it speaks of has returned, and not before.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import warnings
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from systems import Gate, Skips, Together, Watched

from turnlog import Memory, MemoryThread, Message, TornTailWarning, TurnlogError
from turnlog.names import ThreadKey
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from pathlib import Path

Process: TypeAlias = subprocess.Popen[str]

LONGEST: Final = 100.0  # in seconds: others may stand still with the lock, or have it in turns

# ---- what a test calls ----


@contextmanager
def running(
    what: str, *args: object, under: Sequence[str] = (), program: str = __file__
) -> Generator[Process]:
    """Start a program, under another one if need be; it is dead when the block ends."""
    command = [*under, sys.executable, program, what, *map(str, args)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def result(what: str, *args: object, under: Sequence[str] = ()) -> list[str]:
    """Run a program to its end, however it ends; give its lines."""
    with running(what, *args, under=under) as process:
        out, _ = process.communicate(timeout=LONGEST)
    return out.splitlines()


def go(process: Process, line: str = "go") -> None:
    """Let a program go on that waits for a line."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def line(process: Process) -> str:
    """Wait for the next line of a program."""
    assert process.stdout is not None
    return process.stdout.readline().removesuffix("\n")


def rest(process: Process) -> list[str]:
    """Give the whole lines that a program had still written; it must have ended."""
    assert process.stdout is not None
    lines = process.stdout.read().split("\n")
    return lines[:-1]


def contents(root: Path, id: str = "t") -> list[str]:
    """Open a thread afresh, as a new process would, and give its turns; nothing may be damaged."""
    with Memory(root, lock_timeout=LONGEST) as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", TornTailWarning)
        thread = memory.open(id)
        assert thread.problems == ()
        return [message.content for message in thread.messages()]


def lines_on_disk(root: Path, id: str = "t") -> list[str]:
    """Give the contents of the file's lines as anyone reads them, each whole JSON."""
    data = (root / "default" / f"{id}.jsonl").read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line)["content"] for line in data.split(b"\n")[:-1]]


def by_writer(turns: Iterable[str]) -> dict[str, list[int]]:
    """Give the numbers of each writer's turns, in the thread's order."""
    found: dict[str, list[int]] = {}
    for turn in turns:
        writer, number = turn.split(maxsplit=2)[:2]
        found.setdefault(writer, []).append(int(number))
    return found


def each_in_order(turns: Iterable[str]) -> Counter[str]:
    """Check that each writer's turns are there from 0 on, each once, in order; count them."""
    found = by_writer(turns)
    for numbers in found.values():
        assert numbers == list(range(len(numbers)))
    return Counter({writer: len(numbers) for writer, numbers in found.items()})


# ---- the programs ----


def append(root: str, id: str, writer: str, count: str, size: str) -> None:
    """Append `count` turns of some size, or, if it is 0, as many as there is time for."""
    thread = Memory(root, lock_timeout=LONGEST).open(id)
    ready()
    i = 0
    while i != (int(count) or -1):
        thread.append(f"{writer} {i} ".ljust(int(size), "x"))
        say(i)
        i += 1


def extend(root: str, id: str, writer: str, count: str, size: str) -> None:
    """Extend a thread by threes; the writer's numbers go on from turn to turn."""
    thread = Memory(root, lock_timeout=LONGEST).open(id)
    ready()
    i = 0
    while i != (3 * int(count) or -1):
        turns = [f"{writer} {i + k} ".ljust(int(size), "x") for k in range(3)]
        thread.extend(Message("assistant", turn) for turn in turns)
        say(i + 2)
        i += 3


def first_opens(root: str, id: str, writer: str, count: str) -> None:
    """Open a thread that nobody has made yet in many OS threads at once, each in its own memory."""
    ready()
    barrier = threading.Barrier(int(count))

    def work(number: int) -> None:
        with Memory(root, lock_timeout=LONGEST) as memory:
            barrier.wait()
            memory.open(id).append(f"{writer}.{number} 0")
        say(number)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(int(count))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def hold_and_fork(root: str, id: str, act: str) -> None:
    """Do as `hold`, with a child that was forked with the lock held, and that does nothing."""
    hold(root, id, act, fork=True)


# The system's call at which it stands still, and what is begun.
HOLDS: Final[dict[str, tuple[str, Callable[[MemoryThread, JsonlStore, ThreadKey], object]]]] = {
    "append": ("sync", lambda thread, _store, _key: thread.append("held 0")),
    "load": ("read", lambda _, store, key: store.load(key)),
    "tail": ("read", lambda _, store, key: store.tail(key, 1)),
    "delete": ("unlink", lambda _, store, key: store.delete(key)),
    "repair": ("read", lambda _, store, key: store.repair(key)),
}


def hold(root: str, id: str, act: str = "append", *, fork: bool = False) -> None:
    """Begin to do something, and stand still in the middle of it, with the thread's lock held.

    An append's line is written then, and not synced.
    """
    before = Together()
    store = JsonlStore(root, system=Watched(before))
    thread = Memory(store).open(id)
    call, begin = HOLDS[act]
    gate = Gate(call)
    before.befores.append(gate)
    worker = threading.Thread(target=begin, args=(thread, store, ThreadKey(thread.namespace, id)))
    worker.start()
    gate.reached.wait()
    if fork:
        warnings.simplefilter("ignore", DeprecationWarning)
        if os.fork() == 0:
            say("forked")
            while os.read(0, 1):
                pass
            os._exit(0)
    ready()
    gate.opened.set()
    worker.join()
    say("done")


def acts(root: str, skipped: str) -> None:
    """Do everything that writes, one after the other; leave out one kind of call, if any."""
    with Memory(JsonlStore(root, system=Skips(skipped))) as memory:
        thread = memory.open("t")
        for i in range(3):
            thread.append(f"turn {i}")
            say("appended")
        thread.extend(Message("user", f"unit {i}") for i in range(3))
        say("extended")

        async def tasks() -> None:
            others = [await memory.aopen(f"task {i}") for i in range(5)]
            for content in ("first", "second"):
                await asyncio.gather(*(other.aappend(content) for other in others))
                say("appended")

        asyncio.run(tasks())
        memory.open("torn")
        say("mended")
        memory.open("torn").append("after the tear")
        say("appended")
        thread.fork("copy", namespace="other")
        say("forked")
        memory.delete(thread)
        say("deleted")


def attempts(root: str, id: str, count: str) -> None:
    """Try to append; say each time what became of it, and at the end what the thread holds."""
    with Memory(root) as memory:
        try:
            thread = memory.open(id)
        except TurnlogError as error:
            say(_outcome(error))
            return
        for i in range(int(count)):
            try:
                thread.append(f"turn {i}", key=f"key {i}")
                say("ok")
            except TurnlogError as error:
                say(_outcome(error))
        say(json.dumps([message.content for message in thread.messages()]))


def peak(root: str, id: str) -> None:
    """Open a thread and go through its turns; say how much memory that took, in bytes."""
    with Memory(root) as memory:
        memory.open("small")
        before = _high_water()
        messages = memory.open(id).messages()
        opened = _high_water()
        letters = sum(len(message.content) for message in messages)
        say(f"{opened - before} {_high_water() - before} {len(messages)} {letters}")


def _high_water() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def _outcome(error: TurnlogError) -> str:
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    return f"{type(error).__name__} {os.strerror(number) if number else ''}".strip()


def ready() -> None:
    """Say so, and wait for a line."""
    say("ready")
    sys.stdin.readline()


def say(what: object) -> None:
    """Write a line at once."""
    os.write(1, f"{what}\n".encode())


if __name__ == "__main__":
    _, what, *arguments = sys.argv
    warnings.simplefilter("ignore", TornTailWarning)
    globals()[what](*arguments)
