"""What a session of the server is made to be before the store uses it.

A role, a database, the URL and the environment may each set what changes how statements run and
what comes back. So each session sets all that the store depends on, in one round trip, after it has
looked at what cannot be set: the server's encoding, and whose the session is.

A pooler such as PgBouncer shows by the process that it names to the client, which is none of the
server's. In its session mode the session is ours until we leave. In its other modes it is ours for
one transaction: settings, locks and prepared statements would be mixed with those of others. That
shows where two connections, or two transactions of one, are served by the same and by another
process, and such a pooler is refused.
"""

from __future__ import annotations

import secrets
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from psycopg import OperationalError, errors
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters, types
from psycopg.types.array import register_all_arrays
from psycopg.types.numeric import Int8BinaryDumper

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from psycopg import Connection

_MOST_MILLISECONDS: Final = 2**31 - 1  # of a setting of the server
_ROUNDS: Final = 3  # of looking whether a session is shared: another client may be in between

# Kept while the session is ours, beside a number of the session's own. A pooler that gives the
# session to another client resets it first, and that frees the lock.
_OURS: Final = 0x7475726E  # the first of the lock's two numbers

# A row's lock is waited for longer than a commit takes, and no longer. A client that stands still
# in the middle of a transaction is cut off, and so is one whose machine is gone: its turn locks are
# free then. What was acknowledged is on the server's disk, whatever its default is. What is
# prepared is planned once: see `statements`. Rows that row security hides are an error, not absent.
# What an older server does not know is left out.
_SETTINGS: Final = """
    SELECT set_config(name, value, false) FROM (VALUES
        ('client_encoding', 'UTF8'), ('DateStyle', 'ISO, MDY'), ('TimeZone', 'UTC'),
        ('bytea_output', 'hex'), ('array_nulls', 'on'), ('standard_conforming_strings', 'on'),
        ('search_path', 'pg_catalog, pg_temp'), ('row_security', 'off'),
        ('default_transaction_isolation', 'read committed'),
        ('default_transaction_read_only', '{read_only}'),
        ('default_transaction_deferrable', 'off'), ('exit_on_error', 'off'),
        ('lock_timeout', '100ms'), ('statement_timeout', '{patience}'),
        ('idle_in_transaction_session_timeout', '{patience}'),
        ('idle_session_timeout', '0'), ('transaction_timeout', '0'),
        ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'),
        ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '30000'),
        ('plan_cache_mode', 'force_generic_plan'), ('enable_seqscan', 'off'), ('jit', 'off'),
        ('synchronous_commit', CASE current_setting('synchronous_commit')
            WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END)
    ) AS setting (name, value) WHERE current_setting(name, true) IS NOT NULL;
    SELECT pg_advisory_unlock_all();
    SELECT pid, backend_start, application_name, {token}
    FROM pg_stat_activity
    WHERE pid = pg_backend_pid() AND pg_try_advisory_lock_shared({ours}, {token});
"""
_END: Final = """
    SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity
    WHERE pid = %s AND backend_start = %s AND application_name = %s AND EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND objid = %s AND classid = %s AND objsubid = 2
        AND mode = 'ShareLock' AND granted AND pg_locks.pid = pg_stat_activity.pid
    )
"""
_PROCESS: Final = "SELECT pg_backend_pid()"


class Unfit(OperationalError):
    """Raised where a session cannot be used, however often it is tried.

    Attributes:
        hint: what the user can do.
    """

    def __init__(self, what: str, hint: str) -> None:
        """Say both."""
        super().__init__(what)
        self.hint: str = hint


def shared_session() -> Unfit:
    """Return the error for a pooler that gives a session to several clients."""
    return Unfit(
        "a pooler (PgBouncer?) gives its connection to the server to other clients between "
        "transactions, and the store needs it for itself",
        "set pool_mode = session for this database or user in the pooler, or connect to the "
        "server's own port",
    )


@cache
def plain_adapters() -> AdaptersMap:
    """Return how psycopg converts values by itself, whatever the program has registered for all."""
    adapters = AdaptersMap(types=types)
    register_default_adapters(adapters)
    register_all_arrays(adapters)
    adapters.register_dumper(int, Int8BinaryDumper)  # else a plan for each size
    return adapters


def set_up(connection: Connection[Any], *, read_only: bool, patience: float) -> tuple[Any, ...]:
    """Set all that the store depends on; return what names the session, or () if it has no name.

    Raises:
        psycopg.Error: the session could not be set up.
    """
    connection.prepare_threshold = sys.maxsize  # only what is meant to be; None is nothing
    # Another client of a pooler may have left statements of the names that begin at 0.
    connection._prepared._prepared_idx = secrets.randbits(60)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    settings = _SETTINGS.format(
        read_only="on" if read_only else "off",
        patience=round(min(patience * 1000, _MOST_MILLISECONDS)),
        ours=_OURS,
        token=secrets.randbits(31),
    )
    cursor = connection.execute(settings.encode())
    while cursor.nextset():
        pass
    return cursor.fetchone() or ()


def end(connection: Connection[Any], session: tuple[Any, ...]) -> None:
    """End a session that `set_up` named, if it is still the one that was set up.

    Raises:
        psycopg.Error: the server could not be asked, or does not allow it.
    """
    connection.execute(_END, (*session, _OURS))


def check_encoding(connection: Connection[Any]) -> None:
    """Raise Unfit if the database cannot hold every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise Unfit(
            f"its encoding is {encoding or 'unknown'}, which cannot hold every text",
            "make the database with ENCODING 'UTF8'",
        )


def is_pooled(connection: Connection[Any]) -> bool:
    """Tell whether something before the server answers in its place, as a pooler does.

    Raises:
        psycopg.Error: the session could not be asked, or is another one each time: Unfit.
    """
    first = _process(connection)
    if first == connection.info.backend_pid:
        return False
    if first != _process(connection):
        raise shared_session()
    return True


def check_not_shared(
    connection: Connection[Any], connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    """Raise Unfit if a pooler gives the session of a connection to others between transactions.

    Args:
        connection: a connection by way of a pooler.
        connect: makes another one.

    Raises:
        psycopg.Error: it could not be found out, or the pooler knows no transactions: Unfit.
    """
    with connect() as other:
        for _ in range(_ROUNDS):
            process = _process(connection)
            try:
                other.execute("BEGIN")
            except errors.ProtocolViolation as error:  # the mode in which it refuses transactions
                raise shared_session() from error
            # While the other one has its session in a transaction, ours must be the same as before.
            if _process(other) == process or _process(connection) != process:
                raise shared_session()
            other.execute("ROLLBACK")


def _process(connection: Connection[Any]) -> int:
    row = connection.execute(_PROCESS).fetchone()
    return 0 if row is None else row[0]
