"""Turns and damage that are mixed line by line, told apart by their bytes and read together.

What takes a longer look, or belongs to a unit, is left to the scanner of `format`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from turnlog.codec import FUSED, check_lines, fused_spans, glance_each, may_hold_records
from turnlog.stores.jsonl.damage import barren_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnlog.codec import Record

_OPEN, _CLOSE = b"{}"
_more, _unit = map(attrgetter, ("more", "unit"))


@dataclass(slots=True)
class Sifted:
    """Turns and damage, told apart line by line; the turns are read all at once."""

    number: int  # of the last line that was taken
    turns: list[bytes] = field(default_factory=list[bytes])
    spans: array[int] = field(default_factory=lambda: array("Q"))
    places: array[int] = field(default_factory=lambda: array("Q"))
    alone: bool = True  # whether each turn has a line for itself, as other programs' turns must

    def take(self, start: int, data: bytes) -> bool:
        """Take the lines of some data; say whether none of them needs a longer look."""
        spans, places, turns = self.spans, self.places, self.turns
        lines = data.split(b"\n")
        broken = b"\0" in data or FUSED in data
        for number, line in enumerate(lines, self.number + 1):
            stop = start + len(line)
            if broken and (b"\0" in line or FUSED in line):
                if not self._take_broken(start, line, number):
                    return False
            elif (
                b"}" not in line
                or (b'"content"' not in line and b"\\u" not in line)
                or not (line.isascii() or barren_lines(line + b"\n") is None)
            ):
                if line.strip(b" \t\r"):
                    places.extend((start, stop, number))
            elif line[0] == _OPEN and line[-1] == _CLOSE:
                spans.append(start)
                spans.append(stop)
                turns.append(line)
            else:
                return False
            start = stop + 1
        self.number += len(lines)
        return True

    def _take_broken(self, start: int, line: bytes, number: int) -> bool:
        found = fused_spans(line)
        if not found and may_hold_records(line):
            return False
        self.alone = self.alone and not found
        for begin, end in found:
            self.spans.extend((start + begin, start + end))
            self.turns.append(line[begin:end])
        self.places.extend((start, start + len(line), number))
        return True

    def records(self) -> Sequence[Record] | None:
        """Read the turns; None where one of them needs a longer look, or is of a unit."""
        records = check_lines(memoryview(b"\n".join(self.turns)))
        if records is None and self.alone:
            records = glance_each(self.turns)
        if records is None or len(records) != len(self.turns):
            return None
        return None if any(map(_more, records)) or any(map(_unit, records)) else records
