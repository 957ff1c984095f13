"""GroupCommit over a store that takes several commits at once, each of them scripted."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from scripted import (
    PATIENCE,
    Gate,
    ScriptedStore,
    Thread,
    busy,
    committers_since,
    in_time,
    raising,
    reached,
    started,
    ticket_of,
)

import turnlog.commit
from turnlog import Closed, LockTimeout, NotWritten, OutcomeUnknown
from turnlog.commit import GroupCommit
from turnlog.stores.base import Append, Outcome, Read
from turnlog.stores.inmemory import InMemoryStore
from turnlog.ticket import Decision, Ticket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnlog import ThreadKey


class TwoAtOnce(ScriptedStore):
    """A scripted store that takes two commits at once."""

    commits_at_once = 2


def gated(gates: int) -> tuple[list[Gate], TwoAtOnce, GroupCommit]:
    """Make a store whose first commits are each held by a gate."""
    held = [Gate() for _ in range(gates)]
    store = TwoAtOnce(*held)
    return held, store, GroupCommit(store, PATIENCE)


async def two_under_way(
    commit: GroupCommit, one: Gate, two: Gate
) -> tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]:
    """Have a commit of the thread "a" wait at one gate, and one of "b" at another."""
    first = await started(commit, ticket_of(Thread("a"), "a"))
    await reached(one)
    second = await started(commit, ticket_of(Thread("b"), "b"))
    await reached(two)
    return first, second


# ---- side by side ----


def test_two_commits_are_under_way_at_once() -> None:
    """What comes while one commit is under way is committed at once, and no third beside it."""
    (one, two), store, commit = gated(2)

    async def main() -> None:
        first, second = await two_under_way(commit, one, two)
        rest = await started(commit, *(ticket_of(Thread(name), name) for name in "cde"))
        assert store.batches == [["a"], ["b"]]
        two.opened.set()
        await asyncio.gather(*second, *rest)
        assert not first[0].done()
        one.opened.set()
        await asyncio.gather(*first)

    asyncio.run(main())
    assert store.batches == [["a"], ["b"], ["c", "d", "e"]]
    assert len(set(store.committers)) == 2
    commit.close()


def test_synchronous_callers_lead_side_by_side() -> None:
    """Each of two OS threads commits its own append; no other thread is made."""
    (one, two), store, commit = gated(2)
    threads = set(threading.enumerate())
    appending = [
        threading.Thread(target=commit.run, args=(ticket_of(Thread(name), name),)) for name in "ab"
    ]
    for gate, thread in zip((one, two), appending, strict=True):
        thread.start()
        assert gate.entered.wait(PATIENCE)
    assert set(threading.enumerate()) - threads == set(appending)
    for gate, thread in zip((two, one), reversed(appending), strict=True):
        gate.opened.set()
        thread.join(PATIENCE)
    assert store.committers == [thread.ident for thread in appending]
    commit.close()


def test_a_thread_is_never_in_two_commits() -> None:
    """What comes for a thread that is under way waits for it, in order; others go ahead."""
    (one, two), store, commit = gated(2)
    same, other = Thread("same"), Thread("other")

    async def main() -> None:
        first = await started(commit, ticket_of(same, "0"))
        await reached(one)
        waiting = await started(commit, ticket_of(same, "1"), ticket_of(same, "2"))
        ahead = await started(commit, ticket_of(other, "x"))
        await reached(two)
        two.opened.set()
        await asyncio.gather(*ahead)
        assert not any(task.done() for task in waiting)
        one.opened.set()
        await asyncio.gather(*first, *waiting)

    asyncio.run(main())
    assert store.batches == [["same"], ["other"], ["same"]]
    assert same.lines == list(store.load(same.key).lines) == [b"0", b"1", b"2"]
    commit.close()


def test_a_caller_whose_thread_another_has_waits_for_him() -> None:
    """A synchronous append to a thread that is under way is committed by who has it."""
    (one,), store, commit = gated(1)
    same = Thread("same")
    first = threading.Thread(target=commit.run, args=(ticket_of(same, "0"),))
    first.start()
    assert one.entered.wait(PATIENCE)
    second = threading.Thread(target=commit.run, args=(ticket_of(same, "1"),))
    second.start()
    while not commit._queue:  # pyright: ignore[reportPrivateUsage]
        pass
    one.opened.set()
    for thread in (first, second):
        thread.join(PATIENCE)
    assert same.lines == [b"0", b"1"]
    assert store.batches == [["same"], ["same"]]
    commit.close()


@pytest.mark.usefixtures("two_are_enough")
def test_a_burst_is_divided() -> None:
    """What is more than enough for one commit is left to the other, in order."""
    (one, two), store, commit = gated(2)

    async def main() -> None:
        first, second = await two_under_way(commit, one, two)
        rest = await started(commit, *(ticket_of(Thread(name), name) for name in "cdefg"))
        one.opened.set()
        two.opened.set()
        await asyncio.gather(*first, *second, *rest)

    asyncio.run(main())
    assert sorted(store.batches[2:]) == [["c", "d"], ["e", "f"], ["g"]]
    commit.close()


@pytest.mark.usefixtures("two_are_enough")
def test_the_rest_of_a_burst_finds_another_leader() -> None:
    """Who takes enough of a burst has the rest committed beside it, not after it."""
    (one, two, three), store, commit = gated(3)

    async def main() -> None:
        first, second = await two_under_way(commit, one, two)
        rest = await started(commit, *(ticket_of(Thread(name), name) for name in "cdef"))
        two.opened.set()
        await asyncio.gather(*second)
        await reached(three)
        one.opened.set()
        await asyncio.gather(*first, *rest[2:])
        assert not any(task.done() for task in rest[:2])
        three.opened.set()
        await asyncio.gather(*rest)

    asyncio.run(main())
    assert store.batches == [["a"], ["b"], ["c", "d"], ["e", "f"]]
    commit.close()


@pytest.fixture
def two_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have two tickets be enough for one commit."""
    monkeypatch.setattr(turnlog.commit, "_ENOUGH", 2)


