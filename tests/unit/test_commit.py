"""GroupCommit over a store whose every commit is scripted."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

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

from turnlog import Closed, LockTimeout, OutcomeUnknown
from turnlog.commit import GroupCommit
from turnlog.stores.base import START, Append, Outcome, Read
from turnlog.stores.inmemory import InMemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

# ---- who commits ----


def test_a_lone_append_is_committed_by_its_own_thread() -> None:
    """A synchronous caller leads: no other thread is made or waited for."""
    store, thread = ScriptedStore(), Thread("t")
    before = set(threading.enumerate())
    commit = GroupCommit(store, 1.0)
    for number in range(3):
        commit.run(ticket_of(thread, str(number)))
    assert store.committers == [threading.get_ident()] * 3
    assert store.batches == [["t"]] * 3
    assert thread.lines == [b"0", b"1", b"2"]
    assert committers_since(before) == []


def test_the_loop_never_commits() -> None:
    """An asynchronous caller is led by one other thread, always the same. R14."""
    store, thread = ScriptedStore(), Thread("t")
    commit = GroupCommit(store, 1.0)

    async def main() -> None:
        for number in range(3):
            await commit.arun(ticket_of(thread, str(number)))

    asyncio.run(main())
    assert len(set(store.committers)) == 1
    assert threading.get_ident() not in store.committers
    commit.close()
    assert thread.lines == [b"0", b"1", b"2"]


# ---- batches ----


def test_what_comes_meanwhile_is_one_batch() -> None:
    """All appends that come during a commit are the next one, in the order of their coming."""
    gate = Gate()
    store = ScriptedStore(gate)
    commit = GroupCommit(store, 1.0)
    threads = [Thread(f"t{number}") for number in range(4)]

    async def main() -> None:
        first = asyncio.create_task(asyncio.to_thread(commit.run, ticket_of(Thread("first"), "x")))
        await reached(gate)
        tickets = [ticket_of(threads[number % 4], str(number)) for number in range(20)]
        tasks = await started(commit, *tickets)
        gate.opened.set()
        await asyncio.gather(first, *tasks)

    asyncio.run(main())
    assert store.batches == [["first"], ["t0", "t1", "t2", "t3"]]
    for number, thread in enumerate(threads):
        assert thread.lines == [str(turn).encode() for turn in range(number, 20, 4)]
    commit.close()


def test_two_handles_of_one_thread_are_never_in_one_batch() -> None:
    """A batch has each thread once: its second handle waits for the next, in order."""
    gate = Gate()
    store = ScriptedStore(gate)
    commit = GroupCommit(store, 1.0)
    one, two, other = Thread("same"), Thread("same"), Thread("other")

    async def main() -> None:
        first = await started(commit, ticket_of(other, "x"))
        await reached(gate)
        tickets = [ticket_of(handle, str(turn)) for turn in range(5) for handle in (one, two)]
        tasks = await started(commit, *tickets, ticket_of(other, "y"))
        gate.opened.set()
        await asyncio.gather(*first, *tasks)

    asyncio.run(main())
    assert store.batches == [["other"], ["same", "other"], ["same"]]
    assert one.lines == two.lines == [str(turn).encode() for turn in range(5)]
    assert list(store.load(one.key).lines) == one.lines + two.lines
    commit.close()


# ---- locked threads ----


@pytest.mark.parametrize("tries", [1, 3])
def test_a_locked_thread_is_tried_again(tries: int) -> None:
    """A thread that another process has locked is tried again, until it is free."""
    store = ScriptedStore(*[busy("t")] * tries)
    thread = Thread("t")
    commit = GroupCommit(store, PATIENCE)
    commit.run(ticket_of(thread, "sync"))
    store.script += [busy("t")] * tries
    asyncio.run(commit.arun(ticket_of(thread, "async")))
    assert store.batches == [["t"]] * 2 * (tries + 1)
    assert list(store.load(thread.key).lines) == thread.lines == [b"sync", b"async"]
    commit.close()


def test_a_locked_thread_holds_up_no_other() -> None:
    """While a thread is locked, the others are committed, and its own appends keep their order."""
    gate, again = Gate(), Gate()
    locked, free = Thread("locked"), Thread("free")

    def locked_is_busy(batch: Sequence[Append]) -> Sequence[Outcome]:
        others = [append for append in batch if append.key.id != "locked"]
        outcomes = iter(InMemoryStore.commit(store, others))
        locked_out = Outcome(Read(), START, busy=True)
        return [locked_out if append.key.id == "locked" else next(outcomes) for append in batch]

    store = ScriptedStore(gate, locked_is_busy, again)
    commit = GroupCommit(store, PATIENCE)

    async def main() -> None:
        first = await started(commit, ticket_of(free, "0"))
        await reached(gate)
        waiting = await started(commit, ticket_of(locked, "a"), ticket_of(locked, "b"))
        others = await started(commit, ticket_of(free, "1"))
        gate.opened.set()
        await asyncio.gather(*first, *others)
        assert free.lines == [b"0", b"1"]
        assert not any(task.done() for task in waiting)
        await reached(again)
        late = await started(commit, ticket_of(locked, "c"))
        again.opened.set()
        await asyncio.gather(*waiting, *late)

    asyncio.run(main())
    assert locked.lines == [b"a", b"b", b"c"]
    assert store.batches[:3] == [["free"], ["locked", "free"], ["locked"]]
    commit.close()


def test_each_append_has_its_own_time_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that waited as long as it may raises LockTimeout; a later one waits on. Contract 3.

    The clock goes on by 10 s a commit; an append waits 25 s from its first try on.
    """
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("turnlog.commit.time", SimpleNamespace(monotonic=lambda: clock.now))
    gate = Gate()

    def tick(batch: Sequence[Append]) -> Sequence[Outcome]:
        clock.now += 10
        if len(store.batches) == 2:
            gate(batch)
        return busy("t")(batch)

    store, thread = ScriptedStore(*[tick] * 7), Thread("t")
    commit = GroupCommit(store, 25.0)
    early, late = ticket_of(thread, "early"), ticket_of(thread, "late")
    tries: dict[str, int] = {}

    async def wait_for(name: str, task: asyncio.Task[None]) -> None:
        with pytest.raises(LockTimeout, match=r"thread 't' in namespace 'n': .* for 25 s; nothing"):
            await task
        tries[name] = len(store.batches)

    async def main() -> None:
        first = await started(commit, early)
        await reached(gate)
        second = await started(commit, late)
        gate.opened.set()
        await asyncio.gather(wait_for("early", *first), wait_for("late", *second))

    asyncio.run(main())
    assert early.error is not late.error
    # Tried first at 10 s and given up at 40 s; tried first at 30 s and given up at 60 s.
    assert tries["late"] == 6
    assert 4 <= tries["early"] <= 6
    assert thread.lines == []
    commit.close()


