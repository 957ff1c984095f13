"""The second job, shown: a support agent is stopped in the middle of its reply, and remembers.

    make demo            or: python examples/agent_demo.py

A provider is started on this machine, which speaks Anthropic's wire format and says what is
written here: no language model takes part. Two processes ask it through the provider's own SDK.
The first is stopped with Ctrl-C's signal in the middle of the streamed reply; the second is asked
"Any update?", and the provider shows what it was sent. It leaves nothing behind, and exits with 1
if anything was lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from demo import FILE, HERE, ID, NAMESPACE, WIDTH, say, show, title

import turnlog

sys.path.insert(0, str(HERE.parent / "tests" / "llm"))

from localserver import Gate, Reply, environment, serving, turns

if TYPE_CHECKING:
    from localserver import Provider

SEEN = "I see two charges for March. The second one "
MODEL = "claude-haiku-4-5-20251001"


# ---- the two processes that ask ----


def ask(content: str) -> None:
    """Ask the support agent, and print its reply as it comes."""
    bot = turnlog.Agent(name="support-bot", system="You are a support agent.", model=MODEL)
    mem = turnlog.open(ID, namespace=NAMESPACE)
    try:
        for text in bot.stream(content, memory=mem):
            print(text, end="", flush=True)
    except KeyboardInterrupt:
        sys.exit("stopped")


# ---- the process that looks on ----


def main() -> None:
    """Run the demonstration in a folder of its own, and take the folder away at the end."""
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=HERE.parent) as folder, serving() as here:
        os.environ.pop("TURNLOG_URL", None)
        os.environ.update(environment(here))
        os.chdir(folder)
        try:
            demonstrate(here)
        finally:
            os.chdir(HERE)


def demonstrate(provider: Provider) -> None:
    """Stop a first process in the middle of a reply, have a second one ask, and check."""
    gate = Gate()
    provider.script(Reply(SEEN, gate, "is a mistake."), Reply("The second charge was refunded."))

    title(4, "An agent is asked, and stopped in the middle of its reply")
    say('A process runs bot.stream("My invoice is wrong.", memory=mem). So far it has printed:')
    with process("My invoice is wrong.") as first:
        gate.reached.expect()
        seen = os.read(first.stdout.fileno(), 1000).decode() if first.stdout else ""
        show(seen)
        first.send_signal(signal.SIGINT)
        first.communicate()
    say("Then it got Ctrl-C's signal. What it leaves in the thread:")
    for line in FILE.read_text(encoding="utf-8").splitlines():
        for piece in textwrap.wrap(line, WIDTH, drop_whitespace=False):
            show(piece)

    title(5, 'A second process is asked "Any update?"')
    with process("Any update?") as second:
        reply, _ = second.communicate()
    say("The provider was sent, ahead of it, what was said before:")
    sent = turns(provider.requests[-1])
    for role, text in sent:
        show(f"{role:9} {text}")
    say("It replied:")
    show(reply)
    check(seen, sent, reply)


def process(content: str) -> subprocess.Popen[str]:
    """Start a process that asks."""
    command = [sys.executable, __file__, "ask", content]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
    )


def check(seen: str, sent: list[tuple[str, str]], reply: str) -> None:
    """Exit with 1 unless all that was said is in the thread, once, and was sent."""
    expected = [
        ("system", "You are a support agent."),
        ("user", "My invoice is wrong."),
        ("assistant", seen.strip()),
        ("user", "Any update?"),
    ]
    with turnlog.Memory(Path(".sema/memory"), read_only=True) as memory:
        kept = [turn.content for turn in memory.open(ID, NAMESPACE).messages()]
    print()
    if [(role, text.strip()) for role, text in sent] != expected or not seen:
        sys.exit("NOT as it should be: the second process did not send what was said before.")
    if kept != ["My invoice is wrong.", seen, "Any update?", reply]:
        sys.exit("NOT as it should be: the thread does not hold what was said, once, in order.")
    print("The question and the half of a reply survived the stop, and the agent remembered them.")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case ["ask", content]:
            ask(content)
        case _:
            sys.exit(__doc__)
