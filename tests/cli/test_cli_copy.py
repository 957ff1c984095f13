"""`turnlog copy`: threads from one place to another, and what is told of those that are not."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from typing import TYPE_CHECKING, Final

import pytest
from processes import COMMAND, at_terminal, environment, piped
from stored import DAMAGED, Invoke, many_turns, put

from turnlog import Memory, Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE: Final = 60.0  # a watchdog, in seconds

# The stores that threads are copied to and back from, and where each is for a test.
PLACES: Final[dict[str, Callable[[Path, pytest.FixtureRequest], str]]] = {
    "files": lambda place, _: str(place / "there"),
    "files by URL": lambda place, _: f"file://{place}/by URL",
    "PostgreSQL": lambda _, request: request.getfixturevalue("postgres_url"),
    "JetStream": lambda _, request: request.getfixturevalue("nats_url"),
}

FOREIGN: Final = (
    b'{"content":"without a role"}\n'
    b' {"role": "tool", "content": "spaced", "more": true, "x": {"y": [1, 2.50]}} \n'
    b'{"role":"user","content":"\\ud800 \\u0000","key":"\\udfff","at":"yesterday"}\n'
    b'{"role":"user","content":"' + "h\u00e9\u2028".encode() + b'"}\n'
)


@pytest.fixture(params=PLACES)
def there(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Give the location of an empty store of each kind."""
    return PLACES[request.param](tmp_path, request)


def fill(root: Path) -> None:
    """Make threads of all kinds."""
    with Memory(root) as memory:
        mem = memory.open("plain").append("one").append("two", role="assistant", meta={"n": 2**63})
        mem.append("half a character \ud800", key="\ud800 key")
        unit = [Message("user", f"part {number} \x85\x7f") for number in range(5)]
        memory.open("units", "other").extend(unit, key="unit").extend(unit[:2]).append("alone")
        memory.open("\U0001f9f5 a'b\"c", "na me").append("odd")
        memory.open("long").extend([Message("user", "x" * 1000) for _ in range(6000)])
    put(root, "foreign", FOREIGN)


def files(root: Path) -> dict[str, bytes]:
    """Give the files of a memory, each by its path in it."""
    return {
        str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()
    }


# ---- what is copied ----


def test_there_and_back_it_is_the_same(root: Path, tmp_path: Path, there: str) -> None:
    """Copied to another store and back, the files of all threads are the same, byte for byte."""
    fill(root)
    back = tmp_path / "back"
    for source, destination in ((root, there), (there, back)):
        assert piped(root, "copy", source, destination) == (0, "", "")
    assert files(back) == files(root)
    assert len(files(back)) == 5


def test_through_all_stores_it_is_the_same(
    root: Path, tmp_path: Path, postgres_url: str, nats_url: str
) -> None:
    """From files to PostgreSQL, JetStream and back to files, all threads are the same bytes."""
    fill(root)
    places = (root, postgres_url, nats_url, tmp_path / "back")
    for source, destination in itertools.pairwise(places):
        done = piped(root, "copy", source, destination)
        assert done == (0, "", "")
    assert files(tmp_path / "back") == files(root)


def test_once_more_changes_nothing(root: Path, tmp_path: Path, invoke: Invoke, there: str) -> None:
    """What is the same already is not written again, and what was appended since is added."""
    fill(root)
    back = tmp_path / "back"
    for _ in range(2):
        assert invoke("copy", root, there).exit_code == 0
    assert invoke("copy", there, back).exit_code == 0
    times = {file: file.stat().st_mtime_ns for file in back.rglob("*.jsonl")}
    with Memory(root) as memory:
        memory.open("plain").append("three")
    for source, destination in ((root, there), (there, back)):
        assert invoke("copy", source, destination).exit_code == 0
    assert files(back) == files(root)
    changed = [file.stem for file, at in times.items() if file.stat().st_mtime_ns != at]
    assert changed == ["plain"]


