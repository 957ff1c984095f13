"""Contract 5 and 6: examining a thread's file, and taking what is no turn out of it (C19)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bytesofit import aside, put, seen, turn, unit
from hypothesis import given
from hypothesis import strategies as st
from machine import in_child, needs_root, needs_strace, strace, tiny_tmpfs, tree
from powercut import Disk, Quick, Recorder, explore
from systems import CALLS, Notes, ShortWrites, Together, Watched
from test_damage import BAD, FOREIGN
from test_failing_device import FailsAt
from test_mending import TAILS, CrashError, Crashes
from test_read_only import NOBODY, WRITES, damaged_memory, public, readable
from writers import go, line, lines_on_disk, rest, running

from turnlog import (
    LockTimeout,
    Memory,
    NotAThread,
    ReadOnly,
    StoreError,
    ThreadReplaced,
)
from turnlog.names import thread_key
from turnlog.stores.jsonl import Examination, JsonlStore, Stray

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnlog.stores.jsonl.osfile import System

__all__ = ["public"]  # a fixture

KEY = thread_key("t")
FIRST, LAST = turn("first"), turn("last", role="assistant")
REPEATED = b'{"role":"user","content":"one","content":"two"}\n'
NEW = ".t.jsonl.new"


def examined(root: Path, id: str = "t") -> Examination:
    """Examine a thread's file, which must be there."""
    found = JsonlStore(root, read_only=True).examine(thread_key(id))
    assert found is not None
    return found


def repaired(root: Path, system: System | None = None) -> Examination:
    """Repair the thread's file, which must be there; give what was found."""
    found = JsonlStore(root, system=system, lock_timeout=60).repair(KEY)
    assert found is not None
    return found


def missing(before: bytes, file: Path) -> Counter[int]:
    """Count the bytes, newlines left out, that neither the file nor its `.torn` has."""
    lost = Counter(before) - Counter(file.read_bytes() + aside(file))
    del lost[ord("\n")]
    return lost


# ---- examining ----


def test_sound_thread(root: Path, memory: Memory) -> None:
    """A sound thread is found to be sound, and a repair of it changes nothing."""
    memory.open("t").append("first").append("last")
    before = tree(root)
    sound = Examination(KEY, 2, 0, unterminated=False, problems=(), set_aside=0)
    assert sound.sound
    assert examined(root) == repaired(root) == sound
    assert tree(root) == before


def test_no_file(root: Path) -> None:
    """Where there is no file there is nothing to examine or repair, and nothing is made."""
    store = JsonlStore(root)
    assert store.examine(KEY) is None
    assert store.repair(KEY) is None
    assert list(store.strays()) == []
    assert not root.exists()


@pytest.mark.parametrize("read_only", [True, False])
def test_examining_finds_what_an_opening_finds(root: Path, read_only: bool) -> None:  # noqa: FBT001
    """An examination counts the turns and lists the problems that an opening does (C19)."""
    put(root, FIRST + REPEATED + b"oops\n" + turn("x")[:-1] + LAST + turn("torn")[:20], "all")
    ids = [*damaged_memory(root), "all"]
    ids.remove("missing")
    before = tree(root)
    store = JsonlStore(root, read_only=read_only)
    found = {id_: store.examine(thread_key(id_)) for id_ in ids}
    assert tree(root) == before
    with warnings.catch_warnings(), Memory(root, read_only=True) as memory:
        warnings.simplefilter("ignore")
        for id_, examination in found.items():
            assert examination is not None
            thread = memory.open(id_)
            assert (examination.turns, examination.problems) == (len(thread), thread.problems)
            assert examination.sound == (id_ in {"whole", "empty"})
    assert {id_: e.torn for id_, e in found.items() if e and e.torn} == {
        "torn": 30,
        "NULs": 5_000,
        "unit": len(unit("a", "b", "c")) - 5,
        "all": 20,
    }
    assert [id_ for id_, e in found.items() if e and e.unterminated] == ["no newline"]
    assert [len(e.problems) for e in found.values() if e] == [0, 0, 0, 0, 1, 0, 0, 3]


def test_examining_makes_no_call_that_writes(root: Path) -> None:
    """An examination asks the system for nothing that could write (Contract 9)."""
    put(root, FIRST + b"oops\n" + turn("torn")[:20])
    notes = Notes()
    store = JsonlStore(root, system=Watched(notes))
    assert store.examine(KEY) is not None
    list(store.strays())
    assert not {*WRITES, "rename"} & {call for call, _ in notes.calls}


# ---- repairing ----


