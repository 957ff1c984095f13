"""The contract of a store, run over the PostgreSQL store on a real server."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

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
