"""How threads are read: forward from a position, from their end, and only their names.

Each message says after which one it comes. So a few messages are read backwards from the last one,
each with a request of its own, which is faster than to set up a consumer; many are read by one. A
message that is missing shows, and costs only itself.

The requests are answered by the server that leads the stream, which has all that was acknowledged.
A consumer may be at one that is behind. Where it reads up to a message, that shows; where it lists
threads, it has to be where the leader is.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from turnlog.stores.base import START, Position, Problem, Read, ThreadInfo
from turnlog.stores.nats.consumer import Consumer
from turnlog.stores.nats.failures import Broken, OutOfTime, Refused, Replaced
from turnlog.stores.nats.wire import Foreign, Message, header_of, lines_of, message_of
from turnlog.stores.records import read_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.msg import Msg

    from turnlog.names import ThreadKey
    from turnlog.stores.nats.deadline import Deadline
    from turnlog.stores.nats.names import Subjects
    from turnlog.stores.nats.stream import Stream

_FEW: Final = 5  # messages: a consumer costs as much as so many requests,
_SOME: Final = 16  # and to look for the place to begin at, as so many
_PAUSE: Final = 0.02  # seconds
_LAST_LOOK: Final = 0.2
_NEAR: Final = 64  # turns that may be read too many, before what is looked for


def position_after(message: Message) -> Position:
    """Give the position behind a message.

    Its `offset` counts turns, and its mark is the message's sequence and the thread's size.
    """
    end = message.end
    return Position(message.life, end, end, (message.sequence, message.header.size))


class Reader:
    """Reads the threads of a stream.

    Args:
        stream: the stream.
        subjects: where the threads are in it.
    """

    def __init__(self, stream: Stream, subjects: Subjects) -> None:
        """Read nothing yet."""
        self._stream = stream
        self._subjects = subjects

    async def read(self, key: ThreadKey, position: Position, deadline: Deadline) -> Read:
        """Read a thread forward from a position.

        Raises:
            Replaced: the position is none in the thread as it is now.
            OutOfTime: the servers could not do it.
            Refused: they do not let us read, or something stands there that is no message of ours.
        """
        subject = self._subjects.turns(key)
        while True:
            last = await self._stream.last(subject, deadline)
            if position == START and last is None:
                return Read()
            known = position.mark[0]
            if last is None or (position != START and last.life != position.incarnation):
                if await self._is_replaced(subject, known, last, deadline):
                    raise Replaced
            elif last.sequence == known:
                return Read(position=position)
            elif last.sequence > known:
                messages = await self._between(subject, known, last, deadline)
                read = await self._read_of(key, messages, last, position, deadline)
                if read is not None:
                    return read
            await self._wait_for_leader(deadline)

    async def _is_replaced(
        self, subject: str, known: int, last: Message | None, deadline: Deadline
    ) -> bool:
        """Tell whether what was read is gone, or who answers is only behind it."""
        if self._stream.replicas == 1:  # there is nobody who would know better
            return True
        if last is None:
            return await self._stream.is_gone(subject, known, deadline)
        return last.sequence > known

    async def tail(self, key: ThreadKey, count: int, deadline: Deadline) -> Read:
        """Read the end of a thread: its last `count` turns at least. Raises as `read`."""
        subject = self._subjects.turns(key)
        while True:
            last = await self._stream.last(subject, deadline)
            if last is None or count <= 0:
                return Read() if last is None else Read(position=position_after(last))
            start = max(0, last.end - count)
            messages = await self._backwards(subject, last, deadline, start=start, most=_SOME)
            if messages[0].header.turns > start and messages[0].header.after:
                after = await self._sequence_before(subject, messages[0], start, deadline)
                messages = await self._forward(subject, after, last.sequence, deadline)
            first = messages[0].header.turns if messages else 0
            read = await self._read_of(key, messages, last, Position(0, first, first), deadline)
            if read is not None:
                return read
            await self._wait_for_leader(deadline)

    async def _wait_for_leader(self, deadline: Deadline) -> None:
        """Wait a little where less was found than there was: who leads no more may not know it."""
        if deadline.left < _LAST_LOOK:
            raise OutOfTime.after(deadline.seconds, "they have less of it than was read before")
        await asyncio.sleep(_PAUSE)

    # ---- messages ----

    async def _between(
        self, subject: str, after: int, last: Message, deadline: Deadline
    ) -> list[Message]:
        """Give the messages behind a sequence, up to the last one: without it where it is gone."""
        messages = await self._backwards(subject, last, deadline, after=after)
        if messages[0].header.after <= after:
            return messages
        return await self._forward(subject, after, last.sequence, deadline)

    async def _backwards(  # noqa: PLR0913 - two ends, and how far
        self,
        subject: str,
        last: Message,
        deadline: Deadline,
        *,
        after: int = 0,
        start: int = 0,
        most: int = _FEW,
    ) -> list[Message]:
        """Give the last messages, from behind a sequence or from a turn on, at most so many."""
        messages = [last]
        while messages[0].header.after > after and messages[0].header.turns > start:
            if len(messages) == most:
                break
            before = await self._stream.at(subject, messages[0].header.after, deadline)
            if before is None:
                break
            messages.insert(0, before)
        return messages

    async def _sequence_before(
        self, subject: str, known: Message, start: int, deadline: Deadline
    ) -> int:
        """Give a sequence not far before the message that has a turn, by halving what is left."""
        low, high = known.life, known.sequence
        while high - low > 1:
            middle = await self._stream.next(subject, (low + high) // 2, deadline)
            if middle is None or middle.sequence >= high:
                high = (low + high) // 2
            elif middle.header.turns > start:
                high = middle.sequence
            else:
                low = middle.sequence
                if start - middle.header.turns < _NEAR:
                    break
        return low - 1

    async def _forward(
        self, subject: str, after: int, to: int, deadline: Deadline
    ) -> list[Message]:
        """Give the messages behind a sequence, up to another one: without it where it is gone."""
        found: list[Message] = []
        while True:
            start = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, after + 1)}
            try:
                async with Consumer(self._stream, subject, start, deadline) as consumer:
                    while page := await consumer.page():
                        messages = [_message_of(each) for each in page]
                        found += [message for message in messages if message.sequence <= to]
                        after = found[-1].sequence if found else after
                        deadline.renew()
                        if messages[-1].sequence >= to:
                            break
                    return found
            except Broken:
                if deadline.over:
                    raise OutOfTime.after(
                        deadline.seconds, self._stream.connection.trouble
                    ) from None

    # ---- turns ----

    async def _read_of(
        self,
        key: ThreadKey,
        messages: list[Message],
        last: Message,
        position: Position,
        deadline: Deadline,
    ) -> Read | None:
        """Give what messages hold, up to the last one; None where that was deleted meanwhile."""
        if not messages or messages[-1].sequence != last.sequence:
            return None
        lines: list[bytes] = []
        problems: list[Problem] = []
        count = position.lines
        for message in messages:
            if message.header.turns > count:
                problems.append(_missing(count, message.header.turns))
            count = message.end
            own = await self._lines_of(key, message, deadline)
            if own is not None:
                lines += own
            elif await self._stream.at(self._subjects.turns(key), message.sequence, deadline):
                problems.append(_missing(message.header.turns, count))
            else:
                return None
        read = read_of(lines, position_after(last))
        return replace(read, problems=(*problems, *read.problems)) if problems else read

    async def _lines_of(
        self, key: ThreadKey, message: Message, deadline: Deadline
    ) -> list[bytes] | None:
        """Give the lines of a message; None where they are in parts, and those are gone."""
        if not message.header.parts:
            return lines_of(message.payload)
        subject = self._subjects.parts(key, message.header.upload)
        parts: dict[int, bytes] = {}
        sequence = message.header.first
        while len(parts) < message.header.parts:
            part = await self._stream.part(subject, sequence, deadline)
            if part is None:
                return None
            deadline.renew()
            parts[part.number] = part.payload  # one that was sent twice is the same
            sequence = part.sequence + 1
        return lines_of(b"".join(parts[number] for number in sorted(parts)))

    # ---- names ----

    async def threads(self, namespace: str | None, deadline: Deadline) -> list[ThreadInfo]:
        """List threads, by namespace and id."""
        while True:
            try:
                found = await self._list(self._subjects.turns_of(namespace), deadline)
            except Broken:
                found = None
            if found is not None:
                return sorted(found, key=lambda info: (info.namespace, info.id))
            if deadline.over:
                raise OutOfTime.after(deadline.seconds, self._stream.connection.trouble)

    async def _list(self, pattern: str, deadline: Deadline) -> list[ThreadInfo] | None:
        """List threads as the server has them that leads the stream; None where it is another."""
        leader = await self._stream.leader(deadline)
        start = {"deliver_policy": "last_per_subject", "headers_only": True}
        found: list[ThreadInfo] = []
        async with Consumer(self._stream, pattern, start, deadline) as consumer:
            if consumer.server not in {None, leader}:
                return None
            while page := await consumer.page():
                found += self._infos(page)
                deadline.renew()
        return found if await self._stream.leader(deadline) == leader else None

    def _infos(self, page: Sequence[Msg]) -> list[ThreadInfo]:
        infos: list[ThreadInfo] = []
        for message in page:
            key = self._subjects.key_of(message.subject)
            if key is None:
                continue
            about = message.metadata
            try:
                header = header_of(about.sequence.stream, message.headers or {})
            except Foreign:
                continue
            modified = about.timestamp.astimezone(dt.UTC)
            infos.append(ThreadInfo(key.namespace, key.id, header.size, modified))
        return infos


def _message_of(message: Msg) -> Message:
    try:
        return message_of(message.metadata.sequence.stream, message.headers or {}, message.data)
    except Foreign as foreign:
        raise Refused.foreign(message.subject, foreign.sequence) from None


def _missing(start: int, end: int) -> Problem:
    what = f"the turns {start + 1} to {end} are missing: somebody removed their message"
    return Problem(start + 1, start, 0, what)
