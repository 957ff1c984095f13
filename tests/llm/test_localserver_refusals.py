"""The scripted provider refuses what the real providers refuse, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest

if TYPE_CHECKING:
    from localserver import Provider


def user(content: Any = "q") -> dict[str, Any]:
    """Give a user's message."""
    return {"role": "user", "content": content}


def assistant(*content: Any, **more: Any) -> dict[str, Any]:
    """Give an assistant's message, of blocks or of one text."""
    return {"role": "assistant", "content": content[0] if len(content) == 1 else content, **more}


def use(id: str = "a", **more: Any) -> dict[str, Any]:
    """Give Anthropic's call of a tool."""
    return {"type": "tool_use", "id": id, "name": "t", "input": {}, **more}


def outcome(id: str = "a", content: Any = "r") -> dict[str, Any]:
    """Give Anthropic's result of a tool."""
    return {"type": "tool_result", "tool_use_id": id, "content": content}


TEXT = {"type": "text", "text": "x"}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
TOOL: Any = {"name": "t", "input_schema": {"type": "object"}}


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens: Field required"),
    ({"model": None}, "model: Field required"),
    ({"system": [{"type": "text", "text": " "}]}, "system"),
    ({"tool_choice": {"type": "auto"}}, "tool_choice"),
    ({"tools": [{**TOOL, "name": "a b"}]}, "tools.0.custom.name"),
    ({"tools": [{**TOOL, "input_schema": {}}]}, "input_schema"),
    ({"tools": [TOOL, TOOL]}, "must be unique"),
    ({"thinking": {**THINKING, "budget_tokens": 9}}, "greater than 1024"),
    ({"thinking": THINKING, "max_tokens": 1024}, "must be greater than"),
    ({"thinking": THINKING, "temperature": 0.5}, "temperature"),
    ({"thinking": THINKING, "tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice"),
    (
        {"thinking": THINKING, "messages": [user(), assistant([use()]), user([outcome()])]},
        "messages.1.content.0.type: Expected `thinking`",
    ),
]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([{"role": "system", "content": "s"}], "Input should be"),
        ([user([])], "non-empty content"),
        ([user([{"type": "text", "text": ""}])], "must be non-empty"),
        ([user([{"type": "text", "text": " \n"}])], "non-whitespace"),
        ([user([{"type": "text"}])], "valid string"),
        ([user([{"type": "video"}])], "video"),
        ([user(None)], "valid list"),
        ([user([use()])], "`tool_use` blocks cannot be in `user`"),
        ([user(), assistant([outcome()])], "`tool_result` blocks cannot be in `assistant`"),
        ([user(), assistant([TEXT, {"type": "text", "text": "a "}])], "trailing whitespace"),
        ([user(), assistant([use()])], "messages.1: `tool_use` ids were found without"),
        ([user(), assistant([use()]), user()], "messages.1: `tool_use` ids were found without"),
        ([user(), assistant([use(), use("b")]), user([outcome()])], "immediately after: b"),
        ([user(), assistant([use()]), user([TEXT, outcome()])], "immediately after: a"),
        ([user(), assistant([use(), TEXT]), user([outcome()])], "immediately after: a"),
        ([user(), assistant([use()]), assistant("x"), user([outcome()])], "immediately after"),
        ([user([outcome()])], "unexpected `tool_use_id`"),
        ([user(), assistant([use()]), user([outcome("b")])], "unexpected `tool_use_id`"),
        (
            [user(), assistant([use()]), user([outcome()]), assistant("x"), user([outcome()])],
            "unexpected `tool_use_id`",
        ),
        ([user(), assistant([use()]), user([outcome(), outcome()])], "a single result"),
        ([user(), assistant([use(), use()]), user([outcome()])], "must be unique"),
        ([user(), assistant([use(input="{")]), user([outcome()])], "valid dictionary"),
        ([user(), assistant([use("a b")]), user([outcome("a b")])], "tool_use.id"),
        ([user(), assistant([use(name="a b")]), user([outcome()])], "tool_use.name"),
        ([user(), assistant([{"type": "thinking", "thinking": "x"}, TEXT]), user()], "signature"),
        ([user([{"type": "tool_result"}])], "malformed"),
    ],
)
def test_messages_that_anthropic_refuses(
    claude: anthropic.Anthropic, messages: Any, why: str
) -> None:
    """Messages that Anthropic does not take are refused, with its reason."""
    with pytest.raises(anthropic.BadRequestError, match=why):
        claude.messages.create(model="m", max_tokens=9, messages=messages)


