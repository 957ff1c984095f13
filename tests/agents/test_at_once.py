"""Several runs at once on one thread: each run's turns stay together, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from dialogue import replying
from localserver import Provider, Reply, ToolCall, turns
from programs import Stored, program
from ways import said
from writers import go, line

import turnlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ways import Make

    from turnlog import Result

MANY = 8


def lookup(name: str) -> str:
    """Look something up."""
    return f"found {name}"


class Meeting:
    """Replies that a provider gives only when so many runs have asked: all of them are under way.

    The first reply to an input speaks of it and calls a tool; the one after that speaks of it too.
    """

    def __init__(self, count: int) -> None:
        """Wait for so many."""
        self._barrier = threading.Barrier(count, timeout=60)

    def __call__(self, body: dict[str, Any]) -> Reply:
        """Reply to a request."""
        sent = turns(body)
        text = next(text for role, text in reversed(sent) if role == "user")
        name = text.split("\n\n")[-1]  # the inputs of runs that began before go out with it
        if sent[-1][0] == "tool":
            return Reply("I found ", name, ".")
        self._barrier.wait()
        return Reply(f"Let me look for {name}.", ToolCall("lookup", {"name": name}))


def together(names: Iterable[str]) -> list[list[tuple[str, str]]]:
    """Give the turns that the runs of some inputs leave, each run's by themselves."""
    return [
        [
            ("user", name),
            ("assistant", f"Let me look for {name}."),
            ("assistant", f"I found {name}."),
        ]
        for name in names
    ]


