"""Conversations: does an operation take the time that its docstring promises, at every length?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from files import long_thread
from table import Row, at_most, duration, median, ratio
from text import turn

from turnlog import Conversation, Memory, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_ADDS: Final = 640  # ten blocks of a conversation, so that what is done once a block has its part
_SNAPSHOTS: Final = 1000
_MESSAGES: Final = 100_000  # what one measurement goes through, a short conversation many times
_ALIKE: Final = 2.0  # the caches of the processor have a part too


def conversation_rows(
    root: Path, repetitions: int, adds: Sequence[int], lengths: Sequence[int]
) -> Iterator[Row]:
    """Measure at several lengths: a constant time, or a constant time a message.

    Args:
        root: where the threads are.
        repetitions: how often each is measured.
        adds: the lengths of the conversations that are added to.
        lengths: the lengths of the others.
    """
    yield _row("`add` to a conversation", "an `add`", adds, _measured(repetitions, adds, _add))
    for what, measure in (("`filter`", _filter), ("`fit` into half of the tokens of", _fit)):
        times = _measured(repetitions, lengths, measure)
        yield _row(f"{what} a conversation", "a message", lengths, times)
    times = _snapshots(root, repetitions, lengths)
    yield _row("`messages()` of a thread", "a snapshot", lengths, times)


def _row(what: str, unit: str, lengths: Sequence[int], times: Sequence[Sequence[float]]) -> Row:
    """Give the row of an operation: its times at each length, the longest beside the shortest."""
    shown = " / ".join(duration(median(own)) for own in times)
    more = ratio(times[-1], times[0])
    return Row(
        f"{what} of {' / '.join(f'{length:,}' for length in lengths)}",
        f"{shown} {unit}",
        "the longest beside the shortest",
        f"{more:.2f} x the time",
        at_most(_ALIKE, more, " x"),
    )


def _measured(
    repetitions: int, lengths: Sequence[int], measure: Callable[[Conversation], float]
) -> list[list[float]]:
    """Measure at each length in each repetition."""
    conversations = [_grown(length) for length in lengths]
    runs = [[measure(one) for one in conversations] for _ in range(repetitions)]
    return [list(times) for times in zip(*runs, strict=True)]


def _grown(length: int) -> Conversation:
    """Give a conversation that came about message by message."""
    conversation = Conversation()
    for number in range(length):
        role, text = turn(number)
        conversation = conversation.add(text, role=role)
    return conversation


def _add(conversation: Conversation) -> float:
    start = time.perf_counter()
    for _ in range(_ADDS):
        conversation = conversation.add("one more")
    return (time.perf_counter() - start) / _ADDS


def _filter(conversation: Conversation) -> float:
    return _a_message(conversation, lambda: conversation.filter(_by_user))


def _by_user(message: Message) -> bool:
    return message.role == "user"


def _fit(conversation: Conversation) -> float:
    half = conversation.token_count() // 2
    return _a_message(conversation, lambda: conversation.fit(half))


def _a_message(conversation: Conversation, operation: Callable[[], Conversation]) -> float:
    """Give the time of an operation divided by the number of messages."""
    times = max(1, _MESSAGES // len(conversation))
    start = time.perf_counter()
    for _ in range(times):
        operation()
    return (time.perf_counter() - start) / (times * len(conversation))


def _snapshots(root: Path, repetitions: int, lengths: Sequence[int]) -> list[list[float]]:
    with Memory(root) as memory:
        threads = [memory.open(long_thread(root, length)) for length in lengths]
        runs: list[list[float]] = []
        for _ in range(repetitions):
            times: list[float] = []
            for thread in threads:
                start = time.perf_counter()
                for _ in range(_SNAPSHOTS):
                    thread.messages()
                times.append((time.perf_counter() - start) / _SNAPSHOTS)
            runs.append(times)
    return [list(times) for times in zip(*runs, strict=True)]
