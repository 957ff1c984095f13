"""Tools: what a model gets from a call, how calls run, and what a listener is told of them."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from localserver import Provider, Reply, ToolCall
from sent import results
from shop import Item, Odd, Place, agent, call, find_in

from turnlog import Agent, Capability, Memory, Result, ToolsFailed, sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnlog import ToolEvent


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
        pytest.param(Odd(), "odd", id="odd"),
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
        return str(went_on.wait(60))

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
