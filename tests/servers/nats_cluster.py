"""A real cluster of NATS servers for tests, whose nodes can be cut off from each other.

    with NatsCluster() as cluster:
        url = cluster.url("T", replicas=3)
        ...
        cluster.cut_off(cluster.leader_of("T"))

Each connection between two nodes, and to a node, goes through a proxy; a node is named by its
number, from 0.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from nats.errors import Error as NatsError
from nats_server import NatsServer, delete_stream, with_streams
from proxy import Proxy
from serverprocess import LOOPBACK, Port, Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

_NAME: Final = "node"


class NatsCluster(Server):
    """Servers that are one cluster. All goes away with `close`, or with the test run.

    Attributes:
        nodes: the servers.
        proxies: what is before each of them, for clients.
    """

    def __init__(self, size: int = 3, *, sync_interval: str | None = None) -> None:
        """Write the configuration of each node, of an odd number; `start` starts them."""
        self.nodes: Final = [NatsServer(sync_interval=sync_interval) for _ in range(size)]
        self.proxies: Final = [Proxy(node.port) for node in self.nodes]
        self._ports: Final = [Port() for _ in range(size)]  # that nodes listen on for others
        # All connections between two nodes are made by the first of them, through their own proxy.
        # In a ring each one has some to make: JetStream does not start on a node without.
        self._links: Final = {
            (one, other): Proxy(self._ports[other].number)
            for one in range(size)
            for other in ((one + step) % size for step in range(1, size // 2 + 1))
        }
        self._nowhere: Final = Port()  # nothing listens there
        self._paused: Final[set[int]] = set()
        self._cut_off: Final[set[int]] = set()
        self._names: Final = itertools.count(1)
        for number, node in enumerate(self.nodes):
            node.configure(self._settings(number))

    def _settings(self, number: int) -> dict[str, object]:
        return {
            "server_name": f"{_NAME}{number}",
            # Else nodes would tell clients, and each other, of ways around the proxies.
            "client_advertise": f"{LOOPBACK}:{self.proxies[number].port}",
            "cluster": {
                "name": "tests",
                "pool_size": -1,  # one connection between two nodes, which is up or is not
                "listen": f"{LOOPBACK}:{self._ports[number].number}",
                "advertise": f"{LOOPBACK}:{self._nowhere.number}",
                "routes": [
                    f"nats://{LOOPBACK}:{link.port}"
                    for (one, _), link in self._links.items()
                    if one == number
                ],
            },
        }

    # ---- URLs ----

    def url(self, stream: str = "", **options: object) -> str:
        """Give the URL of all nodes, of a stream if one is named: `url("T", replicas=3)`."""
        parts = urlsplit(self.nodes[0].url(stream, **options))
        return parts._replace(netloc=",".join(urlsplit(url).netloc for url in self.urls())).geturl()

    def urls(self) -> list[str]:
        """Give the URL of each node."""
        return [proxy.url(node.url()) for node, proxy in zip(self.nodes, self.proxies, strict=True)]

    def new_stream_url(self) -> str:
        """Give the URL of a stream that is not there yet, to be on all nodes."""
        return self.url(f"TEST{next(self._names)}", replicas=len(self.nodes))

    def delete_stream(self, url: str) -> None:
        """Delete the stream of a URL, and those beside it whose names begin with its name and _."""
        delete_stream(self.urls(), urlsplit(url).path[1:])

    # ---- starting and ending ----

    def start(self, number: int | None = None) -> Self:
        """Start a node, or all, unless they run; wait until all that can be are healthy."""
        for each in self._numbers(number):
            self.nodes[each].launch()
        self._wait_until_healthy()
        return self

    def stop(self, number: int) -> None:
        """Stop a node in order: it gives up what it leads first."""
        self.resume(number)
        self.nodes[number].stop()

    def kill(self, number: int | None = None) -> None:
        """Kill a node, or all at once."""
        for each in self._numbers(number):
            self._paused.discard(each)
            self.nodes[each].kill()

    def pause(self, number: int) -> None:
        """Make a node stand still: its connections stay, and nothing answers."""
        self.nodes[number].pause()
        self._paused.add(number)

    def resume(self, number: int) -> None:
        """Let a node go on."""
        self._paused.discard(number)
        self.nodes[number].resume()

    def cut_off(
        self,
        number: int,
        how: Literal["cut", "black_hole"] = "cut",
        *,
        clients: bool = True,
    ) -> None:
        """Cut a node off from the others.

        Args:
            number: which.
            how: reset all connections and refuse new ones; or hold back all that is sent.
            clients: whether clients are cut off from it, too.
        """
        self._cut_off.add(number)
        for proxy in (*self._links_of(number), *([self.proxies[number]] if clients else [])):
            if how == "cut":
                proxy.cut()
            else:
                proxy.black_hole()

    def link(self, one: int, other: int) -> Proxy:
        """Give what is between two nodes."""
        return next(link for pair, link in self._links.items() if set(pair) == {one, other})

    def delay(self, seconds: float) -> None:
        """Hold back what nodes send to each other for so long."""
        for link in self._links.values():
            link.delay(to_server=seconds, to_client=seconds)

    def heal(self, number: int | None = None) -> None:
        """Connect a node, or all, again; wait until it is healthy."""
        self._cut_off.difference_update(self._numbers(number))
        for each in self._numbers(number):
            self.proxies[each].forward()
        for pair, link in self._links.items():
            if self._cut_off.isdisjoint(pair):
                link.forward()
        self._wait_until_healthy()

    def mend(self) -> None:
        """Undo all of the above."""
        for each in tuple(self._paused):
            self.resume(each)
        for node in self.nodes:
            node.launch()
        self.heal()

    def close(self) -> None:
        """End all, and remove their data."""
        for proxy in (*self.proxies, *self._links.values()):
            proxy.close()
        for node in self.nodes:
            node.close()
        for port in (*self._ports, self._nowhere):
            port.close()

    # ---- looking ----

    def leader_of(self, stream: str) -> int:
        """Wait until the nodes that are well agree on one of them as a stream's leader; give it."""
        found: set[int] = set()

        def agreed() -> bool:
            well = self._well()
            found.clear()
            found.update(self._says(each, stream) for each in well)
            return len(found) == 1 and found <= set(well)

        wait_until(agreed, f"a leader of the stream {stream}")
        return found.pop()

    def _says(self, number: int, stream: str) -> int:
        """Give the leader of a stream in a node's view; -1 where it knows none."""
        said: Any = self.nodes[number].asked("jsz?accounts=true&streams=true")
        accounts: Any = said and said.get("account_details")
        details: Any = accounts and accounts[0].get("stream_detail")
        leaders = [
            each["cluster"].get("leader") for each in details or () if each["name"] == stream
        ]
        return _number(leaders[0]) if leaders and leaders[0] else -1

    def _wait_until_healthy(self) -> None:
        """Wait for all that are well, if they are enough to be well."""
        well = self._well()
        if len(well) > len(self.nodes) // 2:
            for number in well:
                self.nodes[number].wait_until_healthy()
            wait_until(lambda: all(self._reached(each) >= set(well) for each in well), "routes")
            wait_until(lambda: self._takes_streams(well), f"new streams on the nodes {well}")

    def _reached(self, number: int) -> set[int]:
        """Give the nodes that a node is connected to, with itself."""
        said: Any = self.nodes[number].asked("routez")
        return (
            {number} | {_number(each["remote_name"]) for each in said["routes"]} if said else set()
        )

    def _takes_streams(self, well: list[int]) -> bool:
        """Make a stream on nodes, and delete it: nothing else says that they know of each other."""
        name = f"PROBE{next(self._names)}"  # one that was left behind is on other nodes

        async def probe(streams: Any) -> None:
            await streams.add_stream(name=name, subjects=[name], num_replicas=len(well))
            await streams.delete_stream(name)

        try:
            with_streams([self.nodes[number].url() for number in well], probe, timeout=2)
        except (OSError, NatsError):
            return False
        return True

    def _well(self) -> list[int]:
        ill = self._paused | self._cut_off
        return [
            number for number, node in enumerate(self.nodes) if node.running and number not in ill
        ]

    def _links_of(self, number: int) -> list[Proxy]:
        return [link for pair, link in self._links.items() if number in pair]

    def _numbers(self, number: int | None) -> Sequence[int]:
        return range(len(self.nodes)) if number is None else (number,)


def _number(name: str) -> int:
    """Give the number of the node with a name; -1 where it is not known yet."""
    number = name.removeprefix(_NAME)
    return int(number) if number.isdecimal() else -1
