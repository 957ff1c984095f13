"""A thread on a machine that crashes, tears and fails, against a model: the list of its turns.

The machine's disk is modelled beneath the real files. What the files hold is what the page cache
shows; what a crash leaves is what the device has, and as much of the rest as the test chooses.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from turnlog import (
    Conflict,
    Memory,
    MemoryThread,
    Message,
    NotWritten,
    OutcomeUnknown,
    StoreError,
)
from turnlog.codec import encode_turn
from turnlog.stores.jsonl import JsonlStore, threadfile
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from turnlog.stores.base import Position

# A torn tail is what the machine is about; a DamageWarning would be a fault of ours.
pytestmark = pytest.mark.filterwarnings("ignore::turnlog.TornTailWarning")


@dataclass
class _File:
    """What is known of one file beneath its page cache.

    Attributes:
        device: the bytes on the device.
        dirty_from: where the bytes begin that no sync was tried on yet; None where there are none.
        lost: what a failed sync has marked as clean though the device does not have it.
    """

    device: bytes = b""
    dirty_from: int | None = None
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def reaching(self, shown: bytes) -> bytes:
        """Give what a sync brings to the device of the bytes that the cache shows."""
        content = bytearray(shown)
        for start, end in self.lost:
            content[start:end] = bytes(end - start)
        return bytes(content)


class Machine(System):
    """A system with a page cache and a device. The next calls can be made to fail."""

    def __init__(self, base: Path) -> None:
        """Keep the files below `base`, which is there for good."""
        self.base = str(base)
        self.room: int | None = None  # the next write takes as much, and then the disk is full
        self.failing_syncs = 0
        self.failing_cuts = 0
        self._files: dict[int, _File] = {}
        self._paths: dict[int, str] = {}
        self._entries: set[str] = set()

    def file(self, path: str) -> _File:
        """Give what is known of the file at a path."""
        return self._files.setdefault(os.stat(path).st_ino, _File())

    # ---- the system's calls ----

    def open_file(
        self,
        folder: str,
        name: str,
        *,
        write: bool = False,
        create: bool = False,
        exclusive: bool = False,
    ) -> int:
        """Open a file, and note where it lies."""
        fd = super().open_file(folder, name, write=write, create=create, exclusive=exclusive)
        self._paths[fd] = f"{folder}/{name}"
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write to the cache; with no room, only a part of it, and the next time nothing."""
        if self.room == 0:
            self.room = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.room is not None:
            data = data[: self.room]
            self.room = 0
        file = self.file(self._paths[fd])
        size = os.fstat(fd).st_size
        file.dirty_from = size if file.dirty_from is None else min(size, file.dirty_from)
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        """Bring a file to the device, or fail and have the cache take its pages for clean."""
        path = self._paths[fd]
        file, shown = self.file(path), Path(path).read_bytes()
        dirty, file.dirty_from = file.dirty_from, None
        if self.failing_syncs:
            self.failing_syncs -= 1
            if dirty is not None and dirty < len(shown):
                file.lost.append((dirty, len(shown)))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        file.device = file.reaching(shown)

    def sync_folder(self, path: str) -> None:
        """Make a folder's entries durable."""
        if path.startswith(self.base):
            self._entries.update(f"{path}/{name}" for name in os.listdir(path))

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file in the cache, or fail."""
        if self.failing_cuts:
            self.failing_cuts -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, size)
        file = self.file(self._paths[fd])
        file.lost = [(start, min(end, size)) for start, end in file.lost if start < size]
        if file.dirty_from is not None:
            file.dirty_from = min(file.dirty_from, size)

    def drop_cache(self, fd: int, offset: int) -> None:
        """Show what the device has where the cache is clean."""
        path = self._paths[fd]
        file = self.file(path)
        with Path(path).open("r+b") as shown:
            for start, end in file.lost:
                start = max(start, offset)  # noqa: PLW2901 - a part of the range
                shown.seek(start)
                shown.write(bytes(max(0, end - start)))
        file.lost = [(start, min(end, offset)) for start, end in file.lost if start < offset]

    # ---- the power ----

    def crash(self, kept: Callable[[bytes], bytes], *, lose_entries: bool) -> None:
        """Cut the power: leave of each file what the device has, and `kept` of what it has not."""
        self.repair()
        for path in sorted(Path(self.base).rglob("*")):
            if lose_entries and str(path) not in self._entries:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            elif path.is_file():
                file, shown = self.file(str(path)), path.read_bytes()
                path.write_bytes(_after_crash(file.device, file.reaching(shown), kept))
        self.settle()

    def repair(self) -> None:
        """Let nothing fail any more."""
        self.room, self.failing_syncs, self.failing_cuts = None, 0, 0

    def settle(self) -> None:
        """Take the files as they are now for what the device has."""
        paths = list(Path(self.base).rglob("*"))
        self._entries = set(map(str, paths))
        self._files = {p.stat().st_ino: _File(p.read_bytes()) for p in paths if p.is_file()}


def _after_crash(device: bytes, written: bytes, kept: Callable[[bytes], bytes]) -> bytes:
    pairs = enumerate(zip(device, written, strict=False))
    common = next((at for at, (a, b) in pairs if a != b), min(len(device), len(written)))
    rest = written[common:]
    if not rest:  # it was cut, at most: the device may know of it or not
        return device if kept(b"cut") else written
    return device[:common] + kept(rest)


@dataclass
class Unit:
    """One append that was tried: its turns' texts, and what is known of it."""

    texts: list[str]
    key: str | None = None
    state: str = "in doubt"  # or "acknowledged" or "refused"