def by(count: int, found: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Give turns in groups of so many."""
    return [list(found[i : i + count]) for i in range(0, len(found), count)]


NAMES = [f"number {i}" for i in range(MANY)]


# ---- without a lock ----


async def arun(agent: Any, content: str, **options: Any) -> Result[Any]:
    """Run an agent."""
    return await turnlog.arun(agent, content, **options)


async def astream(agent: Any, content: str, **options: Any) -> Result[Any]:
    """Read an agent's stream."""
    stream = turnlog.astream(agent, content, **options)
    async for _ in stream:
        pass
    return stream.result


@pytest.mark.parametrize("way", [arun, astream])
def test_the_turns_of_tasks_at_once_stay_together(
    provider: Provider, model: str, make: Make, stored: Stored, way: Callable[..., Any]
) -> None:
    """Of many runs at once in one loop each one's turns are contiguous, and all are there (A06)."""
    provider.reply = Meeting(MANY)
    agent = make(model, tools=[lookup])

    async def main() -> list[Result[Any]]:
        return await asyncio.gather(*(way(agent, name, memory=stored.mem) for name in NAMES))

    results = asyncio.run(main())
    assert sorted(by(3, said(stored.reopened()))) == sorted(together(NAMES))
    assert [said(result.written) for result in results] == together(NAMES)


def test_the_turns_of_threads_at_once_stay_together(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """Of many runs at once in threads of one process each one's turns are contiguous (A06)."""
    provider.reply = Meeting(MANY)

    def run(name: str) -> Result[Any]:
        return turnlog.run(make(model, tools=[lookup]), name, memory=stored.mem)

    with ThreadPoolExecutor(MANY) as pool:
        results = list(pool.map(run, NAMES))
    assert sorted(by(3, said(stored.reopened()))) == sorted(together(NAMES))
    assert [said(result.written) for result in results] == together(NAMES)


def test_eager_turns_of_runs_at_once_are_all_there(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """Eagerly, runs at once may lie between each other; each one's turns keep their order."""
    provider.reply = Meeting(MANY)
    agent = make(model, tools=[lookup])

    async def main() -> None:
        runs = (arun(agent, name, memory=stored.mem, writeback="eager") for name in NAMES)
        await asyncio.gather(*runs)

    asyncio.run(main())
    found = said(stored.reopened())
    assert len(found) == 3 * MANY
    for name, expected in zip(NAMES, together(NAMES), strict=True):
        assert [turn for turn in found if turn[1].removesuffix(".").endswith(name)] == expected


def test_the_turns_of_processes_at_once_stay_together(
    provider: Provider, model: str, stored: Stored
) -> None:
    """Of runs at once in several processes each one's turns are contiguous, and all there (A06)."""
    barrier = threading.Barrier(3, timeout=60)

    def replying_to_three(body: dict[str, Any]) -> Reply:
        barrier.wait()
        return replying(body)

    provider.reply = replying_to_three
    pids = in_processes("runs", stored, model, ("ours", "theirs", "ours"), count=4)
    found = by(2, said(stored.reopened()))
    assert all(reply == ("assistant", f"re {text}") for (_, text), reply in found)
    each = {pid: [text for (_, text), _ in found if text.startswith(f"{pid} ")] for pid in pids}
    assert each == {pid: [f"{pid} {i}" for i in range(4)] for pid in pids}
    assert len(found) == 12


def in_processes(
    what: str, stored: Stored, model: str, makes: Sequence[str], count: int
) -> list[int]:
    """Run a program in several processes at once, to their ends; give their numbers."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(program(what, stored.root, "t", model, make, count))
            for make in makes
        ]
        for process in processes:
            assert line(process) == "ready"
        for process in processes:
            go(process)
        for process in processes:
            process.communicate(timeout=100)
        assert [process.returncode for process in processes] == [0] * len(makes)
        return [process.pid for process in processes]


# ---- with the turn lock ----


def assert_one_after_another(provider: Provider, stored: Stored, count: int) -> None:
    """Check that each run was sent all that the ones before it had left, and nothing else."""
    found = said(stored.reopened())
    assert len(found) == 2 * count
    sent = [turns(request) for request in provider.requests]
    assert sent == [found[: 2 * i + 1] for i in range(count)]


@pytest.mark.parametrize("way", [arun, astream])
def test_the_turn_lock_puts_tasks_one_after_another(
    provider: Provider, model: str, make: Make, stored: Stored, way: Callable[..., Any]
) -> None:
    """Under the turn lock each task's run sees the ones before it, first come first (A06)."""
    provider.reply = replying
    agent = make(model)

    async def run(name: str) -> None:
        async with stored.mem.turn_lock():
            await way(agent, name, memory=stored.mem)

    async def main() -> None:
        await asyncio.gather(*map(run, NAMES))

    asyncio.run(main())
    assert_one_after_another(provider, stored, MANY)
    assert [text for role, text in said(stored.reopened()) if role == "user"] == NAMES


def test_the_turn_lock_puts_threads_one_after_another(
    provider: Provider, model: str, make: Make, stored: Stored
) -> None:
    """Under the turn lock each thread's run sees the ones before it (A06)."""
    provider.reply = replying

    def run(name: str) -> None:
        with stored.mem.turn_lock():
            turnlog.run(make(model), name, memory=stored.mem)

    with ThreadPoolExecutor(MANY) as pool:
        list(pool.map(run, NAMES))
    assert_one_after_another(provider, stored, MANY)


def test_the_turn_lock_puts_processes_one_after_another(
    provider: Provider, model: str, stored: Stored
) -> None:
    """Under the turn lock runs in several processes, sync and async, see the ones before (A06)."""
    provider.reply = replying
    in_processes("locked_runs", stored, model, ("ours", "theirs", "ours"), count=4)
    assert_one_after_another(provider, stored, 12)


def test_an_append_is_not_kept_out_by_a_run(provider: Provider, model: str, stored: Stored) -> None:
    """While a run holds the turn lock, an append goes on, and lies before the run's turns."""

    def appending(body: dict[str, Any]) -> Reply:
        stored.mem.append("From elsewhere.")
        return replying(body)

    provider.script(appending)
    agent = turnlog.Agent(model=model)
    with stored.mem.turn_lock():
        agent.run("Hello?", memory=stored.mem)
    assert said(stored.reopened()) == [
        ("user", "From elsewhere."),
        ("user", "Hello?"),
        ("assistant", "re Hello?"),
    ]
