"""A program whose writers are interrupted by exceptions at any moment, and go on as advised.

`python interruptedwriters.py work URL NAME ACKNOWLEDGED SECONDS`: writers append for so long, to
threads of their own and to shared ones. Alarms raise in the main thread, which appends by turns
synchronously and in asyncio tasks. Another thread sets exceptions in OS threads. Each acknowledged
turn becomes a line of the file ACKNOWLEDGED.

Then nothing is interrupted any more. The program says "idle", with the numbers of the alarms and
of the exceptions that another thread set, and waits for a line. It appends to every thread from a
new OS thread, and says "done" (or, of a memory in this process, what its threads hold). At last
the main thread appends until SIGTERM ends it.

A writer numbers its turns, thread by thread, and tries each until it is acknowledged. One that
gets no further for a long time ends the program with a dump of all stacks.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import json
import math
import os
import random
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from writers import ready, say

import turnlog
from turnlog import LockTimeout, Memory, NotWritten, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from turnlog import MemoryThread

LOCK_TIMEOUT: Final = 20.0
LONGEST_TURN: Final = 30.0  # seconds, in which a writer must be acknowledged something
SHARED: Final = ("shared-0", "shared-1")
EXIT_CODE: Final = 3
_OS_THREADS: Final = 2
_TASKS: Final = 4
_SHORTEST, _LONGEST = 0.0002, 0.01  # seconds from an interruption to the next
_ASYNCIO: Final = os.path.dirname(asyncio.__file__)
_OURS: Final = (os.path.dirname(turnlog.__file__), __file__)


class Timeout(Exception):
    """What a handler raises that means a failure."""


class Exit(SystemExit):
    """What a handler raises that means the end."""


INTERRUPTIONS: Final = (Timeout, Exit)


def own_ids(name: str) -> list[str]:
    """Return the threads that only the process of this name appends to."""
    return [f"{name}-main", *(f"{name}-os-{number}" for number in range(_OS_THREADS))]


class Writer:
    """Appends numbered turns to threads, each until it is acknowledged.

    Attributes:
        interruptible: whether it may be interrupted; whatever does that sets it to False.
        interruptions: how many have come.
        ended: whether it stops after the turn that it is at.
        progressed: when it was last acknowledged something; infinity once it has stopped.
        mutex: held by another thread while it interrupts.
    """

    def __init__(
        self, memory: Memory, name: str, ids: Sequence[str], note: Callable[[str, str], None]
    ) -> None:
        """Open the threads."""
        self.interruptible = False
        self.interruptions = 0
        self.ended = False
        self.progressed = time.monotonic()
        self.mutex = threading.Lock()
        self._memory, self._name, self._ids, self._note = memory, name, ids, note
        self._threads = {id_: memory.open(id_) for id_ in ids}
        self._next = dict.fromkeys(ids, 0)
        self._acknowledged = 0

    def interrupt(self) -> None:
        """Note that an interruption is about to come."""
        self.interruptible = False
        self.interruptions += 1

    def work(self) -> None:
        """Append until it has ended. Interruptions may come at any line, but in an opening."""
        while True:
            try:
                while not self.ended:
                    with suppress(*INTERRUPTIONS):
                        self.some_turns()
            except INTERRUPTIONS:  # one that came in the handler of another
                continue
            self.progressed = math.inf
            return

    def some_turns(self) -> None:
        """Append until it has ended."""
        while not self.ended:
            self.interruptible = True
            self.turn()

    def turn(self) -> None:
        """Append a turn to the thread whose turn it is."""
        id_ = self._ids[self._acknowledged % len(self._ids)]
        thread = self._thread(id_)
        content = self._content(id_)
        try:
            thread.append(content, key=content)
        except LockTimeout:
            raise
        except (NotWritten, OutcomeUnknown):
            return
        self.acknowledge(id_)

    def turn_without_key(self, id_: str) -> None:
        """Append a turn to a thread of its own, unless the thread shows it."""
        thread = self._thread(id_)
        content = self._content(id_)
        messages = thread.messages()
        if not messages or messages[-1].content != content:
            try:
                thread.append(content)
            except OutcomeUnknown:
                return
        self.acknowledge(id_)

    async def aturn(self, id_: str) -> None:
        """Append a turn to a thread."""
        if not self._threads[id_].usable:
            self._threads[id_] = await self._memory.aopen(id_)
        content = self._content(id_)
        try:
            await self._threads[id_].aappend(content, key=content)
        except LockTimeout:
            raise
        except (NotWritten, OutcomeUnknown):
            return
        self.acknowledge(id_)

    def acknowledge(self, id_: str) -> None:
        """Note that a turn was acknowledged; the next one is the next number."""
        self._note(id_, self._content(id_))
        self._next[id_] += 1
        self._acknowledged += 1
        self.progressed = time.monotonic()

    def _content(self, id_: str) -> str:
        return f"{self._name} {self._next[id_]}"

    def _thread(self, id_: str) -> MemoryThread:
        if not self._threads[id_].usable:
            with self.mutex:
                self.interruptible = False
            self._threads[id_] = self._memory.open(id_)
            self.interruptible = True
        return self._threads[id_]


class MainWriter(Writer):
    """The main thread's, which signals reach."""

    def __init__(self, memory: Memory, name: str, note: Callable[[str, str], None]) -> None:
        """Open the threads."""
        self._own = f"{name}-main"
        super().__init__(memory, f"{name}-main", SHARED, note)
        self._threads[self._own] = memory.open(self._own)
        self._next[self._own] = 0
        self._tasks = [
            Writer(memory, f"{name}-task-{number}", (*SHARED, self._own), note)
            for number in range(_TASKS)
        ]

    def some_turns(self) -> None:
        """Append some turns synchronously, or some in tasks."""
        for _ in range(10):
            self.interruptible = True
            self.turn()
            self.turn_without_key(self._own)
        self.interruptible = False  # a loop that is half made, or half closed, is not ours
        with suppress(asyncio.CancelledError):
            asyncio.run(self._in_tasks())

    async def _in_tasks(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_cancel_all)
        try:
            self.interruptible = True
            await asyncio.gather(*map(self._in_task, self._tasks))
        finally:
            self.interruptible = False

    async def _in_task(self, writer: Writer) -> None:
        for id_ in (*SHARED, self._own):
            await writer.aturn(id_)


