"""A program that is told to end, by SIGTERM or SIGHUP, keeps what was said in its runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from localserver import Gate, Provider, Reply, Signal
from ways import ours, said

import turnlog
from turnlog import RunningLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from programs import Stored
    from ways import Make

ENDED = [("user", "When?"), ("assistant", "It will ")]
ENDINGS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Have Python's own ways, and see them given back."""
    before = [signal.signal(number, signal.SIG_DFL) for number in ENDINGS]
    yield
    after = [signal.signal(*each) for each in zip(ENDINGS, before, strict=True)]
    assert after == [signal.SIG_DFL] * len(ENDINGS)


def end(number: int) -> None:
    """Tell this process to end."""
    os.kill(os.getpid(), number)


def while_it_is_told(agent: Any, mem: Any, number: int) -> None:
    """End in `on_text`, while the run goes on."""
    turnlog.run(agent, "When?", memory=mem, on_text=lambda _: end(number))


def while_it_waits(agent: Any, mem: Any, number: int) -> None:
    """End while the next piece of a stream is waited for."""
    with turnlog.stream(agent, "When?", memory=mem) as stream:
        next(stream)
        threading.Timer(0.05, end, [number]).start()
        next(stream)


def between_pieces(agent: Any, mem: Any, number: int) -> None:
    """End where the program does something of its own with a piece."""
    for _ in turnlog.stream(agent, "When?", memory=mem):
        end(number)


def in_a_block(agent: Any, mem: Any, number: int) -> None:
    """End there, where the stream is closed by its block."""
    with turnlog.stream(agent, "When?", memory=mem) as stream:
        next(stream)
        end(number)


@pytest.mark.parametrize("number", ENDINGS)
@pytest.mark.parametrize(
    "way", [while_it_is_told, while_it_waits, between_pieces, in_a_block], ids=lambda f: f.__name__
)
def test_a_plain_program_that_is_told_to_end_keeps_what_was_said(  # noqa: PLR0913, PLR0917 - a table's row
    provider: Provider,
    one_model: str,
    make: Make,
    stored: Stored,
    number: int,
    way: Callable[..., None],
) -> None:
    """Input and text so far are in the thread; then SystemExit is raised (A18)."""
    gate = Gate()
    provider.script(Reply("It will ", gate, "never come."))
    with pytest.raises(SystemExit) as ended:
        way(make(one_model), stored.mem, number)
    assert ended.value.code == 128 + number
    del ended
    turns = stored.reopened()
    assert said(turns) == ENDED
    assert "interrupted" in (turns[-1].meta or {})


PROGRAM = """
import sys, turnlog
bot = turnlog.Agent(model=sys.argv[1])
mem = turnlog.Memory(sys.argv[2]).open("t")
def hear(piece): print("heard", flush=True)
if sys.argv[3] == "run":
    bot.run("When?", memory=mem, on_text=hear)
for piece in bot.stream("When?", memory=mem):
    hear(piece)
"""


@pytest.mark.parametrize("way", ["run", "stream"])
def test_a_script_ends_with_the_signals_status(
    provider: Provider, one_model: str, stored: Stored, way: str
) -> None:
    """A script without a line about signals ends quietly, and nothing is lost (A18)."""
    provider.script(Reply("It will ", Gate(), "never come."))
    command = [sys.executable, "-c", PROGRAM, one_model, str(stored.root), way]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "heard\n"
        program.send_signal(signal.SIGTERM)
        _, errors = program.communicate(timeout=60)
    assert (program.returncode, errors) == (143, "")
    assert said(stored.reopened()) == ENDED


def test_a_handler_of_the_programs_own_is_left_alone(
    provider: Provider, one_model: str, stored: Stored
) -> None:
    """Where the program has a handler it is called, and nothing else is done (A18)."""
    provider.script(Reply("It ", "is."))
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        bot = ours(one_model)
        bot.run("When?", memory=stored.mem, on_text=lambda _: end(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert heard == [signal.SIGTERM] * 2
    assert said(stored.reopened())[1] == ("assistant", "It is.")


def test_a_child_that_is_forked_in_a_run_can_be_ended(
    provider: Provider, one_model: str, stored: Stored
) -> None:
    """A forked child of a run, or of a stream, has the system's own way with SIGTERM (A18)."""
    provider.script(Reply("It ", "is."), Reply("It ", "is."))
    statuses: list[int] = []

    def fork(_: str) -> None:
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        statuses.append(os.waitpid(child, 0)[1])

    bot = ours(one_model)
    bot.run("When?", memory=stored.mem, on_text=fork)
    for piece in bot.stream("When?", memory=stored.mem):
        fork(piece)
    assert statuses == [signal.SIGTERM] * 4


# ---- runs that a server is about to leave behind ----


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_runs_that_are_stopped_have_written_before_the_program_ends(
    provider: Provider, one_model: str, make: Make, stored: Stored, *, cancelled_first: bool
) -> None:
    """After `astop_runs` all that was said is written, of runs, streams and other loops (A18)."""
    provider.script(*(Reply("It will ", Gate(), "never come.") for _ in range(4)))
    heard = {name: Signal() for name in ("arun", "astream", "run")}
    agent, memory = make(one_model), stored.mem.memory
    threads = {name: memory.open(name) for name in ("arun", "astream", "run", "stream")}

    async def read() -> None:
        async for _ in turnlog.astream(agent, "When?", memory=threads["astream"]):
            heard["astream"].set()

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            turnlog.run(agent, "When?", memory=threads["run"], on_text=hears("run"))

    def hears(name: str) -> Callable[[str], None]:
        return lambda _: heard[name].set()

    async def main() -> None:
        there = turnlog.arun(agent, "When?", memory=threads["arun"], on_text=hears("arun"))
        tasks = [asyncio.create_task(there), asyncio.create_task(read())]
        for each in heard.values():
            await each.aexpect()
        for task in tasks if cancelled_first else ():
            task.cancel()
        await turnlog.astop_runs()
        for mem in threads.values():
            assert said(mem.messages()) == ENDED
        await asyncio.wait(tasks)

    plain = threading.Thread(target=run)
    plain.start()
    kept = turnlog.stream(agent, "When?", memory=threads["stream"])
    next(kept)
    asyncio.run(main())
    plain.join()
    assert list(kept) == []


def test_nothing_under_way_is_stopped_at_once(one_model: str) -> None:
    """`stop_runs` returns where nothing runs, and refuses to block a loop (A18)."""
    turnlog.stop_runs()

    async def main() -> None:
        turnlog.stop_runs()

    with pytest.raises(RunningLoop, match="astop_runs"):
        asyncio.run(main())
    assert one_model
