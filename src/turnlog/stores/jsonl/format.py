r"""The bytes of a thread's file: lines, turns, problems and tears. Pure: it looks at no disk.

The file is UTF-8, one JSON object a line (`turnlog.codec` has the object), `\n` after each, and
nothing else. Lines are split at the byte `\n` alone. Tolerated: a byte order mark at the start,
`\r` before `\n`, and blank lines, which count as lines but hold nothing.

A line that holds no turn is a **problem**: it costs only itself, and its bytes stay. At the end of
the file it may be a **tear** instead: what a crash has left of an append of ours that was never
acknowledged. It is judged by its place and its bytes, never by a parser's message. A tear begins
as our lines do, `{"role":`, except that NUL may stand for any byte: a power cut may keep a file's
size and lose a sector, which reads as NUL then.

- A last line without `\n` is torn where it begins so and is no whole JSON. A whole turn only lacks
  its newline.
- A last line with `\n` is torn where it begins so too and holds NUL: a power cut can keep the last
  sector of a line, with its newline, and lose an earlier one. Any other line that ends is a problem
  at most, whatever its bytes are: no append of ours can have left it.
- What stands behind a whole turn on its line is judged as if it were a line.
- The lines before a tear are torn too, as long as they are such leftovers, and so is a unit (an
  `extend`) that never became whole.
- A file without a single turn, and that does not begin like one of ours, is another program's:
  nothing of it is torn.

Anywhere else the lines of a broken unit are turns like any others: damage costs only itself.

A damaged line costs about as much time as a turn does. So what is wrong with it is worked out when
it is looked at, lines that can hold no turn are passed over many at once, and the turns between
them are read together.

Source: design, sections 3 and 4; cases C41 and C60.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias, overload
from zlib import crc32

from turnlog.codec import (
    FUSED,
    check_lines,
    find_fused,
    find_records,
    glance,
    is_cut_off,
    may_hold_records,
    repeated_key,
)
from turnlog.stores.base import Position, Problem, Read
from turnlog.stores.jsonl.damage import (
    ENDS_OF_WIDE_LINES,
    SHORTEST_TURN,
    Problems,
    are_barren,
    barren_lines,
    begins_as_ours,
    holed_lines,
    not_blank,
)
from turnlog.stores.jsonl.sifted import Sifted

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from typing import SupportsIndex

    from turnlog.codec import Record
    from turnlog.stores.jsonl.damage import Place

_BOM: Final = b"\xef\xbb\xbf"
_CHUNK: Final = (
    1 << 18
)  # what is decoded at once: large enough to be quick, small enough for caches
_MARKED: Final = 4096  # enough to hold some turn's time, which no other life of a thread has
_FEW: Final = 1 << 12  # bytes in which a line that holds no turn is looked for one by one
_NEAR: Final = 4  # lines, of which one is a turn where turns and damage are mixed
_HEAD: Final = 64  # bytes, enough to see how a file begins
_OPEN, _CLOSE, _NEWLINE = b"{}\n"

_UNIT: Final = 30  # bytes, within which a line of ours says of what unit it is the last
_more, _unit, _key = map(attrgetter, ("more", "unit", "key"))

_Span: TypeAlias = tuple[int, int, str | None]  # start, end and idempotency key of a turn


class Lines(Sequence[bytes]):
    """The whole turns of a buffer, cut out when they are looked at: 16 bytes a turn beside it."""

    __slots__ = ("buffer", "spans")

    def __init__(self, buffer: bytes) -> None:
        """Begin with no turns of the buffer."""
        self.buffer: bytes = buffer
        self.spans: array[int] = array("Q")  # start, end, start, end, ...

    def __len__(self) -> int:
        """Give the number of turns."""
        return len(self.spans) >> 1

    @overload
    def __getitem__(self, index: SupportsIndex) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> bytes | list[bytes]:
        """Cut out one line, or several."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = range(len(self))[index] << 1
        return self.buffer[self.spans[i] : self.spans[i + 1]]


@dataclass(frozen=True, slots=True)
class Tail:
    """What the end of the file needs before anything may be appended.

    Attributes:
        torn: the bytes of an unfinished append, at the very end; b"" where there are none.
        unterminated: the last line stays but lacks its newline.
    """

    torn: bytes = b""
    unterminated: bool = False

    @property
    def sound(self) -> bool:
        """Whether the next line can be appended as it is."""
        return not self.torn and not self.unterminated


