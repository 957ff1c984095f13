"""`turnlog tail`: shows the last turns of a thread, and those that come."""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING, Final

import click

from turnlog.cli.edge import note
from turnlog.cli.memories import open_to_read, peek, shown
from turnlog.cli.output import Output
from turnlog.cli.threadname import thread_argument
from turnlog.errors import LockTimeout, ThreadReplaced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnlog.conversation import Conversation
    from turnlog.memory import Memory
    from turnlog.message import Message
    from turnlog.names import ThreadKey
    from turnlog.thread import MemoryThread

_PERIOD_MS: Final = 200


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
    mem = memory.open(key.id, key.namespace)
    seen = mem.messages()
    _write(out, seen.last(count), as_json=as_json)
    reader = _Reader()
    while not reader.gone_after(_PERIOD_MS):
        try:
            now = mem.refresh().messages()
            news = now[len(seen) :]
        except LockTimeout:
            continue  # a writer hangs: there is nothing new as long as it does
        except ThreadReplaced:
            mem = _reopened(memory, key)
            now = mem.messages()
            news = now[_alike(seen, now) :]
        if news:
            _write(out, news, as_json=as_json)
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


class _Reader:
    """Whoever reads standard output; a pipe may be closed while there is nothing to write."""

    def __init__(self) -> None:
        self._poll = select.poll()
        if not sys.stdout.isatty():  # not every system can poll a terminal
            self._poll.register(sys.stdout.fileno(), 0)  # of errors it is told all the same

    def gone_after(self, milliseconds: int) -> bool:
        """Wait, and say whether there is no reader any more."""
        return bool(self._poll.poll(milliseconds))
