"""Measures turnlog and prints a table: `python benchmarks/run.py`, or `--smoke` for a quick look.

Every figure is the median of repetitions, and every comparison is taken within one repetition of
one run, since machines are noisy. The peers (dependency group `bench`) are used as they come; one
that is not installed is left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import sweep
import table
import tasks
from appends import append_rows, peer_append_rows
from conversations import conversation_rows
from importing import import_rows
from journal import journal_rows
from listing import listing_rows, peek_rows
from million import million_rows
from opening import open_rows, peer_load_rows
from peers import PEERS, Turnlog, installed
from processes import process_rows
from runs import run_rows
from syncs import described

import servers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from peers import Library


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        repetitions: how often everything is measured.
        appends: the appends beside bare writes.
        lengths: the lengths of threads and conversations, the longest last.
        add_lengths: the lengths of the conversations that are added to.
        peer_appends: the appends beside the peers.
        peer_lengths: the lengths of the threads that the peers append to; the longest is loaded.
        tasks: the tasks and threads of one asyncio process.
        each: the turns of each of the processes.
        threads: the threads to list.
        runs: the runs of an agent beside runs without memory.
        sweep: the tasks and threads of the sync sweep.
        dropped: the numbers of threads that are opened and dropped.
        servers: what is done on servers.
    """

    repetitions: int
    appends: int
    lengths: Sequence[int]
    add_lengths: Sequence[int]
    peer_appends: int
    peer_lengths: Sequence[int]
    tasks: tasks.Sizes
    each: int
    threads: int
    runs: int
    sweep: sweep.Sizes
    dropped: Sequence[int]
    servers: servers.Sizes


_FULL: Final = Sizes(
    repetitions=5,
    appends=500,
    lengths=(1000, 10_000, 100_000),
    add_lengths=(100, 10_000, 100_000),
    peer_appends=50,
    peer_lengths=(1000, 10_000),
    tasks=tasks.Sizes(each=50, threads=1000, paced=200),
    each=500,
    threads=100_000,
    runs=50,
    sweep=sweep.Sizes(turns=5000, many=1000, syncs=200),
    dropped=(10_000, 100_000, 1_000_000),
    servers=servers.Sizes(
        repetitions=3,
        appends=200,
        threads=1000,
        each=10,
        worked=500,
        turns=10_000,
        listed=1_000_000,
        news=5,
        writers=8,
    ),
)
_SMOKE: Final = Sizes(
    repetitions=1,
    appends=50,
    lengths=(10, 100, 1000),
    add_lengths=(10, 100, 1000),
    peer_appends=10,
    peer_lengths=(10, 100),
    tasks=tasks.Sizes(each=10, threads=20, paced=20),
    each=20,
    threads=1000,
    runs=5,
    sweep=sweep.Sizes(turns=100, many=20, syncs=20),
    dropped=(10, 100, 1000),
    servers=servers.Sizes(
        repetitions=1,
        appends=20,
        threads=20,
        each=2,
        worked=20,
        turns=100,
        listed=2000,
        news=2,
        writers=2,
    ),
)


def main() -> None:
    """Run all cases, print them as a Markdown table, then what they were measured with."""
    parser = argparse.ArgumentParser(description="Measure turnlog beside raw limits and peers.")
    parser.add_argument("--smoke", action="store_true", help="small sizes, one repetition")
    parser.add_argument("--folder", help="where to write (default: a new folder in this one)")
    options = parser.parse_args()
    sizes = _SMOKE if options.smoke else _FULL
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.folder or ".") as folder:
        root = Path(folder)
        root.chmod(0o711)  # where we are root, PostgreSQL's server is somebody else
        libraries: list[type[Library]] = [Turnlog]
        for peer in PEERS:
            if installed(peer, root / "installed"):
                libraries.append(peer)
            else:
                print(f"{peer.package} is not installed: the rows of its {peer.name} are left out.")
        for line in servers.lacking():
            print(line)
        table.show(all_rows(root, libraries, sizes))
        print()
        print(machine(folder))
        for library in libraries:
            syncs = described(library, root / "syncs" / library.name)
            name = "" if library is Turnlog else f"{library.name} of "
            print(f"- {name}{library.package} {library.version()}: {syncs}")
        for line in servers.described():
            print(f"- {line}")
        if options.smoke:
            print("This was a quick look: too little and too short to say anything about speed.")


def all_rows(root: Path, libraries: Sequence[type[Library]], sizes: Sizes) -> Iterator[table.Row]:
    """Measure everything, what needs a small process first."""
    times, long = sizes.repetitions, sizes.lengths[-1]
    memory = root / "memory"
    return chain(
        import_rows(times * 3),
        tasks.task_rows(root / "tasks", libraries, times, sizes.tasks),
        process_rows(root / "processes", libraries, times, sizes.each),
        sweep.sweep_rows(root / "sweep", times, sizes.sweep),
        servers.server_rows(root / "servers", sizes.servers),
        journal_rows(root / "journal", times, sizes.tasks.threads),
        append_rows(memory, times, sizes.appends, long),
        peer_append_rows(
            root / "appends", libraries, times, sizes.peer_appends, sizes.peer_lengths
        ),
        open_rows(memory, times, sizes.lengths[1:]),
        peer_load_rows(root / "loads", libraries, times, sizes.peer_lengths[-1]),
        peek_rows(memory, times, long),
        listing_rows(root / "listing", times, sizes.threads),
        million_rows(root / "dropped", sizes.dropped),
        conversation_rows(memory, times, sizes.add_lengths, sizes.lengths),
        run_rows(memory, times, sizes.runs, sizes.lengths[-2]),
    )


def machine(folder: str) -> str:
    """Say what it was measured on, and with."""
    found = subprocess.run(
        ["df", "--output=fstype", folder], capture_output=True, text=True, check=False
    )
    file_system = found.stdout.split()[-1] if found.stdout else "unknown file system"
    kernel = platform.release().partition("-")[0]
    return (
        f"{platform.system()} {kernel}, {file_system}, {os.cpu_count()} cores, "
        f"Python {sys.version.split()[0]}, msgspec {version('msgspec')}, "
        f"SQLite {sqlite3.sqlite_version}"
    )


if __name__ == "__main__":
    main()