def _cancel_all(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Cancel all tasks where one of the loop's callbacks was interrupted: some may wait for it."""
    if not isinstance(context.get("exception"), (*INTERRUPTIONS, asyncio.CancelledError)):
        _fail(" ".join(repr(context).split()))
    for task in asyncio.all_tasks(loop):
        task.cancel()


def alarms(writer: Writer) -> Callable[[int, FrameType | None], None]:
    """Return a handler that sets the next alarm, and raises where the writer is interruptible."""

    def handle(_: int, frame: FrameType | None) -> None:
        if _of_asyncio(frame):
            signal.setitimer(signal.ITIMER_REAL, _SHORTEST)
            return
        signal.setitimer(signal.ITIMER_REAL, random.uniform(_SHORTEST, _LONGEST))
        if writer.interruptible:
            writer.interrupt()
            raise random.choice(INTERRUPTIONS)

    return handle


def _of_asyncio(frame: FrameType | None) -> bool:
    """Tell whether asyncio is at work: it loses the callback that it is about to call, or a task.

    Not where it waits for events, and not in what its callbacks and tasks call.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_ASYNCIO):
            return True
        if code.co_name == "select" or code.co_filename.startswith(_OURS):
            return False
        frame = frame.f_back
    return False


def set_exceptions(writers: dict[int, Writer], stopped: threading.Event) -> None:
    """Set exceptions in the OS threads of writers, by their identifiers."""
    while not stopped.wait(random.uniform(_SHORTEST, _LONGEST)):
        ident, writer = random.choice(list(writers.items()))
        with writer.mutex:
            if writer.interruptible and not _starts_a_thread(ident):
                writer.interrupt()
                exception = ctypes.py_object(random.choice(INTERRUPTIONS))
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), exception)


def _starts_a_thread(ident: int) -> bool:
    """Tell whether an OS thread is starting another: Python may then give that the exception.

    The other dies of it before it says that it has begun, and `Thread.start` never returns.
    """
    frame = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


def watch(writers: Sequence[Writer]) -> None:
    """End the program where a writer gets no further."""
    while True:
        time.sleep(0.5)
        late = [
            w for w in writers if not w.ended and time.monotonic() - w.progressed > LONGEST_TURN
        ]
        if late:
            faulthandler.dump_traceback(all_threads=True)
            _fail("a writer hangs")


def _fail(what: str) -> NoReturn:
    say(f"failed: {what}")
    os._exit(1)


def _guarded(work: Callable[[], object]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the test is told
        traceback.print_exc()
        _fail(" ".join(repr(error).split()))


def main(url: str, name: str, acknowledged: str, seconds: str) -> None:
    """Append, interrupted and then not, until SIGTERM comes."""
    faulthandler.dump_traceback_later(float(seconds) + 2 * LONGEST_TURN, exit=True)
    file = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(id_: str, content: str) -> None:
        os.write(file, f"{id_}\t{content}\n".encode())

    with Memory(url, lock_timeout=LOCK_TIMEOUT) as memory:
        main_writer = MainWriter(memory, name, note)
        others = [Writer(memory, id_, (id_, *SHARED), note) for id_ in own_ids(name)[1:]]
        ready()
        threading.Thread(target=watch, args=((main_writer, *others),), daemon=True).start()
        _guarded(partial(interrupted, main_writer, others, float(seconds)))
        say(f"idle {main_writer.interruptions} {sum(writer.interruptions for writer in others)}")
        sys.stdin.readline()
        last = Writer(memory, f"{name}-last", (*SHARED, *own_ids(name)), note)
        _guarded(partial(one_turn_each, last, (*SHARED, *own_ids(name))))
        signal.signal(signal.SIGTERM, _leave)
        say(_contents(memory, name) if url == "memory://" else "done")
        end = Writer(memory, f"{name}-end", (*SHARED, *own_ids(name)), note)
        while True:
            end.turn()


def interrupted(main_writer: Writer, others: Sequence[Writer], seconds: float) -> None:
    """Have writers append for so long, all of them interrupted now and then."""
    threads = [
        threading.Thread(target=_guarded, args=(writer.work,), daemon=True) for writer in others
    ]
    for thread in threads:
        thread.start()
    stopped = threading.Event()
    by_thread = {thread.ident or 0: writer for thread, writer in zip(threads, others, strict=True)}
    setting = threading.Thread(target=set_exceptions, args=(by_thread, stopped), daemon=True)
    setting.start()

    def end() -> None:
        stopped.wait(seconds)
        main_writer.ended = True

    threading.Thread(target=end, daemon=True).start()
    signal.signal(signal.SIGALRM, alarms(main_writer))
    signal.setitimer(signal.ITIMER_REAL, _LONGEST)
    main_writer.work()
    main_writer.interruptible = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    stopped.set()
    setting.join()
    for writer in others:
        writer.ended = True
    for thread in threads:
        thread.join()


def one_turn_each(writer: Writer, ids: Sequence[str]) -> None:
    """Append a turn to each thread, from a new OS thread."""

    def work() -> None:
        for _ in ids:
            writer.turn()

    thread = threading.Thread(target=_guarded, args=(work,), daemon=True)
    thread.start()
    thread.join()


def _contents(memory: Memory, name: str) -> str:
    return json.dumps(
        {
            id_: [message.content for message in memory.open(id_).messages()]
            for id_ in (*SHARED, *own_ids(name))
        }
    )


def _leave(*_: object) -> NoReturn:
    sys.exit(EXIT_CODE)


if __name__ == "__main__":
    faulthandler.enable()
    main(*sys.argv[2:])
