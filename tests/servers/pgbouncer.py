"""A real PgBouncer for tests, before a PostgreSQL server, on a free port of the loopback interface.

    with PgBouncer(server, mode="transaction") as pooler:
        url = pooler.url(server.new_database())
        ...

The program is that of Debian's package `pgbouncer`, which `make test` installs. It refuses to run
as root, as PostgreSQL does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import pytest
from postgres_server import SUPERUSER, unprivileged
from serverprocess import LOOPBACK, Port, Process, Server, new_folder, remove_folder

if TYPE_CHECKING:
    from typing import Self

    from postgres_server import PostgresServer

PoolMode: TypeAlias = Literal["session", "transaction", "statement"]


class PgBouncer(Server):
    """A pooler before a server. It goes away with `close`, or with the test run."""

    def __init__(
        self, server: PostgresServer, mode: PoolMode = "session", **settings: str | int
    ) -> None:
        """Choose a folder and a port.

        Args:
            server: where it connects to; any database of it, as the superuser.
            mode: when a client gives a connection to the server back.
            settings: more of PgBouncer's settings, by their names.
        """
        self._program: Final = _program()
        self._folder: Final = new_folder("pgbouncer")
        self._user: Final = unprivileged()
        self._port: Final = Port()
        self._process: Process | None = None
        users = self._folder / "users"
        users.write_text(f'"{SUPERUSER}" ""\n')
        lines = {
            "listen_addr": LOOPBACK,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": users,
            "pool_mode": mode,
            **settings,
        }
        (self._folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={LOOPBACK} port={server.port}\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in lines.items())
        )

    @property
    def port(self) -> int:
        """Return the port, the same one after each start."""
        return self._port.number

    def url(self, url: str) -> str:
        """Return the URL of a database of the server by way of this pooler."""
        return url.replace(f":{urlsplit(url).port}", f":{self.port}", 1)

    def start(self) -> Self:
        """Start it, and wait until it takes connections."""
        self._process = Process(
            [self._program, str(self._folder / "pgbouncer.ini")], self._folder / "log", self._user
        )
        self._process.wait_until(self._listens, "listening")
        return self

    def _listens(self) -> bool:
        with closing(socket.socket()) as client:
            return client.connect_ex((LOOPBACK, self.port)) == 0

    def close(self) -> None:
        """End it, and remove its folder."""
        if self._process is not None:
            self._process.end(signal.SIGTERM)
        self._port.close()
        remove_folder(self._folder)


def _program() -> str:
    places = (os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")
    program = shutil.which("pgbouncer", path=os.pathsep.join(places))
    if program is None:
        pytest.skip("needs pgbouncer")
    return program
