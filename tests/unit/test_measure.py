"""How much a conversation is, how much of it fits, and what looking costs: counted, not timed."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnlog import Conversation, InvalidTurn, Memory, Message

if TYPE_CHECKING:
    from pathlib import Path

USER, REPLY, SYSTEM = Message("user", "q"), Message("assistant", "a"), Message("system", "s")

texts = st.sampled_from(
    ("", "a", "four", "seven b", "\u00e9", "\u4e16\u754c", "\U0001f9f5", "\ud800", "x" * 40)
)
conversations = st.lists(
    st.builds(Message, st.sampled_from(("user", "assistant", "system")), texts), max_size=12
).map(Conversation)
Counter = Callable[[str], int]


def words(text: str) -> int:
    """Count words."""
    return len(text.split())


def three(text: str) -> int:
    """Find three tokens in every text, an empty one too."""
    del text
    return 3


counters = st.sampled_from((None, len, words, three))


def size(text: str) -> int:
    """Give the bytes of a text, a half character's too."""
    return len(text.encode("utf-8", "surrogatepass"))


# ---- tokens ----


@given(conversations)
def test_a_token_is_four_bytes(conv: Conversation) -> None:
    """The estimate is all the texts' bytes of UTF-8 by 4, rounded up once. Sema, token-count."""
    assert conv.token_count() == math.ceil(sum(size(m.content) for m in conv) / 4)


@pytest.mark.parametrize(
    ("contents", "tokens"),
    [
        ([], 0),
        ([""], 0),
        (["a"], 1),
        (["four"], 1),
        (["fives"], 2),
        (["a", "a", "a", "a"], 1),
        (["\u4e16\u754c"], 2),
        (["\U0001f9f5"], 1),
        (["\ud800"], 1),
    ],
)
def test_token_counts(contents: list[str], tokens: int) -> None:
    """Some counts by hand: the rounding is over all the texts, not over each."""
    assert Conversation(Message("user", text) for text in contents).token_count() == tokens


@given(conversations)
def test_a_counter_of_ones_own_is_given_each_text(conv: Conversation) -> None:
    """With a counter the count is the sum of what it says, and it is asked once for each text."""
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return len(text) * 3 + 1

    assert conv.token_count(count) == sum(len(m.content) * 3 + 1 for m in conv)
    assert asked == [m.content for m in conv]


@given(conversations)
def test_stats_add_up(conv: Conversation) -> None:
    """Stats count what was asked and what was answered apart. Sema, conversation/stats."""
    stats = conv.stats
    replies = conv.filter(lambda m: m.role == "assistant")
    assert stats.messages == len(conv)
    assert stats.turns == conv.turns == len(replies)
    assert stats.completion_tokens == replies.token_count()
    assert stats.prompt_tokens == conv.filter(lambda m: m.role != "assistant").token_count()
    assert stats.total_tokens == stats.prompt_tokens + stats.completion_tokens
    assert (stats.models, stats.first, stats.last) == ((), None, None)


def test_stats_sum_what_the_replies_used() -> None:
    """The tokens that the replies' meta tells of are summed; without any they are None."""
    conv = Conversation().add("q", meta={"input_tokens": 9}).add("r", role="assistant")
    assert (conv.stats.input_tokens, conv.stats.output_tokens) == (None, None)
    used = ({"input_tokens": 3, "output_tokens": 4}, {"input_tokens": 5}, {"input_tokens": "many"})
    for meta in used:
        conv = conv.add("r", role="assistant", meta=meta)
    assert (conv.stats.input_tokens, conv.stats.output_tokens) == (8, 4)


def test_stats_tell_models_and_times() -> None:
    """Each model that meta names stands there once, in order; the times are of those that have one.

    What stands under "model" and is no text is none.
    """
    at = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
    later = at + dt.timedelta(hours=1)
    conv = Conversation(
        [
            USER,
            Message("assistant", "1", at, {"model": "large"}),
            Message("assistant", "2", None, {"model": "small"}),
            Message("assistant", "3", later, {"model": "large", "n": 1}),
            Message("assistant", "4", None, {"model": 7}),
            Message("assistant", "5", None, {"n": 1}),
        ]
    )
    stats = conv.stats
    assert (stats.models, stats.first, stats.last) == (("large", "small"), at, later)


