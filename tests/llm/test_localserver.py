"""The scripted provider itself, through the real SDKs: it speaks and refuses as real ones do."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, TypeAlias

import anthropic
import openai
import pytest
from localserver import (
    MODELS,
    Broken,
    Failure,
    Gate,
    Provider,
    Refusal,
    Reply,
    StreamError,
    Thinking,
    ToolCall,
    serving,
    turns,
)
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.tools import ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic_ai.messages import ModelResponseStreamEvent
    from pydantic_ai.settings import ModelSettings

Ask: TypeAlias = """Callable[[Model, list[ModelMessage]], Awaitable[ModelResponse]]"""

LOOKUP = ModelRequestParameters(
    function_tools=[
        ToolDefinition(name="lookup", parameters_json_schema={"type": "object", "properties": {}})
    ]
)
PLAIN: ModelSettings = {"max_tokens": 4096}


async def whole(model: Model, messages: list[ModelMessage]) -> ModelResponse:
    """Ask for a reply in one piece."""
    return await model_request(
        model, messages, model_settings=PLAIN, model_request_parameters=LOOKUP
    )


async def streamed(model: Model, messages: list[ModelMessage]) -> ModelResponse:
    """Ask for a reply as a stream."""
    async with model_request_stream(
        model, messages, model_settings=PLAIN, model_request_parameters=LOOKUP
    ) as stream:
        async for _ in stream:
            pass
    return stream.get()


both_models = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
both_ways = pytest.mark.parametrize("ask", [whole, streamed])


def question(text: str = "q") -> list[ModelMessage]:
    """Give what a user asks."""
    return [ModelRequest([UserPromptPart(text)])]


def reply_of(ask: Ask, name: str, messages: list[ModelMessage] | None = None) -> ModelResponse:
    """Ask a model, by its name; give its reply."""

    async def main() -> ModelResponse:
        async with infer_model(name) as model:
            return await ask(model, messages or question())

    return asyncio.run(main())


def delta(event: ModelResponseStreamEvent) -> str:
    """Give the text that an event of a stream brings."""
    match event:
        case PartStartEvent(part=TextPart(content)):
            return content
        case PartDeltaEvent(delta=TextPartDelta(content)):
            return content
        case _:
            return ""


# ---- what it says ----


@both_models
@both_ways
def test_text_arrives_with_its_usage(provider: Provider, ask: Ask, model: str) -> None:
    """The pieces of a reply are one text, in JSON and streamed, with the usage that was set."""
    provider.script(Reply("Let me ", "look.", usage=(12, 5)))
    reply = reply_of(ask, model)
    assert reply.parts == [TextPart("Let me look.")]
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (12, 5)
    assert reply.finish_reason == "stop"
    assert bool(provider.requests[0].get("stream")) is (ask is streamed)
    assert not provider.disconnected.is_set()


@both_models
@both_ways
def test_a_tool_is_called_and_answered(provider: Provider, ask: Ask, model: str) -> None:
    """A tool call arrives whole, and what came before it and its result go back alike."""
    provider.script(Reply("Let me look.", ToolCall("lookup", {"id": 7})), Reply("Paid."))
    call = reply_of(ask, model)
    text, part = call.parts
    assert text == TextPart("Let me look.")
    assert isinstance(part, ToolCallPart)
    assert (part.tool_name, part.args_as_dict()) == ("lookup", {"id": 7})
    assert call.finish_reason == "tool_call"
    result = ModelRequest([ToolReturnPart("lookup", "paid", part.tool_call_id)])
    assert reply_of(ask, model, [*question(), call, result]).text == "Paid."
    assert turns(provider.requests[1]) == [
        ("user", "q"),
        ("assistant", "Let me look."),
        ("call", 'lookup {"id": 7}'),
        ("tool", "paid"),
    ]


@both_models
@both_ways
def test_several_tools_are_called_at_once(provider: Provider, ask: Ask, model: str) -> None:
    """Each call has its own arguments, and an id that no other has, unless one is given."""
    provider.reply = Reply(ToolCall("lookup", {"id": 1}), ToolCall("lookup", '{"id":2}', id="mine"))
    first, second = reply_of(ask, model).tool_calls
    assert [first.args_as_dict(), second.args_as_dict()] == [{"id": 1}, {"id": 2}]
    assert second.tool_call_id == "mine"
    again, _ = reply_of(ask, model).tool_calls
    assert again.tool_call_id != first.tool_call_id


@both_models
@both_ways
def test_malformed_arguments_arrive_as_they_are(provider: Provider, ask: Ask, model: str) -> None:
    """Arguments that are not JSON reach the client, and go back in a form that is taken."""
    provider.script(Reply(ToolCall("lookup", '{"id": 7')))
    call = reply_of(ask, model)
    (part,) = call.tool_calls
    assert part.args == '{"id": 7'
    result = ModelRequest([ToolReturnPart("lookup", "not JSON", part.tool_call_id)])
    assert reply_of(ask, model, [*question(), call, result]).text == "Hello."
    assert turns(provider.requests[1])[1] == (
        "call",
        'lookup {"INVALID_JSON": "{\\"id\\": 7"}',
    )


@both_models
@both_ways
def test_thinking_arrives_beside_the_text(provider: Provider, ask: Ask, model: str) -> None:
    """Thinking is a part of its own; sent back it is taken, and is no turn."""
    provider.script(Reply(Thinking("Hm."), "Yes."))
    reply = reply_of(ask, model)
    thought, text = reply.parts
    assert isinstance(thought, ThinkingPart)
    assert (thought.content, text) == ("Hm.", TextPart("Yes."))
    assert reply_of(ask, model, [*question(), reply, *question("q2")]).text == "Hello."
    assert turns(provider.requests[1]) == [("user", "q"), ("assistant", "Yes."), ("user", "q2")]


@both_models
@both_ways
def test_a_refusal_says_why(provider: Provider, ask: Ask, model: str) -> None:
    """A model that will not answer sends no text; the reason is a detail of the reply."""
    provider.script(Reply(Refusal("I will not.")))
    reply = reply_of(ask, model)
    assert (reply.parts, reply.finish_reason) == ([], "content_filter")
    assert reply.provider_details is not None
    assert reply.provider_details["refusal"] == "I will not."


@both_models
@both_ways
@pytest.mark.parametrize(
    ("reply", "end"),
    [
        (Reply(), (None, "stop")),
        (Reply("", "Yes."), ("Yes.", "stop")),
        (Reply("Cut", stop="length"), ("Cut", "length")),
        (Reply("Cut", stop="refused"), ("Cut", "content_filter")),
    ],
    ids=["empty", "begun", "too long", "filtered"],
)
def test_a_reply_ends_for_its_reason(
    provider: Provider, ask: Ask, model: str, reply: Reply, end: tuple[str | None, str]
) -> None:
    """A reply may be empty, and it tells why it ended."""
    provider.script(reply)
    answer = reply_of(ask, model)
    assert (answer.text, answer.finish_reason) == end


def test_anthropics_client_takes_every_event(
    provider: Provider, claude: anthropic.Anthropic
) -> None:
    """Anthropic's own client, being strict, gathers a stream to the message that JSON gives."""
    steps = Thinking("Hm."), "Let me ", "look.", ToolCall("lookup", {"id": 7}, id="c"), "Wait."
    provider.reply = Reply(*steps, usage=(12, 5))
    messages: Any = [{"role": "user", "content": "q"}]
    with claude.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
        assert list(stream.text_stream) == ["Let me ", "look.", "Wait."]
        gathered: Any = stream.get_final_message().to_dict()
    reply = claude.messages.create(model="m", max_tokens=9, messages=messages)
    whole: Any = reply.to_dict()
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "text"]
    assert [unparsed(block) for block in gathered["content"]] == whole["content"]
    for name in "usage", "stop_reason", "role", "model":
        assert gathered[name] == whole[name]


