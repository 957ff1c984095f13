"""A language model's provider on this machine: Anthropic's and OpenAI's endpoints, over real HTTP.

It speaks `POST /v1/messages` and `POST /v1/chat/completions`, in JSON and, where the request says
`"stream": true`, in server-sent events. It keeps each request, refuses what the real providers
refuse, with their status and the shape of their errors, and answers anything else as the test's
script says: each request takes the next reply; with none left, the default one ("Hello.").

    gate = Gate()
    with serving() as provider:
        provider.script(
            Failure(429, "Slow down.", retry=True),                    # the SDK tries again
            Reply("Let me ", "look.", ToolCall("lookup", {"id": 7})),  # then text and a tool call
            Reply("It is ", gate, "paid.", usage=(12, 5)),             # stops in the middle
        )
        for name, value in environment(provider).items():              # for the real SDKs
            monkeypatch.setenv(name, value)
        ...                                  # start a run of MODELS["anthropic"] or ["openai"]
        await gate.reached.aexpect()         # the client has been sent "It is "
        task.cancel()                        # or: gate.open()
        ...
        await provider.disconnected.aexpect()
        assert turns(provider.requests[0]) == [("user", "Is it paid?")]

Steps of a Reply:
    str            one delta of text; "" only begins the answer (status line, first event)
    ToolCall       its arguments are a mapping, or a str that may be malformed; come in two pieces
    Thinking       a thinking block; for OpenAI `reasoning_content`
    Refusal        Anthropic's stop reason "refusal", OpenAI's field `refusal`
    Gate           stop here until `gate.open()`; as the first step: before the status line is sent
    Broken         close the connection here; as the first step: before the status line is sent
    StreamError    an error among the events; in JSON an HTTP error, as nothing has been sent yet

In JSON all is sent in one piece at the end, so that a Gate or a Broken comes before the status
line, wherever it stands. A request that is refused takes no reply from the script.

On leaving `serving()` every connection is cut and every thread has ended; an error in the server
itself is raised then.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anthropic_wire
import openai_wire
from replies import (
    Answer,
    Body,
    Broken,
    Failure,
    Gate,
    Refusal,
    Refused,
    Reply,
    Scripted,
    Signal,
    StreamError,
    Thinking,
    ToolCall,
    Wire,
    events,
)
from transcript import turns

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "MODELS",
    "Broken",
    "Call",
    "Failure",
    "Gate",
    "Provider",
    "Refusal",
    "Reply",
    "Signal",
    "StreamError",
    "Thinking",
    "ToolCall",
    "environment",
    "serving",
    "turns",
]

MODELS: Final = {
    "anthropic": "anthropic:claude-haiku-4-5-20251001",
    "openai": "openai-chat:gpt-5-mini",
}
_WIRES: Final[dict[str, Wire]] = {
    "/v1/messages": anthropic_wire,
    "/v1/chat/completions": openai_wire,
}


@dataclass
class Call:
    """A request that came.

    Attributes:
        path: without the query.
        headers: their names in small letters.
        body: what was sent.
        disconnected: the client went before it had its answer.
    """

    path: str
    headers: dict[str, str]
    body: Body
    disconnected: Signal = field(default_factory=Signal)


class Provider(ThreadingHTTPServer):
    """A provider that answers sound requests as its script says.

    Attributes:
        reply: the answer to a request that the script has none for.
        key: the one that requests must bear; None takes any.
        calls: the requests, refused ones too, in the order of their coming.
        disconnected: a client went before it had its answer.
    """

    daemon_threads = False  # closing waits for each
    request_queue_size = 128

    def __init__(self, reply: Scripted = "Hello.", key: str | None = None) -> None:
        """Listen on a port that is free."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply
        self.key = key
        self.calls: list[Call] = []
        self.disconnected = Signal()
        self.closing = threading.Event()
        self.faults: list[Exception] = []
        self._script: deque[Scripted] = deque()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    @property
    def url(self) -> str:
        """The base URL, without a version."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def requests(self) -> list[Body]:
        """The bodies that were sent, refused ones too, in the order of their coming."""
        return [call.body for call in self.calls]

    def script(self, *replies: Scripted) -> None:
        """Give the answers to the next requests; a function is called with the request's body."""
        self._script.extend(replies)

    def answer(self, call: Call, refusal: Failure | None) -> Answer:
        """Note a request, and give its answer."""
        with self._lock:
            self.calls.append(call)
            if refusal:
                return refusal
            scripted = self._script.popleft() if self._script else self.reply
        return scripted(call.body) if callable(scripted) else scripted

    # ---- its connections ----

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note a connection, and serve it in a thread of its own."""
        with self._lock:
            self._sockets.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection, and close it."""
        with self._lock:
            self._sockets.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        """Cut every connection, so that no thread waits for its client or at a gate."""
        self.closing.set()
        with self._lock:
            for connection in self._sockets:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep an error of the server's own."""
        del request, client_address
        if isinstance(error := sys.exception(), Exception):
            self.faults.append(error)


