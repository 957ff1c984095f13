"""How the commands open memories and read threads."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from turnlog.conversation import Conversation
from turnlog.display import one_line
from turnlog.errors import TurnlogError, UnknownStore
from turnlog.memory import Memory
from turnlog.names import ThreadKey
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.location import is_url
from turnlog.workingset import WorkingSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def shown(key: ThreadKey) -> str:
    """Give a thread's name as the commands take it."""
    return f"{key.namespace}/{key.id}"


def open_to_write(ctx: click.Context, *, may_be_missing: bool = True) -> Memory:
    """Make the memory that the command was asked for. Raises as `open_to_read`."""
    location = _location(ctx)
    memory = Memory(location)
    if isinstance(memory.store, InMemoryStore):
        raise click.UsageError("memory:// ends with the command; give a folder as --root")
    if location is not None and not may_be_missing:
        _check_folder(memory)
    return memory


def open_to_read(ctx: click.Context, *, may_be_missing: bool = False) -> Memory:
    """Make the memory that the command was asked for, as `memory_to_read`."""
    return memory_to_read(_location(ctx), may_be_missing=may_be_missing)


def memory_to_read(location: str | None, *, may_be_missing: bool = False) -> Memory:
    """Make the memory at a location, to read only where its store can do that.

    Raises:
        ClickException: a folder was named that is not there, unless it may be missing.
    """
    try:
        memory = Memory(location, read_only=True)
    except UnknownStore:
        return Memory(location)  # it fails likewise where there is no such store at all
    if location is not None and not may_be_missing:
        _check_folder(memory)
    return memory


def check_location(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse "" as a place, which is what a shell makes of a variable that is not set."""
    if value is None:
        return None
    if not value.strip():
        raise click.BadParameter("it is empty", param=parameter)
    if is_url(value) and not value.startswith("file:"):
        return value
    # The arguments are UTF-8 here, whatever the locale is, and a path is as the system has it.
    return os.fsdecode(value.encode("utf-8", "surrogateescape"))


def _check_folder(memory: Memory) -> None:
    store = memory.store
    if isinstance(store, JsonlStore) and not os.path.isdir(store.root):
        raise click.ClickException(f"{one_line(store.root)}: there is no such folder")


def _location(ctx: click.Context) -> str | None:
    """Give the place that was named; None for the one that a program has without naming any."""
    return ctx.find_root().params["root"] or os.environ.get("TURNLOG_URL") or None


def missing(key: ThreadKey) -> click.ClickException:
    """Make the error for a thread that does not exist."""
    return click.ClickException(f"{key}: there is no such thread; `turnlog ls` lists what there is")


def find(memory: Memory, key: ThreadKey) -> Conversation | None:
    """Read a thread once; None where there is none.

    Not by `Memory.open`: a memory holds on to the threads that it opened last, and a command that
    goes through all of them would hold a hundred.
    """
    working = WorkingSet(key, memory.store.load(key))
    for warning in working.untold:
        warnings.warn(warning, stacklevel=2)
    if working.position.incarnation is None:
        return None
    return Conversation.over(working.turns())


def read(memory: Memory, key: ThreadKey) -> Conversation:
    """Read a thread once.

    Raises:
        ClickException: there is no such thread.
    """
    conversation = find(memory, key)
    if conversation is None:
        raise missing(key)
    return conversation


def peek(memory: Memory, key: ThreadKey, last: int) -> Conversation:
    """Read a thread's last turns, without the rest of it.

    Raises:
        ClickException: there is no such thread.
    """
    turns = memory.peek(key.id, key.namespace, last=last)
    if not turns and memory.store.tail(key, 0).position.incarnation is None:
        raise missing(key)
    return turns


def keys(memory: Memory, namespace: str | None = None) -> Iterator[ThreadKey]:
    """Go through the names of all stored threads, or of a namespace's."""
    for info in memory.threads(namespace):
        yield ThreadKey(info.namespace, info.id)


def how_many(memory: Memory, threads: Sequence[ThreadKey], namespace: str | None = None) -> int:
    """Count the threads that were named; where none was, all stored ones, or a namespace's."""
    count = len(threads)
    if not threads:
        with suppress(TurnlogError):  # the command meets it too, after all that it can do
            for _ in keys(memory, namespace):
                count += 1
    return count
