"""Anthropic's Messages API: what it refuses, and how it answers, in JSON and streamed.

Source: Anthropic's API reference, Messages, streaming and errors; refusals that it does not tell
of are as people reported them: text behind a tool_use counts as the missing tool_result. What a
tool_result holds may be empty.
"""

from __future__ import annotations

import json
import re
from itertools import groupby, takewhile
from typing import Any, Final, TypeAlias

from replies import (
    Body,
    Failure,
    Refusal,
    Refused,
    Reply,
    Stop,
    StreamError,
    Thinking,
    ToolCall,
    fresh_id,
)

Turn: TypeAlias = tuple[int, str, list[Body]]  # the first message's index, the role, the blocks

OVERLOADED: Final = 529
SIGNATURE: Final = "c2lnbmVkIGJ5IHRoZSBsb2NhbCBzZXJ2ZXI="  # thinking must come back as it went out

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
_STOPS: Final[dict[Stop, str]] = {
    "end": "end_turn",
    "length": "max_tokens",
    "tools": "tool_use",
    "refused": "refusal",
}
_BLOCKS: Final = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use"},
}

# ---- what it refuses ----


def check(body: Body) -> None:
    """Raise Refused where Anthropic would."""
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            raise Refused(f"{name}: Field required")
    if not isinstance(body["max_tokens"], int) or body["max_tokens"] < 1:
        raise Refused("max_tokens: Input should be an integer greater than or equal to 1")
    if not body["messages"]:
        raise Refused("messages: at least one message is required")
    _check_system(body)
    _check_tools(body)
    turns = _merged([_turn(i, message) for i, message in enumerate(body["messages"])])
    _check_tool_traffic(turns)
    _check_thinking(body, turns)
    _, role, blocks = turns[-1]
    text = blocks[-1].get("text", "")
    if role == "assistant" and text != text.rstrip():
        raise Refused("messages: final assistant content cannot end with trailing whitespace")


def _check_system(body: Body) -> None:
    system = body.get("system", "-")
    for block in _as_blocks(system):
        if block.get("type") != "text" or not block["text"].strip():
            raise Refused("system: text content blocks must be non-empty")


def _check_tools(body: Body) -> None:
    tools: list[Body] = body.get("tools", [])
    if "tool_choice" in body and not tools:
        raise Refused("tool_choice: may only be specified while providing tools")
    names = [tool.get("name", "") for tool in tools]
    for i, tool in enumerate(tools):
        if not re.fullmatch("[a-zA-Z0-9_-]{1,128}", names[i]):
            raise Refused(f"tools.{i}.custom.name: String should match pattern")
        if tool.get("input_schema", {}).get("type") != "object":
            raise Refused(f"tools.{i}.custom.input_schema.type: Input should be 'object'")
    if len(set(names)) < len(names):
        raise Refused("tools: Tool names must be unique.")


def _turn(i: int, message: Body) -> Turn:
    """Check a message by itself."""
    role: str = message.get("role", "")
    content: Any = message.get("content")
    if role not in _BLOCKS:
        raise Refused(f"messages.{i}.role: Input should be 'user' or 'assistant'")
    if not isinstance(content, str | list):
        raise Refused(f"messages.{i}.content: Input should be a valid list")
    if not content:
        raise Refused(f"messages.{i}: all messages must have non-empty content")
    blocks = _as_blocks(content)
    for j, block in enumerate(blocks):
        _check_block(f"messages.{i}.content.{j}", role, block)
    return i, role, blocks


def _as_blocks(content: Any) -> list[Body]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _check_block(where: str, role: str, block: Body) -> None:
    kind = block.get("type", "")
    if kind not in _BLOCKS[role]:
        raise Refused(f"{where}: `{kind}` blocks cannot be in `{role}` messages")
    if kind == "text":
        _check_text(where, block)
    elif kind == "thinking" and block.get("signature") != SIGNATURE:
        raise Refused(f"{where}: Invalid `signature` in `thinking` block")
    elif kind == "tool_use":
        _check_tool_use(where, block)


