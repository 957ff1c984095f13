"""`turnlog completion`: prints the script that makes a shell complete commands and threads."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a SHELL.

    \b
    bash:  eval "$(turnlog completion bash)"                 in ~/.bashrc
    zsh:   eval "$(turnlog completion zsh)"                  in ~/.zshrc
    fish:  turnlog completion fish > ~/.config/fish/completions/turnlog.fish
    """  # noqa: D301 - click's mark for lines that stay as they are
    kind = get_completion_class(shell)
    if kind is not None:
        root = ctx.find_root()
        script = kind(root.command, {}, "turnlog", "_TURNLOG_COMPLETE")
        click.echo(script.source())
