"""Tools: what a model is shown of a function, what it gets from it, and what a listener is told."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import json
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from localserver import Provider, Reply, ToolCall
from pydantic import BaseModel, Field
from sent import results, shown

import turnlog
from turnlog import Agent, Capability, Memory, Result, ToolsFailed, TurnlogError, sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnlog import ToolEvent


def agent(model: str, *tools: Any) -> Agent:
    """Make an agent of ours with tools."""
    return Agent(name="Helper", model=model, tools=tools)


def call(provider: Provider, model: str, tool: Any, arguments: Any, name: str = "") -> str:
    """Have a model call its one tool; give what it got."""
    [definition] = shown_of(provider, model, tool)
    provider.script(Reply(ToolCall(name or definition.name, arguments)))
    agent(model, tool).run("Call it.")
    return results(provider.requests[-1])[-1]


def shown_of(provider: Provider, model: str, *tools: Any) -> list[Any]:
    """Give what a model is shown of some tools."""
    agent(model, *tools).run("What do you have?")
    return shown(provider.requests[-1])


# ---- what a model is shown ----


class Item(BaseModel):
    """An article."""

    sku: str = Field(description="its number")
    quantity: int = 1


@dataclass
class Place:
    """Where something is."""

    shelf: str
    level: int = 0


def order(
    item: Item,
    kind: Literal["gift", "own"],
    note: Annotated[str, Field(description="for the driver")] = "",
    *,
    until: dt.date | None = None,
    places: list[Place] | None = None,
) -> str:
    """Order an article.

    Args:
        item: what to order.
        kind: whom it is for.
        note: not shown, as the type has its own.
        until: when it must be there.
        places: where to put it.
    """
    found = ", ".join(f"{place.shelf}{place.level}" for place in places or ())
    return f"{item.quantity} x {item.sku} ({kind}) {note!r} by {until} to {found}"


async def order_later(item: Item, kind: Literal["gift", "own"]) -> str:
    """Order an article later."""
    await asyncio.sleep(0)
    return f"{item.sku} ({kind})"


def test_a_model_is_shown_a_functions_name_docstring_and_types(
    provider: Provider, model: str
) -> None:
    """The name, the docstring's first part, and each parameter with its words are on the wire."""
    [tool] = shown_of(provider, model, order)
    assert (tool.name, tool.description) == ("order", "Order an article.")
    assert tool.schema["type"] == "object"
    assert tool.schema["required"] == ["item", "kind"]
    properties = tool.schema["properties"]
    assert [*properties] == ["item", "kind", "note", "until", "places"]
    assert properties["kind"]["enum"] == ["gift", "own"]
    assert properties["kind"]["description"] == "whom it is for."
    assert properties["note"]["description"] == "for the driver"
    assert properties["note"]["default"] == ""
    assert properties["item"]["description"] == "what to order."
    parts = json.dumps(tool.schema["$defs"])
    assert "its number" in parts
    assert "An article." in parts
    assert {*tool.schema["$defs"]} == {"Item", "Place"}


def test_arguments_come_as_the_types_say(provider: Provider, model: str) -> None:
    """Models, dataclasses, dates, defaults and keyword-only parameters come as the function's."""
    given_all = {
        "item": {"sku": "A1", "quantity": 2},
        "kind": "gift",
        "note": "ring",
        "until": "2026-12-24",
        "places": [{"shelf": "B", "level": 3}],
    }
    told = call(provider, model, order, given_all)
    assert told == "2 x A1 (gift) 'ring' by 2026-12-24 to B3"
    told = call(provider, model, order, {"item": {"sku": "A1"}, "kind": "own"})
    assert told == "1 x A1 (own) '' by None to "


def test_an_async_function_is_a_tool_like_any_other(provider: Provider, model: str) -> None:
    """A model is shown an async function as a sync one, and gets what it returns in the end."""
    [tool] = shown_of(provider, model, order_later)
    assert (tool.name, tool.description) == ("order_later", "Order an article later.")
    arguments = {"item": {"sku": "A1"}, "kind": "own"}
    assert call(provider, model, order_later, arguments) == "A1 (own)"