def test_a_timeout_of_one_append_is_not_its_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lock comes free after one append gave up, the next one is written. Contract 3."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("turnlog.commit.time", SimpleNamespace(monotonic=lambda: clock.now))

    def tick(batch: Sequence[Append]) -> Sequence[Outcome]:
        clock.now += 10
        return busy("t")(batch)

    store, thread = ScriptedStore(tick, tick), Thread("t")
    commit = GroupCommit(store, 5.0)
    with pytest.raises(LockTimeout):
        commit.run(ticket_of(thread, "given up"))
    commit.run(ticket_of(thread, "written"))
    assert thread.lines == [b"written"]


# ---- a store that breaks ----


def test_a_store_that_raises_leaves_every_outcome_unknown() -> None:
    """All appends of the broken batch raise OutcomeUnknown, each its own; the next goes on."""
    gate, broken = Gate(), RuntimeError("the store is broken")
    store = ScriptedStore(gate, raising(broken))
    commit = GroupCommit(store, 1.0)
    threads = [Thread("a"), Thread("b")]

    async def main() -> None:
        first = await started(commit, ticket_of(Thread("first"), "x"))
        await reached(gate)
        tasks = await started(commit, *[ticket_of(threads[n % 2], str(n)) for n in range(6)])
        gate.opened.set()
        await asyncio.gather(*first)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        for number, error in enumerate(errors):
            assert isinstance(error, OutcomeUnknown)
            assert f"thread {'ab'[number % 2]!r} in namespace 'n'" in str(error)
            assert "the store is broken" in str(error)
            assert error.__cause__ is broken
        await commit.arun(ticket_of(Thread("a"), "after"))

    asyncio.run(main())
    assert [thread.lines for thread in threads] == [[], []]
    commit.run(ticket_of(Thread("b"), "after"))
    commit.close()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_must_not_be_swallowed_is_raised_to_who_leads(kind: type[BaseException]) -> None:
    """An interrupt out of the store reaches the caller that leads; the next append goes on."""
    store = ScriptedStore(raising(kind()))
    commit = GroupCommit(store, 1.0)
    ticket = ticket_of(Thread("t"), "x")
    with pytest.raises(kind):
        commit.run(ticket)
    assert isinstance(ticket.error, OutcomeUnknown)
    in_time(lambda: commit.run(ticket_of(Thread("t"), "y")))
    assert store.batches == [["t"], ["t"]]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_interrupt_in_the_committer_does_not_end_it(kind: type[BaseException]) -> None:
    """Whatever a store raises off the loop, its appends get an outcome, and later ones too."""
    store = ScriptedStore(raising(kind()))
    commit = GroupCommit(store, 1.0)
    found: list[BaseException | None] = []

    async def main() -> None:
        for number in range(50):
            try:
                await commit.arun(ticket_of(Thread("t"), str(number)))
            except OutcomeUnknown as error:
                found.append(error)
            else:
                found.append(None)

    in_time(lambda: asyncio.run(main()))
    assert isinstance(found[0], OutcomeUnknown)
    assert found[1:] == [None] * 49
    in_time(commit.close)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_committer_that_is_ended_is_replaced() -> None:
    """What ends an idle committer from outside, as it is told to lead, leaves nobody waiting."""
    before = set(threading.enumerate())
    commit = GroupCommit(ScriptedStore(), 1.0)
    asyncio.run(commit.arun(ticket_of(Thread("t"), "x")))
    (committer,) = committers_since(before)
    ident = committer.ident or 0
    while sys._current_frames()[ident].f_code is not threading.Condition.wait.__code__:  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.001)
    end = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert end(ctypes.c_ulong(ident), ctypes.py_object(SystemExit)) == 1
    in_time(lambda: asyncio.run(commit.arun(ticket_of(Thread("t"), "y"))))
    in_time(lambda: asyncio.run(commit.arun(ticket_of(Thread("t"), "z"))))
    committer.join(PATIENCE)
    assert not committer.is_alive()
    in_time(commit.close)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_store_that_miscounts_leaves_every_outcome_unknown(count: int) -> None:
    """Where the outcomes are not as many as the appends, which is whose cannot be known."""
    gate = Gate()

    def miscount(batch: Sequence[Append]) -> Sequence[Outcome]:
        assert len(batch) == 2
        return [Outcome(Read(), START)] * count

    store = ScriptedStore(gate, miscount)
    commit = GroupCommit(store, 1.0)
    found: list[object] = []

    async def main() -> None:
        first = await started(commit, ticket_of(Thread("first"), "x"))
        await reached(gate)
        tasks = await started(commit, ticket_of(Thread("a"), "x"), ticket_of(Thread("b"), "y"))
        gate.opened.set()
        await asyncio.gather(*first)
        found.extend(await asyncio.gather(*tasks, return_exceptions=True))
        await commit.arun(ticket_of(Thread("a"), "after"))

    in_time(lambda: asyncio.run(main()))
    assert list(map(type, found)) == [OutcomeUnknown, OutcomeUnknown]
    in_time(commit.close)