@pytest.mark.parametrize(("more", "why"), UNFIT)
def test_requests_that_anthropic_refuses(claude: anthropic.Anthropic, more: Any, why: str) -> None:
    """Requests that Anthropic does not take are refused, with its reason."""
    request = {"model": "m", "max_tokens": 4096, "messages": [user()], **more}
    body = {name: value for name, value in request.items() if value is not None}
    with pytest.raises(anthropic.BadRequestError, match=why):
        claude.post("/v1/messages", body=body, cast_to=object)


def test_requests_that_anthropic_takes(claude: anthropic.Anthropic, provider: Provider) -> None:
    """Roles in a row, a start with the assistant, several results, empty ones: all are taken."""
    taken: list[Any] = [
        [user(), user([TEXT]), assistant("a"), assistant([TEXT]), user()],
        [assistant("a"), user()],
        [user(), assistant("a")],
        [user(), assistant([TEXT, use(), use("b")]), user([outcome("b"), outcome(), TEXT])],
        [
            user(),
            assistant([use()]),
            assistant([use("b")]),
            user([outcome()]),
            user([outcome("b")]),
        ],
        [user(), assistant([use()]), user([outcome(content=[{"type": "text", "text": ""}])])],
        [user(), assistant([use()]), user([outcome(content="")])],
    ]
    for messages in taken:
        claude.messages.create(model="m", max_tokens=9, messages=messages, tools=[TOOL])
    assert len(provider.requests) == len(taken)


def call(id: str = "a", **function: Any) -> dict[str, Any]:
    """Give OpenAI's call of a tool."""
    return {"id": id, "type": "function", "function": {"name": "t", "arguments": "{", **function}}


def tool(id: str = "a") -> dict[str, Any]:
    """Give OpenAI's result of a tool."""
    return {"role": "tool", "tool_call_id": id, "content": "r"}


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([{"role": "function", "content": "x"}], "function"),
        ([user(7)], "content"),
        ([user(None)], "content"),
        ([user(), assistant(None)], "content"),
        ([user([{"type": "video"}])], "video"),
        ([user([{"type": "text", "text": None}])], "content.text"),
        ([tool()], "must be a response"),
        ([user(), assistant("x"), tool()], "must be a response"),
        ([user(), assistant(None, tool_calls=[call()])], "did not have response messages: a"),
        ([user(), assistant(None, tool_calls=[call()]), user()], "response messages: a"),
        ([user(), assistant(None, tool_calls=[call(), call("b")]), tool()], "messages: b"),
        ([user(), assistant(None, tool_calls=[call()]), tool("b")], "must be a response"),
        ([user(), assistant(None, tool_calls=[call()]), user(), tool()], "response messages: a"),
        ([user(), assistant("x", tool_calls=[])], "may not be empty"),
        ([{**user(), "tool_calls": [call()]}], "belongs to an assistant"),
        ([user(), assistant(None, tool_calls=[call(arguments={})]), tool()], "expected a string"),
        ([user(), assistant(None, tool_calls=[call(name="a b")]), tool()], "name"),
        ([user(), assistant(None, tool_calls=[{"id": "a"}]), tool()], "Missing"),
    ],
)
def test_messages_that_openai_refuses(gpt: openai.OpenAI, messages: Any, why: str) -> None:
    """Messages that OpenAI does not take are refused, with its reason."""
    with pytest.raises(openai.BadRequestError, match=why):
        gpt.chat.completions.create(model="m", messages=messages)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"model": ""}, "model"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"model": "gpt-5-mini", "max_tokens": 9}, "max_tokens"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "name"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "t", "parameters": {"type": "x"}}}
                ]
            },
            "Invalid schema",
        ),
    ],
)
def test_requests_that_openai_refuses(gpt: openai.OpenAI, more: Any, why: str) -> None:
    """Requests that OpenAI does not take are refused, with its reason."""
    request: Any = {"model": "m", "messages": [user()], **more}
    with pytest.raises(openai.BadRequestError, match=why):
        gpt.chat.completions.create(**request)


def test_requests_that_openai_takes(gpt: openai.OpenAI, provider: Provider) -> None:
    """Roles in a row, empty texts, several results in any order: all are taken."""
    taken: list[Any] = [
        [user(""), user([TEXT]), assistant("a"), assistant(""), {"role": "system", "content": "s"}],
        [user(), assistant("x", tool_calls=[call(), call("b")]), tool("b"), tool(), user()],
    ]
    for messages in taken:
        gpt.chat.completions.create(model="m", messages=messages)
    assert len(provider.requests) == len(taken)
