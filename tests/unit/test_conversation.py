"""Conversation: an immutable sequence of messages, against a plain list as its model."""

from __future__ import annotations

import copy
import datetime as dt
import math
import pickle
import re
import shutil
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from turnlog import Conversation, InvalidTurn, Memory, Message

if TYPE_CHECKING:
    from pathlib import Path

USER, REPLY, SYSTEM = Message("user", "q"), Message("assistant", "a"), Message("system", "s")

messages = st.builds(
    Message, st.sampled_from(("user", "assistant", "system")), st.sampled_from("abc")
)
lists = st.lists(messages, max_size=6)
indexes = st.integers(-150, 150)
slices = st.slices(150) | st.builds(
    slice, st.none() | indexes, st.none() | indexes, st.none() | st.integers(-9, -1)
)


def is_user(message: Message) -> bool:
    """Tell whether the user said it."""
    return message.role == "user"


def shout(message: Message) -> Message:
    """Change a message."""
    return Message(message.role, message.content.upper(), message.at, message.meta)


def holds(conv: Conversation, model: list[Message]) -> None:
    """Check that a conversation is, in all that a sequence can do, the list of its messages."""
    assert len(conv) == len(model)
    assert bool(conv) == bool(model)
    assert list(conv) == list(conv.messages) == model
    assert list(reversed(conv)) == model[::-1]
    assert [conv[i] for i in range(-len(model), len(model))] == model * 2
    assert conv.messages == tuple(model)
    for message in (USER, REPLY, Message("user", "not there")):
        assert (message in conv) == (message in model)
        assert conv.count(message) == model.count(message)
    replies = [message.content for message in model if message.role == "assistant"]
    systems = [message.content for message in model if message.role == "system"]
    assert conv.turns == len(replies)
    assert conv.token_count() == math.ceil(sum(len(message.content) for message in model) / 4)
    assert conv.token_count(len) == sum(len(message.content) for message in model)
    stats = conv.stats
    assert (stats.messages, stats.turns) == (len(model), len(replies))
    assert stats.completion_tokens == math.ceil(sum(map(len, replies)) / 4)
    assert conv.last_reply == (replies[-1] if replies else None)
    assert conv.system == (systems[0] if systems else None)
    same = Conversation(model, model="m", metadata={"k": "v"})
    assert conv == same
    assert hash(conv) == hash(same)


def fitted(model: list[Message], tokens: int) -> list[Message] | None:
    """Give the leading system messages and the longest end that begins with a user and fits."""
    start = next((i for i, m in enumerate(model) if m.role != "system"), len(model))
    starts = [i for i in range(start, len(model)) if is_user(model[i])] + [len(model)]
    for first in starts:
        kept = model[:start] + model[first:]
        if math.ceil(sum(len(m.content.encode()) for m in kept) / 4) <= tokens:
            return kept
    return None


