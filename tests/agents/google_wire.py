"""Google's generateContent on this machine, over real HTTP: it keeps what it is sent, and replies.

It refuses what Google refuses or once refused: contents that are not of the user and the model in
turn, from the user to the user, and texts that are empty.

Source: Google's Gemini API reference, generateContent; its errors as people reported them.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Generator

Body: TypeAlias = dict[str, Any]

MODEL: Final = "google:gemini-2.5-flash"
_ROLES: Final = {"user": "user", "model": "assistant"}


class Google(ThreadingHTTPServer):
    """A provider that says "Hello." to sound requests.

    Attributes:
        requests: the bodies that were sent, refused ones too.
    """

    daemon_threads = False

    def __init__(self) -> None:
        """Listen on a port that is free."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Body] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make the real SDK speak to it."""
        return {
            "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{self.server_port}",
            "GOOGLE_API_KEY": "none",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }


class _Handler(BaseHTTPRequestHandler):
    server: Google  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        """Check a request, and answer it or refuse it."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(body)
        wrong = _wrong_with(body["contents"])
        data = json.dumps(_refusal(wrong) if wrong else _REPLY).encode()
        self.send_response(400 if wrong else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""


_REPLY: Final[Body] = {
    "candidates": [
        {
            "content": {"role": "model", "parts": [{"text": "Hello."}]},
            "finishReason": "STOP",
            "index": 0,
        }
    ],
    "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
    "modelVersion": "gemini-2.5-flash",
    "responseId": "1",
}


def _refusal(what: str) -> Body:
    return {"error": {"code": 400, "message": what, "status": "INVALID_ARGUMENT"}}


def _wrong_with(contents: list[Body]) -> str:
    """Say what Google would refuse; nothing where it would not."""
    roles: list[str] = [content["role"] for content in contents]
    if roles != ["user", "model"] * (len(roles) // 2) + ["user"]:
        return f"Please ensure that multiturn requests alternate between user and model: {roles}"
    if not all(part["text"].strip() for content in contents for part in content["parts"]):
        return "Unable to submit request because it must have a text parameter"
    return ""


def turns(body: Body) -> list[tuple[str, str]]:
    """Give the role and the text of each turn that a request carried, the system's first."""
    system: Body = body.get("systemInstruction", {"parts": []})
    return [
        *(("system", part["text"]) for part in system["parts"]),
        *(
            (_ROLES[content["role"]], part["text"])
            for content in body["contents"]
            for part in content["parts"]
        ),
    ]


@contextmanager
def serving() -> Generator[Google]:
    """Run a provider until the block ends."""
    provider = Google()
    thread = threading.Thread(target=provider.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield provider
    finally:
        provider.shutdown()
        thread.join()
        provider.server_close()
