# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Code as users write it, for pyright alone: it has to accept it, and to find the mistakes in it.

`assert_type` says which type a call gives. A line with `# pyright: ignore[rule]` must be an error
of that rule: an ignore that nothing needs is an error itself.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_type

from pydantic import BaseModel
from pydantic_ai import Agent as EngineAgent

import turnlog
from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    import anthropic
    import openai

    from turnlog.stores.base import Store

Scalar = str | int | float | bool | None


def threads() -> None:
    """A thread's calls chain, and give what they say."""
    mem = turnlog.open("user-42", namespace="support")
    assert_type(mem, turnlog.MemoryThread)
    assert_type(mem.append("Hello").append("Hi", role="assistant"), turnlog.MemoryThread)
    assert_type(
        mem.append("x", meta={"n": 1, "name": None}, key="k", expect=2), turnlog.MemoryThread
    )
    assert_type(mem.extend([turnlog.Message("user", "a")], key="k"), turnlog.MemoryThread)
    assert_type(mem.extend(mem.messages()), turnlog.MemoryThread)
    assert_type(mem.refresh(), turnlog.MemoryThread)
    assert_type(mem.refresh(wait=1.5), turnlog.MemoryThread)
    assert_type(mem.fork("new", namespace="elsewhere", upto=3), turnlog.MemoryThread)
    assert_type(mem.turn_lock(), turnlog.TurnLock)
    with mem.turn_lock(timeout=30) as nothing:
        assert_type(nothing, None)
    assert_type(mem.messages(), turnlog.Conversation)
    assert_type(mem.index_of("k"), int | None)
    assert_type(mem.problems, tuple[turnlog.Problem, ...])
    assert_type(mem.key, turnlog.ThreadKey)
    assert_type((mem.id, mem.namespace, mem.usable, len(mem)), tuple[str, str, bool, int])


async def threads_in_tasks() -> None:
    """The async calls give the same."""
    mem = await turnlog.aopen("user-42", "support")
    assert_type(mem, turnlog.MemoryThread)
    assert_type(await mem.aappend("Hello", role="system"), turnlog.MemoryThread)
    assert_type(await mem.aextend([turnlog.Message("user", "a")]), turnlog.MemoryThread)
    assert_type(await mem.arefresh(), turnlog.MemoryThread)
    assert_type(await mem.arefresh(wait=30), turnlog.MemoryThread)
    assert_type(await mem.afork("new"), turnlog.MemoryThread)
    async with mem.turn_lock(timeout=30) as nothing:
        assert_type(nothing, None)
    async with turnlog.Memory("elsewhere") as memory:
        assert_type(memory, turnlog.Memory)
        assert_type(await memory.aopen("user-42"), turnlog.MemoryThread)
        assert_type(await memory.adelete("user-42"), bool)
        assert_type(await memory.apeek("user-42", last=20), turnlog.Conversation)


def conversations(conv: turnlog.Conversation) -> None:
    """A conversation is a sequence of messages, and each operation gives another one."""
    assert_type(conv[-1], turnlog.Message)
    assert_type(conv[2:], turnlog.Conversation)
    assert_type(conv + conv, turnlog.Conversation)
    assert_type(conv.add("x", role="user"), turnlog.Conversation)
    assert_type(conv.filter(lambda m: m.role == "user"), turnlog.Conversation)
    assert_type(
        conv.map(lambda m: turnlog.Message(m.role, m.content.upper())), turnlog.Conversation
    )
    assert_type(conv.last(20), turnlog.Conversation)
    assert_type(conv.fork(), turnlog.Conversation)
    message = turnlog.Message("user", "x")
    assert_type(conv.insert(0, message), turnlog.Conversation)
    assert_type(conv.replace(-1, message), turnlog.Conversation)
    assert_type(conv.remove(0), turnlog.Conversation)
    assert_type(conv.with_system("be brief"), turnlog.Conversation)
    assert_type(conv.with_system(None), turnlog.Conversation)
    assert_type(conv.fit(8_000), turnlog.Conversation)
    assert_type(conv.fit(8_000, count=len), turnlog.Conversation)
    assert_type(conv.search("invoice"), list[tuple[int, turnlog.Message]])
    assert_type(conv.search(re.compile("invoice")), list[tuple[int, turnlog.Message]])
    assert_type((conv.token_count(), conv.token_count(len), conv.turns), tuple[int, int, int])
    assert_type(conv.stats, turnlog.ConversationStats)
    assert_type((conv.stats.total_tokens, conv.stats.models), tuple[int, tuple[str, ...]])
    assert_type((conv.stats.first, conv.stats.last), tuple[dt.datetime | None, dt.datetime | None])
    assert_type(conv.messages, tuple[turnlog.Message, ...])
    assert_type((conv.system, conv.last_reply), tuple[str | None, str | None])
    assert_type(conv.metadata, Mapping[str, str])
    assert_type([m.content for m in reversed(conv)], list[str])
    as_sequence: Sequence[turnlog.Message] = conv
    as_key: dict[turnlog.Conversation, int] = {conv: len(as_sequence)}
    print(as_key)


