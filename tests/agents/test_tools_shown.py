"""Tools: what a model is shown of a function, and of any other callable."""

from __future__ import annotations

import asyncio
import datetime as dt  # noqa: TC003 - pydantic looks at a tool's types
import functools
import json
from typing import Annotated, Any, Final, Literal

import pytest
from localserver import Provider, Reply, ToolCall
from pydantic import Field
from sent import results
from shop import Finder, Item, Odd, Place, Shop, agent, call, find_in, shown_of

import turnlog

# ---- what a model is shown ----


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


def gives_odd() -> Odd:
    """Give something odd."""
    return Odd()


def test_what_a_function_is_said_to_return_is_no_matter(provider: Provider, model: str) -> None:
    """A return type that no schema can be made of is neither an error nor a warning."""
    assert call(provider, model, gives_odd, {}) == "odd"


# ---- all kinds of callables ----


class LateFinder:
    """An object whose call is async."""

    async def __call__(self, sku: str) -> str:
        """Find an article by an async call."""
        await asyncio.sleep(0)
        return f"found {sku}"


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
