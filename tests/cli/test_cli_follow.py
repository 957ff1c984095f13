"""`turnlog tail --follow`: what others append is shown when it is there."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest
from processes import COMMAND, environment, piped, terminal
from stored import put

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


class Follower:
    """A `tail --follow` in pipes, read line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Read what it writes."""
        self.process = process

    def next(self) -> str:
        """Wait for the next turn; give its text."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())["content"]

    def said(self) -> str:
        """Wait for the next line on standard error."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode()

    def interrupt(self) -> tuple[int, bytes]:
        """Press Ctrl-C; give the exit status, and what was said that nobody had read."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


# The command, but it waits for a lock a moment only, and says when it has given up.
IMPATIENT: Final = """
import sys
from turnlog import LockTimeout, Memory
from turnlog.cli import main, memories


class Impatient(Memory):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, lock_timeout=0.05, **kwargs)


def after(thread, seconds):
    print("gave up", file=sys.stderr, flush=True)
    return LockTimeout(thread, "locked", "wait")


memories.Memory = Impatient
LockTimeout.after = after
main()
"""


# The command, but it says when it reads the thread once more.
TALKATIVE: Final = """
import sys
from turnlog.cli import main
from turnlog.stores.jsonl import JsonlStore

commit = JsonlStore.commit


def talk_and_commit(store, batch):
    print("read", file=sys.stderr, flush=True)
    return commit(store, batch)


JsonlStore.commit = talk_and_commit
main()
"""


