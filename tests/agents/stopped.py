"""Programs whose run is stopped: by Ctrl-C, by their end, by a kill. Each a process of its own.

`python stopped.py WHAT ROOT KIND MODEL ...`, with the thread "t" under the root, and an agent of
a kind of `ways.AGENTS` on the model. A line on stdout says what has happened, when it has.
"""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "llm"))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from stops import INPUT, PARTIAL, QUESTION, turns_of
from systems import Fails, Together, Watched
from ways import AGENTS
from writers import say

import turnlog
from turnlog import Memory, MemoryThread, WritebackFailed
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

    from writers import Process

_LONGEST = 100  # seconds

# ---- what a test calls ----


class Done(NamedTuple):
    """How a program ended."""

    status: int
    lines: list[str]
    complaints: str


@contextmanager
def stopping(what: str, *args: object) -> Generator[Process]:
    """Start a program, where a warning is an error; it is dead when the block ends."""
    command = [sys.executable, "-W", "error", __file__, what, *map(str, args)]
    streams: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, encoding="utf-8", **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def done(process: Process) -> Done:
    """Wait for a program's end."""
    out, complaints = process.communicate(timeout=_LONGEST)
    return Done(process.returncode, out.splitlines(), complaints)


# ---- the programs ----


def asks(  # noqa: PLR0913, PLR0917 - a command's words
    root: str, kind: str, model: str, hows: str, store: str, presses: str
) -> None:
    """Ask the agent in several ways; say how each ended, and save what a failing store did not.

    Args:
        root: of the memory; each way has a thread of its name.
        kind: of the agent.
        model: its model's name.
        hows: the ways, names of HOW with spaces between them.
        store: "good", or "failing" at its next sync.
        presses: how often Ctrl-C is pressed while the store writes.
    """
    agent, befores = AGENTS[kind](model), Together()
    with Memory(JsonlStore(root, system=Watched(befores))) as memory:
        for how in hows.split():
            mem, hears = memory.open(how), _Hears()
            befores.befores = [_Presses(int(presses))]
            if store == "failing":
                befores.befores.append(Fails("sync", errno.EIO))
            try:
                HOW[how](agent, mem, hears)
            except BaseException as error:  # noqa: BLE001 - it is what the test looks at
                _tell(error, mem)
            gc.collect()
            hears.end()


def _tell(error: BaseException, mem: MemoryThread) -> None:
    lost = error.__cause__
    because = ""
    if isinstance(lost, WritebackFailed):
        because = f" from WritebackFailed with {turns_of(lost.turns)}"
        mem.extend(lost.turns)
    say(f"raised {type(error).__name__}{because}")


class _Presses:
    """Presses Ctrl-C while the store writes."""

    def __init__(self, times: int) -> None:
        self._times = times

    def __call__(self, call: str, _: object) -> None:
        if call == "write":
            for _press in range(self._times):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.001)  # of several at once the system delivers one
            self._times = 0


class _Hears:
    """Says what it hears; and, when the main thread waits for more, that it does."""

    def __init__(self) -> None:
        self._heard = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def __call__(self, piece: str) -> None:
        say(f"heard {piece}")
        self._heard.set()

    def end(self) -> None:
        self._ended = True
        self._heard.set()
        self._thread.join()

    def _wait(self) -> None:
        self._heard.wait()
        main = threading.main_thread()
        while main.ident is not None and not self._ended:
            frame = sys._current_frames()[main.ident]  # pyright: ignore[reportPrivateUsage]
            if frame.f_code.co_filename.endswith("selectors.py"):
                say("waits")
                return
            time.sleep(0.001)


def _run(agent: Any, mem: MemoryThread, hears: _Hears) -> None:
    hears(turnlog.run(agent, QUESTION, memory=mem).response)


def _run_told(agent: Any, mem: MemoryThread, hears: _Hears) -> None:
    turnlog.run(agent, QUESTION, memory=mem, on_text=hears)


def _arun_told(agent: Any, mem: MemoryThread, hears: _Hears) -> None:
    async def main() -> None:
        # A signal that comes just before Python waits is looked at when that wait has ended.
        beats = asyncio.create_task(_beats())
        await turnlog.arun(agent, QUESTION, memory=mem, on_text=hears)
        beats.cancel()

    asyncio.run(main())


async def _beats() -> None:
    while True:  # noqa: ASYNC110 - it waits for nothing
        await asyncio.sleep(0.01)


def _stream(agent: Any, mem: MemoryThread, hears: _Hears) -> None:
    for piece in turnlog.stream(agent, QUESTION, memory=mem):
        hears(piece)


def _stream_in_block(agent: Any, mem: MemoryThread, hears: _Hears) -> None:
    with turnlog.stream(agent, QUESTION, memory=mem) as stream:
        for piece in stream:
            hears(piece)


HOW: dict[str, Callable[[Any, MemoryThread, _Hears], None]] = {
    "run": _run,
    "on_text": _run_told,
    "asyncio": _arun_told,
    "stream": _stream,
    "block": _stream_in_block,
}


