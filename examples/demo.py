"""The main job, shown: a writer is killed in the middle of its appends, and nothing is lost.

    make demo            or: python examples/demo.py

Three processes take part, all of them this file. The first one, started by hand, looks on: it
starts a writer, kills it with SIGKILL, has a second process go on, and then reads the thread's
file with nothing but the `json` module to check that each turn is there, once, in its order.
It leaves nothing behind, and exits with 1 if anything was lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, cast

import turnlog

if TYPE_CHECKING:
    import io

HERE = Path(__file__).resolve().parent
CONVERSATION = HERE / "conversation.jsonl"
ID, NAMESPACE = "ticket-981", "support"
FILE = Path(".sema/memory", NAMESPACE, f"{ID}.jsonl")  # where turnlog puts it, unless told
KILL_AFTER = 9  # acknowledged turns
WIDTH = 92


def read_conversation() -> list[turnlog.Message]:
    """Read the turns that the writers are to append."""
    lines = CONVERSATION.read_text(encoding="utf-8").splitlines()
    return [turnlog.Message(**json.loads(line)) for line in lines]


# ---- the two processes that append ----


def write() -> None:
    """Append the turns one by one, and say after each that it is durable."""
    mem = turnlog.open(ID, namespace=NAMESPACE)
    for number, turn in enumerate(read_conversation(), 1):
        mem.append(turn.content, role=turn.role, key=f"turn-{number}")
        print(number, flush=True)


def go_on(acknowledged: int) -> None:
    """Open the thread that the killed writer left, look, and append what is missing."""
    turns = read_conversation()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mem = turnlog.open(ID, namespace=NAMESPACE)
    for warning in found:
        say(f"{type(warning.message).__name__}: {warning.message}.")
    held = mem.messages()
    say(f"The thread holds {count(len(held))}. The {acknowledged} that were acknowledged:")
    for number, turn in enumerate(turns[:acknowledged], 1):
        if texts(held[number - 1 : number]) != texts([turn]):
            sys.exit(f"  LOST: turn {number} was acknowledged and is not there")
        spoken = textwrap.shorten(turn.content, WIDTH - 15, placeholder=" …")
        show(f"{number:2} {turn.role:9} {spoken}")
    for number, turn in enumerate(turns, 1):
        mem.append(turn.content, role=turn.role, key=f"turn-{number}")
    say(
        f"It appends all {len(turns)}, each with its key. The {len(held)} that were there stay "
        f"single; {len(mem) - len(held)} come new."
    )


# ---- the process that looks on ----


def main() -> None:
    """Run the demonstration in a folder of its own, and take the folder away at the end."""
    os.environ.pop("TURNLOG_URL", None)
    # In the clone, since a temporary folder of the system may be no real disk.
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=HERE.parent) as folder:
        os.chdir(folder)
        try:
            demonstrate()
        finally:
            os.chdir(HERE)


def demonstrate() -> None:
    """Kill a writer, go on with a second process, and check the file."""
    turns = read_conversation()
    title(1, f"A process appends a conversation of {len(turns)} turns, and is killed")
    acknowledged = kill_a_writer()
    say(f"It had acknowledged {count(acknowledged)} when SIGKILL ended it.")
    leave_half_a_line(acknowledged)

    title(2, "A second process opens the thread, and goes on")
    second = subprocess.run([sys.executable, __file__, "go-on", str(acknowledged)], check=False)
    if second.returncode:
        sys.exit("The second process failed.")

    title(3, "The file, as a person sees it")
    say(f"{FILE}:")
    lines = FILE.read_text(encoding="utf-8").splitlines()
    for line in [*lines[:2], f"({len(lines) - 4} lines more)", *lines[-2:]]:
        show(line)
    torn = FILE.with_name(FILE.name + ".torn")
    say(f"{torn}:")
    show(torn.read_text(encoding="utf-8", errors="replace"))

    check(turns, acknowledged)


def kill_a_writer() -> int:
    """Start a writer, kill it while it goes on, and give the number of acknowledged turns."""
    for _ in range(20):
        command = [sys.executable, __file__, "write"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            if writer.stdout is None:  # it was asked for, so it is there
                raise AssertionError
            said = [writer.stdout.readline() for _ in range(KILL_AFTER)]
            writer.kill()  # the writer goes on appending until this reaches it
            said += writer.stdout  # what it said before it died counts too
        if "" in said:
            sys.exit("The writer failed.")
        if writer.returncode < 0:
            return len(said)
        FILE.unlink()  # it was done before the kill reached it: once more
    sys.exit("The writer was done each time before the kill reached it.")


def leave_half_a_line(acknowledged: int) -> None:
    """Say what the killed writer left, and tear the end of its file unless it is torn."""
    *whole, rest = FILE.read_bytes().split(b"\n")
    say(f"Its file holds {count(len(whole), 'whole line')}.")
    if len(whole) > acknowledged:
        say("The last was written, but the writer died before it could say so. It is kept:")
        show(whole[-1].decode())
    if not rest:
        say("A kill seldom tears a line, a power cut may. So we add half a line by hand:")
        rest = b'{"role":"user","content":"Oh, and could you al'
        with FILE.open("ab") as file:
            file.write(rest)
    else:
        say("After them stands half a line:")
    show(rest.decode(errors="replace"))


def check(turns: list[turnlog.Message], acknowledged: int) -> None:
    """Compare the file with the conversation, without turnlog; exit with 1 if they differ."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    found = [(line["role"], line["content"]) for line in map(json.loads, lines)]
    print()
    if found != texts(turns):
        sys.exit("NOT as it should be: the file does not hold each turn once, in order.")
    print(
        f"Nothing was lost: {acknowledged} of {acknowledged} acknowledged turns survived the kill,"
    )
    print(f"and all {len(turns)} turns are in the file, each once, in their order.")


# ---- saying it ----


def texts(turns: turnlog.Conversation | list[turnlog.Message]) -> list[tuple[str, str]]:
    """Give what was said and by whom, without the times."""
    return [(turn.role, turn.content) for turn in turns]


def count(number: int, what: str = "turn") -> str:
    """Give a number of things in words that fit it."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def title(number: int, text: str) -> None:
    """Begin a part."""
    print(f"\n{number}. {text}\n", flush=True)


def say(text: str) -> None:
    """Print an explanation."""
    print(textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  "), flush=True)


def show(text: str) -> None:
    """Print what stands in a file, on one line: a long one without its middle."""
    line = text.replace("\n", " ")
    if len(line) > WIDTH:
        line = f"{line[: WIDTH - 55]} … {line[-52:]}"
    print(f"    {line}", flush=True)


if __name__ == "__main__":
    cast("io.TextIOWrapper", sys.stdout).reconfigure(encoding="utf-8")  # whatever the locale
    match sys.argv[1:]:
        case []:
            main()
        case ["write"]:
            write()
        case ["go-on", acknowledged]:
            go_on(int(acknowledged))
        case _:
            sys.exit(__doc__)
