"""A new process that reads one thread: `opener.py decode FILE` or `opener.py open ROOT ID`.

Prints how long it took to read the bytes and to make of them what it makes, in seconds, the number
of turns, and by how many bytes the process grew.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - msgspec reads the annotation at run time
import os
import sys
import time
from pathlib import Path

import msgspec

import turnlog


class Turn(msgspec.Struct, frozen=True, gc=False):
    """What the fastest typed decoder makes of a line."""

    role: str
    content: str
    at: dt.datetime


def resident() -> int:
    """Give the bytes of memory that the process has in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def decode(path: str) -> None:
    """Decode all lines of a file."""
    decoder = msgspec.json.Decoder(Turn)
    before, start = resident(), time.perf_counter()
    data = Path(path).read_bytes()
    read = time.perf_counter()
    turns = decoder.decode_lines(data)
    end = time.perf_counter()
    del data
    print(read - start, end - read, len(turns), resident() - before)


def open_(root: str, id_: str) -> None:
    """Open a thread, in a memory that has opened one before."""
    memory = turnlog.Memory(root)
    memory.open("none")
    before, start = resident(), time.perf_counter()
    thread = memory.open(id_)
    end = time.perf_counter()
    print(0.0, end - start, len(thread), resident() - before)


if __name__ == "__main__":
    {"decode": decode, "open": open_}[sys.argv[1]](*sys.argv[2:])