AT: Final = dt.datetime(2026, 11, 29, 13, 25, 0, 123456, dt.UTC)
texts: Final = st.text(max_size=12) | st.sampled_from(("", "\n", "\u2028", "\ud800", "é" * 3000))
keys: Final = st.sampled_from(("k1", "k2", "\u2028"))
places: Final = st.integers(0, 1 << 14)


class ThreadMachine(RuleBasedStateMachine):
    """One thread: two processes append to it, a third is killed, the power is cut."""

    machine_type: type[Machine] = Machine

    def __init__(self) -> None:
        """Begin with a disk that holds nothing."""
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.machine = self.machine_type(self.base)
        self.root = self.base / "memory"
        self.path = self.root / "default" / "t.jsonl"
        self.units: list[Unit] = []
        self.count = 0
        self.memories: list[Memory] = []
        self.mine: MemoryThread
        self.theirs: MemoryThread
        self.open()

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.shut()
        shutil.rmtree(self.base)

    # ---- processes ----

    def memory(self, *, read_only: bool = False) -> Memory:
        """Start a process: a memory of its own on the same machine."""
        store = JsonlStore(self.root, system=self.machine, read_only=read_only, lock_timeout=0.0)
        return Memory(store)

    def shut(self) -> None:
        """End both processes."""
        while self.memories:
            self.memories.pop().close()

    def open(self) -> None:
        """Start both processes. Opening may meet a fault, and then succeeds when tried again."""
        self.shut()
        self.memories = [self.memory(), self.memory()]
        self.mine, self.theirs = (self.opened(memory) for memory in self.memories)
        # What opening a thread has shown is durable from then on.
        self.check(self.texts_of(self.mine), shown_for_good=True)

    def opened(self, memory: Memory) -> MemoryThread:
        """Open the thread, again if a fault is met."""
        for _ in range(3):
            try:
                return memory.open("t")
            except StoreError:
                continue
        return memory.open("t")

    # ---- the model ----

    def texts_of(self, thread: MemoryThread) -> list[str]:
        """Give the texts of a thread's turns."""
        return [message.content for message in thread.messages()]

    def unit(self, given: Sequence[str], key: str | None = None) -> Unit:
        """Make a unit of texts that no other has, and take it into the model."""
        numbered = [f"{self.count}.{part} {text}" for part, text in enumerate(given)]
        self.count += 1
        unit = Unit(numbered, key)
        self.units.append(unit)
        return unit

    def attempt(self, unit: Unit, append: Callable[[], object]) -> None:
        """Try an append, and note what is said of it."""
        try:
            append()
        except NotWritten:
            unit.state = "refused"
        except OutcomeUnknown:
            self.open()  # as the error says
        else:
            unit.state = "acknowledged"

    def check(self, found: list[str], *, shown_for_good: bool = False) -> None:
        """Check the turns found: all acknowledged, none refused, in order, each once, in units."""
        at = 0
        held: list[str] = []
        for unit in self.units:
            there = found[at : at + len(unit.texts)] == unit.texts
            assert unit.state != ("refused" if there else "acknowledged"), (unit, found)
            if there:
                at += len(unit.texts)
                held += [unit.key] if unit.key is not None else []
                unit.state = "acknowledged" if shown_for_good else unit.state
        assert at == len(found), f"{found[at:]} is no unit, or out of order"
        assert len(held) == len(set(held)), f"a key is there twice: {held}"

    def holding(self, key: str) -> Unit | None:
        """Give the acknowledged unit that has a key."""
        having = (u for u in self.units if u.key == key and u.state == "acknowledged")
        return next(having, None)

    # ---- rules: appends ----

    @rule(text=texts)
    def append(self, text: str) -> None:
        """Append one turn."""
        unit = self.unit([text])
        self.attempt(unit, lambda: self.mine.append(unit.texts[0]))

    @rule(text=texts)
    def other_process_appends(self, text: str) -> None:
        """Append one turn from the other process."""
        unit = self.unit([text])
        self.attempt(unit, lambda: self.theirs.append(unit.texts[0]))

    @rule(given=st.lists(texts, min_size=2, max_size=4))
    def extend(self, given: list[str]) -> None:
        """Append several turns as one."""
        unit = self.unit(given)
        messages = [Message("assistant", text) for text in unit.texts]
        self.attempt(unit, lambda: self.mine.extend(messages))

    @rule(text=texts, key=keys, others=st.booleans())
    def append_with_key(self, text: str, key: str, others: bool) -> None:  # noqa: FBT001 - drawn
        """Append one turn with a key, which the thread may have already."""
        thread = self.theirs if others else self.mine
        holding = self.holding(key)
        if holding is None:
            unit = self.unit([text], key)
            self.attempt(unit, lambda: thread.append(unit.texts[0], key=key))
            return
        try:
            thread.append(text, key=key)
        except NotWritten:
            return
        except OutcomeUnknown:
            self.open()
            return
        index = thread.index_of(key)
        assert index is not None
        assert thread.messages()[index].content == holding.texts[0]

    @rule(text=texts)
    def append_as_expected(self, text: str) -> None:
        """Append one turn where the thread holds as many as expected."""
        unit = self.unit([text])
        count = len(self.fresh())
        self.attempt(unit, lambda: self.mine.append(unit.texts[0], expect=count))

    @rule(text=texts, off=st.integers(1, 2))
    def append_unexpectedly(self, text: str, off: int) -> None:
        """Fail to append where the thread holds other than the turns expected."""
        unit = self.unit([text])
        unit.state = "refused"
        with pytest.raises((Conflict, NotWritten)):
            self.mine.append(unit.texts[0], expect=len(self.fresh()) + off)

    @rule()
    def refresh(self) -> None:
        """Read forward: then the thread holds what a fresh process reads."""
        try:
            self.mine.refresh()
        except NotWritten:
            return
        except OutcomeUnknown:
            self.open()
        assert self.texts_of(self.mine) == self.fresh()

    # ---- rules: faults ----

    @rule(room=st.integers(0, 300))
    def disk_fills_up(self, room: int) -> None:
        """Let the next write come out short, and then fail."""
        self.machine.room = room

    @rule(times=st.integers(1, 2), cut=st.booleans())
    def device_fails(self, times: int, cut: bool) -> None:  # noqa: FBT001 - drawn
        """Let the next sync fail, and the cut or the sync of its rollback too."""
        self.machine.failing_syncs, self.machine.failing_cuts = times, int(cut)

    @rule()
    def reopen(self) -> None:
        """End the processes in good order, and start them anew."""
        self.open()

    @precondition(lambda self: self.path.exists())
    @rule(given=st.lists(texts, min_size=1, max_size=3), place=places)
    def third_process_is_killed(self, given: list[str], place: int) -> None:
        """Kill a process within its write or before its sync; before, it had read forward."""
        try:
            self.theirs.refresh()
        except NotWritten:
            return
        except OutcomeUnknown:
            self.open()
            return
        if self.machine.room is not None:
            return
        unit = self.unit(given)
        count = len(unit.texts)
        lines = [
            encode_turn(
                Message("user", text, AT),
                more=number < count,
                unit=count if number == count > 1 else None,
            )
            for number, text in enumerate(unit.texts, 1)
        ]
        data = b"\n".join((*lines, b""))
        fd = self.machine.open_file(str(self.path.parent), self.path.name, write=True)
        self.machine.write(fd, data[: 1 + _place(data[1:], place)])
        self.machine.close(fd)

    @rule(place=places, hole=st.booleans(), lose_entries=st.booleans())
    def crash(self, place: int, hole: bool, lose_entries: bool) -> None:  # noqa: FBT001 - drawn
        """Cut the power, and start again: of what was not synced a part is kept, or has a hole."""

        def kept(rest: bytes) -> bytes:
            at = _place(rest, place)
            return bytes(at) + rest[at:] if hole else rest[:at]

        self.shut()
        self.machine.crash(kept, lose_entries=lose_entries)
        self.open()

    @precondition(lambda self: self.path.exists())
    @rule(place=places)
    def tear(self, place: int) -> None:
        """Cut into the last unit, as a device does that lost its end; it is set aside at open."""
        self.machine.repair()
        self.open()  # so that the end of the file is sound
        there = self.texts_of(self.mine)
        if not there:
            return
        self.shut()
        unit = next(unit for unit in self.units if unit.texts[-1] == there[-1])
        lines = self.path.read_bytes().splitlines(keepends=True)
        last = b"".join(lines[-len(unit.texts) :])
        left = last[: _place(last, place)]
        self.path.write_bytes(b"".join(lines[: -len(unit.texts)]) + left)
        self.machine.settle()
        whole = len(left) >= len(last) - 1  # without its newline it is still a turn
        if not whole:
            self.units.remove(unit)
        self.open()
        if left and not whole:
            torn = self.path.with_name("t.jsonl.torn")
            assert torn.exists()
            assert torn.read_bytes().endswith(left)

    # ---- what always holds ----

    def fresh(self) -> list[str]:
        """Give what a fresh process reads that changes nothing."""
        with self.memory(read_only=True) as memory:
            thread = memory.open("t")
            assert thread.problems == ()
            return self.texts_of(thread)

    @invariant()
    def turns_are_whole_in_order_and_once(self) -> None:
        """A fresh process reads what was acknowledged, and of the rest nothing but whole units."""
        found = self.fresh()
        self.check(found)
        for thread in (self.mine, self.theirs):
            known = self.texts_of(thread)
            assert known == found[: len(known)]
            assert thread.problems == ()


