"""What `export` and `import` share: the option for the format, and how it is guessed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from turnlog.cli.formats import FORMATS, Format
from turnlog.display import one_line

if TYPE_CHECKING:
    from collections.abc import Callable


def format_option() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the option --format."""
    return click.option(
        "--format",
        "format_name",
        type=click.Choice(list(FORMATS)),
        help="The format.  [default: by FILE's ending, .jsonl, .md or .json; jsonl without FILE]",
    )


def chosen_format(name: str | None, file: str | None) -> Format:
    """Give the format that was asked for, or else the one that the file's ending means."""
    if name is None and file is None:
        name = "jsonl"
    if name is not None:
        return FORMATS[name]
    ending = os.path.splitext(file or "")[1].lower()
    for each in FORMATS.values():
        if each.suffix == ending:
            return each
    endings = ", ".join(each.suffix for each in FORMATS.values())
    raise click.UsageError(
        f"{one_line(file or '')}: its ending is none of {endings}; give --format"
    )
