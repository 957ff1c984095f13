"""One file's oddity costs only itself, in everything that goes through many files (C55)."""

from __future__ import annotations

import errno
import json
import os
import socket
from typing import TYPE_CHECKING, Any, Self

import pytest
from bytesofit import put, turn
from click.testing import CliRunner
from machine import needs_root, tiny_tmpfs
from postgreslook import query
from systems import Watched

from turnlog import Memory, StoreError
from turnlog.cli.app import app
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def command(root: Path, *args: str) -> tuple[int, str]:
    """Run the command; return its status and all that it said."""
    done = CliRunner().invoke(app, ["--root", str(root), *args])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@needs_root
@pytest.mark.parametrize("seconds", [2**40, -(2**40), 253_402_300_800, -62_135_596_801, -1, 2**62])
def test_times(tmp_path: Path, seconds: int) -> None:
    """A file's time of change may lie before the year 1 or after 9999 (C55)."""
    with tiny_tmpfs(tmp_path / "disk") as disk:
        for name in ("a", "odd", "z"):
            file = put(disk, turn(f"word {name}"), name)
        os.utime(file.with_name("odd.jsonl"), (seconds, seconds))
        with Memory(disk) as memory:
            infos = list(memory.threads())
        assert [info.id for info in infos] == ["a", "odd", "z"]
        assert (infos[1].modified < infos[0].modified) == (seconds < 0)
        for local in (info.modified.astimezone() for info in infos):
            assert local.year > 0
        assert command(disk, "ls")[0] == 0
        status, out = command(disk, "ls", "--json")
        assert (status, len(out.splitlines())) == (0, 3)
        assert command(disk, "doctor") == (0, "")
        status, out = command(disk, "search", "word")
        assert (status, len(out.splitlines())) == (0, 3)


def sparse(file: Path) -> None:
    """Make a file of 8 terabytes, all holes."""
    os.truncate(put(file.parents[1], b"", "odd"), 1 << 43)


def forbidden(file: Path) -> None:
    """Make a file that leads to itself."""
    file.symlink_to(file)


def folder(file: Path) -> None:
    """Make a folder of its name."""
    file.mkdir()


def pipe(file: Path) -> None:
    """Make a pipe of its name."""
    os.mkfifo(file)


def modes(file: Path) -> None:
    """Make a file with every bit of its mode set but those to read it."""
    put(file.parents[1], turn("word odd"), "odd").chmod(0o7333)


def bytes_of_no_text(file: Path) -> None:
    """Make files whose names are no text, or odd text."""
    for name in (b"\xff.jsonl", b"a\nb.jsonl", b"a\\b.jsonl", b".jsonl", b"e\xcc\x81.jsonl"):
        with open(os.path.join(os.fsencode(file.parent), name), "wb") as stream:
            stream.write(turn("word"))


