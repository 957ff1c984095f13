"""Whatever a thread holds is legal on each provider's wire, and comes back as it was said."""

from __future__ import annotations

from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from localserver import Provider, Reply, Thinking, ToolCall
from localserver import turns as sent_turns
from ways import ours, said, theirs
from wires import OPENING, Turns, Wire, conversation, joined, legal, spelt, whole

import turnlog
from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from programs import Stored
    from ways import Make, Perform

    from turnlog.agents.writeback import WritebackMode


# ---- whatever a thread holds is legal on the wire ----


@pytest.mark.parametrize(
    ("turns", "system", "sent"),
    [
        pytest.param([("u", "1"), ("u", "2")], "", [("u", "1\n\n2\n\nnow")], id="user in a row"),
        pytest.param(
            [("u", "1"), ("a", "2"), ("a", "3")],
            "",
            [("u", "1"), ("a", "2\n\n3"), ("u", "now")],
            id="assistant in a row",
        ),
        pytest.param(
            [("u", "1"), ("a", "2"), ("u", "3")],
            "",
            [("u", "1"), ("a", "2"), ("u", "3\n\nnow")],
            id="ends with the user",
        ),
        pytest.param([("s", "1"), ("s", "2")], "1\n\n2", [("u", "now")], id="system alone"),
        pytest.param(
            [("u", " "), ("u", "1"), ("a", "\n\t"), ("u", "\u2028"), ("a", "2"), ("s", "\u00a0")],
            "",
            [("u", "1"), ("a", "2"), ("u", "now")],
            id="blank turns",
        ),
        pytest.param(
            [("u", ""), ("a", " "), ("s", "")], "", [("u", "now")], id="nothing but blanks"
        ),
        pytest.param(
            [("s", "\ud800s"), ("u", "\udfffu\ud83e"), ("a", "\ud800"), ("u", "\ud83e\uddf5")],
            "\ufffds",
            [("u", "\ufffdu\ufffd"), ("a", "\ufffd"), ("u", "\U0001f9f5\n\nnow")],
            id="half characters (C13)",
        ),
        pytest.param(
            [("u", " 1\n"), ("a", "2 \n")],
            "",
            [("u", " 1\n"), ("a", "2 \n"), ("u", "now")],
            id="white space around",
        ),
    ],
)
def test_a_threads_turns_are_legal_for_every_provider(  # noqa: PLR0913, PLR0917 - a table's row
    any_wire: Wire,
    make: Make,
    stored: Stored,
    turns: Turns,
    system: str,
    sent: Turns,
) -> None:
    """Whatever a thread holds is taken by each provider, with nothing lost that has text (R22)."""
    before = stored.mem.extend(conversation(*turns)).messages()
    assert turnlog.run(make(any_wire.model), "now", memory=stored.mem).response == "Hello."
    [request] = any_wire.sent()
    assert joined(request) == (system, spelt(sent))
    assert stored.reopened()[: len(turns)] == list(before)


@pytest.mark.parametrize("begin", [[], [("s", "0")], [("u", " ")]])
def test_a_thread_may_begin_with_the_assistant(
    any_wire: Wire, make: Make, stored: Stored, begin: Turns
) -> None:
    """Where the assistant speaks first, the wire has a word of the user's ahead of it (R22)."""
    mem = stored.mem.extend(conversation(*begin, ("a", "How can I help?")))
    turnlog.run(make(any_wire.model), "now", memory=mem)
    [request] = any_wire.sent()
    assert joined(request)[1] == [
        ("user", OPENING),
        ("assistant", "How can I help?"),
        ("user", "now"),
    ]
    assert ("user", OPENING) not in said(stored.reopened())


def test_an_input_with_half_a_character_goes_out_and_is_kept(
    any_wire: Wire, make: Make, perform: Perform, stored: Stored
) -> None:
    """Half a character in the input is U+FFFD on the wire and itself in the thread (C13)."""
    perform(make(any_wire.model), "a\ud800b", memory=stored.mem)
    assert any_wire.sent() == [[("user", "a\ufffdb")]]
    assert said(stored.reopened())[0] == ("user", "a\ud800b")


# ---- any thread at all ----

texts = st.text(st.sampled_from("ab \n\t\u00a0\u2028\x1c\0\ud800\udfff\ufeff\u200b"), max_size=4)

