"""The memory of a process that opens thread after thread, and keeps none of them.

As a program, `million.py ROOT COUNT...`, it opens so many distinct threads that do not exist, and
prints after each count how many bytes of memory the process has in use.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from opener import resident
from table import Row, at_most

import turnlog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def million_rows(root: Path, counts: Sequence[int]) -> Iterator[Row]:
    """Measure a new process, once: what it does is the same each time."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(root), *map(str, counts)],
        check=True,
        capture_output=True,
        text=True,
    )
    grown = [int(size) for size in done.stdout.split()]
    yield Row(
        f"memory after {' / '.join(f'{count:,}' for count in counts)} threads opened and dropped",
        f"{' / '.join(f'{size / 1e6:.1f}' for size in grown)} MB",
        "the longest beside the shortest",
        f"{grown[-1] / grown[0]:.2f} x the memory",
        at_most(1.05, grown[-1] / grown[0], " x"),
    )


def main(root: str, *counts: str) -> None:
    """Open the threads."""
    opened = 0
    with turnlog.Memory(root) as memory:
        for count in map(int, counts):
            for number in range(opened, count):
                memory.open(f"thread-{number}")
            opened = count
            print(resident())


if __name__ == "__main__":
    main(*sys.argv[1:])
