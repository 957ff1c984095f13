"""A writer to a store on a server that tells what became of each turn. Whatever the server is.

A turn is named by its writer and a number, and is tried once. What became of it is one of: it was
acknowledged; it was refused, so that it is surely not there; or nobody knows. A writer that is told
that nobody knows opens the thread again, as the error says, and goes on with its next turn.

`python serverwriters.py write URL NAME LOCK_TIMEOUT ID...` is a writer in a process of its own,
which says in a line each what became of its turns, until its standard input ends. `serverstorm`
starts them.
"""

from __future__ import annotations

import sys
import threading
from itertools import count
from typing import TYPE_CHECKING, Final

from writers import say

from turnlog import Memory, NotWritten, OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnlog import MemoryThread

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
NOTHING: Final = ""  # an error that concerns no turn
FAILED, DONE = "failed", "done"  # said once, at the end of a process


class Tally:
    """What became of one writer's turns.

    Attributes:
        turns: each turn, as (what became of it, its thread's id, its content).
        errors: what the writer was told, an error a line.
        failures: what no writer may be told, or what ended it.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.turns: Final[list[tuple[str, str, str]]] = []
        self.errors: Final[list[str]] = []
        self.failures: Final[list[str]] = []

    def note(self, became: str, id_: str, content: str, error: str) -> None:
        """Note what became of a turn, and what the writer was told."""
        if became:
            self.turns.append((became, id_, content))
        if error:
            self.errors.append(error)

    def of(self, became: str) -> list[tuple[str, str]]:
        """Give the turns that this became of, each with its thread."""
        return [(id_, content) for what, id_, content in list(self.turns) if what == became]


def write(
    memory: Memory,
    name: str,
    ids: Sequence[str],
    ended: Callable[[], bool],
    note: Callable[[str, str, str, str], None],
) -> None:
    """Append to threads in turn until it is told to end; say what became of each turn."""
    threads: dict[str, MemoryThread] = {}
    for number in count():
        id_, content = ids[number % len(ids)], f"{name} {number}"
        while id_ not in threads or not threads[id_].usable:
            if ended():
                return
            try:
                threads[id_] = memory.open(id_)
            except StoreError as error:  # the server is away for longer than we have patience
                note(NOTHING, id_, "", _words(error))
        if ended():
            return
        try:
            threads[id_].append(content)
        except NotWritten as error:
            note(REFUSED, id_, content, _words(error))
        except OutcomeUnknown as error:
            note(UNKNOWN, id_, content, _words(error))
        else:
            note(OK, id_, content, "")


def _words(error: StoreError) -> str:
    return " ".join(f"{type(error).__name__}: {error.what}".split())


def main(url: str, name: str, lock_timeout: str, *ids: str) -> None:
    """Be a writer, until standard input ends."""
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    try:
        with Memory(url, lock_timeout=float(lock_timeout)) as memory:
            write(memory, name, ids, ended.is_set, _tell)
    except Exception as error:  # noqa: BLE001 - the test is told
        _tell(FAILED, "", "", " ".join(repr(error).split()))
    else:
        _tell(DONE, "", "", "")


def _tell(became: str, id_: str, content: str, error: str) -> None:
    say(f"{became}\t{id_}\t{content}\t{error}")


if __name__ == "__main__":
    main(*sys.argv[2:])