@pytest.mark.parametrize("name", BAD)
def test_bad_line(root: Path, name: str) -> None:
    """A line that is no turn goes to `.torn`, and every turn stays as it was, byte for byte."""
    # C05, C06, C19, C29, C31.
    bad, word = BAD[name]
    file = put(root, FIRST + bad + b"\n" + LAST)
    file.chmod(0o644)
    found = repaired(root)
    assert [problem.line for problem in found.problems] == [2]
    assert word in found.problems[0].reason
    assert (file.read_bytes(), aside(file)) == (FIRST + LAST, bad + b"\n")
    assert sorted(os.listdir(file.parent)) == ["t.jsonl", "t.jsonl.torn"]
    for path in file.parent.iterdir():
        assert path.stat().st_mode & 0o777 == 0o644  # the file's own
    assert examined(root) == Examination(KEY, 2, 0, False, (), len(bad) + 1)  # noqa: FBT003
    before = tree(root)
    assert repaired(root).sound
    assert tree(root) == before


def test_many_bad_lines(root: Path) -> None:
    """However many lines are bad, all of them go to `.torn` in their order."""
    bad = [line for line, _ in BAD.values()]
    file = put(root, b"".join(turn(str(i)) + line + b"\n" for i, line in enumerate(bad)) + LAST)
    assert len(repaired(root).problems) == len(bad)
    assert file.read_bytes() == b"".join(turn(str(i)) for i in range(len(bad))) + LAST
    assert aside(file) == b"\n".join(bad) + b"\n"


FUSED = turn("a")[:-1]
# The file, what is left of it, and what is set aside.
DAMAGED: dict[str, tuple[bytes, bytes, bytes]] = {
    "first line": (b"oops\n" + FIRST, FIRST, b"oops\n"),
    "last line": (FIRST + b"oops\n", FIRST, b"oops\n"),
    "last line without a newline": (FIRST + b"[1]", FIRST, b"[1]\n"),
    "half line": (FIRST + LAST[:30] + b"\n" + LAST, FIRST + LAST, LAST[:30] + b"\n"),
    "fused": (FUSED + FIRST + LAST, FUSED + b"\n" + FIRST + LAST, b""),
    "fused at the end": (FUSED + FUSED, FUSED + b"\n" + FUSED + b"\n", b""),
    "fused with blanks": (
        b" " + FUSED + b"\t " + FIRST + LAST,
        b" " + FUSED + b"\n\t " + FIRST + LAST,
        b"",
    ),
    "fused with a half": (
        b'{"role":"user","content":"abc' + FIRST + LAST,
        FIRST + LAST,
        b'{"role":"user","content":"abc\n',
    ),
    "fused with damage around": (
        b"one" + FUSED + b"\0\0" + FUSED + b" three\n" + LAST,
        FUSED + b"\n" + FUSED + b"\n" + LAST,
        b"one\n\0\0\n three\n",
    ),
    "NULs before a turn": (FIRST + b"\0" * 4096 + LAST, FIRST + LAST, b"\0" * 4096 + b"\n"),
    "CRLF": (
        b"\xef\xbb\xbf" + FUSED + b"\r\noops\r\n\r\n" + FUSED + FUSED + b"\r\n",
        b"\xef\xbb\xbf" + FUSED + b"\r\n\r\n" + FUSED + b"\n" + FUSED + b"\r\n",
        b"oops\r\n",
    ),
    "byte order mark": (FIRST + b"\xef\xbb\xbf" + LAST, FIRST + LAST, b"\xef\xbb\xbf\n"),
    "after a byte order mark": (
        b"\xef\xbb\xbfoops\n" + LAST,
        b"\xef\xbb\xbf" + LAST,
        b"oops\n",
    ),
    "torn end": (
        FIRST + b"oops\n" + LAST + LAST[:40],
        FIRST + LAST,
        b"oops\n" + LAST[:40],
    ),
    "end torn on a fused line": (
        b"oops\n" + FUSED + FUSED + LAST[:40],
        FUSED + b"\n" + FUSED + b"\n",
        b"oops\n" + LAST[:40],
    ),
    "end torn behind what hides a turn when it is cut": (
        b'{"content":"x","meta":{"n":NaN}}' + FUSED + b'{"role":"\xef\xbb',
        FUSED + b"\n",
        b'{"content":"x","meta":{"n":NaN}}\n{"role":"\xef\xbb',
    ),
    "no newline": (b"oops\n" + FIRST[:-1], FIRST, b"oops\n"),
    "U+2028": (
        b"\xe2\x80\xa8\n" + turn("a\u2028b") + LAST,
        turn("a\u2028b") + LAST,
        b"\xe2\x80\xa8\n",
    ),
    "with a key given twice": (REPEATED + b"oops\n" + LAST, REPEATED + LAST, b"oops\n"),
    "unit": (unit("a", "b") + b"oops\n" + LAST, unit("a", "b") + LAST, b"oops\n"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_repair(root: Path, name: str) -> None:
    """What is no turn is taken out, also of a line's middle; fused turns get lines of their own."""
    # C04, C05, C06, C22.
    data, left, moved = DAMAGED[name]
    put(root, data, "copy")
    expected = seen(root, "copy")
    file = put(root, data)
    found = repaired(root)
    assert found.turns == len(expected.messages)
    assert found.problems == expected.problems
    assert (file.read_bytes(), aside(file)) == (left, moved)
    again = seen(root)
    assert list(again.messages) == list(expected.messages)
    assert again.torn == 0
    assert examined(root).sound == (again.problems == ()) == (name != "with a key given twice")


@pytest.mark.parametrize("tail", TAILS)
def test_torn_end(root: Path, tail: str) -> None:
    """A torn end is mended as an opening does it, also where there is no turn yet (Contract 5)."""
    for number, base in enumerate((FIRST, b"", b"\xef\xbb\xbf")):
        place = root / str(number)
        copy = put(place, base + TAILS[tail], "copy")
        expected = seen(place, "copy")
        file = put(place, base + TAILS[tail])
        found = repaired(place)
        assert found.torn == (0 if tail == "no newline" else len(TAILS[tail]))
        assert found.unterminated or tail != "no newline"
        assert (file.read_bytes(), aside(file)) == (copy.read_bytes(), aside(copy))
        assert seen(place).contents == expected.contents


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n \n\t\r\n",
        b"\xef\xbb\xbf" + FIRST + LAST,
        (FIRST + LAST).replace(b"\n", b"\r\n"),
        b"\n" + FIRST + b"\n  \n" + LAST + b"\n",
        FIRST + b' { "content" : "theirs", "n" : [1] } \n',
        FIRST + unit("a", "b", "c")[:-80].rpartition(b"\n")[0] + b"\n" + LAST,
        FIRST + REPEATED + LAST,
    ],
)
def test_no_damage(root: Path, data: bytes) -> None:
    """A file whose lines are turns, or blank, is not written to, whatever its lines end in."""
    put(root, data)
    before = tree(root)
    notes = Notes()
    repaired(root, Watched(notes))
    assert tree(root) == before
    assert notes.names("write", "truncate", "rename") == []
    assert notes.names("sync")  # an earlier repair may have been killed before its own


