"""Where the records begin that torn writes fused on one line. Pure: it looks at a text alone.

A record of ours begins with its role. It never holds such a beginning outside of its meta, since
its strings escape quotes. A line of another program may hold one as a value in an object, in a list
or in a quotation: that is no turn of this thread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORD_START: Final = re.compile(r'\{[ \t]*+"role"[ \t]*+:')
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_TEXT_KEY: Final = re.compile(r'"(?:role|content|at|key|more|unit)"[ \t]*+:\Z')
_LONGEST_KEY: Final = 16  # characters, with the colon
_VALUE_BEHIND: Final = frozenset(",:[=('`")
_NO_VALUE_BEHIND: Final = frozenset(["", *'{}]"0123456789'])


def record_starts(text: str) -> Iterator[int]:
    """Yield where each record begins that stands at the level of the line.

    What such a record may hold, up to the next one that is yielded, is inside of it.
    """
    seen = lists = 0  # how far the element was read, and how many lists it has open there
    foreign = text.lstrip()[:1] in {"{", "["}
    for match in _RECORD_START.finditer(text):
        start = match.start()
        before = text[max(0, start - _LONGEST_KEY) : start].rstrip()
        if (before[-1:] not in _NO_VALUE_BEHIND) if foreign else (before[-1:] in _VALUE_BEHIND):
            outside = _STRING.sub("", text[seen:start])
            lists += outside.count("[") - outside.count("]")
            seen = start
            in_torn_string = '"' in outside
            if not in_torn_string and (foreign or _is_value(before, lists)):
                continue
        yield start
        seen, foreign, lists = start, False, 0


def _is_value(before: str, lists: int) -> bool:
    """Return whether what stands before a record makes it a part of something else."""
    if before.endswith(","):
        return lists > 0
    # Ours have a text, a number or a truth under these keys: a record was torn right behind one.
    return _TEXT_KEY.search(before) is None
