"""The SQL of the store, with the names of its tables filled in.

An append is a compare-and-swap: it says how many turns of which life the thread has, and where
that is so no more, nothing is written. So one statement, in a transaction of its own, is enough
where nobody else has appended, and a statement that arrives late can do no harm.

Rows are locked in the order of their keys, in which a batch comes, new threads before those that
exist: `made` is evaluated before `locked` begins. A new thread waits for another's new thread of
the same name, or for the one who has an existing one; who appends to existing ones waits for
nobody. So no two batches can wait for each other.

A batch is planned once for each connection, whatever its size and that of the tables: to plan it
takes as long as a batch of fifty. So it must have only one good plan, which `LATERAL` and `IS TRUE`
see to: threads are looked up by the key's index, one after the other (`enable_seqscan` is off on
the store's connections), what the statement itself has made by hashing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnlog.stores.postgres.schema import sql

if TYPE_CHECKING:
    from turnlog.stores.postgres.location import Location

# An append to one thread gives a row where it was written, a batch one for each that was not.
# One existing thread: a third faster than the batch; one line of it: a fifth faster than several.
_APPEND = """
    WITH grown AS (
        UPDATE $thread SET turns = turns + %(count)b, size = size + %(size)b, modified = now()
        WHERE namespace = %(namespace)s AND id = %(id)s
        AND life = %(life)s AND turns = %(known)b
        RETURNING namespace, id
    ), kept AS (
        INSERT INTO $turn (namespace, id, seq, line, append)
        SELECT namespace, id, %(known)b + place - 1, line, %(append)s FROM grown, $added
    )
    SELECT 0 FROM grown
"""
_LINE = "(SELECT %(line)s AS line, 1 AS place) AS added"
_LINES = "unnest(%(lines)b::text[]) WITH ORDINALITY AS added (line, place)"

_APPEND_BATCH = """
    WITH wanted AS MATERIALIZED (
        SELECT * FROM unnest(
            %(namespaces)b::text[], %(ids)b::text[], %(lives)b::uuid[],
            %(known)b::bigint[], %(counts)b::bigint[], %(sizes)b::bigint[]
        ) WITH ORDINALITY AS w (namespace, id, life, known, count, size, place)
    ), made AS (
        INSERT INTO $thread (namespace, id, life, turns, size, modified)
        SELECT namespace, id, life, count, size, now() FROM wanted
        WHERE known = 0 ORDER BY namespace COLLATE "C", id COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING namespace, id
    ), locked AS (
        SELECT t.row, w.namespace, w.id, w.place, w.count, w.size
        FROM wanted w CROSS JOIN LATERAL (
            SELECT ctid AS row FROM $thread
            WHERE namespace = w.namespace AND id = w.id AND life = w.life AND turns = w.known
            FOR UPDATE SKIP LOCKED
        ) t
        WHERE w.known > 0 AND (SELECT count(*) FROM made) >= 0
    ), grown AS (
        UPDATE $thread t SET turns = t.turns + l.count, size = t.size + l.size, modified = now()
        FROM locked l WHERE t.ctid = l.row AND t.namespace = l.namespace AND t.id = l.id
        RETURNING l.place
    ), won AS (
        SELECT place FROM wanted
        WHERE known = 0 AND ((namespace, id) IN (SELECT namespace, id FROM made)) IS TRUE
        UNION ALL SELECT place FROM grown
    ), kept AS (
        INSERT INTO $turn (namespace, id, seq, line, append)
        SELECT namespace, id, seq, line, %(append)s
        FROM unnest(
            %(line_namespaces)b::text[], %(line_ids)b::text[],
            %(places)b::bigint[], %(seqs)b::bigint[], %(lines)b::text[]
        ) AS a (namespace, id, place, seq, line)
        WHERE (place IN (SELECT place FROM won)) IS TRUE
    )
    SELECT place - 1 FROM wanted WHERE (place IN (SELECT place FROM won)) IS NOT TRUE
