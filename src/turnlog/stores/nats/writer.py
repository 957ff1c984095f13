"""How a batch gets into the stream.

At first in the hope that nobody else has appended: each thread's lines are decided on no news, and
all of them are published side by side, each after the message that its caller has read. Where
another one came in between, what came is read and the thread is decided anew; where nothing is to
be appended, what came is read first.

Each append is one message. What is too large for one goes ahead in parts (see `wire`).
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from turnlog.errors import NotWritten, OutcomeUnknown, ReadOnly
from turnlog.stores.base import Outcome, Position, Read, replaced
from turnlog.stores.nats.deadline import Deadline
from turnlog.stores.nats.failures import Failure, Replaced
from turnlog.stores.nats.publisher import Publication, publish
from turnlog.stores.nats.uploads import Upload
from turnlog.stores.nats.wire import HEADER, Header, payload_of
from turnlog.stores.records import read_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnlog.errors import TurnlogError
    from turnlog.stores.base import Append
    from turnlog.stores.nats.session import Session

_MOST_LOSSES: Final = 20
_MOST_READINGS: Final = 64  # side by side
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05


class _Task:
    """One append of a batch, and how far it is.

    Attributes:
        append: what is wanted.
        news: what others appended, as far as it was read.
        lines: what it comes to after the news.
        fresh: the news was read, not only hoped for.
        losses: how often another one came in between.
        upload: its parts, where it is too large for one message.
        size: the size of the thread with its lines.
        publication: its message on its way.
        outcome: what became of it; None as long as that is open.
    """

    def __init__(self, append: Append) -> None:
        self.append = append
        self.news = Read(position=append.position)
        self.lines: Sequence[bytes] = ()
        self.fresh = False
        self.losses = 0
        self.upload: Upload | None = None
        self.size = 0
        self.publication: Publication | None = None
        self.outcome: Outcome | None = None

    def decide(self) -> None:
        """Ask what it comes to after the news; where it is nothing, and this is all, be done."""
        self.lines = self.append.decide(self.news)
        if self.fresh and not self.lines:
            self.outcome = Outcome(self.news, self.news.position)

    def take_in(self, read: Read) -> None:
        """Note what was read behind the news; be done where nothing came and nothing is wanted."""
        self.fresh = True
        before, self.news = self.news, read
        if before.lines or before.problems:
            self.news = _joined(before, read)
        if not self.lines and read.position == before.position:
            self.outcome = Outcome(self.news, self.news.position)

    def won(self, sequence: int) -> None:
        """Note that its lines are in the thread, behind the news."""
        before = self.news.position
        end = before.lines + len(self.lines)
        life = before.incarnation or sequence
        self.outcome = Outcome(self.news, Position(life, end, end, (sequence, self.size)))

    def failed(self, error: TurnlogError) -> None:
        """Note why nothing of it is in the thread, or that it cannot be known."""
        known = self.append.position
        self.outcome = Outcome(Read(position=known), known, error)

    def not_written(self, failure: Failure) -> None:
        """Note that nothing of it is in the thread, and will not be."""
        doing = "nothing was written" if self.lines else "it cannot be read"
        told = Failure(f"{failure.what}; {doing}" if self.lines else failure.what, failure.hint)
        self.failed(told.error(NotWritten, self.append.key))

    def unknown(self, failure: Failure) -> None:
        """Note that it cannot be known whether its lines are in the thread, or will be."""
        told = Failure(
            f"{failure.what}; whether it was written is not known",
            "open the thread again and look; trying again with the same key is safe",
        )
        self.failed(told.error(OutcomeUnknown, self.append.key))

    def lost(self) -> None:
        """Note that another one came in between; after too many, that the thread is busy."""
        self.losses += 1
        if self.losses == _MOST_LOSSES:
            known = self.append.position
            self.outcome = Outcome(Read(position=known), known, busy=True)


def _joined(before: Read, read: Read) -> Read:
    """Put together what was read in two steps."""
    whole = read_of([*before.lines, *read.lines], read.position)
    problems = (*before.problems, *read.problems)
    return Read(whole.lines, whole.position, whole.keys, problems)


class Writer:
    """Commits batches.

    Args:
        session: where to; it is used in the caller's OS thread.
        patience: the longest wait for the servers, in seconds.
        read_only: whether what has lines is refused.
    """

    def __init__(self, session: Session, patience: float, *, read_only: bool) -> None:
        """Commit nothing yet."""
        self._session = session
        self._patience = patience
        self._read_only = read_only

    def commit(self, batch: Sequence[Append]) -> list[Outcome]:
        """Append to each thread of the batch; give the outcomes in its order."""
        tasks = [_Task(append) for append in batch]
        deadline = Deadline(self._patience)
        while _open(tasks):
            for task in _open(tasks):
                task.decide()
                if task.lines and self._read_only:
                    task.failed(ReadOnly.of(task.append.key))
            self._run(tasks, deadline)
        return [task.outcome for task in tasks if task.outcome is not None]

    def _run(self, tasks: list[_Task], deadline: Deadline) -> None:
        if not _open(tasks) and not any(task.upload for task in tasks):
            return
        try:
            self._session.run(partial(_round, tasks, deadline))
        except Failure as failure:  # the session cannot be used: nothing was sent
            for task in _open(tasks):
                task.not_written(failure)


def _open(tasks: Sequence[_Task]) -> list[_Task]:
    return [task for task in tasks if task.outcome is None]


async def _round(tasks: list[_Task], deadline: Deadline, session: Session) -> None:
    """Publish what has been decided, and read where it has to be decided anew."""
    await _publish(session, [task for task in _open(tasks) if task.lines], deadline)
    await _read_news(session, _open(tasks), deadline)
    for task in tasks:
        if task.upload is not None:
            await _see_to_upload(task, deadline)


async def _read_news(session: Session, tasks: list[_Task], deadline: Deadline) -> None:
    if not tasks:
        return
    losses = max(task.losses for task in tasks)
    if losses > 1:  # else those who compete would go on in step
        pause = min(losses * _FIRST_PAUSE, _LONGEST_PAUSE)
        await asyncio.sleep(pause * secrets.randbelow(1000) / 1000)
    reading = asyncio.Semaphore(_MOST_READINGS)

    async def read(task: _Task) -> None:
        async with reading:
            await _read(session, task, deadline)

    await asyncio.gather(*map(read, tasks))


async def _read(session: Session, task: _Task, deadline: Deadline) -> None:
    try:
        task.take_in(await session.reader.read(task.append.key, task.news.position, deadline))
    except Replaced:
        task.failed(replaced(task.append.key))
    except Failure as failure:
        task.not_written(failure)


# ---- publishing ----


async def _publish(session: Session, tasks: list[_Task], deadline: Deadline) -> None:
    if not tasks:
        return
    try:
        await session.turns.prepare(deadline)
        most = session.turns.most
    except Failure as failure:
        for task in tasks:
            task.not_written(failure)
        return
    for task in tasks:
        try:
            await _make_publication(session, task, most, deadline)
        except Failure as failure:
            task.not_written(failure)
    trouble = Failure("", "")
    publications = [task.publication for task in _open(tasks) if task.publication is not None]
    try:
        await publish(session.turns, publications, deadline)
    except Failure as failure:
        trouble = failure
    for task in _open(tasks):
        await _settle(session, task, trouble)


async def _make_publication(session: Session, task: _Task, most: int, deadline: Deadline) -> None:
    """Make a task's message; where it is too large, send its parts ahead."""
    payload = payload_of(task.lines)
    before = task.news.position
    after, size = before.mark
    task.size = size + len(payload) + 1
    header = Header(
        count=len(task.lines),
        size=task.size,
        turns=before.lines,
        after=after,
        life=before.incarnation if isinstance(before.incarnation, int) else 0,
    )
    if len(payload) > most:
        upload = await _uploaded(session, task, payload, most, deadline)
        header = replace(header, parts=upload.parts, upload=upload.name, first=upload.first)
        payload = b""
    task.publication = Publication(
        subject=session.subjects.turns(task.append.key),
        id=secrets.token_hex(12),
        payload=payload,
        headers={HEADER: header.encoded()},
        expected=after,
    )


