"""What goes wrong between us and the servers, and what a user is told of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from turnlog.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Generator

_Error = TypeVar("_Error", bound=StoreError)

_AWAY: Final = (
    "see that the servers run, with JetStream and room on their disks, and can be reached; "
    "then try again"
)
_FULL: Final = "free space on the servers, or raise the limits of JetStream or of the stream"
_REPLICAS: Final = (
    "a single server keeps one copy: say ?replicas=1 in the URL; more need a cluster of as many"
)
_PERMISSION: Final = "give this user the permissions that docs/jetstream.md lists"
_HINTS: Final = {
    10002: _FULL,
    10005: _REPLICAS,
    10023: _FULL,
    10028: _FULL,
    10039: "enable JetStream for this account",
    10047: _FULL,
    10054: "raise the stream's max_msg_size, or append less at once",
    10065: "another stream takes these subjects: choose another stream name in the URL",
    10074: _REPLICAS,
    10077: _FULL,
    10109: "the stream was sealed: choose another stream name in the URL",
}


class Unsent(Exception):
    """Raised where there is no connection: nothing was sent."""


class Unanswered(Exception):
    """Raised where something was sent and the answer got lost: it may be done, or be done yet."""


class Broken(Exception):
    """Raised where a reading has to begin anew from where it was."""


class Replaced(Exception):
    """Raised where a thread is not the one that was read any more."""


class Failure(Exception):
    """What a user has to be told.

    Attributes:
        what: what is wrong.
        hint: what he can do.
    """

    def __init__(self, what: str, hint: str) -> None:
        """Say both."""
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def error(self, kind: type[_Error], subject: object) -> _Error:
        """Make the error to raise."""
        error = kind(subject, self.what, self.hint)
        error.__cause__ = self.__cause__
        return error


class OutOfTime(Failure):
    """Raised where the servers could not be reached, or could not do it, in time."""

    @classmethod
    def after(cls, seconds: float, trouble: str) -> OutOfTime:
        """Say how long it was tried, and what was the trouble last."""
        hint = _REPLICAS if "no suitable peers" in trouble else _AWAY
        return cls(f"the servers could not do it within {seconds:g} s ({trouble})", hint)


class Refused(Failure):
    """Raised where a server will not do it, however often it is asked."""

    @classmethod
    def by(cls, words: str, code: int) -> Refused:
        """Make it of the server's words, and its code for them."""
        hint = _HINTS.get(code, "look the code up in the servers' documentation")
        return cls(f"the server refused it: {words}", hint)

    @classmethod
    def permission(cls, trouble: str) -> Refused:
        """Make it of a permission that is missing."""
        return cls(f"the server refused it: {trouble}", _PERMISSION)

    @classmethod
    def foreign(cls, subject: str, sequence: int) -> Refused:
        """Make it for a message that turnlog did not write."""
        return cls(
            f"the message {sequence} of the stream, at {subject!r}, is none that this version of "
            f"turnlog has written",
            "use the newest turnlog, or remove the message: nats stream rmm",
        )


@contextmanager
def translated(subject: object, doing: str) -> Generator[None]:
    """Raise what goes wrong in the block as StoreError."""
    try:
        yield
    except Failure as failure:
        raise Failure(f"{doing}: {failure.what}", failure.hint).error(StoreError, subject) from (
            failure.__cause__
        )
