"""The seed document's agent, in one process after another: the later one remembers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from localserver import Failure, Provider, Reply, ToolCall, turns

if TYPE_CHECKING:
    from pathlib import Path

# The seed document's snippets in Python. Each is the whole of a process.
BOT = """
import turnlog

support_bot = turnlog.Agent(name="support-bot", system="You are a support agent.", model={model!r})
mem = turnlog.open("ticket-981", namespace="support")
"""
OTHERS_BOT = """
import warnings

import pydantic_ai
import turnlog

warnings.simplefilter("ignore", ResourceWarning)  # the engine leaves its connections open

support_bot = pydantic_ai.Agent({model!r}, instructions="You are a support agent.")
mem = turnlog.open("ticket-981", namespace="support")
"""
FIRST = 'print(turnlog.run(support_bot, "My invoice is wrong.", memory=mem).response)'
LATER = {
    "run": 'print(turnlog.run(support_bot, "Any update?", memory=mem).response)',
    "arun": """
import asyncio

print(asyncio.run(turnlog.arun(support_bot, "Any update?", memory=mem)).response)
""",
    "stream": """
for text in turnlog.stream(support_bot, "Any update?", memory=mem):
    print(text, end="")
print()
""",
    "astream": """
import asyncio

async def main():
    async for text in turnlog.astream(support_bot, "Any update?", memory=mem):
        print(text, end="")

asyncio.run(main())
print()
""",
}
# As the seed document's own models are named, without their provider.
NAMES = {"anthropic": "claude-haiku-4-5-20251001", "openai": "gpt-5-mini"}
FULL_NAMES = {
    "anthropic": "anthropic:claude-haiku-4-5-20251001",
    "openai": "openai-chat:gpt-5-mini",
}

SYSTEM = ("system", "You are a support agent.")
WRONG = ("user", "My invoice is wrong.")
LOOKING = ("assistant", "Looking into it now.")
UPDATE = ("user", "Any update?")
SENT = ("assistant", "A new one is on its way.")


def process(code: str, cwd: Path) -> str:
    """Run a program in a process of its own, to its end, in a folder; give what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def on_disk(cwd: Path) -> list[tuple[str, str]]:
    """Give the role and the text of each line of the thread's file, where the seed has it."""
    path = cwd / ".sema" / "memory" / "support" / "ticket-981.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(line["role"], line["content"]) for line in found]


@pytest.mark.parametrize(
    ("others", "later"),
    [*((False, later) for later in LATER), (True, "run"), (True, "astream")],
)
def test_the_bot_remembers_the_ticket_in_a_new_process(
    provider: Provider, wire: str, tmp_path: Path, later: str, *, others: bool
) -> None:
    """The seed document's two runs, in two processes: the second sends the first's turns (R24)."""
    bot = OTHERS_BOT.format(model=FULL_NAMES[wire]) if others else BOT.format(model=NAMES[wire])
    provider.script("Looking into it now.", "A new one is on its way.")

    assert process(bot + FIRST, tmp_path) == "Looking into it now.\n"
    assert on_disk(tmp_path) == [WRONG, LOOKING]
    assert [turns(request) for request in provider.requests] == [[SYSTEM, WRONG]]

    assert process(bot + LATER[later], tmp_path) == "A new one is on its way.\n"
    assert on_disk(tmp_path) == [WRONG, LOOKING, UPDATE, SENT]
    assert turns(provider.requests[1]) == [SYSTEM, WRONG, LOOKING, UPDATE]
    assert len(provider.requests) == 2


def test_the_bot_remembers_under_another_provider(
    provider: Provider, wire: str, tmp_path: Path
) -> None:
    """What one provider's run wrote is sent to the other one in a later process (R22, R24)."""
    other = "openai" if wire == "anthropic" else "anthropic"
    tool = "def lookup(id: int):\n    '''Look it up.'''\n    return f'invoice {id}'\n"
    bot = BOT.replace("model={model!r}", "model={model!r}, tools=[lookup]")
    provider.script(Reply("Looking into it now.", ToolCall("lookup", {"id": 7})), "I see.", "Yes.")
    first = tool + bot.format(model=NAMES[wire]) + FIRST
    assert process(first, tmp_path) == "I see.\n"
    later = tool + bot.format(model=NAMES[other]) + LATER["run"]
    assert process(later, tmp_path) == "Yes.\n"
    said = [WRONG, LOOKING, ("assistant", "I see.")]
    # A wire may take two texts of one role as one.
    assert text_of(turns(provider.requests[2])) == text_of([SYSTEM, *said, UPDATE])
    assert on_disk(tmp_path) == [*said, UPDATE, ("assistant", "Yes.")]


def text_of(sent: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Give turns with those of one role in a row as one, with a blank line between them."""
    merged: list[tuple[str, str]] = []
    for role, text in sent:
        if merged and merged[-1][0] == role:
            merged[-1] = role, f"{merged[-1][1]}\n\n{text}"
        else:
            merged.append((role, text))
    return merged


def test_the_bot_remembers_after_it_was_killed(
    provider: Provider, wire: str, tmp_path: Path
) -> None:
    """What a run wrote is there after its process was killed right behind it (R4, R24)."""
    bot = BOT.format(model=NAMES[wire])
    provider.script("Looking into it now.", "A new one is on its way.")
    killed = f"{bot}{FIRST}\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", killed], cwd=tmp_path, timeout=100, check=False
    )
    assert done.returncode == -9
    process(bot + LATER["run"], tmp_path)
    assert turns(provider.requests[1]) == [SYSTEM, WRONG, LOOKING, UPDATE]


def test_a_failed_run_is_asked_again_in_a_new_process(
    provider: Provider, wire: str, tmp_path: Path
) -> None:
    """A run that failed without a reply is asked again by a later process, once (A08, R24)."""
    bot = BOT.format(model=NAMES[wire])
    provider.script(Failure(500, "Out of order."), "Looking into it now.")
    failing = f"""{bot}
try:
    {FIRST}
except turnlog.ModelFailed:
    print("failed")
"""
    assert process(failing, tmp_path) == "failed\n"
    assert process(bot + FIRST, tmp_path) == "Looking into it now.\n"
    assert turns(provider.requests[1]) == [SYSTEM, WRONG]
    assert on_disk(tmp_path) == [WRONG, LOOKING]


@pytest.mark.parametrize("later", ["chat", "stream"])
def test_a_snapshot_is_sent_to_a_model_in_a_new_process(
    provider: Provider, wire: str, tmp_path: Path, later: str
) -> None:
    """A snapshot of the thread that a later process opened is sent by a chat (R16, R18)."""
    opening = "import turnlog\nmem = turnlog.open('ticket-981', namespace='support')\n"
    process(
        f"{opening}mem.append('My invoice is wrong.')\n"
        "mem.append('Looking into it now.', role='assistant').append('Any update?')",
        tmp_path,
    )
    provider.script("A new one is on its way.")
    call = f"turnlog.{later}(mem.messages(), model={NAMES[wire]!r})"
    assert process(f"{opening}print(''.join({call}))", tmp_path) == "A new one is on its way.\n"
    assert turns(provider.requests[0]) == [WRONG, LOOKING, UPDATE]
    assert on_disk(tmp_path) == [WRONG, LOOKING, UPDATE]
