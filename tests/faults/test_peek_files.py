"""Memory.peek against the open thread, over files of every kind, and with others about (C17)."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from bytesofit import put, seen, turn, unit
from hypothesis import example, given
from hypothesis import strategies as st
from machine import in_child, needs_root, tree
from systems import Notes, Watched
from writers import go, line, rest, running

from turnlog import (
    DamageWarning,
    LockTimeout,
    Memory,
    Message,
    NotWritten,
    StoreError,
    TurnlogWarning,
)
from turnlog.stores.jsonl import JsonlStore, threadfile

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

NOBODY = 65534
READS = {
    *("open_file", "close", "status", "status_of", "read", "try_lock", "unlock"),
    *("names", "file_system"),
}


def peeked(root: Path, last: int, *, sound: bool = False, **options: Any) -> list[Message]:
    """Peek afresh, as a process of its own would; of a sound file nothing may be told."""
    with Memory(root, **options) as memory, warnings.catch_warnings():
        warnings.simplefilter("error" if sound else "ignore", DamageWarning)
        return list(memory.peek("t", last=last))


# ---- what a file may hold, in pieces ----

PLAIN = [turn("a"), turn("b" * 30, role="assistant"), turn("c", more=',"key":"k"'), turn("d" * 150)]
UNITS = [unit("u1", "u2"), unit("v1" * 20, "v2", "v3"), unit(*(f"w{i}" for i in range(9)))]
FOREIGN = [
    b'{"content":"foreign"}\n',
    b'{"role":"user","content":"f","more":true}\n',
    b'{"role":"user","content":"f","unit":2}\n',
    turn("no such unit", more=',"unit":5'),
    turn("unit of none", more=',"unit":0'),
    turn("unit of itself", more=',"unit":1'),
    turn("unit below none", more=',"unit":-3'),
    turn("older", more=',"more":true'),
]
ODD = [b"\n", b" \t\n", b"\r\n", turn("crlf")[:-1] + b"\r\n", turn("a")[:-1] + turn("b")]
DAMAGED = [
    b"oops\n",
    b"{}\n",
    b"42\n",
    b'{"role":"user","content":"cut of\n',
    b"\0" * 40 + b"\n",
    b'{"content":"\xff"}\n',
    turn("torn")[:20] + turn("whole"),
    turn("whole")[:-1] + b'{"role":"us\n',
    b'{"role":"user","content":"x","content":"twice"}\n',
    b'{"n":' * 70 + b"1" + b"}" * 70 + b"\n",
]
ENDS = [
    b"",
    turn("unterminated")[:-1],
    turn("torn at the end")[:-20],
    b"{",
    b"\0" * 100,
    b'{"role":"user","content":"torn, with a newline\n',
    unit("t1", "t2", "t3")[:-30],
    unit("t1", "t2", "t3")[: -len(turn("t3", more=',"unit":3'))],
    unit("t1", "t2") + b'{"role":"us',
    b"42",
    b'{"other":1}',
    turn("x")[:-1] + b'{"role":"assi',
]

pieces = st.lists(
    st.sampled_from(PLAIN) | st.sampled_from(UNITS + FOREIGN) | st.sampled_from(ODD + DAMAGED),
    max_size=14,
)
starts = st.sampled_from((b"", b"", b"\xef\xbb\xbf"))


def check(data: bytes, first_read: int) -> None:
    """Check that a peek of any length is the end of the thread as it is opened, and writes nothing.

    White box: the first reading is made short, so that small files have what large ones have.
    """
    folder = Path(tempfile.mkdtemp())
    try:
        root = folder / "memory"
        put(root, data)
        with Memory(root, read_only=True) as memory, warnings.catch_warnings():
            warnings.simplefilter("ignore", DamageWarning)
            sound = memory.open("t").problems == ()
        with mock.patch.object(threadfile, "_TAIL", first_read):
            before = tree(root)
            lengths = range(data.count(b"{") + 3)
            peeks = {last: peeked(root, last, sound=sound) for last in lengths}
            assert tree(root) == before
        whole = list(seen(root).messages)
        for last, found in peeks.items():
            assert found == whole[max(0, len(whole) - last) :], (last, first_read)
    finally:
        shutil.rmtree(folder)


@given(starts, pieces, st.sampled_from(ENDS), st.sampled_from((1, 20, 100, 200, 400, 1000)))
@example(b"", [unit(*"abcdefgh"), turn("z")], b"", 150)
@example(b"", [turn("z"), unit(*"abcdefgh")], b"", 150)
@example(b"", [unit(*"abc"), unit(*"def")], unit(*"gh")[:-20], 250)
@example(b"", [turn("x", more=',"more":true')] * 5, turn("y", more=',"unit":2'), 150)
@example(b"\xef\xbb\xbf", [], turn("x"), 1)
def test_peek_is_the_end_of_the_thread(
    start: bytes, middle: list[bytes], end: bytes, first_read: int
) -> None:
    """Whatever a file holds, a peek of n turns is the last n of the thread as `open` gives it."""
    check(start + b"".join(middle) + end, first_read)


@given(st.lists(st.sampled_from(PLAIN + DAMAGED + UNITS), max_size=6), st.data())
def test_peek_at_a_file_that_was_cut_anywhere(middle: list[bytes], data: st.DataObject) -> None:
    """Cut at any byte, a file's peek is still what its opening gives (C01, C02, C03)."""
    whole = b"".join(middle) + unit("\u4e16", "y", "z")
    cut = data.draw(st.integers(0, len(whole)))
    check(whole[:cut], data.draw(st.sampled_from((1, 64, 300))))


