"""The page of the command line has every command and every option that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click
import pytest

from turnlog.cli.app import app

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
OPTION: Final = re.compile(r"^\| (`-[^|]*) \|", re.MULTILINE)
NAME: Final = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def section(name: str) -> str:
    """Give the part of the page about a command."""
    return PAGE.split(f"\n## `turnlog {name}`\n")[1].split("\n## ")[0]


def documented(text: str) -> set[str]:
    """Give the options that have an entry in a part of the page."""
    return {name for entry in OPTION.findall(text) for name in NAME.findall(entry)}


def options(command: click.Command) -> set[str]:
    """Give the options of a command."""
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    }


def test_every_command_is_documented() -> None:
    """Each command, and no other, has a part of the page."""
    assert sorted(re.findall(r"^## `turnlog (.+)`$", PAGE, re.MULTILINE)) == sorted(app.commands)


@pytest.mark.parametrize("name", app.commands)
def test_every_option_is_documented(name: str) -> None:
    """Each option of a command, and no other, has an entry in its part of the page."""
    assert documented(section(name)) == options(app.commands[name])


@pytest.mark.parametrize("name", app.commands)
def test_every_command_is_shown_as_it_is_called(name: str) -> None:
    """The part of each command begins with its arguments, as its help has them."""
    context = click.Context(app.commands[name])
    arguments = [
        parameter.make_metavar(context)
        for parameter in app.commands[name].params
        if isinstance(parameter, click.Argument)
    ]
    called = " ".join(["turnlog", name, *arguments]).replace("{bash|zsh|fish}", "SHELL")
    assert f"`{called}`" in section(name)


def test_every_option_of_the_command_itself_is_documented() -> None:
    """The options that stand before a command are on the page, `--help` among them."""
    general = PAGE.split("\n## What holds for every command\n")[1].split("\n## ")[0]
    assert documented(general) == options(app) | {"--help"}
