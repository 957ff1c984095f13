"""From the lines that a server gave back to what was read: turns, their keys, and problems.

For stores whose lines are whole or not there at all: no crash leaves a torn one. What holds no turn
was put there by somebody else; it costs only itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnlog.codec import check_lines, find_records
from turnlog.stores.base import Problem, Read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnlog.codec import Record
    from turnlog.stores.base import Position


def read_of(lines: Sequence[bytes], position: Position) -> Read:
    """Give what was read: `lines`, the last of which stand right before `position`.

    The position's `offset` counts the lines of the thread, whether they hold turns or not.
    """
    records = _records(lines)
    if records is None:
        return _one_by_one(lines, position)
    keys: dict[str, int] = {}
    for index, record in enumerate(records):
        if record.key is not None:
            keys.setdefault(record.key, index)
    return Read(lines, position, keys)


def _records(lines: Sequence[bytes]) -> Sequence[Record] | None:
    """Read the lines at once; None where one of them has to be looked at by itself."""
    if not all(line[:1] == b"{" and line[-1:] == b"}" for line in lines):
        return None
    records = check_lines(memoryview(b"\n".join(lines)))
    return records if records is not None and len(records) == len(lines) else None


def _one_by_one(lines: Sequence[bytes], position: Position) -> Read:
    turns: list[bytes] = []
    keys: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in enumerate(lines, position.offset - len(lines) + 1):
        found, reason = find_records(line)
        if reason is not None:
            problems.append(Problem(number, number - 1, len(line), reason))
        for start, end, record in found:
            if record.key is not None:
                keys.setdefault(record.key, len(turns))
            turns.append(line[start:end])
    return Read(turns, position, keys, tuple(problems))
