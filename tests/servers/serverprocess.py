"""What all servers of the tests need: a folder, a port, a process, and an end to each of them.

Whatever is started or made here is ended and removed with the test run, also if that is killed:
see `keeper.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

LOOPBACK: Final = "127.0.0.1"
PATIENCE: Final = 60.0


class ServerFailed(Exception):
    """A server did not start, or ended by itself. Says what it wrote last."""


class Server(ABC):
    """What is started on entering it and goes away on leaving it."""

    @abstractmethod
    def start(self) -> Self:
        """Start it unless it runs, and wait until it can be used."""

    @abstractmethod
    def close(self) -> None:
        """End it, and remove all that it keeps."""

    def __enter__(self) -> Self:
        """Start it."""
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


class User(NamedTuple):
    """Who runs a process; None of all is whoever runs the tests."""

    user: int | None = None
    group: int | None = None
    extra_groups: tuple[int, ...] | None = None


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Look again and again whether something holds; fail when it does not in a long time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} seconds in vain: {what}")
        time.sleep(0.01)


class Port:
    """A port that stays ours while a server comes and goes on it.

    A socket that is bound and does not listen keeps the system from giving the port to others, be
    it as the near end of a connection, and does not keep a server from listening on it.
    """

    def __init__(self) -> None:
        """Have the system choose a free one."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number: Final[int] = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give it back to the system."""
        self._socket.close()


def new_folder(kind: str) -> Path:
    """Make a folder for a server, where every user can reach it; `remove_folder` removes it."""
    places = (tempfile.gettempdir(), "/tmp", "/var/tmp")
    place = next(place for place in places if all_enter(Path(place)))
    folder = Path(tempfile.mkdtemp(prefix=f"turnlog-{kind}-", dir=place))
    folder.chmod(0o755)
    _tell_keeper(f"+ {folder}")
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder of `new_folder`."""
    shutil.rmtree(folder)
    _tell_keeper(f"- {folder}")


def all_enter(folder: Path) -> bool:
    """Say whether every user can go into a folder."""
    resolved = folder.resolve()
    return all(place.stat().st_mode & 0o001 for place in (resolved, *resolved.parents))


class Process:
    """A server's process, whose output goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, user: User | None = None) -> None:
        """Start it. Ctrl-C at the terminal does not reach it: whoever started it ends it."""
        self._log = log
        self._log_before = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = start(command, user or User(), output=output, folder=log.parent)
        self.pid: Final = self._process.pid
        _tell_keeper(f"+ {self.pid}")

    @property
    def running(self) -> bool:
        """Say whether it has not ended."""
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """Give what it wrote since it started."""
        with self._log.open("rb") as log:
            log.seek(self._log_before)
            return log.read().decode(errors="replace")

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that it does; fail at once when it ends instead."""

        def done() -> bool:
            if condition():
                return True
            if not self.running:
                raise ServerFailed(f"it ended, and should have been {what}:\n{self.said}")
            return False

        try:
            wait_until(done, what)
        except TimeoutError as error:
            raise ServerFailed(f"{error}\n{self.said}") from None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Make it stand still, and wait until all its threads do."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def end(self, number: signal.Signals) -> None:
        """Send it a signal that ends it, and wait for its end; kill it when it does not end."""
        self.send(number)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ServerFailed(f"{number.name} did not end it:\n{self.said}") from None
        finally:
            _tell_keeper(f"- {self.pid}")


def start(
    command: Sequence[str], user: User, *, output: IO[bytes] | int, folder: Path
) -> subprocess.Popen[bytes]:
    """Start a program that knows nothing of the settings for clients in our environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=folder,
        env=clean | {"LC_ALL": "C"},
        user=user.user,
        group=user.group,
        extra_groups=user.extra_groups,
    )


def run(command: Sequence[str], user: User | None = None) -> str:
    """Run a program to its end and give what it said; fail with that."""
    with start(
        command, user or User(), output=subprocess.PIPE, folder=Path(tempfile.gettempdir())
    ) as process:
        said = process.communicate()[0].decode(errors="replace")
    if process.returncode:
        raise ServerFailed(f"{Path(command[0]).name} failed:\n{said}")
    return said


def make_certificate(certificate: Path, key: Path) -> None:
    """Make a certificate of this machine's own name and address, which signs itself."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "30", "-subj", "/CN=localhost"),
            *("-addext", f"subjectAltName=DNS:localhost,IP:{LOOPBACK}"),
            *("-out", str(certificate), "-keyout", str(key)),
        ]
    )


def _tell_keeper(line: str) -> None:
    pipe = _keeper().stdin
    assert pipe is not None
    with contextlib.suppress(BrokenPipeError):  # somebody killed it: then nobody looks after us
        pipe.write(line.encode() + b"\n")
        pipe.flush()


@cache
def _keeper() -> subprocess.Popen[bytes]:
    """Start the keeper once. It acts when its input ends, which it does however we end."""
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(keeper.communicate)
    return keeper