def test_a_function_without_words_or_types_is_a_tool(provider: Provider, model: str) -> None:
    """A bare function is shown by its name and parameters, and takes what comes."""

    def typed(value: str, times: int = 2) -> str:
        return value * times

    bare: Any = typed
    bare.__annotations__ = {}
    [tool] = shown_of(provider, model, bare)
    assert (tool.name, tool.description) == ("typed", "")
    assert [*tool.schema["properties"]] == ["value", "times"]
    assert tool.schema["required"] == ["value"]
    assert call(provider, model, bare, {"value": "ab"}) == "abab"


class Odd:
    """What pydantic knows nothing of."""

    def __str__(self) -> str:
        """Give some text."""
        return "odd"


def gives_odd() -> Odd:
    """Give something odd."""
    return Odd()


def test_what_a_function_is_said_to_return_is_no_matter(provider: Provider, model: str) -> None:
    """A return type that no schema can be made of is neither an error nor a warning."""
    assert call(provider, model, gives_odd, {}) == "odd"


# ---- all kinds of callables ----


class Shop:
    """A shop, whose methods are tools."""

    name = "the shop"

    def find(self, sku: str) -> str:
        """Find an article."""
        return f"{self.name} has {sku}"

    async def find_later(self, sku: str) -> str:
        """Find an article later."""
        await asyncio.sleep(0)
        return f"{self.name} has {sku}"

    @classmethod
    def find_any(cls, sku: str) -> str:
        """Find it in any shop."""
        return f"{cls.name} has {sku}"

    @staticmethod
    def find_nowhere(sku: str) -> str:
        """Find it nowhere."""
        return f"nobody has {sku}"

    @turnlog.tool(name="seek", description="Seek an article.")
    def decorated(self, sku: str) -> str:
        """Have another name for the model."""
        return f"{self.name} has {sku}"


class Finder:
    """An object that can be called."""

    prefix: str = "found "

    def __call__(self, sku: str) -> str:
        """Find an article by a call."""
        return self.prefix + sku


class LateFinder:
    """An object whose call is async."""

    async def __call__(self, sku: str) -> str:
        """Find an article by an async call."""
        await asyncio.sleep(0)
        return f"found {sku}"


def find_in(place: str, sku: str) -> str:
    """Find an article somewhere."""
    return f"{place} has {sku}"


async def find_in_later(place: str, sku: str) -> str:
    """Find an article somewhere later."""
    await asyncio.sleep(0)
    return f"{place} has {sku}"


CALLABLES: Final = [
    (Shop().find, "find", "Find an article.", "the shop has A1"),
    (Shop().find_later, "find_later", "Find an article later.", "the shop has A1"),
    (Shop.find_any, "find_any", "Find it in any shop.", "the shop has A1"),
    (Shop.find_nowhere, "find_nowhere", "Find it nowhere.", "nobody has A1"),
    (Shop().decorated, "seek", "Seek an article.", "the shop has A1"),
    (Finder(), "Finder", "Find an article by a call.", "found A1"),
    (LateFinder(), "LateFinder", "Find an article by an async call.", "found A1"),
    (functools.partial(find_in, "B3"), "find_in", "Find an article somewhere.", "B3 has A1"),
    (
        functools.partial(find_in_later, "B3"),
        "find_in_later",
        "Find an article somewhere later.",
        "B3 has A1",
    ),
    (functools.partial(Shop().find), "find", "Find an article.", "the shop has A1"),
    (functools.lru_cache(Shop.find_nowhere), "find_nowhere", "Find it nowhere.", "nobody has A1"),
]


