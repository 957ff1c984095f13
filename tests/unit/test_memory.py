"""The registry: opening, identity, the default memory, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import turnlog
from turnlog import (
    Closed,
    Conversation,
    ForeignThread,
    Memory,
    MemoryThread,
    Message,
    UnknownStore,
)
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def contents(thread: MemoryThread) -> list[str]:
    """Give the texts of a thread's turns."""
    return [message.content for message in thread.messages()]


def test_a_thread_is_a_resource_and_a_conversation_is_a_value(memory: Memory) -> None:
    """A thread grows under its name; a conversation taken from it stays as it was (R1, R16)."""
    mem = memory.open("t").append("one")
    before = mem.messages()
    mem.append("two")
    assert (len(before), len(mem.messages())) == (1, 2)
    assert isinstance(before, Conversation)


def test_threads_are_known_by_namespace_and_id(memory: Memory) -> None:
    """The same id in two namespaces is two threads (R2)."""
    memory.open("t", namespace="a").append("in a")
    memory.open("t", namespace="b").append("in b")
    assert contents(memory.open("t", namespace="a")) == ["in a"]
    assert contents(memory.open("t", namespace="b")) == ["in b"]


def test_the_file_stands_where_the_specification_says(root: Path, memory: Memory) -> None:
    """A turn is in <root>/<namespace>/<id>.jsonl; the namespace defaults to "default" (R3, R9)."""
    memory.open("user-42").append("x")
    memory.open("user-42", namespace="support").append("x")
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*.jsonl"))
    assert found == ["default/user-42.jsonl", "support/user-42.jsonl"]


def test_reopening_gives_the_same_object(memory: Memory) -> None:
    """Opening an open thread again gives the same working set, sync and async (R6)."""
    mem = memory.open("t").append("x")
    assert memory.open("t") is mem
    assert asyncio.run(memory.aopen("t")) is mem
    assert memory.open("t", namespace="other") is not mem


def test_many_that_open_at_once_get_the_same_object(root: Path, memory: Memory) -> None:
    """Threads and tasks that open one thread for the first time at once share it (R6)."""
    with Memory(root) as another:
        another.open("t").append("x")
    found: list[MemoryThread] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        found.append(memory.open("t"))

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    async def main() -> list[MemoryThread]:
        return await asyncio.gather(*(memory.aopen("t") for _ in range(20)))

    assert {id(mem) for mem in [*found, *asyncio.run(main())]} == {id(memory.open("t"))}


def test_a_fresh_open_loads_every_turn(root: Path) -> None:
    """What another memory on the folder appended is loaded at open, in order (R4, R7)."""
    texts = [str(number) for number in range(300)]
    with Memory(root) as memory:
        mem = memory.open("t")
        for text in texts[:10]:
            mem.append(text)
        mem.extend(Message("assistant", text) for text in texts[10:])
    with Memory(root) as memory:
        assert contents(memory.open("t")) == texts


def test_the_handle_is_all_that_is_needed(memory: Memory) -> None:
    """What open gives takes every operation, and each gives it back: calls chain (R8, R15)."""
    mem = memory.open("t")
    assert isinstance(mem, MemoryThread)
    assert mem.append("a").append("b", role="assistant").extend([Message("user", "c")]) is mem
    assert mem.refresh() is mem
    assert contents(mem) == ["a", "b", "c"]

    async def main() -> bool:
        await mem.aextend([])
        return await mem.aappend("d") is mem and await mem.arefresh() is mem

    assert asyncio.run(main())
    assert contents(mem.fork("fork", upto=2)) == ["a", "b"]
    assert contents(asyncio.run(mem.afork("other", namespace="n"))) == ["a", "b", "c", "d"]


def test_the_role_defaults_to_user_and_the_turn_is_visible_at_once(memory: Memory) -> None:
    """An append without a role is the user's, and messages() has it at once (R11, R12)."""
    mem = memory.open("t").append("x")
    (message,) = mem.messages()
    assert (message.role, message.content) == ("user", "x")
    assert message.at is not None


def test_open_makes_nothing(root: Path, memory: Memory) -> None:
    """A thread that nobody appended to leaves no file and no folder."""
    mem = memory.open("t")
    assert len(mem) == 0
    assert mem
    assert not root.exists()


def test_dropped_threads_are_let_go(root: Path) -> None:
    """A memory holds the latest threads only, so that one that serves many stays small."""
    with Memory(root) as memory:
        first = weakref.ref(memory.open("t0"))
        for number in range(1, 300):
            memory.open(f"t{number}")
        gc.collect()
        assert first() is None


def test_a_dropped_memory_leaves_no_thread_and_no_file_open(
    root: Path, open_files: Callable[[], list[str]]
) -> None:
    """A memory that nobody holds any more closes itself."""
    others = set(threading.enumerate())  # of memories that other tests left

    async def main() -> None:
        memory = Memory(root)
        await (await memory.aopen("t")).aappend("x")

    asyncio.run(main())
    gc.collect()
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("turnlog"):
            thread.join()
    assert open_files() == []


DEFAULT = """
import os, turnlog
turnlog.open("t", namespace="n").append("x")
os.chdir("/")
turnlog.open("t", namespace="n").append("y")
assert turnlog.open("u") is turnlog.default_memory().open("u")
print(len(turnlog.default_memory().open("t", "n")))
"""


