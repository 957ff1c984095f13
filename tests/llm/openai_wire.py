"""OpenAI's chat completions: what they refuse, and how they answer, in JSON and streamed.

Source: OpenAI's API reference, chat completions and their streaming; its guide to error codes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

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

OVERLOADED: Final = 503

_CODES: Final = {
    401: "invalid_api_key",
    404: "model_not_found",
    429: "rate_limit_exceeded",
    500: "server_error",
    OVERLOADED: "server_error",
}
_STOPS: Final[dict[Stop, str]] = {
    "end": "stop",
    "length": "length",
    "tools": "tool_calls",
    "refused": "content_filter",
}
_PARTS: Final = {
    "system": {"text"},
    "developer": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
}

# ---- what it refuses ----


def check(body: Body) -> None:
    """Raise Refused where OpenAI would."""
    if not body.get("model"):
        raise Refused("you must provide a model parameter")
    if not body.get("messages"):
        raise Refused("[] is too short - 'messages'")
    if body.get("stream_options") and not body.get("stream"):
        raise Refused("The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    if body.get("max_tokens") and re.match(r"gpt-5|o\d", body["model"]):
        raise Refused("Unsupported parameter: 'max_tokens' is not supported with this model.")
    _check_tools(body)
    for i, message in enumerate(body["messages"]):
        _check_message(i, message)
    _check_tool_traffic(body["messages"])


def _check_tools(body: Body) -> None:
    tools = body.get("tools", [])
    if "tool_choice" in body and not tools:
        raise Refused("Invalid value for 'tool_choice': only allowed when 'tools' are specified.")
    for i, tool in enumerate(tools):
        function: Body = tool.get("function", {})
        if tool.get("type") != "function" or not _is_name(function.get("name")):
            raise Refused(f"Invalid 'tools[{i}].function.name': it does not match the pattern")
        if function.get("parameters", {"type": "object"}).get("type") != "object":
            raise Refused(f"Invalid schema for function '{function['name']}': not an object")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[a-zA-Z0-9_-]{1,64}", value) is not None


def _check_message(i: int, message: Body) -> None:
    role: str = message.get("role", "")
    content: Any = message.get("content")
    if role not in _PARTS:
        raise Refused(f"Invalid value: '{role}'. 'messages[{i}].role'")
    if isinstance(content, list):
        _check_parts(f"messages[{i}].content", role, content)  # pyright: ignore[reportUnknownArgumentType]
    elif not (isinstance(content, str) or (content is None and message.get("tool_calls"))):
        raise Refused(f"Invalid type for 'messages[{i}].content'")
    if "tool_calls" in message:
        _check_calls(f"messages[{i}].tool_calls", role, message["tool_calls"])


def _check_parts(where: str, role: str, parts: list[Body]) -> None:
    for part in parts:
        if part.get("type") not in _PARTS[role]:
            raise Refused(f"Invalid value: '{part.get('type')}'. '{where}'")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise Refused(f"Invalid type for '{where}.text'")


def _check_calls(where: str, role: str, calls: list[Body]) -> None:
    if role != "assistant" or not calls:
        raise Refused(f"Invalid '{where}': it may not be empty, and belongs to an assistant")
    for call in calls:
        function: Body = call.get("function", {})
        if call.get("type") != "function" or not isinstance(call.get("id"), str):
            raise Refused(f"Missing required parameter: '{where}.id'")
        if not _is_name(function.get("name")):
            raise Refused(f"Invalid '{where}.function.name': it does not match the pattern")
        if not isinstance(function.get("arguments"), str):
            raise Refused(f"Invalid type for '{where}.function.arguments': expected a string")


def _check_tool_traffic(messages: list[Body]) -> None:
    """Raise Refused unless each call is answered right behind it, and only calls are."""
    asked: list[str] = []
    open_: list[str] = []
    for i, message in enumerate([*messages, Body(role="end")]):
        if message["role"] == "tool":
            answered = message.get("tool_call_id")
            if answered not in asked:
                raise Refused(
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    f"preceeding message with 'tool_calls'. 'messages.[{i}].role'"
                )
            open_ = [call for call in open_ if call != answered]
            continue
        if open_:
            raise Refused(
                "An assistant message with 'tool_calls' must be followed by tool messages "
                "responding to each 'tool_call_id'. The following tool_call_ids did not have "
                f"response messages: {', '.join(open_)}"
            )
        asked = open_ = [call["id"] for call in message.get("tool_calls", [])]


# ---- what it answers ----


def answer(body: Body, reply: Reply) -> Body:
    """Give an answer as one JSON object."""
    text = "".join(step for step in reply.steps if isinstance(step, str))
    thoughts = "".join(step.text for step in reply.steps if isinstance(step, Thinking))
    calls = [_call(step, step.json) for step in reply.steps if isinstance(step, ToolCall)]
    nothing = bool(calls or reply.refusal) and not text
    message: Body = {"role": "assistant", "content": None if nothing else text}
    message["refusal"] = reply.refusal
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _ending(reply)}
    return {**_head(body, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def error(failure: Failure) -> Body:
    """Give an error as a JSON object."""
    code = failure.kind or _CODES.get(failure.status)
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    if failure.status == 429:
        kind = "requests" if code == "rate_limit_exceeded" else str(code)
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": code}}


def _head(body: Body, kind: str) -> Body:
    return {"id": fresh_id("chatcmpl"), "object": kind, "created": 1, "model": body["model"]}


def _usage(reply: Reply) -> Body:
    given, made = reply.usage
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _ending(reply: Reply) -> str:
    """Give the reason of the end; a refusal in words of its own is an ordinary one."""
    return "stop" if reply.refusal else _STOPS[reply.stop]


def _call(call: ToolCall, arguments: str) -> Body:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id or fresh_id("call"), "type": "function", "function": function}


class Events:
    """Puts one answer into OpenAI's chunks."""

    def __init__(self, body: Body, reply: Reply) -> None:
        """Take the request and its answer."""
        self._head = _head(body, "chat.completion.chunk")
        options: Body = body.get("stream_options") or {}
        self._tells_usage = bool(options.get("include_usage"))
        self._reply = reply
        self._calls = 0

    def start(self) -> bytes:
        """Give the role."""
        return self._delta(role="assistant", content="", refusal=None)

    def step(self, step: str | ToolCall | Thinking | Refusal | StreamError) -> bytes:
        """Give a step's chunks."""
        match step:
            case str():
                return self._delta(content=step)
            case ToolCall():
                return self._tool_call(step)
            case Thinking():
                return self._delta(reasoning_content=step.text)
            case Refusal():
                return self._delta(refusal=step.text)
            case StreamError():
                return _data(error(Failure(OVERLOADED, step.message)))

    def end(self) -> bytes:
        """Give the reason of the end; the usage has a chunk of its own, where it is asked for."""
        chunks = self._chunk([{"index": 0, "delta": {}, "finish_reason": _ending(self._reply)}])
        if self._tells_usage:
            chunks += self._chunk([], usage=_usage(self._reply))
        return chunks + b"data: [DONE]\n\n"

    def _tool_call(self, call: ToolCall) -> bytes:
        index, self._calls = self._calls, self._calls + 1
        chunks = self._delta(tool_calls=[{"index": index, **_call(call, "")}])
        for piece in call.pieces():
            part = {"index": index, "function": {"arguments": piece}}
            chunks += self._delta(tool_calls=[part])
        return chunks

    def _delta(self, **delta: Any) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": None}])

    def _chunk(self, choices: list[Body], usage: Body | None = None) -> bytes:
        told = {"usage": usage} if self._tells_usage else {}
        return _data({**self._head, "choices": choices, **told})


def _data(value: Body) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
