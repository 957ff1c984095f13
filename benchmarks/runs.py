"""Runs of an agent with memory, beside the same runs without: no network, a model that is at once.

What a run with memory has more is the refresh, the seeding, the engine's work on the turns that
are sent ahead, and the append of what was said.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from files import long_thread
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage
from table import Row, at_most, duration, median, ratio
from text import turn

import turnlog
from turnlog.engine.history import history_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage

_SEEDED: Final = 100
_PAIR: Final = [turnlog.Message(*turn(0)), turnlog.Message(*turn(1))]


def run_rows(root: Path, repetitions: int, runs: int, long: int) -> Iterator[Row]:
    """Measure what memory adds to a run, and how long the seeding of a long thread takes."""
    with turnlog.Memory(root) as memory:
        times = asyncio.run(_overheads(memory, repetitions, runs))
        added, without = zip(*times, strict=True)
        yield Row(
            f"memory= adds to a run, a thread of {_SEEDED} turns",
            duration(max(0.0, median(added))),
            f"the same run without it, and one append: {duration(median(without))}",
            "",
            at_most(2, 1000 * median(added), " ms"),
        )
        yield _seeding_row(memory.open(long_thread(root, long)), repetitions)


async def _overheads(
    memory: turnlog.Memory, repetitions: int, runs: int
) -> list[tuple[float, float]]:
    """Give what memory adds, and what a run without it takes, for each repetition."""
    agent = turnlog.Agent(model=FunctionModel(_reply))
    appended = memory.open("appended")
    await agent.arun("warm", memory=memory.open("warm"))

    async def without() -> None:
        await agent.arun("Any update?")
        await appended.aextend(_PAIR)

    found: list[tuple[float, float]] = []
    for repetition in range(repetitions):
        pairs: list[tuple[float, float]] = []
        for number in range(runs):
            thread = memory.open(f"run-{repetition}-{number}")
            await thread.aextend(turnlog.Message(*turn(each)) for each in range(_SEEDED))
            bare = await _timed(without)
            whole = await _timed(lambda thread=thread: agent.arun("Any update?", memory=thread))
            pairs.append((whole - bare, bare))
        added, bares = zip(*pairs, strict=True)
        found.append((median(added), median(bares)))
    return found


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


def _reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del messages, info
    # With a usage of its own: else the engine splits all texts into words, to guess one.
    return ModelResponse([TextPart("No news.")], usage=RequestUsage(input_tokens=1))


def _seeding_row(thread: turnlog.MemoryThread, repetitions: int) -> Row:
    """Measure the seeding of a thread beside the engine's own way to load as many messages."""
    stored = ModelMessagesTypeAdapter.dump_json(history_of(thread.messages()))
    seedings: list[float] = []
    loads: list[float] = []
    for _ in range(3 * repetitions):
        start = time.perf_counter()
        thread.refresh()
        history_of(thread.messages())
        seedings.append(time.perf_counter() - start)
        start = time.perf_counter()
        ModelMessagesTypeAdapter.validate_json(stored)
        loads.append(time.perf_counter() - start)
    return Row(
        f"seed a run from a thread of {len(thread):,} turns",
        duration(median(seedings)),
        f"pydantic-ai's own messages from their JSON: {duration(median(loads))}",
        f"{ratio(loads, seedings):.1f} x the speed",
        at_most(50, 1000 * median(seedings), " ms"),
    )
