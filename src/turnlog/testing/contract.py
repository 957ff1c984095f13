"""StoreContract: a test for each clause of the contract of a store.

The clauses are the docstrings of `turnlog.stores.base`. Subclass it, give `make_store`, and pytest
runs them all over your store:

```python
class TestMyStore(StoreContract):
    def make_store(self, place):
        return MyStore(place)
```

The first part speaks to the store itself, the second to threads in a `Memory` over it.
"""
# ruff: noqa: S101, PLR2004 - tests assert, and a test's numbers are its example

from __future__ import annotations

import datetime as dt
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from turnlog.codec import encode_turn
from turnlog.conversation import Conversation
from turnlog.errors import Conflict, NotWritten, ThreadReplaced
from turnlog.memory import Memory
from turnlog.message import Message
from turnlog.names import ThreadKey, thread_key
from turnlog.stores.base import START, Append, BrokenOff, Outcome, Position, Read, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

KEY = thread_key("thread", "contract")
_AT = dt.datetime(2026, 11, 29, 13, 25, 0, 123456, dt.UTC)
_HUGE = 16 << 20
_PATIENCE = 60.0  # a watchdog, in seconds: a store that is busy for so long hangs

ODD_NAMES = (
    "a",
    "UPPER and lower",
    "a.b.c",
    "trailing.",
    "thread.jsonl",
    "thread.jsonl.torn",
    "-rf",
    "~",
    "$HOME",
    "%2e%2e",
    "*?",
    "a'b\"c`d",
    "a:b|c<d>e",
    "x" * 240,
    "\u00fcn\u00efc\u00f6d\u00e9",
    "\u65e5\u672c\u8a9e",
    "\U0001f9f5",
    "a\u200db",
    "null",
    "0",
)

ODD_TEXTS = (
    "",
    " \t ",
    "two\nlines\r\nand\rmore",
    "nul \x00 and \x1b[31m control \x7f\x80\x9f",
    "next line \x85, line separator \u2028, paragraph separator \u2029",
    "\ufeffbyte order mark",
    'quotes " \\ and {"role":"user","content":"x"}',
    "\U0001f9f5 \u65e5\u672c\u8a9e e\u0301",
    "half a character \ud800",
)


def line_of(text: str, *, key: str | None = None) -> bytes:
    """Give a line that holds one turn of the user, as a thread would write it."""
    return encode_turn(Message("user", text, _AT), key=key)


class PlainAppend:
    """An `Append` whose lines are given beforehand. It keeps the news it was told."""

    def __init__(self, key: ThreadKey, *lines: bytes, position: Position = START) -> None:
        """Append `lines` to the thread `key`, which was read up to `position`."""
        self._key = key
        self._position = position
        self._lines = lines
        self.told: list[Read] = []

    @property
    def key(self) -> ThreadKey:
        """The thread."""
        return self._key

    @property
    def position(self) -> Position:
        """How far the thread was read."""
        return self._position

    def decide(self, news: Read) -> Sequence[bytes]:
        """Note the news; give the lines."""
        self.told.append(news)
        return self._lines


class DecideFailed(Exception):
    """What a `FailingAppend` raises."""


class FailingAppend(PlainAppend):
    """An `Append` that raises DecideFailed when it is asked for its lines."""

    def decide(self, news: Read) -> Sequence[bytes]:
        """Note the news; raise."""
        super().decide(news)
        raise DecideFailed