def test_repeated_key(root: Path) -> None:
    """A turn that gives a key twice is a turn: it stays, and so does its problem (C29)."""
    file = put(root, FIRST + b"oops\n" + REPEATED)
    assert [problem.line for problem in repaired(root).problems] == [2, 3]
    (problem,) = examined(root).problems
    assert "given more than once" in problem.reason
    assert (problem.line, problem.offset) == (2, len(FIRST))
    assert not examined(root).sound
    assert file.read_bytes() == FIRST + REPEATED
    assert seen(root).contents == ["first", "two"]


MORE = unit("a", "b").splitlines(keepends=True)[0]


@pytest.mark.parametrize(
    "data",
    [
        FIRST + MORE + b"[1]\n",
        FIRST + MORE + b"[1]",
        FIRST + MORE + MORE + b"[1]\n" + turn("torn")[:30],
        FUSED + MORE,
        FIRST + MORE[:-1] + MORE,
        FIRST + MORE + b"[1]\n" + unit("a", "b").splitlines(keepends=True)[1],
    ],
)
def test_broken_unit_before_damage(root: Path, data: bytes) -> None:
    """Turns of a broken unit, which damage behind them made turns, stay turns without it."""
    put(root, data, "copy")
    expected = seen(root, "copy").contents
    assert "a" in expected
    put(root, data)
    repaired(root)
    assert examined(root).sound
    assert seen(root).contents == expected
    assert seen(root, then="next").contents == [*expected, "next"]


NO_TURN = {
    **FOREIGN,
    "records of another kind": b'{"type":"summary"}\n{"type":"x","n":1}\n',
    "damage and a tear": b'{"role":"user"}\n' + FIRST[:20],
}


@pytest.mark.parametrize("name", NO_TURN)
def test_foreign_file(root: Path, name: str) -> None:
    """A file that holds no turn may be another program's: it is refused and not touched (C29)."""
    put(root, NO_TURN[name])
    before = tree(root)
    assert examined(root).turns == 0
    assert not examined(root).sound
    with pytest.raises(NotAThread, match=r"thread 't' in namespace 'default': no line .* a turn"):
        repaired(root)
    assert tree(root) == before


