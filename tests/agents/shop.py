"""A shop: functions of many kinds that are tools, and a model that is shown and calls them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from localserver import Provider, Reply, ToolCall
from pydantic import BaseModel, Field
from sent import results, shown

import turnlog
from turnlog import Agent


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


# ---- what it has ----


class Item(BaseModel):
    """An article."""

    sku: str = Field(description="its number")
    quantity: int = 1


@dataclass
class Place:
    """Where something is."""

    shelf: str
    level: int = 0


class Odd:
    """What pydantic knows nothing of."""

    def __str__(self) -> str:
        """Give some text."""
        return "odd"


# ---- what it does ----


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


def find_in(place: str, sku: str) -> str:
    """Find an article somewhere."""
    return f"{place} has {sku}"
