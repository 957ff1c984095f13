"""Every command, in a pipe and at a terminal, on a thread of 100,000 turns and on a damaged one."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from processes import at_terminal, piped, terminal
from stored import MANY, many_turns

from turnlog import Memory
from turnlog.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BAR = re.compile(r"(?:Searching|Examining|Exporting|Importing|Copying) [^\n]*[\r\n]")
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
DAMAGE = "Warning: thread 'hurt' in namespace 'default': some of its lines cannot be read"
LAST = "This is turn 99999."


def seen(shown: str) -> str:
    """Give what a person has read: without colours, and without the bars that went by."""
    return BAR.sub("", CODES.sub("", shown)).replace("\r", "")


def in_a_pipe(root: Path, *args: object, status: int = 0, stdin: bytes = b"") -> tuple[str, str]:
    """Run a command in pipes: no colours there; give what it wrote and what it said."""
    done = piped(root, *args, stdin=stdin)
    assert (done.status, "\x1b" in done.out + done.err, "Traceback" in done.err) == (
        status,
        False,
        False,
    ), done.err
    return done.out, done.err


def to_a_person(root: Path, *args: object, status: int = 0, typed: str = "") -> str:
    """Run a command at a terminal; give what was seen."""
    ended, shown = at_terminal(root, *args, typed=typed)
    assert (ended, "Traceback" in shown) == (status, False), shown[-2000:]
    return seen(shown)


def with_a_person(root: Path, *args: object) -> str:
    """Run a chat that a person leaves at its first prompt; give what was seen."""
    with terminal(root, *args) as person:
        person.wait_for("> ")
        person.type("\x04")
        ended, shown = person.end()
    assert (ended, "Traceback" in shown) == (0, False), shown[-2000:]
    return seen(shown)


# ---- 100,000 turns ----


def big_ls(root: Path, file: Path) -> None:
    """Ls gives its size."""
    size = file.stat().st_size
    assert in_a_pipe(root, "ls")[0].startswith(f"default/big\t{size}\t")
    assert re.search(r" 8\.5 MB  .* UTC  default/big\n", to_a_person(root, "ls"))


def big_show(root: Path, file: Path) -> None:
    """Show gives them all, in order."""
    out, err = in_a_pipe(root, "show", "big", "--json")
    assert (out, err) == (file.read_text(), "")
    for text in (in_a_pipe(root, "show", "big")[0], to_a_person(root, "show", "big")):
        assert re.findall(r"^This is turn (\d+)\.$", text, re.MULTILINE) == [*map(str, range(MANY))]
    assert to_a_person(root, "show", "big", "--last", 1).split("\n")[1] == LAST


def big_tail(root: Path, _: Path) -> None:
    """Tail gives the last ten."""
    out, _err = in_a_pipe(root, "tail", "big", "--json")
    assert [json.loads(line)["content"] for line in out.splitlines()] == [
        f"This is turn {n}." for n in range(MANY - 10, MANY)
    ]
    assert to_a_person(root, "tail", "big").split("\n")[-3] == LAST


def big_search(root: Path, _: Path) -> None:
    """Search finds the one that it is."""
    found = f"default/big:99999: assistant: {LAST}\n"
    assert in_a_pipe(root, "search", "turn 99999.") == (found, "")
    assert to_a_person(root, "search", "turn 99999.") == found


def big_append(root: Path, file: Path) -> None:
    """Append says where it stands, to a person."""
    assert in_a_pipe(root, "append", "big", "One more.") == ("", "")
    assert to_a_person(root, "append", "big", "And one.") == "appended a turn to default/big\n"
    assert file.read_bytes().count(b"\n") == MANY + 2


def big_chat(root: Path, file: Path) -> None:
    """Chat sends them all, and shows a person the last twenty."""
    chat = ("chat", "big", "--model", "offline")
    shown = with_a_person(root, *chat)
    assert shown.startswith("99,980 earlier turns: turnlog show default/big\n")
    assert re.findall(r"^This is turn (\d+)\.$", shown, re.MULTILINE) == [
        *map(str, range(MANY - 20, MANY))
    ]
    out, err = in_a_pipe(root, *chat, stdin=b"Hi\n")
    assert ("You wrote 50000 times before" in out, err) == (True, "")
    assert file.read_bytes().count(b"\n") == MANY + 2


def big_export(root: Path, file: Path) -> None:
    """Export gives the file itself; to a file it says so, to a person."""
    target = root / "big.jsonl"
    assert in_a_pipe(root, "export", "big") == (file.read_text(), "")
    said = to_a_person(root, "export", "big", "-o", target)
    assert said == f"exported 100,000 turns of default/big to {target}\n"
    assert target.read_bytes() == file.read_bytes()
    markdown = to_a_person(root, "export", "big", "--format", "markdown")
    assert markdown.count("\n## assistant, ") == MANY / 2


def big_import(root: Path, file: Path) -> None:
    """Import takes them all, from a file and from a pipe."""
    assert in_a_pipe(root, "import", "copy", stdin=file.read_bytes()) == ("", "")
    said = to_a_person(root, "import", "copy2", file)
    assert said == "imported 100,000 turns into default/copy2\n"
    with Memory(root, read_only=True) as memory:
        turns = memory.open("big").messages()
        assert memory.open("copy").messages() == turns
        assert memory.open("copy2").messages() == turns


def big_copy(root: Path, file: Path) -> None:
    """Copy gives the file itself, and says so to a person."""
    there = root.with_name("there")
    assert in_a_pipe(root, "copy", root, there) == ("", "")
    assert (there / "default" / "big.jsonl").read_bytes() == file.read_bytes()
    said = to_a_person(root, "copy", root, root.with_name("there too"))
    assert said == "copied 100,000 turns into 1 thread\n"
    said = to_a_person(root, "copy", root, there)
    assert said == "1 thread the same already\n"


def big_doctor(root: Path, _: Path) -> None:
    """Doctor finds nothing, and says so to a person."""
    assert in_a_pipe(root, "doctor") == ("", "")
    assert to_a_person(root, "doctor") == "1 thread examined, all sound\n"


def big_rm(root: Path, file: Path) -> None:
    """Rm asks a person, and takes no for an answer."""
    assert "give --yes" in in_a_pipe(root, "rm", "big", status=1)[1]
    said = to_a_person(root, "rm", "big", typed="n\n")
    assert "Delete default/big with its 100,000 turns? [y/N]: " in said
    assert file.exists()
    assert to_a_person(root, "rm", "big", typed="y\n").endswith("deleted default/big\n")
    assert not file.exists()
    file.write_bytes(many_turns())
    assert in_a_pipe(root, "rm", "big", "--yes") == ("", "")
    assert not file.exists()


def completion(root: Path, _: Path) -> None:
    """Completion prints its script."""
    assert to_a_person(root, "completion", "bash") == in_a_pipe(root, "completion", "bash")[0]


# ---- a damaged thread ----


def hurt_ls(root: Path, _: Path) -> None:
    """Ls looks at no turn."""
    assert in_a_pipe(root, "ls")[0].startswith("default/hurt\t")
    assert "default/hurt" in to_a_person(root, "ls")


def hurt_show(root: Path, _: Path) -> None:
    """Show gives the turns that can be read, and warns once."""
    out, err = in_a_pipe(root, "show", "hurt")
    assert out == "user\nThe first.\n\nassistant\nThe second.\n\n"
    assert err.count("Warning") == 1
    assert err.startswith(DAMAGE)
    assert to_a_person(root, "show", "hurt") == err + out


def hurt_tail(root: Path, _: Path) -> None:
    """Tail gives the last that can be read."""
    assert in_a_pipe(root, "tail", "hurt", "-n", 1)[0] == "assistant\nThe second.\n\n"
    assert "assistant\nThe second.\n\n" in to_a_person(root, "tail", "hurt")


def hurt_search(root: Path, _: Path) -> None:
    """Search finds what can be read, and warns once."""
    out, err = in_a_pipe(root, "search", "the")
    assert out == "default/hurt:0: user: The first.\ndefault/hurt:1: assistant: The second.\n"
    assert (err.count("\n"), err.startswith(DAMAGE)) == (1, True)
    assert to_a_person(root, "search", "the") == err + out


def hurt_append(root: Path, file: Path) -> None:
    """Append sets the torn end aside, and says so."""
    out, err = in_a_pipe(root, "append", "hurt", "The third.")
    assert (out, err.count("Warning"), "hurt.jsonl.torn" in err) == ("", 2, True)
    with file.open("ab") as stream:
        stream.write(b'{"role":"user","con')
    said = to_a_person(root, "append", "hurt", "The fourth.")
    assert "19 bytes of an append that never finished" in said
    assert said.endswith("appended a turn to default/hurt\n")


def hurt_chat(root: Path, file: Path) -> None:
    """Chat goes on from the turns that can be read, and sets the torn end aside when it opens."""
    chat = ("chat", "hurt", "--model", "offline")
    out, err = in_a_pipe(root, *chat, stdin=b"Hi\n")
    assert ('first: "The first."' in out, err.count("Warning")) == (True, 2)
    assert file.with_name("hurt.jsonl.torn").exists()
    shown = with_a_person(root, *chat)
    assert shown.startswith(DAMAGE)
    assert "user\nThe first.\n\nassistant\nThe second.\n\nuser  " in shown


def hurt_export(root: Path, _: Path) -> None:
    """Export gives the turns that can be read, and warns."""
    out, err = in_a_pipe(root, "export", "hurt", "--format", "markdown")
    assert out == "## user\n\nThe first.\n\n## assistant\n\nThe second.\n"
    assert err.startswith(DAMAGE)
    assert to_a_person(root, "export", "hurt", "--format", "markdown") == err + out


def hurt_import(root: Path, file: Path) -> None:
    """Import refuses a damaged file, and names its lines."""
    refused = "nothing was imported\nline 2: it is NUL bytes\nline 4: it is no whole turn\n"
    _, err = in_a_pipe(root, "import", "copy", stdin=file.read_bytes(), status=1)
    assert err == f"Error: standard input: {refused}"
    assert to_a_person(root, "import", "copy", file, status=1) == f"Error: {file}: {refused}"
    assert in_a_pipe(root, "show", "copy", status=1)[0] == ""


def hurt_copy(root: Path, file: Path) -> None:
    """Copy leaves out what is no turn, and says so."""
    there = root.with_name("there")
    out, err = in_a_pipe(root, "copy", root, there)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("Warning: default/hurt: 1 line cannot be read in full;")
    assert to_a_person(root, "copy", root, root.with_name("there too")).startswith(err)
    copied = (there / "default" / "hurt.jsonl").read_bytes()
    assert copied == b"".join(file.read_bytes().splitlines(keepends=True)[:3:2])


def hurt_doctor(root: Path, file: Path) -> None:
    """Doctor tells what is wrong, and mends it."""
    found = (
        "default/hurt: line 2, byte 39, 4 bytes: it is NUL bytes\n"
        "default/hurt: it ends in 35 bytes of an append that never finished\n"
    )
    before = file.read_bytes()
    assert in_a_pipe(root, "doctor", status=1) == (found, "")
    assert to_a_person(root, "doctor", status=1) == f"{found}1 thread examined, 1 not sound\n"
    assert file.read_bytes() == before
    said = to_a_person(root, "doctor", "--repair")
    assert said.startswith(f"{found}default/hurt: repaired; ")
    assert said.endswith(" set aside in default/hurt.jsonl.torn\n1 thread examined, all sound\n")
    file.write_bytes(before)
    assert in_a_pipe(root, "doctor", "hurt", "--repair")[0].startswith(found)
    assert file.read_bytes() == b"".join(before.splitlines(keepends=True)[:3:2])


def hurt_rm(root: Path, file: Path) -> None:
    """Rm deletes it with what was set aside."""
    in_a_pipe(root, "append", "hurt", "x")
    assert to_a_person(root, "rm", "hurt", typed="y\n").endswith("deleted default/hurt\n")
    assert list(file.parent.iterdir()) == []


BIG = {
    "append": big_append,
    "chat": big_chat,
    "completion": completion,
    "copy": big_copy,
    "doctor": big_doctor,
    "export": big_export,
    "import": big_import,
    "ls": big_ls,
    "rm": big_rm,
    "search": big_search,
    "show": big_show,
    "tail": big_tail,
}
HURT = {
    "append": hurt_append,
    "chat": hurt_chat,
    "completion": completion,
    "copy": hurt_copy,
    "doctor": hurt_doctor,
    "export": hurt_export,
    "import": hurt_import,
    "ls": hurt_ls,
    "rm": hurt_rm,
    "search": hurt_search,
    "show": hurt_show,
    "tail": hurt_tail,
}


@pytest.mark.parametrize("check", BIG.values(), ids=BIG)
def test_with_100_000_turns(root: Path, big: Path, check: Callable[[Path, Path], None]) -> None:
    """Each command does its work on 100,000 turns, in a pipe and at a terminal (C17)."""
    check(root, big)


@pytest.mark.parametrize("check", HURT.values(), ids=HURT)
def test_with_damage(root: Path, hurt: Path, check: Callable[[Path, Path], None]) -> None:
    """Each command does its work on a damaged thread, in a pipe and at a terminal (C19)."""
    check(root, hurt)


def test_every_command_is_among_them() -> None:
    """There is no command that these tests do not try."""
    assert set(BIG) == set(HURT) == set(app.commands)
