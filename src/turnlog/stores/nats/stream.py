"""Stream: one of our streams over one connection: made, looked at, read and purged.

A stream is made by the first who writes, and one that would lose turns is refused. It is looked at
in each life of the connection, when the servers tell that it was edited, and now and then, since a
user may not be allowed to hear that. Who reads makes none; where there is none, there is nothing.

The first message of a new stream gets the time in microseconds as its number. So when a stream is
deleted and made anew, no number comes twice, and who still knows an old message's cannot take
another one for it. Servers before 2.10 begin at 1 all the same: there, delete no stream under those
who have its threads open.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from turnlog.stores.nats.api import (
    ANOTHER_CONFIGURATION,
    NO_MESSAGE,
    NO_STREAM,
    Answer,
    Got,
    Purged,
    Republish,
    StreamConfig,
    StreamInfo,
    call,
    checked,
)
from turnlog.stores.nats.failures import OutOfTime, Refused
from turnlog.stores.nats.wire import ID, Foreign, headers_of, message_of, part_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeVar

    from turnlog.stores.nats.connection import Connection
    from turnlog.stores.nats.deadline import Deadline
    from turnlog.stores.nats.location import Location
    from turnlog.stores.nats.names import Subjects
    from turnlog.stores.nats.wire import Message, Part, Stored

    _Answer = TypeVar("_Answer", bound=Answer)

LEASE: Final = 15.0  # seconds that a turn lock lasts unless its holder renews it
_NANOSECONDS: Final = 1_000_000_000
_ROOM_FOR_HEADERS: Final = 1024  # bytes; ours take some 300
_LEAST_PART: Final = 1024
_PAUSE: Final = 0.05  # seconds
_LOOK_AGAIN: Final = 10.0  # seconds


def config_of_turns(location: Location, subjects: Subjects) -> StreamConfig:
    """Say how the stream of the threads is to be."""
    return StreamConfig(
        name=location.stream,
        subjects=(subjects.all,),
        num_replicas=location.replicas,
        storage="file",
        discard="new",
        republish=Republish(subjects.every_turns, subjects.news_of_turns, headers_only=True),
    )


def config_of_locks(location: Location, subjects: Subjects) -> StreamConfig:
    """Say how the stream of the turn locks is to be."""
    lease = int(LEASE * _NANOSECONDS)
    return StreamConfig(
        name=subjects.locks,
        subjects=(f"{subjects.locks}.>",),
        num_replicas=location.replicas,
        storage="file",
        max_msgs_per_subject=1,
        max_age=lease,
        duplicate_window=lease,
    )


class Stream:
    """A stream.

    Args:
        connection: where to.
        wanted: how it is to be, and is made.
    """

    def __init__(self, connection: Connection, wanted: StreamConfig) -> None:
        """Know only what is wanted."""
        self.connection = connection
        self.wanted = wanted
        self.name: str = wanted.name
        self._found = wanted
        self._changes = 0  # that we were told of
        self._looked_at: tuple[int, int] | None = None  # in which life, after how many changes
        self._look_again = 0.0

    # ---- the stream itself ----

    async def prepare(self, deadline: Deadline) -> None:
        """Make it, or look at it, unless that was done a short while ago.

        Raises:
            OutOfTime: the servers could not do it.
            Refused: it cannot be made, or it is one that loses turns.
        """
        await self.connection.client(deadline)
        now = self.connection.lives, self._changes
        if now == self._looked_at and time.monotonic() < self._look_again:
            return
        found = await self.look(deadline) or await self._make(deadline)
        _check(found, self.wanted)
        self._found = found
        self._looked_at = now
        self._look_again = time.monotonic() + _LOOK_AGAIN

    async def _make(self, deadline: Deadline) -> StreamConfig:
        """Make it, or find that somebody else has made it just now."""
        new = replace(self.wanted, first_seq=time.time_ns() // 1000)
        while not deadline.over:
            made = await self._call("CREATE", new, Answer, deadline)
            checked(made, ANOTHER_CONFIGURATION, NO_STREAM)
            found = await self.look(deadline)
            if found is not None:
                return found
            await asyncio.sleep(_PAUSE)  # of a cluster, not all know of it yet
        raise OutOfTime.after(deadline.seconds, "a stream was made and is not there")

    async def look(self, deadline: Deadline) -> StreamConfig | None:
        """Give how it is set up; None where there is none."""
        return (await self._info(deadline)).config

    async def leader(self, deadline: Deadline) -> str:
        """Give the server that leads it, which has all that was acknowledged."""
        cluster = (await self._info(deadline)).cluster
        return "" if cluster is None else cluster.leader

    async def _info(self, deadline: Deadline, **request: str) -> StreamInfo:
        return checked(await self._call("INFO", request, StreamInfo, deadline), NO_STREAM)

    def forget(self) -> None:
        """Look at it again before the next message: it may be gone, or another one.

        Any OS thread may call it, also while it is being looked at.
        """
        self._changes += 1

    @property
    def replicas(self) -> int:
        """How many servers keep each message."""
        return self._found.num_replicas

    @property
    def most(self) -> int:
        """The most bytes that one message may hold.

        Raises:
            Refused: they are too few to be of any use.
        """
        most = self.connection.max_payload
        if self._found.max_msg_size > 0:
            most = min(most, self._found.max_msg_size)
        if most < _LEAST_PART + _ROOM_FOR_HEADERS:
            raise Refused(
                f"messages may have {most} bytes at most",
                "raise the servers' max_payload, and the stream's max_msg_size",
            )
        return most - _ROOM_FOR_HEADERS

    # ---- messages ----

    async def last(self, subject: str, deadline: Deadline) -> Message | None:
        """Give the last message of a subject; None where there is none."""
        return await self._get(subject, {"last_by_subj": subject}, deadline)

    async def next(self, subject: str, sequence: int, deadline: Deadline) -> Message | None:
        """Give the first message of a subject from a sequence on; None where there is none."""
        return await self._get(subject, {"next_by_subj": subject, "seq": sequence}, deadline)

    async def next_id(
        self, subject: str, sequence: int, deadline: Deadline
    ) -> tuple[int, str] | None:
        """Give sequence and id of what `next` would give, whether it is a thread's or a lock's."""
        stored = await self._stored({"next_by_subj": subject, "seq": sequence}, deadline)
        return None if stored is None else (stored.seq, headers_of(stored.hdrs).get(ID, ""))

    async def at(self, subject: str, sequence: int, deadline: Deadline) -> Message | None:
        """Give the message of a sequence, which is at this subject; None where it is gone."""
        return await self._get(subject, {"seq": sequence}, deadline)

    async def is_gone(self, subject: str, sequence: int, deadline: Deadline) -> bool:
        """Tell whether a message is gone, with all of its subject, or the whole stream is.

        It is asked in one request: so who answers has had the message, and is not behind.
        """
        state = (await self._info(deadline, subjects_filter=subject)).state
        return state is None or (state.last_seq >= sequence and not state.subjects)

    async def _get(
        self, subject: str, request: dict[str, Any], deadline: Deadline
    ) -> Message | None:
        """Ask the one who leads the stream, so that all is seen that was acknowledged."""
        stored = await self._stored(request, deadline)
        if stored is None:
            return None
        try:
            return message_of(stored.seq, headers_of(stored.hdrs), stored.data)
        except Foreign:
            raise Refused.foreign(subject, stored.seq) from None

    async def part(self, subject: str, sequence: int, deadline: Deadline) -> Part | None:
        """Give the first part at a subject from a sequence on; None where there is none."""
        stored = await self._stored({"next_by_subj": subject, "seq": sequence}, deadline)
        return None if stored is None else part_of(stored)

    async def _stored(self, request: dict[str, Any], deadline: Deadline) -> Stored | None:
        got = await self._call("MSG.GET", request, Got, deadline)
        return checked(got, NO_MESSAGE, NO_STREAM).message

    async def purge(self, pattern: str, deadline: Deadline) -> int:
        """Remove all messages whose subjects match; give how many."""
        answer = await self._call("PURGE", {"filter": pattern}, Purged, deadline)
        return checked(answer, NO_STREAM).purged

    async def _call(
        self,
        name: str,
        request: StreamConfig | dict[str, Any],
        kind: type[_Answer],
        deadline: Deadline,
    ) -> _Answer:
        return await call(self.connection, f"STREAM.{name}.{self.name}", request, kind, deadline)


def _flaws(  # noqa: C901 - a flaw a line
    found: StreamConfig, wanted: StreamConfig
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a stream that is to keep turns, or turn locks, and its remedy.

    The remedy is an option of `nats stream edit`, or empty where a stream cannot be changed so.
    """
    if wanted.subjects[0] not in found.subjects:
        yield (
            f"it does not take the subjects {wanted.subjects[0]}",
            f"--subjects='{wanted.subjects[0]}'",
        )
    if found.sealed or found.mirror is not None:
        yield "it takes no messages", ""
    if found.subject_transform is not None:
        yield "it gives messages other subjects", ""
    if found.retention not in {"", "limits"}:
        yield "it forgets what was read (retention)", "--retention=limits"
    if found.storage == "memory":
        yield "it is kept in memory only (storage)", ""
    if found.no_ack or found.persist_mode == "async":
        yield "it does not wait for what is written (no_ack, persist_mode)", "--ack"
    if wanted.max_age:
        if (found.max_age, found.max_msgs_per_subject) != (wanted.max_age, 1):
            yield (
                "it does not forget what is old (max_age, max_msgs_per_subject)",
                f"--max-age={wanted.max_age // _NANOSECONDS}s --max-msgs-per-subject=1",
            )
        return
    if found.max_age > 0 or found.max_msgs_per_subject > 0:
        yield (
            "it forgets what is old (max_age, max_msgs_per_subject)",
            "--max-age=0s --max-msgs-per-subject=-1",
        )
    if found.discard == "old" and max(found.max_msgs, found.max_bytes) > 0:
        yield "it forgets what is old when it is full (discard)", "--discard=new"


def _check(found: StreamConfig, wanted: StreamConfig) -> None:
    """Raise Refused where a stream is not fit."""
    name = wanted.name
    if found.num_replicas < wanted.num_replicas:
        raise Refused(
            f"the stream {name} has {found.num_replicas} of {wanted.num_replicas} replicas",
            f"say ?replicas={found.num_replicas} in the URL, or give it more: "
            f"nats stream edit {name} --replicas {wanted.num_replicas}",
        )
    flaws = list(_flaws(found, wanted))
    if not flaws:
        return
    remedies = [remedy for _, remedy in flaws]
    hint = "choose another stream name in the URL"
    if all(remedies):
        hint = f"put that back: nats stream edit {name} {' '.join(remedies)}; or {hint}"
    raise Refused(f"the stream {name} is not fit: {'; '.join(flaw for flaw, _ in flaws)}", hint)
