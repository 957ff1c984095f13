"""The JSONL store: one file a thread, which a person can read, grep and copy."""

from turnlog.stores.jsonl.doctor import Examination
from turnlog.stores.jsonl.store import JsonlStore
from turnlog.stores.jsonl.strays import Stray

__all__ = ["Examination", "JsonlStore", "Stray"]
