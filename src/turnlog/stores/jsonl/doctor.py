"""Examines the files of a memory as they lie on the disk, and repairs them.

A repair takes out of a thread's file what is no turn, and loses no byte of it: every turn stays, as
it was and in its order, and all the rest goes to `<id>.jsonl.torn`. The order makes it safe to
crash anywhere in it, and to run it again:

    copy aside, sync the copy · write the turns to a new file beside, sync it · rename it over the
    thread's · sync the folder

Where only the end is torn it is mended as an opening does it. The new file's name begins with a
dot, so that no thread has it. A crash may leave it there; the thread's next repair removes it.

Source: design, section 4, points 5 and 6; case C19.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from turnlog.errors import NotAThread, ThreadReplaced
from turnlog.stores.base import START, in_order
from turnlog.stores.jsonl.format import scan
from turnlog.stores.jsonl.osfile import is_regular, write_all
from turnlog.stores.jsonl.repair import TORN_SUFFIX, mend, set_aside
from turnlog.stores.jsonl.threadfile import SUFFIX

if TYPE_CHECKING:
    import os
    from array import array

    from turnlog.names import ThreadKey
    from turnlog.stores.base import Problem, Read
    from turnlog.stores.jsonl.folders import Folders
    from turnlog.stores.jsonl.format import Lines, Tail
    from turnlog.stores.jsonl.osfile import System
    from turnlog.stores.jsonl.threadfile import ThreadFile

_HIDDEN: Final = "."
_NEW_SUFFIX: Final = ".new"


@dataclass(frozen=True, slots=True)
class Examination:
    """What a thread's file was found to be.

    Attributes:
        key: the thread.
        turns: how many turns it holds.
        torn: the bytes of an unfinished append at its end, 0 where there are none.
        unterminated: the last line lacks its newline.
        problems: what cannot be read, or not in full, by its place; as `MemoryThread.problems`.
        set_aside: the bytes in `<id>.jsonl.torn`, 0 where there is no such file.
    """

    key: ThreadKey
    turns: int
    torn: int
    unterminated: bool
    problems: tuple[Problem, ...]
    set_aside: int

    @property
    def sound(self) -> bool:
        """Whether nothing at all is wrong with it.

        A repaired file may still hold a turn that gives a key twice: that stays a problem, since
        only a person can say which value was meant.
        """
        return not self.torn and not self.unterminated and not self.problems


def rewritten_name(name: str) -> str:
    """Give the name under which a repair writes a thread's file anew."""
    return f"{_HIDDEN}{name}{_NEW_SUFFIX}"


def is_rewritten_name(name: str) -> bool:
    """Tell whether it is such a name."""
    return name.startswith(_HIDDEN) and name.endswith(SUFFIX + _NEW_SUFFIX)


def examine(system: System, file: ThreadFile) -> Examination:
    """Read a thread's file, and change nothing. The caller holds its lock, shared or not."""
    read, tail = scan(_data(system, file), START, file.identity)
    return _examination(system, file, read, tail)


def repair(system: System, folders: Folders, file: ThreadFile) -> Examination:
    """Take out of a thread's file what is no turn; give what it was before.

    The caller holds its lock, for writing. A byte order mark, carriage returns and blank lines are
    no damage: they stay, and a file with nothing worse is not written anew.

    Raises:
        NotAThread: no line of it is a turn, and there is more in it than an unfinished append.
        ThreadReplaced: another program, which ignores the lock, changed it meanwhile.
        OSError: it failed; the file has lost nothing, and the next repair goes on.
    """
    status = system.status(file.fd)
    data = _data(system, file)
    read, tail = scan(data, START, file.identity)
    if read.problems and not read.lines:
        raise NotAThread(
            file.key,
            "no line of its file is a turn, so it may be another program's; nothing was changed",
            "look at it, and move it away if it does not belong here",
        )
    found = _examination(system, file, read, tail)
    _remove_rewritten(system, file)
    mended = data[: read.position.offset] + b"\n" * tail.unterminated
    whole, damage = _sort_out(mended, read, tail)
    if whole != mended:
        aside = damage + tail.torn  # at once: of two copies that are equal one would be left out
        if aside:
            set_aside(system, (file.folder, file.name + TORN_SUFFIX), aside, status)
        _replace(system, file, status, whole)
    elif not tail.sound:
        mend(system, file.fd, (file.folder, file.name), read.position, tail)
    else:
        file.sync()  # what made it sound may have been killed before its own sync
    folders.sync([file])
    return found


