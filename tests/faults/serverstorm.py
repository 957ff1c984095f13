"""Many writers to a store on a server, and the check of what they were told.

    with Storm(url, threads=4, processes=4) as storm:
        for fault in faults:
            fault()
            storm.wait_for_progress()  # nobody has to be started again
    storm.check()

It knows of no kind of server. See `serverwriters` for what a writer does.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import serverwriters
from serverprocess import wait_until
from serverwriters import DONE, FAILED, OK, REFUSED, UNKNOWN, Tally, write
from writers import running

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from writers import Process

_LONGEST_END: Final = 100.0


class _Writer(ABC):
    """A writer, and its tally, which grows while it writes."""

    def __init__(self) -> None:
        self.tally: Final = Tally()
        self._worker: Final = threading.Thread(target=self._guarded, daemon=True)

    def start(self) -> None:
        self._worker.start()

    @abstractmethod
    def end(self) -> None:
        """Have it end after the turn that it is at."""

    def join(self) -> None:
        self._worker.join(_LONGEST_END)
        if self._worker.is_alive():
            self.tally.failures.append("it hangs")

    def _guarded(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - the test is told
            self.tally.failures.append(repr(error))

    @abstractmethod
    def work(self) -> None:
        """Write, or listen to who does, until the end."""


class _InThread(_Writer):
    """A writer in an OS thread of this process; several share a memory."""

    def __init__(self, memory: Memory, name: str, ids: Sequence[str]) -> None:
        super().__init__()
        self._memory, self._name, self._ids = memory, name, ids
        self._ended: Final = threading.Event()

    def end(self) -> None:
        self._ended.set()

    def work(self) -> None:
        write(self._memory, self._name, self._ids, self._ended.is_set, self.tally.note)


class _InProcess(_Writer):
    """A writer in a process of its own; this reads what it says."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def work(self) -> None:
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said, id_, content, error = line.rstrip("\n").split("\t")
            if said == FAILED:
                self.tally.failures.append(error)
            elif said != DONE:
                self.tally.note(said, id_, content, error)
        if said != DONE:
            self.tally.failures.append("its process ended")


class Storm:
    """Writers that all append to the same threads, for as long as the block runs."""

    def __init__(  # noqa: PLR0913 - each is a size of the storm
        self,
        url: str,
        ids: Sequence[str] = ("a", "b", "c"),
        *,
        threads: int = 4,
        processes: int = 4,
        lock_timeout: float = 60.0,
        process_url: str | None = None,
    ) -> None:
        """Start nobody yet.

        Args:
            url: the store's.
            ids: the threads; each writer appends to one after the other.
            threads: how many write in this process, over one memory.
            processes: how many write in a process of their own each.
            lock_timeout: how patient they are, in seconds.
            process_url: another way to the same store, for the processes.
        """
        self._url, self._ids, self._lock_timeout = url, ids, lock_timeout
        self._threads, self._processes = threads, processes
        self._process_url = process_url or url
        self._stack: Final = ExitStack()
        self._writers: list[_Writer] = []

    def __enter__(self) -> Self:
        """Start all writers, and wait until each of them has been acknowledged something."""
        memory = Memory(self._url, lock_timeout=self._lock_timeout)
        self._stack.callback(memory.close)
        self._writers += [_InThread(memory, f"t{i}", self._ids) for i in range(self._threads)]
        for i in range(self._processes):
            arguments = (self._process_url, f"p{i}", self._lock_timeout, *self._ids)
            process = running("write", *arguments, program=serverwriters.__file__)
            self._writers.append(_InProcess(self._stack.enter_context(process)))
        for writer in self._writers:
            writer.start()
        try:
            self.wait_for_progress()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Have all writers end, each after the turn that it is at."""
        self._end()

    def _end(self) -> None:
        with self._stack:
            for writer in self._writers:
                writer.end()
            for writer in self._writers:
                writer.join()

    # ---- what the writers were told ----

    def wait_for_progress(self, turns: int = 3) -> None:
        """Wait until every writer has been acknowledged some more turns; fail where one ended."""
        before = [len(writer.tally.of(OK)) for writer in self._writers]

        def progress() -> bool:
            assert not self.failures, self.failures
            now = [len(writer.tally.of(OK)) for writer in self._writers]
            return all(have >= had + turns for had, have in zip(before, now, strict=True))

        wait_until(progress, "each writer goes on")

    @property
    def failures(self) -> list[str]:
        """Give what ended a writer, or was told to one that none may be told."""
        return [failure for writer in self._writers for failure in writer.tally.failures]

    @property
    def errors(self) -> Counter[str]:
        """Count the errors that the writers were told."""
        return Counter(error for writer in self._writers for error in writer.tally.errors)

    def turns(self, became: str) -> list[tuple[str, str]]:
        """Give the turns of all writers that this became of, each with its thread."""
        return [turn for writer in self._writers for turn in writer.tally.of(became)]

    def figures(self) -> str:
        """Say how many turns there were, and what became of them."""
        counts = {became: len(self.turns(became)) for became in (OK, REFUSED, UNKNOWN)}
        return f"{counts} {dict(self.errors)}"

    # ---- what is there ----

    def check(self) -> None:
        """Check what the store holds against what the writers were told.

        Every acknowledged turn is there once, each writer's in its order; nothing is there that
        was refused, or that nobody wrote.
        """
        assert not self.failures, self.failures
        found = contents(self._url, self._ids)
        there = [(id_, content) for id_, turns in found.items() for content in turns]
        doubles = [turn for turn, times in Counter(there).items() if times > 1]
        assert not doubles, f"there twice: {doubles}"
        acknowledged, doubtful = set(self.turns(OK)), set(self.turns(UNKNOWN))
        lost = acknowledged - set(there)
        assert not lost, f"lost: {lost}"
        refused = set(self.turns(REFUSED)) & set(there)
        assert not refused, f"there, and refused: {refused}"
        unasked = set(there) - acknowledged - doubtful
        assert not unasked, f"there, and never written: {unasked}"
        for turns in found.values():
            check_order(turns)


def check_order(turns: Iterable[str]) -> None:
    """Check that each writer's turns stand in the order in which it wrote them."""
    last: dict[str, int] = {}
    for turn in turns:
        name, number = turn.split()
        assert int(number) > last.get(name, -1), turn
        last[name] = int(number)


def contents(url: str, ids: Iterable[str]) -> dict[str, list[str]]:
    """Open threads afresh, as a new process would, and give their turns; nothing is damaged."""
    found: dict[str, list[str]] = {}
    with Memory(url) as memory:
        for id_ in ids:
            thread = memory.open(id_)
            assert thread.problems == ()
            found[id_] = [message.content for message in thread.messages()]
    return found