class ConversationMachine(RuleBasedStateMachine):
    """Conversations that are made of each other; none of them ever changes."""

    conversations = Bundle("conversations")

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.made: list[tuple[Conversation, list[Message]]] = []

    def make(self, conv: Conversation, model: list[Message]) -> int:
        """Note a conversation with its model; give its number."""
        assert (conv.model, conv.metadata) == ("m", {"k": "v"})
        self.made.append((conv, model))
        return len(self.made) - 1

    @rule(target=conversations, given=lists)
    def new(self, given: list[Message]) -> int:
        """Make one of messages."""
        return self.make(Conversation(iter(given), model="m", metadata={"k": "v"}), [*given])

    @rule(target=conversations, number=conversations, given=lists)
    def add(self, number: int, given: list[Message]) -> int:
        """Add some messages, one by one."""
        conv, model = self.made[number]
        for message in given:
            conv = conv.add(message.content, role=message.role)
        return self.make(conv, model + given)

    @rule(target=conversations, number=conversations, count=st.integers(60, 140))
    def add_many(self, number: int, count: int) -> int:
        """Add more messages than a block takes."""
        conv, model = self.made[number]
        for turn in range(count):
            conv = conv.add(f"{turn}")
        return self.make(conv, model + [Message("user", f"{turn}") for turn in range(count)])

    @rule(target=conversations, number=conversations, other=conversations)
    def join(self, number: int, other: int) -> int:
        """Put one behind another; the model and metadata are the first one's."""
        (conv, model), (other_conv, other_model) = self.made[number], self.made[other]
        if len(model) + len(other_model) > 2000:
            return number
        return self.make(conv + other_conv, model + other_model)

    @rule(target=conversations, number=conversations, part=slices)
    def cut(self, number: int, part: slice) -> int:
        """Take a slice."""
        conv, model = self.made[number]
        return self.make(conv[part], model[part])

    @rule(target=conversations, number=conversations)
    def filter(self, number: int) -> int:
        """Keep what the user said."""
        conv, model = self.made[number]
        return self.make(conv.filter(is_user), [*filter(is_user, model)])

    @rule(target=conversations, number=conversations)
    def map(self, number: int) -> int:
        """Change every message."""
        conv, model = self.made[number]
        return self.make(conv.map(shout), [*map(shout, model)])

    @rule(target=conversations, number=conversations, count=st.integers(0, 150))
    def last(self, number: int, count: int) -> int:
        """Take the last ones."""
        conv, model = self.made[number]
        return self.make(conv.last(count), model[max(0, len(model) - count) :])

    @rule(target=conversations, number=conversations)
    def fork(self, number: int) -> int:
        """Go on from the same value."""
        conv, model = self.made[number]
        return self.make(conv.fork(), model)

    @rule(target=conversations, number=conversations, index=indexes, message=messages)
    def insert(self, number: int, index: int, message: Message) -> int:
        """Put a message before a position, the end included; refuse one that is not there."""
        conv, model = self.made[number]
        if not -len(model) <= index <= len(model):
            with pytest.raises(IndexError, match="out of range"):
                conv.insert(index, message)
            return number
        longer = [*model]
        longer.insert(index, message)
        return self.make(conv.insert(index, message), longer)

    @rule(target=conversations, number=conversations, index=indexes, message=messages)
    def replace(self, number: int, index: int, message: Message) -> int:
        """Put a message in another one's place; refuse a place that is not there."""
        conv, model = self.made[number]
        if not -len(model) <= index < len(model):
            with pytest.raises(IndexError, match="out of range"):
                conv.replace(index, message)
            return number
        changed = [*model]
        changed[index] = message
        return self.make(conv.replace(index, message), changed)

    @rule(target=conversations, number=conversations, index=indexes)
    def remove(self, number: int, index: int) -> int:
        """Leave a message out; refuse one that is not there."""
        conv, model = self.made[number]
        if not -len(model) <= index < len(model):
            with pytest.raises(IndexError, match="out of range"):
                conv.remove(index)
            return number
        shorter = [*model]
        del shorter[index]
        return self.make(conv.remove(index), shorter)

    @rule(
        target=conversations, number=conversations, content=st.none() | st.sampled_from(("", "s"))
    )
    def with_system(self, number: int, content: str | None) -> int:
        """Give it one system message, or none."""
        conv, model = self.made[number]
        rest = [message for message in model if message.role != "system"]
        system = [] if content is None else [Message("system", content)]
        return self.make(conv.with_system(content), system + rest)

    @rule(target=conversations, number=conversations, tokens=st.integers(0, 60))
    def fit(self, number: int, tokens: int) -> int:
        """Keep what fits; refuse where not even the leading system messages do."""
        conv, model = self.made[number]
        fitting = fitted(model, tokens)
        if fitting is None:
            with pytest.raises(InvalidTurn, match="system messages"):
                conv.fit(tokens)
            return number
        return self.make(conv.fit(tokens), fitting)

    @rule(number=conversations, text=st.sampled_from(("a", "B", "1", "12", "ab", "", "not there")))
    def search(self, number: int, text: str) -> None:
        """Find a text, whatever its case."""
        conv, model = self.made[number]
        found = [(i, m) for i, m in enumerate(model) if text.lower() in m.content.lower()]
        assert conv.search(text) == found
        assert conv.search(re.compile(text, re.IGNORECASE)) == found

    @rule(number=conversations, index=indexes)
    def look(self, number: int, index: int) -> None:
        """Look at one message, or beyond the end."""
        conv, model = self.made[number]
        if -len(model) <= index < len(model):
            assert conv[index] == model[index]
            assert conv.index(conv[index]) == model.index(model[index])
        else:
            with pytest.raises(IndexError):
                conv[index]

    @rule(number=conversations, other=conversations)
    def compare(self, number: int, other: int) -> None:
        """Compare two: they are equal just when their messages are."""
        (conv, model), (other_conv, other_model) = self.made[number], self.made[other]
        assert (conv == other_conv) == (model == other_model)

    @invariant()
    def the_newest_is_its_model(self) -> None:
        """What was made last is what the list says."""
        if self.made:
            holds(*self.made[-1])

    def teardown(self) -> None:
        """Check that nothing that was made of them has changed any."""
        for made in self.made:
            holds(*made)