def test_the_threads_of_one_namespace(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    """With --namespace only its threads are copied; one without threads is an error."""
    fill(root)
    there = tmp_path / "there"
    assert invoke("copy", root, there, "--namespace", "other").exit_code == 0
    assert files(there) == {"other/units.jsonl": (root / "other" / "units.jsonl").read_bytes()}
    for name, said in (("nobody", "no thread in the namespace 'nobody'"), ("a/b", "separator")):
        done = invoke("copy", root, there, "--namespace", name)
        assert (done.exit_code, said in done.stderr) == (1, True)


def test_the_places_are_those_that_were_named(root: Path, tmp_path: Path) -> None:
    """Neither --root nor TURNLOG_URL says where threads are copied from or to."""
    put(root, "t", b'{"content":"of the root"}\n')
    put(tmp_path / "a", "t", b'{"content":"of a"}\n')
    a, b = tmp_path / "a", tmp_path / "b"
    assert piped(root, "--root", root, "copy", a, b) == (0, "", "")
    assert files(b) == files(a)


def test_the_source_is_only_read(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    """Of the source nothing is changed or made, whatever a crash has left in it."""
    put(root, "hurt", DAMAGED)
    before = files(root)
    assert invoke("copy", root, tmp_path / "there").exit_code == 0
    assert files(root) == before


# ---- what is not copied ----


def test_another_thread_of_the_name(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    """A thread that is another one at the destination is named and left; the rest is copied: 1."""
    there = tmp_path / "there"
    for id_ in ("a", "b", "c", "d"):
        put(root, id_, b'{"content":"1"}\n{"content":"2"}\n')
    put(there, "a", b'{"content":"1"}\n{"content":"two"}\n')
    put(there, "b", b'{"content":"1"}\n{"content":"2"}\n{"content":"3"}\n')
    put(there, "c", b'{"content":"1"}\n')
    before = files(there)
    done = invoke("copy", root, there)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: default/a: the destination's is another thread, from turn 1 on; "
        "it was left as it is\n"
        "Error: default/b: the destination's has more than the 2 turns of the source; "
        "it was left as it is\n"
    )
    same = (root / "default" / "a.jsonl").read_bytes()
    assert files(there) == before | {"default/c.jsonl": same, "default/d.jsonl": same}


def test_a_thread_that_cannot_be_copied(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    """A thread that cannot be read or written is named, and the others are copied: status 1."""
    there = tmp_path / "there"
    for id_ in ("a", "b", "c"):
        put(root, id_, b'{"content":"1"}\n')
    put(there, "x", b"").with_name("b.jsonl").symlink_to("x.jsonl")
    done = invoke("copy", root, there)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: thread 'b' in namespace 'default': a symbolic link")
    assert done.stderr.count("\n") == 1
    assert sorted(files(there)) == [f"default/{name}.jsonl" for name in "abcx"]


def test_damage_is_told_of(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    """What cannot be read is not copied, and a line says so; every turn is copied."""
    put(root, "hurt", DAMAGED)
    done = invoke("copy", root, tmp_path / "there")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == (
        "Warning: default/hurt: 1 line cannot be read in full; what is no turn is not copied; "
        "turnlog doctor shows it\n"
    )
    first, _, second, _ = DAMAGED.splitlines(keepends=True)
    assert files(tmp_path / "there") == {"default/hurt.jsonl": first + second}


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/../memory", "file://{}", "{}-link"])
def test_the_same_place_is_refused(root: Path, invoke: Invoke, spelling: str) -> None:
    """Copying a memory to itself, however it is spelled, is called wrongly."""
    put(root, "t", b'{"content":"1"}\n')
    root.with_name("memory-link").symlink_to(root)
    done = invoke("copy", root, spelling.format(root))
    assert (done.exit_code, "FROM and TO are the same place" in done.stderr) == (2, True)


def test_places_that_cannot_be_are_refused(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    """A memory that ends with the command, no name and an unknown scheme are no places."""
    put(root, "t", b'{"content":"1"}\n')
    for source, destination, status, said in (
        (root, "memory://", 2, "memory:// ends with the command"),
        ("memory://", root, 2, "memory:// ends with the command"),
        (root, "", 2, "Invalid value for 'TO': it is empty"),
        ("", root, 2, "Invalid value for 'FROM': it is empty"),
        (root, "redis://x", 1, "no store is known by this scheme"),
        (tmp_path / "nowhere", root, 1, "nowhere: there is no such folder"),
    ):
        done = invoke("copy", source, destination)
        assert (done.exit_code, said in done.stderr) == (status, True), done.stderr
    assert not (tmp_path / "nowhere").exists()


# ---- broken off ----


def test_killed_and_run_again_it_is_the_same_as_once(root: Path, tmp_path: Path) -> None:
    """Killed at any moment and run again, a copy ends as one that was not."""
    fill(root)
    put(root, "big", many_turns())  # several pieces
    for number in range(20):
        put(root, f"small{number}", b'{"content":"1"}\n', "small")
    there = tmp_path / "there"
    sizes = [0, 1, 4 << 20, 5 << 20, 9 << 20, 14 << 20]
    for size in sizes:
        kill_copy_at(root, there, size)
    assert piped(root, "copy", root, there).status == 0  # it may warn of what was set aside
    copied = {name: data for name, data in files(there).items() if not name.endswith(".torn")}
    assert copied == files(root)


def kill_copy_at(root: Path, there: Path, size: int) -> None:
    """Start a copy, and kill it when the destination has so many bytes, or it has ended."""
    with subprocess.Popen(
        [*COMMAND, "copy", str(root), str(there)], env=environment(root)
    ) as process:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and held(there) < size:
            assert time.monotonic() < deadline
        process.kill()


def held(place: Path) -> int:
    """Give the size of all threads at a place."""
    return sum(file.stat().st_size for file in place.rglob("*.jsonl"))


# ---- people ----


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="the system has no terminals")
def test_a_person_is_told_what_was_done(root: Path, tmp_path: Path) -> None:
    """At a terminal a line sums up what was copied, what was there, and what was not copied."""
    there = tmp_path / "there"
    for id_ in ("a", "b", "c"):
        put(root, id_, b'{"content":"1"}\n{"content":"2"}\n')
    put(there, "c", b'{"content":"other"}\n')
    status, shown = at_terminal(root, "copy", root, there)
    assert status == 1
    assert shown.endswith("copied 4 turns into 2 threads; 1 thread not copied\n")
    (there / "default" / "c.jsonl").unlink()
    status, shown = at_terminal(root, "copy", root, there)
    assert (status, shown) == (0, "copied 2 turns into 1 thread; 2 threads the same already\n")
    (tmp_path / "empty").mkdir()
    status, shown = at_terminal(root, "copy", tmp_path / "empty", there)
    assert (status, shown) == (0, "there are no threads\n")
