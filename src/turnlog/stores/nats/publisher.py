"""How messages get into a stream, each once, whatever happens on the way.

A message says after which sequence of its subject it belongs. The stream takes it there and nowhere
else, so however often it is sent, it is there once. Where an answer gets lost the message is sent
again, until there is an answer; where that is that something else stands there now, it may be the
message itself: then it is looked for by its id.

The servers know messages by their ids too, for two minutes. That is not relied on: in which order
they look at the id and at the sequence differs by version, and between one server and a cluster.

A cluster also says so while another message for the subject is under way, which may come to nothing
yet: then there is nothing new to be found, and it is sent again. So does a node that led the
stream, was cut off, and does not know better yet: often sooner than the one that leads, and has
taken it. So in a cluster the message is looked for whenever one says that another came.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from turnlog.stores.nats.api import STORE_FAILED, ack_of, is_unclaimed
from turnlog.stores.nats.failures import OutOfTime, Refused, Unanswered, Unsent
from turnlog.stores.nats.wire import EXPECTED, ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nats.aio.msg import Msg

    from turnlog.stores.nats.api import ApiError
    from turnlog.stores.nats.deadline import Deadline
    from turnlog.stores.nats.stream import Stream

_MOST_AT_ONCE: Final = 500
_MOST_BYTES_AT_ONCE: Final = 8 << 20
_PATIENCE: Final = 2.0  # seconds, for an answer
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.5


class Publication(Struct, eq=False, gc=False):
    """A message on its way.

    Attributes:
        subject: where to.
        id: its own, which no other message has.
        payload: what it holds.
        headers: what it says of itself.
        expected: the sequence that the subject's last message is to have; None where it is all
            the same.
        sequence: where it landed; 0 as long as it did not.
        lost: something else stands in its place, and it will never be there.
        refused: why it was not taken, and never will be.
        doubtful: it was sent, and whether it was taken is not known.
    """

    subject: str
    id: str
    payload: bytes
    headers: dict[str, str]
    expected: int | None = None
    sequence: int = 0
    lost: bool = False
    refused: Refused | None = None
    doubtful: bool = False

    def __post_init__(self) -> None:
        """Add what the servers look at."""
        self.headers[ID] = self.id
        if self.expected is not None:
            self.headers[EXPECTED] = str(self.expected)

    @property
    def settled(self) -> bool:
        """Whether it is known what became of it."""
        return bool(self.sequence) or self.lost or self.refused is not None


async def publish(stream: Stream, publications: Sequence[Publication], deadline: Deadline) -> None:
    """Publish messages side by side, each at a subject of its own or without an expected sequence.

    What is not settled in the end was not sent, or is doubtful.

    Raises:
        OutOfTime: not all are settled.
        Refused: so it is, and the stream is not one to send them to again.
    """
    waiting = publications
    pause = _FIRST_PAUSE
    while True:
        try:
            await stream.prepare(deadline)
        except Refused as refused:
            _refuse(waiting, refused)
            await _look_for_doubtful(stream, waiting, refused, deadline)
        else:
            for group in _groups(waiting):
                await _attempt(stream, group, deadline)
        before, waiting = waiting, [each for each in waiting if not each.settled]
        if not waiting:
            return
        if len(waiting) < len(before):
            deadline.renew()
            pause = _FIRST_PAUSE
        if deadline.left < pause:
            raise OutOfTime.after(deadline.seconds, stream.connection.trouble)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _refuse(publications: Sequence[Publication], refused: Refused) -> None:
    for publication in publications:
        if not publication.doubtful:
            publication.refused = refused


async def _look_for_doubtful(
    stream: Stream, publications: Sequence[Publication], refused: Refused, deadline: Deadline
) -> None:
    """Look for what was sent before a stream was refused; raise where it is not there yet."""
    for publication in publications:
        if publication.refused is None and publication.expected is not None:
            await _look_for(stream, publication, deadline)
    if not all(publication.settled for publication in publications):
        raise refused


def _groups(publications: Sequence[Publication]) -> Iterator[list[Publication]]:
    """Give them by as many as may be under way at once."""
    group: list[Publication] = []
    size = 0
    for publication in publications:
        size += len(publication.payload)
        if group and (len(group) == _MOST_AT_ONCE or size > _MOST_BYTES_AT_ONCE):
            yield group
            group, size = [], len(publication.payload)
        group.append(publication)
    if group:
        yield group


async def _attempt(stream: Stream, group: list[Publication], deadline: Deadline) -> None:
    """Send each once, and take in what is answered."""
    answers: list[tuple[Publication, asyncio.Future[Msg]]] = []
    for publication in group:
        try:
            answer = await stream.connection.ask(
                publication.subject, publication.payload, publication.headers
            )
        except Unsent:
            break  # the rest would fare no better
        answers.append((publication, answer))
    if not answers:
        return
    waiting = [answer for _, answer in answers]
    await asyncio.wait(waiting, timeout=min(_PATIENCE, deadline.left))
    if not all(answer.done() for answer in waiting):
        await stream.connection.probe()
    for publication, answer in answers:
        await _settle(stream, publication, answer, deadline)


async def _settle(
    stream: Stream, publication: Publication, answer: asyncio.Future[Msg], deadline: Deadline
) -> None:
    if not answer.done():
        answer.cancel()
        stream.connection.trouble = "the servers do not answer"
        publication.doubtful = True
        return
    try:
        message = answer.result()
    except Unanswered:
        publication.doubtful = True
    except Refused as refused:
        _refuse([publication], refused)
    else:
        if is_unclaimed(message):
            stream.connection.trouble = f"nobody takes messages for the stream {stream.name}"
            stream.forget()
            return
        ack = ack_of(message)
        if ack.error is not None:
            await _take_in(stream, publication, ack.error, deadline)
        elif ack.seq:
            publication.sequence = ack.seq
        else:  # servers before 2.11 call one a duplicate that they have not taken yet
            publication.doubtful = True
            await _look_for(stream, publication, deadline)


async def _take_in(
    stream: Stream, publication: Publication, error: ApiError, deadline: Deadline
) -> None:
    stream.connection.trouble = str(error)
    if error.wrong_last:
        if publication.doubtful or stream.replicas > 1:
            await _look_for(stream, publication, deadline)
        else:
            publication.lost = True
    elif error.final or (error.err_code == STORE_FAILED and stream.replicas == 1):
        _refuse([publication], error.refusal())
    elif not error.later:
        publication.doubtful = True


async def _look_for(stream: Stream, publication: Publication, deadline: Deadline) -> None:
    """Find out what stands in a message's place; nothing does as long as it is under way.

    That nothing does proves nothing, since who leads no more may not know it yet; unless the thread
    is gone that the message was to go on with.
    """
    after = publication.expected or 0
    found = await stream.next_id(publication.subject, after + 1, deadline)
    if found is None:
        publication.doubtful = True
        publication.lost = bool(after) and await stream.is_gone(
            publication.subject, after, deadline
        )
        return
    sequence, id_ = found
    if id_ == publication.id:
        publication.sequence = sequence
    else:
        publication.lost = True