@pytest.mark.parametrize("kind", CALLABLES, ids=lambda kind: f"{type(kind[0]).__name__}-{kind[1]}")
def test_any_callable_is_a_tool(provider: Provider, model: str, kind: Any) -> None:
    """Methods, objects, partials and wrapped functions are shown with what is left to give."""
    function, name, description, result = kind
    [tool] = shown_of(provider, model, function)
    assert (tool.name, tool.description) == (name, description)
    assert [*tool.schema["properties"]] == tool.schema["required"] == ["sku"]
    assert tool.schema["properties"]["sku"]["type"] == "string"
    assert call(provider, model, function, {"sku": "A1"}) == result


def test_partials_of_one_function_can_be_told_apart(provider: Provider, model: str) -> None:
    """`turnlog.tool` names each of two partials; what is given by keyword becomes a default."""
    tools = [
        turnlog.tool(name=f"find_in_{place}")(functools.partial(find_in, place=place))
        for place in ("attic", "cellar")
    ]
    attic, cellar = shown_of(provider, model, *tools)
    assert (attic.name, cellar.name) == ("find_in_attic", "find_in_cellar")
    assert cellar.schema["properties"]["place"]["default"] == "cellar"
    provider.script(Reply(ToolCall("find_in_cellar", {"sku": "A1"})))
    agent(model, *tools).run("Find it.")
    assert results(provider.requests[-1]) == ["cellar has A1"]


# ---- the decorator ----


@turnlog.tool
def plain(sku: str) -> str:
    """Find an article plainly."""
    return f"found {sku}"


@turnlog.tool(name="look-up", description="Look an article up.")
async def renamed(sku: str) -> str:
    """Have another name and description for the model."""
    await asyncio.sleep(0)
    return f"found {sku}"


SCHEMA: Final = {
    "type": "object",
    "properties": {"sku": {"type": "string", "pattern": "^[A-Z]"}},
    "required": ["sku"],
    "additionalProperties": False,
}


@turnlog.tool(schema=SCHEMA)
def described(**arguments: Any) -> Any:
    """Take what the schema says."""
    return arguments


def test_the_decorator_takes_the_functions_own_words(provider: Provider, model: str) -> None:
    """`@turnlog.tool` alone changes nothing for the model."""
    [tool] = shown_of(provider, model, plain)
    assert (tool.name, tool.description) == ("plain", "Find an article plainly.")
    assert call(provider, model, plain, {"sku": "A1"}) == "found A1"


def test_the_decorator_gives_another_name_and_description(provider: Provider, model: str) -> None:
    """With `name=` and `description=` the model is told these, and calls by that name."""
    [tool] = shown_of(provider, model, renamed)
    assert (tool.name, tool.description) == ("look-up", "Look an article up.")
    assert tool.schema["required"] == ["sku"]
    assert call(provider, model, renamed, {"sku": "A1"}) == "found A1"


def test_the_decorator_gives_a_schema(provider: Provider, model: str) -> None:
    """With `schema=` the model is shown it, and the arguments are passed on unchecked, by name."""
    [tool] = shown_of(provider, model, described)
    assert (tool.name, tool.description) == ("described", "Take what the schema says.")
    assert tool.schema == SCHEMA
    told = call(provider, model, described, {"sku": 7, "more": [1]})
    assert json.loads(told) == {"sku": 7, "more": [1]}


def test_a_decorated_function_is_called_as_before() -> None:
    """What the decorator gives is called as the function, and has its name and docstring."""
    shop = Shop()
    assert plain("A1") == "found A1"
    assert asyncio.run(renamed(sku="A1")) == "found A1"
    assert described(a=1) == {"a": 1}
    assert shop.decorated("A1") == "the shop has A1"
    assert vars(plain)["__name__"] == "plain"
    assert plain.__doc__ == "Find an article plainly."
    assert (repr(plain), repr(renamed)) == ("<Tool 'plain'>", "<Tool 'look-up'>")


# ---- what is no good ----


def local_types() -> Callable[..., str]:
    """Give a function whose types nobody else can look up."""

    class Hidden(BaseModel):
        """Known in this function alone."""

        sku: str

    def find(hidden: Hidden) -> str:
        """Find an article."""
        return hidden.sku

    return find


