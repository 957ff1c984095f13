"""The tables, and how they came to be: made and brought up to date by us.

    turnlog_thread   a row a thread: which life of it, how many turns, their size, when written
    turnlog_turn     a row a turn, keyed (namespace, id, seq): its JSON line as text
    turnlog_version  one row: how many of the steps below the tables have gone through

A line is `text`: `jsonb` would refuse some of what JSON may hold, and give the rest back otherwise.
Names are in the collation "C", so that their order is the one of their characters' numbers.

Source: design, section 1, stores.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, Any, Final

from psycopg import Connection, errors

from turnlog.errors import StoreError

if TYPE_CHECKING:
    from turnlog.stores.postgres.location import Location

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE $thread (
        namespace text COLLATE "C" NOT NULL,
        id text COLLATE "C" NOT NULL,
        life uuid NOT NULL,
        turns bigint NOT NULL,
        size bigint NOT NULL,
        modified timestamptz NOT NULL,
        PRIMARY KEY (namespace, id)
    ) WITH (fillfactor = 80);
    CREATE TABLE $turn (
        namespace text COLLATE "C" NOT NULL,
        id text COLLATE "C" NOT NULL,
        seq bigint NOT NULL,
        line text NOT NULL,
        append uuid NOT NULL,
        at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, id, seq)
    );
    """,
)

# One lock for all schemas and prefixes: starting is seldom, and takes no time.
_LOCK: Final = "SELECT pg_advisory_xact_lock(8461093355092312321)"
_VERSION: Final = """
    CREATE TABLE IF NOT EXISTS $version (
        steps integer NOT NULL,
        the_one boolean PRIMARY KEY DEFAULT true CHECK (the_one)
    )
"""


def sql(location: Location, template: str) -> bytes:
    """Fill the names of the tables, which are plain, into a statement."""
    names = {
        name: f'"{location.schema}"."{location.prefix}{name}"'
        for name in ("thread", "turn", "version")
    }
    return Template(template).substitute(names, schema=f'"{location.schema}"').encode()


def version(connection: Connection[Any], location: Location) -> int | None:
    """Give how many steps the tables have gone through; None where there are none.

    Raises:
        StoreError: they are of a newer turnlog.
    """
    try:
        row = connection.execute(sql(location, "SELECT steps FROM $version")).fetchone()
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return None
    steps: int | None = row[0] if row else None
    if steps is not None and steps > len(STEPS):
        raise StoreError(
            location,
            f"its tables are of version {steps}, and this turnlog knows up to {len(STEPS)}",
            "upgrade turnlog here too",
        )
    return steps


def bring_up_to_date(connection: Connection[Any], location: Location) -> None:
    """Make the tables, or take them through the steps that they lack. Several may do so at once.

    Raises:
        StoreError: they are of a newer turnlog.
    """
    if version(connection, location) == len(STEPS):
        return  # also for a role that may not make tables
    with connection.transaction():
        connection.execute(_LOCK)
        if not _has_schema(connection, location):
            connection.execute(sql(location, "CREATE SCHEMA IF NOT EXISTS $schema"))
        connection.execute(sql(location, _VERSION))
        done = version(connection, location) or 0
        for step in STEPS[done:]:
            connection.execute(sql(location, step))
        connection.execute(
            sql(
                location,
                "INSERT INTO $version (steps) VALUES (%s) "
                "ON CONFLICT (the_one) DO UPDATE SET steps = excluded.steps",
            ),
            (len(STEPS),),
        )


def _has_schema(connection: Connection[Any], location: Location) -> bool:
    query = "SELECT FROM pg_namespace WHERE nspname = %s"
    return connection.execute(query, (location.schema,)).fetchone() is not None
