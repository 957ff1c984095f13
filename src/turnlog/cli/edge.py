"""The edge of the command: what goes wrong inside becomes a plain line and an exit status.

- 0: done
- 1: it failed, or nothing was found
- 2: it was called wrongly (click's own)
- 130: Ctrl-C
- 141: whoever read the output has gone; what the system's SIGPIPE would give
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from turnlog.display import one_line
from turnlog.errors import DamageWarning, TurnlogError, TurnlogWarning

if TYPE_CHECKING:
    from collections.abc import Generator

INTERRUPTED: Final = 130
READER_GONE: Final = 141


class Edge(click.Group):
    """A group of commands whose errors and warnings are for people, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - the base's signature
        """Run the command that was asked for."""
        try:
            with _warnings_as_lines():
                try:
                    return super().invoke(ctx)
                finally:
                    sys.stdout.flush()
        except BrokenPipeError:
            let_go_of_output()
            raise click.exceptions.Exit(READER_GONE) from None
        except (TurnlogError, OSError) as error:
            let_go_of_output()
            raise click.ClickException(words(error)) from None
        except (KeyboardInterrupt, click.Abort) as end:
            ended = isinstance(end.__context__, EOFError)  # Ctrl-D at a question is no Ctrl-C
            raise click.exceptions.Exit(1 if ended else INTERRUPTED) from None


def words(error: TurnlogError | OSError | click.ClickException) -> str:
    """Say in one line what an error says."""
    if not isinstance(error, OSError) or isinstance(error, TurnlogError) or not error.strerror:
        return one_line(str(error))
    if error.filename is None:
        return error.strerror
    return f"{one_line(os.fsdecode(error.filename))}: {error.strerror}"


def note(text: str) -> None:
    """Say something beside the output."""
    click.echo(one_line(text), err=True)


@contextmanager
def _warnings_as_lines() -> Generator[None]:
    """Show each of turnlog's warnings as one line on standard error, once."""
    told: set[str] = set()

    def tell(message: Warning | str, *_: object, **__: object) -> None:
        text = one_line(str(message))
        if isinstance(message, DamageWarning):
            text = f"{text}; turnlog doctor shows them"
        if text not in told:
            told.add(text)
            click.echo(f"Warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TurnlogWarning)
        warnings.showwarning = tell
        yield


def let_go_of_output() -> None:
    """Have what cannot be written any more go nowhere, so that Python's own end is quiet."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
