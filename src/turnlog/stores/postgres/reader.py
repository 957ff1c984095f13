"""Reads what threads hold, a page of lines at a time, however long they are."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from psycopg import errors

from turnlog.stores.postgres.connections import StillLocked

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.postgres.connections import Bounded
    from turnlog.stores.postgres.statements import Statements

_PAGE: Final = 5000  # lines


def _place(row: tuple[Any, ...]) -> int:
    place: int = row[0]
    return place


class Seen:
    """What was read of a thread from some position on.

    Attributes:
        life: which life of it.
        turns: how many turns it has in all.
        seqs: the place of each line in the thread.
        ids: the append id of each line.
        lines: the lines.
    """

    __slots__ = ("ids", "life", "lines", "seqs", "turns")

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Take the rows that `Statements.read` gives of one thread."""
        self.life: uuid.UUID = rows[0][1]
        self.turns: int = rows[-1][2]
        found = [row for row in rows if row[3] is not None]
        self.seqs: list[int] = [row[3] for row in found]
        self.ids: list[uuid.UUID] = [row[4] for row in found]
        self.lines: list[bytes] = [row[5] for row in found]


def read(
    connection: Bounded, statements: Statements, keys: Sequence[ThreadKey], known: Sequence[int]
) -> list[Seen | None]:
    """Read what each thread holds behind its first `known` lines; None where there is no thread.

    Raises:
        StillLocked: one was deleted and made anew in the middle of it.
        psycopg.Error: it could not be read.
    """
    names = names_of(keys)
    rows: list[list[tuple[Any, ...]]] = [[] for _ in keys]
    since = list(known)
    lacking = list(range(len(keys)))
    while lacking:
        parameters = {
            "namespaces": [names["namespaces"][i] for i in lacking],
            "ids": [names["ids"][i] for i in lacking],
            "known": [since[i] for i in lacking],
            "page": _PAGE,
        }
        longer: list[int] = []
        for place, group in groupby(rows_of(connection, statements.read, parameters), _place):
            i, page = lacking[place], list(group)
            if rows[i] and page[0][1] != rows[i][0][1]:
                raise StillLocked
            rows[i] += page
            if len(page) == _PAGE:
                since[i] = page[-1][3] + 1
                longer.append(i)
        lacking = longer
    return [Seen(each) if each else None for each in rows]


def rows_of(
    connection: Bounded, statement: bytes, parameters: dict[str, Any]
) -> list[tuple[Any, ...]]:
    """Ask for rows; where the tables were never made there are none.

    Raises:
        psycopg.Error: they could not be read.
    """
    try:
        return connection.execute(statement, parameters, binary=True).fetchall()
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return []


def names_of(keys: Sequence[ThreadKey]) -> dict[str, list[str]]:
    """Give the parameters that name threads."""
    return {"namespaces": [key.namespace for key in keys], "ids": [key.id for key in keys]}
