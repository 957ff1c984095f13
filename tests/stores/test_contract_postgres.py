"""The contract of a store, run over the PostgreSQL store on a real server."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from turnlog import Memory
from turnlog.stores.postgres import PostgresStore
from turnlog.testing import StoreContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnlog.stores.base import Store


PARTITIONED: Final = re.findall(
    "```sql\n(CREATE TABLE.*?)```",
    (Path(__file__).parents[2] / "docs" / "postgresql.md").read_text(encoding="utf-8"),
    re.DOTALL,
)


class TestPostgresStore(StoreContract):
    """The PostgreSQL store keeps the contract."""

    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> None:
        self.url = postgres_url

    def make_store(self, place: Path) -> Store:
        """Make a store on the test's database."""
        del place
        return PostgresStore(self.url)


class TestPartitionedTables(TestPostgresStore):
    """It keeps the contract over tables that were partitioned as the documents say."""

    @pytest.fixture(autouse=True)
    def _tables(self, postgres_url: str) -> None:
        (script,) = PARTITIONED
        with psycopg.connect(postgres_url) as connection:
            # Fewer of them than there, since each test makes its own.
            connection.execute(script.replace("63", "3").replace("64", "4").encode())

    def test_rows_at_the_same_place(self) -> None:
        """A batch leaves alone the rows that lie in other tables where its own do in theirs."""

        async def main() -> list[list[str]]:
            async with Memory(self.url) as memory:
                threads = [await memory.aopen(f"t{number}") for number in range(64)]
                for thread in threads:
                    await thread.aappend("first")
                await asyncio.gather(*(thread.aappend("second") for thread in threads[::2]))
            async with Memory(self.url) as memory:
                threads = [await memory.aopen(thread.id) for thread in threads]
                return [[turn.content for turn in thread.messages()] for thread in threads]

        assert asyncio.run(main()) == [["first", "second"], ["first"]] * 32


_schemas = itertools.count()


@pytest.fixture(scope="module")
def older_database() -> Iterator[str]:
    """Give the URL of a database on a server of an earlier version."""
    from postgres_server import PostgresServer  # noqa: PLC0415

    with PostgresServer(version=16) as server:
        yield server.new_database()


class TestOlderServer(TestPostgresStore):
    """It keeps the contract on PostgreSQL 16."""

    @pytest.fixture
    def postgres_url(self, older_database: str) -> str:
        """Give the URL of a schema that is not there yet, on the older server."""
        return f"{older_database}?schema=test_{next(_schemas)}"
