"""The crash simulation: processes at work, a power cut, and what the next process finds.

A run is drawn from its seed, with all that its threads do and how they take turns; so are the
states that a power cut may have left of it. Each is opened, and what is found is held against all
that was answered before the cut. Of some the opening itself is cut off, and what that leaves is
opened in turn.
"""

from __future__ import annotations

import os
import random
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bytesofit import aside, turn
from powercut import Disk, State, distinct, lay_out, states
from simulation_calls import Recorder
from simulation_history import History, Step, check_turns
from simulation_schedule import Schedule, stand_ins
from simulation_work import SIZES, THREADS, Process, Writer, texts

from turnlog import Memory
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from simulation_history import Contents, Place

DAMAGE, TORN = b'{"role":"us\0er"\n', turn("x" * SIZES[1])[:-20]
BROKEN = turn("first") + DAMAGE + turn("second") + TORN
AT_A_MOMENT, OF_A_RUN, OF_A_RECOVERY = 12, 60, 8  # how many states are drawn
CUT_AGAIN = 10  # the recovery of one state of so many is cut off too


@dataclass(frozen=True)
class Kind:
    """A kind of workload."""

    operations: Sequence[str]
    processes: int = 2
    writers: int = 1  # threads of each process
    count: int = 4  # operations of each of those
    threads: int = 1
    kills: bool = False
    short: bool = False  # writes may come to the disk in pieces
    broken: bool = False  # the first thread's file is damaged, and torn


KINDS = {
    "shared": Kind(("append", "extend", "keyed", "expect", "refresh", "load", "peek")),
    "killed": Kind(
        ("append", "extend", "keyed", "refresh", "load"), processes=3, kills=True, short=True
    ),
    "failing": Kind(("append", "extend", "keyed", "refresh", "fail", "load"), short=True),
    "deleted": Kind(("append", "extend", "delete", "load", "refresh"), kills=True),
    "repaired": Kind(("append", "extend", "repair", "load", "refresh"), kills=True, broken=True),
    "threads": Kind(
        ("append", "extend", "together", "refresh", "load"), writers=2, count=3, threads=3
    ),
    "all": Kind(
        (
            *("append", "extend", "keyed", "expect", "refresh", "load", "peek", "delete"),
            *("repair", "fail"),
        ),
        processes=3,
        threads=2,
        kills=True,
        short=True,
        broken=True,
    ),
}


@dataclass
class Run:
    """What was done, on what."""

    old: Path
    base: Disk
    history: History


def run(kind: Kind, draw: random.Random, old: Path) -> Run:
    """Have some processes work on a memory below a folder."""
    state: State = ()
    if kind.broken:
        state = (("memory", None), ("memory/default", None), ("memory/default/t.jsonl", BROKEN))
    lay_out(state, old)
    base = Disk.of(state, old)
    disk = Recorder(files=dict(base.names))
    history = History(disk.ops)
    if kind.broken:
        history.damage[THREADS[0]] = [DAMAGE, TORN]
        history.steps.append(Step(THREADS[0], "append", 0, ("first", "second"), 0, "yes"))
    schedule = Schedule(draw)
    with stand_ins(schedule), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work(
            kind,
            draw,
            schedule,
            [Process(str(old / "memory"), history, disk, schedule) for _ in range(kind.processes)],
        )
    return Run(old, base, history)


def work(kind: Kind, draw: random.Random, schedule: Schedule, processes: Sequence[Process]) -> None:
    """Have processes work until they are done."""
    for number, process in enumerate(processes):
        process.system.most = draw.choice((50, 1 << 30)) if kind.short else 1 << 30
        if kind.kills and number:
            process.mark(draw)
        for thread in range(kind.writers):
            writer = Writer(f"{number}.{thread}", process, draw)
            schedule.add(
                lambda writer=writer: writer.work(kind.operations, kind.count, kind.threads),
                process,
            )
    schedule.run()
    for process in processes:
        process.close()


# ---- after the cut ----


def file_of(root: Path, thread: Place) -> Path:
    """Give the path of a thread's file."""
    namespace, id_ = thread
    return root / namespace / f"{id_}.jsonl"


