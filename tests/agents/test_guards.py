"""Guards of a pydantic-ai agent's output: the thread has what the caller got."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pydantic_ai
import pytest
from pydantic import BaseModel
from pydantic_ai import ModelRetry, NativeOutput, RunContext, TextOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import BinaryImage, FilePart, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from ways import UNPOOLED, WAYS, said

import turnlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from localserver import Provider
    from programs import Stored
    from pydantic_ai.messages import ModelMessage
    from ways import Perform


ASKED = ("user", "Which number?")
SECRET = "Call 555-0100."
SAFE = "Write to support."
MODES: list[Any] = [True, "eager"]
PROFILE: Any = {"supports_image_output": True, "supports_json_schema_output": True}


@pytest.fixture(params=["run", "astream"])
def perform(request: pytest.FixtureRequest) -> Perform:
    """Give two ways to run an agent: one has its replies whole, one streamed."""
    return WAYS[request.param]


class Contact(BaseModel):
    """Where to turn to."""

    way: str


def says(*replies: ModelResponse | str) -> FunctionModel:
    """Make a model that gives some replies, whole or streamed."""
    left = [
        each if isinstance(each, ModelResponse) else ModelResponse([TextPart(each)])
        for each in replies
    ]

    def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del messages, info
        return left.pop(0)

    async def streamed(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        for number, part in enumerate(whole(messages, info).parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                yield {number: DeltaToolCall(part.tool_name, part.args_as_json_str())}

    return FunctionModel(
        whole,
        stream_function=streamed,
        model_name="stand-in",
        profile=PROFILE,
    )


def guarded(model: Any, guard: Callable[..., Any], **options: Any) -> pydantic_ai.Agent[None, Any]:
    """Make an agent whose output goes through a guard."""
    agent: pydantic_ai.Agent[None, Any] = pydantic_ai.Agent(model, **options)
    agent.output_validator(guard)
    return agent


def redacts(output: Any) -> Any:
    """Take the number out."""
    if isinstance(output, Contact):
        return Contact(way=output.way.replace("555-0100", "***"))
    return output.replace("555-0100", "***")


def refuses(output: Any) -> Any:
    """Refuse a number."""
    if "555" in str(output):
        raise PermissionError("blocked")
    return output


def asks_again(output: Any) -> Any:
    """Have the model try again without a number."""
    if "555" in str(output):
        raise ModelRetry("give no number")
    return output


# ---- guards of a text ----


@pytest.mark.parametrize("mode", MODES)
def test_what_a_guard_changes_is_written_as_the_caller_got_it(
    provider: Provider, one_model: str, perform: Perform, stored: Stored, mode: Any
) -> None:
    """The thread has the changed output, not the model's own text (A14)."""
    provider.script(SECRET)
    agent = guarded(one_model, redacts, model_settings=UNPOOLED)
    result = perform(agent, ASKED[1], memory=stored.mem, writeback=mode)
    assert result.output == result.response == "Call ***."
    assert said(stored.reopened()) == [ASKED, ("assistant", "Call ***.")]
    assert said(result.conversation) == said(result.written) == said(stored.mem.messages())


