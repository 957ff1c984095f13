"""Copying a thread between two stores: what arrives, what is left alone, what breaks it off."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnlog import DamageWarning, LockTimeout, Memory, Message, NotWritten, StoreError, transfer
from turnlog.names import ThreadKey
from turnlog.stores.base import START, Append, Outcome, Position, Read
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore
from turnlog.testing import PlainAppend, line_of
from turnlog.transfer import Copied, copy_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from turnlog.stores.base import Store

KEY = ThreadKey("n", "t")
LINES = [line_of(f"turn {number}") for number in range(10)]


def put(store: Store, *lines: bytes, position: Position = START) -> Position:
    """Append lines."""
    (outcome,) = store.commit([PlainAppend(KEY, *lines, position=position)])
    assert (outcome.error, outcome.busy) == (None, False)
    return outcome.position


def held(store: Store) -> list[bytes]:
    """Give a thread's lines."""
    return list(store.load(KEY).lines)


def stored(*lines: bytes) -> Scripted:
    """Make a store in memory that has a thread of these lines."""
    store = Scripted()
    if lines:
        put(store, *lines)
        store.pieces.clear()
    return store


class Scripted(InMemoryStore):
    """A store that does something of a test's before each commit.

    Attributes:
        script: what is done before the next commits; it may give the outcomes itself.
        pieces: what was appended at once.
    """

    def __init__(self) -> None:
        """Do nothing yet."""
        super().__init__()
        self.script: list[Callable[[Sequence[Append]], Sequence[Outcome] | None]] = []
        self.pieces: list[list[bytes]] = []

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Do the next step, commit, and note what was appended."""
        outcomes = self.script.pop(0)(batch) if self.script else None
        if outcomes is None:
            before = len(held(self))
            outcomes = super().commit(batch)
            self.pieces.append(held(self)[before:])
        return outcomes


def go_on(_: Sequence[Append]) -> None:
    """Let a commit be as it is."""


@pytest.fixture(params=["files", "in memory"])
def destination(root: Path, request: pytest.FixtureRequest) -> Store:
    """Give an empty store to copy to, of files and in memory."""
    return JsonlStore(root) if request.param == "files" else Scripted()


# ---- what arrives ----


def test_a_thread_arrives_line_by_line(destination: Store) -> None:
    """The destination has the source's very lines, in order, and their keys."""
    lines = [*LINES, line_of("with a key", key="\ud800 k"), line_of("\ud800 half")]
    copied = copy_thread(stored(*lines), destination, KEY)
    assert copied == Copied(KEY, 12, 12, None, (), ())
    assert held(destination) == lines
    assert destination.load(KEY).keys == {"\ud800 k": 10}


@pytest.mark.parametrize("there", [1, 5, 9])
def test_a_beginning_is_gone_on_with(destination: Store, there: int) -> None:
    """Where the destination has a beginning of the thread, the rest is appended."""
    put(destination, *LINES[:there])
    copied = copy_thread(stored(*LINES), destination, KEY)
    assert (copied.turns, copied.appended, copied.differs) == (10, 10 - there, None)
    assert held(destination) == LINES


def test_what_is_the_same_is_not_written(destination: Store) -> None:
    """Where the destination has the thread already, nothing is committed."""
    source = stored(*LINES)
    copy_thread(source, destination, KEY)

    class Untouched(Scripted):
        def load(self, key: ThreadKey) -> Read:
            return destination.load(key)

        def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
            pytest.fail(f"{len(batch)} appends")

    copied = copy_thread(source, Untouched(), KEY)
    assert (copied.turns, copied.appended, copied.differs) == (10, 0, None)


@pytest.mark.parametrize(
    ("there", "differs"),
    [
        ([line_of("other")], 0),
        ([*LINES[:3], line_of("other"), *LINES[4:]], 3),
        ([*LINES[:3], line_of("other")], 3),
        ([*LINES, line_of("one more")], 10),
        ([LINES[0][:-1] + b" }"], 0),
    ],
    ids=["another", "in the middle", "shorter", "longer", "other bytes"],
)
def test_another_thread_is_left_alone(destination: Store, there: list[bytes], differs: int) -> None:
    """Where the destination has another thread, it stays as it is, and it is said where it is."""
    put(destination, *there)
    copied = copy_thread(stored(*LINES), destination, KEY)
    assert (copied.turns, copied.appended, copied.differs) == (10, 0, differs)
    assert held(destination) == there


