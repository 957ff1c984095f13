"""The turns that every benchmark writes: short questions and longer answers, the same each time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from turnlog import Role

Turn: TypeAlias = "tuple[Role, str]"

_SENTENCE: Final = (
    "the invoice for March shows two charges, please check why it was billed twice and what "
    "changed since the plan was upgraded; we expected one payment near the first of the month"
)
_PLAIN: Final = _SENTENCE.split()
_MIXED: Final = [
    *_PLAIN,
    "Zürich",
    "naïve",
    "東京",
    "Привет",
    "🙂",
    "→",
    "“quoted”",
    '"said"',
    "\n",
]


def turn(number: int, *, mixed: bool = False) -> Turn:
    """Give the role and the text of a turn: about 200 characters of a user, 1,000 of an assistant.

    Args:
        number: which turn; the same number gives the same turn.
        mixed: with accents, other scripts, emoji, quotes and line breaks among the words.
    """
    chance = random.Random(number)
    role: Role = "user" if number % 2 == 0 else "assistant"
    size = 200 if role == "user" else 1000
    words = _MIXED if mixed else _PLAIN
    text = f"[{number}]"
    while len(text) < size:
        text += " " + chance.choice(words)
    return role, text


def numbered(writer: int, number: int) -> str:
    """Give a text of 600 characters that no other writer, and no other number, has."""
    return f"[{writer}-{number}] ".ljust(600, "x")