BAD_TOOLS: Final[list[tuple[Any, str]]] = [
    ("find", "not a function"),
    (7, "not a function"),
    (Finder, "not a function"),
    (lambda sku: sku, "<lambda>"),  # pyright: ignore[reportUnknownLambdaType]
    (turnlog.tool(name="look up")(find_in), "look up"),
    (turnlog.tool(name="x" * 65)(find_in), "xxx"),
    (turnlog.tool(schema={"type": "string"})(find_in), "object"),
    (local_types(), "Hidden"),
]


@pytest.mark.parametrize("bad", BAD_TOOLS, ids=lambda bad: bad[1])
def test_a_tool_that_is_no_good_is_refused_when_the_agent_is_made(bad: tuple[Any, str]) -> None:
    """The error names the tool, what is wrong with it and what to do; no model has been asked."""
    tool, words = bad
    with pytest.raises(TurnlogError) as caught:
        agent("offline", tool)
    assert caught.value.subject.startswith("tool ")
    assert words in str(caught.value)
    assert caught.value.hint


def test_two_tools_of_one_name_are_refused() -> None:
    """A model could not tell them apart: the error says how to name one."""
    with pytest.raises(TurnlogError, match=r"'find'.*two of this name.*@turnlog\.tool"):
        agent("offline", Shop().find, functools.partial(Shop().find))


@pytest.mark.parametrize("slip", ["find", 7])
def test_the_decorator_refuses_what_is_no_function(slip: Any) -> None:
    """`@turnlog.tool("find")`, a slip for `name=`, is an error where it stands."""
    with pytest.raises(TurnlogError, match="not a function") as caught:
        turnlog.tool(slip)
    assert repr(slip) in caught.value.subject


# ---- what a model gets ----


def giving(value: object) -> Callable[[], object]:
    """Make a tool that gives a value."""

    def give() -> object:
        """Give it."""
        return value

    return give


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (7, "7"),
        (1.5, "1.5"),
        (True, "True"),
        (None, "None"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (["ß", "\N{SNOWMAN}"], '["ß","\N{SNOWMAN}"]'),
        ((1, "two"), '[1,"two"]'),
        ({"at": dt.date(2026, 12, 24)}, '{"at":"2026-12-24"}'),
        (frozenset({7}), "[7]"),
        (Item(sku="A1"), '{"sku":"A1","quantity":1}'),
        ([Place("B")], '[{"shelf":"B","level":0}]'),
        (Place("B", 3), '{"shelf":"B","level":3}'),
        (dt.date(2026, 12, 24), "2026-12-24"),
        (Odd(), "odd"),
    ],
    ids=repr,
)
def test_a_result_goes_to_the_model_as_text(
    provider: Provider, model: str, value: object, text: str
) -> None:
    """Text goes as it is, maps and sequences as JSON, anything else as its own text."""
    assert call(provider, model, giving(value), {}) == text


def test_an_empty_result_is_an_answer_too(provider: Provider, model: str) -> None:
    """A tool that gives "" answers its call: the provider takes the next request."""
    provider.script(Reply(ToolCall("give")), "It was empty.")
    assert agent(model, giving("")).run("Call it.").response == "It was empty."


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.lists(JSON, max_size=3) | st.dictionaries(st.text(max_size=3), JSON, max_size=3))
def test_any_map_or_sequence_comes_back_from_its_text(
    provider: Provider, model: str, value: object
) -> None:
    """What the model gets for a map or a sequence is JSON of the same value."""
    provider.script(Reply(ToolCall("give")))
    agent(model, giving(value)).run("Call it.")
    assert json.loads(results(provider.requests[-1])[-1]) == value


# ---- how they run ----


