"""A thread's file as bytes: lines as the program writes them, and what is read of a file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnlog import DamageWarning, Memory, Message, Problem, TornTailWarning

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from turnlog.stores.base import Store

AT = ',"at":"2026-11-29T13:25:00.123456Z"'


def turn(content: str, *, role: str = "user", more: str = "") -> bytes:
    """Give a line as the program writes it; the content must need no escape."""
    return f'{{"role":"{role}","content":"{content}"{AT}{more}}}\n'.encode()


def unit(*contents: str) -> bytes:
    """Give the lines of an extend."""
    *most, last = contents
    lines = [turn(content, more=',"more":true') for content in most]
    return b"".join([*lines, turn(last, more=f',"unit":{len(contents)}')])


def put(root: Path, data: bytes, id: str = "t") -> Path:
    """Put a file where the thread's is; give its path."""
    file = root / "default" / f"{id}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def aside(file: Path) -> bytes:
    """Give what was set aside from a file."""
    torn = file.with_name(file.name + ".torn")
    return torn.read_bytes() if torn.exists() else b""


@dataclass
class Seen:
    """What a fresh opening of a thread shows."""

    messages: Sequence[Message]
    problems: tuple[Problem, ...]
    warnings: list[Warning]

    @property
    def contents(self) -> list[str]:
        """The turns' texts."""
        return [message.content for message in self.messages]

    @property
    def torn(self) -> int:
        """How many warnings told of a torn tail."""
        return sum(isinstance(warning, TornTailWarning) for warning in self.warnings)

    @property
    def damaged(self) -> int:
        """How many warnings told of damage."""
        return sum(isinstance(warning, DamageWarning) for warning in self.warnings)


def seen(store: Path | Store, id: str = "t", *, then: str | None = None) -> Seen:
    """Open a thread afresh, append a turn if one is given, and say what it showed."""
    with warnings.catch_warnings(record=True) as told, Memory(store, lock_timeout=60) as memory:
        warnings.simplefilter("always")
        thread = memory.open(id)
        if then is not None:
            thread.append(then)
        messages, problems = thread.messages(), thread.problems
    return Seen(messages, problems, [w.message for w in told if isinstance(w.message, Warning)])
