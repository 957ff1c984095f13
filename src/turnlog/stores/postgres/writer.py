"""How a batch gets into the tables.

At first in the hope that nobody else has appended: each thread's part is decided on no news, and
all of them are written by one statement, a transaction of its own. What that leaves (a thread that
others appended to, or that was only to be read) is read, decided anew and written under the lock of
its row.

Where a connection is lost with a statement under way, the statement may have landed, or may still.
Each try carries an append id, which is kept beside its lines. The next try finds it under the lock
of the row, or else moves the thread on, so that the lost one, which only fits the thread as it was,
can land no more. So a turn is there once. Where patience ends first, the outcome is unknown.

Source: design, section 1, stores; section 4, points 1 to 4.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import errors

from turnlog.stores.postgres.connections import StillLocked
from turnlog.stores.postgres.part import Part
from turnlog.stores.postgres.reader import names_of, read, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnlog.names import ThreadKey
    from turnlog.stores.base import Append, Outcome
    from turnlog.stores.postgres.connections import Bounded, Connections
    from turnlog.stores.postgres.reader import Seen
    from turnlog.stores.postgres.statements import Statements

_LARGEST: Final = 8 << 20  # bytes of lines in one statement, unless one append alone has more


class Writer:
    """Commits batches.

    Args:
        connections: where to.
        statements: the SQL.
        read_only: whether what has lines is refused.
    """

    def __init__(
        self, connections: Connections, statements: Statements, *, read_only: bool
    ) -> None:
        """Commit nothing yet."""
        self._connections = connections
        self._statements = statements
        self._read_only = read_only

    def commit(self, batch: Sequence[Append]) -> Sequence[Outcome]:
        """Append to each thread of the batch; give the outcomes in its order."""
        parts = [Part(append) for append in batch]
        self._settle(sorted(parts, key=_key))
        return [part.outcome for part in parts if part.outcome is not None]

    def _settle(self, parts: Sequence[Part]) -> None:
        for part in parts:
            part.check(read_only=self._read_only)
        try:
            self._connections.run(lambda connection: self._attempt(connection, _open(parts)))
        except psycopg.Error as error:
            left = _open(parts)
            known = error.sqlstate is not None and not any(part.ids for part in left)
            if len(left) > 1 and known and not self._connections.worth_another_try(error):
                for part in left:  # what one of them cannot have, the others may
                    self._settle([part])
                return
            for part in left:
                part.fail(error)

    def _attempt(self, connection: Bounded, parts: Sequence[Part]) -> None:
        append = uuid.uuid4()
        try:
            self._hope(connection, parts, append)
            readings = [part for part in _open(parts) if not part.lines]
            if readings:
                for part, seen in zip(readings, self._read(connection, readings), strict=True):
                    part.take_in(seen)
            self._write_under_lock(connection, _open(parts), append)
        except psycopg.Error:
            if not connection.closed:  # the server has said no: nothing is under way
                _forget(parts, append)
            raise

    def _hope(self, connection: Bounded, parts: Sequence[Part], append: uuid.UUID) -> None:
        """Write what was decided on no news, at the first try."""
        hopeful = [part for part in parts if part.hopeful]
        for part in hopeful:
            part.hopeful = False
        self._write(connection, hopeful, append)

    def _write_under_lock(
        self, connection: Bounded, parts: Sequence[Part], append: uuid.UUID
    ) -> None:
        if not parts:
            return
        try:
            absent = self._write_locked(connection, self._statements.lock, parts, append)
        except errors.LockNotAvailable:
            absent = self._write_locked(connection, self._statements.lock_free, parts, append)
        self._write(connection, absent, append)
        for part in _open(parts):
            _wait_for(part)

    def _write_locked(
        self, connection: Bounded, lock: bytes, parts: Sequence[Part], append: uuid.UUID
    ) -> list[Part]:
        """Write to the threads that exist, in one transaction; give those that do not.

        What is locked by another, and passed over, is left open.
        """
        absent: list[Part] = []
        with connection.transaction():
            places: list[int] = [row[0] for row in rows_of(connection, lock, _names(parts))]
            locked = {parts[place] for place in places}
            for part, seen in zip(parts, self._read(connection, parts), strict=True):
                if seen is None or part in locked:
                    part.take_in(seen)
                if seen is None and part.outcome is None:
                    absent.append(part)
            ready = [part for part in _open(parts) if part in locked]
            won = self._swap(connection, ready, append)
        for part in won:
            part.won(append)
        return absent

    def _read(self, connection: Bounded, parts: Sequence[Part]) -> list[Seen | None]:
        keys = [part.append.key for part in parts]
        known = [part.append.position.offset for part in parts]
        tries = {append for part in parts for append in part.ids}
        return read(connection, self._statements, keys, known, list(tries))

    def _write(self, connection: Bounded, parts: Sequence[Part], append: uuid.UUID) -> None:
        for chunk in _chunks(parts):
            if not self._written(connection, chunk, append) and len(chunk) > 1:
                for part in chunk:
                    self._written(connection, [part], append)

    def _written(self, connection: Bounded, parts: Sequence[Part], append: uuid.UUID) -> bool:
        """Write parts; False where somebody takes his time to make a thread of such a name."""
        try:
            won = self._swap(connection, parts, append)
        except errors.LockNotAvailable:
            _forget(parts, append)
            return False
        for part in won:
            part.won(append)
        return True

    def _swap(
        self, connection: Bounded, parts: Sequence[Part], append: uuid.UUID
    ) -> Sequence[Part]:
        """Write the lines of parts whose threads are still as they were; give those parts."""
        if not parts:
            return ()
        for part in parts:
            part.tries(append)
        connection.swollen |= sum(part.size for part in parts) > 2 * _LARGEST
        if len(parts) == 1 and parts[0].known:
            lost = () if connection.put(*self._of_one(parts[0], append)) else (0,)
        else:
            rows = connection.put(self._statements.append_batch, _of_many(parts, append))
            lost = {row[0] for row in rows}
        if not lost:
            return parts
        _forget([parts[place] for place in lost], append)
        return [part for place, part in enumerate(parts) if place not in lost]

    def _of_one(self, part: Part, append: uuid.UUID) -> tuple[bytes, dict[str, object]]:
        parameters: dict[str, object] = {
            "namespace": part.append.key.namespace,
            "id": part.append.key.id,
            "life": part.life,
            "known": part.known,
            "count": len(part.lines),
            "size": part.size,
            "append": append,
        }
        if len(part.lines) == 1:
            parameters["line"] = part.lines[0].decode()
            return self._statements.append_line, parameters
        parameters["lines"] = [line.decode() for line in part.lines]
        return self._statements.append_lines, parameters


def _key(part: Part) -> ThreadKey:
    return part.append.key


def _wait_for(part: Part) -> None:
    """Have a part whose thread another has locked tried again: by its caller, if it is sure."""
    if part.ids:
        raise StillLocked
    part.busy()


def _open(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.outcome is None]


def _chunks(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Divide a batch so that no statement gets too large."""
    chunk: list[Part] = []
    size = 0
    for part in parts:
        if chunk and size + part.size > _LARGEST:
            yield chunk
            chunk, size = [], 0
        chunk.append(part)
        size += part.size
    if chunk:
        yield chunk


def _forget(parts: Sequence[Part], append: uuid.UUID) -> None:
    for part in parts:
        part.forget(append)


# ---- parameters ----


def _names(parts: Sequence[Part]) -> dict[str, list[str]]:
    return names_of([part.append.key for part in parts])


def _of_many(parts: Sequence[Part], append: uuid.UUID) -> dict[str, object]:
    namespaces: list[str] = []
    ids: list[str] = []
    places: list[int] = []
    seqs: list[int] = []
    lines: list[str] = []
    for place, part in enumerate(parts, 1):
        namespace, id_ = part.append.key
        for seq, line in enumerate(part.lines, part.known):
            namespaces.append(namespace)
            ids.append(id_)
            places.append(place)
            seqs.append(seq)
            lines.append(line.decode())
    return {
        **_names(parts),
        "lives": [part.life or append for part in parts],
        "known": [part.known for part in parts],
        "counts": [len(part.lines) for part in parts],
        "sizes": [part.size for part in parts],
        "append": append,
        "line_namespaces": namespaces,
        "line_ids": ids,
        "places": places,
        "seqs": seqs,
        "lines": lines,
    }
