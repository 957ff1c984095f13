"""PostgreSQL: the queries of the documents over turns of every kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import psycopg
import pytest

from turnlog import Memory

EXAMPLES: Final = re.findall(
    "```sql\n(.*?)```",
    (Path(__file__).parents[2] / "docs" / "postgresql.md").read_text(encoding="utf-8"),
    re.DOTALL,
)
# Each with what PostgreSQL shows of it.
CONTENTS: Final = {
    "\0": "\ufffd",
    "\0\0a\0": "\ufffd\ufffda\ufffd",
    "\\\0\\\\\0": "\\\ufffd\\\\\ufffd",
    "\\u0000 \\\\u0000 \\ud800": "\\u0000 \\\\u0000 \\ud800",
    "\ud83d": "\ufffd",
    "\udc80\\\udc80\\\\": "\ufffd\\\ufffd\\\\",
    "\ude00\ud83d x": "\ufffd\ufffd x",
    "🙂\x1f\x7f\u2028": "🙂\x1f\x7f\u2028",
    '"NaN" NaN -Infinity 1e999 {"a": ': '"NaN" NaN -Infinity 1e999 {"a": ',
    "": "",
    "%' ; -- $1 \t\r\n": "%' ; -- $1 \t\r\n",
    "half \udc80" * 100_000: "half \ufffd" * 100_000,
    "long \\ \0" * 100_000: "long \\ \ufffd" * 100_000,
}


@pytest.fixture
def hostile_url(postgres_url: str) -> str:
    """Return the URL of a database with turns of every kind in a thread that the docs name."""
    with Memory(postgres_url) as memory:
        thread = memory.open("user-42", namespace="support").append("My invoice is wrong.")
        for content in CONTENTS:
            thread.append(content)
        thread.append(
            "in meta", meta={"key\0": "\0\udc80", "big": 2**63 - 1, "small": 5e-324}, key="\0"
        )
    return postgres_url


def test_every_query_works(hostile_url: str) -> None:
    """Each statement of the documents' works over any turn that is accepted (C43)."""
    rows: list[list[tuple[object, ...]]] = []
    with psycopg.connect(hostile_url, autocommit=True) as connection:
        for example in EXAMPLES:
            if "PARTITION" in example:
                continue
            for statement in re.split(r";\n+(?=\S|$)", example):
                cursor = connection.execute(statement.encode())
                if cursor.description:
                    rows.append(cursor.fetchall())
    whole, searched, counted = rows
    assert len(whole) == len(CONTENTS) + 2
    assert searched == [("user-42", "My invoice is wrong.")]
    assert counted == [("support", "user", len(CONTENTS) + 2)]


def test_what_queries_show(hostile_url: str) -> None:
    """The function of the documents shows each turn, with U+FFFD for what no text holds (C43)."""
    (function,) = (
        re.match("CREATE FUNCTION.*?\\$\\$;\n", each, re.DOTALL) for each in EXAMPLES[1:2]
    )
    assert function is not None
    shown = "SELECT turnlog_json(line) ->> 'content' FROM turnlog_turn ORDER BY seq"
    with psycopg.connect(hostile_url, autocommit=True) as connection:
        connection.execute(function[0].encode())
        found = [content for (content,) in connection.execute(shown)]
    assert found == ["My invoice is wrong.", *CONTENTS.values(), "in meta"]
