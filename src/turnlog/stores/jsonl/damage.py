"""What damage looks like in a thread's file, told quickly. Pure: it looks at bytes alone.

What is wrong with a line is worked out when it is looked at, and lines that can hold no turn are
found many at once: so a damaged line costs about as much time as a turn does.

Source: cases C41 and C60.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, overload

from turnlog.codec import find_records
from turnlog.stores.base import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnlog.stores.base import Position, Read

Place: TypeAlias = tuple[int, int, int]  # start and end of lines, and the first one's number

SHORTEST_TURN: Final = len(b'{"content":""}')
ENDS_OF_WIDE_LINES: Final = (b"\0", b"\0\0\0")  # behind a newline's first byte in UTF-16, in UTF-32

# Match lines that hold no turn: no brace is closed in them, or they are shorter than the shortest
# turn, or they are one object that is not UTF-8.
barren_lines: Final = re.compile(
    rb"""(?:
        [^\n{\0]*+ (?: {[^\n}\0]*+ )?+ \n
        | [^\n\0]{0,%d}+ \n
        | [^\n{\0\x80-\xff]*+ { [^\n{}\0\x80-\xff]*+
          (?: [\x80-\xc1\xf5-\xff] | [\xc2-\xf4](?![\x80-\xbf]) ) [^\n{}\0]*+ } \r?+ \n
    )++"""
    % (SHORTEST_TURN - 1),
    re.VERBOSE,
).match
# Find what is no blank.
not_blank: Final = re.compile(rb"[^ \t\r\n]").search

# The beginning of our lines, with NUL for what was lost, and with blanks for other people's lines.
_BEGINNING: Final = rb'[{\0][ \0]*["\0][r\0][o\0][l\0][e\0]["\0][ \0]*[:\0]'
_beginning: Final = re.compile(_BEGINNING).match
# Match lines that begin so and hold NUL, but no turn: no brace is closed before their end.
holed_lines: Final = re.compile(
    rb"(?:(?:\0++|(?=[^\n\0]*+\0)(?>%s)[^\n{}]*+}?+)\n)++" % _BEGINNING
).match
_SIGNS_OF_TURNS: Final = (b'"content"', b"\\u", b"\0")  # or an odd spelling of that key
_HEAD: Final = 64  # bytes, enough to see how a line begins
_NULS: Final = b"\0" * 16  # what is cut off is as what was lost
_control: Final = re.compile(rb"[\x00-\x08\x0a-\x1f]").search
_MOST_DAMAGE: Final = 1 << 19  # bytes, behind which a reader from the end looks for no turns
_STARTS_IN_A_LINE: Final = 2  # its own, and one in its meta


class Problems(Sequence[Problem]):
    """The problems of a buffer, worked out when they are looked at."""

    __slots__ = ("_begin", "_buffer", "_found", "_places")

    def __init__(self, buffer: bytes, begin: Position) -> None:
        """Begin with none of the buffer, which begins at a position."""
        self._buffer = buffer
        self._begin = begin
        self._places: array[int] = array("Q")  # start, end, number, start, end, number, ...
        self._found: tuple[Problem, ...] | None = None

    def note(self, places: Iterable[int]) -> None:
        """Note places of problems, one behind the other; blank lines in them are none."""
        self._places.extend(places)

    @property
    def size(self) -> int:
        """How many bytes they have, with the newlines and blank lines between them."""
        return sum(self._places[1::3]) - sum(self._places[::3])

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._places)

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self._all())

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        """Return one problem, or several."""
        return self._all()[index]

    def __iter__(self) -> Iterator[Problem]:
        """Return the problems in order."""
        return iter(self._all())

    def _all(self) -> tuple[Problem, ...]:
        if self._found is None:
            places = iter(self._places)
            self._found = tuple(
                problem
                for start, end, number in zip(places, places, places, strict=True)
                for problem in self._in_lines(start, end, number)
            )
        return self._found

    def _in_lines(self, start: int, end: int, number: int) -> Iterator[Problem]:
        while start < end:
            stop = self._buffer.find(b"\n", start, end)
            stop = end if stop < 0 else stop
            line = self._buffer[start:stop]
            if self._buffer.startswith(b"\n", stop):
                line = line.removesuffix(b"\r")
            reason = find_records(line)[1] if not_blank(line) else None
            if reason is not None:
                offset = self._begin.offset + start
                yield Problem(self._begin.lines + number, offset, len(line), reason)
            start, number = stop + 1, number + 1


def are_barren(buffer: bytes, start: int, end: int) -> bool:
    """Return whether no line can hold a turn: none has its text's key, or NUL, as what is torn."""
    return not any(buffer.find(sign, start, end) >= 0 for sign in _SIGNS_OF_TURNS)


def begins_as_ours(piece: bytes) -> bool:
    """Return whether a piece of a line may be of a turn of ours, of which any part may be lost."""
    return _beginning(piece[:_HEAD] + _NULS) is not None


def is_damaged_beyond_measure(head: bytes, read: Read, torn: bytes) -> bool:
    """Return whether so much damage was read at a file's end that a reader goes no further back.

    Args:
        head: the end of a line of which the beginning was not read yet.
        read: what was read behind it.
        torn: what an unfinished append has left behind that.
    """
    size = read.problems.size if isinstance(read.problems, Problems) else 0
    if size + torn.count(b"\0") > _MOST_DAMAGE:
        return True
    return len(head) > _MOST_DAMAGE and not _may_end_a_line(head)


def _may_end_a_line(head: bytes) -> bool:
    """Return whether a line of ours may end so; where it has no newline it may be cut off."""
    line = head.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) < len(head) and not line.endswith(b"}"):
        return False
    return _control(line) is None and line.count(b'{"role":') <= _STARTS_IN_A_LINE
