"""Agents over the stores on servers: a run seeds from the thread and writes back, as over files."""

from __future__ import annotations

import asyncio

import pytest
from localserver import Gate, Provider, Reply, turns
from stops import HEARING, INPUT, PARTIAL, Ears, by_cancel, turns_of

import turnlog
from turnlog import Memory

pytestmark = pytest.mark.usefixtures("no_blocking")

MODEL = "anthropic:claude-haiku-4-5-20251001"


def test_a_run_remembers_on_another_machine(provider: Provider, server_url: str) -> None:
    """What a run wrote back is sent by the next one, in another memory of the same server."""
    provider.script("Looking into it now.", "A new one is on its way.")
    agent = turnlog.Agent(model=MODEL, system="You are a support agent.")

    async def ask(memory: Memory, text: str) -> str:
        async with memory:
            mem = await memory.aopen("ticket-981", namespace="support")
            return str((await agent.arun(text, memory=mem)).response)

    assert asyncio.run(ask(Memory(server_url), "My invoice is wrong.")) == "Looking into it now."
    assert asyncio.run(ask(Memory(server_url), "Any update?")) == "A new one is on its way."
    assert [text for _, text in turns(provider.requests[-1])] == [
        "You are a support agent.",
        "My invoice is wrong.",
        "Looking into it now.",
        "Any update?",
    ]


@pytest.mark.parametrize("listening", HEARING)
def test_a_stopped_run_is_kept(provider: Provider, server_url: str, listening: str) -> None:
    """A run that is cancelled in the middle of a reply has written back what was seen."""
    gate = Gate()
    provider.script(Reply("It ", "is ", gate, "paid."))
    agent, ears = turnlog.Agent(model=MODEL), Ears()

    async def main(memory: Memory) -> None:
        async with memory:
            mem = await memory.aopen("t")
            await by_cancel(HEARING[listening](agent, mem, ears), ears.heard)
            assert turns_of(mem.messages()) == [INPUT, PARTIAL]

    asyncio.run(main(Memory(server_url)))
    with Memory(server_url) as memory:
        assert turns_of(memory.open("t").messages()) == [INPUT, PARTIAL]
