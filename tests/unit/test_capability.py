"""The sandbox: what it takes away, from whom, and what is refused without it."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest

from turnlog import Capability, CapabilityDenied, Conversation, Memory, sandbox
from turnlog.capability import require

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVERYTHING = ~Capability(0)


def denied(capability: Capability) -> bool:
    """Tell whether the running code may not do something."""
    try:
        require(capability, "test", "nothing")
    except CapabilityDenied:
        return True
    return False


# ---- the sandbox itself ----


def test_the_capabilities_are_those_of_the_specification() -> None:
    """There are nine capabilities, a set of flags, and all are there outside of a sandbox."""
    files, others = ["FS_READ", "FS_WRITE"], ["SHELL", "NETWORK", "ENV_READ", "ENV_WRITE"]
    names = [*files, *others, "PROCESS", "LLM", "SERIAL"]
    assert [capability.name for capability in Capability] == names
    assert not any(map(denied, Capability))


@pytest.mark.parametrize("capability", Capability)
def test_a_sandbox_takes_away_what_it_names_and_no_more(capability: Capability) -> None:
    """Inside of the block just the named capability is gone; after it, it is back."""
    with sandbox(deny=capability):
        assert [each for each in Capability if denied(each)] == [capability]
    assert not denied(capability)


def test_a_nested_sandbox_only_takes_away() -> None:
    """Inside of another sandbox nothing is given back, whatever the inner one names."""
    with sandbox(deny=Capability.FS_WRITE | Capability.LLM):
        for inner in (Capability(0), Capability.SHELL, Capability.FS_WRITE):
            with sandbox(deny=inner):
                assert denied(Capability.FS_WRITE)
                assert denied(Capability.LLM)
                assert denied(Capability.SHELL) == (inner is Capability.SHELL)
        assert not denied(Capability.SHELL)
        assert denied(Capability.FS_WRITE)


def test_a_sandbox_ends_with_an_error_too() -> None:
    """An exception leaves the sandbox like any other block."""
    with pytest.raises(ZeroDivisionError), sandbox(deny=EVERYTHING):
        raise ZeroDivisionError
    assert not any(map(denied, Capability))


# ---- who inherits ----


def test_tasks_and_their_threads_inherit() -> None:
    """A task, and what `asyncio.to_thread` runs, may do what their creator may. R5."""

    async def main() -> None:
        with sandbox(deny=Capability.FS_WRITE):
            task = asyncio.create_task(in_a_task())
            thread = asyncio.create_task(asyncio.to_thread(denied, Capability.FS_WRITE))
            grandchild = asyncio.create_task(in_a_thread_of_a_task())
        # The block has ended; what was started in it is as it was then.
        assert await task
        assert await thread
        assert await grandchild
        assert not denied(Capability.FS_WRITE)
        assert not await asyncio.to_thread(denied, Capability.FS_WRITE)

    async def in_a_task() -> bool:
        return denied(Capability.FS_WRITE)

    async def in_a_thread_of_a_task() -> bool:
        return await asyncio.create_task(asyncio.to_thread(denied, Capability.FS_WRITE))

    asyncio.run(main())


def test_a_sandbox_in_one_task_is_not_its_siblings() -> None:
    """While one task is inside of a sandbox, another is not."""

    async def inside(entered: asyncio.Event, leave: asyncio.Event) -> None:
        with sandbox(deny=Capability.FS_WRITE):
            entered.set()
            await leave.wait()

    async def main() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(inside(entered, leave))
        await entered.wait()
        assert not denied(Capability.FS_WRITE)
        leave.set()
        await task

    asyncio.run(main())


def test_a_bare_thread_starts_afresh() -> None:
    """A `threading.Thread` does not inherit a sandbox, as Python has it."""
    found: list[bool] = []
    with sandbox(deny=Capability.FS_WRITE):
        thread = threading.Thread(target=lambda: found.append(denied(Capability.FS_WRITE)))
        thread.start()
        thread.join()
    assert found == [False]


# ---- what needs what ----


def refused(operation: str, capability: str, call: Callable[[], object]) -> None:
    """Check that a call is refused for want of a capability, with a message that says so."""
    with pytest.raises(CapabilityDenied) as caught:
        call()
    assert str(caught.value).startswith(
        f"Permission denied: {operation} requires '{capability}' capability: "
    )
    assert isinstance(caught.value, PermissionError)


def test_opening_needs_the_write_capability(root: Path) -> None:
    """Without FS_WRITE open and aopen fail, name operation, capability and thread. R5."""
    with Memory(root) as memory, sandbox(deny=Capability.FS_WRITE):
        refused("memory/open", "fs-write", lambda: memory.open("t"))
        refused("memory/open", "fs-write", lambda: asyncio.run(memory.aopen("t")))
        with pytest.raises(CapabilityDenied, match="thread 't' in namespace 'n'"):
            memory.open("t", "n")
    assert os.listdir(root.parent) == []


def test_an_open_thread_is_not_given_without_the_capability(memory: Memory) -> None:
    """Without FS_WRITE even a thread that is open already is not handed out. R5."""
    mem = memory.open("t")
    with sandbox(deny=Capability.FS_WRITE):
        refused("memory/open", "fs-write", lambda: memory.open("t"))
    assert memory.open("t") is mem


def test_writing_needs_the_write_capability(root: Path, memory: Memory) -> None:
    """Without FS_WRITE nothing is appended, forked or deleted, and nothing is created. R5."""
    mem = memory.open("t")
    with sandbox(deny=Capability.FS_WRITE):
        refused("memory/append", "fs-write", lambda: mem.append("x"))
        refused("memory/append", "fs-write", lambda: asyncio.run(mem.aappend("x")))
        refused("memory/append", "fs-write", lambda: mem.extend([]))
        refused("memory/append", "fs-write", lambda: asyncio.run(mem.aextend([])))
        refused("memory/open", "fs-write", lambda: mem.fork("u"))
        refused("memory/open", "fs-write", lambda: asyncio.run(mem.afork("u")))
        refused("memory/delete", "fs-write", lambda: memory.delete("t"))
        refused("memory/delete", "fs-write", lambda: asyncio.run(memory.adelete(mem)))
    assert not root.exists()
    mem.append("x")
    with sandbox(deny=Capability.FS_WRITE):
        refused("memory/delete", "fs-write", lambda: memory.delete(mem))
    assert len(memory.open("t")) == 1


def test_reading_the_store_needs_the_read_capability(memory: Memory) -> None:
    """Without FS_READ threads are not listed; refreshing may mend a thread, so it needs more."""
    mem = memory.open("t").append("x")
    with sandbox(deny=Capability.FS_WRITE):
        refused("memory/refresh", "fs-write", mem.refresh)
        refused("memory/refresh", "fs-write", lambda: asyncio.run(mem.arefresh()))
    with sandbox(deny=Capability.FS_READ):
        refused("memory/threads", "fs-read", memory.threads)
        mem.append("y")  # needs FS_WRITE only
    assert len(mem) == 2


def test_a_read_only_memory_needs_the_read_capability_only(root: Path) -> None:
    """A memory that only reads opens without FS_WRITE, but not without FS_READ."""
    with Memory(root) as memory:
        memory.open("t").append("x")
    with Memory(root, read_only=True) as memory:
        with sandbox(deny=EVERYTHING & ~Capability.FS_READ):
            assert len(memory.open("t").refresh().messages()) == 1
            assert [info.id for info in memory.threads()] == ["t"]
        with sandbox(deny=Capability.FS_READ):
            refused("memory/open", "fs-read", lambda: memory.open("t"))


def test_taking_messages_needs_nothing(memory: Memory) -> None:
    """With every capability gone, the turns in memory and what is made of them are there. R17."""
    mem = memory.open("t").append("q", key="k").append("a", role="assistant")
    with sandbox(deny=EVERYTHING):
        conv = mem.messages()
        assert isinstance(conv, Conversation)
        assert [message.content for message in conv.add("more")[1:]] == ["a", "more"]
        assert (len(mem), mem.index_of("k"), mem.problems) == (2, 0, ())
        memory.close()
