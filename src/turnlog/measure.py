"""How much a conversation is: its tokens, its figures, and how much of it fits. Pure.

Without a counter a token is 4 bytes of UTF-8: an estimate for plain English. Of another language a
tokenizer may make twice as many. Source: Sema, conversation/token-count and conversation/stats;
design, section 2, fit.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from turnlog.errors import InvalidTurn

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Sequence

    from turnlog.message import Message

_BYTES_A_TOKEN: Final = 4


class ConversationStats(NamedTuple):
    """A conversation in figures.

    Attributes:
        messages: how many there are.
        turns: how many of them are the assistant's.
        prompt_tokens: an estimate of the tokens in what the user and the system said.
        completion_tokens: an estimate of the tokens in what the assistant said.
        input_tokens: the tokens that the models were sent, as the replies' meta tells; None where
            none tells.
        output_tokens: the tokens that the models gave, likewise.
        models: the models named in the messages' meta (as "model"), each once, in order.
        first: the first time that a message has, or None.
        last: the last time that a message has, or None.
    """

    messages: int
    turns: int
    prompt_tokens: int
    completion_tokens: int
    input_tokens: int | None
    output_tokens: int | None
    models: tuple[str, ...]
    first: dt.datetime | None
    last: dt.datetime | None

    @property
    def total_tokens(self) -> int:
        """The estimate for all of the texts."""
        return self.prompt_tokens + self.completion_tokens


def stats_of(messages: Sequence[Message]) -> ConversationStats:
    """Give messages in figures."""
    messages = tuple(messages)  # of a thread, each is made anew at each look
    replies = [message for message in messages if message.role == "assistant"]
    prompts = [message for message in messages if message.role != "assistant"]
    models = (message.meta.get("model") for message in messages if message.meta)
    times = [message.at for message in messages if message.at is not None]
    return ConversationStats(
        messages=len(replies) + len(prompts),
        turns=len(replies),
        prompt_tokens=tokens_in(prompts),
        completion_tokens=tokens_in(replies),
        input_tokens=_told(replies, "input_tokens"),
        output_tokens=_told(replies, "output_tokens"),
        models=tuple(dict.fromkeys(model for model in models if isinstance(model, str))),
        first=times[0] if times else None,
        last=times[-1] if times else None,
    )


def _told(replies: Iterable[Message], name: str) -> int | None:
    """Give the sum of a figure that replies tell of, or None where none does."""
    told = [reply.meta.get(name) for reply in replies if reply.meta]
    counts = [count for count in told if type(count) is int]
    return sum(counts) if counts else None


def tokens_in(messages: Iterable[Message], count: Callable[[str], int] | None = None) -> int:
    """Give the tokens in the texts of messages, by a counter of one text or estimated."""
    size, in_a_token = _measure(count)
    return -(-sum(size(message.content) for message in messages) // in_a_token)


def newest_that_fit(
    messages: Sequence[Message], max_tokens: int, count: Callable[[str], int] | None = None
) -> tuple[Message, ...]:
    """Give the leading system messages, and the newest turns that fit, from a user's turn on.

    Raises:
        InvalidTurn: not even the system messages fit, or the number is negative.
    """
    check_count(max_tokens, "fit")
    size, in_a_token = _measure(count)
    head = tuple(takewhile(lambda message: message.role == "system", messages))
    left = max_tokens * in_a_token - sum(size(message.content) for message in head)
    if left < 0:
        raise InvalidTurn(
            "conversation",
            f"fit({max_tokens}) is less than its system messages take",
            "give more tokens, or another system message by with_system",
        )
    newest: list[Message] = []
    whole = 0  # of them, up to a user's turn
    for i in range(len(messages) - 1, len(head) - 1, -1):
        message = messages[i]
        left -= size(message.content)
        if left < 0:
            break
        newest.append(message)
        if message.role == "user":
            whole = len(newest)
    return (*head, *reversed(newest[:whole]))


def check_count(count: object, doing: str, subject: object = "conversation") -> None:
    """Raise InvalidTurn unless it is a number of something."""
    if not isinstance(count, int) or count < 0:
        raise InvalidTurn(subject, f"{doing}({count!r}) is no number", "give 0 or more")


def _measure(count: Callable[[str], int] | None) -> tuple[Callable[[str], int], int]:
    """Give the size of a text, and how much of that size is a token."""
    return (_bytes_of, _BYTES_A_TOKEN) if count is None else (count, 1)


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
