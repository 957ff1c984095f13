"""turnlog: the conversation memory of an agent, which is still there tomorrow.

```python
import turnlog

mem = turnlog.open("user-42", namespace="support")
mem.append("My invoice is wrong.")  # durable on disk when it returns
mem.messages()[-1].content
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnlog.capability import Capability, sandbox
from turnlog.conversation import Conversation
from turnlog.errors import (
    CapabilityDenied,
    Closed,
    Conflict,
    CutReplyWarning,
    DamagedThread,
    DamageWarning,
    ForeignThread,
    InvalidName,
    InvalidTurn,
    LockTimeout,
    MissingExtra,
    MissingKey,
    ModelFailed,
    NotAThread,
    NotWritten,
    OutcomeUnknown,
    ReadOnly,
    RunFailed,
    RunningLoop,
    StoreError,
    ThreadReplaced,
    ToolsFailed,
    TornTailWarning,
    TurnlogError,
    TurnlogWarning,
    UnknownModel,
    UnknownStore,
    UnsafeFileSystemWarning,
    WritebackFailed,
)
from turnlog.measure import ConversationStats
from turnlog.memory import Memory, aopen, default_memory, open  # noqa: A004 - the spec's word
from turnlog.message import Message, Role
from turnlog.names import ThreadKey
from turnlog.stores.base import Problem, ThreadInfo
from turnlog.thread import MemoryThread
from turnlog.turnlock import TurnLock

if TYPE_CHECKING:
    from turnlog.agents.agent import Agent
    from turnlog.agents.perform import RunOptions
    from turnlog.agents.run import arun, astream, run, stream
    from turnlog.engine.chat import ChatOptions, achat, chat
    from turnlog.engine.listener import ToolEvent
    from turnlog.engine.result import Result
    from turnlog.engine.stopping import astop_runs, stop_runs
    from turnlog.engine.stream import BlockingTextStream, TextStream
    from turnlog.engine.tools import Tool, tool

# What needs the extra `agents`, and the module that has it: imported when it is first used.
_OF_AGENTS: Final = {
    "Agent": "turnlog.agents.agent",
    "BlockingTextStream": "turnlog.engine.stream",
    "ChatOptions": "turnlog.engine.chat",
    "Result": "turnlog.engine.result",
    "RunOptions": "turnlog.agents.perform",
    "TextStream": "turnlog.engine.stream",
    "Tool": "turnlog.engine.tools",
    "ToolEvent": "turnlog.engine.listener",
    "achat": "turnlog.engine.chat",
    "arun": "turnlog.agents.run",
    "astop_runs": "turnlog.engine.stopping",
    "astream": "turnlog.agents.run",
    "chat": "turnlog.engine.chat",
    "run": "turnlog.agents.run",
    "stop_runs": "turnlog.engine.stopping",
    "stream": "turnlog.agents.run",
    "tool": "turnlog.engine.tools",
}

__all__ = [
    "Agent",
    "BlockingTextStream",
    "Capability",
    "CapabilityDenied",
    "ChatOptions",
    "Closed",
    "Conflict",
    "Conversation",
    "ConversationStats",
    "CutReplyWarning",
    "DamageWarning",
    "DamagedThread",
    "ForeignThread",
    "InvalidName",
    "InvalidTurn",
    "LockTimeout",
    "Memory",
    "MemoryThread",
    "Message",
    "MissingExtra",
    "MissingKey",
    "ModelFailed",
    "NotAThread",
    "NotWritten",
    "OutcomeUnknown",
    "Problem",
    "ReadOnly",
    "Result",
    "Role",
    "RunFailed",
    "RunOptions",
    "RunningLoop",
    "StoreError",
    "TextStream",
    "ThreadInfo",
    "ThreadKey",
    "ThreadReplaced",
    "Tool",
    "ToolEvent",
    "ToolsFailed",
    "TornTailWarning",
    "TurnLock",
    "TurnlogError",
    "TurnlogWarning",
    "UnknownModel",
    "UnknownStore",
    "UnsafeFileSystemWarning",
    "WritebackFailed",
    "achat",
    "aopen",
    "arun",
    "astop_runs",
    "astream",
    "chat",
    "default_memory",
    "open",
    "run",
    "sandbox",
    "stop_runs",
    "stream",
    "tool",
]


def __getattr__(name: str) -> object:
    """Import what needs an extra when it is first used."""
    import importlib  # noqa: PLC0415

    if name not in _OF_AGENTS:
        message = f"module 'turnlog' has no attribute {name!r}"
        raise AttributeError(message)
    try:
        module = importlib.import_module(_OF_AGENTS[name])
    except ImportError as error:
        raise MissingExtra.of(f"turnlog.{name}", "agents") from error
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    """List what is public, also what was not imported yet."""
    return sorted({*globals(), *__all__} - {"Final", "TYPE_CHECKING", "annotations"})
