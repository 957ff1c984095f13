"""Reads what threads hold, a page of lines at a time, however long they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import errors

from turnlog.stores.postgres.connections import StillLocked

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.postgres.connections import Bounded
    from turnlog.stores.postgres.statements import Statements

_PAGE: Final = 5000  # lines
_MOST: Final = (
    64 << 20
)  # bytes of them, unless one alone has more: it is one value, of 1 GB at most


class Seen:
    """What was read of a thread from some position on.

    Attributes:
        life: which life of it.
        turns: how many turns it has in all.
        lines: the lines.
        landed: the index of the line that one of the tries has appended first; None where none has.
    """

    __slots__ = ("_known", "landed", "life", "lines", "turns")

    def __init__(self, life: uuid.UUID, known: int) -> None:
        """Begin with no lines behind the first `known`."""
        self.life: uuid.UUID = life
        self.turns = known
        self.lines: list[bytes] = []
        self.landed: int | None = None
        self._known = known

    def add(
        self, turns: int, last: int | None, landed: int | None, lines: list[bytes] | None
    ) -> int | None:
        """Take a page; give where the next one begins, or None where this was the last."""
        self.turns: int = turns
        if lines is None or last is None:
            return None
        self.lines += lines
        if landed is not None and self.landed is None:
            self.landed = landed - self._known
        return last + 1 if last + 1 < turns else None


def read(
    connection: Bounded,
    statements: Statements,
    keys: Sequence[ThreadKey],
    known: Sequence[int],
    tries: Sequence[uuid.UUID] = (),
) -> list[Seen | None]:
    """Read what each thread holds behind its first `known` lines; None where there is no thread.

    Args:
        connection: where to.
        statements: the SQL.
        keys: the threads.
        known: of each, how many lines are not to be read.
        tries: append ids to look for.

    Raises:
        StillLocked: one was deleted and made anew in the middle of it.
        psycopg.Error: it could not be read.
    """
    found: list[Seen | None] = [None] * len(keys)
    lacking = dict(enumerate(known))  # where each thread's next page begins
    while lacking:
        places = list(lacking)
        parameters = {
            **names_of([keys[place] for place in places]),
            "known": list(lacking.values()),
            "page": _PAGE,
            "most": _MOST,
            "tries": list(tries),
        }
        lacking = {}
        for number, life, *page in rows_of(connection, statements.read, parameters, prepare=True):
            place = places[int(number)]
            seen = found[place] = found[place] or Seen(life, known[place])
            if seen.life != life:
                raise StillLocked
            start = seen.add(*page)
            if start is not None:
                lacking[place] = start
    return found


def rows_of(
    connection: Bounded, statement: bytes, parameters: dict[str, Any], *, prepare: bool = False
) -> list[tuple[Any, ...]]:
    """Ask for rows; where the tables were never made there are none.

    Args:
        connection: whom to ask.
        statement: what.
        parameters: its parameters.
        prepare: plan it once for the connection, whatever the parameters.

    Raises:
        psycopg.Error: they could not be read.
    """
    try:
        cursor = connection.cursor(binary=True)
        return cursor.execute(statement, parameters, prepare=prepare).fetchall()
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return []


def names_of(keys: Collection[ThreadKey]) -> dict[str, list[str]]:
    """Give the parameters that name threads."""
    return {"namespaces": [namespace for namespace, _ in keys], "ids": [id_ for _, id_ in keys]}
