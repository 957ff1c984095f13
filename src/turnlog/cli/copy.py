"""`turnlog copy`: copies threads from one place to another."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

import click

from turnlog.cli.edge import note, words
from turnlog.cli.memories import check_location, how_many, keys, memory_to_read, shown
from turnlog.cli.progress import Bar
from turnlog.display import counted
from turnlog.errors import TurnlogError
from turnlog.memory import Memory
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore
from turnlog.transfer import copy_thread

if TYPE_CHECKING:
    from turnlog.names import ThreadKey
    from turnlog.transfer import Copied


@click.command
@click.argument("source", metavar="FROM", callback=check_location)
@click.argument("destination", metavar="TO", callback=check_location)
@click.option("--namespace", metavar="NS", help="Copy the threads of this namespace only.")
@click.pass_context
def copy(ctx: click.Context, source: str, destination: str, *, namespace: str | None) -> None:
    """Copy all threads from one place to another.

    FROM and TO are folders, or stores' URLs; --root is not looked at. What is there already is gone
    on with, and a thread of the same name with other turns is left alone. The exit status is 1
    where a thread is not the same at both in the end.
    """
    with memory_to_read(source) as memory, Memory(destination) as target:
        _check_places(memory, target, same=source == destination)
        report = _Report()
        with Bar("Copying", lambda: how_many(memory, (), namespace)) as bar:
            for key in bar.track(keys(memory, namespace)):
                _copy(memory, target, key, report, bar)
    if namespace is not None and not report.threads:
        raise click.ClickException(f"there is no thread in the namespace {namespace!r}")
    report.end()
    if report.failed:
        ctx.exit(1)


def _check_places(source: Memory, destination: Memory, *, same: bool) -> None:
    """Refuse places between which nothing can be copied."""
    a, b = source.store, destination.store
    if isinstance(a, InMemoryStore) or isinstance(b, InMemoryStore):
        raise click.UsageError("memory:// ends with the command; give a folder")
    if isinstance(a, JsonlStore) and isinstance(b, JsonlStore) and os.path.isdir(b.root):
        same = os.path.samefile(a.root, b.root)
    if same:
        raise click.UsageError("FROM and TO are the same place")


def _copy(source: Memory, destination: Memory, key: ThreadKey, report: _Report, bar: Bar) -> None:
    """Copy a thread, and tell what is to be told of it."""
    try:
        copied = copy_thread(source.store, destination.store, key)
    except TurnlogError as error:
        bar.hide()
        report.error(words(error))
        return
    for warning in copied.warnings:
        warnings.warn(warning, stacklevel=2)
    if copied.problems or copied.differs is not None:
        bar.hide()
    report.copied(copied)


class _Report:
    """Tells what became of the threads.

    Attributes:
        threads: how many there were.
        failed: how many of them are not the same at both places.
    """

    def __init__(self) -> None:
        self.threads = 0
        self.failed = 0
        self._copied = 0
        self._turns = 0

    def copied(self, copied: Copied) -> None:
        """Tell of a thread that was copied, as far as could be."""
        name = shown(copied.key)
        if copied.problems:
            note(
                f"Warning: {name}: {counted(len(copied.problems), 'line')} cannot be read in full; "
                f"what is no turn is not copied; turnlog doctor shows it"
            )
        if copied.differs is not None:
            self.error(f"{name}: {_difference(copied)}; it was left as it is")
            return
        self.threads += 1
        self._copied += copied.appended > 0
        self._turns += copied.appended

    def error(self, text: str) -> None:
        """Tell of a thread that is not the same at both places."""
        self.threads += 1
        self.failed += 1
        note(f"Error: {text}")

    def end(self) -> None:
        """Sum up, for a person."""
        if not sys.stderr.isatty():
            return
        same = self.threads - self.failed - self._copied
        parts = (
            (
                self._copied,
                f"copied {counted(self._turns, 'turn')} into {counted(self._copied, 'thread')}",
            ),
            (same, f"{counted(same, 'thread')} the same already"),
            (self.failed, f"{counted(self.failed, 'thread')} not copied"),
        )
        note("; ".join(text for number, text in parts if number) or "there are no threads")


def _difference(copied: Copied) -> str:
    if copied.differs == copied.turns:
        return f"the destination's has more than the {counted(copied.turns, 'turn')} of the source"
    return f"the destination's is another thread, from turn {copied.differs} on"
