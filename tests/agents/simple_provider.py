"""A provider on this machine, over real HTTP, that keeps what it is sent and has one reply."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator

Body: TypeAlias = dict[str, Any]
_Provider = TypeVar("_Provider", bound="SimpleProvider")

NO_PROXY: Final = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


class Answer(NamedTuple):
    """What a provider answers to a request."""

    status: int
    kind: str
    data: str


class SimpleProvider(ThreadingHTTPServer):
    """A provider of a wire format that its subclass knows.

    Attributes:
        requests: the bodies that were sent, refused ones too.
    """

    daemon_threads = False

    def __init__(self) -> None:
        """Listen on a port that is free."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Body] = []

    def answer(self, body: Body) -> Answer:
        """Return the answer to a request."""
        raise NotImplementedError


class _Handler(BaseHTTPRequestHandler):
    server: SimpleProvider  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        """Keep a request, and answer it."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(body)
        answer = self.server.answer(body)
        data = answer.data.encode()
        self.send_response(answer.status)
        self.send_header("content-type", answer.kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""


@contextmanager
def running(provider: _Provider) -> Generator[_Provider]:
    """Run a provider until the block ends."""
    thread = threading.Thread(target=provider.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield provider
    finally:
        provider.shutdown()
        thread.join()
        provider.server_close()