def to_the_providers(
    conv: turnlog.Conversation, one: openai.OpenAI, other: anthropic.Anthropic
) -> None:
    """A conversation goes into the calls of the providers' SDKs as it is."""
    reply = one.chat.completions.create(model="m", messages=conv.to_openai())
    assert_type(reply.choices[0].message.content, str | None)
    other.messages.create(model="m", max_tokens=100, **conv.to_anthropic())


def messages(message: turnlog.Message, role: turnlog.Role) -> None:
    """A message's fields have their types."""
    assert_type(message.role, Literal["user", "assistant", "system"])
    assert_type(message.content, str)
    assert_type(message.at, dt.datetime | None)
    assert_type(message.meta, Mapping[str, Scalar] | None)
    turnlog.Message(role, "x", dt.datetime.now(dt.UTC), {"model": "small-1"})


def memories(store: Store) -> None:
    """A memory takes a path, a URL or a store, and is a context manager."""
    for location in ("path", Path("path"), "memory://", store, InMemoryStore(), JsonlStore("path")):
        turnlog.Memory(location, read_only=True, strict=True, lock_timeout=1)
    turnlog.Memory(JsonlStore(Path("path"), system=System()))
    with turnlog.Memory() as memory:
        assert_type(memory, turnlog.Memory)
        assert_type(memory.threads("support"), Iterator[turnlog.ThreadInfo])
        assert_type(memory.delete(memory.open("a")), bool)
        assert_type(memory.peek("a", last=20), turnlog.Conversation)
        assert_type(memory.peek("a", "support", last=20), turnlog.Conversation)
    assert_type(turnlog.default_memory(), turnlog.Memory)


def sandboxes() -> None:
    """Capabilities are joined by `|`."""
    with turnlog.sandbox(deny=turnlog.Capability.FS_WRITE | turnlog.Capability.NETWORK) as nothing:
        assert_type(nothing, None)


def errors(mem: turnlog.MemoryThread) -> None:
    """The errors have their attributes, and the standard library's bases."""
    try:
        mem.append("x", expect=3)
    except turnlog.Conflict as conflict:
        assert_type((conflict.expected, conflict.actual), tuple[int, int])
        print([turn.content for turn in conflict.turns])
    except turnlog.TurnlogError as error:
        assert_type((error.subject, error.what, error.hint), tuple[str, str, str])
    values: list[type[ValueError]] = [
        turnlog.InvalidName,
        turnlog.InvalidTurn,
        turnlog.UnknownStore,
    ]
    permissions: list[type[PermissionError]] = [turnlog.CapabilityDenied, turnlog.ReadOnly]
    system: list[type[OSError]] = [turnlog.StoreError, turnlog.OutcomeUnknown, *permissions]
    print(values, system)


