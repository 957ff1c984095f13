"""Contract 1 and 5: several processes and threads at work, and a power cut at any moment of it.

A failure names the kind and the seed: `simulate(KINDS[kind], seed, place)` does it
again. TURNLOG_SIMULATIONS=1000 tries so many seeds of each kind, instead of a few.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import KINDS, Kind, run, scratch, simulate

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = int(os.environ.get("TURNLOG_SIMULATIONS", "10"))
OPERATIONS = ("append", "extend", "keyed", "expect", "refresh", "load", "delete", "repair", "fail")
SMALL = st.builds(
    Kind,
    st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=4),
    processes=st.integers(1, 3),
    count=st.integers(1, 3),
    kills=st.booleans(),
    short=st.booleans(),
    broken=st.booleans(),
)


@pytest.mark.timeout(0 if SEEDS > 100 else 120)
@pytest.mark.parametrize("kind", KINDS)
def test_power_cut(tmp_path: Path, kind: str) -> None:
    """Whatever the next process finds, it has all that was acknowledged, and goes on (R13)."""
    tried = 0
    for seed in range(SEEDS):
        with scratch(tmp_path) as place:
            tally = simulate(KINDS[kind], seed, place)
        assert not tally.wrong, f"{kind}, seed {seed}, {len(tally.wrong)}: {tally.wrong[0]}"
        tried += tally.tried
    assert tried > 20 * SEEDS
    print(f"{kind}: {SEEDS} runs, {tried} states")


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_says_all(tmp_path: Path, kind: str) -> None:
    """The same seed gives the same calls in the same order, so that a failure can be had again."""
    runs: list[list[tuple[str, int, int, int]]] = []
    for _ in range(2):
        with scratch(tmp_path) as place:
            ops = run(KINDS[kind], random.Random(0), place).history.ops
        runs.append([(op.kind, op.file, op.offset, len(op.data)) for op in ops])
    assert runs[0] == runs[1]
    assert len(runs[0]) > 20


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=SMALL, seed=st.integers(0, 1 << 20))
def test_any_work(tmp_path: Path, kind: Kind, seed: int) -> None:
    """No work of a few operations, however it is interleaved, loses or makes up a turn (R13)."""
    with scratch(tmp_path) as place:
        assert simulate(kind, seed, place).wrong == []