PIECES = [
    *(turn("plain"), turn("안녕 🙂", role="assistant"), unit("a", "b"), unit("a", "b", "c")),
    *unit("d", "e", "f").splitlines(keepends=True),
    *(
        turn("fused")[:-1],
        turn("half")[:30],
        turn("half")[:31] + b"\n",
        turn("crlf")[:-1] + b"\r\n",
    ),
    *(b"\n", b" \t\r\n", b" ", b"\r", b"\0" * 9, b"\xef\xbb\xbf", b'{"', b"}", b"[1]\n"),
    *(REPEATED, b'{"content":"theirs","n":{"a":[1]}}\n', b'{"content":"theirs","more":true}\n'),
    *(bad + end for bad, _ in BAD.values() if len(bad) < 5_000 for end in (b"\n", b"")),
]


@given(st.lists(st.sampled_from(PIECES), max_size=9), st.integers(0, 60))
def test_any_file(pieces: list[bytes], cut: int) -> None:
    """Whatever a file holds, a repair loses no byte of it, and no turn, and does all at once."""
    data = b"".join(pieces)
    data = data[: len(data) - cut]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        file = put(root, data)
        put(root, data, "copy")
        expected = seen(root, "copy")
        before = examined(root)
        try:
            found = repaired(root)
        except NotAThread:
            assert (expected.contents, file.read_bytes(), aside(file)) == ([], data, b"")
            assert expected.problems
            return
        assert found == before
        assert (found.turns, found.problems) == (len(expected.messages), expected.problems)
        assert missing(data, file) == Counter()
        again = examined(root)
        assert (again.torn, again.unterminated) == (0, False)
        assert all("given more than once" in problem.reason for problem in again.problems)
        repaired_tree = tree(root)
        repaired(root)
        assert tree(root) == repaired_tree
        assert list(seen(root).messages) == list(expected.messages)
        assert seen(root, then="next").contents == [*expected.contents, "next"]
        assert {path.name for path in file.parent.iterdir()} <= {
            *("t.jsonl", "t.jsonl.torn", "copy.jsonl", "copy.jsonl.torn")
        }


def test_added_to_what_was_set_aside(root: Path) -> None:
    """What was set aside before stays; what comes to it begins on a line of its own."""
    file = put(root, FIRST + b"oops\n")
    file.with_name("t.jsonl.torn").write_bytes(b"from before")
    assert repaired(root).set_aside == len("from before")
    assert aside(file) == b"from before\noops\n"
    assert examined(root).set_aside == len(b"from before\noops\n")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"not a turn\n", b"turn\n"),
    ],
)
def test_damage_that_is_the_end_of_an_earlier_one(root: Path, first: bytes, second: bytes) -> None:
    """Damage that is equal to the end of what was set aside, and was longer, is set aside too."""
    file = put(root, FIRST + first)
    repaired(root)
    assert aside(file) == first
    with file.open("ab") as other:
        other.write(second)
    repaired(root)
    assert (file.read_bytes(), aside(file)) == (FIRST, first + second)


@needs_root
@pytest.mark.parametrize("way", [repaired, seen])
@pytest.mark.parametrize("end", [b"oops\n" + LAST + LAST[:30], LAST[:30]])
def test_owner_and_mode_stay(root: Path, way: Callable[[Path], object], end: bytes) -> None:
    """Whoever repairs or opens a thread, its file keeps owner and mode; a new `.torn` has them."""
    file = put(root, FIRST + end)
    os.chown(file, NOBODY, NOBODY)
    file.chmod(0o640)
    way(root)
    assert aside(file)
    for path in file.parent.iterdir():
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (NOBODY, NOBODY, 0o640)


def test_writes_cut_short(root: Path) -> None:
    """A system that takes little at once gets all of the new file and of the copy."""
    file = put(root, FIRST + b"oops oops oops\n" + LAST)
    repaired(root, ShortWrites(7))
    assert (file.read_bytes(), aside(file)) == (FIRST + LAST, b"oops oops oops\n")


# ---- threads that are open, and others at work ----


def test_open_thread_notices(root: Path) -> None:
    """An open thread notices that a repair replaced its file, and is opened again (Contract 8)."""
    put(root, FIRST + b"oops\n" + LAST)
    with Memory(root) as memory:
        with pytest.warns(match="cannot be read"):
            thread = memory.open("t").append("third")
        repaired(root)
        with pytest.raises(ThreadReplaced, match="open the thread again"):
            thread.append("lost?")
        with pytest.raises(ThreadReplaced):
            thread.refresh()
        assert [m.content for m in thread.messages()] == ["first", "last", "third"]
    assert seen(root, then="fourth").contents == ["first", "last", "third", "fourth"]