def scan(buffer: bytes, begin: Position, incarnation: Hashable) -> tuple[Read, Tail]:
    """Read the bytes of a file from a position to its end.

    Args:
        buffer: the bytes.
        begin: where in the file they begin, at a line's start.
        incarnation: the file's identity, for the new position.

    Returns:
        What was read, up to where a tear begins, and what the tail needs.
    """
    scanner = _Scanner(buffer, begin)
    scanner.run()
    torn_from = scanner.finish()
    passed = scanner.lines - buffer.count(b"\n", torn_from)
    unterminated = torn_from > 0 and buffer[torn_from - 1] != _NEWLINE
    position = Position(
        incarnation,
        begin.offset + torn_from,
        begin.lines + passed,
        mark_of(buffer, torn_from) if torn_from else begin.mark,
        unterminated,
    )
    read = Read(
        scanner.turns,
        position,
        scanner.keys,
        scanner.problems or (),
        audit=partial(audit, scanner.turns, begin),
    )
    return read, Tail(buffer[torn_from:], unterminated)


def ends_unit(line: bytes) -> bool:
    """Tell whether a line is the last of a unit; it may say so of one that is not, seldom."""
    return b',"unit":' in line[-_UNIT:]


def mark_of(data: bytes, end: int) -> tuple[int, int]:
    """Give the mark of a position behind the first `end` bytes of some data."""
    start = max(0, end - _MARKED)
    return end - start, crc32(memoryview(data)[start:end])


def mark_behind(mark: tuple[int, int], data: bytes) -> tuple[int, int]:
    """Return the mark of the position behind some data, which follows the position of a mark."""
    size, checksum = mark
    if size + len(data) > _MARKED:
        return mark_of(data, len(data))
    return size + len(data), crc32(data, checksum)


def audit(turns: Lines, begin: Position) -> tuple[Problem, ...]:
    """Find what `scan` passes over for speed's sake: turns that give a key more than once."""
    problems: list[Problem] = []
    line, seen = begin.lines + 1, 0
    for index, turn in enumerate(turns):
        reason = repeated_key(turn)
        if reason is not None:
            start = turns.spans[2 * index]
            line, seen = line + turns.buffer.count(b"\n", seen, start), start
            problems.append(Problem(line, begin.offset + start, len(turn), reason))
    return tuple(problems)


@dataclass(slots=True)
class _Suspect:
    """What is not sound, from `start` on: a problem, a tear or a part of a unit; time will tell."""

    start: int
    turns: list[_Span] = field(default_factory=list[_Span])
    problem: Place | None = None
    may_be_torn: bool = True

    def is_right_before(self, place: Place) -> bool:
        """Tell whether it is damage as well, on the line before."""
        return self.may_be_torn and self.problem is not None and self.problem[1] + 1 == place[0]

    def extend(self, place: Place) -> None:
        """Take in the line behind."""
        start, _, number = self.problem or place
        self.problem = (start, place[1], number)


