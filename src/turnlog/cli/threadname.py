"""The name of a thread as an argument: NAMESPACE/ID, or ID alone for the namespace "default"."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from turnlog.cli.memories import keys, open_to_read, shown
from turnlog.errors import InvalidName, TurnlogError
from turnlog.names import DEFAULT_NAMESPACE, ThreadKey, thread_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# A shell takes what it completes as it is: `$(...)` would be a command, a blank makes two words.
_PLAIN: Final = re.compile(r"[\w.@%+=,/-]+\Z")
_MOST_COMPLETED: Final = 500  # more than anybody reads, and a shell is quick with it


def thread_argument() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the argument THREAD."""
    return click.argument("thread", type=_thread, shell_complete=_complete)


def threads_argument(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command any number of arguments THREAD."""
    metavar = "THREAD..." if required else "[THREAD]..."
    return click.argument(
        "threads",
        metavar=metavar,
        type=_thread,
        nargs=-1,
        required=required,
        shell_complete=_complete,
    )


def _thread(name: str) -> ThreadKey:
    """Give the thread's key. A name cannot hold a slash, so the first one is the border."""
    namespace, slash, id_ = name.partition("/")
    try:
        return thread_key(id_, namespace) if slash else thread_key(name)
    except InvalidName as error:
        raise click.BadParameter(str(error)) from None


def _complete(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - what click calls it with
    incomplete: str,
) -> list[CompletionItem]:
    """Give the stored threads whose name begins so, if a shell can take it; none on an error."""
    namespace, slash, _ = incomplete.partition("/")
    try:
        with open_to_read(ctx) as memory:
            names = (
                key.id if not slash and key.namespace == DEFAULT_NAMESPACE else shown(key)
                for key in keys(memory, namespace if slash else None)
            )
            begun = (name for name in names if name.startswith(incomplete) and _PLAIN.match(name))
            return [CompletionItem(name) for name in islice(begun, _MOST_COMPLETED)]
    except (TurnlogError, OSError):
        return []