def test_tools_run_one_after_another(provider: Provider, model: str) -> None:
    """The calls of one reply run in its order, each when the one before has ended."""
    steps: list[str] = []

    async def slow(name: str) -> str:
        """Take a while."""
        steps.append(f"{name} begins")
        for _ in range(10):
            await asyncio.sleep(0)
        steps.append(f"{name} ends")
        return name

    def quick(name: str) -> str:
        """Take no time."""
        steps.append(name)
        return name

    calls = [ToolCall("slow", {"name": "a"}), ToolCall("quick", {"name": "b"})]
    provider.script(Reply(*calls, ToolCall("slow", {"name": "c"})))
    agent(model, slow, quick).run("Call them.")
    assert steps == ["a begins", "a ends", "b", "c begins", "c ends"]
    assert results(provider.requests[-1]) == ["a", "b", "c"]


def test_a_sync_tool_does_not_hold_up_the_loop(provider: Provider, model: str) -> None:
    """A sync tool runs in a thread of its own, while the loop goes on; an async one in the loop."""
    went_on = threading.Event()
    threads: dict[str, int] = {}

    def waits() -> str:
        """Wait for the loop."""
        threads["sync"] = threading.get_ident()
        return str(went_on.wait(20))

    async def there() -> str:
        """Tell where it runs."""
        threads["async"] = threading.get_ident()
        return "here"

    async def main() -> None:
        threads["loop"] = threading.get_ident()
        starts = asyncio.Event()
        running = asyncio.create_task(
            agent(model, waits, there).arun("Call.", on_tool_call=lambda _: starts.set())
        )
        await starts.wait()
        went_on.set()
        await running

    provider.script(Reply(ToolCall("waits"), ToolCall("there")))
    asyncio.run(main())
    assert results(provider.requests[-1]) == ["True", "here"]
    assert threads["async"] == threads["loop"] != threads["sync"]


def counting(answers: list[bool]) -> Callable[[], str]:
    """Make a tool that fails where the next answer is False."""
    left = iter(answers)

    def count() -> str:
        """Count."""
        if next(left):
            return "good"
        raise ValueError("bad")

    return count


@pytest.mark.parametrize("rounds", [[4, 1, 4], [9], [3, 6], [1] * 9])
def test_a_success_starts_the_count_of_failures_anew(
    provider: Provider, model: str, rounds: list[int]
) -> None:
    """Four failures, a success and four more do not end a run, however they come together."""
    tool = counting([False] * 4 + [True] + [False] * 4)
    provider.script(*[Reply(*[ToolCall("count")] * count) for count in rounds], "Done.")
    assert agent(model, tool).run("Count.").response == "Done."
    assert len(results(provider.requests[-1])) == 9


@pytest.mark.parametrize("rounds", [[5], [9], [4, 1], [1] * 5, [2, 6]])
def test_five_failures_in_a_row_end_the_run(
    provider: Provider, model: str, rounds: list[int]
) -> None:
    """The fifth ends it, and no call behind it is made, also none of the same reply."""
    made: list[int] = []

    def fail() -> str:
        """Fail."""
        made.append(1)
        raise ValueError(f"bad {len(made)}")

    provider.script(*[Reply(*[ToolCall("fail")] * count) for count in rounds])
    with pytest.raises(ToolsFailed, match=r"5 tool calls in a row failed.*ValueError: bad 5"):
        agent(model, fail).run("Fail.")
    assert len(made) == 5
    assert len(provider.requests) == len(rounds)


# ---- who is told ----


def told_of(provider: Provider, model: str, *steps: ToolCall) -> list[ToolEvent]:
    """Run an agent that makes some calls; give what its listener is told."""
    events: list[ToolEvent] = []
    provider.script(Reply(*steps))
    agent(model, find_in, giving("x" * 300)).run("Find it.", on_tool_call=events.append)
    return events