def test_anthropics_events_come_in_order(provider: Provider, claude: anthropic.Anthropic) -> None:
    """Each block is opened, filled and closed before the next one, and the usage comes last."""
    provider.script(Reply("Let me ", "look.", ToolCall("lookup"), "Wait.", usage=(12, 5)))
    messages: Any = [{"role": "user", "content": "q"}]
    create = claude.messages.create
    with create(model="m", max_tokens=9, messages=messages, stream=True) as stream:
        events: list[Any] = list(stream)
    opened, filled, closed = (f"content_block_{what}" for what in ("start", "delta", "stop"))
    assert [(event.type, getattr(event, "index", None)) for event in events] == [
        ("message_start", None),
        *[(opened, 0), (filled, 0), (filled, 0), (closed, 0)],
        *[(opened, 1), (filled, 1), (filled, 1), (closed, 1)],
        *[(opened, 2), (filled, 2), (closed, 2)],
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert (events[0].message.usage.output_tokens, events[-2].usage.output_tokens) == (1, 5)


def unparsed(block: Any) -> dict[str, Any]:
    """Give a block without what the client adds to it."""
    return {name: value for name, value in block.items() if name != "parsed_output"}


def test_openais_client_takes_every_chunk(provider: Provider, gpt: openai.OpenAI) -> None:
    """OpenAI's own client, being strict, gathers a stream to the message that JSON gives."""
    steps = "Let me ", "look.", ToolCall("lookup", {"id": 7}, id="c")
    provider.reply = Reply(*steps, usage=(12, 5))
    messages: Any = [{"role": "user", "content": "q"}]
    with gpt.chat.completions.stream(
        model="m", messages=messages, stream_options={"include_usage": True}
    ) as stream:
        gathered = stream.get_final_completion()
    whole = gpt.chat.completions.create(model="m", messages=messages)
    for completion in gathered, whole:
        choice = completion.choices[0]
        (call,) = choice.message.tool_calls or []
        assert call.type == "function"
        assert (choice.message.content, choice.finish_reason) == ("Let me look.", "tool_calls")
        assert (call.id, json.loads(call.function.arguments)) == ("c", {"id": 7})
        assert completion.usage is not None
        assert (completion.usage.prompt_tokens, completion.usage.total_tokens) == (12, 17)


def test_openai_tells_the_usage_of_a_stream_only_when_asked(
    provider: Provider, gpt: openai.OpenAI
) -> None:
    """Without `include_usage` no chunk of OpenAI's has a usage."""
    provider.script(Reply("Yes."))
    message: Any = {"role": "user", "content": "q"}
    with gpt.chat.completions.create(model="m", messages=[message], stream=True) as chunks:
        assert [chunk.usage for chunk in chunks if chunk.usage] == []


# ---- its script ----


@both_models
def test_the_script_is_followed_and_then_the_default(provider: Provider, model: str) -> None:
    """Each request takes the next reply, a function is asked, and the default comes after all."""
    provider.script("One.", lambda body: turns(body)[-1][1] + "!")
    texts = [reply_of(whole, model, question(text)).text for text in ("a", "b", "c")]
    assert texts == ["One.", "b!", "Hello."]
    assert [turns(body) for body in provider.requests] == [[("user", text)] for text in "abc"]


def test_requests_at_once_are_each_answered_once(
    provider: Provider, claude: anthropic.Anthropic
) -> None:
    """Requests from many threads take one reply each, and all of them are kept."""
    provider.script(*map(str, range(40)))

    def ask(i: int) -> str:
        message: Any = {"role": "user", "content": f"q{i}"}
        reply = claude.messages.create(model="m", max_tokens=9, messages=[message])
        assert reply.content[0].type == "text"
        return reply.content[0].text

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(ask, range(40)))
    assert sorted(replies, key=int) == [str(i) for i in range(40)]
    sent = [text for body in provider.requests for _, text in turns(body)]
    assert sorted(sent) == sorted(f"q{i}" for i in range(40))