def test_open_thread_of_another_process_notices(root: Path) -> None:
    """A process that has the thread open writes nothing into the file that is gone (C27)."""
    file = put(root, FIRST + b"oops\n" + LAST)
    with running("append", root, "t", "w", 1, 0) as writer:
        assert line(writer) == "ready"
        repaired(root)
        go(writer)
        assert rest(writer) == []
        assert writer.wait() == 1
    assert file.read_bytes() == FIRST + LAST


def test_open_thread_of_a_sound_file_goes_on(root: Path, memory: Memory) -> None:
    """A repair that only mends the end leaves the file the one that it was."""
    thread = memory.open("t").append("first")
    file = root / "default" / "t.jsonl"
    with file.open("ab") as other:
        other.write(LAST[:30])
    assert repaired(root).torn == 30
    thread.append("second")
    assert lines_on_disk(root) == ["first", "second"]


def test_lock_of_another_process(root: Path) -> None:
    """While another process appends, both wait a bounded time and change nothing (C26)."""
    put(root, FIRST + b"oops\n")
    store = JsonlStore(root, lock_timeout=0.1)
    with running("hold", root, "t") as holder:
        assert line(holder) == "ready"
        before = tree(root)
        for attempt in (store.examine, store.repair):
            with pytest.raises(LockTimeout, match=r"thread 't'.*nothing was written"):
                attempt(KEY)
        assert tree(root) == before
        go(holder)
        assert rest(holder) == ["done"]
    assert store.repair(KEY) is not None
    assert lines_on_disk(root) == ["first", "held 0"]


def test_killed_holder(root: Path) -> None:
    """A dead process' lock is free, and what it had not finished is repaired (C26)."""
    put(root, FIRST + b"oops\n")
    with running("hold", root, "t") as holder:
        assert line(holder) == "ready"
        holder.kill()
        holder.wait()
        assert repaired(root).turns == 2
    assert lines_on_disk(root) == ["first", "held 0"]


def test_readers_do_not_keep_each_other_out(root: Path) -> None:
    """Examinations share the lock, and a repair waits for them (Contract 3)."""
    file = put(root, FIRST + b"oops\n")
    system = Watched(lambda _call, _args: None)
    fd = system.open_file(str(file.parent), file.name)
    assert system.try_lock(fd, shared=True)
    store = JsonlStore(root, lock_timeout=0)
    assert store.examine(KEY) is not None
    with pytest.raises(LockTimeout):
        store.repair(KEY)
    system.close(fd)
    assert store.repair(KEY) is not None


def test_several_repairs_at_once(root: Path) -> None:
    """Of several that repair a thread at once one does it, and the others find it sound."""
    file = put(root, FIRST + b"oops\n" + LAST)
    barrier = threading.Barrier(6)
    found: list[Examination] = []

    def work() -> None:
        barrier.wait()
        found.append(repaired(root))

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [examination.sound for examination in found].count(False) == 1
    assert len(found) == 6
    assert (file.read_bytes(), aside(file)) == (FIRST + LAST, b"oops\n")


def in_place(file: Path) -> None:
    """Add a line, as a script does that knows nothing of locks."""
    with file.open("ab") as other:
        other.write(turn("theirs"))


def by_rename(file: Path) -> None:
    """Save the file anew, as an editor does."""
    other = file.with_name("saved")
    other.write_bytes(turn("theirs"))
    other.replace(file)


def same_size(file: Path) -> None:
    """Write over a part of it, as a script does that mends a word."""
    size = file.stat().st_size
    with file.open("r+b") as other:
        other.write(b"ops\n" + turn("theirs"))
    assert file.stat().st_size == size
    os.utime(file, ns=(0, 1))  # another time than before, whatever the grain of the clock


@pytest.mark.parametrize("way", [in_place, same_size, by_rename, Path.unlink])
def test_program_that_ignores_the_lock(root: Path, way: Callable[[Path], None]) -> None:
    """What another program writes to the file during a repair is not lost by it (Contract 8)."""
    file = put(root, FIRST + b"oops\n")
    ways = [way]

    def before(call: str, _: object) -> None:
        if call == "write" and file.with_name(NEW).exists() and ways:
            ways.pop()(file)

    with pytest.raises(ThreadReplaced, match=r"thread 't'.*another program changed its file"):
        repaired(root, Watched(before))
    assert not file.with_name(NEW).exists()
    if file.exists():
        assert file.read_bytes().endswith(turn("theirs"))
        repaired(root)
        assert lines_on_disk(root)[-1] == "theirs"


# ---- faults ----


