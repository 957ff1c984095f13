"""The error family: its tree, its messages, and that an error crosses a process boundary."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from typing import Any

import pytest

from turnlog import Conflict, Conversation, Message, TurnlogError, TurnlogWarning, errors
from turnlog.names import ThreadKey

KEY = ThreadKey("support", "user-42")

FAMILY: list[type[TurnlogError]] = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, TurnlogError)
]
WARNINGS: list[type[Warning]] = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, TurnlogWarning)
]

BUILT_IN: dict[str, type[Exception]] = {
    "InvalidName": ValueError,
    "InvalidTurn": ValueError,
    "CapabilityDenied": PermissionError,
    "ForeignThread": ValueError,
    "UnknownStore": ValueError,
    "UnknownModel": ValueError,
    "MissingExtra": ImportError,
    "RunningLoop": RuntimeError,
    "StoreError": OSError,
    "ReadOnly": PermissionError,
    "LockTimeout": TimeoutError,
}


@pytest.mark.parametrize("kind", FAMILY)
def test_an_error_says_what_why_and_what_to_do(kind: type[TurnlogError]) -> None:
    """Every error names the thread, says what was wrong and what to do, and keeps the parts."""
    error = kind(KEY, "it is odd", "do this")
    assert str(error) == "thread 'user-42' in namespace 'support': it is odd; do this"
    assert (error.what, error.hint) == ("it is odd", "do this")
    assert error.subject == "thread 'user-42' in namespace 'support'"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", FAMILY)
def test_an_error_crosses_a_process_boundary(kind: type[TurnlogError], protocol: int) -> None:
    """A pickled error comes back of its kind, with its parts, its notes and its message."""
    error = kind(KEY, "it is odd", "do this")
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
    assert again.__notes__ == ["a note"]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_conflict_keeps_its_turns(copied: Any) -> None:
    """A copied or pickled Conflict still has the turns that came, and the two numbers."""
    turns = Conversation([Message("user", "x")])
    error = Conflict(KEY, "it holds 2", "look", expected=1, actual=2, turns=turns)
    for again in (copied(error), pickle.loads(pickle.dumps(error))):
        assert (again.expected, again.actual, again.turns) == (1, 2, turns)
        assert isinstance(again.turns, Conversation)


@pytest.mark.parametrize("kind", FAMILY)
def test_an_error_is_also_what_python_calls_it(kind: type[TurnlogError]) -> None:
    """An error is also the built-in error that code without turnlog would catch."""
    inherited = [BUILT_IN[base.__name__] for base in kind.__mro__ if base.__name__ in BUILT_IN]
    for built_in in inherited:
        assert issubclass(kind, built_in)
    others = {ValueError, PermissionError, OSError, TimeoutError} - {
        base for built_in in inherited for base in built_in.__mro__
    }
    assert not any(issubclass(kind, other) for other in others)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """The module's picture of the family has each class, below its base."""
    assert errors.__doc__ is not None
    below: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"([\s│├└─]*)([A-Z]\w+)(?: |$)", line)
        if match is None or line.startswith("Every"):
            continue
        depth, name = len(match[1]), match[2]
        path = [(d, n) for d, n in path if d < depth]
        if path:
            below[name] = path[-1][1]
        path.append((depth, name))
    classes = [kind for kind in (*FAMILY, *WARNINGS) if kind not in {TurnlogError, TurnlogWarning}]
    assert below == {kind.__name__: kind.__bases__[0].__name__ for kind in classes}


@pytest.mark.parametrize("kind", WARNINGS)
def test_a_warning_is_shown_to_users(kind: type[Warning]) -> None:
    """Our warnings are UserWarnings: Python shows them unless told otherwise."""
    assert issubclass(kind, UserWarning)
