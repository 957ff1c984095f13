"""Contract 1 and 5: writers that are killed in the middle of their work, by SIGKILL."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from machine import needs_strace, strace
from writers import contents, each_in_order, go, line, lines_on_disk, rest, result, running

from turnlog import Memory, TornTailWarning

if TYPE_CHECKING:
    from pathlib import Path

# What each writer of a storm does, and how large its turns are: small ones, units of three, and
# such as take the system long enough to be killed half-way.
STORM = (("append", 30), ("extend", 3_000), ("append", 300_000), ("append", 3_000_000))


@pytest.mark.parametrize("acknowledged", [1, 3])
def test_storm(root: Path, acknowledged: int) -> None:
    """A storm of kill -9 loses no acknowledged turn and shows no torn one (Contract 1, R13)."""
    expected: dict[str, int] = {}
    for turn in range(3):
        with ExitStack() as stack:
            writers = {
                f"{turn}.{number}": stack.enter_context(
                    running(what, root, "t", f"{turn}.{number}", 0, size)
                )
                for number, (what, size) in enumerate(STORM)
            }
            for writer in writers.values():
                assert line(writer) == "ready"
            for writer in writers.values():
                go(writer)
            last = {
                name: [line(writer) for _ in range(acknowledged)][-1]
                for name, writer in writers.items()
            }
            for writer in writers.values():
                writer.kill()
            for name, writer in writers.items():
                writer.wait()
                expected[name] = int([last[name], *rest(writer)][-1])
    found = each_in_order(contents(root))
    for name, number in expected.items():
        assert found[name] >= number + 1, (name, number)
    for name in found:
        if name.endswith(".1"):
            assert found[name] % 3 == 0, "a unit is there in part"
    assert each_in_order(lines_on_disk(root)) == found


@needs_strace
@pytest.mark.parametrize("call", ["write", "fdatasync", "flock"])
@pytest.mark.parametrize("when", [1, 2, 5])
def test_killed_at_a_call(root: Path, call: str, when: int) -> None:
    """A process killed at any step of an append leaves whole turns: all that were acknowledged."""
    file = root / "default" / "t.jsonl"
    under = strace(f"{call}:signal=SIGKILL:when={when}", file)
    acknowledged = result("append", root, "t", "a", 10, 5_000, under=under)[1:]
    assert acknowledged == [str(i) for i in range(len(acknowledged))]
    assert len(acknowledged) < 10
    found = each_in_order(contents(root))["a"]
    assert found in {len(acknowledged), len(acknowledged) + 1}
    with Memory(root) as memory:
        memory.open("t").append("b 0")
    assert each_in_order(lines_on_disk(root)) == Counter(a=found, b=1)


@needs_strace
@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_killed_in_the_middle_of_a_unit(root: Path, call: str) -> None:
    """An extend killed at its write or its sync is there whole or not at all (Contract 1)."""
    file = root / "default" / "t.jsonl"
    under = strace(f"{call}:signal=SIGKILL:when=2", file)
    acknowledged = result("extend", root, "t", "a", 5, 5_000, under=under)[1:]
    assert acknowledged == ["2"]
    assert each_in_order(contents(root))["a"] in {3, 6}


@needs_strace
@pytest.mark.parametrize("call", ["openat", "write", "fsync", "ftruncate", "fdatasync"])
def test_killed_in_a_repair(root: Path, call: str) -> None:
    """A process killed at any step of a repair costs nothing: the next one repairs (Contract 5)."""
    with Memory(root) as memory:
        memory.open("t").append("a 0")
    file = root / "default" / "t.jsonl"
    whole = file.read_bytes()
    torn = whole[: len(whole) // 2]
    file.write_bytes(whole + torn)
    # The first opening in the folder is of the file itself, the second of the copy.
    when = 2 if call == "openat" else 1
    under = strace(f"{call}:signal=SIGKILL:when={when}", root / "default")
    under[under.index("-P") : under.index("-P")] = [
        *("-P", str(file)),
        *("-P", f"{file}.torn"),
    ]
    assert result("append", root, "t", "b", 1, 10, under=under) == []
    aside = file.with_name("t.jsonl.torn")
    left = file.read_bytes() + (aside.read_bytes() if aside.exists() else b"")
    assert left.startswith(whole)
    assert torn in left[len(whole) :]
    if file.read_bytes() == whole:  # it was cut before the kill
        assert contents(root) == ["a 0"]
    else:
        with pytest.warns(TornTailWarning), Memory(root) as memory:
            assert [m.content for m in memory.open("t").messages()] == ["a 0"]
    assert file.read_bytes() == whole
    assert aside.read_bytes() == torn
