"""Writeback where the thread takes no turns, or the disk: before a run, and after it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from dialogue import ASKED, LOOK, LOOKING, PAID, lookup
from localserver import Provider, Reply, turns
from machine import tiny_tmpfs
from programs import Stored
from ways import AGENTS, WAYS, said

import turnlog
from turnlog import (
    Capability,
    CapabilityDenied,
    Closed,
    Memory,
    NotWritten,
    ReadOnly,
    ThreadReplaced,
    TurnlogError,
    WritebackFailed,
    sandbox,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ways import Make, Perform

    from turnlog import MemoryThread


# ---- where nothing may be written ----


def read_only(root: Path) -> MemoryThread:
    """Open a thread in a memory that may only be read."""
    Memory(root).open("t").append("Hello?")
    return Memory(root, read_only=True).open("t")


def closed(root: Path) -> MemoryThread:
    """Give a thread whose memory was closed."""
    with Memory(root) as memory:
        return memory.open("t").append("Hello?")


def deleted(root: Path) -> MemoryThread:
    """Give a thread that was deleted."""
    memory = Memory(root)
    mem = memory.open("t").append("Hello?")
    memory.delete(mem)
    return mem


@pytest.mark.parametrize(
    ("opened", "error"), [(read_only, ReadOnly), (closed, Closed), (deleted, Closed)]
)
def test_a_thread_that_takes_no_turns_fails_the_run_at_once(
    provider: Provider,
    one_model: str,
    root: Path,
    opened: Callable[[Path], MemoryThread],
    error: type[TurnlogError],
) -> None:
    """Where the thread would take no turns, the run fails before a model is asked (R23)."""
    mem = opened(root)
    for run in everywhere(one_model):
        for writeback in (True, "eager"):
            with pytest.raises(error):
                run(memory=mem, writeback=writeback)
    assert provider.requests == []


def everywhere(model: str) -> list[Callable[..., object]]:
    """Give each agent run in each way, as a function that takes the options."""
    return [
        partial(perform, make(model), "Is it paid?")
        for make in AGENTS.values()
        for perform in WAYS.values()
    ]


@pytest.mark.parametrize("writeback", [True, "eager"])
def test_a_sandbox_without_writing_fails_the_run_at_once(
    provider: Provider, one_model: str, stored: Stored, writeback: Any
) -> None:
    """Without FS_WRITE a run with memory fails before a model is asked, and says why (R5)."""
    for run in everywhere(one_model):
        denied = pytest.raises(CapabilityDenied, match="'fs-write' capability")
        with sandbox(deny=Capability.FS_WRITE), denied:
            run(memory=stored.mem, writeback=writeback)
    assert (provider.requests, len(stored.mem)) == ([], 0)


def test_a_sandbox_without_models_fails_the_run_at_once(
    provider: Provider, one_model: str, stored: Stored
) -> None:
    """Without LLM a run fails before a model is asked, and says why."""
    for run in everywhere(one_model):
        denied = pytest.raises(CapabilityDenied, match="'llm' capability")
        with sandbox(deny=Capability.LLM), denied:
            run(memory=stored.mem)
    assert (provider.requests, len(stored.mem)) == ([], 0)


def test_without_writeback_a_sandbox_without_writing_lets_the_run_be(
    one_model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """A run that writes nothing back needs no FS_WRITE, as taking messages does not (R5, R17)."""
    mem = stored.mem.append("Hello?")
    agent = make(one_model)
    with sandbox(deny=Capability.FS_WRITE):
        result = perform(agent, "Is it paid?", memory=mem, writeback=False)
    assert said(result.conversation) == [("user", "Hello?"), ASKED, ("assistant", "Hello.")]


def test_a_memory_for_reading_seeds_a_run_without_writeback(
    provider: Provider, one_model: str, make: Make, perform: Perform, root: Path
) -> None:
    """A thread of a memory that may only be read seeds a run with writeback=False (R20)."""
    mem = read_only(root)
    result = perform(make(one_model), "Is it paid?", memory=mem, writeback=False)
    assert said(result.conversation)[:2] == [("user", "Hello?"), ASKED]
    assert turns(provider.requests[0]) == [("user", f"Hello?\n\n{ASKED[1]}")]
    assert len(mem) == 1


# ---- where writing fails, and the run itself went well ----


def test_a_run_whose_turns_cannot_be_written_gives_both_in_its_error(
    provider: Provider, model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """WritebackFailed carries the result of a run that went well, its turns and the cause (R23)."""

    def replying_when_it_is_gone(body: object) -> Reply:
        del body
        stored.path.unlink()
        return Reply("It is paid.")

    provider.script(replying_when_it_is_gone)
    mem = stored.mem.append("Hello?")
    with pytest.raises(WritebackFailed, match=r"'t'.*2 turns could not be written back") as raised:
        perform(make(model), "Is it paid?", memory=mem)
    error = raised.value
    assert isinstance(error.__cause__, ThreadReplaced)
    assert error.result.response == error.result.output == "It is paid."
    assert error.result.written == ()
    assert said(error.turns) == [ASKED, PAID]
    assert said(error.result.conversation) == [("user", "Hello?"), ASKED, PAID]


def test_the_turns_of_the_error_can_be_written_when_there_is_room(
    provider: Provider, one_model: str, make: Make, tmp_path: Path
) -> None:
    """On a full disk the run raises, and `extend(error.turns)` writes its turns later (R23)."""
    provider.script("It is paid. " * 5000)
    with tiny_tmpfs(tmp_path / "disk") as disk, Memory(disk) as memory:
        stored = Stored(memory.open("t").append("Hello?"), disk)
        filler = full(disk)
        with pytest.raises(WritebackFailed) as raised:
            turnlog.run(make(one_model), "Is it paid?", memory=stored.mem)
        assert isinstance(raised.value.__cause__, NotWritten)
        assert said(stored.reopened()) == [("user", "Hello?")]
        filler.unlink()
        stored.mem.extend(raised.value.turns)
        assert stored.reopened()[1:] == list(raised.value.turns)
        assert said(raised.value.turns) == [ASKED, ("assistant", "It is paid. " * 5000)]


def full(disk: Path) -> Path:
    """Fill a disk; give the file that does it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return filler


def test_an_eager_run_stops_where_it_cannot_write(
    provider: Provider, one_model: str, make: Make, perform: Perform, stored: Stored
) -> None:
    """Eagerly, a reply that cannot be written ends the run: no tool runs, no model is asked."""

    def replying_when_it_is_gone(body: object) -> Reply:
        del body
        stored.path.unlink()
        return Reply("Let me look.", LOOK)

    provider.script(replying_when_it_is_gone)
    events: list[Any] = []
    with pytest.raises(WritebackFailed) as raised:
        perform(
            make(one_model, tools=[lookup]),
            "Is it paid?",
            memory=stored.mem,
            writeback="eager",
            on_tool_call=events.append,
        )
    assert said(raised.value.turns) == [LOOKING]
    assert raised.value.result is None
    assert (events, len(provider.requests)) == ([], 1)
