"""openai-agents' SQLAlchemySession, as its documentation shows it: with one engine for all."""

from __future__ import annotations

import importlib
from typing import Any, Final, Self

NAME: Final = "SQLAlchemySession"
PACKAGE: Final = "openai-agents"


class SQLAlchemySessions:
    """Sessions in one database, in one event loop.

    Args:
        url: the database's, as libpq takes it.
    """

    def __init__(self, url: str) -> None:
        """Make the engine, which connects when it is needed."""
        self._session = importlib.import_module("agents.extensions.memory").SQLAlchemySession
        scheme, _, rest = url.partition("://")
        self._engine: Any = importlib.import_module("sqlalchemy.ext.asyncio").create_async_engine(
            f"{scheme}+asyncpg://{rest}"
        )

    async def __aenter__(self) -> Self:
        """Make the tables, as an application does beforehand."""
        await self._session("first", engine=self._engine, create_tables=True).get_items()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._engine.dispose()

    def session(self, id_: str) -> Any:
        """Open a session."""
        return self._session(id_, engine=self._engine)


async def add(session: Any, text: str) -> None:
    """Append one turn to a session."""
    await session.add_items([{"role": "user", "content": text}])


def installed() -> bool:
    """Tell whether it can be used here."""
    try:
        SQLAlchemySessions("postgresql://localhost/none")
    except ImportError:
        return False
    return True
