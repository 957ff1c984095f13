"""`turnlog doctor`: examines the files of threads, and repairs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from turnlog.cli.edge import note, words
from turnlog.cli.memories import how_many, keys, missing, open_to_read, open_to_write, shown
from turnlog.cli.output import Output
from turnlog.cli.progress import Bar
from turnlog.cli.threadname import threads_argument
from turnlog.display import counted, one_line
from turnlog.errors import TurnlogError
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnlog.names import ThreadKey
    from turnlog.stores.jsonl import Examination, Stray


@click.command
@threads_argument(required=False)
@click.option(
    "--repair", is_flag=True, help="Leave only turns in the files; the rest is set aside beside."
)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object for each thread.")
@click.pass_context
def doctor(
    ctx: click.Context, threads: tuple[ThreadKey, ...], *, repair: bool, as_json: bool
) -> None:
    """Find what is wrong with threads' files.

    Examines the file of each THREAD, or of all. The exit status is 1 where something is, and was
    not repaired. Files that belong to no thread are told of, and do not count.
    """
    opener = open_to_write if repair else open_to_read
    with opener(ctx, may_be_missing=False) as memory:
        store = memory.store
        if not isinstance(store, JsonlStore):
            note("nothing to examine: this memory has no files")
            return

        seen = ailing = 0
        with Bar("Examining", lambda: how_many(memory, threads)) as bar:
            report = (_JsonReport if as_json else _Report)(Output(), bar)
            for key in bar.track(threads or keys(memory)):
                seen += 1
                ailing += not _visit(store, key, report, repair=repair, named=bool(threads))
            if not threads:
                for stray in store.strays():
                    report.stray(stray)
            report.end(seen, ailing)
    if ailing:
        ctx.exit(1)


def _visit(
    store: JsonlStore, key: ThreadKey, report: _Report, *, repair: bool, named: bool
) -> bool:
    """Examine a thread, and repair it if asked to; say whether it is well in the end."""
    try:
        found = store.repair(key) if repair else store.examine(key)
        if found is None:
            if named:
                raise missing(key)
            return True  # it was deleted since it was listed
        after = store.examine(key) if repair and not found.sound else None
    except (TurnlogError, click.ClickException) as error:
        report.failed(key, words(error))
        return False
    report.found(found, after)
    return (after or found).sound


class _Report:
    """Tells what was found in lines."""

    def __init__(self, out: Output, bar: Bar) -> None:
        self._out = out
        self._bar = bar

    def found(self, found: Examination, after: Examination | None) -> None:
        """Tell what was found in a thread, and what a repair did."""
        for finding in _findings(found):
            self._line(shown(found.key), finding)
        if after is not None:
            self._line(shown(found.key), _done(found, after))

    def failed(self, key: ThreadKey, reason: str) -> None:  # noqa: ARG002 - the reason names it
        """Tell that a thread could not be examined or repaired."""
        self._bar.hide()
        note(f"Error: {reason}")

    def stray(self, stray: Stray) -> None:
        """Tell of something that belongs to no thread."""
        self._line(stray.path, f"no thread's: {stray.reason}")

    def end(self, seen: int, ailing: int) -> None:
        """Sum up, for a person."""
        if self._out.person:
            state = f"{ailing:,} not sound" if ailing else "all sound"
            self._bar.hide()
            self._out.line(f"{counted(seen, 'thread')} examined, {state}")

    def _make_room(self) -> None:
        if self._out.person:
            self._bar.hide()

    def _line(self, name: str, finding: str) -> None:
        self._make_room()
        self._out.line(f"{self._out.styled(one_line(name), 'name')}: {finding}")


class _JsonReport(_Report):
    """Tells what was found as JSON objects, a line each."""

    def found(self, found: Examination, after: Examination | None) -> None:
        self._write(
            found.key,
            {
                "turns": found.turns,
                "sound": found.sound,
                "repaired": after is not None and after.sound,
                "torn": found.torn,
                "unterminated": found.unterminated,
                "problems": list(map(asdict, found.problems)),
                "set_aside": (after or found).set_aside,
            },
        )

    def failed(self, key: ThreadKey, reason: str) -> None:
        self._write(key, {"error": reason})

    def stray(self, stray: Stray) -> None:
        self._make_room()
        self._out.json({"stray": stray.path, "reason": stray.reason})

    def end(self, seen: int, ailing: int) -> None:
        pass

    def _write(self, key: ThreadKey, fields: dict[str, Any]) -> None:
        self._make_room()
        self._out.json({"namespace": key.namespace, "id": key.id, **fields})


def _done(found: Examination, after: Examination) -> str:
    """Say what a repair did."""
    aside = after.set_aside - found.set_aside
    if after.problems == found.problems and not aside:
        return "not repaired: which value of a key counts, only a person can say"
    moved = f"{counted(aside, 'byte')} set aside in {shown(found.key)}.jsonl.torn"
    return f"repaired; {moved}" if aside else "repaired"


def _findings(found: Examination) -> Iterator[str]:
    for problem in found.problems:
        yield (
            f"line {problem.line}, byte {problem.offset}, {counted(problem.length, 'byte')}: "
            f"{problem.reason}"
        )
    if found.torn:
        yield f"it ends in {counted(found.torn, 'byte')} of an append that never finished"
    if found.unterminated:
        yield "its last line lacks the newline"