@pytest.mark.parametrize("size", [1, 100, 5_000, 40_000])
def test_peek_over_real_sizes(root: Path, size: int) -> None:
    """The same with the real first reading: units longer than it, several, and huge lines."""
    rng = random.Random(size)
    kinds = [
        lambda: turn("p" * size),
        lambda: unit(*("u" * size for _ in range(rng.randint(2, 60)))),
    ]
    data = b"".join(rng.choice(kinds)() for _ in range(12)) + unit(*["last" * size] * 30)
    for end in (b"", turn("t")[:-1], turn("t" * size)[:-9], unit("a" * size, "b")[:-50]):
        file = put(root, data + end)
        before = tree(root)
        peeks = {last: peeked(root, last) for last in (0, 1, 2, 29, 30, 31, 100, 10_000)}
        assert tree(root) == before
        whole = list(seen(root).messages)
        assert peeks == {last: whole[max(0, len(whole) - last) :] for last in peeks}
        file.unlink()


# ---- it writes nothing ----


def test_peek_asks_the_system_to_read_alone(root: Path) -> None:
    """Whatever is wrong with a file, a peek makes no call that could write, in any memory."""
    files = [turn("a") + end for end in ENDS]
    for read_only in (False, True):
        notes = Notes()
        store = JsonlStore(root, read_only=read_only, system=Watched(notes))
        with Memory(store) as memory, warnings.catch_warnings():
            warnings.simplefilter("ignore", DamageWarning)
            for data in files:
                put(root, data)
                before = tree(root)
                assert memory.peek("t", last=5)[0].content == "a"
                assert tree(root) == before
        assert set(notes.names()) <= READS
        assert {
            (call, args) for call, args in notes.calls if call == "open_file" and args[2:]
        } == set()


