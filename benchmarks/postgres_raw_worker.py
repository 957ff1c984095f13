"""A process of raw SQL: `postgres_raw_worker.py URL KIND NUMBER`, told what to do line by line.

`append COUNT` inserts so many rows, and answers `done`. The kind says what it does about NOTIFY:
nothing (`none`), as a part of the transaction (`inside`), or as turnlog does, after the commit and
of many turns at once (`after`). `wait` waits until it hears of something, and answers when that
was; for the kind `listen`.
"""

from __future__ import annotations

import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

import postgres_raw as raw

from turnlog.names import ThreadKey
from turnlog.stores.postgres.connections import Connections
from turnlog.stores.postgres.location import parse
from turnlog.stores.postgres.notifier import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

_PATIENCE: Final = 60.0


def main(url: str, kind: str, process: str) -> None:
    """Do as the lines say."""
    rows = raw.rows(f"{kind}-{process}")
    with raw.connected(url) as connection:
        if kind == "listen":
            connection.execute(f"LISTEN {raw.CHANNEL}".encode())
        notifier = Notifier(
            Connections(parse(url), read_only=False, patience=_PATIENCE), raw.CHANNEL
        )
        append = _way(kind, connection.cursor(binary=True), notifier)
        append(next(rows))  # prepares the statement
        for line in sys.stdin:
            order, *what = line.split()
            if order == "append":
                for row in islice(rows, int(what[0])):
                    append(row)
                print("done", flush=True)
            else:
                for _ in connection.notifies(timeout=_PATIENCE, stop_after=1):
                    print(time.perf_counter(), flush=True)
        notifier.close()


def _way(kind: str, cursor: psycopg.Cursor, notifier: Notifier) -> Callable[[raw.Values], None]:
    def none(row: raw.Values) -> None:
        raw.insert(cursor, row)

    def inside(row: raw.Values) -> None:
        raw.insert_and_notify(cursor, row)

    def after(row: raw.Values) -> None:
        raw.insert(cursor, row)
        notifier.tell([ThreadKey(row[0], row[1])])

    return {"inside": inside, "after": after}.get(kind, none)


if __name__ == "__main__":
    main(*sys.argv[1:])