def _place(data: bytes, place: int) -> int:
    """Choose a place in some bytes: half of the choices are the ends of lines."""
    ends = [0, *(at + 1 for at, byte in enumerate(data) if byte == 10), len(data)]
    return ends[place // 2 % len(ends)] if place % 2 else place // 2 % (len(data) + 1)


class TestThread(ThreadMachine.TestCase):
    """Whatever happens, the thread holds what the model says. R4, R12, R13, Contract 1 to 6."""

    settings = settings(
        max_examples=150,
        stateful_step_count=25,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining takes long
        report_multiple_bugs=False,
    )


# ---- found by the machine, and kept ----

WHOLE = 5  # the place at the end of a single line


@pytest.fixture
def state() -> Iterator[ThreadMachine]:
    """Give a machine to go through by hand."""
    state = ThreadMachine()
    yield state
    state.teardown()


def test_what_a_load_shows_after_a_failed_sync_is_on_the_device(state: ThreadMachine) -> None:
    """A load tried again after a failed sync shows nothing that a crash takes back. C25.

    A process was killed between its write and its sync. After a failed sync the cache shows its
    turn as clean, and the next sync succeeds without it.
    """
    state.append("")
    state.third_process_is_killed([""], WHOLE)
    state.device_fails(1, cut=False)
    state.reopen()
    state.crash(0, hole=False, lose_entries=False)
    state.turns_are_whole_in_order_and_once()


def test_no_append_builds_on_news_whose_sync_failed(state: ThreadMachine) -> None:
    """A turn read forward, whose sync failed, is not taken for durable. Contract 4, C25."""
    state.append("")
    state.third_process_is_killed([""], WHOLE)
    state.device_fails(1, cut=False)
    state.refresh()
    state.append("built on it")
    state.crash(0, hole=False, lose_entries=False)
    state.turns_are_whole_in_order_and_once()


def test_a_key_in_news_whose_sync_failed_is_no_success(state: ThreadMachine) -> None:
    """A repeated key is answered only by a turn that is on the device. Contract 1 and 4."""
    first, second = state.mine.append("first"), "the turn of a killed process"
    line = encode_turn(Message("user", second, AT), key="k") + b"\n"
    fd = state.machine.open_file(str(state.path.parent), state.path.name, write=True)
    state.machine.write(fd, line)
    state.machine.close(fd)
    state.device_fails(1, cut=False)
    with pytest.raises(NotWritten):
        first.append(second, key="k")
    with contextlib.suppress(OutcomeUnknown, NotWritten):
        state.mine.append(second, key="k")  # it says that the turn is there
        state.shut()
        state.machine.crash(lambda _: b"", lose_entries=False)
        assert second in state.fresh()


@pytest.mark.parametrize(("count", "lost"), [(2, 1), (3, 1), (3, 2)])
def test_a_hole_up_to_a_line_of_an_extend_leaves_none_of_it(
    state: ThreadMachine, count: int, lost: int
) -> None:
    """A power cut that loses just the first lines of an extend leaves none of it. C24."""
    state.append("")
    state.third_process_is_killed([""] * count, 1 + 2 * (count + 1))
    state.crash(1 + 2 * lost, hole=True, lose_entries=False)
    state.turns_are_whole_in_order_and_once()
    state.append("after")
    state.turns_are_whole_in_order_and_once()


# ---- the machine finds what it has to find ----


class NoSync(Machine):
    """A device that acknowledges a sync and does nothing."""

    def sync(self, fd: int) -> None:
        """Do nothing."""


class NoFolderSync(Machine):
    """A system that does not sync folders."""

    def sync_folder(self, path: str) -> None:
        """Do nothing."""


class NoDrop(Machine):
    """A store that leaves in the cache what a failed sync has marked as clean."""

    def drop_cache(self, fd: int, offset: int) -> None:
        """Do nothing."""


def _faulty_store(patch: pytest.MonkeyPatch, plant: str) -> type[Machine]:
    def no_roll_back(file: threadfile.ThreadFile, end: Position) -> None: ...

    def no_repair(
        system: System, fd: int, place: tuple[str, str], position: Position, tail: object
    ) -> Position:
        del system, fd, place, tail
        return position

    if plant == "no rollback":
        patch.setattr(threadfile.ThreadFile, "roll_back", no_roll_back)
    else:
        patch.setattr(threadfile, "mend", no_repair)
    return Machine


PLANTS: Final[dict[str, Callable[[pytest.MonkeyPatch], type[Machine]]]] = {
    "sync does nothing": lambda _: NoSync,
    "folders are not synced": lambda _: NoFolderSync,
    "the cache is not dropped": lambda _: NoDrop,
    "no rollback": partial(_faulty_store, plant="no rollback"),
    "no repair": partial(_faulty_store, plant="no repair"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_the_machine_finds_planted_faults(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state machine fails on a store, or a system, that breaks the contract."""

    class Planted(ThreadMachine):
        machine_type = PLANTS[plant](monkeypatch)

    with pytest.raises((AssertionError, StoreError, Warning)):
        run_state_machine_as_test(
            Planted,
            settings=settings(
                max_examples=500,
                stateful_step_count=20,
                phases=[Phase.generate],
                database=None,
                derandomize=True,
                deadline=None,
                report_multiple_bugs=False,
            ),
        )