class _SecondPress:
    """Presses Ctrl-C at the first piece of text, and again so many lines of Python after it.

    Only the lines of files whose paths end so are counted.
    """

    def __init__(self, lines: int, file: str = "") -> None:
        self.left = lines
        self.armed = False
        self._file = file

    def hear(self, _: str) -> None:
        self.armed = True
        os.kill(os.getpid(), signal.SIGINT)

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(self._file):
            return None
        if self.armed and event == "line":
            self.left -= 1
            if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                self.press()
        return self.trace

    def press(self) -> None:
        """Press, where it is time, while it is turnlog that takes it."""
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def presses_at_each_line(root: str, kind: str, model: str, step: str) -> None:
    """Press Ctrl-C twice, the second one at each line after the first; say what was kept."""
    faulthandler.dump_traceback_later(_LONGEST, exit=True)
    agent = AGENTS[kind](model)
    lines, more = 1, True
    with Memory(root) as memory:
        while more:
            mem, second, raised = memory.open(str(lines)), _SecondPress(lines), ""
            sys.settrace(second.trace)
            try:
                turnlog.run(agent, QUESTION, memory=mem, on_text=second.hear)
            except BaseException as error:  # noqa: BLE001 - it is what the test looks at
                raised = type(error).__name__
            sys.settrace(None)
            good = (raised, turns_of(mem.messages())) == ("KeyboardInterrupt", [INPUT, PARTIAL])
            say(f"{lines} {good}")
            lines, more = lines + int(step), second.left <= 0
    faulthandler.cancel_dump_traceback_later()


class _Press(_SecondPress):
    """Presses Ctrl-C once: so many lines of Python on or, if it is not taken there, after them."""

    pressed = False

    def press(self) -> None:
        """Press, where it is time, while it is turnlog that takes it."""
        if self.left <= 0:
            self.pressed, self.armed = True, False
            os.kill(os.getpid(), signal.SIGINT)


def presses_in_a_stream(root: str, kind: str, model: str, step: str) -> None:
    """Press Ctrl-C at each line after a stream's first piece; say whether what was lost is told."""
    faulthandler.dump_traceback_later(_LONGEST, exit=True)
    agent, fails = AGENTS[kind](model), Fails("sync", errno.EIO, times=0)
    lines, more = 1, True
    with Memory(JsonlStore(root, system=Watched(fails))) as memory:
        turnlog.run(agent, QUESTION, memory=memory.open("first"))  # much is done but once
        fails.times = 1_000_000
        while more:
            mem, press, said = memory.open(str(lines)), _Press(lines), ""
            lost: BaseException | None = None
            sys.settrace(press.trace)
            try:
                with turnlog.stream(agent, QUESTION, memory=mem) as stream:
                    for piece in stream:
                        said += piece
                        press.armed = not press.pressed
            except KeyboardInterrupt as error:
                lost = error.__cause__
            except WritebackFailed as error:
                lost = error  # pressed too late, or not any more
            sys.settrace(None)
            turns = turns_of(lost.turns) if isinstance(lost, WritebackFailed) else []
            kept = "".join(text for _, text, _ in turns[1:])
            good = turns[:1] == [INPUT] and kept.startswith(said) and bool(said)
            say(f"{lines} {good or (said, lost, turns)}")
            gc.collect()
            lines, more = lines + int(step), press.pressed
    faulthandler.cancel_dump_traceback_later()


def presses_where_it_is_taken(root: str, kind: str, model: str) -> None:
    """Press Ctrl-C at each line of what takes it, near a stream's end; say whether it is told."""
    faulthandler.dump_traceback_later(_LONGEST, exit=True)
    agent, lines, more = AGENTS[kind](model), 1, True
    with Memory(root) as memory:
        while more:
            mem, press = memory.open(str(lines)), _Press(lines, "blocking.py")
            said, raised, press.armed = "", "", True
            try:
                for piece in turnlog.stream(agent, QUESTION, memory=mem):
                    said += piece
                    if said == "It is ":
                        sys.settrace(press.trace)
            except BaseException as error:  # noqa: BLE001 - it is what the test looks at
                raised = type(error).__name__
            sys.settrace(None)
            kept = "".join(text for _, text, _ in turns_of(mem.messages())[1:])
            wanted = "KeyboardInterrupt" if press.pressed else ""
            good = raised == wanted and kept.startswith(said) and bool(said)
            say(f"{lines} {good or (raised, said, kept)}")
            lines, more = lines + 1, press.pressed
    faulthandler.cancel_dump_traceback_later()


def leaves(root: str, kind: str, model: str, how: str) -> None:
    """Leave a stream early, and end."""
    agent = AGENTS[kind](model)
    mem = Memory(root).open("t")
    if how == "stream":
        globals()["kept"] = stream = turnlog.stream(agent, QUESTION, memory=mem)
        say(next(stream))
    else:
        asyncio.run(_leaves(agent, mem))


async def _leaves(agent: Any, mem: MemoryThread) -> None:
    globals()["kept"] = stream = turnlog.astream(agent, QUESTION, memory=mem)
    async for piece in stream:
        say(piece)
        break


def eagerly(root: str, kind: str, model: str, end: str) -> None:
    """Run a tool and hear a second reply with an eager writeback; then end the hard way."""

    def look() -> str:
        """Look it up."""
        return "found"

    def hear(piece: str) -> None:
        say(f"heard {piece}")
        if piece == "It is " and end == "exit":
            os._exit(3)

    agent = AGENTS[kind](model, tools=[look])
    mem = Memory(root).open("t")
    turnlog.run(agent, QUESTION, memory=mem, writeback="eager", on_text=hear)


def exits(root: str, kind: str, model: str) -> None:
    """End the program in the middle of a reply."""

    def hear(_: str) -> None:
        sys.exit(3)

    turnlog.run(AGENTS[kind](model), QUESTION, memory=Memory(root).open("t"), on_text=hear)


if __name__ == "__main__":
    gc.disable()  # as in `stops.watched`
    _, what, *arguments = sys.argv
    globals()[what](*arguments)
