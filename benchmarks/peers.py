"""turnlog and its peers behind one interface, so that each case runs over all of them alike.

Every library is used as its documentation shows, in its default form. A peer is imported when it is
needed: it may not be installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from files import write_thread

import turnlog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from text import Turn


class Thread(ABC):
    """An open thread (session, history) of a library."""

    @abstractmethod
    async def append(self, text: str) -> None:
        """Append one turn as a server does, which has other tasks in its event loop."""

    async def append_alone(self, text: str) -> None:
        """Append one turn as a program does that has nothing else to do.

        The same as `append`, unless the library has a synchronous call, which blocks the loop.
        """
        await self.append(text)


class Library(ABC):
    """A library that keeps conversations, in a folder of its own.

    Attributes:
        name: what it is called in the table.
        package: what it is called on PyPI.
        syncs: whether a turn is on the disk when its append returns.
        share: it is given one in so many of a case's turns, so that the case ends.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    syncs: ClassVar[bool]
    share: ClassVar[int] = 1

    def __init__(self, folder: Path) -> None:
        """Open the library in a folder, which is made where there is none."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    @classmethod
    def version(cls) -> str:
        """Give the version that is installed."""
        return importlib.metadata.version(cls.package)

    @classmethod
    def label(cls) -> str:
        """Give its name, and that it does not sync where it does not."""
        return cls.name if cls.syncs else f"{cls.name} (no sync)"

    @abstractmethod
    async def open(self, id_: str) -> Thread:
        """Open a thread to append to, which is made where there is none."""

    @abstractmethod
    async def load(self, id_: str) -> list[str]:
        """Read a whole thread from its file, as a new process does, and look at each text."""

    @abstractmethod
    async def fill(self, id_: str, turns: Sequence[Turn]) -> None:
        """Make a thread of many turns, by whatever way is quick; not measured."""

    async def close(self) -> None:  # noqa: B027 - not every library has something to close
        """Let go of files and connections."""


# ---- turnlog ----


class _TurnlogThread(Thread):
    def __init__(self, thread: turnlog.MemoryThread) -> None:
        self._thread = thread

    async def append(self, text: str) -> None:
        await self._thread.aappend(text)

    async def append_alone(self, text: str) -> None:
        self._thread.append(text)


class Turnlog(Library):
    """turnlog itself."""

    name = "turnlog"
    package = "turnlog"
    syncs = True

    def __init__(self, folder: Path) -> None:
        """Open a memory in a folder."""
        super().__init__(folder)
        self._memory = turnlog.Memory(folder)

    async def open(self, id_: str) -> Thread:
        """Open a thread off the loop."""
        return _TurnlogThread(await self._memory.aopen(id_))

    async def load(self, id_: str) -> list[str]:
        """Read a thread in a memory of its own."""
        async with turnlog.Memory(self.folder) as memory:
            return [message.content for message in (await memory.aopen(id_)).messages()]

    async def fill(self, id_: str, turns: Sequence[Turn]) -> None:
        """Write the file."""
        write_thread(self.folder, id_, turns)

    async def close(self) -> None:
        """Close the memory."""
        await self._memory.aclose()


# ---- openai-agents ----


class _AgentsThread(Thread):
    def __init__(self, session: Any) -> None:
        self._session = session

    async def append(self, text: str) -> None:
        await self._session.add_items([{"role": "user", "content": text}])


class SQLiteSession(Library):
    """openai-agents' SQLiteSession: one database, journal mode WAL, a thread a call."""

    name = "SQLiteSession"
    package = "openai-agents"
    syncs = True

    def __init__(self, folder: Path) -> None:
        """Name the database; each session opens it."""
        super().__init__(folder)
        self._session = importlib.import_module("agents").SQLiteSession
        self._open: list[Any] = []

    def _new(self, id_: str) -> Any:
        return self._session(id_, str(self.folder / "sessions.db"))

    async def open(self, id_: str) -> Thread:
        """Open a session, which connects to the database."""
        self._open.append(self._new(id_))
        return _AgentsThread(self._open[-1])

    async def load(self, id_: str) -> list[str]:
        """Read a session's items."""
        session = self._new(id_)
        try:
            return [item["content"] for item in await session.get_items()]
        finally:
            session.close()

    async def fill(self, id_: str, turns: Sequence[Turn]) -> None:
        """Add all items in one transaction."""
        session = self._new(id_)
        await session.add_items([{"role": role, "content": text} for role, text in turns])
        session.close()

    async def close(self) -> None:
        """Close all connections."""
        for session in self._open:
            session.close()


# ---- langchain-community ----


class _LangChainThread(Thread):
    def __init__(self, history: Any, message: Any) -> None:
        self._history = history
        self._message = message

    async def append(self, text: str) -> None:
        await self._history.aadd_messages([self._message(content=text)])

    async def append_alone(self, text: str) -> None:
        self._history.add_message(self._message(content=text))


class FileChatMessageHistory(Library):
    """langchain-community's FileChatMessageHistory: a JSON file, rewritten whole at each turn."""

    name = "FileChatMessageHistory"
    package = "langchain-community"
    syncs = False
    share = 10

    def __init__(self, folder: Path) -> None:
        """Find the classes; each history is a file."""
        super().__init__(folder)
        self._history = importlib.import_module(
            "langchain_community.chat_message_histories"
        ).FileChatMessageHistory
        self._messages = importlib.import_module("langchain_core.messages")

    def _path(self, id_: str) -> Path:
        return self.folder / f"{id_}.json"

    async def open(self, id_: str) -> Thread:
        """Open a history."""
        return _LangChainThread(self._history(self._path(id_)), self._messages.HumanMessage)

    async def load(self, id_: str) -> list[str]:
        """Read a history's messages."""
        return [message.content for message in self._history(self._path(id_)).messages]

    async def fill(self, id_: str, turns: Sequence[Turn]) -> None:
        """Write the file."""
        human, reply = self._messages.HumanMessage, self._messages.AIMessage
        messages = [(human if role == "user" else reply)(content=text) for role, text in turns]
        self._path(id_).write_text(json.dumps(self._messages.messages_to_dict(messages)))


# ---- all of them ----

PEERS: Final[tuple[type[Library], ...]] = (SQLiteSession, FileChatMessageHistory)
LIBRARIES: Final[dict[str, type[Library]]] = {one.name: one for one in (Turnlog, *PEERS)}


def installed(peer: type[Library], folder: Path) -> bool:
    """Tell whether a peer can be used here."""
    try:
        peer(folder)
    except ImportError:
        return False
    return True