@pytest.mark.parametrize("mode", MODES)
def test_what_a_guard_refuses_is_not_written(perform: Perform, stored: Stored, mode: Any) -> None:
    """A run that a guard ends has no reply in the thread (A14)."""
    with pytest.raises(PermissionError) as raised:
        perform(guarded(says(SECRET), refuses), ASKED[1], memory=stored.mem, writeback=mode)
    assert said(stored.reopened()) == ([ASKED] if mode == "eager" else [])
    assert any("written back" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_guard_has_the_model_say_again_is_written_once(
    perform: Perform, stored: Stored, mode: Any
) -> None:
    """A refused attempt is left out, and what it used is counted with the next (A14)."""
    agent = guarded(says(SECRET, SAFE), asks_again)
    result = perform(agent, ASKED[1], memory=stored.mem, writeback=mode)
    assert said(stored.reopened()) == [ASKED, ("assistant", SAFE)]
    assert (stored.mem.messages()[-1].meta or {})["output_tokens"] == result.usage.output_tokens


def test_a_guard_that_no_attempt_passes(perform: Perform, stored: Stored) -> None:
    """Where pydantic-ai gives up, no attempt is in the thread (A14)."""
    agent = guarded(says(SECRET, SECRET), asks_again, retries=1)
    with pytest.raises(UnexpectedModelBehavior):
        perform(agent, ASKED[1], memory=stored.mem)
    assert said(stored.reopened()) == []


def test_what_was_said_beside_tools_stays_where_a_guard_refuses_the_output(
    perform: Perform, stored: Stored
) -> None:
    """What came with tool calls is written, only the refused output is not (A14, R23)."""

    def look() -> str:
        """Look."""
        return "ok"

    looking = ModelResponse([TextPart("Let me look."), ToolCallPart("look", {})])
    agent = guarded(says(looking, SECRET), refuses, tools=[look])
    with pytest.raises(PermissionError):
        perform(agent, ASKED[1], memory=stored.mem)
    assert said(stored.reopened()) == [ASKED, ("assistant", "Let me look.")]


def test_a_run_is_stopped_while_a_guard_looks_at_its_output(stored: Stored) -> None:
    """A reply that no guard has refused is kept, marked interrupted (A14, R23)."""
    looking = asyncio.Event()

    async def looks_long(output: str) -> str:
        looking.set()
        await asyncio.Event().wait()
        return output

    async def stopped() -> None:
        agent = guarded(says(SAFE), looks_long)
        task = asyncio.create_task(turnlog.arun(agent, ASKED[1], memory=stored.mem))
        await looking.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(stopped())
    assert said(stored.reopened()) == [ASKED, ("assistant", SAFE)]
    assert (stored.mem.messages()[-1].meta or {})["interrupted"] is True


def test_a_guard_changes_a_reply_that_the_user_wrote_behind(
    perform: Perform, stored: Stored
) -> None:
    """A reply is as the guard left it, also where the run goes on behind it (A11, A14)."""

    def look(context: RunContext[None]) -> str:
        """Look, while the user writes."""
        context.enqueue("And by mail?", priority="when_idle")
        return "ok"

    model = says(ModelResponse([ToolCallPart("look", {})]), SECRET, SAFE)
    perform(guarded(model, redacts, tools=[look]), ASKED[1], memory=stored.mem)
    turns = [("assistant", "Call ***."), ("user", "And by mail?"), ("assistant", SAFE)]
    assert said(stored.reopened()) == [ASKED, *turns]


# ---- guards of a typed output ----

AS_JSON = '{"way":"Call 555-0100."}'
BY_TOOL = [TextPart("Here."), ToolCallPart("final_result", {"way": SECRET})]
SAFE_BY_TOOL = [TextPart("So:"), ToolCallPart("final_result", {"way": SAFE})]


def split(text: str) -> Contact:
    """Make a contact of a text."""
    return Contact(way=text)


@pytest.mark.parametrize(
    ("kind", "reply", "before"),
    [
        pytest.param(Contact, ModelResponse(BY_TOOL), ["Here."], id="tool"),
        pytest.param(NativeOutput(Contact), AS_JSON, [], id="native"),
        pytest.param(TextOutput(split), SECRET, [], id="text function"),
    ],
)
def test_a_typed_output_is_written_as_a_guard_left_it(
    perform: Perform, stored: Stored, kind: Any, reply: Any, before: list[str]
) -> None:
    """The JSON text in the thread is that of the output that the caller got (A14)."""
    agent = guarded(says(reply), redacts, output_type=kind)
    result = perform(agent, ASKED[1], memory=stored.mem)
    assert result.output == Contact(way="Call ***.")
    texts = [*before, '{"way":"Call ***."}']
    assert said(stored.reopened()) == [ASKED, *(("assistant", text) for text in texts)]
    assert result.response == texts[-1]


def test_a_typed_output_that_a_guard_refuses_is_left_out_with_its_text(
    perform: Perform, stored: Stored
) -> None:
    """What stood beside a refused output is part of the refused attempt (A14)."""
    model = says(ModelResponse(BY_TOOL), ModelResponse(SAFE_BY_TOOL))
    perform(guarded(model, asks_again, output_type=Contact), ASKED[1], memory=stored.mem)
    turns = [("assistant", "So:"), ("assistant", '{"way":"Write to support."}')]
    assert said(stored.reopened()) == [ASKED, *turns]


def test_a_text_where_another_output_is_wanted_is_left_out(
    perform: Perform, stored: Stored
) -> None:
    """A text that is no output of the agent's type is not what the caller got (A14)."""
    model = says("Just call.", ModelResponse([ToolCallPart("final_result", {"way": SAFE})]))
    perform(pydantic_ai.Agent(model, output_type=Contact), ASKED[1], memory=stored.mem)
    assert said(stored.reopened()) == [ASKED, ("assistant", '{"way":"Write to support."}')]


@pytest.mark.parametrize("mode", MODES)
def test_a_typed_text_that_ends_the_run_early_is_written_as_a_guard_left_it(
    stored: Stored, mode: Any
) -> None:
    """Beside tools that are skipped, the output is written as the caller got it (A14)."""

    def look() -> str:
        """Look."""
        raise AssertionError

    model = says(ModelResponse([TextPart(AS_JSON), ToolCallPart("look", {})]))
    agent = guarded(
        model, redacts, output_type=NativeOutput(Contact), tools=[look], end_strategy="early"
    )
    turnlog.run(agent, ASKED[1], memory=stored.mem, writeback=mode)
    assert said(stored.reopened()) == [ASKED, ("assistant", '{"way":"Call ***."}')]


def test_a_picture_as_output_is_a_note(stored: Stored) -> None:
    """A reply that is a picture alone has a note in its place, not its bytes (A16)."""
    picture = BinaryImage(b"\x89PNG", media_type="image/png")
    agent = pydantic_ai.Agent(says(ModelResponse([FilePart(picture)])), output_type=BinaryImage)
    turnlog.run(agent, ASKED[1], memory=stored.mem)
    assert said(stored.reopened()) == [ASKED, ("assistant", "[attachment: image/png]")]


# ---- guards that are hooks ----


class Hook(AbstractCapability[Any]):
    """A guard as a capability."""

    def __init__(self, hook: str, guard: Callable[[Any], Any]) -> None:
        """Guard at one hook."""
        self.hook, self.guard = hook, guard

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
        """Guard a response."""
        del ctx, request_context
        if self.hook != "response" or response.text is None:
            return response
        return ModelResponse([TextPart(self.guard(response.text))])

    async def after_output_process(self, ctx: Any, *, output_context: Any, output: Any) -> Any:
        """Guard an output."""
        del ctx, output_context
        return self.guard(output) if self.hook == "output" else output

    async def after_run(self, ctx: Any, *, result: Any) -> Any:
        """Guard a result."""
        del ctx
        if self.hook == "result":
            result.output = self.guard(result.output)
        return result


HOOKS = ["response", "output", "result"]


def by_hook(hook: str, guard: Callable[[Any], Any], *replies: str) -> pydantic_ai.Agent[None, str]:
    """Make an agent with a guard at a hook."""
    return pydantic_ai.Agent(says(*replies), capabilities=[Hook(hook, guard)])


@pytest.mark.parametrize("hook", HOOKS)
def test_what_a_hook_changes_is_written_as_the_caller_got_it(
    perform: Perform, stored: Stored, hook: str
) -> None:
    """Whichever hook changes a reply, the thread and the caller have the same (A14)."""
    result = perform(by_hook(hook, redacts, SECRET), ASKED[1], memory=stored.mem)
    assert result.output == result.response == "Call ***."
    assert said(stored.reopened()) == [ASKED, ("assistant", "Call ***.")]


@pytest.mark.parametrize("hook", HOOKS)
def test_what_a_hook_refuses_is_not_written(perform: Perform, stored: Stored, hook: str) -> None:
    """Whichever hook refuses a reply, the thread does not have it (A14)."""
    with pytest.raises(PermissionError):
        perform(by_hook(hook, refuses, SECRET), ASKED[1], memory=stored.mem)
    assert said(stored.reopened()) == []


@pytest.mark.parametrize("hook", HOOKS[:2])
def test_what_a_hook_has_the_model_say_again_is_written_once(
    perform: Perform, stored: Stored, hook: str
) -> None:
    """Whichever hook has the model try again, the refused attempt is left out (A14)."""
    perform(by_hook(hook, asks_again, SECRET, SAFE), ASKED[1], memory=stored.mem)
    assert said(stored.reopened()) == [ASKED, ("assistant", SAFE)]