def test_a_call_has_its_path_and_headers(provider: Provider) -> None:
    """Of each request the path, without the query, and the headers are kept."""
    for model in MODELS.values():
        reply_of(whole, model)
    first, second = provider.calls
    assert (first.path, second.path) == ("/v1/messages", "/v1/chat/completions")
    assert "anthropic-version" in first.headers
    assert second.headers["authorization"] == "Bearer none"


@both_models
def test_turns_are_told_alike_for_every_provider(provider: Provider, model: str) -> None:
    """System texts come first or in their place, and each text of a message is a turn."""
    history: list[ModelMessage] = [
        ModelRequest([SystemPromptPart("be brief"), UserPromptPart("1"), UserPromptPart("2")]),
        ModelResponse([TextPart("3")]),
        ModelRequest([UserPromptPart(["4", "5"])]),
    ]
    reply_of(whole, model, history)
    assert turns(provider.requests[0]) == [
        ("system", "be brief"),
        ("user", "1"),
        ("user", "2"),
        ("assistant", "3"),
        ("user", "4"),
        ("user", "5"),
    ]


# ---- gates, and clients that go ----


def post(provider: Provider, *, stream: bool) -> HTTPConnection:
    """Send a request by hand; the answer is still to be read."""
    client = HTTPConnection("127.0.0.1", provider.server_port)
    messages = [{"role": "user", "content": "q"}]
    body = {"model": "m", "max_tokens": 9, "messages": messages, "stream": stream}
    client.request("POST", "/v1/messages", json.dumps(body))
    return client


