"""The command over the stores on servers: as over files."""

from __future__ import annotations

import re
import signal
import subprocess
from typing import TYPE_CHECKING, Final

import pytest
from processes import COMMAND, environment, piped

if TYPE_CHECKING:
    from collections.abc import Callable

TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@pytest.fixture
def command(server_url: str) -> Callable[..., str]:
    """Give the command over the server; it gives what was written, its times alike."""

    def call(*words: str, stdin: str = "", status: int = 0) -> str:
        done = piped(server_url, *words, stdin=stdin.encode())
        assert done.status == status, done.err
        return TIME.sub("TIME", done.out)

    return call


def test_each_command(command: Callable[..., str]) -> None:
    """Every command that needs no files does on a server what it does on files."""
    assert command("ls") == ""
    command("append", "support/user-42", "My invoice is wrong.")
    command("append", "support/user-42", "--role", "assistant", "Which one?")
    command("import", "other", stdin='{"role":"user","content":"Hello."}\n')
    assert [line.split("\t")[0] for line in command("ls").splitlines()] == [
        "default/other",
        "support/user-42",
    ]
    assert command("show", "support/user-42") == (
        "user  TIME\nMy invoice is wrong.\n\nassistant  TIME\nWhich one?\n\n"
    )
    assert command("tail", "-n", "1", "support/user-42") == "assistant  TIME\nWhich one?\n\n"
    assert command("search", "INVOICE") == "support/user-42:0: user: My invoice is wrong.\n"
    assert command("export", "other") == '{"role":"user","content":"Hello.","at":"TIME"}\n'
    command("rm", "--yes", "other")
    assert command("search", "Hello", status=1) == ""
    command("doctor")


def test_a_chat_goes_on(command: Callable[..., str]) -> None:
    """A chat over a server is kept there, and goes on in the next process."""
    command("chat", "--model", "offline", "support/chat", stdin="My name is Ada.\n")
    command("chat", "--model", "offline", "support/chat", stdin="Hello again.\n")
    said = command("show", "support/chat")
    assert said.count("user  TIME") == said.count("assistant  TIME") == 2


def test_what_comes_is_followed(server_url: str, command: Callable[..., str]) -> None:
    """`tail --follow` shows what another process appends, soon, and ends with Ctrl-C."""
    command("append", "t", "before")
    following = subprocess.Popen(
        [*COMMAND, "tail", "-f", "t"],
        env=environment(server_url),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    with following:
        shown = [following.stdout.readline() for _ in range(3)]
        command("append", "t", "after")
        shown += [following.stdout.readline() for _ in range(3)]
        following.send_signal(signal.SIGINT)
    assert [shown[1], shown[4]] == ["before\n", "after\n"]