def test_stats_of_a_thread(memory: Memory) -> None:
    """A thread's messages have the times of their appends."""
    mem = memory.open("t").append("question", meta={"model": "not asked"})
    mem.append("answer", role="assistant", meta={"model": "small-1"})
    conv = mem.messages()
    assert conv.stats == (2, 1, 2, 2, None, None, ("not asked", "small-1"), conv[0].at, conv[1].at)


# ---- what fits ----


def ends(conv: Conversation) -> tuple[Conversation, list[Conversation]]:
    """Give the leading system messages, and every end behind them that begins with a user."""
    head = next((i for i, m in enumerate(conv) if m.role != "system"), len(conv))
    starts = [i for i in range(head, len(conv)) if conv[i].role == "user"]
    return conv[:head], [conv[i:] for i in [*starts, len(conv)]]


@given(conversations, st.integers(0, 60), counters)
@example(Conversation([SYSTEM, REPLY, USER, REPLY]), 1, None)
@example(Conversation([USER, Message("user", ""), REPLY]), 0, None)
def test_fit_keeps_the_longest_end_that_fits(
    conv: Conversation, tokens: int, count: Counter | None
) -> None:
    """What fits is never too much, whole, begins with a user's turn, and nothing longer would fit.

    The system messages at the beginning stay; where they alone are too much, it is an error.
    """
    head, suffixes = ends(conv)
    if head.token_count(count) > tokens:
        with pytest.raises(InvalidTurn, match=rf"fit\({tokens}\) is less than its system messages"):
            conv.fit(tokens, count=count)
        return
    fitting = conv.fit(tokens, count=count)
    assert fitting.token_count(count) <= tokens
    assert fitting[: len(head)] == head
    turns = fitting[len(head) :]
    assert turns == conv[len(conv) - len(turns) :]
    assert not turns or turns[0].role == "user"
    longer = [suffix for suffix in suffixes if len(suffix) > len(turns)]
    assert all((head + suffix).token_count(count) > tokens for suffix in longer)
    assert turns in suffixes


@given(conversations, counters)
def test_what_fits_as_it_is_stays_as_it_is(conv: Conversation, count: Counter | None) -> None:
    """With as many tokens as all takes, all from the first user's turn on is kept, and again."""
    head, suffixes = ends(conv)
    fitting = conv.fit(conv.token_count(count), count=count)
    assert fitting == head + suffixes[0]
    assert fitting.fit(fitting.token_count(count), count=count) == fitting


def test_fit_by_hand() -> None:
    """The examples of the documentation: whole turns, newest kept, from a user's turn on."""
    conv = Conversation(
        [
            Message("system", "be brief"),  # 2 tokens
            Message("user", "question"),  # 2
            Message("assistant", "an answer, long"),  # 4
            Message("user", "again"),  # 2
            Message("assistant", "done"),  # 1
        ],
        model="m",
        metadata={"k": "v"},
    )
    assert conv.fit(10) == conv.fit(10_000) == conv
    assert conv.fit(9) == conv.fit(5).with_system("be brief") == conv[:1] + conv[3:]
    assert conv.fit(4) == conv.fit(2) == conv[:1]
    assert (conv.fit(2).model, conv.fit(2).metadata) == ("m", {"k": "v"})
    with pytest.raises(InvalidTurn, match="give more tokens"):
        conv.fit(1)
    assert len(conv) == 5


def test_fit_of_nothing() -> None:
    """Nothing fits into anything; no tokens hold no text; a negative number is refused."""
    assert Conversation().fit(0) == Conversation()
    assert Conversation([USER]).fit(0) == Conversation()
    assert Conversation([REPLY, REPLY]).fit(100) == Conversation()
    for conv in (Conversation(), Conversation([USER])):
        with pytest.raises(InvalidTurn):
            conv.fit(-1)


def test_a_system_message_in_the_middle_is_a_message_like_any_other() -> None:
    """Only those at the beginning always stay; one among the turns is kept with them, or not."""
    conv = Conversation([SYSTEM, USER, SYSTEM, REPLY, USER, SYSTEM])
    assert conv.fit(6, count=len) == conv
    assert conv.fit(5, count=len) == conv.fit(3, count=len) == conv[:1] + conv[4:]
    assert conv.fit(2, count=len) == conv[:1]


# ---- what it costs, in messages that are looked at ----