TestConversation = ConversationMachine.TestCase


# ---- the same over a thread ----


@given(st.lists(messages, min_size=1, max_size=5), lists, slices)
def test_a_snapshot_is_a_conversation_like_any_other(
    turns: list[Message], more: list[Message], part: slice
) -> None:
    """What works on a conversation works on a thread's messages. R16, R18."""
    with Memory("memory://") as memory:
        mem = memory.open("t")
        for turn in turns:
            mem.append(turn.content, role=turn.role)
        conv = mem.messages()
        model = list(conv)
        assert [(m.role, m.content) for m in model] == [(t.role, t.content) for t in turns]
        longer = conv + more
        assert list(longer) == model + more
        assert list(conv[part]) == model[part]
        assert list(longer[part]) == (model + more)[part]
        assert list(conv.filter(is_user)) == [*filter(is_user, model)]
        assert list(conv.map(shout)) == [*map(shout, model)]
        for index in range(-len(model), len(model)):
            changed = [*model]
            changed[index] = REPLY
            assert list(conv.replace(index, REPLY)) == changed
            changed.insert(index, SYSTEM)
            assert list(conv.replace(index, REPLY).insert(index, SYSTEM)) == changed
            del changed[index]
            assert list(conv.replace(index, REPLY).insert(index, SYSTEM).remove(index)) == changed
        rest = [message for message in model if message.role != "system"]
        assert list(conv.with_system("new")) == [Message("system", "new"), *rest]
        assert conv.search("B") == [(i, m) for i, m in enumerate(model) if m.content == "b"]
        assert list(conv.fit(1000)) == fitted(model, 1000)
        assert conv.turns == conv.stats.turns == sum(m.role == "assistant" for m in model)
        assert conv.token_count() == math.ceil(len(model) / 4)
        mem.extend(more)
        assert list(conv) == model
        assert conv == Conversation(model)
        assert hash(conv) == hash(Conversation(model))


def test_later_appends_do_not_change_a_snapshot(root: Path) -> None:
    """A snapshot stays as it was, of turns that were loaded and of turns appended since. R16."""
    with Memory(root) as memory:
        memory.open("t").append("0").append("1")
    with Memory(root) as memory, Memory(root) as peer:
        mem = memory.open("t")
        snapshots = [mem.messages()]
        for number in range(2, 6):
            peer.open("t").append(f"{number} by the other")
            mem.append(f"{number}")
            snapshots.append(mem.messages())
        walk = iter(snapshots[1])
        next(walk)
        mem.append("while it is walked through")
        assert len(list(walk)) == 3
    assert [len(conv) for conv in snapshots] == [2, 4, 6, 8, 10]
    whole = snapshots[-1].messages
    assert [conv.messages for conv in snapshots] == [whole[: len(conv)] for conv in snapshots]


