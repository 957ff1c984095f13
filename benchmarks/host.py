"""A process that runs one of the tests' servers: `host.py KIND FOLDER`, ends with its input.

It says the server's URL when it can be used. It is a process of its own, so that what runs a server
costs the one that measures nothing. `KIND` is `postgres`, or `nats` with the number of nodes and
how often they sync: `nats-3-always`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "servers"))

from nats_server import NatsServer
from postgres_server import PostgresServer
from serverprocess import LOOPBACK, Port, all_enter

if TYPE_CHECKING:
    from collections.abc import Generator

_BY_DEFAULT: Final = "default"


def main(kind: str, folder: Path) -> None:
    """Run the server until the end of the input."""
    server, *options = kind.split("-")
    with _postgres(folder) if server == "postgres" else _nats(folder, *options) as url:
        print(url, flush=True)
        sys.stdin.read()


@contextmanager
def _postgres(folder: Path) -> Generator[str]:
    """Give the URL of an empty database; its data are elsewhere where the server cannot enter."""
    folder.mkdir(parents=True)
    place = folder if all_enter(folder) else None
    with PostgresServer(place) as server:
        yield server.new_database()


@contextmanager
def _nats(folder: Path, count: str, sync: str) -> Generator[str]:
    """Give the URL of nodes that reach each other directly, unlike those of the tests."""
    folder.mkdir(parents=True)
    every = None if sync == _BY_DEFAULT else sync
    with ExitStack() as stack:
        nodes = [
            NatsServer(folder / f"node-{number}", sync_interval=every)
            for number in range(int(count))
        ]
        for node in nodes:
            stack.callback(node.close)
        if len(nodes) > 1:
            _make_cluster(nodes, stack)
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_until_healthy()
        yield "nats://" + ",".join(f"{LOOPBACK}:{node.port}" for node in nodes)


def _make_cluster(nodes: list[NatsServer], stack: ExitStack) -> None:
    """Have each node know the others."""
    ports = [Port() for _ in nodes]
    for number, node in enumerate(nodes):
        stack.callback(ports[number].close)
        others = [f"nats://{LOOPBACK}:{port.number}" for port in ports if port is not ports[number]]
        listen = f"{LOOPBACK}:{ports[number].number}"
        cluster = {"name": "benchmark", "listen": listen, "routes": others}
        node.configure({"server_name": f"node-{number}", "cluster": cluster})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
