"""Which store a location means: a path, a URL or a store itself.

Each store is imported when it is used.
"""

from __future__ import annotations

import os
import re
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
            which is given back. What begins like a URL is never taken for a path: a mistyped one
            would make a folder that is named after a password.
        read_only: whether it shall only read.
        lock_timeout: the longest wait, in seconds, for another process' lock on a thread.

    Raises:
        UnknownStore: it is empty, nothing is known by the scheme, it is no store, it cannot be
            read-only, or the URL cannot be read. No part of a URL that may be secret is told.
        MissingExtra: the store's client library is not installed.
        StoreError: it is a relative path, and the working directory was removed.
    """
    if not isinstance(location, str | os.PathLike):
        return _own_store(location, read_only=read_only)
    place = os.fsdecode(location)
    if not is_url(place):
        return _files(place, read_only=read_only, lock_timeout=lock_timeout)
    head, _, rest = place.partition(":")
    scheme = head.lower()
    if scheme == "file":
        return _files(_path_of(rest), read_only=read_only, lock_timeout=lock_timeout)
    if scheme == "memory" and rest == "//":
        from turnlog.stores.inmemory import InMemoryStore  # noqa: PLC0415 - imported when used

        return _own_store(InMemoryStore(), read_only=read_only)
    if scheme in _SERVERS and rest.startswith("//") and _is_text(rest):
        url = f"{scheme}:{rest}"
        return _server_store(scheme, url, read_only=read_only, lock_timeout=lock_timeout)
    raise _refusal(head, rest)


# The store of a scheme: its extra, which its package is named after, and its class.
_SERVERS: Final = {
    "postgresql": ("postgres", "PostgresStore"),
    "postgres": ("postgres", "PostgresStore"),
    "nats": ("nats", "NatsStore"),
    "tls": ("nats", "NatsStore"),
}


_SCHEMES: Final = frozenset((*_SERVERS, "file", "memory"))
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]{0,39}")
_KNOWN: Final = (
    "give a path, file:///…, memory://, postgresql://…, nats://… or a Store of your own; "
    "a path that looks like a URL begins with ./"
)


def is_url(place: str) -> bool:
    """Return whether a location is a URL, well or badly written; it may be one of a login too."""
    head, colon, rest = place.partition(":")
    if not colon or "/" in head:
        return False
    scheme = head.strip(" \t\r\n\"'").lower()
    return rest.startswith("//") or scheme in _SCHEMES or "@" in rest


def _refusal(head: str, rest: str) -> UnknownStore:
    """Make the error for what is no store's URL, without what may be a part of a login."""
    if head.lower() in _SCHEMES:
        return UnknownStore(
            f"location '{head.lower()}:…'", "it is not written as such a URL is", _KNOWN
        )
    shown = f"{head}://…" if rest.startswith("//") and _SCHEME.fullmatch(head) else "…"
    return UnknownStore(f"location {shown!r}", "no store is known by this scheme", _KNOWN)


def _is_text(rest: str) -> bool:
    """Return whether a URL holds no NUL and no half of a character, which no client takes."""
    return "\0" not in rest and not any("\ud800" <= character <= "\udfff" for character in rest)


def _path_of(rest: str) -> str:
    """Return the path of a `file:` URL, by what follows its colon.

    Raises:
        UnknownStore: it is on another machine, or relative.
    """
    path = rest.removeprefix("//").removeprefix("localhost") if rest.startswith("//") else rest
    if not path.startswith(("/", "~")):
        raise UnknownStore(
            "location 'file:…'", "it has no absolute path", "give file:///folder, or a path"
        )
    return path


def _files(path: str, *, read_only: bool, lock_timeout: float) -> Store:
    from turnlog.stores.jsonl import JsonlStore  # noqa: PLC0415 - imported when used

    return JsonlStore(path, read_only=read_only, lock_timeout=lock_timeout)


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
