"""Whether a library syncs: strace counts the calls of fsync and fdatasync that an append makes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from peers import Library

_WRITER: Final = Path(__file__).with_name("writer.py")
_STRACE: Final = ("strace", "-f", "-qq", "-ttt", "-e", "trace=fsync,fdatasync", "-o")
_WARM: Final = 10
_APPENDS: Final = 100


def described(library: type[Library], folder: Path) -> str:
    """Say whether a library syncs, with the count of this machine where it can be had."""
    count = _syncs_a_turn(library, folder)
    if count is not None:
        return f"{count:.1f} syncs an appended turn, counted with strace"
    known = "syncs each appended turn" if library.syncs else "never syncs"
    return f"{known} (known from its source; there is no strace here to count them)"


def _syncs_a_turn(library: type[Library], folder: Path) -> float | None:
    """Count the syncs of 100 appends, after ten others; None where strace cannot trace."""
    if shutil.which("strace") is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / "trace"
    with subprocess.Popen(
        [*_STRACE, str(trace), sys.executable, str(_WRITER), library.name, str(folder), "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        if not (_told(process, "open thread") and _told(process, f"append {_WARM}")):
            return None
        start = time.time()
        _told(process, f"append {_APPENDS}")
        end = time.time()
    return sum(start <= at <= end for at in _sync_times(trace)) / _APPENDS


def _told(process: subprocess.Popen[str], order: str) -> bool:
    """Give an order to a writer, and wait until it was followed; false where it is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{order}\n")
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return process.stdout.readline() != ""


def _sync_times(trace: Path) -> list[float]:
    """Give when each sync began. A line of the trace is `PID SECONDS CALL(...) = RESULT`."""
    lines = trace.read_text().splitlines()
    return [float(line.split()[1]) for line in lines if "sync(" in line]