def mistakes(mem: turnlog.MemoryThread, conv: turnlog.Conversation) -> None:
    """What is wrong is an error before it is run."""
    turnlog.open()  # pyright: ignore[reportCallIssue]
    turnlog.open(42)  # pyright: ignore[reportArgumentType]
    turnlog.MemoryThread("user-42")  # pyright: ignore[reportCallIssue]
    mem.append("x", "assistant")  # pyright: ignore[reportCallIssue]
    mem.append("x", role="tool")  # pyright: ignore[reportArgumentType]
    mem.append(b"x")  # pyright: ignore[reportArgumentType]
    mem.append("x", meta={"nested": {"a": 1}})  # pyright: ignore[reportArgumentType]
    mem.extend(["x"])  # pyright: ignore[reportArgumentType]
    mem.aappend("x")  # pyright: ignore[reportUnusedCoroutine]
    mem.id = "other"  # pyright: ignore[reportAttributeAccessIssue]
    conv[0].content = "other"  # pyright: ignore[reportAttributeAccessIssue]
    conv[0] = conv[1]  # pyright: ignore[reportIndexIssue]
    conv.append("x")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    conv.insert(0, "x")  # pyright: ignore[reportArgumentType]
    conv.with_system()  # pyright: ignore[reportCallIssue]
    conv.fit()  # pyright: ignore[reportCallIssue]
    conv.fit(100, len)  # pyright: ignore[reportCallIssue]
    conv.search(b"x")  # pyright: ignore[reportArgumentType]
    conv.stats.turns = 3  # pyright: ignore[reportAttributeAccessIssue]
    turnlog.Memory().peek("a")  # pyright: ignore[reportCallIssue]
    turnlog.Memory().peek("a", "support", 20)  # pyright: ignore[reportCallIssue]
    conv.map(lambda m: m.content)  # pyright: ignore[reportArgumentType]
    turnlog.sandbox(turnlog.Capability.LLM)  # pyright: ignore[reportCallIssue]


# ---- agents ----


class Invoice(BaseModel):
    """A structured output."""

    number: int


@turnlog.tool
def look_up(number: int) -> str:
    """Look an invoice up."""
    return f"invoice {number}"


@turnlog.tool(name="pay", description="Pay an invoice.")
async def pay_now(number: int, *, twice: bool = False) -> bool:
    """Pay."""
    return twice and number > 0


async def agents(mem: turnlog.MemoryThread) -> None:
    """Run agents of ours and of the engine's: the outputs' types are theirs."""
    assert_type(look_up(7), str)
    assert_type(await pay_now(7, twice=True), bool)
    bot = turnlog.Agent(name="bot", model="offline", tools=[look_up, pay_now, str.upper])
    result = await bot.arun("Any update?", memory=mem, seed=lambda conv: conv.last(40))
    assert_type(result, turnlog.Result[str])
    assert_type(result.response, str)
    assert_type(result.written, tuple[turnlog.Message, ...])
    assert_type(result.conversation, turnlog.Conversation)
    assert_type(bot.run("Any update?", memory=mem, writeback="eager"), turnlog.Result[str])
    assert_type(await turnlog.arun(bot, "?", memory=mem), turnlog.Result[str])
    async with bot.astream("Any update?", memory=mem, on_tool_call=print) as stream:
        async for text in stream:
            assert_type(text, str)
    assert_type(stream.result, turnlog.Result[str])
    for text in turnlog.stream(bot, "Any update?"):
        assert_type(text, str)

    theirs = EngineAgent("test", deps_type=int, output_type=Invoice)
    typed = await turnlog.arun(theirs, "Which one?", memory=mem, deps=3)
    assert_type(typed, turnlog.Result[Invoice])
    assert_type(turnlog.run(theirs, ["Which", "one?"], memory=mem).output, Invoice)
    assert_type(turnlog.astream(theirs, "Which?", memory=mem), turnlog.TextStream[Invoice])
    assert_type(turnlog.run(theirs, "Which?", output_type=str).output, str)
    turnlog.run(theirs, "Which?", writeback="never")  # pyright: ignore[reportCallIssue, reportArgumentType]


async def chats(conv: turnlog.Conversation) -> None:
    """Send a conversation to a model."""
    assert_type(turnlog.chat(conv, model="offline", temperature=0.2), str)
    assert_type(await turnlog.achat(conv, model="offline", reasoning_effort="low"), str)
    assert_type(turnlog.stream(conv, model="offline"), turnlog.BlockingTextStream[str])
    assert_type(conv.say("Explain more", model="offline"), turnlog.Conversation)
    assert_type(await conv.asay_as("Be brief.", "Why?", model="offline"), turnlog.Conversation)
    turnlog.chat(conv, modle="offline")  # pyright: ignore[reportCallIssue]