# ---- cancelled and interrupted ----


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_append_completes_first(times: int) -> None:
    """A cancelled task goes on its way only after its append is done, however often. Contract 7."""
    gate = Gate()
    store, thread = ScriptedStore(gate), Thread("t")
    commit = GroupCommit(store, 1.0)

    async def main() -> None:
        ticket = ticket_of(thread, "x")
        (task,) = await started(commit, ticket)
        await reached(gate)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ticket.done

    asyncio.run(main())
    assert thread.lines == [b"x"]
    commit.close()


def test_a_cancelled_append_that_failed_says_so() -> None:
    """The cancellation of an append that failed has the append's error for its cause."""
    gate, broken = Gate(), RuntimeError("broken")
    store = ScriptedStore(gate, raising(broken))
    commit = GroupCommit(store, 1.0)

    async def main() -> None:
        first = await started(commit, ticket_of(Thread("first"), "x"))
        await reached(gate)
        (task,) = await started(commit, ticket_of(Thread("t"), "x"))
        task.cancel()
        await asyncio.sleep(0)
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert isinstance(caught.value.__cause__, OutcomeUnknown)
        await asyncio.gather(*first)

    asyncio.run(main())
    commit.close()


def test_a_loop_that_is_gone_harms_nobody() -> None:
    """An append whose loop was closed before its outcome completes, and so do later ones."""
    gate = Gate()
    store, thread = ScriptedStore(gate), Thread("t")
    commit = GroupCommit(store, 1.0)
    loop = asyncio.new_event_loop()

    async def submit() -> object:
        waiting = commit.arun(ticket_of(thread, "left alone"))
        waiting.send(None)  # up to where it waits for its outcome
        return waiting

    abandoned = loop.run_until_complete(submit())
    assert gate.entered.wait(PATIENCE)
    loop.close()
    gate.opened.set()
    commit.run(ticket_of(thread, "after"))
    asyncio.run(commit.arun(ticket_of(thread, "and after")))
    assert thread.lines == [b"left alone", b"after", b"and after"]
    del abandoned
    commit.close()


