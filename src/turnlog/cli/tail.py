"""`turnlog tail`: shows the last turns of a thread, and those that come."""

from __future__ import annotations

import os
import select
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, Self

import click

from turnlog.cli.edge import note
from turnlog.cli.memories import open_to_read, peek, shown
from turnlog.cli.output import Output
from turnlog.cli.threadname import thread_argument
from turnlog.errors import LockTimeout, ThreadReplaced

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from turnlog.conversation import Conversation
    from turnlog.memory import Memory
    from turnlog.message import Message
    from turnlog.names import ThreadKey
    from turnlog.thread import MemoryThread

_LONGEST_WAIT_MS: Final = 1000  # Ctrl-C just before a wait does not break it off


@click.command
@thread_argument()
@click.option(
    "-n", "count", type=click.IntRange(min=0), default=10, show_default=True, help="How many turns."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is appended, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Write the turns as a JSON object a line.")
@click.pass_context
def tail(ctx: click.Context, thread: ThreadKey, count: int, *, follow: bool, as_json: bool) -> None:
    """Show the last turns of a THREAD.

    With --follow the thread need not exist yet; a file that is replaced or deleted is followed on.
    """
    out = Output()
    with open_to_read(ctx, may_be_missing=follow) as memory:
        if follow:
            _follow(memory, thread, count, out, as_json=as_json)
        else:
            _write(out, peek(memory, thread, count), as_json=as_json)


def _write(out: Output, turns: Iterable[Message], *, as_json: bool) -> None:
    out.turns(turns, as_json=as_json)
    out.flush()


def _follow(memory: Memory, key: ThreadKey, count: int, out: Output, *, as_json: bool) -> None:
    with _News() as news, ExitStack() as at_end:
        at_end.callback(memory.store.watch(key, news.ring))
        mem = memory.open(key.id, key.namespace)
        seen = mem.messages()
        _write(out, seen.last(count), as_json=as_json)
        while news.wait():
            try:
                now = mem.refresh().messages()
                new = now[len(seen) :]
            except LockTimeout:
                news.ring()  # a writer hangs: nobody tells when it goes on
                continue
            except ThreadReplaced:
                mem = _reopened(memory, key)
                now = mem.messages()
                new = now[_alike(seen, now) :]
            if new:
                _write(out, new, as_json=as_json)
            seen = now


def _reopened(memory: Memory, key: ThreadKey) -> MemoryThread:
    note(f"{shown(key)}: its file was replaced or deleted; following the name")
    return memory.open(key.id, key.namespace)


def _alike(before: Conversation, after: Conversation) -> int:
    """Count the turns that two conversations begin with: an editor leaves most as they were."""
    count = 0
    for old, new in zip(before, after, strict=False):
        if old != new:
            break
        count += 1
    return count


class _News:
    """What `tail` waits for: a change of the thread, or that nobody reads its output any more.

    A context manager.
    """

    def __init__(self) -> None:
        reading, writing = os.pipe()
        for fd in (reading, writing):
            os.set_blocking(fd, False)
        self._told = open(reading, "rb", buffering=0)  # noqa: SIM115 - closed at the end
        self._tell = open(writing, "wb", buffering=0)  # noqa: SIM115
        self._poll = select.poll()
        self._poll.register(self._told, select.POLLIN)
        self._out = -1
        if not sys.stdout.isatty():  # not every system can poll a terminal
            self._out = sys.stdout.fileno()
            self._poll.register(self._out, 0)  # of errors it is told all the same

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._told.close()
        self._tell.close()

    def ring(self) -> None:
        """End the wait; in any OS thread."""
        with suppress(ValueError):  # it was closed: nobody waits any more
            self._tell.write(b"\0")  # where nothing fits in, it has been told already

    def wait(self) -> bool:
        """Wait for a change; False where the reader has gone."""
        while not (events := self._poll.poll(_LONGEST_WAIT_MS)):
            pass
        self._told.read(select.PIPE_BUF)
        return self._out not in dict(events)