@contextmanager
def following(root: Path, *args: object, command: list[str] = COMMAND) -> Generator[Follower]:
    """Start it; it is dead when the block ends."""
    with subprocess.Popen(
        [*command, "tail", "--follow", "--json", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(root),
    ) as process:
        try:
            yield Follower(process)
        finally:
            process.kill()


def test_it_shows_the_last_turns_and_those_that_come(root: Path) -> None:
    """After the last turns it shows each that another process appends, until Ctrl-C: 130."""
    put(root, "t", b'{"content":"1"}\n{"content":"2"}\n{"content":"3"}\n')
    with following(root, "t", "-n", 2) as follower:
        assert [follower.next(), follower.next()] == ["2", "3"]
        for n in range(4, 8):
            assert piped(root, "append", "t", n).status == 0
            assert follower.next() == str(n)
        assert follower.interrupt() == (130, b"")


def test_it_waits_for_a_thread_that_does_not_exist_yet(root: Path) -> None:
    """A thread that does not exist yet is followed from its first turn on; none is made."""
    with following(root, "s/t") as follower:
        assert piped(root, "append", "s/other", "x").status == 0
        assert piped(root, "append", "s/t", "The first.").status == 0
        assert follower.next() == "The first."
        assert follower.interrupt() == (130, b"")


def test_it_sees_many_turns_at_once(root: Path) -> None:
    """An append of many turns is shown in full and in order."""
    put(root, "t", b'{"content":"0"}\n')
    data = b"".join(b'{"content":"%d"}\n' % n for n in range(1, 1001))
    with following(root, "t") as follower:
        assert follower.next() == "0"
        assert piped(root, "import", "t", "--append", stdin=data).status == 0
        assert [follower.next() for _ in range(1000)] == [*map(str, range(1, 1001))]


def test_it_follows_a_file_that_is_replaced(root: Path) -> None:
    """A file that an editor replaced is followed on, from the first turn that is another (C27)."""
    file = put(root, "t", b'{"content":"1"}\n{"content":"2"}\n')
    with following(root, "t") as follower:
        assert [follower.next(), follower.next()] == ["1", "2"]
        new = file.with_name("saved")
        new.write_bytes(b'{"content":"1"}\n{"content":"two"}\n{"content":"3"}\n')
        new.rename(file)
        assert follower.said() == (
            "default/t: its file was replaced or deleted; following the name\n"
        )
        assert [follower.next(), follower.next()] == ["two", "3"]
        assert piped(root, "append", "t", "4").status == 0
        assert follower.next() == "4"
        assert follower.interrupt() == (130, b"")


def test_it_follows_a_file_that_is_cut_shorter(root: Path) -> None:
    """A file that somebody emptied is followed on from what comes then (C27)."""
    file = put(root, "t", b'{"content":"1"}\n{"content":"2"}\n')
    with following(root, "t") as follower:
        assert [follower.next(), follower.next()] == ["1", "2"]
        os.truncate(file, 0)
        assert "replaced or deleted" in follower.said()
        assert piped(root, "append", "t", "again").status == 0
        assert follower.next() == "again"


def test_it_follows_a_repair(root: Path) -> None:
    """A repair puts a new file in the place of the damaged one; no turn is shown twice (C19)."""
    put(root, "t", b'{"content":"1"}\nbad\n{"content":"2"}\n')
    with following(root, "t") as follower:
        assert [follower.next(), follower.next()] == ["1", "2"]
        assert follower.said().startswith("Warning: thread 't'")
        assert piped(root, "doctor", "t", "--repair").status == 0
        assert "replaced or deleted" in follower.said()
        assert piped(root, "append", "t", "3").status == 0
        assert follower.next() == "3"


def test_it_follows_a_thread_that_is_deleted(root: Path) -> None:
    """A thread that was deleted is followed on when it is there again (C27)."""
    put(root, "t", b'{"content":"1"}\n')
    with following(root, "t") as follower:
        assert follower.next() == "1"
        assert piped(root, "rm", "t", "--yes").status == 0
        assert "replaced or deleted" in follower.said()
        assert piped(root, "append", "t", "again").status == 0
        assert follower.next() == "again"
        assert follower.interrupt() == (130, b"")


def test_it_follows_on_after_a_writer_that_hangs(root: Path) -> None:
    """What a writer that hangs has written is shown when it lets go, though that is no change."""
    file = put(root, "t", b'{"content":"1"}\n')
    command = [sys.executable, "-c", IMPATIENT]
    with following(root, "t", command=command) as follower, file.open("ab") as writer:
        assert follower.next() == "1"
        fcntl.flock(writer, fcntl.LOCK_EX)
        writer.write(b'{"content":"2"}\n')
        writer.flush()
        for _ in range(3):
            assert follower.said() == "gave up\n"
        fcntl.flock(writer, fcntl.LOCK_UN)
        assert follower.next() == "2"


def test_it_reads_nothing_while_nothing_comes(root: Path) -> None:
    """While nothing is appended the thread is not read, but once if it was written just before."""
    put(root, "t", b'{"content":"1"}\n')
    with following(root, "t", command=[sys.executable, "-c", TALKATIVE]) as follower:
        assert follower.next() == "1"
        for _ in range(5):  # a second or so
            assert piped(root, "append", "other", "x").status == 0
        status, said = follower.interrupt()
        assert (status, said in {b"", b"read\n"}) == (130, True)


def test_it_writes_nothing(root: Path) -> None:
    """A torn end stays as it is while it is followed, and is no turn (Contract 9)."""
    data = b'{"content":"1"}\n{"role":"user","content":"ha'
    file = put(root, "t", data)
    with following(root, "t") as follower:
        assert follower.next() == "1"
        assert file.read_bytes() == data
        assert piped(root, "append", "t", "2").status == 0
        assert follower.next() == "2"


def test_it_ends_when_its_reader_has_gone(root: Path) -> None:
    """`| head -1` ends it although nothing more is appended."""
    put(root, "t", b'{"content":"1"}\n')
    with following(root, "t") as follower:
        assert follower.next() == "1"
        assert follower.process.stdout is not None
        follower.process.stdout.close()
        assert follower.process.wait(60) in {0, 141}


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="the system has no terminals")
def test_a_person_follows(root: Path) -> None:
    """At a terminal it shows turns as `show` does, and Ctrl-C ends it without a traceback."""
    put(root, "t", b'{"content":"The first."}\n')
    with terminal(root, "tail", "-f", "t") as person:
        person.wait_for("The first.\n\n")
        assert piped(root, "append", "t", "The next.").status == 0
        person.wait_for("The next.\n\n")
        status, seen = person.interrupt()
    assert (status, "Traceback" in seen) == (130, False)