"""

# Of each thread its life and its turns, and a page of what was appended from `known` on: the last
# place, the place of what one of some tries has appended, and the lines.
_READ = """
    SELECT w.place - 1, t.life, t.turns, a.last, a.landed, a.lines
    FROM unnest(
        %(namespaces)b::text[], %(ids)b::text[], %(known)b::bigint[]
    ) WITH ORDINALITY AS w (namespace, id, known, place)
    CROSS JOIN LATERAL (
        SELECT namespace, id, life, turns FROM $thread
        WHERE namespace = w.namespace AND id = w.id OFFSET 0
    ) t
    CROSS JOIN LATERAL (
        SELECT max(seq) AS last,
            min(seq) FILTER (WHERE append = ANY (%(tries)s::uuid[])) AS landed,
            array_agg(convert_to(line, 'UTF8') ORDER BY seq) AS lines
        FROM (
            SELECT seq, append, line,
                sum(octet_length(line)) OVER (ORDER BY seq) - octet_length(line) AS before
            FROM $turn
            WHERE namespace = t.namespace AND id = t.id AND seq >= w.known
            ORDER BY seq LIMIT %(page)b
        ) page WHERE before < %(most)b
    ) a
"""

_LOCK = """
    SELECT w.place - 1 FROM $thread t
    JOIN unnest(%(namespaces)b::text[], %(ids)b::text[]) WITH ORDINALITY AS w (namespace, id, place)
    USING (namespace, id)
    ORDER BY t.namespace, t.id FOR UPDATE OF t
"""

_TAIL = """
    SELECT t.life, t.turns, convert_to(a.line, 'UTF8')
    FROM $thread t LEFT JOIN LATERAL (
        SELECT line, seq FROM $turn WHERE namespace = t.namespace AND id = t.id
        ORDER BY seq DESC LIMIT %(count)b
    ) a ON true
    WHERE t.namespace = %(namespace)s AND t.id = %(id)s
    ORDER BY a.seq
"""

# Python has no time before the year 1 or after 9999, and a row is not to hide the others.
_MODIFIED = "greatest('0001-01-03Z', least('9999-12-29Z', modified))"

_THREADS = """
    SELECT namespace, id, size, $modified FROM $thread
    WHERE (namespace, id) > (%(namespace)s, %(id)s)
    ORDER BY namespace, id LIMIT %(page)b
"""

_THREADS_OF = """
    SELECT namespace, id, size, $modified FROM $thread
    WHERE namespace = %(namespace)s AND id > %(id)s
    ORDER BY id LIMIT %(page)b
"""

_STATES = """
    SELECT namespace, id, life, turns FROM $thread
    JOIN unnest(%(namespaces)b::text[], %(ids)b::text[]) AS w (namespace, id)
    USING (namespace, id)
"""

_DELETE_THREAD = "DELETE FROM $thread WHERE namespace = %(namespace)s AND id = %(id)s"
_DELETE_TURNS = "DELETE FROM $turn WHERE namespace = %(namespace)s AND id = %(id)s"


class Statements:
    """The statements over the tables of one location."""

    def __init__(self, location: Location) -> None:
        """Fill in the names."""
        self.append_line: bytes = sql(location, _APPEND.replace("$added", _LINE))
        self.append_lines: bytes = sql(location, _APPEND.replace("$added", _LINES))
        self.append_batch: bytes = sql(location, _APPEND_BATCH)
        self.read: bytes = sql(location, _READ)
        self.lock: bytes = sql(location, _LOCK)
        self.lock_free: bytes = sql(location, _LOCK.rstrip() + " SKIP LOCKED")
        self.tail: bytes = sql(location, _TAIL)
        self.threads: bytes = sql(location, _THREADS.replace("$modified", _MODIFIED))
        self.threads_of: bytes = sql(location, _THREADS_OF.replace("$modified", _MODIFIED))
        self.states: bytes = sql(location, _STATES)
        self.delete_thread: bytes = sql(location, _DELETE_THREAD)
        self.delete_turns: bytes = sql(location, _DELETE_TURNS)
