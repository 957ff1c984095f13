"""The contract of a store, run over each store that turnlog brings along."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from turnlog.stores.inmemory import InMemoryStore
from turnlog.stores.jsonl import JsonlStore
from turnlog.testing import StoreContract

if TYPE_CHECKING:
    from pathlib import Path

    from turnlog.stores.base import Store


class TestJsonlStore(StoreContract):
    """The JSONL store keeps the contract."""

    def make_store(self, place: Path) -> Store:
        """Make a store on a folder; several of them share its files."""
        return JsonlStore(place / "memory")


class TestInMemoryStore(StoreContract):
    """The reference store keeps the contract."""

    def make_store(self, place: Path) -> Store:
        """Give the one store of a test: its callers stand for processes."""
        return _shared_store(place)


@cache
def _shared_store(place: Path) -> Store:
    del place
    return InMemoryStore()