def opened(root: Path, history: History, system: Recorder, then: str = "") -> dict[Place, Contents]:
    """Open each thread in a new process, check it, and append to it if there is something to."""
    found: dict[Place, Contents] = {}
    with Memory(JsonlStore(root, system=system)) as memory:
        for place in history.threads:
            namespace, id_ = place
            step = history.begin(place, "read")
            thread = memory.open(id_, namespace)
            found[place] = step.seen = texts(thread)
            history.end(step)
            check_turns(history, place, found[place])
            repaired = any(step.answer == "yes" for step in history.of(place, "repair"))
            broken = place in history.damage and not repaired
            may_be_damaged = broken or len(history.unanswered(place)) > 1
            assert may_be_damaged or not thread.problems, f"damaged: {thread.problems}"
            if then:
                step = history.begin(place, "append", (then,))
                thread.append(then)
                step.answer = "yes"
                history.end(step)
    return found


def recover(root: Path, history: History, system: Recorder) -> None:
    """Open what a power cut has left, as the next process does; check it, and go on."""
    files = {place: file_of(root, place) for place in history.threads}
    before = {place: file.read_bytes() for place, file in files.items() if file.exists()}
    found = opened(root, history, system)
    for place, data in before.items():
        check_bytes(history, place, data, files[place])
    then = f"next {history.now}"
    assert opened(root, history, system, then) == found, "another opening finds something else"
    went_on = {place: (*texts, then) for place, texts in found.items()}
    assert opened(root, history, system) == went_on, "it does not go on"


def check_bytes(history: History, place: Place, before: bytes, file: Path) -> None:
    """Check that an opening lost no byte of a file."""
    after, torn = file.read_bytes(), aside(file)
    whole = after if before.startswith(after) else after.removesuffix(b"\n")
    assert before.startswith(whole), f"changed: {before!r} is {after!r}"
    assert before[len(whole) :] in torn, f"bytes are lost: {before[len(whole) :]!r}"
    if not history.of(place, "delete"):
        for piece in history.damage.get(place, []):
            assert piece in after + b"|" + torn, f"bytes are lost: {piece!r}"


@dataclass
class Tally:
    """How many states were tried, and what was wrong with some of them."""

    tried: int = 0
    wrong: list[str] = field(default_factory=list[str])


def try_states(done: Run, draw: random.Random, place: Path, most: int, tally: Tally) -> None:
    """Open some of the states that a power cut may leave of a run.

    Of the openings of states of a first run, some are cut off in turn.
    """
    found = states(done.history.ops, done.base, AT_A_MOMENT, draw.randrange(1 << 30))
    every = list(distinct(found, str(done.old)))
    for state, now in draw.sample(every, min(len(every), most)):
        lay_out(state, place)
        base = Disk.of(state, place)
        system = Recorder(files=dict(base.names))
        history = done.history.cut(now, system.ops)
        tally.tried += 1
        try:
            recover(place / "memory", history, system)
        except AssertionError as error:
            steps = "\n".join(map(str, done.history.steps))
            tally.wrong.append(f"{error}\nafter {now} of\n{steps}\nin {state}")
            continue
        finally:
            shutil.rmtree(place)
        if most == OF_A_RUN and draw.randrange(CUT_AGAIN) == 0:
            again = Run(place, base, history)
            try_states(again, draw, place.with_name("again"), OF_A_RECOVERY, tally)


def simulate(kind: Kind, seed: int, place: Path) -> Tally:
    """Draw a run from a seed, and states that a power cut may leave of it."""
    tally = Tally()
    draw = random.Random(f"{kind} {seed}")
    done = run(kind, draw, place / "old")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try_states(done, draw, place / "new", OF_A_RUN, tally)
    shutil.rmtree(place)
    return tally


@contextmanager
def scratch(tmp_path: Path) -> Generator[Path]:
    """Give the path for a folder in memory, where the system has such; else on the disk."""
    in_memory = "/dev/shm"
    with TemporaryDirectory(dir=in_memory if os.path.isdir(in_memory) else tmp_path) as folder:
        yield Path(folder) / "run"