def test_a_listener_is_told_of_each_call(provider: Provider, model: str) -> None:
    """Each call gives a start and an end, with the result, no error, and how long it took."""
    arguments = {"place": "B3", "sku": "A1"}
    start, end = told_of(provider, model, ToolCall("find_in", arguments))
    assert start == {"event": "start", "tool": "find_in", "args": arguments}
    took = end.pop("duration_ms")  # pyright: ignore[reportArgumentType]
    assert isinstance(took, float)
    assert took >= 0
    assert end == {
        "event": "end",
        "tool": "find_in",
        "args": arguments,
        "result": "B3 has A1",
        "error": None,
    }


def test_a_listener_is_told_of_what_failed(provider: Provider, model: str) -> None:
    """A call that cannot be made has its events too: with its error, and what the model gets."""
    events = told_of(provider, model, ToolCall("seek", {"sku": "A1"}), ToolCall("find_in", "{"))
    assert [event["event"] for event in events] == ["start", "end"] * 2
    assert [event["tool"] for event in events] == ["seek", "seek", "find_in", "find_in"]
    assert [event["args"] for event in events] == [{"sku": "A1"}, {"sku": "A1"}, {}, {}]
    for event, words in ((events[1], "there is no tool 'seek'"), (events[3], "do not fit")):
        error = event.get("error") or ""
        assert words in error
        assert event.get("result", "").startswith(f"Error: {error}"[:150])


def test_a_listener_gets_a_preview_of_a_long_result(provider: Provider, model: str) -> None:
    """The listener gets the first 200 characters; the model gets all."""
    _, end = told_of(provider, model, ToolCall("give"))
    assert end.get("result") == "x" * 200
    assert results(provider.requests[-1]) == ["x" * 300]


def test_an_async_listener_is_waited_for(provider: Provider, model: str) -> None:
    """The tool begins when the listener's function has ended, and so does the next request."""
    steps: list[str] = []

    def note() -> str:
        """Note that it runs."""
        steps.append("runs")
        return "noted"

    async def listen(event: ToolEvent) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        steps.append(event["event"])

    def last(_: object) -> str:
        steps.append("asked")
        return "Done."

    provider.script(Reply(ToolCall("note")), last)
    agent(model, note).run("Note it.", on_tool_call=listen)
    assert steps == ["start", "runs", "end", "asked"]


# ---- what they inherit ----

whose: ContextVar[str] = ContextVar("whose", default="nobody's")


def tell() -> str:
    """Tell whose it is."""
    return whose.get()


async def tell_later() -> str:
    """Tell whose it is, in the loop."""
    await asyncio.sleep(0)
    return whose.get()


def in_plain_code(made: Agent) -> Result[str]:
    """Run an agent from plain code."""
    return made.run("Tell me.")


def in_a_loop(made: Agent) -> Result[str]:
    """Run an agent in a loop of its own."""
    return asyncio.run(made.arun("Tell me."))


@pytest.mark.parametrize("run", [in_plain_code, in_a_loop])
@pytest.mark.parametrize("tool", [tell, tell_later])
def test_a_tool_runs_in_its_callers_context(
    provider: Provider, model: str, run: Callable[[Agent], Result[str]], tool: Any
) -> None:
    """A context variable that the caller has set is there in a sync tool and in an async one."""
    provider.script(Reply(ToolCall(tool.__name__)))
    token = whose.set("mine")
    try:
        run(agent(model, tool))
    finally:
        whose.reset(token)
    assert results(provider.requests[-1]) == ["mine"]


@pytest.mark.parametrize("run", [in_plain_code, in_a_loop])
def test_a_sandbox_holds_in_a_tool(
    provider: Provider, model: str, memory: Memory, run: Callable[[Agent], Result[str]]
) -> None:
    """What a sandbox took away from the caller its tools do not have either (R17)."""

    def remember(text: str) -> str:
        """Remember a text."""
        memory.open("notes").append(text)
        return "remembered"

    provider.script(Reply(ToolCall("remember", {"text": "secret"})))
    with sandbox(deny=Capability.FS_WRITE):
        run(agent(model, remember))
    [told] = results(provider.requests[-1])
    assert "Permission denied" in told
    assert "'fs-write'" in told
    assert list(memory.threads()) == []
