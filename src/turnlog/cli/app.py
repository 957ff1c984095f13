"""The `turnlog` command itself: its options, its commands, and the process that it runs in."""

from __future__ import annotations

import io
import os
import sys

import click

from turnlog.cli.append import append
from turnlog.cli.chat import chat
from turnlog.cli.completion import completion
from turnlog.cli.copy import copy
from turnlog.cli.doctor import doctor
from turnlog.cli.edge import Edge, let_go_of_output, words
from turnlog.cli.export import export
from turnlog.cli.import_ import import_
from turnlog.cli.ls import ls
from turnlog.cli.memories import check_location
from turnlog.cli.rm import rm
from turnlog.cli.search import search
from turnlog.cli.show import show
from turnlog.cli.tail import tail

NAME = "turnlog"


@click.group(
    NAME,
    cls=Edge,
    commands=[append, chat, completion, copy, doctor, export, import_, ls, rm, search, show, tail],
    context_settings={"max_content_width": 100},
)
@click.option(
    "--root",
    metavar="LOCATION",
    callback=check_location,
    help="Where the threads are: a folder, or a store's URL.  [default: the environment's "
    "TURNLOG_URL, else ./.sema/memory]",
)
@click.version_option(package_name=NAME, prog_name=NAME)
def app(root: str | None) -> None:
    """Look at the threads of a turnlog memory, search, append, move and mend them.

    A THREAD is named NAMESPACE/ID; ID alone is in the namespace "default".
    """


def run() -> None:
    """Run the command on the process's arguments and streams, UTF-8 whatever the locale is."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    arguments = [os.fsencode(each).decode("utf-8", "surrogateescape") for each in sys.argv[1:]]
    try:
        app(arguments, prog_name=NAME)
    except OSError as error:  # of what click itself writes, such as the help
        let_go_of_output()
        sys.exit(f"Error: {words(error)}")
