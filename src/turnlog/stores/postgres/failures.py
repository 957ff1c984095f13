"""From the server's errors to ours: what happened to which thread, and what the user can do."""

from __future__ import annotations

from typing import Final, TypeVar

import psycopg
from psycopg import errors
from psycopg_pool import PoolTimeout

from turnlog.errors import LockTimeout, NotWritten, StoreError
from turnlog.stores.postgres.sessions import Unfit

_Error = TypeVar("_Error", bound=StoreError)

_HINTS: Final[dict[type[psycopg.Error], str]] = {
    errors.DiskFull: "free space on the server's disk; the thread goes on as soon as there is some",
    errors.InsufficientPrivilege: "grant the role SELECT, INSERT, UPDATE and DELETE on the tables, "
    "or SELECT and use Memory(..., read_only=True)",
    errors.ReadOnlySqlTransaction: "connect to the primary (target_session_attrs=read-write), or "
    "use Memory(..., read_only=True)",
    errors.TooManyConnections: "raise max_connections on the server, or lower it in the URL",
    PoolTimeout: "raise max_connections in the URL: all of the store's are in use",
    errors.QueryCanceled: "an administrator has cancelled it: try again",
    errors.ProgramLimitExceeded: "the turn is too large for PostgreSQL; divide it",
}

_ROWS_HIDDEN: Final = (
    "give the role BYPASSRLS, or keep each tenant's threads in tables of its own (schema= or "
    "table_prefix= in the URL): a thread with hidden turns is not what was said"
)
# By what the server says permission is denied for: it is asked for where the tables are missing.
_CREATE_HINTS: Final = {
    "for schema": "grant the role USAGE and CREATE on the schema, or have a role that has them "
    "open the memory once, which makes the tables",
    "for database": "grant the role CREATE on the database, or have a role that may do so make "
    "the schema",
}


def failure(kind: type[_Error], subject: object, doing: str, error: psycopg.Error) -> _Error:
    """Make our error of the server's; the caller raises it from `error`.

    Args:
        kind: the error to make.
        subject: the thread, or the store.
        doing: what failed, such as "the append failed".
        error: the server's error, or libpq's.
    """
    words = " ".join(str(error).split()) or type(error).__name__
    hint = error.hint if isinstance(error, Unfit) else _HINTS.get(type(error))
    if isinstance(error, errors.InsufficientPrivilege):
        hint = next((more for what, more in _CREATE_HINTS.items() if what in words), hint)
    if "connection slots" in words or "too many" in words:  # while connecting there is no code
        hint = _HINTS[errors.TooManyConnections]
    if "row-level security" in words:
        hint = _ROWS_HIDDEN
    if hint is None and error.sqlstate is None:
        hint = "see that the server runs and can be reached, and try again"
    return kind(subject, f"{doing}: {words}", hint or "see the server's log for more")


def not_written(subject: object, error: psycopg.Error) -> NotWritten:
    """Make the error for an append of which nothing is in the thread; the server's is its cause."""
    kind = LockTimeout if isinstance(error, errors.LockNotAvailable) else NotWritten
    own = failure(kind, subject, "the append failed, and nothing was written", error)
    own.__cause__ = error
    return own