def _append(store: Store, append: Append) -> Outcome:
    """Commit one append, trying again while another store has its thread."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        (outcome,) = store.commit([append])
        if not outcome.busy:
            return outcome
        assert time.monotonic() < deadline, "the store is busy for ever"
        time.sleep(0.0005)


def _appended(store: Store, append: Append) -> Outcome:
    """Commit one append, which has to succeed."""
    outcome = _append(store, append)
    assert outcome.error is None
    return outcome


def _texts(store: Store, key: ThreadKey = KEY) -> list[bytes]:
    return list(store.load(key).lines)


def _wait_until(told: threading.Event, there: Callable[[], bool]) -> None:
    """Look whenever told, until it is there."""
    while not there():
        assert told.wait(_PATIENCE), "nobody told of it"
        told.clear()


def _looks_beside_a_writer(writer: Store, look: Callable[[], list[bytes]]) -> list[list[bytes]]:
    """Append pairs of lines, look from other threads meanwhile and once after; give the looks."""
    done = threading.Event()

    def write() -> None:
        position = START
        try:
            for number in range(60):
                lines = [line_of(f"{number} {part}") for part in range(2)]
                append = PlainAppend(KEY, *lines, position=position)
                position = _appended(writer, append).position
        finally:
            done.set()

    def read() -> list[list[bytes]]:
        found: list[list[bytes]] = []
        while not done.is_set():
            found.append(look())
        return [*found, look()]

    with ThreadPoolExecutor(3) as pool:
        readings = [pool.submit(read), pool.submit(read)]
        pool.submit(write).result(_PATIENCE)
        return [seen for reading in readings for seen in reading.result(_PATIENCE)]


@contextmanager
def raising_what_decide_raised() -> Generator[None]:
    """Expect what `decide` raised, by itself or as what broke the commit off."""
    with pytest.raises((DecideFailed, BrokenOff)) as raised:
        yield
    if isinstance(raised.value, BrokenOff):
        assert isinstance(raised.value.raised, DecideFailed)
        assert any(isinstance(outcome.error, NotWritten) for outcome in raised.value.outcomes)


class StoreContract:
    """The tests of a store: subclass it in a test file, with a name that pytest collects.

    Only `make_store` has to be given. The fixture `store` is a store on data of the test's own,
    `other` a second store on the same data, which stands for another process, and `make` makes
    more of them. All are closed at the end of the test.
    """

    def make_store(self, place: Path) -> Store:
        """Make a store on the data at `place`.

        Args:
            place: an empty folder at first, another one for each test. A store that needs no
                folder may take its path as a name. Called again with the same place, it gives
                another store on the same data.
        """
        raise NotImplementedError

    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Callable[[], Store]]:
        """Give a function that makes stores on the test's data."""
        made: list[Store] = []

        def make() -> Store:
            made.append(self.make_store(tmp_path))
            return made[-1]

        yield make
        for store in made:
            store.close()

    @pytest.fixture
    def store(self, make: Callable[[], Store]) -> Store:
        """Give a store."""
        return make()

    @pytest.fixture
    def other(self, make: Callable[[], Store], store: Store) -> Store:
        """Give a second store on the data of `store`, as another process would have one."""
        del store  # it was made first
        return make()

    # ---- a thread that does not exist ----

    def test_an_absent_thread_is_empty_at_start(self, store: Store) -> None:
        """Loading a thread that does not exist gives no lines, at START."""
        read = store.load(KEY)
        assert list(read.lines) == []
        assert read.position == START
        assert (read.keys, read.problems, read.warnings) == ({}, (), ())

    def test_reading_makes_no_thread(self, store: Store) -> None:
        """Neither loading a thread nor a commit without lines makes it."""
        store.load(KEY)
        outcome = _appended(store, PlainAppend(KEY))
        assert outcome.position == START
        assert list(store.threads()) == []

    def test_the_first_line_makes_the_thread(self, store: Store, other: Store) -> None:
        """A thread is made by its first line, and another store sees it at once."""
        outcome = _appended(store, PlainAppend(KEY, line_of("first")))
        assert outcome.position.incarnation is not None
        assert outcome.position.lines == 1
        assert [(info.namespace, info.id) for info in other.threads()] == [KEY]
        assert _texts(other) == [line_of("first")]

    def test_a_store_for_writing_says_so(self, store: Store) -> None:
        """A store that writes is not read_only."""
        assert store.read_only is False

    # ---- order and news ----

    def test_lines_come_back_as_they_were_and_in_order(self, store: Store, other: Store) -> None:
        """Lines come back byte for byte, without a newline, in the order of their appends."""
        lines = [line_of(f"turn {number}") for number in range(100)]
        position = START
        for line in lines:
            position = _appended(store, PlainAppend(KEY, line, position=position)).position
        assert _texts(store) == _texts(other) == lines
        assert position.lines == 100

    def test_news_are_what_others_appended(self, store: Store, other: Store) -> None:
        """A commit gives, and tells `decide`, just the lines that others appended meanwhile."""
        mine = _appended(store, PlainAppend(KEY, line_of("mine"))).position
        theirs = PlainAppend(KEY, line_of("theirs"), line_of("theirs too"), position=mine)
        _appended(other, theirs)
        append = PlainAppend(KEY, line_of("mine again"), position=mine)
        outcome = _appended(store, append)
        expected = [line_of("theirs"), line_of("theirs too")]
        assert list(outcome.news.lines) == expected
        assert list(append.told[-1].lines) == expected
        assert _texts(store) == [line_of("mine"), *expected, line_of("mine again")]

    def test_nothing_is_news_after_ones_own_append(self, store: Store) -> None:
        """The position after an append is behind its own lines."""
        outcome = _appended(store, PlainAppend(KEY, line_of("one"), line_of("two")))
        again = PlainAppend(KEY, position=outcome.position)
        second = _appended(store, again)
        assert list(second.news.lines) == []
        assert second.position == outcome.position
        assert all(list(news.lines) == [] for news in again.told)

    def test_a_commit_without_lines_reads_forward(self, store: Store, other: Store) -> None:
        """Where `decide` gives no lines, the commit is a reading, up to behind the news."""
        _appended(other, PlainAppend(KEY, line_of("theirs")))
        outcome = _appended(store, PlainAppend(KEY))
        assert list(outcome.news.lines) == [line_of("theirs")]
        assert outcome.position == store.load(KEY).position
        assert _texts(store) == [line_of("theirs")]

    def test_a_position_that_load_gave_is_one_to_go_on_from(
        self, store: Store, other: Store
    ) -> None:
        """The position of a load leads on to what was appended after it, and to no more."""
        _appended(store, PlainAppend(KEY, line_of("old")))
        position = other.load(KEY).position
        _appended(store, PlainAppend(KEY, line_of("new"), position=position))
        outcome = _appended(other, PlainAppend(KEY, position=position))
        assert list(outcome.news.lines) == [line_of("new")]

    def test_the_lines_of_one_append_are_contiguous(self, store: Store, other: Store) -> None:
        """Lines of one append stand together, behind all that the thread held."""
        _appended(store, PlainAppend(KEY, line_of("a1"), line_of("a2"), line_of("a3")))
        _appended(other, PlainAppend(KEY, line_of("b1"), line_of("b2")))
        _appended(store, PlainAppend(KEY, line_of("c1"), line_of("c2")))
        names = ("a1", "a2", "a3", "b1", "b2", "c1", "c2")
        assert _texts(store) == [line_of(name) for name in names]

    def test_idempotency_keys_are_found(self, store: Store, other: Store) -> None:
        """A read gives the idempotency keys among its lines, each with the index of its line."""
        lines = [line_of("a"), line_of("b", key="k1"), line_of("c"), line_of("d", key="\ud800 2")]
        position = _appended(store, PlainAppend(KEY, *lines[:2])).position
        news = _appended(other, PlainAppend(KEY, *lines[2:], position=position)).news
        assert news.keys == {}
        assert store.load(KEY).keys == {"k1": 1, "\ud800 2": 3}
        outcome = _appended(store, PlainAppend(KEY, position=position))
        assert outcome.news.keys == {"\ud800 2": 1}

    def test_sound_lines_are_no_problem(self, store: Store) -> None:
        """What the store wrote itself is never listed as a problem, nor by an audit."""
        _appended(store, PlainAppend(KEY, *map(line_of, ODD_TEXTS)))
        read = store.load(KEY)
        assert (read.problems, read.warnings, read.audit()) == ((), (), ())

    # ---- batches ----

    def test_a_batch_gives_an_outcome_for_each_append_in_its_order(self, store: Store) -> None:
        """The outcomes come in the order of the batch, whatever order the threads have."""
        keys = [thread_key(name, "contract") for name in ("c", "a", "b")]
        for key in keys:
            _appended(store, PlainAppend(key, line_of(f"old {key.id}")))
        batch = [PlainAppend(key, line_of(f"new {key.id}")) for key in keys]
        outcomes = store.commit(batch)
        assert [list(outcome.news.lines) for outcome in outcomes] == [
            [line_of(f"old {key.id}")] for key in keys
        ]
        assert list(store.commit([])) == []

    def test_many_threads_in_one_batch(self, store: Store, other: Store) -> None:
        """A batch may hold any number of threads: each gets its own lines."""
        keys = [thread_key(f"t{number}", f"n{number % 7}") for number in range(700)]
        outcomes = store.commit([PlainAppend(key, line_of(key.id)) for key in keys])
        assert [outcome.error for outcome in outcomes] == [None] * 700
        assert all(_texts(other, key) == [line_of(key.id)] for key in keys)
        assert len(list(other.threads())) == 700

    def test_a_failing_decide_appends_nothing(self, store: Store, other: Store) -> None:
        """Where `decide` raises, its thread holds what it held, and the store goes on working."""
        position = _appended(store, PlainAppend(KEY, line_of("kept"))).position
        with raising_what_decide_raised():
            store.commit([FailingAppend(KEY, line_of("never"), position=position)])
        assert _texts(other) == [line_of("kept")]
        _appended(other, PlainAppend(KEY, line_of("theirs")))
        _appended(store, PlainAppend(KEY, line_of("mine"), position=position))
        assert _texts(store) == [line_of("kept"), line_of("theirs"), line_of("mine")]

    def test_a_failing_decide_makes_no_thread(self, store: Store) -> None:
        """Where the `decide` of a thread that does not exist raises, it is not made."""
        with raising_what_decide_raised():
            store.commit([FailingAppend(KEY, line_of("never"))])
        assert list(store.threads()) == []

    def test_a_failing_decide_leaves_the_others_whole(self, store: Store, other: Store) -> None:
        """In a batch with a failing `decide`, the other threads get all of their lines or none."""
        keys = [thread_key(name, "contract") for name in ("a", "b", "c")]
        first, failing, last = keys
        lines = [line_of("one"), line_of("two")]
        with raising_what_decide_raised():
            store.commit(
                [
                    PlainAppend(first, *lines),
                    FailingAppend(failing, *lines),
                    PlainAppend(last, *lines),
                ]
            )
        assert _texts(other, failing) == []
        assert _texts(other, first) in ([], lines)
        assert _texts(other, last) in ([], lines)
        for key in keys:
            before = _texts(other, key)
            _appended(store, PlainAppend(key, line_of("after")))
            assert _texts(other, key) == [*before, line_of("after")]

    def test_nobody_comes_between_the_news_and_the_lines(self, store: Store, other: Store) -> None:
        """Between the last news that `decide` was told and its lines stands nobody else's line."""
        asked, out_of_time = threading.Event(), 0.1
        inner = PlainAppend(KEY, line_of("inner"))

        class Outer(PlainAppend):
            def decide(self, news: Read) -> Sequence[bytes]:
                asked.set()
                wait([commit], out_of_time)  # it waits for us, or goes first: both are right
                return super().decide(news)

        def commit_inner() -> Outcome:
            asked.wait(_PATIENCE)
            return _append(other, inner)

        with ThreadPoolExecutor(1) as pool:
            _appended(store, PlainAppend(KEY, line_of("before")))
            commit = pool.submit(commit_inner)
            outer = Outer(KEY, line_of("outer"))
            _appended(store, outer)
            assert commit.result(_PATIENCE).error is None
        lines = _texts(store)
        assert lines[0] == line_of("before")
        assert sorted(lines[1:]) == [line_of("inner"), line_of("outer")]
        for append, own in ((inner, line_of("inner")), (outer, line_of("outer"))):
            assert list(append.told[-1].lines) == lines[: lines.index(own)]

    def test_commits_at_once(self, store: Store) -> None:
        """It takes as many commits at a time as it says, each with its own threads, in order."""
        begun = threading.Barrier(store.commits_at_once)

        def commit(number: int) -> None:
            keys = [thread_key(f"{number}-{name}", KEY.namespace) for name in range(5)]
            ends = [START] * len(keys)
            lines = [line_of(str(turn)) for turn in range(20)]
            begun.wait(_PATIENCE)
            for line in lines:
                outcomes = store.commit(
                    [
                        PlainAppend(key, line, position=end)
                        for key, end in zip(keys, ends, strict=True)
                    ]
                )
                assert [outcome.error for outcome in outcomes] == [None] * len(keys)
                ends = [outcome.position for outcome in outcomes]
            assert [_texts(store, key) for key in keys] == [lines] * len(keys)

        with ThreadPoolExecutor(store.commits_at_once) as pool:
            for done in [pool.submit(commit, number) for number in range(store.commits_at_once)]:
                done.result(_PATIENCE)

    # ---- deletion, and the lives of a thread ----

    def test_delete_says_whether_there_was_anything(self, store: Store, other: Store) -> None:
        """Deleting gives True where there was a thread, and False where there was none."""
        assert store.delete(KEY) is False
        _appended(store, PlainAppend(KEY, line_of("x")))
        assert other.delete(KEY) is True
        assert store.delete(KEY) is False

    def test_a_deleted_thread_is_gone(self, store: Store, other: Store) -> None:
        """Of a deleted thread nothing is left, in any store; its neighbours stay."""
        neighbour = thread_key("neighbour", KEY.namespace)
        _appended(store, PlainAppend(KEY, line_of("x")))
        _appended(store, PlainAppend(neighbour, line_of("y")))
        store.delete(KEY)
        for each in (store, other):
            assert each.load(KEY).position == START
            assert _texts(each) == []
            assert [info.id for info in each.threads()] == ["neighbour"]
            assert _texts(each, neighbour) == [line_of("y")]

    def test_a_thread_made_anew_has_other_positions(self, store: Store) -> None:
        """A position in a thread that was deleted is none in the thread that was made anew."""
        old = _appended(store, PlainAppend(KEY, line_of("x"))).position
        store.delete(KEY)
        new = _appended(store, PlainAppend(KEY, line_of("y"))).position
        assert new != old
        assert _texts(store) == [line_of("y")]

    def test_an_append_to_a_deleted_thread_fails(self, store: Store, other: Store) -> None:
        """Who read a thread before it was deleted cannot append to it: it is not made again."""
        position = _appended(store, PlainAppend(KEY, line_of("x"))).position
        other.delete(KEY)
        outcome = _append(store, PlainAppend(KEY, line_of("late"), position=position))
        assert isinstance(outcome.error, ThreadReplaced)
        assert list(outcome.news.lines) == []
        assert list(store.threads()) == []

    @pytest.mark.parametrize("lines", [1, 2, 3])
    def test_an_append_to_an_earlier_life_fails(
        self, make: Callable[[], Store], lines: int
    ) -> None:
        """Who read a thread before it was made anew cannot append to it, however long it is now."""
        first = make()
        _appended(first, PlainAppend(KEY, line_of("old 1"), line_of("old 2")))
        first.close()
        reader = make()
        position = reader.load(KEY).position
        writer = make()
        writer.delete(KEY)
        new = [line_of(f"new {number}") for number in range(lines)]
        _appended(writer, PlainAppend(KEY, *new))
        outcome = _append(reader, PlainAppend(KEY, line_of("late"), position=position))
        assert isinstance(outcome.error, ThreadReplaced)
        assert list(outcome.news.lines) == []
        assert _texts(writer) == new

    def test_an_append_that_fails_does_not_touch_the_others(
        self, store: Store, other: Store
    ) -> None:
        """In a batch with a thread that was deleted meanwhile, the others are appended to."""
        keys = [thread_key(name, "contract") for name in ("a", "b", "c")]
        positions = [_appended(store, PlainAppend(key, line_of("x"))).position for key in keys]
        other.delete(keys[1])
        batch = [
            PlainAppend(key, line_of("y"), position=position)
            for key, position in zip(keys, positions, strict=True)
        ]
        outcomes = store.commit(batch)
        assert [type(outcome.error) for outcome in outcomes] == [
            type(None),
            ThreadReplaced,
            type(None),
        ]
        assert [_texts(other, key) for key in keys] == [
            [line_of("x"), line_of("y")],
            [],
            [line_of("x"), line_of("y")],
        ]

    # ---- listing ----

    def test_threads_are_listed_by_namespace_and_id(self, store: Store, other: Store) -> None:
        """Threads are listed by namespace and then by id, in any store on the data."""
        names = [("b", "2"), ("a", "10"), ("b", "1"), ("a b", "x"), ("a", "9"), ("C", "z")]
        store.commit([PlainAppend(ThreadKey(*name), line_of("x")) for name in names])
        for each in (store, other):
            assert [(info.namespace, info.id) for info in each.threads()] == sorted(names)

    def test_threads_of_one_namespace(self, store: Store) -> None:
        """A namespace lists its own threads only, and an unknown one lists none."""
        names = [("a", "1"), ("ab", "2"), ("b", "3"), ("a", "2")]
        store.commit([PlainAppend(ThreadKey(*name), line_of("x")) for name in names])
        assert [info.id for info in store.threads("a")] == ["1", "2"]
        assert [info.id for info in store.threads("ab")] == ["2"]
        assert list(store.threads("c")) == []

    def test_a_listed_thread_has_its_size_and_time(self, store: Store) -> None:
        """A thread's size covers its lines, and its time is in UTC and does not go back."""
        position = _appended(store, PlainAppend(KEY, line_of("x"))).position
        (before,) = store.threads()
        assert before.size >= len(line_of("x"))
        assert before.modified.utcoffset() == dt.timedelta(0)
        _appended(store, PlainAppend(KEY, line_of("y" * 5000), position=position))
        (after,) = store.threads()
        assert after.size >= before.size + 5000
        assert after.modified >= before.modified

    # ---- what names and lines may hold ----

    @pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
    def test_odd_names_are_names_like_any_other(
        self, store: Store, other: Store, name: str
    ) -> None:
        """A plain name, however odd, works as an id and as a namespace."""
        keys = [ThreadKey("contract", name), ThreadKey(name, "thread"), ThreadKey(name, name)]
        store.commit([PlainAppend(key, line_of(str(key))) for key in keys])
        assert [_texts(other, key) for key in keys] == [[line_of(str(key))] for key in keys]
        listed = [ThreadKey(info.namespace, info.id) for info in other.threads()]
        assert listed == sorted(keys)
        assert [other.delete(key) for key in keys] == [True, True, True]
        assert list(store.threads()) == []

    def test_names_that_resemble_each_other_are_different_threads(self, store: Store) -> None:
        """Names that differ in anything name different threads."""
        ids = ("a", "a ", "a.jsonl", "a.jsonl.torn", "a.torn", "b", "ab")
        keys = [thread_key(id_, "n") for id_ in ids if id_ == id_.strip()]
        store.commit([PlainAppend(key, line_of(key.id)) for key in keys])
        assert [_texts(store, key) for key in keys] == [[line_of(key.id)] for key in keys]

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
    def test_odd_texts_come_back_the_same(self, store: Store, other: Store, text: str) -> None:
        """A line's text comes back the same, whatever characters it has."""
        lines = [line_of(text), line_of("after")]
        _appended(store, PlainAppend(KEY, *lines))
        assert _texts(other) == lines

    def test_a_huge_line_comes_back_the_same(self, store: Store, other: Store) -> None:
        """A line of 16 MB comes back whole, and the lines around it too."""
        lines = [line_of("before"), line_of("\u00e9" * (_HUGE // 2)), line_of("after")]
        _appended(store, PlainAppend(KEY, *lines))
        assert _texts(other) == lines

    # ---- together ----

    def test_several_stores_append_to_one_thread_at_once(self, make: Callable[[], Store]) -> None:
        """Of appends by several stores at once none is lost, doubled, split or out of order."""
        writers, units = 4, 40

        def write(store: Store, writer: int) -> None:
            position = START
            for unit in range(units):
                lines = [line_of(f"{writer} {unit} {part}") for part in range(3)]
                outcome = _appended(store, PlainAppend(KEY, *lines, position=position))
                position = outcome.position

        stores = [make() for _ in range(writers)]
        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(write, stores, range(writers)))
        lines = _texts(make())
        starts = [lines[at : at + 3] for at in range(0, len(lines), 3)]
        order: dict[int, list[int]] = {writer: [] for writer in range(writers)}
        names = {
            line_of(f"{writer} {unit} 0"): (writer, unit)
            for writer in range(writers)
            for unit in range(units)
        }
        for first, *rest in starts:
            writer, unit = names[first]
            assert rest == [line_of(f"{writer} {unit} {part}") for part in (1, 2)]
            order[writer].append(unit)
        assert order == {writer: list(range(units)) for writer in range(writers)}

    def test_each_writer_is_told_every_line_once(self, make: Callable[[], Store]) -> None:
        """The news of a writer and its own lines, put together, are the thread."""

        def write(store: Store, writer: int) -> list[bytes]:
            seen: list[bytes] = []
            position = START
            for number in range(50):
                line = line_of(f"{writer} {number}")
                outcome = _appended(store, PlainAppend(KEY, line, position=position))
                seen += [*outcome.news.lines, line]
                position = outcome.position
            return seen

        stores = [make(), make()]
        with ThreadPoolExecutor(2) as pool:
            seen = list(pool.map(write, stores, range(2)))
        whole = _texts(make())
        assert [whole[: len(each)] for each in seen] == seen
        assert len(whole) == 100

    def test_a_load_beside_a_writer_sees_whole_appends(self, make: Callable[[], Store]) -> None:
        """Loading from any thread while another store appends gives a beginning of the thread."""
        loads = _looks_beside_a_writer(make(), partial(_texts, make()))
        whole = [line_of(f"{number} {part}") for number in range(60) for part in range(2)]
        assert all(load == whole[: len(load)] and len(load) % 2 == 0 for load in loads)
        assert loads[-1] == whole

    def test_one_first_append_makes_the_thread(self, make: Callable[[], Store]) -> None:
        """Where several stores make one thread at once, it is one thread with all their lines."""
        stores = [make() for _ in range(4)]

        def write(store: Store, writer: int) -> Outcome:
            return _appended(store, PlainAppend(KEY, line_of(str(writer))))

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(write, stores, range(4)))
        assert len({outcome.position.incarnation for outcome in outcomes}) == 1
        assert sorted(_texts(stores[0])) == [line_of(str(writer)) for writer in range(4)]

    # ---- the end of a thread, by itself ----

    def test_the_tail_of_an_absent_thread_is_empty(self, store: Store) -> None:
        """The tail of a thread that does not exist has no lines, and reading it makes none."""
        assert list(store.tail(KEY, 3).lines) == []
        assert list(store.threads()) == []

    @pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 1000])
    def test_a_tail_ends_in_the_last_turns(self, store: Store, other: Store, count: int) -> None:
        """A tail is an end of the thread, of `count` turns at least, or it is all of it."""
        lines = [line_of(f"turn {number}") for number in range(5)]
        position = _appended(store, PlainAppend(KEY, *lines[:3])).position
        _appended(store, PlainAppend(KEY, *lines[3:], position=position))
        for each in (store, other):
            found = list(each.tail(KEY, count).lines)
            assert found == lines[len(lines) - len(found) :]
            assert len(found) >= min(count, len(lines))

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
    def test_a_tail_gives_lines_as_they_are(self, store: Store, text: str) -> None:
        """The lines of a tail are the thread's, byte for byte, whatever characters they have."""
        _appended(store, PlainAppend(KEY, line_of("before"), line_of(text)))
        read = store.tail(KEY, 1)
        assert list(read.lines)[-1:] == [line_of(text)]
        assert read.problems == ()

    def test_the_tail_of_a_long_thread(self, store: Store, other: Store) -> None:
        """Far from a thread's start, and over a huge turn, a tail is the thread's end too."""
        lines = [line_of(f"{number} ".ljust(200, "x")) for number in range(20_000)]
        lines += [line_of("\u00e9" * (1 << 20)), line_of("last")]
        _appended(store, PlainAppend(KEY, *lines))
        for count in (1, 2, 3, 500):
            found = list(other.tail(KEY, count).lines)
            assert len(found) >= count
            assert found == lines[len(lines) - len(found) :]

    def test_a_tail_shows_what_was_just_appended(self, store: Store, other: Store) -> None:
        """What one store appended is in the tail that another one reads next."""
        position = START
        for number in range(20):
            line = line_of(str(number))
            position = _appended(store, PlainAppend(KEY, line, position=position)).position
            assert list(other.tail(KEY, 1).lines)[-1] == line

    def test_reading_a_tail_changes_nothing(self, store: Store, other: Store) -> None:
        """Where a thread was read to and what it holds is the same after a tail was read."""
        position = _appended(store, PlainAppend(KEY, line_of("a"), line_of("b"))).position
        (before,) = store.threads()
        for each in (store, other):
            each.tail(KEY, 1)
        assert list(store.threads()) == [before]
        outcome = _appended(store, PlainAppend(KEY, line_of("c"), position=position))
        assert list(outcome.news.lines) == []
        assert _texts(other) == [line_of("a"), line_of("b"), line_of("c")]

    def test_the_tail_of_a_deleted_thread(self, store: Store, other: Store) -> None:
        """A deleted thread has no tail, and one made anew has its own turns only."""
        _appended(store, PlainAppend(KEY, line_of("old")))
        other.delete(KEY)
        assert list(store.tail(KEY, 1).lines) == []
        _appended(other, PlainAppend(KEY, line_of("new")))
        assert list(store.tail(KEY, 5).lines) == [line_of("new")]

    def test_a_tail_beside_a_writer_ends_between_appends(self, make: Callable[[], Store]) -> None:
        """A tail that is read while another store appends ends in whole appends."""
        reader = make()
        tails = _looks_beside_a_writer(make(), lambda: list(reader.tail(KEY, 2).lines)[-2:])
        whole = [[line_of(f"{number} {part}") for part in range(2)] for number in range(60)]
        assert all(tail in ([], *whole) for tail in tails)
        assert tails[-1] == whole[-1]

    # ---- the turn lock ----

    def test_one_has_the_turn_lock(self, store: Store, other: Store) -> None:
        """Who has a thread's turn lock keeps everyone out, himself too, until he lets go of it."""
        for holder, waiter in ((store, other), (other, store), (store, store)):
            release = holder.try_turn_lock(KEY)
            assert release is not None
            assert waiter.try_turn_lock(KEY) is None
            assert holder.try_turn_lock(KEY) is None
            release()
        release = other.try_turn_lock(KEY)
        assert release is not None
        release()

    def test_the_turn_lock_is_one_threads(self, store: Store, other: Store) -> None:
        """The turn lock of one thread is none of another's, in whatever namespace."""
        keys = [KEY, thread_key("other", KEY.namespace), thread_key(KEY.id, "other")]
        releases = [store.try_turn_lock(key) for key in keys]
        assert None not in releases
        assert [other.try_turn_lock(key) for key in keys] == [None] * 3
        for release in releases:
            assert release is not None
            release()

    def test_the_turn_lock_makes_no_thread(self, store: Store) -> None:
        """A thread that does not exist has a turn lock, and is not made by it."""
        release = store.try_turn_lock(KEY)
        assert release is not None
        assert list(store.threads()) == []
        assert store.load(KEY).position == START
        release()
        assert list(store.threads()) == []

    def test_the_turn_lock_keeps_no_append_out(self, store: Store, other: Store) -> None:
        """While somebody has a thread's turn lock, everyone appends to it and reads it."""
        release = store.try_turn_lock(KEY)
        assert release is not None
        _appended(other, PlainAppend(KEY, line_of("theirs")))
        _appended(store, PlainAppend(KEY, line_of("mine")))
        assert _texts(other) == [line_of("theirs"), line_of("mine")]
        assert list(store.tail(KEY, 2).lines) == [line_of("theirs"), line_of("mine")]
        assert other.try_turn_lock(KEY) is None
        release()

    def test_the_turn_lock_is_let_go_of_in_any_thread(self, store: Store, other: Store) -> None:
        """The lock that one OS thread took, another one may let go of."""
        with ThreadPoolExecutor(1) as pool:
            release = pool.submit(store.try_turn_lock, KEY).result(_PATIENCE)
            assert release is not None
            assert other.try_turn_lock(KEY) is None
        release()
        again = other.try_turn_lock(KEY)
        assert again is not None
        again()

    def test_of_many_one_has_the_turn_lock(self, make: Callable[[], Store]) -> None:
        """However many try at once, from stores of their own, at most one of them has the lock."""
        stores, inside, seen = [make() for _ in range(4)], set[int](), list[int]()

        def work(store: Store, number: int) -> None:
            for _ in range(20):
                deadline = time.monotonic() + _PATIENCE
                while (release := store.try_turn_lock(KEY)) is None:
                    assert time.monotonic() < deadline, "the lock is never free"
                inside.add(number)
                seen.append(len(inside))
                inside.remove(number)
                release()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, stores, range(4)))
        assert seen == [1] * 80

    def test_the_turn_lock_of_a_deleted_thread_is_free(self, store: Store, other: Store) -> None:
        """A thread that was deleted and made anew has a turn lock like any other."""
        _appended(store, PlainAppend(KEY, line_of("old")))
        release = store.try_turn_lock(KEY)
        assert release is not None
        release()
        other.delete(KEY)
        _appended(other, PlainAppend(KEY, line_of("new")))
        for each in (store, other):
            release = each.try_turn_lock(KEY)
            assert release is not None
            release()

    # ---- being told ----

    def test_who_watches_is_told_of_an_append(self, store: Store, other: Store) -> None:
        """Who watches a thread is told of an append by the same store, and by another one."""
        for writer in (store, other):
            told = threading.Event()
            stop = store.watch(KEY, told.set)
            _appended(writer, PlainAppend(KEY, line_of("x")))
            assert told.wait(_PATIENCE)
            stop()

    def test_who_watches_is_told_of_a_deletion(self, store: Store, other: Store) -> None:
        """Who watches a thread is told when it is deleted, in whatever store."""
        for deleter in (store, other):
            _appended(other, PlainAppend(KEY, line_of("x")))
            told = threading.Event()
            stop = store.watch(KEY, told.set)
            deleter.delete(KEY)
            assert told.wait(_PATIENCE)
            stop()

    def test_who_watches_is_told_of_a_thread_made_anew(self, store: Store, other: Store) -> None:
        """Who watches a thread is told on over its deletion, when it is made anew."""
        _appended(other, PlainAppend(KEY, line_of("old")))
        told = threading.Event()
        stop = store.watch(KEY, told.set)
        other.delete(KEY)
        _wait_until(told, lambda: store.load(KEY).position == START)
        _appended(other, PlainAppend(KEY, line_of("new")))
        _wait_until(told, lambda: _texts(store) == [line_of("new")])
        stop()

    def test_a_thread_that_does_not_exist_is_watched(self, store: Store, other: Store) -> None:
        """Watching a thread that does not exist makes none, and its first line is told of."""
        told = threading.Event()
        stop = store.watch(KEY, told.set)
        assert list(store.threads()) == []
        _appended(other, PlainAppend(KEY, line_of("first")))
        assert told.wait(_PATIENCE)
        stop()

    def test_who_stopped_watching_is_told_no_more(self, store: Store, other: Store) -> None:
        """Who has stopped, once or twice, in whatever OS thread, is told no more; others are."""
        calls, told = list[None](), threading.Event()
        stop_early = store.watch(KEY, lambda: calls.append(None))
        stop = store.watch(KEY, told.set)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(stop_early).result(_PATIENCE)
        stop_early()
        before = len(calls)
        for number in range(4):
            line = line_of(str(number))
            told.clear()
            _appended(other, PlainAppend(KEY, line))
            assert told.wait(_PATIENCE)
        assert len(calls) <= before + 1  # which was on its way
        stop()

    def test_many_watch(self, store: Store, other: Store) -> None:
        """However many watch however many threads, each of them is told of his own."""
        keys = [thread_key(f"t{number}", f"n{number % 3}") for number in range(50)]
        told = [(key, threading.Event()) for key in keys for _ in range(4)]
        stops = [store.watch(key, event.set) for key, event in told]
        for key in keys:
            _appended(other, PlainAppend(key, line_of("x")))
        assert all(event.wait(_PATIENCE) for _, event in told)
        for stop in stops:
            stop()

    def test_nothing_is_missed_between_watching_and_reading(
        self, store: Store, other: Store
    ) -> None:
        """What is appended just when a thread is watched and then read is read, or told of."""
        with ThreadPoolExecutor(1) as pool:
            for number in range(15):
                line, told = line_of(str(number)), threading.Event()
                writing = pool.submit(_appended, other, PlainAppend(KEY, line))
                stop = store.watch(KEY, told.set)
                _wait_until(told, lambda line=line: line in _texts(store))
                stop()
                writing.result(_PATIENCE)

    # ---- the end ----

    def test_after_fork_lets_the_store_go_on(self, store: Store) -> None:
        """After `after_fork` the store works as a fresh one does."""
        position = _appended(store, PlainAppend(KEY, line_of("parent"))).position
        store.after_fork()
        _appended(store, PlainAppend(KEY, line_of("child"), position=position))
        assert _texts(store) == [line_of("parent"), line_of("child")]

    def test_after_fork_a_thread_is_watched_anew(self, store: Store, other: Store) -> None:
        """After `after_fork` one can watch; who watched before is the parent's, and may stop."""
        calls, told = list[None](), threading.Event()
        stop_before = store.watch(KEY, lambda: calls.append(None))
        store.after_fork()
        before = len(calls)
        stop = store.watch(KEY, told.set)
        stop_before()
        told.clear()
        _appended(other, PlainAppend(KEY, line_of("x")))
        assert told.wait(_PATIENCE)
        assert len(calls) <= before + 1
        stop()

    def test_a_watch_is_ended_after_the_store(self, store: Store) -> None:
        """Who still watches when the store is closed may stop after it."""
        stop = store.watch(KEY, lambda: None)
        store.close()
        stop()

    def test_close_may_be_called_again(self, store: Store, make: Callable[[], Store]) -> None:
        """A store can be closed twice, used or not, and what it wrote stays."""
        unused = make()
        _appended(store, PlainAppend(KEY, line_of("x")))
        for each in (store, unused):
            each.close()
            each.close()
        assert _texts(make()) == [line_of("x")]

    # ---- threads in a memory over the store ----

    @pytest.fixture
    def memory(self, store: Store) -> Memory:
        """Give a memory over `store`."""
        return Memory(store)

    @pytest.fixture
    def peer(self, other: Store) -> Memory:
        """Give a memory over `other`: another process' memory of the same threads."""
        return Memory(other)

    def test_turns_are_there_in_another_memory(self, memory: Memory, peer: Memory) -> None:
        """Turns come back in another memory with their roles, texts, times and meta."""
        mem = memory.open("thread")
        mem.append("question", meta={"name": "Ada", "n": 2**63, "f": 0.1, "t": True, "none": None})
        mem.append("answer", role="assistant").append("rule", role="system")
        for text in ODD_TEXTS:
            mem.append(text, meta={text: text})
        there = peer.open("thread")
        assert there.messages() == mem.messages()
        assert [message.role for message in there.messages()[:3]] == ["user", "assistant", "system"]
        assert [message.content for message in there.messages()[3:]] == list(ODD_TEXTS)
        assert [message.meta for message in there.messages()[3:]] == [
            {text: text} for text in ODD_TEXTS
        ]
        assert there.problems == ()

    def test_refresh_reads_what_the_other_appended(self, memory: Memory, peer: Memory) -> None:
        """A thread shows another memory's turns after a refresh, or after an append of its own."""
        mine, theirs = memory.open("thread"), peer.open("thread")
        theirs.append("a")
        assert len(mine) == 0
        assert mine.refresh().messages() == theirs.messages()
        theirs.append("b")
        mine.append("c")
        assert [message.content for message in mine.messages()] == ["a", "b", "c"]
        assert theirs.refresh().messages() == mine.messages()

    def test_a_refresh_that_waits_is_woken(self, memory: Memory, peer: Memory) -> None:
        """A refresh that waits returns with what another memory appended meanwhile."""
        mine, theirs = memory.open("thread"), peer.open("thread")
        with ThreadPoolExecutor(1) as pool:
            for number in range(3):
                refreshed = pool.submit(mine.refresh, wait=_PATIENCE)
                theirs.append(str(number))
                refreshed.result(_PATIENCE)
                assert mine.messages() == theirs.messages()

    def test_a_refresh_that_waits_is_told_of_a_deletion(self, memory: Memory, peer: Memory) -> None:
        """A refresh that waits raises when another memory deletes the thread."""
        mine = memory.open("thread").append("x")
        with ThreadPoolExecutor(1) as pool:
            refreshed = pool.submit(mine.refresh, wait=_PATIENCE)
            assert peer.delete("thread") is True
            assert isinstance(refreshed.exception(_PATIENCE), ThreadReplaced)

    def test_a_key_appends_once_whoever_tries(self, memory: Memory, peer: Memory) -> None:
        """An idempotency key counts for the thread, not for a memory: once is enough."""
        mine, theirs = memory.open("thread"), peer.open("thread")
        mine.append("before").append("once", key="k")
        theirs.append("twice", key="k")
        mine.append("thrice", key="k").append("after")
        assert [message.content for message in mine.messages()] == ["before", "once", "after"]
        assert theirs.refresh().messages() == mine.messages()
        assert mine.index_of("k") == theirs.index_of("k") == 1
        fresh = peer.open("thread")
        assert (fresh.index_of("k"), fresh.index_of("other")) == (1, None)

    def test_expect_conflicts_only_where_turns_came(self, memory: Memory, peer: Memory) -> None:
        """`expect` appends where the thread holds that many turns, else gives what came."""
        mine, theirs = memory.open("thread"), peer.open("thread")
        mine.append("a", expect=0)
        theirs.append("b", expect=1)
        with pytest.raises(Conflict) as caught:
            mine.append("never", expect=1)
        assert (caught.value.expected, caught.value.actual) == (1, 2)
        assert isinstance(caught.value.turns, Conversation)
        assert [message.content for message in caught.value.turns] == ["b"]
        mine.append("c", expect=2)
        assert [message.content for message in theirs.refresh().messages()] == ["a", "b", "c"]

    def test_an_extend_is_one_unit(self, memory: Memory, peer: Memory) -> None:
        """The turns of an extend stand together, and none is there where it conflicts."""
        mine, theirs = memory.open("thread"), peer.open("thread")
        theirs.append("theirs")
        unit = [Message("user", "q"), Message("assistant", "a"), Message("user", "q2")]
        with pytest.raises(Conflict):
            mine.extend(unit, expect=0)
        mine.extend(unit, key="unit")
        theirs.extend(unit, key="unit")
        contents = [message.content for message in theirs.refresh().messages()]
        assert contents == ["theirs", "q", "a", "q2"]
        assert mine.index_of("unit") == theirs.index_of("unit") == 1

    def test_a_deleted_thread_takes_no_more_turns(self, memory: Memory, peer: Memory) -> None:
        """A handle of a thread that another memory deleted fails; opened again it is empty."""
        mine = memory.open("thread").append("x")
        assert peer.delete("thread") is True
        with pytest.raises(NotWritten):
            mine.append("late")
        assert [message.content for message in mine.messages()] == ["x"]
        again = memory.open("thread")
        assert len(again) == 0
        again.append("new life")
        assert [message.content for message in peer.open("thread").messages()] == ["new life"]

    def test_a_fork_goes_its_own_way(self, memory: Memory, peer: Memory) -> None:
        """A fork holds the turns up to where it was made, and neither side changes the other."""
        mine = memory.open("thread").append("a").append("b").append("c")
        fork = mine.fork("fork", upto=2).append("d")
        mine.append("e")
        assert [message.content for message in fork.messages()] == ["a", "b", "d"]
        assert peer.open("fork").messages() == fork.messages()
        assert peer.open("thread").messages() == mine.messages()
