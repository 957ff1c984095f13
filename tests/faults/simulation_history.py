"""What was done to threads and what was answered, and what must follow of it after a power cut."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from simulation_calls import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

Contents: TypeAlias = "tuple[str, ...]"
Place: TypeAlias = "tuple[str, str]"  # a thread's namespace and id
Answer: TypeAlias = Literal["yes", "no", "unknown"]
NEVER = 1 << 60


@dataclass
class Step:
    """One operation on a thread.

    Attributes:
        thread: its namespace and id.
        what: append, delete, repair or read.
        begin: how many beginnings and ends of steps were before it, over all threads.
        contents: what it appends, as one.
        end: as `begin`, of its end.
        answer: what its caller was told; "no" says that nothing of it is there, nor ever will be.
        seen: the thread's turns as its caller was given them, if it was.
    """

    thread: Place
    what: str
    begin: int
    contents: Contents = ()
    end: int = NEVER
    answer: Answer = "unknown"
    seen: Contents | None = None

    def cut(self, now: int) -> Step:
        """Give it as it was when the power was cut."""
        if self.end > now:
            return replace(self, end=now, answer="unknown", seen=None)
        if self.what == "delete" and self.answer == "unknown":
            return replace(self, end=now)  # it may come to the disk as long as there is power
        return self


@dataclass
class History:
    """All steps, in the order in which they began; the beginnings and ends are noted as calls."""

    ops: list[Op]
    steps: list[Step] = field(default_factory=list[Step])
    now: int = 0
    # What is no turn in a thread's file from the beginning: it is kept, in the file or beside it.
    damage: dict[Place, list[bytes]] = field(default_factory=dict["Place", "list[bytes]"])

    def begin(self, thread: Place, what: str, contents: Contents = ()) -> Step:
        """Note that a step begins."""
        self._tick("begun")
        step = Step(thread, what, self.now, contents)
        self.steps.append(step)
        return step

    def end(self, step: Step) -> None:
        """Note that a step ended, or will never end."""
        self._tick("done")
        step.end = self.now

    def _tick(self, kind: str) -> None:
        self.now += 1
        self.ops.append(Op(kind, file=self.now))

    def cut(self, now: int, ops: list[Op]) -> History:
        """Give what had happened when the power was cut, to go on with other calls."""
        return replace(
            self, ops=ops, steps=[s.cut(now) for s in self.steps if s.begin <= now], now=now
        )

    @property
    def threads(self) -> list[Place]:
        """Give the threads that something was done to."""
        return list(dict.fromkeys(step.thread for step in self.steps))

    def of(self, thread: Place, what: str) -> list[Step]:
        """Give the steps of one kind on a thread."""
        return [step for step in self.steps if step.thread == thread and step.what == what]

    def unanswered(self, thread: Place) -> list[Contents]:
        """Give the appends of which nobody can know whether they are there.

        Of one alone a power cut keeps all or nothing. Where another stands behind it, as in a batch
        of several, what the cut left of a turn is no torn tail, but damage: it costs only itself.
        """
        return [step.contents for step in self.of(thread, "append") if step.answer == "unknown"]


def check_turns(history: History, thread: Place, found: Sequence[str]) -> None:
    """Check a thread's turns after a power cut."""
    appends = history.of(thread, "append")
    deletes = history.of(thread, "delete")
    units = _units(found, {step.contents for step in appends})
    assert len(set(units)) == len(units), f"twice: {found}"
    for unit in units:
        attempts = [step for step in appends if step.contents == unit and step.answer != "no"]
        assert attempts, f"not written, and there: {unit} in {found}"
        gone = max((d.begin for d in deletes if d.answer == "yes"), default=-1)
        assert any(step.end > gone for step in attempts), f"deleted, and there: {unit} in {found}"
    for step in (step for step in history.steps if step.thread == thread):
        if any(delete.end > step.begin for delete in deletes if delete.answer != "no"):
            continue
        if step.what == "append" and step.answer == "yes":
            assert step.contents in units, f"lost: {step.contents} of {found}"
        if step.seen is not None:
            seen = tuple(found[: len(step.seen)])
            assert seen == step.seen, f"seen before and lost: {step.seen} is {found}"


def _units(found: Sequence[str], submitted: set[Contents]) -> list[Contents]:
    """Give the appends that a thread's turns are from."""
    by_first = {contents[0]: contents for contents in submitted}
    units: list[Contents] = []
    at = 0
    while at < len(found):
        unit = by_first.get(found[at], ())
        assert unit, f"never submitted: {found[at]} in {found}"
        assert tuple(found[at : at + len(unit)]) == unit, f"not whole: {unit} in {found}"
        units.append(unit)
        at += len(unit)
    return units
