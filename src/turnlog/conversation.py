"""Conversation: an immutable sequence of messages, and the algebra on it.

A thread is a durable resource; a conversation is a value that is passed around (spec R1). Every
operation gives a new conversation and leaves the old one as it was. None touches a disk.

Inside, a conversation is a base that never changes (a thread's turns up to now, or a tuple), then
full blocks, then a short tail. Taking one from a thread copies nothing; adding to one copies at
most a block and, once in a block's length, the list of the blocks: up to hundreds of thousands of
messages, adding one takes the same time.
"""

from __future__ import annotations

import importlib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeAlias, Unpack, overload

from turnlog.display import counted, html_table, rich_text, short
from turnlog.errors import InvalidTurn, MissingExtra
from turnlog.measure import ConversationStats, check_count, newest_that_fit, stats_of, tokens_in
from turnlog.message import Message, Role, Scalar
from turnlog.wire import anthropic_request, openai_messages

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import ModuleType

    from rich.console import Console, ConsoleOptions, RenderResult

    from turnlog.engine.chat import ChatOptions

_BLOCK: Final = 64
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_MOST_SHOWN: Final = 20  # in a terminal or a notebook

_Blocks: TypeAlias = tuple[tuple[Message, ...], ...]


class Conversation(Sequence[Message]):
    """An immutable, hashable sequence of `Message`.

    Args:
        messages: the messages, in order; none unless given.
        model: the model that it is meant for; "" unless given.
        metadata: what the caller wants to carry along, str to str.

    Raises:
        InvalidTurn: an item of `messages` is not a Message, or the model or something in `metadata`
            is not a str.

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
        self._model = _text(model, "model")
        self._metadata = _frozen(metadata) if metadata else _NOTHING

    @classmethod
    def over(cls, base: Sequence[Message]) -> Conversation:
        """Make a conversation over a sequence that will never change, without copying it."""
        return cls._made(base, (), (), "", _NOTHING)

    def _with(
        self, base: Sequence[Message], blocks: _Blocks = (), tail: tuple[Message, ...] = ()
    ) -> Conversation:
        """Give the same conversation over other messages: model and metadata stay."""
        return self._made(base, blocks, tail, self._model, self._metadata)

    @classmethod
    def _made(
        cls,
        base: Sequence[Message],
        blocks: _Blocks,
        tail: tuple[Message, ...],
        model: str,
        metadata: Mapping[str, str],
    ) -> Conversation:
        """Make a conversation of parts that were checked before: messages() has no time to lose."""
        new = cls.__new__(cls)
        new._base, new._blocks, new._tail = base, blocks, tail  # noqa: SLF001 - one of its own
        new._model, new._metadata = model, metadata  # noqa: SLF001
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

    @property
    def turns(self) -> int:
        """The number of assistant messages: how often there was a reply."""
        return sum(message.role == "assistant" for message in self)

    @property
    def stats(self) -> ConversationStats:
        """The conversation in figures. Takes time in proportion to its length."""
        return stats_of(self)

    def token_count(self, count: Callable[[str], int] | None = None) -> int:
        """Give the number of tokens in the texts.

        Args:
            count: gives the tokens of one text, as `lambda text: len(encoding.encode(text))` does
                with tiktoken. Unless given, a token is taken to be 4 bytes of UTF-8, rounded up:
                an estimate for plain English; other languages may take twice as many.

        What a provider adds for each message is not in it. Source: Sema, conversation/token-count.
        """
        return tokens_in(self, count)

    def search(self, pattern: str | re.Pattern[str]) -> list[tuple[int, Message]]:
        """Find the messages whose text holds something.

        Args:
            pattern: a text, found literally and whatever its case; or a compiled regular
                expression, found by its own rules.

        Returns:
            The position and the message, for each that was found, in order.

        Raises:
            TypeError: it is neither.
        """
        finds = _finder(pattern)
        return [(i, message) for i, message in enumerate(self) if finds(message.content)]

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
        return self._followed_by((Message(role, content, None, meta),))

    def __add__(self, other: Iterable[Message]) -> Conversation:
        """Give this conversation followed by other messages; model and metadata are this one's.

        Takes time in proportion to what is added, however long this conversation is.

        Raises:
            InvalidTurn: an item of `other` is not a Message.
        """
        return self._followed_by(_checked(other))

    def _followed_by(self, messages: tuple[Message, ...]) -> Conversation:
        tail = self._tail + messages
        full = len(tail) - len(tail) % _BLOCK
        if not full:
            return self._with(self._base, self._blocks, tail)
        blocks = tuple(tail[i : i + _BLOCK] for i in range(0, full, _BLOCK))
        return self._with(self._base, self._blocks + blocks, tail[full:])

    def insert(self, index: SupportsIndex, message: Message) -> Conversation:
        """Give the conversation with a message before a position; its length is allowed.

        Raises:
            IndexError: there is no such position.
            InvalidTurn: it is not a Message.
        """
        position = self._position(index, len(self) + 1, "insert")
        before, after = self._halves(position, position)
        return self._with((*before, *_checked([message]), *after))

    def replace(self, index: SupportsIndex, message: Message) -> Conversation:
        """Give the conversation with another message at a position.

        Raises:
            IndexError: there is no such position.
            InvalidTurn: it is not a Message.
        """
        position = self._position(index, len(self), "replace")
        before, after = self._halves(position, position + 1)
        return self._with((*before, *_checked([message]), *after))

    def remove(self, index: SupportsIndex) -> Conversation:
        """Give the conversation without the message at a position.

        Raises:
            IndexError: there is no such position.
        """
        position = self._position(index, len(self), "remove")
        before, after = self._halves(position, position + 1)
        return self._with(before + after)

    def _position(self, index: SupportsIndex, count: int, doing: str) -> int:
        """Give an index that may count from the end as a position among `count`."""
        given = operator.index(index)
        position = given + len(self) if given < 0 else given
        if not 0 <= position < count:
            raise IndexError(
                f"conversation: {doing}({given}) is out of range; "
                f"it has {counted(len(self), 'message')}, counted from 0"
            )
        return position

    def _halves(self, end: int, start: int) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Give the messages before `end` and those from `start` on."""
        messages = self.messages
        return messages[:end], messages[start:]

    def with_system(self, content: str | None) -> Conversation:
        """Give the conversation with one system message, the first; those that it had are left out.

        Args:
            content: the text; None for no system message at all.

        Raises:
            InvalidTurn: the text is not a str.
        """
        rest = (message for message in self if message.role != "system")
        system = () if content is None else (Message("system", content),)
        return self._with((*system, *rest))

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
            InvalidTurn: `count` is not a number, 0 or more.
        """
        check_count(count, "last")
        return self[max(0, len(self) - count) :]

    def fit(self, max_tokens: int, *, count: Callable[[str], int] | None = None) -> Conversation:
        """Give the newest turns that fit into a number of tokens, to send to a model.

        Turns are kept whole, and the first of them is the user's, so that no reply comes without
        its question. The system messages that the conversation begins with stay, and count.

        Args:
            max_tokens: how many tokens the texts may take.
            count: gives the tokens of one text; the estimate of `token_count` unless given.

        Returns:
            The system messages and the turns; no turns where not even the last ones fit.

        Raises:
            InvalidTurn: `max_tokens` is not a number, 0 or more, or the system messages take more.

        Takes time in proportion to what it looks at: from the end, up to the first that does not
        fit.
        """
        return self._with(newest_that_fit(self, max_tokens, count))

    def fork(self) -> Conversation:
        """Give the same value, to go on from: a conversation never changes, so it is its own."""
        return self

    # ---- with a model's reply ----

    def say(self, content: str, **options: Unpack[ChatOptions]) -> Conversation:
        """Say something to a model. As `asay`, for plain code.

        Raises:
            RunningLoop: it is called where an event loop runs: await `asay` there.

        Blocks until the reply is there.
        """
        return _blocking(lambda: self.asay(content, **options), "asay")

    async def asay(self, content: str, **options: Unpack[ChatOptions]) -> Conversation:
        """Say something to a model; give the conversation with it and the reply.

        Args:
            content: what the user says.
            options: those of `chat`: `model` (the conversation's own unless given) and others.

        Returns:
            The conversation with both turns; the reply's meta tells its model and what it used. An
            empty reply is no turn.

        Raises:
            MissingExtra: the extra `agents` is not installed.
            RunFailed and others: as `achat` raises them. This conversation is as it was.

        Source: Sema, conversation/say.
        """
        return await _chat().said(self, content, options)

    def say_as(self, system: str, content: str, /, **options: Unpack[ChatOptions]) -> Conversation:
        """Say something to a model that is told to be something else. As `asay_as`. Blocks."""
        return _blocking(lambda: self.asay_as(system, content, **options), "asay_as")

    async def asay_as(
        self, system: str, content: str, /, **options: Unpack[ChatOptions]
    ) -> Conversation:
        """Say something to a model that is told to be something else, for this once.

        Args:
            system: what the model is told to be; this conversation's system messages are not sent.
            content: what the user says.
            options: those of `chat`.

        Returns:
            This conversation, its system messages as they were, with both turns.

        Raises as `asay` does. Source: Sema, conversation/say-as.
        """
        return await _chat().said_as(self, system, content, options)

    # ---- for the providers' SDKs ----

    def to_openai(self) -> list[Any]:
        """Return the messages as OpenAI's SDK takes them: `create(messages=conv.to_openai(), ...)`.

        Returns:
            Dicts with a role and a content. The system messages go first, as one. Messages of one
            role in a row are one, and those of white space alone are left out: models with a strict
            template refuse them.
        """
        return openai_messages(self)

    def to_anthropic(self) -> dict[str, Any]:
        """Give the messages as Anthropic's SDK takes them: `create(**conv.to_anthropic(), ...)`.

        Returns:
            A dict with `messages`, and `system` where there is a system message. Messages of one
            role in a row are one, and those of white space alone are left out, since the API
            refuses them.
        """
        return anthropic_request(self)

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
        shown = [f"{message.role}: {short(message.content)}" for message in self.last(3)]
        if len(self) > len(shown):
            shown.insert(0, "…")
        return f"<Conversation of {self._counted()}{': ' if shown else ''}{' | '.join(shown)}>"

    def _repr_html_(self) -> str:
        """Show the last messages in a notebook."""
        return html_table(self._caption(), self.last(_MOST_SHOWN))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show the last messages in a terminal, with Rich."""
        yield self._caption()
        yield from map(rich_text, self.last(_MOST_SHOWN))

    def _counted(self) -> str:
        return counted(len(self), "message")

    def _caption(self) -> str:
        earlier = f"; the last {_MOST_SHOWN}:" if len(self) > _MOST_SHOWN else ""
        return f"Conversation of {self._counted()}{earlier}"


def _chat() -> ModuleType:
    """Give the module that knows models: the one upward call, made when it is first needed."""
    try:
        return importlib.import_module("turnlog.engine.chat")
    except ImportError as error:
        raise MissingExtra.of("conversation", "agents") from error


def _blocking(work: Callable[[], Coroutine[Any, Any, Conversation]], instead: str) -> Conversation:
    return _chat().run_blocking(work, instead)


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


def _text(value: object, what: str) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    kind = type(value).__name__
    raise InvalidTurn("conversation", f"its {what} is of type {kind}", "give a str")


def _frozen(metadata: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(metadata, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTurn(
            "conversation", f"its metadata is of type {type(metadata).__name__}", "give a mapping"
        )
    return MappingProxyType(
        {_text(k, "metadata's key"): _text(v, f"metadata[{k!r}]") for k, v in metadata.items()}
    )


def _finder(pattern: str | re.Pattern[str]) -> Callable[[str], object]:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        message = f"search takes a str or a compiled pattern of a str, not {type(text).__name__}"
        raise TypeError(message)
    if isinstance(pattern, re.Pattern):
        return pattern.search
    folded = text.casefold()
    return lambda content: folded in content.casefold()