@dataclass(slots=True)
class _Scanner:
    """One pass over a buffer: many lines at once where they are plain, else line by line."""

    buffer: bytes
    begin: Position
    turns: Lines = field(init=False)
    keys: dict[str, int] = field(default_factory=dict[str, int])
    problems: Problems = field(init=False)
    suspects: list[_Suspect] = field(default_factory=list[_Suspect])
    unit: list[_Span] = field(default_factory=list[_Span])
    lines: int = 0

    def __post_init__(self) -> None:
        self.turns = Lines(self.buffer)
        self.problems = Problems(self.buffer, self.begin)

    def run(self) -> None:
        view = memoryview(self.buffer)
        start = len(_BOM) if self.begin.offset == 0 and self.buffer.startswith(_BOM) else 0
        stop = self.buffer.rfind(b"\n") + 1
        while start < stop:
            end = self.buffer.rfind(b"\n", start, start + _CHUNK) + 1
            end = end or self.buffer.index(b"\n", start) + 1
            self._many_lines(view, start, end)
            start = end
        if max(start, stop) < len(self.buffer):
            self._last_line(max(start, stop))

    def _many_lines(self, view: memoryview, start: int, end: int) -> None:
        """Take lines at once; where one of them is not plain, halve them until it is alone."""
        records = check_lines(view[start:end])
        if records is not None and self._plain_lines(start, end, records):
            return
        if are_barren(self.buffer, start, end):
            self._barren(start, end)
            return
        if (records is not None or end - start <= _FEW) and self._mixed_lines(start, end):
            return
        middle = self.buffer.rfind(b"\n", start, (start + end) // 2) + 1
        if middle and end - start > _FEW:
            self._many_lines(view, start, middle)
            self._many_lines(view, middle, end)
        else:
            self._each_line(start, end)

    def _plain_lines(self, start: int, end: int, records: Sequence[Record]) -> bool:
        """Take lines that are each one object; say whether that is what they are."""
        spans = array("Q")
        find, add, buffer = self.buffer.find, spans.append, self.buffer
        at = start
        while at < end:
            newline = find(b"\n", at, end)
            if buffer[at] != _OPEN or buffer[newline - 1] != _CLOSE:
                return False
            add(at)
            add(newline)
            at = newline + 1
        if len(spans) != 2 * len(records):
            return False
        self.lines += len(records)
        if self.suspects or self.unit or any(map(_more, records)) or any(map(_unit, records)):
            for i, record in enumerate(records):
                self._take(spans[2 * i], spans[2 * i + 1], record)
        else:
            self._note_keys(records)
            self.turns.spans.extend(spans)
        return True

    def _mixed_lines(self, start: int, end: int) -> bool:
        """Take turns and damage at once, unless a line needs a longer look; say whether it did."""
        stop = end  # of what is taken at once: a line with NUL in it is no tear if a turn follows
        if self.buffer.find(b"\0", start, end) >= 0:
            stop = self._last_turn(start, end)
        sifted = Sifted(self.lines)
        if start == stop or not sifted.take(start, self.buffer[start : stop - 1]):
            return False
        records = sifted.records()
        if records is None:
            return False
        self._settle()
        self._note_keys(records)
        self.lines = sifted.number
        self.turns.spans.extend(sifted.spans)
        self.problems.note(sifted.places)
        self._each_line(stop, end)
        return True

    def _last_turn(self, start: int, end: int) -> int:
        """Return where a line near the end starts that holds a turn: no tear begins before it."""
        for _ in range(_NEAR):
            begin = max(start, self.buffer.rfind(b"\n", start, end - 1) + 1)
            found = find_fused(self.buffer[begin : end - 1])
            if found and not (found[0][2].more or found[0][2].unit):
                return begin
            end = begin
        return start

    def _note_keys(self, records: Sequence[Record]) -> None:
        if any(map(_key, records)):
            for index, record in enumerate(records, len(self.turns)):
                if record.key is not None:
                    self.keys.setdefault(record.key, index)

    def _each_line(self, start: int, end: int) -> None:
        while start < end:
            newline = self.buffer.index(b"\n", start)
            line = self.buffer[start:newline]
            if b"\0" in line:
                holed = holed_lines(self.buffer, start, end)
                if holed is not None:
                    self._damaged((start, holed.end() - 1, self.lines + 1), b"\0")
                    self.lines += self.buffer.count(b"\n", start, holed.end())
                    start = holed.end()
                    continue
            elif len(line) < SHORTEST_TURN or line[-1] not in b"}\r" or not line.isascii():
                barren = barren_lines(self.buffer, start, end)
                if barren is not None:
                    self._barren(start, barren.end())
                    start = barren.end()
                    continue
            self.lines += 1
            self._line(start, line.removesuffix(b"\r"))
            start = newline + 1

    def _barren(self, start: int, end: int) -> None:
        """Take lines that hold no turn, and that no append of ours has left."""
        self._settle()
        if not_blank(self.buffer, start, end):
            self.problems.note((start, end, self.lines + 1))
        self.lines += self.buffer.count(b"\n", start, end)

    def _line(self, start: int, line: bytes) -> None:
        """Take a line that ended."""
        if b"\0" in line or FUSED in line:
            self._broken_line(start, line)
            return
        record = glance(line)
        if record is False:
            self._damaged((start, start + len(line), self.lines), line)
        elif record is not True and line[0] == _OPEN and line[-1] == _CLOSE:
            self._take(start, start + len(line), record)
        else:
            self._judge(start, line, self.lines)

    def _broken_line(self, start: int, line: bytes) -> None:
        """Take a line that ended, and that is no JSON."""
        found = find_fused(line)
        if found:
            self._divide(start, line, found, (start, start + len(line), self.lines))
        elif may_hold_records(line):
            self._judge(start, line, self.lines)
        else:
            self._damaged((start, start + len(line), self.lines), line)

    def _damaged(self, place: Place, line: bytes) -> None:
        """Take a line that ended, and holds no turn at all."""
        if b"\0" not in line or not self._may_be_torn(place[0], line, ended=True):
            self._settle()
            self.problems.note(place)
        elif self.suspects and not self.unit and self.suspects[-1].is_right_before(place):
            self.suspects[-1].extend(place)
        else:
            self._suspect(_Suspect(place[0], problem=place))

    def _last_line(self, start: int) -> None:
        """Take a line without a newline."""
        if not_blank(self.buffer, start):
            self._judge(start, self.buffer[start:], self.lines + 1, ended=False)
        else:
            self._settle()

    def _judge(self, start: int, line: bytes, number: int, *, ended: bool = True) -> None:
        """Look for the turns in a line, and take it."""
        found, reason = find_records(line)
        problem = None if reason is None else (start, start + len(line), number)
        self._divide(start, line, found, problem, ended=ended)

    def _divide(
        self,
        start: int,
        line: bytes,
        found: list[tuple[int, int, Record]],
        problem: Place | None,
        *,
        ended: bool = True,
    ) -> None:
        """Take the turns that were found in a line, and note what else it holds."""
        pieces = list(_pieces(line, found))
        if len(pieces) == len(found) and problem is not None:
            # Fused, or with a key given twice: turns all the same, but no line of a unit of ours.
            self._settle()
            self.problems.note(problem)
            self._add([(start + begin, start + end, record.key) for begin, end, record in found])
            return
        for begin, end, record in pieces:
            if record is not None:
                self._take(start + begin, start + end, record)
                continue
            torn = self._may_be_torn(start + begin, line[begin:end], ended=ended)
            self._suspect(_Suspect(start + begin, problem=problem, may_be_torn=torn))
            problem = None  # one for a line is enough

    def _may_be_torn(self, start: int, piece: bytes, *, ended: bool) -> bool:
        """Tell whether an append of ours that was broken off may have left a piece of a line."""
        if ended:
            return b"\0" in piece and begins_as_ours(piece)
        if piece in ENDS_OF_WIDE_LINES and self._is_behind_wide(start):
            return False
        return begins_as_ours(piece) and is_cut_off(piece)

    def _is_behind_wide(self, start: int) -> bool:
        """Tell whether a line ends at `start` that may be another program's UTF-16 or UTF-32."""
        line = self.buffer[self.buffer.rfind(b"\n", 0, max(0, start - 1)) + 1 : start]
        return b"\0" in line and not begins_as_ours(line)

    def _take(self, start: int, end: int, record: Record) -> None:
        """Take a whole line: a turn, or a part of a unit."""
        if not (record.more or record.unit or self.unit):
            self._settle()
            self._add_turn(start, end, record.key)
            return
        before = 0  # how many of the pending lines are the unit's, with this one as its last
        if record.at is not None:  # else the words are another program's
            if record.more:
                self.unit.append((start, end, record.key))
                return
            before = len(self.unit) if record.unit is None else record.unit - 1
        unit = [*self.unit, (start, end, record.key)]
        self.unit = unit[: len(unit) - 1 - before]
        if before < len(unit):
            self._settle()
            self._add(unit[len(unit) - 1 - before :])
        else:
            self.unit = []
            self._suspect(_broken_unit(unit))

    def _suspect(self, suspect: _Suspect) -> None:
        self._suspect_unit()
        self.suspects.append(suspect)

    def _suspect_unit(self) -> None:
        if self.unit:
            unit, self.unit = self.unit, []
            self.suspects.append(_broken_unit(unit))

    def _settle(self) -> None:
        """Something sound follows: no suspect is a tear."""
        if not (self.suspects or self.unit):
            return
        self._suspect_unit()
        for suspect in self.suspects:
            self._add(suspect.turns)
            if suspect.problem is not None:
                self.problems.note(suspect.problem)
        self.suspects.clear()

    def _add(self, turns: list[_Span]) -> None:
        for start, end, key in turns:
            self._add_turn(start, end, key)

    def _add_turn(self, start: int, end: int, key: str | None) -> None:
        if key is not None:
            self.keys.setdefault(key, len(self.turns))
        self.turns.spans.append(start)
        self.turns.spans.append(end)

    def _is_ours(self) -> bool:
        """Tell whether the file is a thread's: it has a turn, or begins as one does."""
        if self.begin.offset > 0 or self.turns or any(suspect.turns for suspect in self.suspects):
            return True
        return begins_as_ours(self.buffer[:_HEAD].removeprefix(_BOM).lstrip(b" \t\r\n"))

    def finish(self) -> int:
        """Settle what is no tear; give where the tear begins, or the buffer's end."""
        self._suspect_unit()
        torn_from = len(self.buffer)
        ours = self._is_ours()
        while ours and self.suspects and self.suspects[-1].may_be_torn:
            torn_from = self.suspects.pop().start
        self._settle()
        return torn_from


def _pieces(
    line: bytes, found: list[tuple[int, int, Record]]
) -> Iterator[tuple[int, int, Record | None]]:
    """Give the turns of a line and, with None, what stands before, between and behind them."""
    at = 0
    for begin, end, record in found:
        if line[at:begin].strip(b" \t"):
            yield at, begin, None
        yield begin, end, record
        at = end
    if not found or line[at:].strip(b" \t"):
        yield at, len(line), None


def _broken_unit(unit: list[_Span]) -> _Suspect:
    return _Suspect(unit[0][0], unit)