# ---- locked threads ----


def test_a_locked_thread_holds_up_nobody() -> None:
    """While one leader waits for a locked thread, the other commits what comes."""
    again = Gate()
    locked = Thread("locked")
    store = TwoAtOnce(busy("locked"), again)
    commit = GroupCommit(store, PATIENCE)

    async def main() -> None:
        waiting = await started(commit, ticket_of(locked, "0"))
        await reached(again)
        await asyncio.gather(*await started(commit, ticket_of(Thread("free"), "x")))
        assert not waiting[0].done()
        again.opened.set()
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert locked.lines == [b"0"]
    commit.close()


def test_all_callers_come_back_from_a_locked_thread() -> None:
    """Whoever has a locked thread last, all who wait for it are told, in time."""
    locked = Thread("locked")

    def is_locked(batch: Sequence[Append]) -> Sequence[Outcome] | None:
        if any(append.key.id == "locked" for append in batch):
            return busy("locked")(batch)
        return None

    store = TwoAtOnce(*[is_locked] * 10_000)
    commit = GroupCommit(store, 0.05)

    def append(number: int) -> BaseException | None:
        name = "locked" if number % 2 else f"free{number}"
        try:
            commit.run(ticket_of(locked if number % 2 else Thread(name), str(number)))
        except LockTimeout as error:
            return error
        return None

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(append, range(64), timeout=PATIENCE))
    assert [isinstance(error, LockTimeout) for error in found] == [False, True] * 32
    in_time(commit.close)