class Looked(Sequence[Message]):
    """A sequence that notes which of its items are looked at."""

    def __init__(self, *parts: tuple[int, Message]) -> None:
        """Hold each message as often as is said."""
        self.items: Any = [message for count, message in parts for _ in range(count)]
        self.looks: list[int] = []

    def __len__(self) -> int:
        """Give the number of messages."""
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        """Note the look."""
        message: Any = self.items[index]  # beyond the end is no look
        self.looks.append(index)
        return message


def test_what_needs_no_look_takes_none() -> None:
    """Length, truth, adding, joining and forking look at no message of a long conversation."""
    base = Looked((100_000, USER))
    conv = Conversation.over(base)
    longer = (conv.add("x") + [REPLY] * 200).fork()
    assert (len(longer), bool(conv)) == (100_201, True)
    assert (longer[-1], longer[100_000].content) == (REPLY, "x")
    assert base.looks == []


def test_what_looks_at_an_end_looks_at_no_more() -> None:
    """The last messages, a slice, the last reply and a repr look at just what they show."""
    base = Looked((99_999, USER), (1, REPLY))
    conv = Conversation.over(base)
    conv.last(20)
    assert sorted(base.looks) == list(range(99_980, 100_000))
    base.looks.clear()
    assert conv[50_000:50_010] == Conversation([USER] * 10)
    assert sorted(base.looks) == list(range(50_000, 50_010))
    base.looks.clear()
    assert conv.last_reply == "a"
    assert base.looks == [99_999]
    base.looks.clear()
    repr(conv)
    assert len(base.looks) <= 6
    base.looks.clear()
    conv._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert len(base.looks) <= 40


@pytest.mark.parametrize("kept", [0, 2, 20, 200])
def test_fit_looks_at_what_it_keeps(kept: int) -> None:
    """Of 100,000 messages `fit` looks at those that it keeps, the head, and one that is too much.

    The first behind the head is looked at too: it is no system message.
    """
    base = Looked((2, SYSTEM), *[(1, USER), (1, REPLY)] * 50_000)
    fitting = Conversation.over(base).fit(2 + kept, count=len)
    assert len(fitting) == 2 + kept
    assert len(base.looks) <= kept + 4
    expected = {0, 1, 2} | set(range(len(base) - kept - 1, len(base)))
    assert set(base.looks) == expected


WALKS: dict[str, Callable[[Conversation], object]] = {
    "token_count": lambda conv: conv.token_count(),
    "turns": lambda conv: conv.turns,
    "search": lambda conv: conv.search("nothing"),
    "filter": lambda conv: conv.filter(bool),
    "insert": lambda conv: conv.insert(500, USER),
    "remove": lambda conv: conv.remove(500),
    "replace": lambda conv: conv.replace(500, USER),
    "with_system": lambda conv: conv.with_system("s"),
    "to_openai": lambda conv: conv.to_openai(),
    "to_anthropic": lambda conv: conv.to_anthropic(),
}


@pytest.mark.parametrize("walk", WALKS)
def test_one_pass_is_one_pass(walk: str) -> None:
    """What goes through all of a conversation looks at each message once."""
    base = Looked((1000, USER))
    WALKS[walk](Conversation.over(base))
    assert base.looks == list(range(1000))


def test_stats_take_a_few_passes() -> None:
    """Stats look at each message as often in a long conversation as in a short one."""
    passes: set[float] = set()
    for count in (10, 1000):
        base = Looked((count, USER))
        assert Conversation.over(base).stats.messages == count
        passes.add(len(base.looks) / count)
    assert len(passes) == 1
    assert max(passes) <= 4


def test_a_snapshot_of_a_thread_decodes_what_is_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long thread that was loaded, only the turns that are kept are ever decoded. R17."""
    with Memory(root) as memory:
        memory.open("t").extend([SYSTEM, *[USER, REPLY] * 5000])
    decoded: list[bytes] = []
    from turnlog import workingset  # noqa: PLC0415 - to look inside

    decode = workingset.decode_turn

    def count(line: bytes) -> Message:
        decoded.append(line)
        return decode(line)

    with Memory(root) as memory:
        mem = memory.open("t")
        monkeypatch.setattr(workingset, "decode_turn", count)
        conv = mem.messages().add("x").add("y", role="assistant")
        assert (len(conv), decoded) == (10_003, [])
        fitting = conv.fit(23, count=len)
        assert len(fitting) == 23
        assert len(decoded) <= 20 + 3