@contextmanager
def serving(reply: Scripted = "Hello.", key: str | None = None) -> Generator[Provider]:
    """Run a provider until the block ends."""
    provider = Provider(reply, key)
    thread = threading.Thread(target=provider.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield provider
    finally:
        provider.shutdown()
        thread.join()
        provider.cut()
        provider.server_close()
    if provider.faults:
        raise ExceptionGroup("the local provider failed", provider.faults)


def environment(provider: Provider) -> dict[str, str]:
    """Give the variables that make the real SDKs speak to a provider."""
    key = provider.key or "none"
    return {
        "ANTHROPIC_BASE_URL": provider.url,
        "ANTHROPIC_API_KEY": key,
        "OPENAI_BASE_URL": f"{provider.url}/v1",
        "OPENAI_API_KEY": key,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


class _Handler(BaseHTTPRequestHandler):
    """Speaks HTTP for a provider."""

    server: Provider  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        """Serve a connection until it ends, in whichever way."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """Say that there is no such thing."""
        wire = anthropic_wire if "anthropic-version" in self.headers else openai_wire
        self._fail(wire, Failure(404, f"Not found: {self.command} {self.path}"))

    def do_POST(self) -> None:
        """Check a request, and answer it or refuse it."""
        data = self.rfile.read(int(self.headers["content-length"]))
        path = urlsplit(self.path).path
        wire = _WIRES.get(path)
        if wire is None:
            self.do_GET()
            return
        try:
            body = _parsed(data)
        except Refused as refusal:
            self._fail(wire, Failure(400, str(refusal)))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = Call(path, headers, body)
        answer = self.server.answer(call, self._refusal(wire, call))
        try:
            self._answer(wire, call, answer)
        except ConnectionError:
            self.close_connection = True
            if not self.server.closing.is_set():
                call.disconnected.set()
                self.server.disconnected.set()

    def _refusal(self, wire: Wire, call: Call) -> Failure | None:
        bearer = call.headers.get("authorization", "").removeprefix("Bearer ")
        given = call.headers.get("x-api-key", bearer)
        if self.server.key not in {None, given}:
            return Failure(401, f"Incorrect API key provided: {given}")
        try:
            _check_characters(call.body)
            wire.check(call.body)
        except Refused as refusal:
            return Failure(400, str(refusal))
        except (AttributeError, KeyError, TypeError) as error:
            return Failure(400, f"the request is malformed: {error!r}")
        return None

    def _answer(self, wire: Wire, call: Call, answer: Answer) -> None:
        if isinstance(answer, Failure):
            self._fail(wire, answer)
            return
        reply = Reply(answer) if isinstance(answer, str) else answer
        if call.body.get("stream"):
            self._stream(wire, call.body, reply)
        else:
            self._send_whole(wire, call.body, reply)

    def _send_whole(self, wire: Wire, body: Body, reply: Reply) -> None:
        for step in reply.steps:
            if isinstance(step, Gate):
                self._wait_at(step)
            elif isinstance(step, Broken):
                self.close_connection = True
                return
            elif isinstance(step, StreamError):
                self._fail(wire, Failure(wire.OVERLOADED, step.message))
                return
        self._send(200, wire.answer(body, reply), {})

    def _stream(self, wire: Wire, body: Body, reply: Reply) -> None:
        begun = False
        for item in events(wire.Events(body, reply), reply):
            if isinstance(item, Gate):
                self._wait_at(item)
            elif isinstance(item, Broken):
                self.close_connection = True
                return
            elif item:
                if not begun:
                    begun = True
                    self._begin_stream()
                self._check_client()
                self._send_chunk(item)
        # OpenAI's client has its answer with the last event, and may be gone by now.
        try:
            self._send_chunk(b"")
        except ConnectionError:
            self.close_connection = True

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _send_chunk(self, data: bytes) -> None:
        """Send a piece of a stream; the empty one ends it."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _wait_at(self, gate: Gate) -> None:
        gate.reached.set()
        while not gate.opened.wait(0.002):
            self._check_client()

    def _check_client(self) -> None:
        """Raise ConnectionError where the client has gone: only its end of file tells so."""
        with suppress(BlockingIOError):
            if not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                raise ConnectionAbortedError

    def _fail(self, wire: Wire, failure: Failure) -> None:
        self._send(failure.status, wire.error(failure), failure.all_headers())

    def _send(self, status: int, value: Body, headers: dict[str, str]) -> None:
        data = json.dumps(value).encode()
        self._check_client()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""


def _parsed(data: bytes) -> Body:
    try:
        body = json.loads(data)
    except ValueError:
        raise Refused("the request body is not valid JSON") from None
    if not isinstance(body, dict):
        raise Refused("the request body is not a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]


def _check_characters(value: object) -> None:
    """Raise Refused for half characters, which may come as escapes too."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused("the request body is not valid JSON: lone surrogate") from None
