"""Lets several threads run one at a time, from one call of the system to the next, as drawn.

What they do is the same each time for the same draws. What they wait for (the threads of one
memory for each other, an event loop for its committer) is waited for here: `stand_ins` puts our
locks in the place of those of the modules that wait. A thread that is stopped never runs again, as
in a process that was killed; it is unwound when all is over.
"""

from __future__ import annotations

import selectors
import threading
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

from turnlog import commit, ticket
from turnlog.stores.jsonl import writer
from turnlog.stores.jsonl.syncing import SyncThreads

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Generator, Iterable

MOST_STEPS = 100_000


class Stopped(BaseException):
    """Raised in a thread that was stopped, once all is over."""


class Actor(threading.Thread):
    """One thread of a process.

    Args:
        schedule: says when it may run.
        work: what it does.
        process: whose it is.
        serves: it ends with the others, and not by itself.
    """

    def __init__(
        self, schedule: Schedule, work: Callable[[], object], process: object, *, serves: bool
    ) -> None:
        """Prepare a thread."""
        super().__init__(daemon=True)
        self.process = process
        self.serves = serves
        self.gone = False  # it has done its work, or was stopped
        self.ready: Callable[[], bool] = now
        self.gate = threading.Semaphore(0)
        self.failure: BaseException | None = None
        self._schedule = schedule
        self._work = work

    def run(self) -> None:
        """Do its work, in turn with the others."""
        self.gate.acquire()
        try:
            self._work()
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - raised where the run is waited for
            self.failure = error
        self._schedule.leave(self)


def now() -> bool:
    """Say that there is nothing to wait for."""
    return True


def do_not_sleep(_seconds: float) -> None:
    """Go on: the next call of the system lets the others run."""


class Schedule:
    """Says whose turn it is.

    Args:
        draw: what is drawn from.
    """

    def __init__(self, draw: random.Random) -> None:
        """Begin without any threads."""
        self._draw = draw
        self._stay = draw.choice((0.0, 0.5, 0.9))  # how likely it is that the same one goes on
        self._actors: list[Actor] = []
        self._over = threading.Semaphore(0)
        self._unwinding = False
        self._steps = 0

    def add(
        self, work: Callable[[], object], process: object, *, serves: bool = False
    ) -> int | None:
        """Add a thread, which waits for its turn; give its ident."""
        if self._unwinding:
            message = "no more threads, as at the end of the interpreter"
            raise RuntimeError(message)
        actor = Actor(self, work, process, serves=serves)
        actor.start()
        self._actors.append(actor)
        return actor.ident

    def run(self) -> None:
        """Have all of them run until each has done its work or was stopped."""
        self._hand_over(None)
        self._over.acquire()
        stuck = self._any_at_work()
        self._unwinding = True
        for actor in self._actors:
            actor.gate.release()
            actor.join()
        for actor in self._actors:
            if actor.failure is not None:
                raise actor.failure
        assert not stuck, "the threads wait for each other"

    @property
    def process(self) -> object:
        """Whose thread this is."""
        me = threading.current_thread()
        assert isinstance(me, Actor)
        return me.process

    def stop(self, process: object) -> None:
        """Let no thread of a process run again."""
        for actor in self._actors:
            actor.gone = actor.gone or actor.process is process

    def step(self, ready: Callable[[], bool] = now, *, others: bool = False) -> None:
        """Let others run first, for as long as it is drawn and until `ready`."""
        me = threading.current_thread()
        if not isinstance(me, Actor):
            return  # before the run, or after it
        if self._unwinding:
            raise Stopped
        me.ready = ready
        if others or me.gone or not ready() or self._draw.random() >= self._stay:
            if self._hand_over(me, others=others):
                me.gate.acquire()
            if self._unwinding:
                raise Stopped

    def leave(self, me: Actor) -> None:
        """Let the others run on without a thread."""
        me.gone = True
        if not self._unwinding:
            self._hand_over(None)

    def _hand_over(self, me: Actor | None, *, others: bool = False) -> bool:
        """Give the turn to one of those that can go on; say whether it is another."""
        self._steps += 1
        able = [actor for actor in self._actors if not actor.gone and actor.ready()]
        if others and len(able) > 1:
            able = [actor for actor in able if actor is not me]
        if not able or not self._any_at_work() or self._steps > MOST_STEPS:
            self._over.release()
            return True
        chosen = self._draw.choice(able)
        if chosen is me:
            return False
        chosen.gate.release()
        return True

    def _any_at_work(self) -> bool:
        return any(not actor.gone and not actor.serves for actor in self._actors)


# ---- what stands in for the locks of the modules that wait ----


class Lock:
    """As `threading.Lock`."""

    def __init__(self, schedule: Schedule) -> None:
        """Begin released."""
        self._schedule = schedule
        self._acquired = False

    def acquire(self) -> None:
        """Wait until it is released, and acquire it."""
        if self._acquired:
            self._schedule.step(lambda: not self._acquired)
        self._acquired = True

    def release(self) -> None:
        """Let another acquire it."""
        self._acquired = False


class Condition:
    """As `threading.Condition`; a timeout is over as soon as others had their turn."""

    def __init__(self, schedule: Schedule, lock: threading.RLock) -> None:
        """Be over a lock."""
        self._schedule = schedule
        self._lock = lock
        self._told = 0

    def notify_all(self) -> None:
        """Let those go on that wait."""
        self._told += 1

    def wait(self, timeout: float | None = None) -> None:
        """Let go of the lock until told, or for a while."""
        told = self._told
        self._lock.release()
        try:
            self._schedule.step(lambda: timeout is not None or self._told > told, others=True)
        finally:
            self._lock.acquire()

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until told that something is so."""
        while not ready():
            self.wait()


class Committer:
    """As `threading.Thread`, of the process that makes it."""

    def __init__(
        self, schedule: Schedule, *, target: Callable[[], None], name: str, daemon: bool
    ) -> None:
        """Prepare it."""
        del name, daemon
        self.ident: int | None = None
        self._schedule = schedule
        self._target = target

    def start(self) -> None:
        """Have it run in turn with the others."""
        self.ident = self._schedule.add(self._target, self._schedule.process, serves=True)


class InTurn(SyncThreads):
    """As `SyncThreads`, but the calling thread makes every call."""

    def run(self, calls: Iterable[Callable[[], None]]) -> None:
        """Make the calls one after the other."""
        for call in calls:
            call()


class Selector(selectors.SelectSelector):
    """What an event loop waits with: the others run as long as there is nothing to do."""

    def __init__(self, schedule: Schedule) -> None:
        """Watch no files yet."""
        super().__init__()
        self._schedule = schedule

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in turn with the others."""
        if timeout is None or timeout > 0:
            self._schedule.step(lambda: bool(super(Selector, self).select(0)))
        return super().select(0)


@contextmanager
def stand_ins(schedule: Schedule) -> Generator[None]:
    """Put them in the place of what the store and the commit wait with."""
    threads = SimpleNamespace(
        RLock=threading.RLock,
        get_ident=threading.get_ident,
        Lock=partial(Lock, schedule),
        Condition=partial(Condition, schedule),
        Thread=partial(Committer, schedule),
    )
    with (
        patch.object(commit, "threading", threads),
        patch.object(ticket, "threading", threads),
        patch.object(writer, "SyncThreads", InTurn),
        patch.object(time, "sleep", do_not_sleep),
    ):
        yield
