"""R23: a program that is interrupted, or ends, in the middle of a run keeps what was said."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from localserver import Gate, Provider, Reply, ToolCall, turns
from stopped import Done, done, stopping
from stops import INPUT, PARTIAL, QUESTION, kept
from ways import AGENTS
from writers import line

import turnlog
from turnlog import Memory

if TYPE_CHECKING:
    from pathlib import Path

    from replies import Body
    from ways import Make
    from writers import Process


def half_a_reply(_: Body) -> Reply:
    """Stop in the middle of each reply."""
    return Reply("It is ", Gate(), "paid.")


def in_pieces(_: Body) -> Reply:
    """Reply in three pieces."""
    return Reply("It ", "is ", "paid.")


# ---- Ctrl-C ----


def interrupted(provider: Provider, process: Process, hows: list[str]) -> list[str]:
    """Interrupt a program once in the middle of each reply; give what it says of that."""
    said: list[str] = []
    for number, _ in enumerate(hows):
        assert [line(process), line(process)] == ["heard It is ", "waits"]
        process.send_signal(signal.SIGINT)
        said.append(line(process))
        provider.calls[number].disconnected.expect()
    assert done(process) == Done(0, [], "")
    return said


def check_each_line(process: Process) -> None:
    """Check a program that presses at one line after another: all that it says holds each time."""
    status, lines, complaints = done(process)
    assert (status, complaints) == (0, "")
    assert len(lines) > 3
    assert [line for line in lines if not line.endswith(" True")] == []


PLAIN = ["on_text", "stream", "block"]


@pytest.mark.parametrize("kind", AGENTS)
def test_ctrl_c_before_the_first_byte(
    provider: Provider, model: str, kind: str, root: Path
) -> None:
    """Ctrl-C while the provider says nothing ends the run, and the input is kept (R23, A01)."""
    gate = Gate()
    provider.script(Reply(gate, "It is paid."))
    with stopping("asks", root, kind, model, "run", "good", 0) as process:
        gate.reached.expect()
        process.send_signal(signal.SIGINT)
        assert done(process) == Done(0, ["raised KeyboardInterrupt"], "")
    provider.calls[0].disconnected.expect()
    assert kept(root, "run") == [INPUT]


@pytest.mark.parametrize("kind", AGENTS)
def test_ctrl_c(provider: Provider, model: str, kind: str, root: Path) -> None:
    """Ctrl-C in the middle of a reply ends the run, and what was heard is kept (R23, A02)."""
    provider.reply = half_a_reply
    hows = ["asyncio", *PLAIN]
    with stopping("asks", root, kind, model, " ".join(hows), "good", 0) as process:
        said = interrupted(provider, process, hows)
    assert said == ["raised KeyboardInterrupt"] * 4
    assert [kept(root, how) for how in hows] == [[INPUT, PARTIAL]] * 4


@pytest.mark.parametrize("kind", AGENTS)
def test_ctrl_c_again_while_the_store_writes(
    provider: Provider, one_model: str, kind: str, root: Path
) -> None:
    """A second Ctrl-C, and a third, do not break off what the first one has written (A05)."""
    provider.reply = half_a_reply
    with stopping("asks", root, kind, one_model, " ".join(PLAIN), "good", 2) as process:
        said = interrupted(provider, process, PLAIN)
    assert said == ["raised KeyboardInterrupt"] * 3
    assert [kept(root, how) for how in PLAIN] == [[INPUT, PARTIAL]] * 3


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("again", [0, 2])
def test_ctrl_c_and_not_written(
    provider: Provider, one_model: str, kind: str, again: int, root: Path
) -> None:
    """Where the store fails after Ctrl-C, KeyboardInterrupt comes with the error as its cause."""
    provider.reply = half_a_reply
    with stopping("asks", root, kind, one_model, " ".join(PLAIN), "failing", again) as process:
        said = interrupted(provider, process, PLAIN)
    lost = f"raised KeyboardInterrupt from WritebackFailed with {[INPUT, PARTIAL]}"
    assert said == [lost] * 3
    assert [kept(root, how) for how in PLAIN] == [[INPUT, PARTIAL]] * 3


@pytest.mark.parametrize("kind", AGENTS)
def test_second_ctrl_c_at_each_line(
    provider: Provider, one_model: str, kind: str, root: Path
) -> None:
    """At whichever line the second Ctrl-C comes, what was heard is kept, and no more happens."""
    provider.reply = half_a_reply
    with stopping("presses_at_each_line", root, kind, one_model, 199) as process:
        check_each_line(process)


@pytest.mark.parametrize("kind", AGENTS)
def test_ctrl_c_at_each_line_of_a_stream(
    provider: Provider, one_model: str, kind: str, root: Path
) -> None:
    """At whichever line Ctrl-C comes while a stream is read, what the store refuses is told."""
    provider.reply = in_pieces
    with stopping("presses_in_a_stream", root, kind, one_model, 1997) as process:
        check_each_line(process)


def test_ctrl_c_at_each_line_of_what_takes_it(
    provider: Provider, one_model: str, root: Path
) -> None:
    """No Ctrl-C is lost, at whichever line of what waits for it, and gives it back, it comes."""
    provider.reply = in_pieces
    with stopping("presses_where_it_is_taken", root, "ours", one_model) as process:
        check_each_line(process)


# ---- the program ends ----


@pytest.mark.parametrize("how", ["stream", "astream"])
@pytest.mark.parametrize("kind", AGENTS)
def test_left_at_the_end_of_the_program(
    provider: Provider, one_model: str, kind: str, how: str, root: Path
) -> None:
    """A stream that is left early, and still held when the program ends, is kept (R23, A02)."""
    provider.reply = half_a_reply
    with stopping("leaves", root, kind, one_model, how) as process:
        assert done(process) == Done(0, ["It is "], "")
    assert kept(root) == [INPUT, PARTIAL]


@pytest.mark.parametrize("kind", AGENTS)
def test_exit_in_the_middle(provider: Provider, one_model: str, kind: str, root: Path) -> None:
    """A program that exits in the middle of a reply keeps what was heard (R23)."""
    provider.reply = half_a_reply
    with stopping("exits", root, kind, one_model) as process:
        assert done(process) == Done(3, [], "")
    assert kept(root) == [INPUT, PARTIAL]


@pytest.mark.parametrize("end", ["kill", "exit"])
@pytest.mark.parametrize("kind", AGENTS)
def test_killed(provider: Provider, one_model: str, kind: str, end: str, root: Path) -> None:
    """After a kill -9, or os._exit, what was written eagerly is there: input and whole replies."""
    provider.script(
        Reply("Let me look.", ToolCall("look")), Reply("It is ", gate := Gate(), "paid.")
    )
    with stopping("eagerly", root, kind, one_model, end) as process:
        assert [line(process), line(process)] == ["heard Let me look.", "heard It is "]
        if end == "kill":
            gate.reached.expect()
            process.kill()
        assert done(process) == Done(3 if end == "exit" else -signal.SIGKILL, [], "")
    provider.calls[1].disconnected.expect()
    assert kept(root) == [INPUT, ("assistant", "Let me look.", False)]


# ---- the next one ----


def test_the_next_process_remembers(provider: Provider, model: str, make: Make, root: Path) -> None:
    """After Ctrl-C, another process sends what was said on, the partial text too (R24, A03)."""
    provider.script(half_a_reply)
    with stopping("asks", root, "ours", model, "on_text", "good", 0) as process:
        interrupted(provider, process, ["on_text"])
    with Memory(root) as memory:
        turnlog.run(make(model), "Any update?", memory=memory.open("on_text"))
    assert turns(provider.requests[1]) == [
        ("user", QUESTION),
        ("assistant", "It is "),
        ("user", "Any update?"),
    ]