def test_a_thread_that_does_not_exist(destination: Store) -> None:
    """A thread that the source does not have is not made, and one of its name is left alone."""
    assert copy_thread(stored(), destination, KEY) == Copied(KEY, 0, 0, None, (), ())
    assert list(destination.threads()) == []
    put(destination, LINES[0])
    assert copy_thread(stored(), destination, KEY).differs == 0
    assert held(destination) == LINES[:1]


def test_what_is_appended_to_the_source_meanwhile(destination: Store) -> None:
    """What was loaded is copied; what came to the source after that is for the next copy."""
    source = stored(*LINES)

    class Later(Scripted):
        def load(self, key: ThreadKey) -> Read:
            read = source.load(key)
            put(source, line_of("late"))
            return read

    copied = copy_thread(Later(), destination, KEY)
    assert (copied.turns, copied.differs) == (10, None)
    assert held(destination) == LINES
    assert copy_thread(source, destination, KEY).appended == 1
    assert held(destination) == [*LINES, line_of("late")]


def test_damage_costs_only_itself(root: Path, destination: Store) -> None:
    """What is no turn is not copied but given back as a problem; the source stays as it is."""
    data = b"\n".join([LINES[0], b"bad", LINES[1] + LINES[2], LINES[3], b'{"role":"user","con'])
    file = root.with_name("source") / KEY.namespace / f"{KEY.id}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    copied = copy_thread(JsonlStore(root.with_name("source"), read_only=True), destination, KEY)
    assert [problem.line for problem in copied.problems] == [2, 3]
    assert (copied.turns, copied.differs, held(destination)) == (4, None, LINES[:4])
    assert (file.read_bytes(), [*file.parent.iterdir()]) == (data, [file])


def test_warnings_of_both_stores_are_given_back(root: Path) -> None:
    """What a store warns of when it is read is given back: here a torn end that is set aside."""
    file = root / KEY.namespace / f"{KEY.id}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(LINES[0] + b"\n" + LINES[1][:20])
    copied = copy_thread(stored(*LINES), JsonlStore(root), KEY)
    assert (copied.appended, copied.differs) == (9, None)
    (warning,) = copied.warnings
    assert "20 bytes of an append that never finished" in str(warning)


def test_warnings_of_the_last_reading_are_given_back() -> None:
    """What the destination warns of when it is read once more, to verify, is given back too."""

    class Warns(Scripted):
        def load(self, key: ThreadKey) -> Read:
            read = super().load(key)
            return Read(read.lines, read.position, warnings=(DamageWarning(len(read.lines)),))

    copied = copy_thread(stored(*LINES), Warns(), KEY)
    assert [str(warning) for warning in copied.warnings] == ["0", "10"]


# ---- piece by piece ----


def unit(count: int, name: str) -> list[bytes]:
    """Give the lines of an `extend`."""
    with Memory(InMemoryStore()) as memory:
        memory.open("u").extend([Message("user", f"{name} {n}") for n in range(count)])
        return list(memory.store.load(ThreadKey("default", "u")).lines)


def test_it_goes_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long thread is appended in several commits of some bytes each."""
    monkeypatch.setattr(transfer, "_PIECE", 2 * len(LINES[0]))
    destination = stored()
    copy_thread(stored(*LINES), destination, KEY)
    assert destination.pieces == [LINES[at : at + 2] for at in range(0, 10, 2)]


def test_no_piece_ends_within_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the turns of an `extend` are, they are appended at once."""
    monkeypatch.setattr(transfer, "_PIECE", 1)
    destination = stored()
    units = [unit(1, "a"), unit(4, "b"), unit(2, "c"), [LINES[0]]]
    copy_thread(stored(*(line for lines in units for line in lines)), destination, KEY)
    assert destination.pieces == units


