"""Exceptions at chosen calls within an append: of signal handlers, and set by other threads."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from psycopg_pool import ConnectionPool
from systems import Fails, Gate, Together, Watched
from writers import contents, lines_on_disk

from turnlog import Memory, MemoryThread, NotWritten, OutcomeUnknown, TurnlogError
from turnlog.stores.jsonl import JsonlStore
from turnlog.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from systems import Before

pytestmark = [pytest.mark.usefixtures("collected", "harmless"), pytest.mark.timeout(30)]

STEPS = ("try_lock", "status_of", "write", "sync", "unlock")


@pytest.fixture
def harmless() -> Generator[None]:
    """Have signals that come outside of a test's own block change nothing."""
    with handled(signal.SIGUSR1, ignore), handled(signal.SIGUSR2, ignore):
        yield


def ignore(*_: object) -> None:
    """Handle a signal, and do nothing."""


class Timeout(Exception):
    """A time limit's exception."""


def raise_timeout(*_: object) -> None:
    """Raise, as the handler of a time limit does."""
    raise Timeout


def leave(*_: object) -> None:
    """Leave the process, as many handlers of SIGTERM do."""
    sys.exit(3)


@contextmanager
def handled(number: int, handler: Callable[[int, Any], object]) -> Generator[None]:
    """Handle a signal in a block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class Sends:
    """Sends signals to the main thread, all at once, before the first call of a kind."""

    def __init__(self, call: str, *numbers: signal.Signals) -> None:
        """Wait for that call."""
        self.call = call
        self.numbers = numbers
        self.sent = False

    def __call__(self, call: str, _: tuple[Any, ...]) -> None:
        """Send the signals, where it is time to."""
        if call == self.call and not self.sent:
            self.sent = True
            signal.pthread_sigmask(signal.SIG_BLOCK, self.numbers)
            for number in self.numbers:
                # Not to the process: another thread might get it, and a moment later.
                signal.pthread_kill(threading.main_thread().ident or 0, number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self.numbers)


def watched(root: Path) -> tuple[Memory, Together]:
    """Make a memory over a system with something before its calls; return both."""
    befores = Together()
    store = JsonlStore(root, system=Watched(befores), lock_timeout=2.0)
    return Memory(store, lock_timeout=2.0), befores


def opened(root: Path, before: Before) -> MemoryThread:
    """Open a thread with one turn, over a system with something before its calls from then on."""
    memory, befores = watched(root)
    thread = memory.open("t").append("first")
    befores.befores.append(before)
    return thread


def append_elsewhere(root: Path, content: str, id: str = "t") -> None:
    """Append from another memory, which has little patience."""
    with Memory(root, lock_timeout=0.5) as other:
        other.open(id).append(content)


def check(root: Path, thread: MemoryThread, expected: list[str]) -> None:
    """Check that a thread shows what is on the disk, and that it and others append at once."""
    assert [m.content for m in thread.messages()] == expected
    assert lines_on_disk(root, thread.id) == expected
    append_elsewhere(root, "elsewhere", thread.id)
    thread.append("next")
    assert contents(root, thread.id) == [*expected, "elsewhere", "next"]


# ---- signal handlers ----


@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize(("handler", "raised"), [(raise_timeout, Timeout), (leave, SystemExit)])
def test_at_every_step(
    root: Path, call: str, handler: Callable[..., None], raised: type[BaseException]
) -> None:
    """What a handler raises at any step of an append comes out when the turn is durable (C45)."""
    sends = Sends(call, signal.SIGUSR1)
    thread = opened(root, sends)
    with handled(signal.SIGUSR1, handler):
        with pytest.raises(raised):
            thread.append("second")
        assert signal.getsignal(signal.SIGUSR1) is handler
    assert sends.sent
    check(root, thread, ["first", "second"])


@pytest.mark.parametrize(
    "call", ["make_folder", "open_file", "try_lock", "write", "sync", "sync_folder"]
)
def test_at_the_first_append(root: Path, call: str) -> None:
    """What a handler raises while a thread is made comes out when its turn is durable (C45)."""
    sends = Sends(call, signal.SIGUSR1)
    memory, befores = watched(root)
    thread = memory.open("t")
    befores.befores.append(sends)
    with handled(signal.SIGUSR1, raise_timeout), pytest.raises(Timeout):
        thread.append("first")
    assert sends.sent
    check(root, thread, ["first"])


def test_another_process(root: Path) -> None:
    """After a handler has raised, another process appends at once (C34)."""
    thread = opened(root, Sends("status_of", signal.SIGUSR1))
    with handled(signal.SIGUSR1, raise_timeout), pytest.raises(Timeout):
        thread.append("second")
    program = (
        "import sys, turnlog; "
        "turnlog.Memory(sys.argv[1], lock_timeout=0.5).open('t').append('elsewhere')"
    )
    subprocess.run([sys.executable, "-c", program, root], check=True)
    assert contents(root) == ["first", "second", "elsewhere"]


def test_a_failing_append(root: Path) -> None:
    """What a handler raises in an append that fails leaves nothing of it, and no lock (C34)."""
    befores = Together([Sends("write", signal.SIGUSR1), Fails("sync", errno.EIO)])
    thread = opened(root, befores)
    with handled(signal.SIGUSR1, raise_timeout), pytest.raises(Timeout) as raised:
        thread.append("second")
    assert type(raised.value.__cause__) is NotWritten, "it must say what became of the append"
    check(root, thread, ["first"])


@pytest.mark.parametrize("call", STEPS)
def test_two_signals(root: Path, call: str) -> None:
    """Of two signals both handlers run, and what one of them raises comes out (C45)."""
    ran: list[int] = []

    def handler(number: int, _: object) -> None:
        ran.append(number)
        raise Timeout(number)

    thread = opened(root, Sends(call, signal.SIGUSR1, signal.SIGUSR2))
    with (
        handled(signal.SIGUSR1, handler),
        handled(signal.SIGUSR2, handler),
        pytest.raises(Timeout),
    ):
        thread.append("second")
    assert sorted(ran) == [signal.SIGUSR1, signal.SIGUSR2]
    check(root, thread, ["first", "second"])


@pytest.mark.parametrize("call", STEPS)
def test_handlers_that_return(root: Path, call: str) -> None:
    """A handler that raises nothing runs once, and changes nothing for the append."""
    ran: list[int] = []
    thread = opened(root, Sends(call, signal.SIGUSR1, signal.SIGUSR2))
    with (
        handled(signal.SIGUSR1, lambda number, _: ran.append(number)),
        handled(signal.SIGUSR2, lambda number, _: ran.append(number)),
    ):
        thread.append("second")
        assert sorted(ran) == [signal.SIGUSR1, signal.SIGUSR2]
    check(root, thread, ["first", "second"])


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("call", STEPS)
def test_a_handler_that_appends(root: Path, call: str, *, raises: bool) -> None:
    """An append of a handler to another thread is durable or refused, and never hangs."""
    told: list[str] = []
    memory, befores = watched(root)
    thread, log = memory.open("t").append("first"), memory.open("log")
    befores.befores.append(Sends(call, signal.SIGUSR1))

    def handler(*_: object) -> None:
        with suppress(NotWritten):
            log.append("interrupted")
            told.append("interrupted")
        if raises:
            raise Timeout

    with handled(signal.SIGUSR1, handler):
        if raises:
            with pytest.raises(Timeout):
                thread.append("second")
        else:
            thread.append("second")
    assert contents(root, "log") == told
    check(root, thread, ["first", "second"])


@contextmanager
def signal_at(step: int) -> Generator[Callable[[], int]]:
    """Send a signal at a step of a block: a call or a return. The block is given their count."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            signal.raise_signal(signal.SIGUSR1)

    sys.setprofile(count)
    try:
        yield lambda: steps
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("store", ["memory://", "files", "postgres_url", "nats_url"])
def test_at_many_steps(request: pytest.FixtureRequest, root: Path, store: str) -> None:
    """A handler that raises at any call or return of an append leaves nothing taken (C33, C45)."""
    if store == "files":
        url = str(root)
    else:
        url = store if "://" in store else request.getfixturevalue(store)
    with Memory(url, lock_timeout=2.0) as memory, Memory(memory.store, lock_timeout=2.0) as same:
        elsewhere = same if "memory" in store else Memory(url, lock_timeout=2.0)
        with elsewhere:
            thread, other = memory.open("t").append("first"), elsewhere.open("t")
            with signal_at(0) as counted:
                thread.append("second")
            steps = counted()
            with handled(signal.SIGUSR1, raise_timeout):
                for step in range(1, steps + 1, max(1, steps // 100)):
                    with suppress(Timeout), signal_at(step):
                        thread.append(f"at {step}")
                    shown = [m.content for m in thread.messages()]
                    other.append("elsewhere")
                    assert [m.content for m in other.messages()] == [*shown, "elsewhere"]
                    thread.append("next")
            assert [m.content for m in other.refresh().messages()][-2:] == ["elsewhere", "next"]


def test_in_asyncio(root: Path) -> None:
    """What a handler raises in a loop comes out after the appends of its tasks (C45)."""
    memory, befores = watched(root)

    async def appends() -> None:
        threads = [await memory.aopen(f"t{number}") for number in range(3)]
        submitted = Gate("sync")
        befores.befores += [submitted, Sends("sync", signal.SIGUSR1)]
        tasks = [asyncio.create_task(thread.aappend("first")) for thread in threads]
        await asyncio.sleep(0)  # each task runs up to where it waits for its outcome
        submitted.opened.set()
        await asyncio.gather(*tasks)
        await asyncio.sleep(60)

    with handled(signal.SIGUSR1, raise_timeout), pytest.raises(Timeout):
        asyncio.run(appends())
    for number in range(3):
        check(root, memory.open(f"t{number}"), ["first"])


def waits(thread: threading.Thread) -> bool:
    """Tell whether an OS thread waits for the outcome of its append."""
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
    return frame is not None and frame.f_code is Ticket.wait.__code__


@pytest.mark.parametrize("id_", ["t", "other"])
def test_those_that_wait(root: Path, id_: str) -> None:
    """An append that waits behind one that a handler interrupts is committed as ever (C35)."""

    def join(call: str, _: tuple[Any, ...]) -> None:
        if call == "sync" and joining.ident is None:
            joining.start()
            while not waits(joining):
                time.sleep(0.001)
            sends(call, ())

    sends = Sends("sync", signal.SIGUSR1)
    thread = opened(root, join)
    other = thread.memory.open(id_)
    joining = threading.Thread(target=other.append, args=("third",), daemon=True)
    with handled(signal.SIGUSR1, raise_timeout), pytest.raises(Timeout):
        thread.append("second")
    joining.join(20)
    assert not joining.is_alive()
    if id_ == "t":
        check(root, thread, ["first", "second", "third"])
    else:
        check(root, thread, ["first", "second"])
        check(root, other, ["third"])


def test_as_a_connection_is_taken(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that raises as an opening takes a connection loses the pool none (C33)."""
    take = ConnectionPool[Any].getconn

    def signalled(self: ConnectionPool[Any], timeout: float | None = None) -> Any:
        connection = take(self, timeout)
        signal.raise_signal(signal.SIGUSR1)
        return connection

    with Memory(f"{postgres_url}?max_connections=2", lock_timeout=5.0) as memory:
        memory.open("t").append("first")
        monkeypatch.setattr(ConnectionPool, "getconn", signalled)
        with handled(signal.SIGUSR1, raise_timeout):
            for number in range(3):
                with pytest.raises(Timeout):
                    memory.open(f"other {number}")
        monkeypatch.undo()
        assert len(memory.open("another")) == 0


# ---- exceptions without a signal ----


@contextmanager
def collecting(errors: list[BaseException]) -> Generator[None]:
    """Collect what a block raises."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        errors.append(error)


def check_reopened(root: Path, thread: MemoryThread, raised: list[BaseException]) -> None:
    """Check that what the error advises works, at once, and that the disk has what is shown."""
    if any(isinstance(error, OutcomeUnknown) for error in raised):
        assert not thread.usable
        thread = thread.memory.open(thread.id)
    assert thread.usable
    shown = [m.content for m in thread.messages()]
    assert shown in (["first"], ["first", "second"])
    check(root, thread, shown)


@pytest.mark.parametrize("call", STEPS)
def test_set_in_an_os_thread(root: Path, call: str) -> None:
    """An exception that another thread sets in one that appends leaves no lock (C33, C45)."""

    def before(name: str, _: tuple[Any, ...]) -> None:
        if name == call and not done:
            done.append(name)
            exception = ctypes.py_object(Timeout)
            ident = ctypes.c_ulong(appending.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, exception)

    def append() -> None:
        with collecting(raised):
            thread.append("second")

    done: list[str] = []
    raised: list[BaseException] = []
    thread = opened(root, before)
    appending = threading.Thread(target=append, daemon=True)
    appending.start()
    appending.join(20)
    assert not appending.is_alive()
    assert done
    assert [type(error) for error in raised] in ([Timeout], [OutcomeUnknown], [NotWritten])
    check_reopened(root, thread, raised)


@pytest.mark.parametrize("call", STEPS)
def test_no_memory_left(root: Path, call: str) -> None:
    """A MemoryError at any step of an append leaves no lock (C33)."""

    def before(name: str, _: tuple[Any, ...]) -> None:
        if name == call and not done:
            done.append(name)
            raise MemoryError

    done: list[str] = []
    raised: list[BaseException] = []
    thread = opened(root, before)
    with collecting(raised):
        thread.append("second")
    assert done
    check_reopened(root, thread, raised)


# ---- batches ----


async def append_to_all(threads: list[MemoryThread], content: str) -> list[Any]:
    """Append to threads at once; return what came of each."""
    appends = (thread.aappend(content) for thread in threads)
    return await asyncio.gather(*appends, return_exceptions=True)


class FailsOnce:
    """Fails at the second call of a kind; at the first of them in a thread of its own choice."""

    def __init__(self, call: str, error: BaseException) -> None:
        """Wait for that call."""
        self.call = call
        self.error = error
        self.calls = 0
        self._mutex = threading.Lock()  # syncs run side by side

    def __call__(self, call: str, _: tuple[Any, ...]) -> None:
        """Fail, where it is time to."""
        if call == self.call:
            with self._mutex:
                self.calls += 1
                second = self.calls == 2
            if second:
                raise self.error


@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize("error", [OSError(errno.EIO, "injected"), MemoryError("injected")])
def test_one_of_a_batch(root: Path, call: str, error: BaseException) -> None:
    """One thread of a batch that fails leaves the others' outcomes known, and no lock (C35)."""
    memory, befores = watched(root)
    fails = FailsOnce(call, error)

    async def main() -> list[Any]:
        threads = [await memory.aopen(f"t{number}") for number in range(4)]
        await append_to_all(threads, "first")
        befores.befores.append(fails)
        return await append_to_all(threads, "second")

    outcomes = asyncio.run(main())
    assert fails.calls >= 2
    failed = [outcome for outcome in outcomes if not isinstance(outcome, MemoryThread)]
    assert len(failed) <= 1, failed
    for number, outcome in enumerate(outcomes):
        thread = memory.open(f"t{number}")
        if isinstance(outcome, MemoryThread):
            check(root, thread, ["first", "second"])
        else:
            assert isinstance(outcome, TurnlogError | MemoryError)
            check_reopened(root, thread, [outcome])


def test_behind_a_rollback_that_failed(root: Path) -> None:
    """What waited behind an append in doubt was not written, and is told so (C37)."""
    gate = Gate("sync")
    befores = Together([gate])
    thread = opened(root, befores)
    outcomes: dict[str, BaseException] = {}

    def append(content: str) -> None:
        try:
            thread.append(content)
        except TurnlogError as error:
            outcomes[content] = error

    first = threading.Thread(target=append, args=("in doubt",), daemon=True)
    first.start()
    assert gate.reached.wait(20)
    waiting = threading.Thread(target=append, args=("behind it",), daemon=True)
    waiting.start()
    while not waits(waiting):
        time.sleep(0.001)
    befores.befores += [Fails("sync", errno.EIO), Fails("truncate", errno.EIO)]
    gate.opened.set()
    first.join(20)
    waiting.join(20)
    assert type(outcomes["in doubt"]) is OutcomeUnknown
    assert type(outcomes["behind it"]) is NotWritten
    befores.befores.clear()
    assert contents(root) in (["first"], ["first", "in doubt"])
    thread.memory.open("t").append("behind it")
    assert contents(root)[-1] == "behind it"