def a_socket(file: Path) -> None:
    """Make a socket of its name."""
    here = os.getcwd()
    os.chdir(file.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(file.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    "make", [sparse, forbidden, folder, pipe, modes, bytes_of_no_text, a_socket]
)
def test_kinds(root: Path, make: Callable[[Path], None]) -> None:
    """A file of any size, kind, mode or name hides none of the others (C55)."""
    for name in ("a", "z"):
        file = put(root, turn(f"word {name}"), name)
    make(file.with_name("odd.jsonl"))
    with Memory(root) as memory:
        ids = [info.id for info in memory.threads()]
        assert [id_ for id_ in ids if id_ != "odd"] == ["a", "z"]
    status, out = command(root, "ls", "--json")
    assert status == 0
    assert {"a", "z"} <= {json.loads(line)["id"] for line in out.splitlines()}
    for args in (
        ("doctor",),
        ("doctor", "--json"),
        ("search", "word"),
        ("search", "word", "--json"),
    ):
        _, out = command(root, *args)
        if args[0] == "search":
            assert "word a" in out
            assert "word z" in out
        elif args[-1] == "--json":
            assert sum("turns" in json.loads(line) for line in out.splitlines()) >= 2


class OneHasNoStatus(System):
    """The system has no status to give of one entry of a folder."""

    def scan(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """Go through a folder whose entries cannot all be looked at."""
        real = os.scandir

        class Entry:
            def __init__(self, entry: Any) -> None:
                self.name, self._entry = entry.name, entry

            def stat(self, *, follow_symlinks: bool) -> os.stat_result:
                if self.name in {b"odd.jsonl", b"odd"}:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return self._entry.stat(follow_symlinks=follow_symlinks)

        class Entries(list[Entry]):
            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None:
                pass

        def entries(path: Any) -> Any:
            return Entries(map(Entry, real(path)))

        os.scandir = entries
        try:
            yield from super().scan(folder)
        finally:
            os.scandir = real


@pytest.mark.parametrize("namespace", [None, "default"])
def test_no_status(root: Path, namespace: str | None) -> None:
    """An entry that cannot be looked at hides none of the others; its error comes last (C55)."""
    for name in ("a", "odd", "z"):
        put(root, turn("word"), name)
    (root / "odd").mkdir()
    with Memory(JsonlStore(root, system=OneHasNoStatus())) as memory:
        listing = memory.threads(namespace)
        assert [next(listing).id, next(listing).id] == ["a", "z"]
        with pytest.raises(StoreError, match=r"cannot be listed.*device failed"):
            next(listing)
        store = memory.store
        assert isinstance(store, JsonlStore)
        with pytest.raises(StoreError, match="device failed"):
            list(store.strays(namespace))


def test_listing_that_fails_under_a_command(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command does what it can with the threads that are listed, and fails at the end (C55)."""
    for name in ("a", "odd", "z"):
        put(root, turn(f"word {name}"), name)
    monkeypatch.setattr("turnlog.stores.jsonl.store.System", OneHasNoStatus)
    for args in (("ls",), ("search", "word")):
        status, out = command(root, *args)
        assert status == 1
        assert "device failed" in out
        assert "a" in out
        assert "z" in out
    status, out = command(root, "doctor", "--json")
    assert status == 1
    assert out.count('"turns":1') == 2


def test_memory_that_runs_out(root: Path) -> None:
    """A thread that does not fit into memory is an error of ours, and names the thread (C55)."""
    put(root, turn("first"))

    def none_left(call: str, _: object) -> None:
        if call == "read":
            raise MemoryError

    with Memory(JsonlStore(root, system=Watched(none_left))) as memory:
        for attempt in (lambda: memory.open("t"), lambda: memory.peek("t", last=1)):
            with pytest.raises(StoreError, match=r"thread 't'.*too large for this machine"):
                attempt()


def test_times_of_rows(postgres_url: str) -> None:
    """A row's time may be one that Python cannot hold (C55)."""
    with Memory(postgres_url) as memory:
        for name in ("a", "b", "c", "d", "z"):
            memory.open(name).append("first")
        query(
            postgres_url,
            "UPDATE turnlog_thread SET modified = CASE id WHEN 'b' THEN 'infinity'::timestamptz "
            "WHEN 'c' THEN '-infinity' WHEN 'd' THEN '20000-01-01' ELSE modified END",
        )
        for namespace in (None, "default"):
            infos = list(memory.threads(namespace))
            assert [info.id for info in infos] == ["a", "b", "c", "d", "z"]
            assert [info.modified.year for info in infos[1:4]] == [9999, 1, 9999]


@pytest.mark.parametrize("name", ["../x", "..", " x"])
def test_names_of_rows(postgres_url: str, root: Path, name: str) -> None:
    """A row whose name is not plain is another program's, and leads to no file by a copy (C55)."""
    with Memory(postgres_url) as memory:
        memory.open("a").append("first")
        query(
            postgres_url,
            "INSERT INTO turnlog_thread "
            "SELECT x.namespace, x.id, t.life, t.turns, t.size, t.modified "
            "FROM turnlog_thread t, (VALUES (%s, 'a'), ('other', %s)) x (namespace, id)",
            name,
            name,
        )
        assert [info.id for info in memory.threads()] == ["a"]
        assert list(memory.threads("other")) == []
    done = CliRunner().invoke(app, ["copy", postgres_url, str(root)])
    assert done.exit_code == 0
    assert os.listdir(root.parent) == ["memory"]
    assert os.listdir(root) == ["default"]