@pytest.mark.parametrize("stream", [True, False])
def test_a_first_gate_holds_the_status_line(provider: Provider, *, stream: bool) -> None:
    """At a gate ahead of the text not a byte has been sent; then the whole answer comes."""
    gate = Gate()
    provider.script(Reply(gate, "Hello."))
    client = post(provider, stream=stream)
    gate.reached.expect()
    with pytest.raises(BlockingIOError):
        client.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    gate.open()
    with client.getresponse() as response:
        assert b"Hello." in response.read()
    client.close()


def test_a_later_gate_holds_the_rest(provider: Provider) -> None:
    """What comes before a gate can be read while it is shut, and nothing of what comes after."""
    begun, middle = Gate(), Gate()
    provider.script(Reply("", begun, "Hel", middle, "lo."))
    client = post(provider, stream=True)
    begun.reached.expect()
    with client.getresponse() as response:
        start = response.read1()
        assert b"message_start" in start
        assert b"content_block" not in start
        begun.open()
        middle.reached.expect()
        data = response.read1()
        assert b"Hel" in data
        assert b"lo." not in data
        middle.open()
        assert b"lo." in response.read()
    client.close()


@both_models
def test_a_stream_stops_at_a_gate(provider: Provider, model: str) -> None:
    """A client has the text before a gate while the gate is shut, and the rest when it opens."""

    async def main() -> list[str]:
        gate = Gate()
        provider.script(Reply("Hel", gate, "lo."))
        seen: list[str] = []
        async with infer_model(model) as m, model_request_stream(m, question()) as stream:
            async for event in stream:
                seen.append(delta(event))
                if seen == ["Hel"]:
                    await gate.reached.aexpect()
                    gate.open()
        return [text for text in seen if text]

    assert asyncio.run(main()) == ["Hel", "lo."]


@both_models
@both_ways
def test_a_cancelled_wait_is_noticed(provider: Provider, ask: Ask, model: str) -> None:
    """A client that is cancelled while it waits for the first byte is seen to go."""

    async def main() -> None:
        gate = Gate()
        provider.script(Reply(gate, "Hello."))
        async with infer_model(model) as m:
            task = asyncio.ensure_future(ask(m, question()))
            await gate.reached.aexpect()
            assert not provider.disconnected.is_set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await provider.disconnected.aexpect()
        assert provider.calls[0].disconnected.is_set()

    asyncio.run(main())


