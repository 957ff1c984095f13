"""The `turnlog` command as a process of its own: in pipes, and at a terminal."""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

COMMAND: Final = [sys.executable, "-m", "turnlog"]
# What takes long shows how far it is; a test that looks at all that is shown must not depend on it.
WITHOUT_PROGRESS: Final = """
from turnlog.cli import main, progress
progress._PATIENCE = float("inf")
main()
"""
_LONGEST: Final = 100  # seconds, so that a hanging test ends


class Done(NamedTuple):
    """How a process ended."""

    status: int
    out: str
    err: str


def environment(root: Path | str, **more: str) -> dict[str, str]:
    """Give the environment of a command over a memory: what most people have, no more."""
    unusual = ("NO_COLOR", "PYTHONUNBUFFERED")
    given = {name: value for name, value in os.environ.items() if name not in unusual}
    return given | {"TURNLOG_URL": str(root), "TERM": "xterm", "COLUMNS": "100"} | more


def unmeasured(root: Path) -> dict[str, str]:
    """Give the same for a process whose coverage cannot be measured."""
    return {name: value for name, value in environment(root).items() if "COV" not in name}


def piped(
    root: Path | str, *args: object, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> Done:
    """Run the command in pipes."""
    done = subprocess.run(
        [*COMMAND, *map(str, args)],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=_LONGEST,
        env=environment(root, **(env or {})),
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


class Terminal:
    """A terminal with the command in it, as the person before it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        """Sit down before it."""
        self.process = process
        self._master = master
        self._pieces: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    @property
    def shown(self) -> str:
        """All that was shown until now."""
        self._pieces[:] = ["".join(self._pieces)]
        return self._pieces[0].replace("\r\n", "\n")

    def type(self, text: str) -> None:
        r"""Type something; "\x03" is Ctrl-C, "\x04" Ctrl-D."""
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until a text has been shown."""
        while text not in self.shown:
            assert self._read(), f"it ended, and showed: {self.shown!r}"

    def end(self) -> tuple[int, str]:
        """Wait for the command's end; give its exit status and all that was shown."""
        while self._read():
            pass
        return self.process.wait(_LONGEST), self.shown

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C until the command ends; give its exit status and all that was shown.

        Once is enough, unless it falls into the moment in which Python has looked for signals and
        is about to wait for a line: then it takes another key, as with every Python program.
        """
        self.type("\x03")
        while True:
            if not self._waits(20):
                self.type("\x03")
            elif not self._read():
                return self.end()

    def _read(self) -> bool:
        """Wait for more; say whether there was any."""
        deadline = time.monotonic() + _LONGEST
        while not self._waits(0.1):
            assert time.monotonic() < deadline, f"it hangs, and showed: {self.shown!r}"
        try:
            data = os.read(self._master, 1 << 16)
        except OSError as error:
            if error.errno != errno.EIO:  # nobody has the other side any more
                raise
            data = b""
        self._pieces.append(self._decoder.decode(data))
        return bool(data)

    def _waits(self, seconds: float) -> bool:
        return bool(select.select([self._master], [], [], seconds)[0])


@contextmanager
def terminal(
    root: Path,
    *args: object,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
) -> Generator[Terminal]:
    """Start the command at a terminal of its own; it is dead when the block ends."""
    master, slave = pty.openpty()
    try:
        with subprocess.Popen(
            [*command, *map(str, args)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(root, **(env or {})),
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - there are no other threads
        ) as process:
            os.close(slave)
            try:
                yield Terminal(process, master)
            finally:
                process.kill()
    finally:
        os.close(master)


def _take_terminal() -> None:
    """Make standard input the terminal from which Ctrl-C comes."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def at_terminal(
    root: Path, *args: object, typed: str = "", env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run the command at a terminal; give its exit status and all that was shown."""
    command = [sys.executable, "-c", WITHOUT_PROGRESS]
    with terminal(root, *args, env=env, command=command) as person:
        if typed:
            person.type(typed)
        return person.end()
