"""Programs that the tests start as processes of their own; each does one thing with a turn lock.

`python lockers.py WHAT ROOT ID ...`. A line on stdout says what has happened, when it has.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING

from writers import ready, running, say

from turnlog import LockTimeout, Memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from writers import Process

# ---- what a test calls ----

locker: Callable[..., AbstractContextManager[Process]] = partial(running, program=__file__)

# ---- the programs ----


def hold(root: str, id: str) -> None:
    """Hold the lock until a line comes."""
    with Memory(root).open(id).turn_lock():
        ready()
    say("done")
    sys.stdin.readline()


def hold_and_exit(root: str, id: str) -> None:
    """End at once, with the lock held, without a word to anyone."""
    Memory(root).open(id).turn_lock().__enter__()
    say("ready")
    os._exit(0)


def hold_and_fork(root: str, id: str) -> None:
    """Hold the lock, with a child that was forked under it and lives until its input ends."""
    with Memory(root).open(id).turn_lock():
        warnings.simplefilter("ignore", DeprecationWarning)
        if os.fork() == 0:
            say("forked")
            until_the_end()
            os._exit(0)
        ready()
    say("done")


def hold_and_spawn(root: str, id: str) -> None:
    """Hold the lock, with another program that was started under it, and lives on."""
    with Memory(root).open(id).turn_lock():
        subprocess.Popen([sys.executable, __file__, "live"], close_fds=False)
        ready()


def live() -> None:
    """Be there until the input ends."""
    say("forked")
    until_the_end()


def until_the_end() -> None:
    """Wait until the input ends, without reading it: its lines are for the other process."""
    polling = select.poll()
    polling.register(0, 0)
    polling.poll()


def take(root: str, id: str, timeout: str) -> None:
    """Wait for the lock, a bounded time; say whether it was had."""
    memory = Memory(root)
    lock = memory.open(id).turn_lock(timeout=float(timeout))
    say("waiting")
    try:
        with lock:
            say("had it")
    except LockTimeout as error:
        say(error)


def runs(root: str, id: str, writer: str, count: str) -> None:
    """Do runs of two turns each under the lock; a turn of somebody else's in one is an error."""
    mem = Memory(root).open(id)
    ready()
    for i in range(int(count)):
        with mem.turn_lock():
            seen = len(mem.refresh())
            mem.append(f"{writer} {2 * i}", expect=seen)
            mem.append(f"{writer} {2 * i + 1}", role="assistant", expect=seen + 1)
    say("done")


if __name__ == "__main__":
    _, what, *arguments = sys.argv
    globals()[what](*arguments)