async def _settle(session: Session, task: _Task, trouble: Failure) -> None:
    message = task.publication
    if message is None:
        return
    if message.sequence:
        task.won(message.sequence)
        if message.doubtful:  # who was to tell may have died of it
            await session.connection.tell(session.subjects.news(task.append.key))
    elif message.lost:
        task.lost()
    elif message.refused is not None:
        task.not_written(message.refused)
    elif message.doubtful:
        task.unknown(trouble)
    else:
        task.not_written(trouble)


# ---- what is too large for one message ----


async def _uploaded(
    session: Session, task: _Task, payload: bytes, most: int, deadline: Deadline
) -> Upload:
    """Send the parts of a payload, unless they are there since an earlier try."""
    upload = task.upload
    if upload is None or not upload.first or upload.payload != payload:
        if upload is not None:
            await upload.remove()
        subject = session.subjects.parts(task.append.key, secrets.token_hex(12))
        upload = task.upload = Upload(session.turns, subject, payload, most)
        await upload.send(deadline)
    return upload


async def _see_to_upload(task: _Task, deadline: Deadline) -> None:
    """See that the parts are there where they belong to the thread, and are not where they do not.

    Where the outcome is unknown they may belong to it yet.
    """
    upload, outcome = task.upload, task.outcome
    if upload is None or outcome is None:
        return
    task.upload = None
    if outcome.busy or isinstance(outcome.error, NotWritten):
        await upload.remove()
    elif outcome.error is None and task.lines:
        try:
            await upload.ensure(deadline)
        except Failure as failure:
            task.unknown(failure)
