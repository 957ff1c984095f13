"""Options: keyword arguments that a TypedDict lists, checked as Python checks its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def refuse_unknown(options: Iterable[str], known: type[Any], taker: str) -> None:
    """Raise TypeError for an option that nobody knows: misspelt, it would pass in silence.

    Args:
        options: the names that were given.
        known: the TypedDict of those that there are.
        taker: what takes them, for the error.
    """
    for name in options:
        if name not in known.__annotations__:
            there_are = ", ".join(known.__annotations__)
            message = f"{taker} takes no option {name!r}; there are: {there_are}"
            raise TypeError(message)
