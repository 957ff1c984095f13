"""Message: one turn of a conversation, frozen."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, get_args

import msgspec

from turnlog.errors import InvalidTurn

Role: TypeAlias = Literal["user", "assistant", "system"]
Scalar: TypeAlias = str | int | float | bool | None

ROLES: Final[tuple[Role, ...]] = get_args(Role)

# What every JSON library can hold in an integer without losing digits.
LEAST_INT: Final = -(2**63)
GREATEST_INT: Final = 2**64 - 1


class Meta(dict[str, Scalar]):
    """A flat mapping that cannot be changed, so that a message that holds one is frozen too."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        message = "a message's meta cannot be changed: make a new message with the meta you want"
        raise TypeError(message)

    if not TYPE_CHECKING:  # for a type checker the methods are a dict's own
        __setitem__ = __delitem__ = __ior__ = _refuse
        clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Hash by value: equal mappings hash alike, whatever the order of their keys."""
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[Meta], tuple[dict[str, Scalar]]]:
        """Pickle and copy by value."""
        return (Meta, (dict(self),))


class Message(msgspec.Struct, frozen=True, gc=False):
    """One turn of a conversation: who said what, and when. A frozen, hashable value.

    Attributes:
        role: "user", "assistant" or "system".
        content: the text.
        at: when it was said, an aware datetime (kept in UTC); None in a conversation made in
            memory: the thread gives the time at append.
        meta: what the caller wants kept beside the text (a name, a model, a request id): a flat
            mapping from str to str, int of up to 64 bits, finite float, bool or None.

    Raises:
        InvalidTurn: a field is not of that form.

    Touches no disk. Source: design, section 2.
    """

    role: Role
    content: str
    at: dt.datetime | None = None
    meta: Mapping[str, Scalar] | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be kept, and freeze what could still be changed."""
        if self.role not in ROLES:
            raise _invalid(f"the role is {self.role!r}", "use 'user', 'assistant' or 'system'")
        if type(self.role) is not str:
            self._set("role", _plain(self.role))
        if type(self.content) is not str:
            self._set("content", _text(self.content))
        if self.at is not None and (
            type(self.at) is not dt.datetime or self.at.tzinfo is not dt.UTC
        ):
            self._set("at", _utc(self.at))
        if self.meta is not None:
            self._set("meta", _checked_meta(self.meta))

    def __hash__(self) -> int:
        """Hash by value."""
        return hash((self.role, self.content, self.at, self.meta))

    def _set(self, name: str, value: object) -> None:
        msgspec.structs.force_setattr(self, name, value)


def _invalid(what: str, hint: str) -> InvalidTurn:
    return InvalidTurn("message", what, hint)


def _text(content: object) -> str:
    if isinstance(content, str):
        return str.__str__(content)
    kind = type(content).__name__
    raise _invalid(f"the content is of type {kind}, not str", "give the turn's text as a str")


def _utc(at: object) -> dt.datetime:
    if not isinstance(at, dt.datetime) or at.utcoffset() is None:
        raise _invalid(
            f"the time {at!r} is not an aware datetime", "give it a timezone, such as datetime.UTC"
        )
    try:
        return at.astimezone(dt.UTC)
    except OverflowError:
        raise _invalid(f"the time {at!r} is out of range in UTC", "give a time in UTC") from None


def _checked_meta(meta: object) -> Meta | None:
    if not isinstance(meta, Mapping):
        kind = type(meta).__name__
        raise _invalid(f"meta is of type {kind}", "give a mapping from str to scalars")
    items: dict[Any, Any] = dict(meta)  # pyright: ignore[reportUnknownArgumentType]
    for key, value in items.items():
        if not isinstance(key, str):
            raise _invalid(f"the meta key {key!r} is not a str", "give every key as a str")
        _check_scalar(key, value)
    return Meta({_plain(key): _plain(value) for key, value in items.items()}) if items else None


def _plain(value: Any) -> Any:  # noqa: ANN401 - it may be of any kind
    """Give a value of a subclass, such as an enum's, as the plain one that JSON has."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def _check_scalar(key: str, value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _invalid(
            f"meta[{key!r}] is {value!r}, which JSON cannot hold", "leave it out or give a str"
        )
    if isinstance(value, int) and not LEAST_INT <= value <= GREATEST_INT:
        raise _invalid(f"meta[{key!r}] is an int of more than 64 bits", "give it as a str")
    if not isinstance(value, str | int | float | bool | None):
        kind = type(value).__name__
        raise _invalid(
            f"meta[{key!r}] is of type {kind}",
            "meta is flat: give str, int, float, bool or None, for example the value's JSON text",
        )
