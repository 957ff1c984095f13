"""Measures turnlog and prints a table: `python benchmarks/run.py`, or `--smoke` for a quick look.

Every figure is the median of repetitions, and every comparison is taken within one repetition of
one run, since machines are noisy. The peer is openai-agents' SQLiteSession (dependency group
`bench`), in its default form: SQLite, journal mode WAL, synchronous=FULL, in a thread a call.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sqlite3
import sys
import tempfile
from itertools import chain
from pathlib import Path

from cases import Row, append_rows, import_rows, open_rows, process_rows, task_rows


def main() -> None:
    """Run all cases and print them as a Markdown table."""
    parser = argparse.ArgumentParser(
        description="Measure turnlog beside its raw limits and a peer."
    )
    parser.add_argument("--smoke", action="store_true", help="small sizes, one repetition")
    parser.add_argument("--folder", help="where to write (default: a new folder in this one)")
    options = parser.parse_args()
    smoke = options.smoke
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.folder or ".") as folder:
        root = Path(folder)
        repetitions = 1 if smoke else 5
        long = 1000 if smoke else 100_000
        rows = chain(
            import_rows(repetitions * 3),
            append_rows(root / "memory", repetitions, 50 if smoke else 500, long),
            open_rows(root / "memory", repetitions, long),
            task_rows(
                root, repetitions, 5 if smoke else 50, 20 if smoke else 1000, 20 if smoke else 300
            ),
            process_rows(root / "memory", 4, 10 if smoke else 500),
        )
        print_table(rows)


def print_table(rows: chain[Row]) -> None:
    """Print each row as soon as it is measured, then what it was measured with."""
    print("| What | Median | Against | Ratio | Target |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    versions = [
        f"{name} {importlib.metadata.version(name)}"
        for name in ("turnlog", "msgspec", "openai-agents")
    ]
    print(
        f"\n{platform.system()} {platform.release()}, {os.cpu_count()} cores, "
        f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, {', '.join(versions)}"
    )


if __name__ == "__main__":
    main()
