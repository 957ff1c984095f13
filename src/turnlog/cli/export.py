"""`turnlog export`: writes the turns of a thread in some format."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from turnlog.cli.edge import note
from turnlog.cli.memories import open_to_read, read, shown
from turnlog.cli.newfile import write_file
from turnlog.cli.progress import Bar
from turnlog.cli.threadname import thread_argument
from turnlog.cli.transfer import chosen_format, format_option
from turnlog.display import counted, visible
from turnlog.wire import whole_characters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnlog.message import Message
    from turnlog.names import ThreadKey


@click.command
@thread_argument()
@click.option(
    "-o", "--output", metavar="FILE", help="Write this file, whole or not at all; not over another."
)
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
@format_option()
@click.pass_context
def export(
    ctx: click.Context,
    thread: ThreadKey,
    output: str | None,
    *,
    force: bool,
    format_name: str | None,
) -> None:
    """Write the turns of a THREAD in some format.

    They go to standard output, or to a file. jsonl is exact. markdown is for people and comes back
    exact too. openai is a JSON array of role and content alone.
    """
    output = None if output == "-" else output
    form = chosen_format(format_name, output)
    halves = _Halves()
    with open_to_read(ctx) as memory:
        turns = read(memory, thread)
        with Bar("Exporting", lambda: len(turns)) as bar:
            messages = turns if _is_seen(output) else bar.track(turns)
            pieces = form.write(messages if form.keeps_halves else halves.count(messages))
            if output is None:
                _write_out(pieces)
            else:
                write_file(output, pieces, force=force)
    if halves.turns:
        note(f"half characters in {counted(halves.turns, 'turn')} were written as U+FFFD")
    if output is not None and sys.stderr.isatty():
        note(f"exported {counted(len(turns), 'turn')} of {shown(thread)} to {output}")


def _is_seen(output: str | None) -> bool:
    """Tell whether the text itself runs over the terminal where a bar would be."""
    return output is None and sys.stdout.isatty()


def _write_out(pieces: Iterable[bytes]) -> None:
    if sys.stdout.isatty():  # what is in a text must not steer the terminal
        sys.stdout.writelines(visible(piece.decode()) for piece in pieces)
    else:
        sys.stdout.buffer.writelines(pieces)
        sys.stdout.buffer.flush()


class _Halves:
    """Counts the turns with half characters that pass by.

    Attributes:
        turns: how many there were.
    """

    def __init__(self) -> None:
        self.turns = 0

    def count(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Give the messages."""
        for message in messages:
            self.turns += whole_characters(message.content) != message.content
            yield message
