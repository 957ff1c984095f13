"""Replies without a text, and any script of replies: what is in the thread after them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from dialogue import ASKED
from failing import QUESTION, Options, failure, helper
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from localserver import Failure, Provider, Refusal, Reply, ToolCall
from ways import said

from turnlog import Memory, ModelFailed

if TYPE_CHECKING:
    from turnlog import MemoryThread


# ---- replies without a text ----


@pytest.mark.parametrize("steps", [(), ("",), (" ",), ("\n\t", " ")])
def test_an_empty_reply_is_no_turn(
    provider: Provider, model: str, options: Options, thread: MemoryThread, steps: Any
) -> None:
    """An empty or white reply is given as it is, without an error; only the input is written."""
    provider.script(Reply(*steps))
    result = helper(model).run(QUESTION, memory=thread, **options)
    assert result.response == "".join(steps)
    assert said(thread.messages()) == said(result.written) == [ASKED]


def test_a_refusal_is_an_error_that_says_so(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """A refusal is no empty reply: the error has the provider's words, and nothing is written."""
    provider.script(Reply(Refusal("I will not.")))
    error = failure(helper(model), thread, options)
    assert isinstance(error, ModelFailed)
    assert "agent 'Helper'" in error.subject
    assert "refused to answer" in error.what
    assert "I will not." in error.what
    assert "in another way" in error.hint
    assert said(thread.messages()) == []
    assert error.written == ()


def test_a_text_that_a_refusal_cut_short_is_kept(
    provider: Provider, model: str, options: Options, thread: MemoryThread
) -> None:
    """What was said before the provider's filter stepped in is in the thread, with its input."""
    provider.script(Reply("I can say that", stop="refused"))
    result = helper(model).run(QUESTION, memory=thread, **options)
    assert result.response == "I can say that"
    assert said(thread.messages()) == [ASKED, ("assistant", "I can say that")]


# ---- any script ----


class Round(NamedTuple):
    """A reply: the pieces of its text, and the arguments of the calls beside it."""

    pieces: list[str]
    calls: list[str]


GOOD, BAD = '{"id": 7}', '{"id": "seven"}'
PIECES = st.sampled_from(["Yes", "Let me ", "look", " ", "\n", "ß\N{SLIGHTLY SMILING FACE}", "\0"])
ROUNDS = st.lists(
    st.builds(
        Round,
        st.lists(PIECES | st.text(max_size=3), max_size=3),
        st.lists(st.sampled_from([GOOD, BAD]), min_size=1, max_size=4),
    ),
    max_size=5,
)
LAST = st.lists(PIECES, max_size=3).map("".join) | st.none()


class Expected(NamedTuple):
    """What a script of replies comes to.

    Attributes:
        rounds: those that are followed.
        too_many: whether too many calls failed in a row.
        texts: what is said in them.
    """

    rounds: list[Round]
    too_many: bool
    texts: list[str]


def expected(rounds: list[Round]) -> Expected:
    """Tell how far a script is followed, and what is said by then: the model of our loop."""
    failed = 0
    followed: list[Round] = []
    for each in rounds:
        followed.append(each)
        for call in each.calls:
            failed = failed if failed == 5 else failed + 1 if call == BAD else 0
        if failed == 5:
            break
    return Expected(followed, failed == 5, ["".join(each.pieces) for each in followed])


numbers = itertools.count()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.tuples(ROUNDS, LAST), options=st.sampled_from([{}, {"on_text": str}]))
def test_a_thread_has_the_texts_of_any_script_in_order(
    provider: Provider,
    model: str,
    memory: Memory,
    script: tuple[list[Round], str | None],
    options: Options,
) -> None:
    """The turns are the input and each text that is not blank; a failure without any has none."""
    rounds, last = script
    followed, too_many, texts = expected(rounds)
    for pieces, calls in followed:
        provider.script(Reply(*pieces, *[ToolCall("look", call) for call in calls]))
    if not too_many:
        provider.script(Failure(500, "Oops.") if last is None else last)
    thread = memory.open(f"t{next(numbers)}")
    if too_many or last is None:
        written = failure(helper(model), thread, options).written
    else:
        result = helper(model).run(QUESTION, memory=thread, **options)
        assert result.response == last
        texts.append(last)
        written = result.written
    spoken = [("assistant", text) for text in texts if text.strip()]
    nothing = not spoken and (too_many or last is None)
    assert said(thread.messages()) == ([] if nothing else [ASKED, *spoken])
    assert tuple(thread.messages()) == tuple(written)
