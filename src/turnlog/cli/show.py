"""`turnlog show`: shows the turns of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from turnlog.cli.memories import open_to_read, peek, read
from turnlog.cli.output import Output
from turnlog.cli.threadname import thread_argument

if TYPE_CHECKING:
    from turnlog.names import ThreadKey


@click.command
@thread_argument()
@click.option("--last", type=click.IntRange(min=0), metavar="N", help="Only the last N turns.")
@click.option("--json", "as_json", is_flag=True, help="Write the turns as a JSON object a line.")
@click.pass_context
def show(ctx: click.Context, thread: ThreadKey, last: int | None, *, as_json: bool) -> None:
    """Show the turns of a THREAD."""
    out = Output()
    with open_to_read(ctx) as memory:
        turns = read(memory, thread) if last is None else peek(memory, thread, last)
        out.turns(turns, as_json=as_json)