def test_taking_a_snapshot_reads_no_turn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are taken, counted and added to without a look at any turn. R16, R17."""

    def look(line: bytes) -> Message:
        raise AssertionError(line)

    with Memory(root) as memory:
        memory.open("t").extend([USER] * 100)
    with Memory(root) as memory:
        mem = memory.open("t").append("x").append("y")
        with monkeypatch.context() as patch:
            patch.setattr("turnlog.workingset.decode_turn", look)
            conv = mem.messages().add("z").fork()
            assert (len(mem), len(conv)) == (102, 103)
            with pytest.raises(AssertionError):
                conv[0]
    assert [message.content for message in conv[99:]] == ["q", "x", "y", "z"]


def test_messages_need_no_file(root: Path) -> None:
    """With its folder gone and its memory closed, a thread still gives its turns. R17, C18."""
    with Memory(root) as memory:
        mem = memory.open("t").append("a").append("b")
        shutil.rmtree(root)
        assert [message.content for message in mem.messages()] == ["a", "b"]
    assert [message.content for message in mem.messages()] == ["a", "b"]


# ---- a value ----


class Seen(Sequence[Message]):
    """A sequence that counts how often one of its items is looked at."""

    def __init__(self, count: int) -> None:
        """Hold a message `count` times."""
        self.count_ = count
        self.looks = 0

    def __len__(self) -> int:
        """Give the number of messages."""
        return self.count_

    def __getitem__(self, index: Any) -> Any:
        """Count the look."""
        self.looks += 1
        return USER


def test_adding_does_not_look_at_what_is_there() -> None:
    """Adding 10,000 messages, and branching at each, copies nothing of the base."""
    base = Seen(100_000)
    conv = Conversation.over(base)
    trunk = [conv]
    for number in range(10_000):
        trunk.append(trunk[-1].add(str(number)))
    branches = [conv.add("branch", role="assistant") for conv in trunk]
    assert base.looks == 0
    for number in (0, 1, 63, 64, 65, 4095, 4096, 9_999, 10_000):
        assert len(trunk[number]) == 100_000 + number
        assert len(branches[number]) == 100_001 + number
        assert branches[number][-1] == Message("assistant", "branch")
        assert branches[number].last_reply == "branch"
        if number:
            assert trunk[number][-1] == branches[number][-2] == Message("user", str(number - 1))
    own = trunk[-1][100_000:]
    assert [message.content for message in own] == [str(number) for number in range(10_000)]
    assert base.looks == 0


def test_equality_is_by_value() -> None:
    """Messages, model and metadata make the value; anything else is not equal to it."""
    conv = Conversation([USER, REPLY], model="m", metadata={"a": "1", "b": "2"})
    same = Conversation([USER], model="m", metadata={"b": "2", "a": "1"}).add("a", role="assistant")
    assert conv == same
    assert hash(conv) == hash(same)
    others = {
        Conversation([USER, REPLY]),
        Conversation([USER, REPLY], model="n", metadata=conv.metadata),
        Conversation([USER, REPLY], model="m"),
        Conversation([REPLY, USER], model="m", metadata=conv.metadata),
        conv[:1],
    }
    assert len(others | {conv, same}) == 6
    assert conv != [USER, REPLY]
    assert conv != (USER, REPLY)
    assert isinstance(conv, Sequence)
    assert isinstance(conv, Hashable)


def test_a_conversation_cannot_be_changed() -> None:
    """Neither its messages, nor its model, nor its metadata can be changed in place."""
    given, metadata = [USER], {"k": "v"}
    conv: Any = Conversation(given, model="m", metadata=metadata)
    given.append(REPLY)
    metadata["k"] = "w"
    names = ("model", "messages", "metadata", "system", "last_reply", "turns", "stats", "other")
    for name in names:
        with pytest.raises(AttributeError):
            setattr(conv, name, None)
    with pytest.raises(TypeError):
        conv.metadata["k"] = "w"
    with pytest.raises(TypeError):
        conv[0] = REPLY
    with pytest.raises(TypeError):
        del conv[0]
    before = conv
    conv += [REPLY]
    assert (before.messages, before.model, before.metadata) == ((USER,), "m", {"k": "v"})
    assert conv.messages == (USER, REPLY)


@pytest.mark.parametrize("part", [slice(0, 0), slice(None), slice(1, None), slice(70, 200)])
def test_a_conversation_crosses_a_process_boundary(memory: Memory, part: slice) -> None:
    """A copied or pickled conversation, of a thread too, is equal."""
    mem = memory.open("t").append("q").append("\ud800", role="assistant", meta={"a": 1})
    conv = mem.messages()
    for number in range(200):
        conv = conv.add(str(number))
    conv = conv[part]
    assert copy.copy(conv) == copy.deepcopy(conv) == conv
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(conv, protocol))
        assert again == conv
        assert hash(again) == hash(conv)
    rich = Conversation(conv, model="m", metadata={"k": "v"})
    again = pickle.loads(pickle.dumps(rich))
    assert (again.model, again.metadata) == ("m", {"k": "v"})
    with pytest.raises(TypeError):
        again.metadata["k"] = "w"


@pytest.mark.parametrize(
    "given", [["x"], [USER, None], [("user", "x")], "text", [{"role": "user"}]]
)
def test_what_is_no_message_is_refused(given: Any) -> None:
    """Only Messages come in, at whichever door, and the error says what was given."""
    conv = Conversation([USER])
    calls: list[Any] = [
        lambda: Conversation(given),
        lambda: conv + given,
        lambda: conv.map(lambda _: given),
        lambda: conv.insert(0, given),
        lambda: conv.replace(0, given),
    ]
    for call in calls:
        with pytest.raises(InvalidTurn, match="not a Message"):
            call()


def test_bad_arguments_are_refused() -> None:
    """A message that a thread could not keep, or a negative count, raises InvalidTurn."""
    conv: Any = Conversation([USER])
    for call in (
        lambda: conv.add(7),
        lambda: conv.add("x", role="tool"),
        lambda: conv.add("x", meta={"a": []}),
        lambda: conv.last(-1),
        lambda: conv.with_system(7),
        lambda: conv.fit(-1),
    ):
        with pytest.raises(InvalidTurn):
            call()
    assert conv.messages == (USER,)


OF_ANOTHER_TYPE: list[tuple[Callable[[Any], object], str]] = [
    (lambda conv: conv.last("1"), r"last\('1'\)"),
    (lambda conv: conv.last(1.5), r"last\(1\.5\)"),
    (lambda conv: conv.last(-1), r"last\(-1\)"),
    (lambda conv: conv.fit(None), r"fit\(None\)"),
    (lambda conv: conv.fit("3"), r"fit\('3'\)"),
    (lambda conv: conv.fit(-1), r"fit\(-1\)"),
    (lambda _: Conversation(model=cast("Any", 3)), "model .* type int"),
    (lambda _: Conversation(metadata=cast("Any", {"a": [1]})), r"metadata\['a'\] .* type list"),
    (lambda _: Conversation(metadata=cast("Any", {1: "a"})), "metadata.*type int"),
]


@pytest.mark.parametrize(("call", "told"), OF_ANOTHER_TYPE)
@pytest.mark.parametrize("conv", [Conversation(), Conversation([USER])])
def test_an_argument_of_another_type_is_told(
    conv: Conversation, call: Callable[[Any], object], told: str
) -> None:
    """What is no count, no model and no metadata is an InvalidTurn that says what was given."""
    with pytest.raises(InvalidTurn, match=told):
        call(conv)


@pytest.mark.parametrize(
    ("conv", "pattern", "told"),
    [
        (Conversation(), 3, "int"),
        (Conversation([USER]), b"x", "bytes"),
        (Conversation([USER]), re.compile(b"x"), "bytes"),
        (Conversation(), re.compile(b"x"), "bytes"),
    ],
)
def test_search_takes_texts_alone(conv: Any, pattern: object, told: str) -> None:
    """What is neither a text nor a pattern of text is a TypeError that says what was given."""
    with pytest.raises(TypeError, match=told):
        conv.search(pattern)


def test_model_and_metadata_are_plain() -> None:
    """Of a subclass of str its text is kept, so that a conversation is a value."""

    class Name(str):
        __slots__ = ()

    conv = Conversation(model=Name("m"), metadata={Name("k"): Name("v")})
    ((key, value),) = conv.metadata.items()
    assert {type(each) for each in (conv.model, key, value)} == {str}
    assert (conv.model, key, value) == ("m", "k", "v")


Edit = Callable[[Any, Any], Conversation]

EDITS: dict[str, Edit] = {
    "insert": lambda conv, index: conv.insert(index, USER),
    "replace": lambda conv, index: conv.replace(index, USER),
    "remove": lambda conv, index: conv.remove(index),
}
edits = pytest.mark.parametrize("name", EDITS)


@pytest.mark.parametrize(
    ("name", "index"), [("insert", 3), ("insert", -3), ("replace", 2), ("remove", -3)]
)
def test_an_index_out_of_range_is_told(name: str, index: int) -> None:
    """An IndexError says which call it was, with which index, and how many messages there are."""
    with pytest.raises(IndexError) as told:
        EDITS[name](Conversation([USER, REPLY]), index)
    message = f"conversation: {name}({index}) is out of range; it has 2 messages, counted from 0"
    assert str(told.value) == message


@edits
@pytest.mark.parametrize("index", ["0", 0.0, None])
def test_what_is_no_index_is_a_type_error(name: str, index: object) -> None:
    """What Python takes for no index is a TypeError, as for every sequence."""
    with pytest.raises(TypeError):
        EDITS[name](Conversation([USER, REPLY]), index)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("STRASSE", [0, 1]),
        ("stra\u00dfe", [0, 1]),
        ("\u03a3\u03a3", [2]),
        (".", [3]),
        ("(", [3]),
        ("", [0, 1, 2, 3, 4]),
        ("\n", [4]),
        (re.compile("stra\u00dfe"), [0]),
        (re.compile("STRASSE", re.IGNORECASE), [1]),
        (re.compile("^two$", re.MULTILINE), [4]),
        (re.compile("^two$"), []),
        (re.compile("."), [0, 1, 2, 3, 4]),
    ],
)
def test_search_ignores_case_and_reads_no_regex_into_a_text(
    pattern: str | re.Pattern[str], found: list[int]
) -> None:
    """A text is found literally and whatever its case, also over 1 to 2 letters; a regex as it is.

    Source: Sema, conversation/search.
    """
    texts = ("eine stra\u00dfe", "strasse 1", "\u03c3\u03c2", "f(x).", "one\ntwo")
    conv = Conversation(Message("user", text) for text in texts)
    hits = conv.search(pattern)
    assert [index for index, _ in hits] == found
    assert [message for _, message in hits] == [conv[index] for index in found]


def test_search_over_a_thread_gives_its_positions(memory: Memory) -> None:
    """What is found in a thread's messages stands at its position in the thread, roles and all."""
    mem = memory.open("t")
    for number in range(100):
        mem.append(f"Invoice {number}", role="assistant" if number % 2 else "user")
    conv = mem.messages().add("invoice 99")
    assert [index for index, _ in conv.search("INVOICE 99")] == [99, 100]
    assert conv[95:].search("invoice 99")[0] == (4, conv[99])


def test_one_system_message_is_the_first() -> None:
    """With a new system message the old ones are gone, wherever they stood."""
    conv = Conversation([SYSTEM, USER, SYSTEM, REPLY], model="m", metadata={"k": "v"})
    new = conv.with_system("be brief")
    assert new.messages == (Message("system", "be brief"), USER, REPLY)
    assert (new.system, new.model, new.metadata) == ("be brief", "m", {"k": "v"})
    assert conv.with_system("").system == ""
    assert conv.with_system(None).messages == (USER, REPLY)
    assert conv.with_system(None).system is None
    assert conv.messages == (SYSTEM, USER, SYSTEM, REPLY)


def test_messages_made_in_memory_have_no_time() -> None:
    """`add` gives no time, and a thread gives one when the message is appended."""
    conv = Conversation().add("x", meta={"a": 1})
    assert conv[0] == Message("user", "x", None, {"a": 1})
    before = dt.datetime.now(dt.UTC)
    with Memory("memory://") as memory:
        (turn,) = memory.open("t").extend(conv).messages()
    assert turn.at is not None
    assert before <= turn.at <= dt.datetime.now(dt.UTC)
    assert (turn.content, turn.meta) == ("x", {"a": 1})
