"""Exceptions that come at any moment of an append, in several processes at once.

TURNLOG_STORM_SECONDS=60 has them come for so long on each store, instead of for a moment.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import interruptedwriters
import pytest
from interruptedwriters import EXIT_CODE, SHARED, own_ids
from writers import each_in_order, go, line, running

from turnlog import Memory

if TYPE_CHECKING:
    from pathlib import Path

    from writers import Process

SECONDS: Final = float(os.environ.get("TURNLOG_STORM_SECONDS", "2"))
LONGEST_END: Final = 20.0

pytestmark = pytest.mark.timeout(SECONDS + 110)


def acknowledged(file: Path) -> set[tuple[str, str]]:
    """Return the turns that a process was told are durable, each with its thread."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {(id_, content) for id_, _, content in (line.partition("\t") for line in lines)}


def check_idle(process: Process) -> None:
    """Wait until a process is done with what is interrupted, which it was in both ways."""
    what, _, counts = line(process).partition(" ")
    assert what == "idle", counts
    print("interruptions, by alarms and from other threads:", counts)
    assert all(map(int, counts.split()))


def probe(url: str, ids: list[str]) -> None:
    """Append to each thread, from this process, with little patience."""
    with Memory(url, lock_timeout=2.0) as memory:
        for id_ in ids:
            memory.open(id_).append("probe 0")


def contents(url: str, ids: list[str]) -> dict[str, list[str]]:
    """Return what a new memory reads; no line of it is damaged."""
    with Memory(url) as memory:
        threads = {id_: memory.open(id_) for id_ in ids}
        assert all(thread.problems == () for thread in threads.values())
        return {id_: [m.content for m in thread.messages()] for id_, thread in threads.items()}


def check(found: dict[str, list[str]], told: set[tuple[str, str]]) -> None:
    """Check that each writer's turns are there once, in order, and all that it was told of."""
    for turns in found.values():
        each_in_order(turns)
    there = {(id_, content) for id_, turns in found.items() for content in turns}
    assert told
    assert not told - there, f"lost: {sorted(told - there)[:10]}"


def terminate(process: Process) -> None:
    """End a process that appends, by SIGTERM."""
    time.sleep(random.uniform(0, 0.05))  # it is anywhere in its appends, or before them
    process.send_signal(signal.SIGTERM)
    assert process.wait(LONGEST_END) == EXIT_CODE


@pytest.mark.parametrize("store", ["files", "postgres_url", "nats_url"])
def test_processes(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    """Four processes, interrupted at any line, hang nowhere, leave no lock, lose no turn (C33)."""
    url = str(tmp_path / "memory") if store == "files" else request.getfixturevalue(store)
    names = [f"p{number}" for number in range(4)]
    ids = [*SHARED, *(id_ for name in names for id_ in own_ids(name))]
    program = interruptedwriters.__file__
    with ExitStack() as stack:
        processes: list[Process] = []
        for name in names:
            arguments = (url, name, tmp_path / name, SECONDS)
            processes.append(stack.enter_context(running("work", *arguments, program=program)))
        assert [line(process) for process in processes] == ["ready"] * 4
        for process in processes:
            go(process)
        for process in processes:
            check_idle(process)
        probe(url, ids)
        for process in processes:
            go(process)
        assert [line(process) for process in processes] == ["done"] * 4
        for process in processes:
            terminate(process)
    told = set[tuple[str, str]]().union(*(acknowledged(tmp_path / name) for name in names))
    check(contents(url, ids), told)


def test_in_memory(tmp_path: Path) -> None:
    """A process, interrupted at any line over a store in memory, does not hang (C33, C45)."""
    file = tmp_path / "acknowledged"
    program = interruptedwriters.__file__
    with running("work", "memory://", "p", file, SECONDS, program=program) as process:
        assert line(process) == "ready"
        go(process)
        check_idle(process)
        told = acknowledged(file)
        go(process)
        check(json.loads(line(process)), told)
        terminate(process)