@both_models
def test_a_cancelled_stream_is_noticed(provider: Provider, model: str) -> None:
    """A client that is cancelled in a stream is seen to go, and has the text so far."""

    async def main() -> None:
        gate, heard = Gate(), asyncio.Event()
        provider.script(Reply("Hel", gate, "lo."))

        async def listen(m: Model) -> None:
            async with model_request_stream(m, question()) as stream:
                try:
                    async for _ in stream:
                        heard.set()
                finally:
                    assert stream.get().text == "Hel"
                    assert stream.get().state == "incomplete"

        async with infer_model(model) as m:
            task = asyncio.create_task(listen(m))
            await heard.wait()
            await gate.reached.aexpect()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await provider.disconnected.aexpect()

    asyncio.run(main())


def test_a_client_that_had_its_answer_may_go(provider: Provider) -> None:
    """Closing a connection between two requests is no disconnect."""
    for model in MODELS.values():
        for ask in (whole, streamed):
            reply_of(ask, model)
    assert not provider.disconnected.is_set()


# ---- what breaks ----


def text_of_one_request(name: str, settings: ModelSettings) -> str | None:
    """Ask a model, by its name, with settings; give the text of its reply."""

    async def main() -> str | None:
        async with infer_model(name) as model:
            return (await model_request(model, question(), model_settings=settings)).text

    return asyncio.run(main())


@both_models
def test_a_broken_connection(provider: Provider, model: str) -> None:
    """A connection that closes before the answer is an error of the connection."""
    provider.script(Reply(Broken()))
    with pytest.raises(exceptions.ModelConnectionError):
        text_of_one_request(model, {**PLAIN, "max_retries": 0})


@both_models
def test_a_broken_connection_is_tried_again(provider: Provider, model: str) -> None:
    """The SDKs try again when the connection closes before the answer, which no header forbids."""
    provider.script(Reply("lost", Broken()), Reply("Yes."))
    assert text_of_one_request(model, PLAIN) == "Yes."
    assert len(provider.requests) == 2


def text_until_error(model: str, error: type[Exception]) -> str | None:
    """Listen to a stream until it fails; give the text so far, which is known to be unfinished."""

    async def main() -> str | None:
        async with infer_model(model) as m, model_request_stream(m, question()) as stream:
            with pytest.raises(error):
                async for _ in stream:
                    pass
            assert stream.get().state == "incomplete"
            return stream.get().text

    return asyncio.run(main())


@both_models
def test_a_broken_stream(provider: Provider, model: str) -> None:
    """A stream that is cut has given its text so far, and is not tried again."""
    provider.script(Reply("Hel", Broken()))
    assert text_until_error(model, exceptions.ModelConnectionError) == "Hel"
    assert len(provider.requests) == 1


@both_models
def test_an_error_in_a_stream(provider: Provider, model: str) -> None:
    """An error among the events ends the stream, and has a status of its own."""
    provider.script(Reply("Hel", StreamError("Overloaded")))
    assert text_until_error(model, exceptions.ModelHTTPError) == "Hel"


@both_models
def test_an_error_in_a_stream_is_an_http_error_in_json(provider: Provider, model: str) -> None:
    """Where nothing has been sent yet, the same error comes with a status."""
    provider.script(Reply("Hel", StreamError("Overloaded")))
    with pytest.raises(exceptions.ModelOverloadedError, match="Overloaded"):
        reply_of(whole, model)


@both_models
@both_ways
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, exceptions.ModelRequestRejectedError),
        (401, exceptions.ModelAuthenticationError),
        (404, exceptions.ModelNotFoundError),
        (429, exceptions.ModelRateLimitError),
        (500, exceptions.ModelServerError),
        (529, exceptions.ModelOverloadedError),
    ],
)
def test_a_failure_is_not_tried_again(
    provider: Provider, ask: Ask, model: str, status: int, error: type[Exception]
) -> None:
    """A failure reaches the caller at once, as the provider's own kind of error."""
    provider.script(Failure(status, "So it is.", headers={"x-more": "1"}))
    with pytest.raises(error, match="So it is") as caught:
        reply_of(ask, model)
    assert isinstance(caught.value, exceptions.ModelHTTPError)
    assert caught.value.status_code == status
    assert (caught.value.headers or {})["x-more"] == "1"
    assert len(provider.requests) == 1