def test_other_programs_lines_are_no_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of another program that says "more", or speaks of it, is a piece by itself."""
    monkeypatch.setattr(transfer, "_PIECE", 1)
    destination = stored()
    lines = [b'{"content":"x","more":true}', b'{"content":"y", "more": "z"}', line_of('"more"')]
    copy_thread(stored(*lines), destination, KEY)
    assert destination.pieces == [[line] for line in lines]


UNITS = st.lists(st.integers(1, 4), max_size=8)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(units=UNITS, cut=st.integers(0, 3000), piece=st.integers(1, 500))
def test_what_a_killed_copy_left_is_gone_on_with(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    units: list[int],
    cut: int,
    piece: int,
) -> None:
    """Whatever number of bytes a killed copy has written, the next one makes the thread whole."""
    root = tmp_path_factory.mktemp("m")
    lines = [line for number, count in enumerate(units) for line in unit(count, str(number))]
    data = b"".join(line + b"\n" for line in lines)
    file = root / KEY.namespace / f"{KEY.id}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(data[:cut])
    monkeypatch.setattr(transfer, "_PIECE", piece)
    with closing(JsonlStore(root)) as destination:
        copied = copy_thread(stored(*lines), destination, KEY)
    assert (copied.differs, file.read_bytes()) == (None, data)


# ---- somebody else ----


def busy(batch: Sequence[Append]) -> Sequence[Outcome]:
    """Say that another process has the threads."""
    return [Outcome(Read(position=each.position), each.position, busy=True) for each in batch]


def test_a_thread_that_is_locked_is_tried_again() -> None:
    """A commit that finds the thread locked is tried until it is free."""
    destination = stored()
    destination.script = [busy, busy, busy]
    assert copy_thread(stored(*LINES), destination, KEY).appended == 10
    assert held(destination) == LINES


def test_a_lock_that_does_not_come_free() -> None:
    """After the lock's timeout a LockTimeout says so, and nothing was written."""
    destination = stored()
    destination.script = [busy] * 10_000
    with pytest.raises(LockTimeout, match=r"kept it locked for 0\.05 s"):
        copy_thread(stored(*LINES), destination, KEY, lock_timeout=0.05)
    assert held(destination) == []


def test_two_copies_of_one_thread_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another copy of the same thread is faster for a while, both end with all of it."""
    monkeypatch.setattr(transfer, "_PIECE", 1)
    destination = stored()

    def overtake(_: Sequence[Append]) -> None:
        destination.script.clear()
        put(destination, *LINES[len(held(destination)) : 7])

    destination.script = [go_on, go_on, overtake]
    assert copy_thread(stored(*LINES), destination, KEY).differs is None
    assert held(destination) == LINES


def test_somebody_appends_to_the_destination_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody else appends in the middle of the copy, nothing is appended after it."""
    monkeypatch.setattr(transfer, "_PIECE", 1)
    destination = stored()
    other = line_of("somebody else's")

    def come_between(_: Sequence[Append]) -> None:
        put(destination, other)

    destination.script = [go_on, go_on, come_between]
    copied = copy_thread(stored(*LINES), destination, KEY)
    assert (copied.appended, copied.differs) == (0, 2)
    assert held(destination) == [*LINES[:2], other]


# ---- what fails ----


def test_a_failing_commit_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that fails ends the copy with its error; the next copy goes on from there."""
    monkeypatch.setattr(transfer, "_PIECE", 1)
    destination = stored()

    def fail(batch: Sequence[Append]) -> Sequence[Outcome]:
        error = NotWritten(KEY, "the disk is full", "free some")
        return [Outcome(Read(position=each.position), each.position, error) for each in batch]

    destination.script = [go_on, fail]
    source = stored(*LINES)
    with pytest.raises(NotWritten, match="the disk is full"):
        copy_thread(source, destination, KEY)
    assert held(destination) == LINES[:1]
    assert copy_thread(source, destination, KEY).appended == 9
    assert held(destination) == LINES


@pytest.mark.parametrize("spoilt", [LINES[:-1], [*LINES[:-1], line_of("spoilt")], []])
def test_what_does_not_arrive_is_an_error(spoilt: list[bytes]) -> None:
    """What the destination does not show as it was appended is an error that says how far it is."""

    class Spoils(Scripted):
        def load(self, key: ThreadKey) -> Read:
            read = super().load(key)
            return Read(spoilt, read.position) if read.lines else read

    with pytest.raises(StoreError, match=r"of 10 turns that the destination was given it shows"):
        copy_thread(stored(*LINES), Spoils(), KEY)


def test_ctrl_c_waits_for_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a commit ends the copy after it, with a piece that is whole."""
    monkeypatch.setattr(transfer, "_PIECE", 1)
    destination = stored()
    assert threading.current_thread() is threading.main_thread()
    destination.script = [go_on, lambda _: signal.raise_signal(signal.SIGINT)]
    source = stored(*LINES)
    with pytest.raises(KeyboardInterrupt):
        copy_thread(source, destination, KEY)
    assert held(destination) == LINES[:2]
    assert copy_thread(source, destination, KEY).differs is None