def _data(system: System, file: ThreadFile) -> bytes:
    return system.read(file.fd, 0, system.status(file.fd).st_size)


def _examination(system: System, file: ThreadFile, read: Read, tail: Tail) -> Examination:
    return Examination(
        file.key,
        len(read.lines),
        len(tail.torn),
        tail.unterminated,
        in_order((*read.problems, *read.audit())),
        _size(system, f"{file.folder}/{file.name}{TORN_SUFFIX}"),
    )


def _size(system: System, path: str) -> int:
    try:
        status = system.status_of(path)
    except FileNotFoundError:
        return 0
    return status.st_size if is_regular(status) else 0


def _sort_out(data: bytes, read: Read, tail: Tail) -> tuple[bytes, bytes]:
    """Give a file's bytes without those that are no turn, and those, a line for each piece.

    Args:
        data: the file, its end mended.
        read: what was read of it.
        tail: what its end was like before.
    """
    spans = cast("Lines", read.lines).spans
    kept: list[bytes] = []
    damage: list[bytes] = []
    at = 0
    for start in _damaged_lines(data, read, tail):
        newline = data.index(b"\n", start)
        kept.append(data[at:start])
        at = newline + 1
        first, last = bisect_left(spans, start), bisect_right(spans, newline)
        if first == last:
            damage.append(data[start:at])
            continue
        end = newline - data.endswith(b"\r", start, newline)
        line, pieces = _divide(data, start, end, spans[first:last])
        kept += [line, data[end:at]]
        damage += pieces
    whole = b"".join((*kept, data[at:]))
    if kept and scan(whole, START, None)[1].torn:
        # Turns of a broken unit, which damage alone kept from being at the end: a blank line does.
        whole += b"\n"
    return whole, b"".join(damage)


def _damaged_lines(data: bytes, read: Read, tail: Tail) -> list[int]:
    """Give where the lines begin that are not one turn each."""
    starts = [problem.offset for problem in read.problems]
    if tail.torn and tail.unterminated:
        # A tear stood behind turns on their line: these may be fused, which was no problem yet.
        spans = cast("Lines", read.lines).spans
        last = data.rfind(b"\n", 0, -1) + 1
        first = bisect_left(spans, last)
        if first < len(spans) and not (starts and starts[-1] >= last):
            starts.append(spans[first])
    return starts


def _divide(data: bytes, start: int, end: int, spans: array[int]) -> tuple[bytes, list[bytes]]:
    """Give a line's turns, each on a line of its own, and what stood between them."""
    turns: list[bytes] = []
    pieces: list[bytes] = []
    for begin, stop in zip(spans[::2], spans[1::2], strict=True):
        turns.append(_blank(data[start:begin], pieces) + data[begin:stop])
        start = stop
    return b"\n".join(turns) + _blank(data[start:end], pieces), pieces


def _blank(gap: bytes, pieces: list[bytes]) -> bytes:
    """Give what may stay beside a turn on its line; the rest is a piece of damage."""
    if not gap.strip(b" \t"):
        return gap
    pieces.append(gap + b"\n")
    return b""


def _replace(system: System, file: ThreadFile, status: os.stat_result, whole: bytes) -> None:
    """Put a new file with some bytes in the place of a thread's, unless that was changed since."""
    new = f"{file.folder}/{rewritten_name(file.name)}"
    try:
        fd = system.open_file(
            file.folder, rewritten_name(file.name), write=True, create=True, exclusive=True
        )
        try:
            system.own_as(fd, status)
            write_all(system, fd, whole)
            system.sync(fd)
        finally:
            system.close(fd)
        _check_unchanged(system, file, status)
        system.rename(new, f"{file.folder}/{file.name}")
    except BaseException:
        with suppress(OSError):
            _remove_rewritten(system, file)
        raise


def _check_unchanged(system: System, file: ThreadFile, before: os.stat_result) -> None:
    now = system.status(file.fd)
    same = (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    if not (same and file.stands()):
        raise ThreadReplaced(
            file.key,
            "another program changed its file during the repair; it was left as it is",
            "repair it again when no other program writes to it",
        )


def _remove_rewritten(system: System, file: ThreadFile) -> None:
    with suppress(FileNotFoundError):
        system.unlink(f"{file.folder}/{rewritten_name(file.name)}")
