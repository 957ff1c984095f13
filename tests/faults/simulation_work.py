"""What the simulated processes do: operations drawn one by one, on threads that they share."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from simulation_calls import Recorder
from simulation_schedule import Selector
from systems import Arguments, Fails, Together

from turnlog import Conflict, Memory, MemoryThread, Message, NotWritten, StoreError, TurnlogError
from turnlog.names import ThreadKey
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    import random
    from collections.abc import Generator, Sequence

    from simulation_history import Answer, Contents, History, Place, Step
    from simulation_schedule import Schedule

THREADS = (("default", "t"), ("default", "u"), ("other", "t"))
SIZES = (5, 60, 200)  # of a turn's text: its line lies in two sectors, in three, in more
# A process that is killed is so before one of so many of its first calls, or of those of a kind.
LIVES = {"": 120, "sync": 6, "sync_folder": 10, "truncate": 2}


class Process:
    """One process: a memory of its own, on a disk that it shares with others.

    Args:
        root: the folder of the memory.
        history: notes what it does.
        disk: whose calls and files it shares.
        schedule: says when it may run.
    """

    def __init__(self, root: str, history: History, disk: Recorder, schedule: Schedule) -> None:
        """Start it; it does nothing yet."""
        self.befores = Together([self._take_turn])
        self.system = Recorder(self.befores, disk.ops, disk.skip, files=disk.files)
        self.history = history
        self.schedule = schedule
        self.life = -1  # after so many calls it is killed
        self.dies_at = ""  # only these count, if it is not empty
        self.killed = False
        self._root = root
        self._under_way: list[Step] = []
        self.memory = self.new_memory()

    def new_memory(self) -> Memory:
        """Give a memory over its own view of the disk."""
        return Memory(JsonlStore(self._root, system=self.system))

    def begin(self, thread: Place, what: str, contents: Contents) -> Step:
        """Note that a step begins."""
        step = self.history.begin(thread, what, contents)
        self._under_way.append(step)
        return step

    def end(self, step: Step, answer: Answer) -> None:
        """Note what the caller of a step is told."""
        self._under_way.remove(step)
        if step.answer == "unknown":
            step.answer = answer
        self.history.end(step)

    def mark(self, draw: random.Random) -> None:
        """Have it killed at some time."""
        self.dies_at = draw.choice(list(LIVES))
        self.life = draw.randrange(LIVES[self.dies_at])

    def _take_turn(self, call: str, _args: Arguments) -> None:
        if self.dies_at in {"", call}:
            if self.life == 0 and not self.killed:
                self._die()
            self.life -= 1
        self.schedule.step()

    def _die(self) -> None:
        """End as by SIGKILL: the system closes the files, and lets go of the locks."""
        self.killed = True
        while self.system.fds:
            os.close(self.system.fds.popitem()[0])
        for step in self._under_way:
            self.history.end(step)
        self.memory._collected.detach()  # pyright: ignore[reportPrivateUsage] - nothing ends it
        self.schedule.stop(self)
        self.schedule.step()

    def close(self) -> None:
        """End as programs do, unless it was killed."""
        if not self.killed:
            self.life = -1
            self.memory.close()


class Writer:
    """One thread of a process.

    Args:
        name: what its turns begin with.
        process: its process.
        draw: what is drawn from.
    """

    def __init__(self, name: str, process: Process, draw: random.Random) -> None:
        """Be ready."""
        self._name = name
        self._process = process
        self._draw = draw
        self._count = 0

    def work(self, operations: Sequence[str], count: int, threads: int) -> None:
        """Do so many operations, drawn from some, on so many threads."""
        for _ in range(count):
            operation = getattr(self, self._draw.choice(operations))
            with suppress(TurnlogError):
                operation(self._draw.choice(THREADS[:threads]))

    def append(self, thread: Place) -> None:
        """Append a turn."""
        handle = self._open(thread)
        unit = self._unit(1)
        with self._step(thread, "append", unit, handle):
            handle.append(unit[0])

    def extend(self, thread: Place) -> None:
        """Append several turns as one."""
        handle = self._open(thread)
        unit = self._unit(self._draw.randint(2, 3))
        with self._step(thread, "append", unit, handle):
            handle.extend(messages(unit))

    def expect(self, thread: Place) -> None:
        """Append where nobody else did meanwhile."""
        handle = self._open(thread)
        unit = self._unit(2)
        with self._step(thread, "append", unit, handle):
            handle.extend(messages(unit), expect=len(handle))

    def keyed(self, thread: Place) -> None:
        """Append what others append under the same key, and once more where it fails."""
        number = self._draw.randrange(3)
        unit = tuple(
            f"key {number} {part} ".ljust(SIZES[number], "x") for part in range(number + 1)
        )
        for _ in range(2):
            handle = self._open(thread)
            with suppress(StoreError), self._step(thread, "append", unit, handle):
                handle.extend(messages(unit), key=f"key {number}")
                break

    def together(self, thread: Place) -> None:
        """Append in several tasks at once, to this thread and to another."""
        handles = [self._open(thread), self._open(thread), self._open(self._draw.choice(THREADS))]

        async def append(handle: MemoryThread) -> None:
            unit = self._unit(1)
            place = (handle.namespace, handle.id)
            with suppress(TurnlogError), self._step(place, "append", unit, handle):
                await handle.aappend(unit[0])

        async def main() -> None:
            await asyncio.gather(*map(append, handles))

        selector = Selector(self._process.schedule)
        with asyncio.Runner(loop_factory=partial(asyncio.SelectorEventLoop, selector)) as runner:
            runner.run(main())

    def refresh(self, thread: Place) -> None:
        """Read forward."""
        handle = self._open(thread)
        with self._step(thread, "read", handle=handle):
            handle.refresh()

    def load(self, thread: Place) -> None:
        """Read from the start, in a memory of its own."""
        namespace, id_ = thread
        with self._process.new_memory() as memory, self._step(thread, "read") as step:
            step.seen = texts(memory.open(id_, namespace))

    def peek(self, thread: Place) -> None:
        """Read the end; what is found there need not be durable."""
        namespace, id_ = thread
        found = self._process.memory.peek(id_, namespace, last=3)
        begun = {text for step in self._process.history.steps for text in step.contents}
        assert {message.content for message in found} <= begun

    def delete(self, thread: Place) -> None:
        """Delete the thread; it may be made anew."""
        namespace, id_ = thread
        with self._step(thread, "delete"):
            self._process.memory.delete(id_, namespace)

    def repair(self, thread: Place) -> None:
        """Repair the thread's file."""
        store = self._process.memory.store
        assert isinstance(store, JsonlStore)
        with self._step(thread, "repair") as step:
            if store.repair(ThreadKey(*thread)) is None:
                step.answer = "no"  # there was nothing, so nothing is promised

    def fail(self, thread: Place) -> None:
        """Append while the device fails, or the disk is full.

        No sync fails in a process that is to be killed: if it was between a sync that failed and
        the rollback, the next would take what the cache has for what the device has.
        """
        process = self._process
        fails = self._draw.randrange(4)  # so many syncs: the rollback's too, and what comes after
        if fails and process.life < 0:
            process.system.fail_next = fails
        else:
            full = Fails("write", errno.ENOSPC, skip=self._draw.randrange(2))
            process.befores.befores.append(full)
        self.append(thread)

    def _open(self, thread: Place) -> MemoryThread:
        namespace, id_ = thread
        return self._process.memory.open(id_, namespace)

    def _unit(self, count: int) -> Contents:
        self._count += 1
        return tuple(
            f"{self._name} {self._count} {part} ".ljust(self._draw.choice(SIZES), "x")
            for part in range(count)
        )

    @contextmanager
    def _step(
        self,
        thread: Place,
        what: str,
        contents: Contents = (),
        handle: MemoryThread | None = None,
    ) -> Generator[Step]:
        """Note a step, what its caller is told, and what the handle shows after it."""
        step = self._process.begin(thread, what, contents)
        try:
            yield step
        except TurnlogError as error:
            if isinstance(error, Conflict):  # it was read forward all the same
                step.seen = self._seen(handle)
            self._process.end(step, answer_of(error))
            raise
        step.seen = step.seen or self._seen(handle)
        self._process.end(step, "yes")

    def _seen(self, handle: MemoryThread | None) -> Contents | None:
        return texts(handle) if handle is not None and handle.usable else None


def answer_of(error: TurnlogError) -> Answer:
    """Give what an error says of what was to be done."""
    assert isinstance(error.__cause__, OSError | None), f"a fault of ours: {error.__cause__!r}"
    known = isinstance(error, NotWritten) or not isinstance(error, StoreError)
    return "no" if known else "unknown"


def texts(thread: MemoryThread) -> Contents:
    """Give the texts of a thread's turns."""
    return tuple(message.content for message in thread.messages())


def messages(unit: Contents) -> list[Message]:
    """Give the turns of a unit."""
    return [Message("user", text) for text in unit]
