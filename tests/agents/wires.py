"""Turns as they go over the three providers' wires, put so that they can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from localserver import Failure, Reply

from turnlog import Conversation, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from replies import Body

    from turnlog import Role

Turns: TypeAlias = list[tuple[str, str]]

ROLES: dict[str, Role] = {"u": "user", "a": "assistant", "s": "system"}
OPENING = "(The assistant speaks first.)"  # what is sent where no user had spoken yet


@dataclass(frozen=True)
class Wire:
    """A provider that can be asked, and what it was sent.

    Attributes:
        model: the name of its model.
        sent: gives the turns of all requests.
    """

    model: str
    sent: Callable[[], list[Turns]]


def spelt(turns: Iterable[tuple[str, str]]) -> Turns:
    """Give turns with their roles in full, of roles by their first letters."""
    return [(ROLES[letter], text) for letter, text in turns]


def conversation(*turns: tuple[str, str]) -> Conversation:
    """Make a conversation of roles, by their first letters, and texts."""
    return Conversation([Message(ROLES[letter], text) for letter, text in turns])


def joined(turns: Iterable[tuple[str, str]]) -> tuple[str, Turns]:
    """Give the system text, and the other turns, with those of one role in a row as one.

    So the wires' own ways to put turns together are one and the same.
    """
    system: list[str] = []
    merged: Turns = []
    for role, text in turns:
        if role == "system":
            system.append(text)
        elif merged and merged[-1][0] == role:
            merged[-1] = role, f"{merged[-1][1]}\n\n{text}"
        else:
            merged.append((role, text))
    return "\n\n".join(system), merged


def whole(text: str) -> str:
    """Give a text as a provider gets it: with U+FFFD for each half of a character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def legal(turns: Iterable[tuple[str, str]]) -> Turns:
    """Give what is sent of some turns: those with text, from the user's on."""
    sent = [(role, whole(text)) for role, text in turns if text.strip()]
    spoken = next((role for role, _ in sent if role != "system"), "user")
    return sent if spoken == "user" else [("user", OPENING), *sent]


def strict(body: Body) -> Reply | Failure:
    """Answer as a model with a strict template does."""
    roles = [message["role"] for message in body["messages"]]
    roles = [role for role in roles if role not in {"system", "developer"}]
    if any(one == other for one, other in pairwise(roles)):
        return Failure(400, f"conversation roles must alternate user/assistant/...: {roles}")
    return Reply("Hello.")
