"""A store whose every commit is scripted, and threads whose tickets are committed to it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from turnlog import ThreadKey
from turnlog.stores.base import START, Append, Outcome, Position, Read
from turnlog.stores.inmemory import InMemoryStore
from turnlog.ticket import Decision, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnlog.commit import GroupCommit

PATIENCE = 60.0  # a watchdog, in seconds


class Thread:
    """A thread as a commit sees it: it keeps the outcomes of its tickets."""

    def __init__(self, name: str) -> None:
        """Begin with nothing read."""
        self.key = ThreadKey("n", name)
        self.position: Position = START
        self.lines: list[bytes] = []

    def decide(self, tickets: Sequence[Ticket], news: Read) -> Decision:
        """Append what the tickets bring."""
        del news
        return Decision([line for ticket in tickets for line in ticket.lines])

    def settle(
        self, tickets: Sequence[Ticket], outcome: Outcome, decision: Decision | None
    ) -> None:
        """Note what became of the tickets."""
        del decision
        for ticket in tickets:
            ticket.error = outcome.error
            self.lines += [] if outcome.error else ticket.lines
        self.position = outcome.position


class ScriptedStore(InMemoryStore):
    """A store that does, in each commit, the next step of a script before it commits.

    A step may give the outcomes itself; else the store gives them.
    """

    def __init__(self, *script: Callable[[Sequence[Append]], Sequence[Outcome] | None]) -> None:
        """Take the steps of the first commits."""
        super().__init__()
        self.script = list(script)
        self.batches: list[list[str]] = []
        self.committers: list[int] = []

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Note the batch, do the step, commit."""
        self.batches.append([append.key.id for append in batch])
        self.committers.append(threading.get_ident())
        outcomes = self.script.pop(0)(batch) if self.script else None
        return super().commit(batch) if outcomes is None else outcomes


class Gate:
    """A step that waits: `entered` tells when it is reached, `opened` lets it go on."""

    def __init__(self) -> None:
        """Be shut."""
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, batch: Sequence[Append]) -> None:
        """Wait."""
        del batch
        self.entered.set()
        assert self.opened.wait(PATIENCE)


def busy(*names: str) -> Callable[[Sequence[Append]], Sequence[Outcome]]:
    """Make a step in which some threads are locked; the others are read, and get nothing."""

    def step(batch: Sequence[Append]) -> Sequence[Outcome]:
        return [Outcome(Read(), append.position, busy=append.key.id in names) for append in batch]

    return step


def raising(error: BaseException) -> Callable[[Sequence[Append]], Sequence[Outcome]]:
    """Make a step that raises."""

    def step(batch: Sequence[Append]) -> Sequence[Outcome]:
        del batch
        raise error

    return step


def ticket_of(thread: Thread, text: str) -> Ticket:
    """Make a ticket."""
    return Ticket(thread, [text.encode()])


async def started(commit: GroupCommit, *tickets: Ticket) -> list[asyncio.Task[None]]:
    """Start a task for each ticket, and give them when all the tickets are in the queue."""
    tasks = [asyncio.create_task(commit.arun(ticket)) for ticket in tickets]
    await asyncio.sleep(0)  # each task runs up to where it waits for its outcome
    return tasks


async def reached(gate: Gate) -> None:
    """Wait, off the loop, until a gate is reached."""
    assert await asyncio.to_thread(gate.entered.wait, PATIENCE)


def committers_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """Give the committers among the threads that were not there before."""
    return [each for each in set(threading.enumerate()) - before if each.name == "turnlog"]


def in_time(work: Callable[[], object]) -> None:
    """Run what might hang for ever in a thread of its own, and fail if it does."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"