@pytest.mark.usefixtures("collected")
def test_ctrl_c_waits_for_the_outcome() -> None:
    """Ctrl-C in the middle of an append is raised after it is done. Contract 7."""

    def interrupted(batch: Sequence[Append]) -> None:
        del batch
        os.kill(os.getpid(), signal.SIGINT)

    store, thread = ScriptedStore(interrupted), Thread("t")
    commit = GroupCommit(store, 1.0)
    ticket = ticket_of(thread, "x")
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        commit.run(ticket)
    assert ticket.done
    assert thread.lines == [b"x"]
    assert signal.getsignal(signal.SIGINT) is handler
    commit.run(ticket_of(thread, "y"))


# ---- the end ----


def test_closing_waits_for_what_is_under_way() -> None:
    """Close returns after the appends that were submitted, and no sooner."""
    gate = Gate()
    store, thread = ScriptedStore(gate), Thread("t")
    commit = GroupCommit(store, 1.0)
    happened: list[str] = []

    async def append(text: str) -> None:
        await commit.arun(ticket_of(thread, text))

    def close() -> None:
        commit.close()
        happened.append(f"closed after {len(thread.lines)}")

    async def main() -> None:
        first = asyncio.create_task(append("x"))
        await reached(gate)
        tasks = [asyncio.create_task(append(str(number))) for number in range(5)]
        await asyncio.sleep(0)
        closer = threading.Thread(target=close)
        closer.start()
        closer.join(0.05)  # were it not to wait, it would be done by now
        assert closer.is_alive()
        gate.opened.set()
        await asyncio.gather(first, *tasks)
        await asyncio.to_thread(closer.join, PATIENCE)

    asyncio.run(main())
    assert happened == ["closed after 6"]


def test_closed_it_takes_no_more() -> None:
    """After close, sync and async appends raise Closed, which names the thread; close again."""
    store = ScriptedStore()
    commit = GroupCommit(store, 1.0)
    asyncio.run(commit.arun(ticket_of(Thread("t"), "x")))
    commit.close()
    commit.close()
    with pytest.raises(Closed, match="thread 't' in namespace 'n'"):
        commit.run(ticket_of(Thread("t"), "y"))
    with pytest.raises(Closed, match="thread 't' in namespace 'n'"):
        asyncio.run(commit.arun(ticket_of(Thread("t"), "y")))
    assert store.batches == [["t"]]


def test_closing_ends_the_committer() -> None:
    """Closed, it leaves no thread behind."""
    before = set(threading.enumerate())
    commit = GroupCommit(ScriptedStore(), 1.0)
    asyncio.run(commit.arun(ticket_of(Thread("t"), "x")))
    (committer,) = committers_since(before)
    commit.close()
    committer.join(PATIENCE)
    assert not committer.is_alive()
