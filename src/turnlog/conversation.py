"""Conversation: an immutable sequence of messages, and the algebra on it.

A thread is a durable resource; a conversation is a value that is passed around (spec R1). Every
operation gives a new conversation and leaves the old one as it was. None touches a disk.

Inside, a conversation is a base that never changes (a thread's turns up to now, or a tuple), then
full blocks, then a short tail. Taking one from a thread copies nothing; adding to one copies at
most a block and, once in a block's length, the list of the blocks: however long it is, adding a
message takes the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import MappingProxyType
from typing import Final, SupportsIndex, TypeAlias, overload

from turnlog.errors import InvalidTurn
from turnlog.message import Message, Role, Scalar

_BLOCK: Final = 64
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_Blocks: TypeAlias = tuple[tuple[Message, ...], ...]


class Conversation(Sequence[Message]):
    """An immutable, hashable sequence of `Message`.

    Args:
        messages: the messages, in order; none unless given.
        model: the model that it is meant for; "" unless given.
        metadata: what the caller wants to carry along, str to str.

    Raises:
        InvalidTurn: an item of `messages` is not a Message.

    Equality and hash are by value: messages, model and metadata. Source: spec R1, R16, R18.
    """

    __slots__ = ("_base", "_blocks", "_metadata", "_model", "_tail")

    _base: Sequence[Message]
    _blocks: _Blocks
    _tail: tuple[Message, ...]

    def __init__(
        self,
        messages: Iterable[Message] = (),
        *,
        model: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Make a conversation of the messages given."""
        self._base = _checked(messages)
        self._blocks = ()
        self._tail = ()
        self._model = model
        self._metadata = MappingProxyType(dict(metadata)) if metadata else _NOTHING

    @classmethod
    def over(cls, base: Sequence[Message]) -> Conversation:
        """Make a conversation over a sequence that will never change, without copying it."""
        conversation = cls()
        conversation._base = base
        return conversation

    def _with(
        self, base: Sequence[Message], blocks: _Blocks = (), tail: tuple[Message, ...] = ()
    ) -> Conversation:
        """Give the same conversation over other messages: model and metadata stay."""
        new = Conversation(model=self._model)
        new._base, new._blocks, new._tail, new._metadata = base, blocks, tail, self._metadata
        return new

    # ---- what it holds ----

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages, in order. Takes time in proportion to their number."""
        return tuple(self)

    @property
    def model(self) -> str:
        """The model that it is meant for; "" where none was given."""
        return self._model

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the caller carries along; read-only."""
        return self._metadata

    @property
    def system(self) -> str | None:
        """The content of the first system message, or None."""
        return next((message.content for message in self if message.role == "system"), None)

    @property
    def last_reply(self) -> str | None:
        """The content of the last assistant message, or None where there is none."""
        replies = (message.content for message in reversed(self) if message.role == "assistant")
        return next(replies, None)

    # ---- the sequence ----

    def __len__(self) -> int:
        """Give the number of messages, at once."""
        return len(self._base) + len(self._blocks) * _BLOCK + len(self._tail)

    def __iter__(self) -> Iterator[Message]:
        """Go through the messages in order."""
        return chain(self._base, chain.from_iterable(self._blocks), self._tail)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Conversation: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Message | Conversation:
        """Give one message, or the conversation of a slice, in proportion to the slice's length."""
        if isinstance(index, slice):
            positions = range(len(self))[index]
            return self._with(tuple(map(self._at, positions)))
        return self._at(range(len(self))[index])

    def _at(self, position: int) -> Message:
        position -= len(self._base)
        if position < 0:
            return self._base[position + len(self._base)]
        block, offset = divmod(position, _BLOCK)
        return (self._blocks[block] if block < len(self._blocks) else self._tail)[offset]

    # ---- new conversations from it ----

    def add(
        self, content: str, *, role: Role = "user", meta: Mapping[str, Scalar] | None = None
    ) -> Conversation:
        """Give the conversation with one message more, in constant time.

        Args:
            content: the text.
            role: "user" unless given.
            meta: what to keep beside the text.

        Raises:
            InvalidTurn: the message could not be kept in a thread.
        """
        return self._plus(Message(role, content, None, meta))

    def _plus(self, message: Message) -> Conversation:
        tail = (*self._tail, message)
        if len(tail) < _BLOCK:
            return self._with(self._base, self._blocks, tail)
        return self._with(self._base, (*self._blocks, tail))

    def __add__(self, other: Iterable[Message]) -> Conversation:
        """Give this conversation followed by other messages; model and metadata are this one's."""
        new = self
        for message in _checked(other):
            new = new._plus(message)
        return new

    def filter(self, keep: Callable[[Message], object]) -> Conversation:
        """Give the conversation of the messages for which `keep` is true."""
        return self._with(tuple(filter(keep, self)))

    def map(self, change: Callable[[Message], Message]) -> Conversation:
        """Give the conversation of `change(message)` for each message.

        Raises:
            InvalidTurn: `change` gave something that is not a Message.
        """
        return self._with(_checked(map(change, self)))

    def last(self, count: int) -> Conversation:
        """Give the last `count` messages, or all where there are fewer.

        Raises:
            InvalidTurn: `count` is negative.
        """
        if count < 0:
            raise InvalidTurn("conversation", f"last({count}) is negative", "give 0 or more")
        return self[max(0, len(self) - count) :]

    def fork(self) -> Conversation:
        """Give the same value, to go on from: a conversation never changes, so it is its own."""
        return self

    # ---- the value ----

    def __eq__(self, other: object) -> bool:
        """Compare by value."""
        if not isinstance(other, Conversation):
            return NotImplemented
        return self is other or (
            len(self) == len(other)
            and self._model == other._model
            and self._metadata == other._metadata
            and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        )

    def __hash__(self) -> int:
        """Hash by value, in proportion to the number of messages."""
        return hash((self.messages, self._model, frozenset(self._metadata.items())))

    def __reduce__(self) -> tuple[Callable[..., Conversation], tuple[object, ...]]:
        """Pickle and copy by value."""
        return (_remade, (self.messages, self._model, dict(self._metadata)))

    def __repr__(self) -> str:
        """Show the last messages, shortened, and how many there are."""
        shown = [f"{message.role}: {_short(message.content)}" for message in self.last(3)]
        if len(self) > len(shown):
            shown.insert(0, "…")
        count = f"{len(self)} message{'' if len(self) == 1 else 's'}"
        return f"<Conversation of {count}{': ' if shown else ''}{' | '.join(shown)}>"


def _checked(messages: Iterable[Message]) -> tuple[Message, ...]:
    found = tuple(messages)
    for item in found:
        if not isinstance(item, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(item).__name__
            raise InvalidTurn(
                "conversation", f"it is given a {kind}, not a Message", "make a turnlog.Message"
            )
    return found


def _remade(messages: tuple[Message, ...], model: str, metadata: dict[str, str]) -> Conversation:
    return Conversation(messages, model=model, metadata=metadata)


def _short(text: str, width: int = 40) -> str:
    line = " ".join(islice(text.split(), width))
    return repr(line if len(line) <= width else line[: width - 1] + "…")