inputs = texts.filter(lambda text: bool(text.strip()))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(st.sampled_from("uas"), texts), max_size=6), content=inputs)
def test_whatever_a_conversation_holds_goes_out(any_wire: Wire, turns: Turns, content: str) -> None:
    """Of any conversation each turn that has text is sent, in its order, and nothing else (R20)."""
    conv = conversation(*turns)
    assert ours(any_wire.model).run(content, conversation=conv).response == "Hello."
    assert joined(any_wire.sent()[-1]) == joined(legal([*said(conv), ("user", content)]))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    system=st.lists(st.tuples(st.just("s"), texts), max_size=2),
    turns=st.lists(st.tuples(st.sampled_from("ua"), texts), max_size=6),
    content=inputs,
)
def test_whatever_a_conversation_holds_goes_out_to_an_agent_of_the_engines(
    any_wire: Wire, system: Turns, turns: Turns, content: str
) -> None:
    """The engine's own agents are sent the same, where the system speaks first (R20)."""
    conv = conversation(*system, *turns)
    result = turnlog.run(theirs(any_wire.model), content, conversation=conv)
    assert result.response == "Hello."
    sent, expected = joined(any_wire.sent()[-1]), joined(legal([*said(conv), ("user", content)]))
    assert sent[0].split() == expected[0].split()  # the engine strips white space of the system's
    assert sent[1] == expected[1]


# ---- run after run ----


def note() -> str:
    """Take note."""
    return "noted"


@dataclass(frozen=True)
class Said:
    """A reply of a model's: a thought or none, pieces of text, and calls of a tool."""

    thinks: bool
    pieces: list[str]
    calls: int

    @property
    def reply(self) -> Reply:
        """The reply as the provider gives it."""
        thoughts = [Thinking("a thought")] * self.thinks
        return Reply(*thoughts, *self.pieces, *[ToolCall("note")] * self.calls)


@dataclass(frozen=True)
class Run:
    """A run: its input, its replies, and how it is run."""

    content: str
    rounds: list[Said]
    last: Said
    writeback: WritebackMode
    streamed: bool

    @property
    def replies(self) -> list[Said]:
        """All its replies."""
        return [*self.rounds, self.last]

    def script(self) -> Callable[[object], Reply]:
        """Give what a provider says to its requests."""
        left = iter(self.replies)

        def replying(body: object) -> Reply:
            del body
            return next(left).reply

        return replying

    @property
    def turns(self) -> Turns:
        """The turns that it leaves in its thread."""
        texts = ["".join(reply.pieces) for reply in self.replies]
        said = [("assistant", text) for text in texts if text.strip()]
        return [("user", as_kept(self.content)), *said] if self.writeback else []


def as_kept(text: str) -> str:
    """Give a text as a thread's file keeps it, where two halves of a character are one."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


# A blank text beside a call is sent back as it is by the engine's agents, and refused.
pieces = st.lists(texts.map(whole), max_size=3).map(
    lambda some: some if "".join(some).strip() else []
)
calling = st.builds(Said, st.booleans(), pieces, st.integers(1, 2))
ending = st.builds(Said, st.booleans(), pieces.map(lambda some: [*some, "."]), st.just(0))
runs = st.builds(
    Run,
    inputs,
    st.lists(calling, max_size=2),
    ending,
    st.sampled_from([True, False, "eager"]),
    st.booleans(),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(st.tuples(st.sampled_from("ua"), texts), max_size=3),
    script=st.lists(runs, max_size=3),
)
def test_each_run_is_sent_what_the_thread_holds_and_leaves_its_texts(
    provider: Provider, model: str, make: Make, before: Turns, script: list[Run]
) -> None:
    """Run after run, the requests and the thread are those of a model of lists (R19 to R22)."""
    agent = make(model, tools=[note])
    expected = [(role, as_kept(text)) for role, text in spelt(before)]
    with TemporaryDirectory() as root:
        for run in script:
            provider.reply = run.script()
            provider.calls.clear()
            with Memory(root) as memory:  # a process that has gone: nothing is left but the file
                mem = memory.open("t")
                if not len(mem):
                    mem.extend(conversation(*before))
                turnlog.run(
                    agent,
                    run.content,
                    memory=mem,
                    writeback=run.writeback,
                    on_text=str if run.streamed else None,
                )
            sent = joined(sent_turns(provider.requests[0]))
            assert sent == joined(legal([*expected, ("user", run.content)]))
            expected += run.turns
            with Memory(root) as memory:
                assert said(memory.open("t").messages()) == expected