def test_read_only_store(root: Path) -> None:
    """A read-only store examines, and refuses to repair, whether there is a file or not."""
    put(root, FIRST + b"oops\n")
    before = tree(root)
    store = JsonlStore(root, read_only=True)
    assert store.examine(KEY) is not None
    for id_ in ("t", "missing"):
        with pytest.raises(ReadOnly, match=f"thread '{id_}'.*read_only=True"):
            store.repair(thread_key(id_))
    assert tree(root) == before


@needs_root
def test_folder_that_takes_no_files(public: Path) -> None:
    """Where the folder refuses, a repair says what permission it needs and changes nothing."""
    root = public / "memory"
    put(root, FIRST + b"oops\n").parent.chmod(0o755)
    readable(root)
    (root / "default" / "t.jsonl").chmod(0o666)
    before = tree(root)

    def user() -> str:
        with pytest.raises(StoreError, match=r"thread 't'.*it cannot be repaired") as refused:
            repaired(root)
        return str(refused.value)

    assert "write permission" in in_child(user, user=NOBODY)
    assert tree(root) == before


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.torn", NEW])
def test_something_else_under_a_name(root: Path, tmp_path: Path, kind: str, name: str) -> None:
    """What stands under a name that a repair needs and is no file costs no byte (Contract 8)."""
    data = FIRST + b"oops\n"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(data)
    file = put(root, data)
    place = file.with_name(name)
    place.unlink(missing_ok=True)
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)
    if name == NEW and kind != "folder":  # a name that only a repair has: it is removed
        repaired(root)
        assert file.read_bytes() == FIRST
    else:
        if name == "t.jsonl.torn":
            assert examined(root).set_aside == 0
        with pytest.raises(StoreError, match="thread 't'"):
            repaired(root)
        assert name == "t.jsonl" or file.read_bytes() == data
    assert elsewhere.read_bytes() == data


def test_order_of_a_repair(root: Path) -> None:
    """Damage is copied and the copy synced, then the new file, and only then the name changes."""
    put(root, FIRST + b"oops\n")
    notes = Notes()
    repaired(root, Watched(notes))
    steps = notes.names("write", "sync", "sync_folder", "rename")
    assert steps[:6] == ["write", "sync", "sync_folder", "write", "sync", "rename"]
    assert steps[6] == "sync_folder"
    assert notes.names("try_lock", "rename", "sync_folder", "unlock")[0] == "try_lock"
    assert notes.names("rename", "sync_folder", "unlock")[-1] == "unlock"


TORN = turn("torn")[:40]
BROKEN = FIRST + b"oops\n" + FUSED + b"\0\0" + LAST + TORN
MENDED = FIRST + FUSED + b"\n" + LAST
DAMAGE = b"oops\n\0\0\n"


@pytest.mark.parametrize("torn", [True, False])
def test_crash_at_every_call(root: Path, torn: bool) -> None:  # noqa: FBT001
    """A crash at any call of a repair loses no byte, and the next repair does the rest."""
    data = BROKEN if torn else BROKEN.removesuffix(TORN)
    for number in range(100):
        place = root / str(number)
        file = put(place, data)
        system = Crashes(number)
        with suppress(CrashError):
            repaired(place, system)
        assert missing(data, file) == Counter()
        left = file.with_name(NEW)
        strays = list(JsonlStore(place).strays())
        assert [stray.path for stray in strays] == [f"default/{NEW}"] * left.exists()
        with Memory(place, read_only=True) as memory, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert [m.content for m in memory.open("t").messages()] == ["first", "a", "last"]
        repaired(place)
        assert file.read_bytes() == MENDED
        assert missing(data, file) == Counter()
        assert aside(file).count(DAMAGE + TORN * torn) == 1, "it was copied twice"
        assert examined(place).sound
        assert list(JsonlStore(place).strays()) == []
        assert seen(place, then="next").contents == ["first", "a", "last", "next"]
        if not system.crashed:
            assert number > 20
            return
    pytest.fail("a repair makes more than a hundred calls")


def test_any_call_fails(root: Path) -> None:
    """Whichever call of a repair fails, no byte is lost, nothing is left over, and it goes on."""
    for number in range(100):
        place = root / str(number)
        file = put(place, BROKEN)
        notes = Notes()
        try:
            repaired(place, Watched(Together([notes, FailsAt(number)])))
        except StoreError as error:
            assert "thread 't'" in str(error)  # noqa: PT017 - to let go of a thing does not fail
        assert missing(BROKEN, file) == Counter()
        assert list(JsonlStore(place).strays()) == []
        JsonlStore(place, lock_timeout=0).repair(KEY)  # the lock is free
        assert (file.read_bytes(), aside(file)) == (MENDED, DAMAGE + TORN)
        if len(notes.calls) <= number:
            assert number > 20
            return
    pytest.fail("a repair makes more than a hundred calls")


