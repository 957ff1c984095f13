"""Message: what it takes, what it refuses, and that it is a frozen value."""

from __future__ import annotations

import copy
import datetime as dt
import enum
import math
import pickle
from collections import UserDict
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from turnlog import InvalidTurn, Memory, Message

AT = dt.datetime(2026, 11, 29, 13, 25, 0, 123456, dt.UTC)


class Text(str):
    """A str of another type."""

    __slots__ = ()


class Number(int):
    """An int of another type."""


class Ratio(float):
    """A float of another type."""


class Word(str, enum.Enum):  # noqa: UP042 - as many applications still have it
    """Words as applications keep them."""

    USER = "user"


class Level(enum.IntEnum):
    """Numbers as applications keep them."""

    HIGH = 3


# ---- what it holds ----


def test_the_time_and_meta_are_none_unless_given() -> None:
    """A message needs a role and a text only."""
    message = Message("user", "hi")
    assert (message.role, message.content, message.at, message.meta) == ("user", "hi", None, None)


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_three_roles(role: Any) -> None:
    """A role is user, assistant or system."""
    assert Message(role, "").role == role


def test_the_time_is_kept_in_utc() -> None:
    """A time of another zone is the same moment in UTC."""
    there = dt.datetime(2026, 11, 29, 14, 25, 0, 123456, dt.timezone(dt.timedelta(hours=1)))
    message = Message("user", "x", there)
    assert message.at == there
    assert message.at is not None
    assert message.at.tzinfo is dt.UTC
    assert message.at.hour == 13


def test_empty_meta_is_none() -> None:
    """An empty mapping is no meta: both are the same message."""
    assert Message("user", "x", None, {}) == Message("user", "x")
    assert Message("user", "x", None, {}).meta is None


@pytest.mark.parametrize("kind", [dict, UserDict, MappingProxyType])
def test_meta_may_be_any_mapping(kind: Any) -> None:
    """Any mapping is copied, so that what the caller does to it later is not seen."""
    source = {"a": 1}
    message = Message("user", "x", None, kind(source))
    source["a"] = 2
    assert message.meta == {"a": 1}