@pytest.mark.usefixtures("two_are_enough")
def test_many_for_a_locked_thread_keep_nobody_from_coming() -> None:
    """However many appends wait for a locked thread, one to a free thread is committed."""
    locked = Thread("locked")
    opened = threading.Event()

    def is_locked(batch: Sequence[Append]) -> Sequence[Outcome] | None:
        if opened.is_set():
            return None
        free = [append for append in batch if append.key.id != "locked"]
        outcomes = iter(InMemoryStore.commit(store, free))
        return [
            Outcome(Read(), append.position, busy=True)
            if append.key.id == "locked"
            else next(outcomes)
            for append in batch
        ]

    store = TwoAtOnce(*[is_locked] * 100_000)
    commit = GroupCommit(store, PATIENCE)

    async def main() -> None:
        waiting = await started(commit, *(ticket_of(locked, str(n)) for n in range(9)))
        for name in "abc":
            await asyncio.wait_for(commit.arun(ticket_of(Thread(name), name)), PATIENCE)
        assert not any(task.done() for task in waiting)
        opened.set()
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert locked.lines == [b"%d" % number for number in range(9)]
    commit.close()


@pytest.mark.parametrize("behind", ["a unit", "another handle"])
@pytest.mark.parametrize("store", [ScriptedStore(), TwoAtOnce()], ids=["one", "two"])
def test_a_locked_thread_is_not_asked_for_all_the_time(
    store: ScriptedStore, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each further try there is a nap, also where more waits for the same thread."""
    commit = GroupCommit(store, PATIENCE)
    locked = Thread("locked")
    naps: list[float] = []
    wait = commit._changed.wait  # pyright: ignore[reportPrivateUsage]

    def noted(seconds: float | None = None) -> bool:
        if seconds is not None:
            naps.append(seconds)
        return wait(seconds)

    monkeypatch.setattr(commit._changed, "wait", noted)  # pyright: ignore[reportPrivateUsage]
    store.script[:] = [busy("locked")] * 7
    first = Ticket(locked, [b"1", b"2"]) if behind == "a unit" else ticket_of(locked, "12")
    second = ticket_of(locked if behind == "a unit" else Thread("locked"), "3")

    async def main() -> None:
        await asyncio.gather(*await started(commit, first, second))

    asyncio.run(main())
    assert len(naps) == 7
    assert b"".join(store.load(locked.key).lines).endswith(b"123")
    commit.close()


# ---- what breaks ----


@pytest.mark.parametrize("store", [ScriptedStore(), TwoAtOnce()], ids=["one", "two"])
def test_an_append_in_the_midst_of_another(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a signal's handler appends while its thread takes from the queue is refused."""
    commit = GroupCommit(store, PATIENCE)
    outer, inner = Thread("outer"), Thread("inner")
    by_thread = turnlog.commit._by_thread  # pyright: ignore[reportPrivateUsage]
    refused: list[NotWritten] = []

    def interrupted(*arguments: Any) -> Any:
        with pytest.raises(NotWritten, match="in the middle of another append") as raised:
            commit.run(ticket_of(inner, "x"))
        refused.append(raised.value)
        return by_thread(*arguments)

    monkeypatch.setattr(turnlog.commit, "_by_thread", interrupted)
    in_time(lambda: commit.run(ticket_of(outer, "x")))
    assert refused
    assert [list(store.load(thread.key).lines) for thread in (outer, inner)] == [[b"x"], []]
    in_time(commit.close)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("store", [ScriptedStore(), TwoAtOnce()], ids=["one", "two"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_handler_that_raises_while_a_leader_takes(
    store: ScriptedStore,
    monkeypatch: pytest.MonkeyPatch,
    sync: bool,  # noqa: FBT001
) -> None:
    """Whoever it hits, nobody waits for a leader who is gone."""
    before = set(threading.enumerate())
    commit = GroupCommit(store, PATIENCE)
    by_thread = turnlog.commit._by_thread  # pyright: ignore[reportPrivateUsage]
    breaking = ["once"]

    def broken(*arguments: Any) -> Any:
        if breaking:
            breaking.clear()
            raise KeyboardInterrupt
        return by_thread(*arguments)

    monkeypatch.setattr(turnlog.commit, "_by_thread", broken)
    if sync:
        with pytest.raises(KeyboardInterrupt):
            commit.run(ticket_of(Thread("a"), "a"))
    else:
        in_time(lambda: asyncio.run(commit.arun(ticket_of(Thread("a"), "a"))))
    for name in "bc":
        in_time(lambda name=name: commit.run(ticket_of(Thread(name), name)))
        in_time(lambda name=name: asyncio.run(commit.arun(ticket_of(Thread(name), name))))
    in_time(commit.close)
    join_all_but(before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_outcome_that_cannot_be_taken_in_holds_up_no_other() -> None:
    """Who was resolved before, in the same batch, is woken; the outcome of the other is unknown."""

    class Broken(Thread):
        def settle(
            self, tickets: Sequence[Ticket], outcome: Outcome, decision: Decision | None
        ) -> None:
            del tickets, outcome, decision
            raise RuntimeError

    before = set(threading.enumerate())
    commit = GroupCommit(TwoAtOnce(), PATIENCE)

    async def main() -> list[BaseException | None]:
        tickets = [ticket_of(Thread("fine"), "x"), ticket_of(Broken("broken"), "x")]
        tasks = await started(commit, *tickets)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found: list[BaseException | None] = []
    in_time(lambda: found.extend(asyncio.run(main())))
    assert list(map(type, found)) == [type(None), OutcomeUnknown]
    in_time(commit.close)
    join_all_but(before)


def test_a_commit_that_breaks_harms_no_other() -> None:
    """The outcomes of a broken commit are unknown; what was beside it is committed."""
    (one,), store, commit = gated(1)
    store.script.append(raising(RuntimeError("broken")))
    fine, broken = Thread("fine"), Thread("broken")

    async def main() -> None:
        first = await started(commit, ticket_of(fine, "0"))
        await reached(one)
        with pytest.raises(OutcomeUnknown):
            await commit.arun(ticket_of(broken, "x"))
        one.opened.set()
        await asyncio.gather(*first)
        await commit.arun(ticket_of(Thread("after"), "y"))

    asyncio.run(main())
    assert fine.lines == [b"0"]
    in_time(commit.close)


def test_a_leader_who_is_broken_off_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a signal's handler raises in a leader costs that one alone, not who came meanwhile."""
    (one,), store, commit = gated(1)
    leave_room = commit._leave_room  # pyright: ignore[reportPrivateUsage]
    breaking = ["once"]

    def break_off(entries: dict[ThreadKey, Any]) -> None:
        if breaking:
            breaking.clear()
            raise KeyboardInterrupt
        leave_room(entries)

    other = threading.Thread(target=commit.run, args=(ticket_of(Thread("a"), "a"),))
    other.start()
    assert one.entered.wait(PATIENCE)
    monkeypatch.setattr(commit, "_leave_room", break_off)
    mine = ticket_of(Thread("b"), "b")
    with pytest.raises(KeyboardInterrupt):
        commit.run(mine)
    assert mine.done
    one.opened.set()
    other.join(PATIENCE)
    in_time(lambda: commit.run(ticket_of(Thread("b"), "after")))
    assert store.batches == [["a"], ["b"], ["b"]]
    in_time(commit.close)


# ---- the end ----


def test_closing_waits_for_both() -> None:
    """Close returns after the last of the commits that are under way, and ends both committers."""
    before = set(threading.enumerate())
    (one, two), store, commit = gated(2)

    async def main() -> None:
        first, second = await two_under_way(commit, one, two)
        closing = asyncio.create_task(asyncio.to_thread(commit.close))
        while not commit._closed:  # pyright: ignore[reportPrivateUsage]  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(Closed):
            await commit.arun(ticket_of(Thread("c"), "c"))
        one.opened.set()
        await asyncio.gather(*first)
        assert not closing.done()
        two.opened.set()
        await asyncio.gather(*second, closing)

    asyncio.run(main())
    join_all_but(before)
    assert store.batches == [["a"], ["b"]]


def join_all_but(before: set[threading.Thread]) -> None:
    """See all OS threads end that were not there before."""
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.parametrize("store", [ScriptedStore(), TwoAtOnce()], ids=["one", "two"])
def test_what_was_committed_is_let_go_of(store: ScriptedStore) -> None:
    """A committer who has nothing to do keeps nothing, and there are no more than are needed."""
    before = set(threading.enumerate())
    commit = GroupCommit(store, PATIENCE)
    threads = [Thread(f"t{number}") for number in range(50)]
    gone = [weakref.ref(thread) for thread in threads]

    async def main() -> None:
        for thread in threads:
            await commit.arun(ticket_of(thread, "x"))
        await asyncio.gather(*(commit.arun(ticket_of(thread, "y")) for thread in threads))

    asyncio.run(main())
    committers = committers_since(before)
    assert 1 <= len(committers) <= store.commits_at_once
    threads.clear()
    deadline = time.monotonic() + PATIENCE
    while any(reference() is not None for reference in gone):  # a committer may not be through yet
        assert time.monotonic() < deadline
        gc.collect()
    commit.close()


# ---- all at once ----


class Watched(InMemoryStore):
    """A store that sees to what it is promised, and whose threads are locked now and then."""

    commits_at_once = 3

    def __init__(self, chance: random.Random) -> None:
        """Begin with nobody in it."""
        super().__init__()
        self.chance = chance
        self.mutex = threading.Lock()
        self.inside = Counter[str]()
        self.commits = 0
        self.most = 0
        self.broken: list[str] = []

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Commit, but for what is locked."""
        ids = [append.key.id for append in batch]
        with self.mutex:
            self.commits += 1
            self.inside.update(ids)
            self.most = max(self.most, self.commits)
            if self.commits > self.commits_at_once or max(self.inside.values()) > 1:
                self.broken.append(f"{self.commits} commits, {self.inside}")
            locked = {id_ for id_ in ids if self.chance.random() < 0.2}
        time.sleep(self.chance.random() / 1000)  # others come meanwhile
        outcomes = [
            Outcome(Read(), append.position, busy=True)
            if append.key.id in locked
            else self._append(append)
            for append in batch
        ]
        with self.mutex:
            self.commits -= 1
            self.inside.subtract(ids)
        return outcomes


@pytest.mark.parametrize("seed", range(5))
def test_many_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many appends, sync and async, is there once and in order, whoever commits it."""
    monkeypatch.setattr(turnlog.commit, "_ENOUGH", 5)
    store = Watched(random.Random(seed))
    commit = GroupCommit(store, PATIENCE)
    threads = [Thread(f"t{number}") for number in range(7)]

    def ticket(writer: int, number: int) -> Ticket:
        return ticket_of(threads[(writer + number) % 7], f"{writer} {number}")

    def in_thread(writer: int) -> None:
        for number in range(100):
            commit.run(ticket(writer, number))

    async def in_loop(writers: range) -> None:
        async def write(writer: int) -> None:
            for number in range(100):
                await commit.arun(ticket(writer, number))

        await asyncio.gather(*map(write, writers))

    with ThreadPoolExecutor(8) as pool:
        works = [pool.submit(in_thread, writer) for writer in range(6)]
        works += [pool.submit(asyncio.run, in_loop(range(n, n + 10))) for n in (6, 16)]
        for work in works:
            work.result(PATIENCE)
    in_time(commit.close)
    assert store.broken == []
    assert store.most == store.commits_at_once
    found = [line for thread in threads for line in store.load(thread.key).lines]
    assert Counter(found) == Counter(
        f"{writer} {number}".encode() for writer in range(26) for number in range(100)
    )
    for number, thread in enumerate(threads):
        for writer in range(26):
            own = [line for line in thread.lines if line.split()[0] == b"%d" % writer]
            turns = [n for n in range(100) if (writer + n) % 7 == number]
            assert own == [b"%d %d" % (writer, turn) for turn in turns]
