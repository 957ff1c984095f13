"""A language model's provider on this machine: OpenAI's and Anthropic's endpoints, over real HTTP.

It keeps the body of each request, refuses what the real ones refuse, with their status and the
shape of their errors, and answers anything else with a reply given beforehand.

Source: OpenAI's API reference, chat completions; Anthropic's API reference, Messages and errors.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Body: TypeAlias = dict[str, Any]


class Refused(Exception):
    """The provider refuses a request; the text says why."""


class Provider(ThreadingHTTPServer):
    """A provider that answers every sound request with `reply`.

    Attributes:
        requests: the bodies that were sent, refused ones too, in the order of their coming.
    """

    daemon_threads = True

    def __init__(self, reply: str = "Hello.") -> None:
        """Listen on a port that is free."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply
        self.requests: list[Body] = []

    @property
    def url(self) -> str:
        """The base URL, without a version."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(reply: str = "Hello.") -> Generator[Provider]:
    """Run a provider until the block ends."""
    with Provider(reply) as provider:
        thread = threading.Thread(target=provider.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()


# ---- what they refuse ----


def check_openai(body: Body) -> None:
    """Raise Refused where OpenAI would."""
    if not body["messages"]:
        raise Refused("[] is too short - 'messages'")
    for i, message in enumerate(body["messages"]):
        if message["role"] not in {"system", "developer", "user", "assistant"}:
            raise Refused(f"Invalid value: '{message['role']}'. 'messages[{i}].role'")
        if not isinstance(message["content"], str):
            raise Refused(f"Invalid type for 'messages[{i}].content'")


def check_anthropic(body: Body) -> None:
    """Raise Refused where Anthropic would."""
    if not body["messages"]:
        raise Refused("messages: at least one message is required")
    if "system" in body and not body["system"].strip():
        raise Refused("system: text content blocks must be non-empty")
    for i, message in enumerate(body["messages"]):
        if message["role"] not in {"user", "assistant"}:
            raise Refused(f"messages.{i}.role: Input should be 'user' or 'assistant'")
        if not message["content"]:
            raise Refused(f"messages.{i}: all messages must have non-empty content")
        if not message["content"].strip():
            raise Refused("messages: text content blocks must contain non-whitespace text")
    last = body["messages"][-1]
    if last["role"] == "assistant" and last["content"] != last["content"].rstrip():
        raise Refused("messages: final assistant content cannot end with trailing whitespace")


def _check_characters(value: object) -> None:
    """Raise Refused for half characters, which may come as escapes too."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused("the request body is not valid JSON: lone surrogate") from None


# ---- what they answer ----


def _openai_answer(body: Body, reply: str) -> Body:
    message = {"role": "assistant", "content": reply}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _anthropic_answer(body: Body, reply: str) -> Body:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": reply}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _openai_error(message: str) -> Body:
    kind = "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _anthropic_error(message: str) -> Body:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


_Endpoint: TypeAlias = """tuple[
    Callable[[Body], None], Callable[[Body, str], Body], Callable[[str], Body]
]"""
_ENDPOINTS: Final[dict[str, _Endpoint]] = {
    "/v1/chat/completions": (check_openai, _openai_answer, _openai_error),
    "/v1/messages": (check_anthropic, _anthropic_answer, _anthropic_error),
}


class _Handler(BaseHTTPRequestHandler):
    """Speaks HTTP for a provider."""

    server: Provider  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Check a request, and answer it or refuse it."""
        data = self.rfile.read(int(self.headers["content-length"]))
        check, answer, error = _ENDPOINTS[self.path]
        try:
            body = self._body(data)
            check(body)
            self._send(200, answer(body, self.server.reply))
        except Refused as refusal:
            self._send(400, error(str(refusal)))

    def _body(self, data: bytes) -> Body:
        try:
            body: Body = json.loads(data)
        except ValueError:
            raise Refused("the request body is not valid JSON") from None
        self.server.requests.append(body)
        _check_characters(body)
        return body

    def _send(self, status: int, value: Body) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""