def test_interrupted(root: Path) -> None:
    """A Ctrl-C in the middle of a repair leaves no file behind, and no lock (Contract 7)."""
    file = put(root, BROKEN)

    def before(call: str, _: object) -> None:
        if call == "rename":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repaired(root, Watched(before))
    assert list(JsonlStore(root).strays()) == []
    repaired(root)
    assert file.read_bytes() == MENDED


@needs_root
def test_full_disk(tmp_path: Path) -> None:
    """Without room for the new file a repair is refused and leaves the old; with room it works."""
    with tiny_tmpfs(tmp_path / "disk") as disk:
        data = FIRST + b"oops\n" + turn("x" * 100_000)
        file = put(disk, data)
        file.with_name("t.jsonl.torn").write_bytes(b"before\n")
        room = os.statvfs(disk)
        (disk / "filler").write_bytes(b"z" * (room.f_bavail * room.f_frsize - 8_192))
        for _ in range(2):
            with pytest.raises(StoreError, match=r"thread 't'.*free space on the disk"):
                repaired(disk)
            assert file.read_bytes() == data
            assert aside(file) == b"before\noops\n"
            assert not file.with_name(NEW).exists()
        (disk / "filler").unlink()
        repaired(disk)
        assert file.read_bytes() == FIRST + turn("x" * 100_000)
        assert aside(file) == b"before\noops\n"


REPAIR = """
import sys
from turnlog.names import thread_key
from turnlog.stores.jsonl import JsonlStore
JsonlStore(sys.argv[1]).repair(thread_key("t"))
"""


@needs_strace
@pytest.mark.parametrize(
    ("call", "when"),
    [
        *(("openat", when) for when in range(1, 10)),
        *(("flock", when) for when in (1, 2)),
        *(("write", when) for when in (1, 2, 3)),
        *(("fdatasync", when) for when in (1, 2, 3)),
        *(("fsync", when) for when in (1, 2, 3)),
        ("?rename,?renameat,?renameat2", 1),
        ("?unlink,?unlinkat", 1),
    ],
)
def test_killed_at_a_call(root: Path, call: str, when: int) -> None:
    """A process killed at any step of a repair costs nothing, and the next one repairs (R13)."""
    file = put(root, BROKEN)
    # The calls on the folder, and on what is in it.
    under = strace(f"{call}:signal=SIGKILL:when={when}", file.parent)
    for name in (file.name, "t.jsonl.torn", NEW):
        under += ["-P", str(file.with_name(name))]
    done = subprocess.run([*under, sys.executable, "-c", REPAIR, str(root)], check=False)
    assert missing(BROKEN, file) == Counter()
    if done.returncode == 0:  # there are no more calls of this kind
        assert file.read_bytes() == MENDED
        assert when > 1
    repaired(root)
    assert file.read_bytes() == MENDED
    assert aside(file) == DAMAGE + TORN
    assert list(JsonlStore(root).strays()) == []
    assert seen(root, then="next").contents == ["first", "a", "last", "next"]


def cut_off(tmp_path: Path, skip: str) -> tuple[int, list[str]]:
    """Repair a file, append to it, and check every state that a power cut may leave of that."""
    old = tmp_path / "old"
    root = old / "memory"
    file = put(root, BROKEN)
    recorder = Recorder(skip=skip)
    recorder.files[str(file)] = -1
    base = Disk({str(root), str(root / "default")}, {str(file): -1}, {-1: BROKEN})
    store = JsonlStore(root, system=recorder)
    assert store.repair(KEY) is not None
    recorder.done(1)
    with Memory(store) as memory:
        memory.open("t").append("next")
    recorder.done(2)

    def check(new: Path, count: int) -> None:
        left = new / "memory" / "default" / "t.jsonl"
        assert left.exists(), "the thread is lost"
        assert missing(BROKEN, left) == Counter(), "bytes are lost"
        with warnings.catch_warnings(), Memory(new / "memory", read_only=True) as memory:
            warnings.simplefilter("ignore")
            found = [m.content for m in memory.open("t").messages()]
        assert found[:3] == ["first", "a", "last"], "turns are lost"
        assert found[3:] in ([], ["next"])
        assert count < 1 or left.read_bytes().startswith(MENDED), "the repair is lost"
        assert count < 2 or found[3:] == ["next"], "the turn is lost"
        repaired(new / "memory", Quick())
        assert left.read_bytes().startswith(MENDED)
        assert list(JsonlStore(new / "memory").strays()) == []

    return explore(recorder, old, base, tmp_path / "new", check)


def test_power_cut(tmp_path: Path) -> None:
    """A power cut at any moment of a repair loses no byte; a repair that returned is durable."""
    count, wrong = cut_off(tmp_path, "")
    assert wrong == []
    assert count > 30


