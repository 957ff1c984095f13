"""turnlog: the conversation memory of an agent, which is still there tomorrow.

```python
import turnlog

mem = turnlog.open("user-42", namespace="support")
mem.append("My invoice is wrong.")  # durable on disk when it returns
mem.messages()[-1].content
```
"""

from turnlog.capability import Capability, sandbox
from turnlog.conversation import Conversation
from turnlog.errors import (
    CapabilityDenied,
    Closed,
    Conflict,
    DamagedThread,
    DamageWarning,
    ForeignThread,
    InvalidName,
    InvalidTurn,
    LockTimeout,
    NotAThread,
    NotWritten,
    OutcomeUnknown,
    ReadOnly,
    StoreError,
    ThreadReplaced,
    TornTailWarning,
    TurnlogError,
    TurnlogWarning,
    UnknownStore,
    UnsafeFileSystemWarning,
)
from turnlog.measure import ConversationStats
from turnlog.memory import Memory, aopen, default_memory, open  # noqa: A004 - the spec's word
from turnlog.message import Message, Role
from turnlog.names import ThreadKey
from turnlog.stores.base import Problem, ThreadInfo
from turnlog.thread import MemoryThread
from turnlog.turnlock import TurnLock

__all__ = [
    "Capability",
    "CapabilityDenied",
    "Closed",
    "Conflict",
    "Conversation",
    "ConversationStats",
    "DamageWarning",
    "DamagedThread",
    "ForeignThread",
    "InvalidName",
    "InvalidTurn",
    "LockTimeout",
    "Memory",
    "MemoryThread",
    "Message",
    "NotAThread",
    "NotWritten",
    "OutcomeUnknown",
    "Problem",
    "ReadOnly",
    "Role",
    "StoreError",
    "ThreadInfo",
    "ThreadKey",
    "ThreadReplaced",
    "TornTailWarning",
    "TurnLock",
    "TurnlogError",
    "TurnlogWarning",
    "UnknownStore",
    "UnsafeFileSystemWarning",
    "aopen",
    "default_memory",
    "open",
    "sandbox",
]
