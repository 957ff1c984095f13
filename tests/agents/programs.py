"""Programs that the tests of agents start as processes of their own.

`python programs.py WHAT ARGUMENTS ...`. A line on stdout says what has happened, when it has.
"""

from __future__ import annotations

import asyncio
import atexit
import datetime as dt
import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from writers import go, line, ready, running, say

import turnlog
from turnlog import Memory, MemoryThread, Message

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from writers import Process

    from turnlog import Role

# ---- what a test calls ----

_SHOWN = "shown"
Reopened: TypeAlias = Callable[..., list[Message]]

program: Callable[..., AbstractContextManager[Process]] = partial(running, program=__file__)


def reopened_in_a_new_process(root: Path, id: str, namespace: str = "default") -> list[Message]:
    """Give the turns that a new process finds in a thread, which may not be damaged or torn."""
    process = _shower()
    go(process, json.dumps([str(root), namespace, id]))
    found: list[Message] = []
    while (shown := line(process)) != _SHOWN:
        found.append(_message(json.loads(shown)))
    return found


@cache
def _shower() -> Process:
    """Start the program that forks a process for each thread to show; it ends with this one."""
    everything = ExitStack()
    atexit.register(everything.close)
    return everything.enter_context(program("shows"))


@dataclass(frozen=True)
class Stored:
    """A thread that is open here, and what is on disk of it."""

    mem: MemoryThread
    root: Path

    @property
    def path(self) -> Path:
        """Its file."""
        return self.root / self.mem.namespace / f"{self.mem.id}.jsonl"

    def lines(self) -> list[dict[str, Any]]:
        """Give the lines of its file."""
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def reopened(self) -> list[Message]:
        """Give the turns that a new process finds."""
        return reopened_in_a_new_process(self.root, self.mem.id, self.mem.namespace)


def _message(turn: dict[str, Any]) -> Message:
    at = turn["at"] and dt.datetime.fromisoformat(turn["at"])
    return Message(turn["role"], turn["content"], at, turn["meta"])


# ---- the programs ----


def shows() -> None:
    """Fork a process for each line on stdin, which names a thread, and show that thread."""
    for asked in sys.stdin:
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            if status:
                break
            say(_SHOWN)
        else:
            _show(*json.loads(asked))
            os._exit(0)


def _show(root: str, namespace: str, id: str) -> None:
    """Write a thread's turns, a line each."""
    with Memory(root) as memory:
        for message in memory.open(id, namespace).messages():
            turn = {
                "role": message.role,
                "content": message.content,
                "at": message.at and message.at.isoformat(),
                "meta": message.meta and dict(message.meta),
            }
            say(json.dumps(turn))


def append(root: str, id: str, role: Role, content: str) -> None:
    """Append a turn."""
    with Memory(root) as memory:
        memory.open(id).append(content, role=role)


def runs(root: str, id: str, model: str, make: str, count: str) -> None:
    """Run an agent some times, one run after another; the inputs bear the process's number."""
    agent = _made(make, model)
    with Memory(root) as memory:
        mem = memory.open(id)
        ready()
        for i in range(int(count)):
            turnlog.run(agent, f"{os.getpid()} {i}", memory=mem)


def locked_runs(root: str, id: str, model: str, make: str, count: str) -> None:
    """Do as `runs`, each run under the turn lock; every other one in a loop of its own."""
    agent = _made(make, model)
    with Memory(root) as memory:
        mem = memory.open(id)
        ready()
        for i in range(int(count)):
            content = f"{os.getpid()} {i}"
            if i % 2:
                asyncio.run(_locked_run(agent, content, mem))
                continue
            with mem.turn_lock():
                turnlog.run(agent, content, memory=mem)


def fork_and_run(root: str, id: str, model: str) -> None:
    """Run an agent, fork, run it twice in the child, to its end, and then again in the parent."""
    agent = turnlog.Agent(model=model)
    mem = Memory(root).open(id)
    agent.run("before", memory=mem)
    say("parent")
    warnings.simplefilter("ignore", DeprecationWarning)  # that threads do not come along
    if child := os.fork():
        os.waitpid(child, 0)
        agent.run("after", memory=mem)
        say("parent")
    else:
        agent.run("child run", memory=mem)
        say("child")
        asyncio.run(agent.arun("child arun", memory=mem))
        say("child")


def _made(make: str, model: str) -> Any:
    from ways import AGENTS  # noqa: PLC0415 - the engine takes a second, which few programs need

    return AGENTS[make](model)


async def _locked_run(agent: Any, content: str, mem: MemoryThread) -> None:
    async with mem.turn_lock():
        await turnlog.arun(agent, content, memory=mem)


if __name__ == "__main__":
    _, what, *arguments = sys.argv
    warnings.simplefilter("error")
    globals()[what](*arguments)
