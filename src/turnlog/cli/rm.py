"""`turnlog rm`: deletes whole threads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from turnlog.cli.edge import note, words
from turnlog.cli.memories import missing, open_to_read, open_to_write, read, shown
from turnlog.cli.threadname import threads_argument
from turnlog.display import counted
from turnlog.errors import TurnlogError

if TYPE_CHECKING:
    from turnlog.names import ThreadKey


@click.command
@threads_argument(required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def rm(ctx: click.Context, threads: tuple[ThreadKey, ...], *, yes: bool) -> None:
    """Delete each THREAD for good.

    Its turns are gone, and what was set aside from its file is too.
    """
    if not yes and not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.ClickException(
            "there is no terminal to ask on, and nothing was deleted; give --yes to delete"
        )
    failed = False
    for key in threads:
        try:
            if yes or _agreed(ctx, key):
                _delete(ctx, key)
        except (click.ClickException, TurnlogError) as error:
            note(f"Error: {words(error)}")
            failed = True
    if failed:
        ctx.exit(1)


def _agreed(ctx: click.Context, key: ThreadKey) -> bool:
    with open_to_read(ctx) as memory:
        turns = counted(len(read(memory, key)), "turn")
    return click.confirm(f"Delete {shown(key)} with its {turns}?", err=True)


def _delete(ctx: click.Context, key: ThreadKey) -> None:
    with open_to_write(ctx, may_be_missing=False) as memory:
        if not memory.delete(key.id, key.namespace):
            raise missing(key)
    if sys.stderr.isatty():
        note(f"deleted {shown(key)}")
