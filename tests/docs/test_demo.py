"""The demonstration: a killed writer, a second process, and a file with nothing lost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEMO = EXAMPLES / "demo.py"


def run(*arguments: str, folder: Path, demo: Path = DEMO) -> subprocess.CompletedProcess[str]:
    """Run the demonstration, or one of its processes, from a folder."""
    return subprocess.run(
        [sys.executable, str(demo), *arguments],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )


def test_every_acknowledged_turn_outlives_the_kill(tmp_path: Path) -> None:
    """A writer killed by SIGKILL leaves each acknowledged turn (Contract 1, R4, C01)."""
    done = run(folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    acknowledged = re.search(r"It had acknowledged (\d+) turns when SIGKILL ended it", done.stdout)
    assert acknowledged is not None
    number = acknowledged[1]
    assert 9 <= int(number) <= 24
    assert f"Nothing was lost: {number} of {number} acknowledged turns survived" in done.stdout
    assert "all 24 turns are in the file, each once, in their order" in done.stdout
    assert "TornTailWarning" in done.stdout
    assert ".sema/memory/support/ticket-981.jsonl.torn:" in done.stdout
    assert str(DEMO.parents[1]) not in done.stdout  # no path of this machine
    assert [*DEMO.parents[1].glob(".demo-*"), *tmp_path.iterdir()] == []  # it cleaned up


def test_a_lost_turn_is_not_passed_over(tmp_path: Path) -> None:
    """The demonstration fails where a turn that was acknowledged is not in the thread."""
    assert run("write", folder=tmp_path).stdout.split()[-1] == "24"
    file = tmp_path / ".sema/memory/support/ticket-981.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:4], *lines[5:]]))

    done = run("go-on", "9", folder=tmp_path)

    assert done.returncode == 1
    assert "LOST: turn 5 was acknowledged and is not there" in done.stderr


def test_an_agent_that_was_stopped_remembers(tmp_path: Path) -> None:
    """An agent stopped in mid-reply leaves what was said; the next process sends it (R23, R24)."""
    done = run(folder=tmp_path, demo=EXAMPLES / "agent_demo.py")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert '"interrupted":true' in done.stdout.replace("\n    ", "")
    assert "The question and the half of a reply survived the stop" in done.stdout
    assert str(DEMO.parents[1]) not in done.stdout
    assert [*DEMO.parents[1].glob(".demo-*"), *tmp_path.iterdir()] == []
