"""OpenAI's Responses on this machine, over real HTTP: it keeps what it is sent, and replies.

It refuses what a model with a strict template behind it refuses: messages that are not of the user
and the assistant in turn, from the user to the user, and texts that are empty.

Source: OpenAI's API reference, Responses and their streaming.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from simple_provider import NO_PROXY, Answer, SimpleProvider, running

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from simple_provider import Body

MODEL: Final = "openai:gpt-5-mini"


class Responses(SimpleProvider):
    """A provider that says "Hello." to sound requests."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make the real SDK speak to it."""
        return {
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.server_port}/v1",
            "OPENAI_API_KEY": "none",
            **NO_PROXY,
        }

    def answer(self, body: Body) -> Answer:
        """Check a request, and answer it or refuse it."""
        wrong = _wrong_with(turns(body))
        if wrong:
            refusal = {"error": {"message": wrong, "type": "invalid_request_error"}}
            return Answer(400, "application/json", json.dumps(refusal))
        if body.get("stream"):
            return Answer(200, "text/event-stream", "".join(map(_event, _events())))
        return Answer(200, "application/json", json.dumps(_response("completed")))


_PART: Final[Body] = {"type": "output_text", "text": "Hello.", "annotations": []}
_MESSAGE: Final[Body] = {"id": "msg_1", "type": "message", "role": "assistant"}
_WHOLE: Final[Body] = {**_MESSAGE, "status": "completed", "content": [_PART]}
_PLACE: Final[Body] = {"item_id": "msg_1", "output_index": 0, "content_index": 0}


def _response(status: str) -> Body:
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5-mini",
        "status": status,
        "output": [_WHOLE] if status == "completed" else [],
        "usage": usage if status == "completed" else None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _events() -> list[Body]:
    begun: Body = {**_MESSAGE, "status": "in_progress", "content": []}
    return [
        {"type": "response.created", "response": _response("in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": begun},
        {"type": "response.content_part.added", **_PLACE, "part": {**_PART, "text": ""}},
        {"type": "response.output_text.delta", **_PLACE, "delta": "Hello.", "logprobs": []},
        {"type": "response.output_text.done", **_PLACE, "text": "Hello.", "logprobs": []},
        {"type": "response.output_item.done", "output_index": 0, "item": _WHOLE},
        {"type": "response.completed", "response": _response("completed")},
    ]


def _event(body: Body) -> str:
    return f"event: {body['type']}\ndata: {json.dumps({**body, 'sequence_number': 0})}\n\n"


def _wrong_with(sent: list[tuple[str, str]]) -> str:
    """Return what a strict model would refuse; "" where it would not."""
    roles = [role for role, _ in sent if role != "system"]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        return f"conversation roles must alternate user/assistant/user/assistant/...: {roles}"
    return "" if all(text.strip() for _, text in sent) else "a text is empty"


def turns(body: Body) -> list[tuple[str, str]]:
    """Return the role and the text of each message that a request carried, instructions first."""
    told = [("system", body["instructions"])] if body.get("instructions") else []
    return told + [(_role(item["role"]), _text(item["content"])) for item in body["input"]]


def _role(role: str) -> str:
    return "system" if role == "developer" else role


def _text(content: str | list[Body]) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(part["text"] for part in content)


def serving() -> AbstractContextManager[Responses]:
    """Run a provider until the block ends."""
    return running(Responses())
