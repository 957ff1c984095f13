"""`turnlog search`: finds turns by their text, in some threads or in all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, get_args

import click

from turnlog.cli.edge import note, words
from turnlog.cli.memories import find, how_many, keys, missing, open_to_read, shown
from turnlog.cli.output import Output
from turnlog.cli.progress import Bar
from turnlog.cli.threadname import threads_argument
from turnlog.codec import rfc3339
from turnlog.errors import TurnlogError
from turnlog.message import Message, Role

if TYPE_CHECKING:
    from turnlog.memory import Memory
    from turnlog.names import ThreadKey

_Span: TypeAlias = tuple[int, int]
_Finder: TypeAlias = Callable[[str], Iterable[_Span]]


class _Hit(NamedTuple):
    """A line of a turn that holds matches, and where they are in it."""

    key: ThreadKey
    place: int
    message: Message
    line: str
    spans: list[_Span]


@click.command
@click.argument("pattern")
@threads_argument(required=False)
@click.option("--regex", is_flag=True, help="PATTERN is a regular expression, as Python has them.")
@click.option("--case-sensitive", is_flag=True, help="Tell upper and lower case apart.")
@click.option("--namespace", metavar="NS", help="Search the threads of this namespace only.")
@click.option("--role", type=click.Choice(get_args(Role)), help="Search the turns of one role.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object for each line found.")
@click.pass_context
def search(  # noqa: PLR0913 - an argument for each option
    ctx: click.Context,
    pattern: str,
    threads: tuple[ThreadKey, ...],
    *,
    regex: bool,
    case_sensitive: bool,
    namespace: str | None,
    role: Role | None,
    as_json: bool,
) -> None:
    """Search the turns for PATTERN.

    In each THREAD, or in all, for a text, whatever its case. Writes NAMESPACE/ID:INDEX: role: and
    the line. The exit status is 1 where nothing is found.
    """
    if threads and namespace is not None:
        raise click.UsageError("give threads or --namespace, not both")
    finder = _finder(pattern, regex=regex, case_sensitive=case_sensitive)
    out = Output()
    found = failed = False
    with (
        open_to_read(ctx) as memory,
        Bar("Searching", lambda: how_many(memory, threads, namespace)) as bar,
    ):
        for key in bar.track(threads or keys(memory, namespace)):
            try:
                for hit in _hits(_turns(memory, key, named=bool(threads)), key, finder, role):
                    if out.person:
                        bar.hide()
                    _write(out, hit, as_json=as_json)
                    found = True
            except (TurnlogError, click.ClickException) as error:
                bar.hide()
                note(f"Error: {words(error)}")
                failed = True
    if failed or not found:
        ctx.exit(1)


def _turns(memory: Memory, key: ThreadKey, *, named: bool) -> Iterable[Message]:
    """Read a thread; one that was not named may have been deleted since it was listed."""
    turns = find(memory, key)
    if turns is None and named:
        raise missing(key)
    return turns or ()


def _hits(
    turns: Iterable[Message], key: ThreadKey, finder: _Finder, role: Role | None
) -> Iterator[_Hit]:
    for index, message in enumerate(turns):
        if role is None or message.role == role:
            for line, spans in _lines(message.content, finder):
                yield _Hit(key, index, message, line, spans)


def _lines(text: str, finder: _Finder) -> Iterator[tuple[str, list[_Span]]]:
    """Give each line of a text in which a match begins, with what of the matches is in it."""
    begin, end = 0, -1
    spans: list[_Span] = []
    for start, stop in finder(text):
        if start > end:
            if spans:
                yield text[begin:end], spans
            begin, end = text.rfind("\n", 0, start) + 1, text.find("\n", start)
            end = len(text) if end < 0 else end
            spans = []
        spans.append((start - begin, min(stop, end) - begin))
    if spans:
        yield text[begin:end], spans


def _write(out: Output, hit: _Hit, *, as_json: bool) -> None:
    message = hit.message
    if as_json:
        out.json(
            {
                "namespace": hit.key.namespace,
                "id": hit.key.id,
                "index": hit.place,
                "role": message.role,
                "at": None if message.at is None else rfc3339(message.at),
                "line": hit.line,
            }
        )
        return
    where = out.styled(out.clean(shown(hit.key)), "name")
    role = out.styled(message.role, message.role)
    out.line(f"{where}:{hit.place}: {role}: {_highlighted(out, hit)}")


def _highlighted(out: Output, hit: _Hit) -> str:
    if not out.person:
        return out.clean(hit.line)
    parts: list[str] = []
    at = 0
    for start, stop in hit.spans:  # two of them may share a character: "s" is twice in "ß"
        parts.append(out.clean(hit.line[at:start]))
        parts.append(out.styled(out.clean(hit.line[max(at, start) : stop]), "match"))
        at = max(at, stop)
    return "".join((*parts, out.clean(hit.line[at:])))


# ---- what is looked for ----


def _finder(pattern: str, *, regex: bool, case_sensitive: bool) -> _Finder:
    """Give what finds the places of a pattern in a text."""
    if not (regex or case_sensitive) and pattern:
        return _literally(pattern)
    try:
        compiled = re.compile(
            pattern if regex else re.escape(pattern),
            re.MULTILINE | (0 if case_sensitive else re.IGNORECASE),
        )
    except (re.error, OverflowError, RecursionError) as error:
        raise click.BadParameter(
            f"it is no regular expression: {error}", param_hint="PATTERN"
        ) from None
    return lambda text: (match.span() for match in compiled.finditer(text))


def _literally(pattern: str) -> _Finder:
    """Find a text whatever its case, as `Conversation.search` does."""
    folded = pattern.casefold()

    def spans(text: str) -> Iterator[_Span]:
        within = text.casefold()
        at = within.find(folded)
        if at < 0:
            return
        places: list[int] | range = range(len(text))
        if len(within) != len(text):  # one character may become several
            places = [place for place, one in enumerate(text) for _ in one.casefold()]
        while at >= 0:
            stop = at + len(folded)
            yield places[at], places[stop - 1] + 1
            at = within.find(folded, stop)

    return spans
