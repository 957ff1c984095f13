"""Ends what a test run leaves behind, when that run has ended in whatever way.

A program of its own, so that it outlives a run that was killed. Each line that comes in names a
process or a folder to look after ("+ 123", "+ /a/folder"), or one that is gone already ("- 123").
At the end of its input, which is the end of the run, it kills and removes what is still named.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

_A_MOMENT, _A_WHILE = 0.05, 5.0


def main() -> None:
    """Look after what is named, until the end of the input."""
    kept: dict[str, None] = {}
    for line in sys.stdin:
        sign, _, name = line.rstrip("\n").partition(" ")
        if sign == "+":
            kept[name] = None
        else:
            kept.pop(name, None)
    _end([int(name) for name in kept if name.isdecimal()])
    for name in kept:
        if not name.isdecimal():
            _remove(name)


def _end(processes: list[int]) -> None:
    """Let them end by themselves, in which they remove their shared memory; then kill them."""
    for number in (signal.SIGQUIT, signal.SIGCONT, signal.SIGKILL):
        deadline = time.monotonic() + (_A_WHILE if number == signal.SIGCONT else 0)
        while processes := [each for each in processes if _sent(each, number)]:
            if time.monotonic() > deadline:
                break
            time.sleep(_A_MOMENT)


def _sent(process: int, number: signal.Signals) -> bool:
    """Send a signal; say whether there was somebody to get it."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def _remove(folder: str) -> None:
    """Remove a folder in which processes that were just killed may still write."""
    deadline = time.monotonic() + _A_WHILE
    while os.path.lexists(folder) and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