@pytest.mark.parametrize("url", [None, "elsewhere", "file://{}/elsewhere"])
def test_the_default_memory(tmp_path: Path, url: str | None) -> None:
    """It lies in ./.sema/memory or where TURNLOG_URL says, and a later chdir does not move it."""
    environment = {k: v for k, v in os.environ.items() if k != "TURNLOG_URL"}
    if url is not None:
        environment["TURNLOG_URL"] = url.format(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", DEFAULT],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    place = tmp_path / (".sema/memory" if url is None else "elsewhere") / "n" / "t.jsonl"
    assert done.stdout == "2\n"
    assert place.read_bytes().count(b"\n") == 2


def test_a_closed_memory_says_so(root: Path) -> None:
    """After close nothing is opened or appended, and what was read stays readable."""
    memory = Memory(root)
    mem = memory.open("t").append("x")
    memory.close()
    memory.close()
    for call in (
        lambda: memory.open("u"),
        lambda: memory.open("t"),
        lambda: mem.append("y"),
        lambda: asyncio.run(mem.aappend("y")),
        mem.refresh,
        memory.threads,
        lambda: memory.delete("t"),
    ):
        with pytest.raises(Closed, match="closed; open a new Memory"):
            call()
    assert contents(mem) == ["x"]


def test_an_async_memory_closes_at_the_end(root: Path) -> None:
    """A memory is an async context manager too."""

    async def main() -> MemoryThread:
        async with Memory(root) as memory:
            return await (await memory.aopen("t")).aappend("x")

    with pytest.raises(Closed):
        asyncio.run(main()).append("y")


def test_deleting_is_a_whole_thread(root: Path, memory: Memory) -> None:
    """A deleted thread is gone with all its files, its handle is ended, its name is free."""
    mem = memory.open("t").append("x")
    (root / "default" / "t.jsonl.torn").write_bytes(b"aside")
    assert memory.delete("t")
    assert not memory.delete("t")
    assert list((root / "default").iterdir()) == []
    with pytest.raises(Closed, match="thread 't' in namespace 'default': it was deleted"):
        mem.append("y")
    assert contents(mem) == ["x"]
    assert contents(memory.open("t").append("anew")) == ["anew"]
    assert asyncio.run(memory.adelete(memory.open("t")))


def test_another_memory_s_thread_is_refused(root: Path, memory: Memory) -> None:
    """A memory deletes its own threads only."""
    with Memory(root) as another:
        mem = another.open("t").append("x")
        with pytest.raises(ForeignThread, match="thread 't'"):
            memory.delete(mem)
        assert contents(mem.refresh()) == ["x"]


def test_threads_lists_what_exists(memory: Memory) -> None:
    """Threads are listed by namespace and id, with size and time, without opening one."""
    for namespace, id_ in (("b", "2"), ("a", "x-1"), ("b", "1"), ("a", "x")):
        memory.open(id_, namespace).append("text")
    infos = list(memory.threads())
    assert [(info.namespace, info.id) for info in infos] == [
        ("a", "x"),
        ("a", "x-1"),
        ("b", "1"),
        ("b", "2"),
    ]
    assert all(info.size > 0 and info.modified.tzinfo is not None for info in infos)
    assert [info.id for info in memory.threads("b")] == ["1", "2"]
    assert list(memory.threads("none")) == []


@pytest.mark.parametrize("location", ["ftp://host/x", "file://host/x", 42, b"folder", object()])
def test_an_unknown_location_is_refused(location: Any) -> None:
    """What is no path, no known URL and no store is refused at once, in our words."""
    with pytest.raises(UnknownStore):
        Memory(location)


def test_read_only_is_never_passed_over(root: Path) -> None:
    """A store that would write all the same is refused with read_only=True."""
    for location in ("memory://", InMemoryStore(), JsonlStore(root)):
        with pytest.raises(UnknownStore, match="read-only"):
            Memory(location, read_only=True)
    assert Memory(JsonlStore(root, read_only=True), read_only=True).read_only


def test_two_memories_on_one_store_keep_each_other_s_turns(root: Path) -> None:
    """Memories that share a store lose, double and tear nothing between them."""
    store = JsonlStore(root)
    handles = [Memory(store).open("t") for _ in range(2)]

    def work(mem: MemoryThread, name: int) -> None:
        for number in range(200):
            mem.append(f"{name} {number}")

    workers = [threading.Thread(target=work, args=(mem, i)) for i, mem in enumerate(handles)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for mem in handles:
        texts = contents(mem.refresh())
        assert sorted(texts) == sorted(f"{i} {n}" for i in range(2) for n in range(200))
    assert contents(handles[0]) == contents(handles[1])


def test_module_functions_are_the_default_memory_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """turnlog.open and turnlog.aopen give the same threads of one memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNLOG_URL", raising=False)
    monkeypatch.setattr("turnlog.memory._default", None)
    mem = asyncio.run(turnlog.aopen("t"))
    assert turnlog.open("t") is mem
    turnlog.default_memory().close()
    assert turnlog.open("t") is not mem
    turnlog.default_memory().close()