def _check_text(where: str, block: Body) -> None:
    text = block.get("text")
    if not isinstance(text, str):
        raise Refused(f"{where}.text.text: Input should be a valid string")
    if not text:
        raise Refused("messages: text content blocks must be non-empty")
    if not text.strip():
        raise Refused("messages: text content blocks must contain non-whitespace text")


def _check_tool_use(where: str, block: Body) -> None:
    if not re.fullmatch("[a-zA-Z0-9_-]+", block.get("id", "")):
        raise Refused(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not re.fullmatch("[a-zA-Z0-9_-]{1,200}", block.get("name", "")):
        raise Refused(f"{where}.tool_use.name: String should match pattern")
    if not isinstance(block.get("input"), dict):
        raise Refused(f"{where}.tool_use.input: Input should be a valid dictionary")


def _merged(turns: list[Turn]) -> list[Turn]:
    """Give the turns with neighbours of one role made one, as Anthropic does itself."""
    merged: list[Turn] = []
    for role, group in groupby(turns, key=lambda turn: turn[1]):
        members = list(group)
        merged.append((members[0][0], role, [block for turn in members for block in turn[2]]))
    return merged


def _check_tool_traffic(turns: list[Turn]) -> None:
    """Raise Refused unless each tool_use is answered in the next turn, once, ahead of its text."""
    seen: set[str] = set()
    asked: list[str] = []
    for i, _, blocks in [*turns, (len(turns), "user", list[Body]())]:
        _check_results(i, asked, blocks)
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len({*seen, *asked}) < len(seen) + len(asked):
            raise Refused("messages: `tool_use` ids must be unique")
        seen.update(asked)
        if asked and blocks[-1]["type"] != "tool_use":
            raise Refused(_unanswered(i, asked))


def _check_results(i: int, asked: list[str], blocks: list[Body]) -> None:
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    for result in results:
        if result not in asked:
            raise Refused(
                f"messages.{i}.content: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{result}. Each `tool_result` block must have a corresponding `tool_use` block in "
                "the previous message."
            )
        if results.count(result) > 1:
            raise Refused(f"messages.{i}: each tool_use must have a single result: {result}")
    first = takewhile(lambda block: block["type"] == "tool_result", blocks)
    answered = {block["tool_use_id"] for block in first}
    if missing := [call for call in asked if call not in answered]:
        raise Refused(_unanswered(i - 1, missing))


def _unanswered(i: int, ids: list[str]) -> str:
    return (
        f"messages.{i}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in "
        "the next message."
    )


def _check_thinking(body: Body, turns: list[Turn]) -> None:
    thinking: Body = body.get("thinking", {})
    if thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens", 0)
    if budget < 1024:
        raise Refused("thinking.enabled.budget_tokens: Input should be greater than 1024")
    if budget >= body["max_tokens"]:
        raise Refused("`max_tokens` must be greater than `thinking.budget_tokens`")
    if body.get("temperature", 1) != 1:
        raise Refused("`temperature` may only be set to 1 when thinking is enabled")
    if body.get("tool_choice", {}).get("type", "auto") not in {"auto", "none"}:
        raise Refused("Thinking may not be enabled when tool_choice forces tool use.")
    if turns[-1][2][0]["type"] == "tool_result" and "thinking" not in turns[-2][2][0]["type"]:
        raise Refused(
            f"messages.{turns[-2][0]}.content.0.type: Expected `thinking` or `redacted_thinking`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking "
            "block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
        )


# ---- what it answers ----


def answer(body: Body, reply: Reply) -> Body:
    """Give an answer as one JSON object."""
    content: list[Body] = []
    for step in reply.steps:
        if isinstance(step, str) and step and content and content[-1]["type"] == "text":
            content[-1]["text"] += step
        elif isinstance(step, str) and step:
            content.append({"type": "text", "text": step})
        elif isinstance(step, Thinking):
            content.append({"type": "thinking", "thinking": step.text, "signature": SIGNATURE})
        elif isinstance(step, ToolCall):
            content.append(_tool_use(step, _input(step)))
    return {**_message(body, reply), "content": content, **_ending(reply)}


def error(failure: Failure) -> Body:
    """Give an error as a JSON object."""
    kind = failure.kind or _KINDS.get(failure.status, "api_error")
    error = {"type": kind, "message": failure.message}
    return {"type": "error", "error": error, "request_id": fresh_id("req")}


def _message(body: Body, reply: Reply) -> Body:
    return {
        "id": fresh_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": reply.usage[0], "output_tokens": reply.usage[1]},
    }


def _ending(reply: Reply) -> Body:
    ending: Body = {"stop_reason": _STOPS[reply.stop], "stop_sequence": None}
    if reply.refusal:
        details = {"type": "refusal", "category": None, "explanation": reply.refusal}
        ending["stop_details"] = details
    return ending


def _tool_use(call: ToolCall, input: object) -> Body:
    return {
        "type": "tool_use",
        "id": call.id or fresh_id("toolu"),
        "name": call.name,
        "input": input,
    }


def _input(call: ToolCall) -> object:
    """Give the arguments as an object; malformed ones stay text, as a faulty relay would send."""
    try:
        return json.loads(call.json)
    except ValueError:
        return call.json


class Events:
    """Puts one answer into Anthropic's events."""

    def __init__(self, body: Body, reply: Reply) -> None:
        """Take the request and its answer."""
        self._body = body
        self._reply = reply
        self._index = -1
        self._in_text = False

    def start(self) -> bytes:
        """Give the message without content."""
        message = _message(self._body, self._reply)
        message["usage"]["output_tokens"] = 1  # the rest comes with the last event
        return _event("message_start", message=message) + _event("ping")

    def step(self, step: str | ToolCall | Thinking | Refusal | StreamError) -> bytes:
        """Give a step's events; a refusal comes with the end alone."""
        match step:
            case str():
                return self._text(step)
            case ToolCall():
                deltas = [_delta("input_json", partial_json=piece) for piece in step.pieces()]
                return self._block(_tool_use(step, {}), deltas)
            case Thinking():
                block = {"type": "thinking", "thinking": "", "signature": ""}
                thought = _delta("thinking", thinking=step.text)
                return self._block(block, [thought, _delta("signature", signature=SIGNATURE)])
            case StreamError():
                problem = error(Failure(OVERLOADED, step.message))
                return _event("error", **{**problem, "type": "error"})
            case Refusal():
                return b""

    def end(self) -> bytes:
        """Give the reason of the end, and the usage."""
        usage = {"output_tokens": self._reply.usage[1]}
        delta = _event("message_delta", delta=_ending(self._reply), usage=usage)
        return self._close() + delta + _event("message_stop")

    def _text(self, text: str) -> bytes:
        opening = b"" if self._in_text else self._open({"type": "text", "text": ""})
        self._in_text = True
        delta = _delta("text", text=text)
        return opening + _event("content_block_delta", index=self._index, delta=delta)

    def _block(self, block: Body, deltas: list[Body]) -> bytes:
        data = self._open(block)
        for delta in deltas:
            data += _event("content_block_delta", index=self._index, delta=delta)
        return data + _event("content_block_stop", index=self._index)

    def _open(self, block: Body) -> bytes:
        closing = self._close()
        self._index += 1
        return closing + _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        """End a block of text, which may have gone on; the other blocks come whole."""
        was_in_text, self._in_text = self._in_text, False
        return _event("content_block_stop", index=self._index) if was_in_text else b""


def _delta(kind: str, **content: str) -> Body:
    return {"type": f"{kind}_delta", **content}


def _event(kind: str, /, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