@pytest.fixture
def public() -> Generator[Path]:
    """Give a folder whose path everyone may go along; pytest's own are for its user alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("read_only", [False, True])
def test_peek_without_permission_to_write(public: Path, read_only: bool) -> None:  # noqa: FBT001
    """Who may only read the files can peek, in a memory for writing too (Contract 9)."""
    root = public / "memory"
    put(root, turn("a") + turn("b") + turn("torn")[:-9])
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def child() -> list[str]:
        return [message.content for message in peeked(root, 5, read_only=read_only)]

    assert in_child(child, user=NOBODY) == ["a", "b"]


@needs_root
def test_peek_without_permission_to_read(public: Path) -> None:
    """Who may not read a file gets an error that names the thread."""
    root = public / "memory"
    put(root, turn("a")).chmod(0o000)
    for path in (root, root / "default"):
        path.chmod(0o755)

    def child() -> str:
        with pytest.raises(StoreError) as told:
            peeked(root, 5)
        return str(told.value)

    assert "thread 't' in namespace 'default': it cannot be read" in in_child(child, user=NOBODY)


# ---- with others about ----


def test_peek_behind_a_writer(root: Path) -> None:
    """While a writer holds the lock a peek waits a bounded time; it never sees half an append."""
    with running("hold", root, "t") as holder:
        assert line(holder) == "ready"
        with Memory(root, lock_timeout=0) as memory:
            with pytest.raises(LockTimeout, match="thread 't' in namespace 'default'"):
                memory.peek("t", last=1)
            with pytest.raises(LockTimeout):
                asyncio.run(memory.apeek("t", last=1))
            with Memory(root, lock_timeout=0, read_only=True) as reader, pytest.raises(LockTimeout):
                reader.peek("t", last=1)
            go(holder)
            assert rest(holder) == ["done"]
            assert [message.content for message in memory.peek("t", last=1)] == ["held 0"]


def test_two_peeks_at_once(root: Path) -> None:
    """Readers do not keep each other out: a peek goes on beside one that stands still."""
    put(root, turn("a"))
    reached, opened = threading.Event(), threading.Event()

    def before(call: str, _: object) -> None:
        if call == "read":
            reached.set()
            assert opened.wait(60)

    slow = Memory(JsonlStore(root, system=Watched(before)))
    peeking = threading.Thread(target=slow.peek, args=("t",), kwargs={"last": 1})
    peeking.start()
    try:
        assert reached.wait(60)
        assert [message.content for message in peeked(root, 1, lock_timeout=0)] == ["a"]
        with Memory(root, lock_timeout=0) as memory, pytest.raises(NotWritten):
            memory.open("t")  # a writer waits for it
    finally:
        opened.set()
        peeking.join()


def test_peek_reads_the_very_end_alone_under_the_lock(root: Path) -> None:
    """The lock is held for the first reading; those further back come when it is let go of."""
    lines = [turn(f"{number} ".ljust(4_000, "x")) for number in range(200)]
    put(root, b"".join(lines))
    notes = Notes()
    with Memory(JsonlStore(root, system=Watched(notes))) as memory:
        assert len(memory.peek("t", last=150)) == 150
        calls = notes.names("try_lock", "read", "unlock")
        assert calls[:3] == ["try_lock", "read", "unlock"]
        assert calls.count("read") > 2
        assert calls.count("try_lock") == 1


@pytest.mark.parametrize("when", ["it reads further back", "it scans"])
def test_peek_lets_a_writer_in(root: Path, when: str) -> None:
    """While a peek reads further back or looks for the turns, another appends, and waits not."""
    lines = [turn(f"{number} ".ljust(4_000, "x")) for number in range(200)]
    put(root, b"".join(lines))
    before = list(seen(root).messages)
    reads: list[str] = []
    scan = threadfile.fileformat.scan

    def on_call(call: str, _: object) -> None:
        reads.extend([call] * (call == "read"))
        if when == "it reads further back" and len(reads) == 2:
            write()

    def on_scan(*args: Any) -> Any:
        if when == "it scans" and len(reads) == 1:
            write()
        return scan(*args)

    def write() -> None:
        reads.append("append")
        other.append("meanwhile")

    with Memory(root, lock_timeout=0) as theirs:
        other = theirs.open("t")
        store = JsonlStore(root, system=Watched(on_call))
        with Memory(store) as memory, mock.patch.object(threadfile.fileformat, "scan", on_scan):
            assert list(memory.peek("t", last=150)) == before[-150:]
    assert reads.count("append") == 1
    assert seen(root).contents[-1] == "meanwhile"


def test_peek_beside_a_writer(root: Path) -> None:
    """While another process appends units, each peek ends in a whole one, and none goes back."""
    with running("extend", root, "t", "w", 0, 700) as writer, Memory(root) as memory:
        assert line(writer) == "ready"
        go(writer)
        newest = -1
        while newest < 200:
            turns = [message.content.split()[:2] for message in memory.peek("t", last=3)]
            numbers = [int(number) for _, number in turns]
            if numbers:
                assert numbers == list(range(numbers[0], numbers[0] + 3))
                assert numbers[0] % 3 == 0
                assert numbers[-1] >= newest
                newest = numbers[-1]
        writer.kill()


def test_peek_at_a_thread_that_is_open(root: Path) -> None:
    """A thread that is open in this process is peeked at, between its appends and among them."""
    with Memory(root) as memory:
        mem = memory.open("t").append("0")
        done = threading.Event()

        def write() -> None:
            for number in range(1, 200):
                mem.append(str(number))
            done.set()

        writing = threading.Thread(target=write)
        writing.start()
        newest = 0
        while not done.is_set():
            numbers = [int(message.content) for message in memory.peek("t", last=3)]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert numbers[-1] >= newest
            newest = numbers[-1]
        writing.join()
        assert memory.peek("t", last=300) == mem.messages()
        assert len(mem) == 200
        assert mem.append("200").problems == ()


def test_peek_leaves_no_file_open(root: Path, open_files: Callable[[], list[str]]) -> None:
    """However a peek ends, it leaves no descriptor behind, and no lock."""
    put(root, turn("a") + b"oops\n" + turn("b"))
    with Memory(root, lock_timeout=0) as memory, warnings.catch_warnings():
        warnings.simplefilter("error", TurnlogWarning)
        for _ in range(5):
            with pytest.raises(DamageWarning):
                memory.peek("t", last=2)

        def failing(call: str, _: object) -> None:
            if call == "read":
                raise OSError(5, os.strerror(5))

        with pytest.raises(StoreError, match="it cannot be read"):
            Memory(JsonlStore(root, system=Watched(failing))).peek("t", last=2)
        assert open_files() == []
        warnings.simplefilter("ignore", TurnlogWarning)
        memory.open("t").append("c")
