"""Which store a location means: a path, a URL or a store itself.

Each store is imported when it is used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

from turnlog.errors import MissingExtra, UnknownStore

if TYPE_CHECKING:
    from turnlog.stores.base import Store


def store_at(
    location: str | os.PathLike[str] | Store, *, read_only: bool, lock_timeout: float
) -> Store:
    """Make the store that a location means. Touches no disk.

    Args:
        location: a path, a URL (`file:`, `memory:`, `postgresql:`, `nats:` or `tls:`), or a store,
            which is given back.
        read_only: whether it shall only read.
        lock_timeout: the longest wait, in seconds, for another process' lock on a thread.

    Raises:
        UnknownStore: nothing is known by the scheme, it is no store, it cannot be read-only, or
            the URL cannot be read.
        MissingExtra: the store's client library is not installed.
    """
    if not isinstance(location, str | os.PathLike):
        return _own_store(location, read_only=read_only)
    path = os.fspath(location)
    scheme, colon, rest = path.partition("://")
    if not colon or (scheme == "file" and rest.startswith("/")):
        from turnlog.stores.jsonl import JsonlStore  # noqa: PLC0415 - imported when used

        root = rest if colon else path
        return JsonlStore(root, read_only=read_only, lock_timeout=lock_timeout)
    if path == "memory://":
        from turnlog.stores.inmemory import InMemoryStore  # noqa: PLC0415

        return _own_store(InMemoryStore(), read_only=read_only)
    if scheme in _SERVERS:
        return _server_store(scheme, path, read_only=read_only, lock_timeout=lock_timeout)
    raise UnknownStore(
        f"location {scheme + '://…'!r}",
        "no store is known by this scheme",
        "give a path, file:///…, memory://, postgresql://…, nats://… or a Store of your own",
    )


# The store of a scheme: its extra, which its package is named after, and its class.
_SERVERS: Final = {
    "postgresql": ("postgres", "PostgresStore"),
    "postgres": ("postgres", "PostgresStore"),
    "nats": ("nats", "NatsStore"),
    "tls": ("nats", "NatsStore"),
}


def _server_store(scheme: str, url: str, *, read_only: bool, lock_timeout: float) -> Store:
    extra, kind = _SERVERS[scheme]
    try:
        module = import_module(f"turnlog.stores.{extra}")
    except ModuleNotFoundError as error:
        raise MissingExtra.of(f"location {scheme + '://…'!r}", extra) from error
    store: Store = getattr(module, kind)(url, read_only=read_only, lock_timeout=lock_timeout)
    return store


def _own_store(store: Store, *, read_only: bool) -> Store:
    if not hasattr(store, "commit"):
        kind = type(store).__name__
        raise UnknownStore(f"location of type {kind}", "it is no store", "give a path or a URL")
    if read_only and not store.read_only:
        raise UnknownStore(repr(store), "it cannot be opened read-only", "leave out read_only=True")
    return store
