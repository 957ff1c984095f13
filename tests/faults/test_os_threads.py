"""Async calls where pools are full, OS threads run out, or the process ends (C51, C58, C61)."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machine import in_child, needs_root
from systems import Gate, Watched

import turnlog
from turnlog import Memory
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from typing import Any

USER = 12_003
CALLS = ["aopen", "apeek", "adelete", "afork", "aclose", "turnlog.aopen"]


async def call(name: str, memory: Memory, root: Path) -> None:
    """Do one of the calls that may block on the disk."""
    if name == "aopen":
        assert len(await memory.aopen("other")) == 0
    elif name == "apeek":
        assert len(await memory.apeek("t", last=5)) == 1
    elif name == "adelete":
        assert await memory.adelete("t")
    elif name == "afork":
        assert len(await memory.open("t").afork("copy")) == 1
    elif name == "aclose":
        await memory.aclose()
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TURNLOG_URL", str(root))
            assert len(await turnlog.aopen("t")) == 1
            await turnlog.default_memory().aclose()


@pytest.mark.parametrize("name", CALLS)
def test_jobs_of_the_loop_s_pool_that_wait_for_one(root: Path, name: str) -> None:
    """Where every thread of the loop's pool waits for such a call, it is still done (C61)."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        memory = Memory(root)
        memory.open("t").append("x")

        def job() -> None:
            asyncio.run_coroutine_threadsafe(call(name, memory, root), loop).result(30)

        await asyncio.to_thread(job)
        await memory.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("name", CALLS)
def test_a_loop_without_its_pool(root: Path, name: str) -> None:
    """The call needs no pool of the loop's: it may have been shut down (C58)."""

    async def main() -> None:
        await asyncio.to_thread(len, ())  # which makes the pool
        await asyncio.get_running_loop().shutdown_default_executor()
        memory = Memory(root)
        memory.open("t").append("x")
        await call(name, memory, root)
        await memory.aclose()

    asyncio.run(main())


def test_a_thousand_openings_at_once(root: Path) -> None:
    """However many calls come at once, they take a bounded number of OS threads (C61)."""
    gate = Gate("open_file")
    memory = Memory(JsonlStore(root, system=Watched(gate)))
    before = threading.active_count()

    async def main() -> list[int]:
        opening = [asyncio.create_task(memory.aopen(f"thread {number}")) for number in range(1_000)]
        await asyncio.to_thread(gate.reached.wait)
        most = threading.active_count() - before
        gate.opened.set()
        threads = await asyncio.gather(*opening)
        return [most, len({thread.id for thread in threads})]

    (root / "default").mkdir(parents=True)
    for number in range(1_000):
        (root / "default" / f"thread {number}.jsonl").touch()
    most, opened = asyncio.run(main())
    assert opened == 1_000
    assert 1 <= most <= 40


def test_a_child_of_a_process_whose_workers_are_all_busy(root: Path) -> None:
    """A forked child has OS threads of its own: it does not wait for its parent's (C61)."""
    gate = Gate("open_file")
    busy = Memory(JsonlStore(root, system=Watched(gate)))
    (root / "default").mkdir(parents=True)
    for number in range(50):
        (root / "default" / f"{number}.jsonl").touch()

    async def main() -> Any:
        opening = [asyncio.create_task(busy.aopen(str(number))) for number in range(50)]
        await asyncio.to_thread(gate.reached.wait)
        try:
            return in_child(child)
        finally:
            gate.opened.set()
            await asyncio.gather(*opening)

    def child() -> int:
        found: list[int] = []

        def run() -> None:  # the parent's loop runs in this OS thread
            found.append(len(asyncio.run(Memory(root).aopen("7"))))

        running = threading.Thread(target=run)
        running.start()
        running.join(30)
        return len(found)

    assert asyncio.run(main()) == 1


# ---- no more of them ----


@pytest.fixture
def public() -> Generator[Path]:
    """Return a folder that every user may write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def without_more_threads(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run something in a process of a user who may have no more OS threads."""

    def inside() -> Any:
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
        with pytest.raises(RuntimeError):
            threading.Thread(target=len).start()
        return asyncio.run(work())

    return in_child(inside)


async def everything(root: Path) -> list[str]:
    """Make all the async calls that need the disk; give the turns of a thread."""
    async with Memory(root) as memory:
        mem = await memory.aopen("t")
        await asyncio.gather(*(mem.aappend(text) for text in "ab"))
        others = await asyncio.gather(*(memory.aopen(str(number)) for number in range(20)))
        await asyncio.gather(*(other.aappend("x") for other in others))
        async with mem.turn_lock(timeout=5):
            await mem.aappend("c")
        fork = await mem.afork("copy")
        await fork.arefresh()
        peeked = await memory.apeek("copy", last=9)
        assert await memory.adelete("copy")
        return [message.content for message in peeked]


@needs_root
def test_no_more_threads(public: Path) -> None:
    """Without any OS thread to be had, each async call is done in its caller's (C58)."""
    assert without_more_threads(lambda: everything(public / "memory")) == ["a", "b", "c"]


# ---- the end of the process ----

ENDING = """
import asyncio, atexit, sys, threading
import turnlog

async def everything():
    async with turnlog.Memory(sys.argv[1]) as memory:
        mem = await memory.aopen("t")
        await asyncio.gather(*(mem.aappend(text) for text in "ab"))
        others = await asyncio.gather(*(memory.aopen(str(number)) for number in range(20)))
        await asyncio.gather(*(other.aappend("x") for other in others))
        fork = await mem.afork("copy")
        print(*[message.content for message in await memory.apeek("copy", last=9)])
        assert await memory.adelete("copy")

def later():
    threading.main_thread().join()
    asyncio.run(everything())

turnlog.Memory(sys.argv[1]).open("used before").append("x")
"""


@pytest.mark.parametrize(
    "way",
    [
        "atexit.register(lambda: asyncio.run(everything()))",
        "threading.Thread(target=later, daemon=False).start()",
        "turnlog.Memory(sys.argv[1]); asyncio.run(everything())",
    ],
)
def test_at_the_end_of_a_process(root: Path, way: str) -> None:
    """In `atexit`, and in a thread that outlives the main one, the async calls work (C51)."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING + way, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("a b\n", "", 0)
