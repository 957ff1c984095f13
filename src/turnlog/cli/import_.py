"""`turnlog import`: appends the turns of a file to a thread, all or none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from turnlog.cli.edge import note
from turnlog.cli.formats import BadInput
from turnlog.cli.memories import open_to_write, shown
from turnlog.cli.progress import Bar
from turnlog.cli.threadname import thread_argument
from turnlog.cli.transfer import chosen_format, format_option
from turnlog.display import counted, one_line
from turnlog.errors import Conflict

if TYPE_CHECKING:
    from turnlog.cli.formats import Format
    from turnlog.message import Message
    from turnlog.names import ThreadKey


@click.command("import")
@thread_argument()
@click.argument("file", required=False)
@format_option()
@click.option("--append", "add", is_flag=True, help="Add to the turns that the thread has.")
@click.pass_context
def import_(
    ctx: click.Context, thread: ThreadKey, file: str | None, *, format_name: str | None, add: bool
) -> None:
    """Append the turns of FILE to a THREAD.

    All of them, or none; without FILE, those of standard input. A thread that has turns is refused,
    unless --append is given. What has no time gets that of now.
    """
    file = None if file == "-" else file
    form = chosen_format(format_name, file)
    name = one_line(file or "standard input")
    data = _bytes(file)
    if not data:
        raise click.ClickException(f"{name}: it is empty, and nothing was imported")
    messages, left_out = _read(form, data, name)
    with open_to_write(ctx) as memory:
        mem = memory.open(thread.id, thread.namespace)
        try:
            mem.extend(messages, expect=None if add else 0)
        except Conflict as conflict:
            raise click.ClickException(
                f"{conflict.subject}: it has {counted(conflict.actual, 'turn')}, and nothing was "
                f"written; give --append to add to them"
            ) from None
    if left_out:
        note(f"left out what is no text, of {counted(left_out, 'message')}")
    if sys.stderr.isatty():
        note(f"imported {counted(len(messages), 'turn')} into {shown(thread)}")


def _bytes(file: str | None) -> bytes:
    if file is not None:
        with open(file.encode("utf-8", "surrogateescape"), "rb") as stream:
            return stream.read()
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - the shell closed it
        raise click.UsageError("there is no standard input; give FILE")
    if sys.stdin.isatty():
        note("type what is to be imported, end with Ctrl-D")
    return sys.stdin.buffer.read()


def _read(form: Format, data: bytes, name: str) -> tuple[list[Message], int]:
    """Give the messages, and of how many something has no place in a thread."""
    messages: list[Message] = []
    left_out = 0
    try:
        with Bar("Importing", lambda: max(1, data.count(b"\n"))) as bar:
            for message in bar.track(form.read(data)):
                if message is None:
                    left_out += 1
                else:
                    messages.append(message)
    except BadInput as error:
        told = "\n".join(map(one_line, str(error).splitlines()))
        raise click.ClickException(f"{name}: nothing was imported\n{told}") from None
    return messages, left_out
