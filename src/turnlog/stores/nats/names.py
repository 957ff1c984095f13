"""Threads' names as subjects, and back. Pure.

A subject is a row of tokens with dots between them. The threads of a stream `TURNLOG`:

    TURNLOG.<namespace>.<id>.turns       the messages of a thread
    TURNLOG.<namespace>.<id>.<upload>    the parts of one append that is too large for one message
    TURNLOG_NEWS.<namespace>.<id>        tells that a thread may have changed; it is not stored
    TURNLOG_LOCKS.<namespace>.<id>       a thread's turn lock, in a stream of its own

A name keeps its letters and digits of ASCII, and "_", "-" and "~"; every other byte of its UTF-8
becomes "%" and two hexadecimal digits. So each name has one token, and no two have the same.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote_to_bytes

from turnlog.names import ThreadKey, is_plain

_TURNS: Final = "turns"  # an upload's name is hexadecimal, so none is called like this


def token_of(name: str) -> str:
    """Give the token for a name."""
    return quote(name, safe="").replace(".", "%2E")


def name_of(token: str) -> str | None:
    """Give the name that a token stands for; None where it is the token of no name."""
    try:
        name = unquote_to_bytes(token).decode()
    except UnicodeDecodeError:
        return None
    return name if token_of(name) == token and is_plain(name) else None


class Subjects:
    """The subjects of a stream's threads.

    Args:
        stream: the stream's name.

    Attributes:
        all: what the stream takes.
        every_turns: what all threads' messages match.
        news_of_turns: where the news of what matches `every_turns` goes.
        locks: what the stream of the turn locks takes, and is called.
        edits: where the servers tell that one of the two streams was edited.
    """

    def __init__(self, stream: str) -> None:
        """Be the subjects of a stream."""
        self.stream = stream
        self.locks: str = f"{stream}_LOCKS"
        self.edits: tuple[str, ...] = tuple(
            f"$JS.EVENT.ADVISORY.STREAM.UPDATED.{name}" for name in (stream, self.locks)
        )
        self.all: str = f"{stream}.>"
        self.every_turns: str = f"{stream}.*.*.{_TURNS}"
        self.news_of_turns: str = f"{stream}_NEWS.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"

    def turns(self, key: ThreadKey) -> str:
        """Give where a thread's messages are."""
        return f"{self.stream}.{_tokens_of(key)}.{_TURNS}"

    def parts(self, key: ThreadKey, upload: str) -> str:
        """Give where the parts of one append are."""
        return f"{self.stream}.{_tokens_of(key)}.{upload}"

    def thread(self, key: ThreadKey) -> str:
        """Give what all that belongs to a thread matches."""
        return f"{self.stream}.{_tokens_of(key)}.>"

    def turns_of(self, namespace: str | None) -> str:
        """Give what the messages of a namespace's threads match; with None, of all."""
        return self.every_turns if namespace is None else self._turns_within(token_of(namespace))

    def _turns_within(self, token: str) -> str:
        return f"{self.stream}.{token}.*.{_TURNS}"

    def news(self, key: ThreadKey) -> str:
        """Give where it is told that a thread may have changed."""
        return f"{self.stream}_NEWS.{_tokens_of(key)}"

    def lock(self, key: ThreadKey) -> str:
        """Give where a thread's turn lock is."""
        return f"{self.locks}.{_tokens_of(key)}"

    def key_of(self, subject: str) -> ThreadKey | None:
        """Give the thread whose messages are at a subject; None where it is no thread's."""
        tokens = subject.split(".")
        if len(tokens) != 4 or tokens[0] != self.stream or tokens[3] != _TURNS:  # noqa: PLR2004
            return None
        namespace, id_ = name_of(tokens[1]), name_of(tokens[2])
        return ThreadKey(namespace, id_) if namespace is not None and id_ is not None else None


def _tokens_of(key: ThreadKey) -> str:
    return f"{token_of(key.namespace)}.{token_of(key.id)}"
