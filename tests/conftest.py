"""What the tests share: a memory of their own, a provider of models, and two watchmen."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from blockbuster import BlockBusterFunction, blockbuster_ctx
from hypothesis import settings

# The provider needs the standard library alone: tests without a model load nothing else for it.
sys.path.insert(0, str(Path(__file__).parent / "llm"))
# The servers' modules are imported by the fixtures alone, so that other tests load none of them.
sys.path.insert(0, str(Path(__file__).parent / "servers"))

from localserver import Provider, environment, serving

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nats_cluster import NatsCluster
    from nats_server import NatsServer
    from postgres_server import PostgresServer

# Started in the background of a shell, this ignores Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A disk may take its time; in CI a run is the same each time.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give the root folder of a memory; it does not exist yet."""
    return tmp_path / "memory"


@pytest.fixture
def memory(root: Path) -> Iterator[Memory]:
    """Give a memory over `root`, closed at the end."""
    with Memory(root) as memory:
        yield memory


@pytest.fixture
def open_files(root: Path) -> Callable[[], list[str]]:
    """Give what lists the files of the memory's folder that this process has open just now."""
    # Not a count of all descriptors: others' may be closed at any time, with what is collected.
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")

    def listed() -> list[str]:
        paths: list[str] = []
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                paths.append(os.readlink(f"/proc/self/fd/{number}"))
        return [path for path in paths if path.startswith(f"{root}/")]

    return listed


@pytest.fixture
def collected() -> None:
    """Collect what other tests have left: Python drops a Ctrl-C that comes in a finalizer."""
    gc.collect()


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Give a provider that the real SDKs speak to, in this process and in those it starts."""
    with serving() as provider:
        for name, value in environment(provider).items():
            monkeypatch.setenv(name, value)
        yield provider


@pytest.fixture
def no_blocking() -> Iterator[None]:
    """Make every call fail that blocks in a running event loop; in other threads it may block."""
    with blockbuster_ctx() as watch:
        for module, name in (
            (os, "fsync"),
            (os, "fdatasync"),
            (os, "pread"),
            (os, "open"),
            (fcntl, "flock"),
        ):
            watch.functions[name] = BlockBusterFunction(module, name).activate()
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Give the PostgreSQL server that all tests share, with its own data for each."""
    from postgres_server import PostgresServer  # noqa: PLC0415

    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Give the URL of an empty database, which is removed at the end."""
    postgres_server.start()  # again, if a test has stopped it
    url = postgres_server.new_database()
    yield url
    postgres_server.start()
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """Give the NATS server that all tests share, with its own stream for each."""
    from nats_server import NatsServer  # noqa: PLC0415

    with NatsServer() as server:
        yield server


@pytest.fixture
def nats_url(nats_server: NatsServer) -> Iterator[str]:
    """Give the URL of a stream that is not there yet; it is deleted at the end."""
    nats_server.start()  # again, if a test has stopped it
    url = nats_server.new_stream_url()
    yield url
    nats_server.start()
    nats_server.delete_stream(url)


@pytest.fixture(params=["postgres_url", "nats_url"])
def server_url(request: pytest.FixtureRequest) -> str:
    """Give the URL of an empty place on each kind of server."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def nats_cluster() -> Iterator[NatsCluster]:
    """Give three NATS servers that are one cluster, which all tests share."""
    from nats_cluster import NatsCluster  # noqa: PLC0415

    with NatsCluster() as cluster:
        yield cluster


@pytest.fixture
def nats_cluster_url(nats_cluster: NatsCluster) -> Iterator[str]:
    """Give the URL of a stream on all servers that is not there yet; it is deleted at the end."""
    url = nats_cluster.new_stream_url()
    yield url
    nats_cluster.mend()
    nats_cluster.delete_stream(url)
