"""A bot for a messenger, in the manner of Telegram's: it polls for messages, and answers each chat.

    python examples/message_bot.py         # then type lines such as `ada: My invoice is wrong.`

The messenger here is your console: the word before the colon is the chat. Ctrl-D ends it. For a
real one write a class with the two methods of `Messenger`; nothing else changes.

TURNLOG_MODEL says which model to ask, such as claude-haiku-4-5-20251001, with its key in
ANTHROPIC_API_KEY. Unless it is set, "offline" answers, which is no language model: it follows a few
rules, needs no key and no network, and quotes what you wrote before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import NamedTuple, Protocol

import turnlog

BOT = turnlog.Agent(
    name="messenger",
    system="You are a support agent in a messenger. Be brief.",
    model=os.environ.get("TURNLOG_MODEL", "offline"),
)
SORRY = "I cannot answer just now. I have kept what you wrote; ask me again in a while."


class Update(NamedTuple):
    """A message that came: its number, the chat that it stands in, its text."""

    number: int
    chat: str
    text: str


class Messenger(Protocol):
    """What the bot needs of a messenger."""

    async def poll(self, after: int) -> list[Update] | None:
        """Wait a while for messages behind a number; give None when there will be no more."""
        ...

    async def send(self, chat: str, text: str) -> None:
        """Send a message to a chat."""
        ...


async def serve(messenger: Messenger) -> None:
    """Answer each message in a task of its own, until there will be no more."""
    last = 0
    async with asyncio.TaskGroup() as tasks:
        while (updates := await messenger.poll(last)) is not None:
            for update in updates:
                last = update.number
                mem = await turnlog.aopen(update.chat, namespace="messenger")
                tasks.create_task(answer(messenger, update, mem))


async def answer(messenger: Messenger, update: Update, mem: turnlog.MemoryThread) -> None:
    """Answer a message; those of one chat wait for each other, in the order in which they came."""
    async with mem.turn_lock():  # it holds as well where a second process serves the chat
        try:
            # Eager, so that the message is kept even where the provider fails or we are killed.
            reply = (await BOT.arun(update.text, memory=mem, writeback="eager")).response
        except turnlog.RunFailed as error:
            logging.getLogger(__name__).warning("%s", error)
            reply = SORRY
        await messenger.send(update.chat, reply)


class Console:
    """A messenger that is the terminal: one line is one message."""

    async def poll(self, after: int) -> list[Update] | None:
        """Wait for a line."""
        line = await asyncio.to_thread(sys.stdin.readline)
        chat, _, text = (part.strip() for part in line.partition(":"))
        if chat and not text:
            print("(write it as `chat: text`)")
        return ([Update(after + 1, chat, text)] if text else []) if line else None

    async def send(self, chat: str, text: str) -> None:
        """Print a message."""
        print(f"to {chat}: {text}", flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Console()))
