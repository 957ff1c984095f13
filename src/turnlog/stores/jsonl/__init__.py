"""The JSONL store: one file a thread, which a person can read, grep and copy."""

from turnlog.stores.jsonl.store import JsonlStore

__all__ = ["JsonlStore"]
