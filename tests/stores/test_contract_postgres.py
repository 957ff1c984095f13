"""The contract of a store, run over the PostgreSQL store on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnlog.stores.postgres import PostgresStore
from turnlog.testing import StoreContract

if TYPE_CHECKING:
    from pathlib import Path

    from turnlog.stores.base import Store


class TestPostgresStore(StoreContract):
    """The PostgreSQL store keeps the contract."""

    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> None:
        self.url = postgres_url

    def make_store(self, place: Path) -> Store:
        """Make a store on the test's database."""
        del place
        return PostgresStore(self.url)