# ---- what it refuses ----


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"role": "tool"}, "the role is 'tool'"),
        ({"role": "User"}, "the role is 'User'"),
        ({"role": ""}, "the role is ''"),
        ({"role": None}, "the role is None"),
        ({"role": ["user"]}, "the role is ['user']"),
        ({"content": None}, "the content is of type NoneType, not str"),
        ({"content": b"x"}, "the content is of type bytes, not str"),
        ({"content": 1}, "the content is of type int, not str"),
        ({"content": [{"type": "text"}]}, "the content is of type list, not str"),
        ({"at": AT.replace(tzinfo=None)}, "is not an aware datetime"),
        ({"at": "2026-11-29T13:25:00Z"}, "is not an aware datetime"),
        ({"at": AT.date()}, "is not an aware datetime"),
        ({"at": 0}, "is not an aware datetime"),
        ({"meta": [("a", 1)]}, "meta is of type list"),
        ({"meta": "a"}, "meta is of type str"),
        ({"meta": {1: "a"}}, "the meta key 1 is not a str"),
        ({"meta": {None: "a"}}, "the meta key None is not a str"),
        ({"meta": {"a": math.nan}}, "meta['a'] is nan, which JSON cannot hold"),
        ({"meta": {"a": math.inf}}, "meta['a'] is inf, which JSON cannot hold"),
        ({"meta": {"a": -math.inf}}, "meta['a'] is -inf, which JSON cannot hold"),
        ({"meta": {"a": 2**64}}, "meta['a'] is an int of more than 64 bits"),
        ({"meta": {"a": -(2**63) - 1}}, "meta['a'] is an int of more than 64 bits"),
        ({"meta": {"a": {}}}, "meta['a'] is of type dict"),
        ({"meta": {"a": [1]}}, "meta['a'] is of type list"),
        ({"meta": {"a": b"x"}}, "meta['a'] is of type bytes"),
        ({"meta": {"a": AT}}, "meta['a'] is of type datetime"),
        ({"meta": {"ok": 1, "a": 1j}}, "meta['a'] is of type complex"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_field_of_another_form_is_refused(fields: dict[str, Any], what: str) -> None:
    """What could not be kept raises InvalidTurn, which says what was given."""
    given: dict[str, Any] = {"role": "user", "content": "x", **fields}
    with pytest.raises(InvalidTurn) as caught:
        Message(**given)
    assert what in caught.value.what
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("hours", [1, -1])
def test_a_time_that_utc_cannot_hold_is_refused(hours: int) -> None:
    """The first or last hour of all time, in a zone that pushes it over, raises InvalidTurn."""
    zone = dt.timezone(dt.timedelta(hours=hours))
    edge = AT.replace(year=1, month=1, day=1, hour=0)
    if hours < 0:
        edge = AT.replace(year=9999, month=12, day=31, hour=23)
    with pytest.raises(InvalidTurn):
        Message("user", "x", edge.replace(tzinfo=zone))


def test_a_refused_append_names_its_thread_and_writes_nothing(memory: Memory) -> None:
    """Bad input to append or extend names the thread, and makes no file."""
    mem = memory.open("user-42", namespace="support")
    bad: list[Any] = [
        lambda: mem.append(7),  # pyright: ignore[reportArgumentType]
        lambda: mem.append("x", role="tool"),  # pyright: ignore[reportArgumentType]
        lambda: mem.append("x", meta={"a": math.nan}),
        lambda: mem.append("x", meta={"a": [1]}),  # pyright: ignore[reportArgumentType]
        lambda: mem.append("x", key=""),
        lambda: mem.append("x", key=7),  # pyright: ignore[reportArgumentType]
        lambda: mem.append("x", expect=-1),
        lambda: mem.append("x", expect=True),
        lambda: mem.append("x", expect="1"),  # pyright: ignore[reportArgumentType]
        lambda: mem.extend(["x"]),  # pyright: ignore[reportArgumentType]
        lambda: mem.extend([Message("user", "x"), {"role": "user"}]),  # pyright: ignore[reportArgumentType]
    ]
    for call in bad:
        with pytest.raises(InvalidTurn, match="thread 'user-42' in namespace 'support'"):
            call()
    assert list(memory.threads()) == []


# ---- a value ----


def test_a_message_cannot_be_changed() -> None:
    """Neither its fields nor its meta can be changed in place."""
    message: Any = Message("user", "x", AT, {"a": 1})
    with pytest.raises(AttributeError):
        message.content = "y"
    with pytest.raises(AttributeError):
        del message.content
    changes: list[tuple[str, Any]] = [
        ("__setitem__", ("a", 2)),
        ("__delitem__", ("a",)),
        ("update", ({"a": 2},)),
        ("setdefault", ("b", 2)),
        ("pop", ("a",)),
        ("popitem", ()),
        ("clear", ()),
        ("__ior__", ({"a": 2},)),
    ]
    for name, arguments in changes:
        with pytest.raises(TypeError, match="cannot be changed"):
            getattr(message.meta, name)(*arguments)
    assert message == Message("user", "x", AT, {"a": 1})
    assert message.meta | {"b": 2} == {"a": 1, "b": 2}


def test_messages_are_equal_and_hash_by_value() -> None:
    """Equal messages hash alike, whatever the order of their meta or the zone of their time."""
    zone = dt.timezone(dt.timedelta(hours=9))
    one = Message("user", "x", AT, {"a": 1, "b": None})
    two = Message("user", "x", AT.astimezone(zone), {"b": None, "a": 1})
    assert one == two
    assert len({one, two, Message("user", "x", AT, {"a": True, "b": None})}) == 1
    others = {
        Message("assistant", "x", AT, {"a": 1, "b": None}),
        Message("user", "y", AT, {"a": 1, "b": None}),
        Message("user", "x", None, {"a": 1, "b": None}),
        Message("user", "x", AT, {"a": 1}),
        Message("user", "x", AT),
    }
    assert len(others | {one}) == 6


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_message_crosses_a_process_boundary(protocol: int) -> None:
    """A pickled message comes back equal, and as frozen as before."""
    message = Message("assistant", "\ud800 \u2028", AT, {"\ud800": "\ud800", "n": 2**64 - 1})
    again = pickle.loads(pickle.dumps(message, protocol))
    assert again == message
    assert hash(again) == hash(message)
    with pytest.raises(TypeError, match="cannot be changed"):
        again.meta["n"] = 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, msgspec.structs.replace])
def test_a_copy_is_equal(copied: Any) -> None:
    """A copy, shallow or deep, is equal."""
    message = Message("user", "x", AT, {"a": 1})
    assert copied(message) == message


def test_a_changed_copy_is_checked() -> None:
    """Replacing a field goes through the same checks."""
    message = Message("user", "x", AT)
    assert msgspec.structs.replace(message, content="y").content == "y"
    with pytest.raises(InvalidTurn):
        msgspec.structs.replace(message, content=7)


# ---- subclasses of the plain types ----


@pytest.mark.parametrize("value", [Text("t"), Number(7), Ratio(0.5), Word.USER, Level.HIGH])
def test_meta_of_a_subclass_is_kept_by_its_value(memory: Memory, value: Any) -> None:
    """A str, int or float of another type is kept, and comes back as the plain value."""
    mem = memory.open("t").append("x", meta={"k": value})
    (message,) = mem.messages()
    assert message.meta is not None
    assert message.meta["k"] == value
    assert type(message.meta["k"]) in {str, int, float}


@pytest.mark.parametrize("text", [Text("user"), Word.USER], ids=["subclass", "enum"])
def test_a_role_content_or_key_of_a_subclass_is_kept_by_its_value(
    memory: Memory, text: Any
) -> None:
    """A role, a text, a meta key or an idempotency key may be a str of another type."""
    mem = memory.open("t").append(text, role=text, meta={text: 1}, key=text).append("y", key="user")
    (message,) = mem.messages()
    assert message == Message("user", "user", message.at, {"user": 1})
    assert type(message.content) is str
