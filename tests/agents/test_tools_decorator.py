"""Tools: what `turnlog.tool` makes of a function, and which tools are refused."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from pydantic import BaseModel
from shop import Finder, Shop, agent, call, find_in, shown_of

import turnlog
from turnlog import TurnlogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from localserver import Provider


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