@both_models
def test_a_failure_has_the_kind_that_is_given(provider: Provider, model: str) -> None:
    """The kind of a failure goes where the provider has it."""
    provider.script(Failure(429, "No.", kind="insufficient_quota"))
    with pytest.raises(exceptions.ModelHTTPError) as caught:
        reply_of(whole, model)
    assert caught.value.provider_error_type == "insufficient_quota"


@both_models
@both_ways
def test_a_failure_is_tried_again_where_it_says_so(
    provider: Provider, ask: Ask, model: str
) -> None:
    """After a failure with `retry` the SDK asks again, with no wait, and gets the next reply."""
    provider.script(Failure(429, "Slow.", retry=True), Failure(500, "Oh.", retry=True), "Yes.")
    assert reply_of(ask, model).text == "Yes."
    retries = [call.headers["x-stainless-retry-count"] for call in provider.calls]
    assert retries == ["0", "1", "2"]


# ---- whom it turns away ----


def test_a_refused_request_takes_no_reply(provider: Provider, claude: anthropic.Anthropic) -> None:
    """What is refused is kept among the requests, and the script waits for the next one."""
    provider.script("One.")
    broken: Any = [{"role": "user", "content": ""}]
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model="m", max_tokens=9, messages=broken)
    assert reply_of(whole, MODELS["anthropic"]).text == "One."
    assert [turns(body) for body in provider.requests] == [[], [("user", "q")]]


@both_models
def test_another_key_is_refused(provider: Provider, model: str) -> None:
    """With a key set, the same key is taken and another one is not."""
    provider.key = "none"
    assert reply_of(whole, model).text == "Hello."
    provider.key = "secret"
    with pytest.raises(exceptions.ModelAuthenticationError):
        reply_of(whole, model)


def test_another_path_is_not_found(claude: anthropic.Anthropic, gpt: openai.OpenAI) -> None:
    """Either provider says, in its own shape, that there is no such endpoint."""
    for client, error in (claude, anthropic.NotFoundError), (gpt, openai.NotFoundError):
        with pytest.raises(error, match="/v1/models"):
            client.models.list()
        with pytest.raises(error, match="/v1/else"):
            client.post("/v1/else" if client is claude else "/else", cast_to=object, body={})
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        claude.models.list()


def test_what_is_not_json_is_refused(provider: Provider) -> None:
    """A body that is no JSON object gets 400."""
    for data in ("{", "[]"):
        client = HTTPConnection("127.0.0.1", provider.server_port)
        client.request("POST", "/v1/messages", data)
        with client.getresponse() as response:
            assert response.status == 400
        client.close()


# ---- its end ----


def test_nothing_stays_behind() -> None:
    """When the block ends, idle clients and clients at a gate are cut, and all threads are gone."""
    before = set(threading.enumerate())
    gate = Gate()
    with serving() as provider:
        provider.script("Hello.", Reply("Hel", gate, "lo."))
        idle = post(provider, stream=False)
        idle.getresponse().read()
        waiting = post(provider, stream=True)
        gate.reached.expect()
    assert set(threading.enumerate()) <= before
    assert not provider.disconnected.is_set()
    assert idle.sock.recv(1) == b""
    data = waiting.sock.recv(100_000)
    assert b"Hel" in data
    assert b"lo." not in data
    idle.close()
    waiting.close()


def test_an_error_of_its_own_is_raised() -> None:
    """An error in a script's function is raised where the block ends, so that it is seen."""

    def fail(body: object) -> str:
        raise LookupError(body)

    with pytest.raises(ExceptionGroup) as caught, serving() as provider:  # noqa: PT012
        provider.script(fail)
        client = post(provider, stream=False)
        with pytest.raises(ConnectionError):
            client.getresponse()
        client.close()
    assert caught.group_contains(LookupError)


def test_what_does_not_happen_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a gate that is not reached ends with an error."""
    monkeypatch.setattr("replies._LIMIT", 0.0)
    with pytest.raises(TimeoutError):
        Gate().reached.expect()
    with pytest.raises(TimeoutError):
        asyncio.run(Gate().reached.aexpect())
