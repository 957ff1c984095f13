"""The table: a row a figure, what a row is compared with, and whether its target is met."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        what: what was measured.
        value: turnlog's figure: the median of the repetitions, with its unit.
        against: what it is compared with, and that one's own figure.
        ratio: the median of the ratios, each taken within one repetition.
        target: the bound that we hold ourselves to, and whether it is met in this run.
    """

    what: str
    value: str
    against: str = ""
    ratio: str = ""
    target: str = ""


def median(values: Iterable[float]) -> float:
    """Give the middle of the values."""
    return statistics.median(values)


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Give the median of the ratios of what was measured in the same repetitions."""
    pairs = zip(over, under, strict=True)
    return median(above / below if below else math.inf for above, below in pairs)


def at_most(bound: float, value: float, unit: str = "") -> str:
    """Write a target that the value must not exceed."""
    return f"<= {bound:g}{unit}: {'met' if value <= bound else 'missed'}"


def at_least(bound: float, value: float, unit: str = "") -> str:
    """Write a target that the value must reach."""
    return f">= {bound:g}{unit}: {'met' if value >= bound else 'missed'}"


def duration(seconds: float) -> str:
    """Write a duration in the unit that suits it."""
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            amount = seconds / size
            return f"{amount:.{0 if amount >= 100 else 1 if amount >= 10 else 2}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def show(rows: Iterable[Row]) -> None:
    """Print each row as soon as it is measured, as a Markdown table."""
    print("| What | turnlog | Against | Ratio | Target |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