@pytest.mark.parametrize(
    ("skip", "found"),
    [("new", "bytes are lost"), ("torn", "bytes are lost"), ("folder", "the repair is lost")],
)
def test_model_finds(tmp_path: Path, skip: str, found: str) -> None:
    """A repair that leaves out a sync is found by the model: the test above can fail."""
    _, wrong = cut_off(tmp_path, skip)
    assert any(found in what for what in wrong)


# ---- strays ----


def test_strays(root: Path, tmp_path: Path) -> None:
    """All that belongs to no thread is given by its path and a reason; threads and theirs not."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    put(elsewhere, FIRST, "not ours")
    for id_ in ("t", "사용자", "t.jsonl"):
        put(root, FIRST, id_)
    folder = root / "default"
    for name in ("t.jsonl.torn", "t.jsonl.lock", "not yet.jsonl.lock"):
        (folder / name).touch()
    (root / "empty").mkdir()
    store = JsonlStore(root)
    assert list(store.strays()) == []

    (root / "file.jsonl").touch()
    (root / ".git").mkdir()
    (root / "link").symlink_to(elsewhere)
    (folder / "link.jsonl").symlink_to(elsewhere / "default" / "not ours.jsonl")
    (folder / "nowhere.jsonl").symlink_to("nowhere")
    (folder / "folder.jsonl").mkdir()
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    for name in (" blank.jsonl", ".jsonl", "n\udcff.jsonl", "notes.txt", "T.JSONL", "t.jsonl~"):
        (folder / name).touch()
    for name in ("gone.jsonl.torn", "folder.jsonl.torn", NEW, " x.jsonl.lock"):
        (folder / name).touch()
    found = list(store.strays())
    assert all(isinstance(stray, Stray) for stray in found)
    reasons = {stray.path: stray.reason for stray in found}
    assert len(reasons) == len(found)
    expected = {
        ".git": "name is not plain: it starts with '.'",
        "file.jsonl": "only the folders of namespaces",
        "link": "a symbolic link",
        "default/ blank.jsonl": "white space",
        "default/ x.jsonl.lock": "white space",
        "default/.jsonl": "it is empty",
        f"default/{NEW}": "repair left",
        "default/T.JSONL": "does not end in .jsonl",
        "default/folder": "a folder among threads",
        "default/folder.jsonl": "a folder under the name of a thread",
        "default/folder.jsonl.torn": "thread that is gone",
        "default/gone.jsonl.torn": "thread that is gone",
        "default/link.jsonl": "a symbolic link",
        "default/notes.txt": "does not end in .jsonl",
        "default/nowhere.jsonl": "a symbolic link",
        "default/n\udcff.jsonl": "half a character",
        "default/pipe.jsonl": "a special file under the name",
        "default/t.jsonl~": "does not end in .jsonl",
    }
    assert reasons.keys() == expected.keys()
    for path, words in expected.items():
        assert words in reasons[path], path
    assert [s.path for s in store.strays("default")] == [p for p in expected if "/" in p]
    assert list(store.strays("empty")) == list(store.strays("missing")) == []
    assert list(store.strays("link")) == []


def test_strays_reads_no_file(root: Path) -> None:
    """Looking for strays opens no file and no thread's lock, whoever has it."""
    put(root, FIRST)
    (root / "default" / "notes.txt").touch()
    notes = Notes()
    with running("hold", root, "u") as holder:
        assert line(holder) == "ready"
        found = JsonlStore(root, read_only=True, lock_timeout=0, system=Watched(notes)).strays()
        assert [stray.path for stray in found] == ["default/notes.txt"]
    assert set(notes.names()) <= {"status_of", "scan"}


def test_strays_of_a_folder_that_cannot_be_listed(root: Path) -> None:
    """A folder that the system does not list is our error, not silence (C19)."""
    put(root, FIRST)

    def before(call: str, _: object) -> None:
        if call == "scan":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(StoreError, match="device failed"):
        list(JsonlStore(root, system=Watched(before)).strays())


def test_deleting_leaves_nothing(root: Path, memory: Memory) -> None:
    """Deleting a thread removes what was set aside of it and what a killed repair left."""
    file = put(root, FIRST)
    for name in ("t.jsonl.torn", NEW):
        file.with_name(name).write_bytes(FIRST)
    assert memory.delete("t")
    assert list(file.parent.iterdir()) == []
    assert list(JsonlStore(root).strays()) == []


def test_seam() -> None:
    """Every new call of a repair goes through the seam, where the faults above are made."""
    assert {"rename", "unlink", "open_file", "sync", "sync_folder"} <= CALLS
