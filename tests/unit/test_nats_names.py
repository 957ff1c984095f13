"""Names as subjects of NATS: each has one, and it can be read back."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.names import ThreadKey, is_plain
from turnlog.stores.nats.names import Subjects, name_of, token_of
from turnlog.testing.contract import ODD_NAMES

names = st.text(min_size=1, max_size=20).filter(is_plain) | st.sampled_from(ODD_NAMES)
keys = st.builds(ThreadKey, names, names)
SUBJECTS = Subjects("S")


@given(names)
def test_a_token_is_read_back_as_its_name(name: str) -> None:
    """The token of a name stands for that name."""
    assert name_of(token_of(name)) == name


@given(names)
def test_a_token_is_plain(name: str) -> None:
    """A token is of ASCII without what a subject gives a meaning to."""
    token = token_of(name)
    assert token.isascii()
    assert token.isprintable()
    assert not set(token) & set(" .*>")


@given(names, names)
def test_two_names_have_two_tokens(one: str, other: str) -> None:
    """Different names have different tokens, also where case is all that differs."""
    assert (token_of(one) == token_of(other)) == (one == other)


@given(st.text(max_size=12))
def test_a_foreign_token_stands_for_nothing_else(token: str) -> None:
    """Whatever token is read, its name has no other token."""
    name = name_of(token)
    assert name is None or token_of(name) == token


@pytest.mark.parametrize(
    "token", ["", "%", "%2", "%zz", "a%62", "%c3%bc", "%FF", "%2Fetc", "%00", quote("a.b")]
)
def test_what_turnlog_does_not_write_is_no_token(token: str) -> None:
    """A token that is spelled otherwise, or whose name is not plain, stands for no name."""
    assert name_of(token) is None


@given(keys)
def test_a_subject_is_read_back_as_its_thread(key: ThreadKey) -> None:
    """The subject of a thread's turns stands for that thread."""
    assert SUBJECTS.key_of(SUBJECTS.turns(key)) == key


@given(keys, keys)
def test_what_belongs_to_a_thread_is_below_it(key: ThreadKey, other: ThreadKey) -> None:
    """All subjects of a thread match its own pattern, and those of no other thread do."""
    below = SUBJECTS.thread(key).removesuffix(">")
    assert below.endswith(".")
    for subject in (SUBJECTS.turns(key), SUBJECTS.parts(key, "0123456789abcdef")):
        assert subject.startswith(below)
    assert SUBJECTS.turns(other).startswith(below) == (other == key)


@pytest.mark.parametrize(
    "subject",
    ["S.n.i", "S.n.i.0123", "S.n.i.turns.x", "T.n.i.turns", "S.n.%.turns", "S.%2F.i.turns", ""],
)
def test_other_subjects_are_no_threads(subject: str) -> None:
    """A subject that holds no thread's turns stands for none."""
    assert SUBJECTS.key_of(subject) is None


def test_news_and_locks_are_not_in_the_stream_of_the_turns() -> None:
    """What is told, and the turn locks, are at subjects that the stream of the turns lacks."""
    key = ThreadKey("n", "i")
    assert SUBJECTS.all == "S.>"
    assert not SUBJECTS.news(key).startswith("S.")
    assert not SUBJECTS.lock(key).startswith("S.")
    assert SUBJECTS.lock(key).startswith(f"{SUBJECTS.locks}.")
