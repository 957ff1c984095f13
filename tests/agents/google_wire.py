"""Google's generateContent on this machine, over real HTTP: it keeps what it is sent, and replies.

It refuses what Google refuses or once refused: contents that are not of the user and the model in
turn, from the user to the user, and texts that are empty.

Source: Google's Gemini API reference, generateContent; its errors as people reported them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from simple_provider import NO_PROXY, Answer, SimpleProvider, running

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from simple_provider import Body

MODEL: Final = "google:gemini-2.5-flash"
_ROLES: Final = {"user": "user", "model": "assistant"}


class Google(SimpleProvider):
    """A provider that says "Hello." to sound requests."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make the real SDK speak to it."""
        return {
            "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{self.server_port}",
            "GOOGLE_API_KEY": "none",
            **NO_PROXY,
        }

    def answer(self, body: Body) -> Answer:
        """Check a request, and answer it or refuse it."""
        wrong = _wrong_with(body["contents"])
        data = json.dumps(_refusal(wrong) if wrong else _REPLY)
        return Answer(400 if wrong else 200, "application/json", data)


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


def serving() -> AbstractContextManager[Google]:
    """Run a provider until the block ends."""
    return running(Google())
