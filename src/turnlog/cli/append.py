"""`turnlog append`: appends a turn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, get_args

import click

from turnlog.cli.edge import note
from turnlog.cli.memories import open_to_write, shown
from turnlog.cli.threadname import thread_argument
from turnlog.errors import Conflict
from turnlog.memory import open_at_end
from turnlog.message import Role

if TYPE_CHECKING:
    from turnlog.memory import Memory
    from turnlog.names import ThreadKey


def _text(value: str) -> str:
    """Refuse an argument that is not UTF-8: Python has its bytes as half characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("it is not UTF-8") from None
    return value


def _pair(value: str) -> tuple[str, str]:
    key, equals, text = _text(value).partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{value!r} is not of the form KEY=VALUE")
    return key, text


@click.command
@thread_argument()
@click.argument("text", type=_text, required=False)
@click.option(
    "--role",
    type=click.Choice(get_args(Role)),
    default="user",
    show_default=True,
    help="Whose turn it is.",
)
@click.option(
    "--meta", type=_pair, metavar="KEY=VALUE", multiple=True, help="Keep this beside the text."
)
@click.option(
    "--key",
    type=_text,
    metavar="KEY",
    help="An idempotency key: append only if no turn of the thread has it.",
)
@click.option(
    "--expect",
    type=click.IntRange(min=0),
    metavar="N",
    help="Append only if the thread holds N turns.",
)
@click.pass_context
def append(  # noqa: PLR0913 - an argument for each option
    ctx: click.Context,
    thread: ThreadKey,
    text: str | None,
    *,
    role: Role,
    meta: tuple[tuple[str, str], ...],
    key: str | None,
    expect: int | None,
) -> None:
    """Append a turn to a THREAD.

    It is on the disk when the command ends. Without TEXT, standard input is the text, less one
    newline at its end. However long the thread is, only its end is read, unless --key or --expect
    is given.
    """
    content = _read_input() if text is None else text
    with open_to_write(ctx) as memory:
        if key is None and expect is None:
            open_at_end(memory, thread).append(content, role=role, meta=dict(meta))
            done = "appended a turn to"
        else:
            done = _append_on_condition(memory, thread, content, role, dict(meta), key, expect)
    if sys.stderr.isatty():
        note(f"{done} {shown(thread)}")


def _append_on_condition(  # noqa: PLR0913, PLR0917
    memory: Memory,
    thread: ThreadKey,
    content: str,
    role: Role,
    meta: dict[str, str],
    key: str | None,
    expect: int | None,
) -> str:
    """Append unless all the turns that there are say otherwise; return what was done."""
    mem = memory.open(thread.id, thread.namespace)
    known = None if key is None else mem.index_of(key)
    try:
        mem.append(content, role=role, meta=meta, key=key, expect=expect)
    except Conflict as conflict:
        raise click.ClickException(
            f"{conflict.subject}: {conflict.what}; look at what came: turnlog show {shown(thread)}"
        ) from None
    if known is None:
        return f"appended turn {len(mem) - 1} of"
    return f"nothing appended: the key is that of turn {known} of"


def _read_input() -> str:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - the shell closed it
        raise click.UsageError("there is no standard input; give TEXT")
    if sys.stdin.isatty():
        note("type the turn, end with Ctrl-D")
    data = sys.stdin.buffer.read()
    if not data:
        raise click.UsageError("standard input is empty, and nothing was appended; give TEXT")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise click.ClickException(
            f"standard input is not UTF-8 (byte {error.start}), and nothing was appended"
        ) from None
