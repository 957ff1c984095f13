"""Turn locks as leases: messages that end by themselves, and that their holders renew.

A lock is the one message at its subject, in a stream of its own that forgets messages after a
while. It is taken by publishing after no message at all, renewed by publishing after one's own, and
let go of by removing that. So the servers decide who has it; the lock of a process that died is
free when the while is over, and so is that of one that stood still for longer.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from turnlog.stores.nats.api import NO_MESSAGE_TO_DELETE, Answer, call, checked
from turnlog.stores.nats.deadline import Deadline
from turnlog.stores.nats.failures import Failure
from turnlog.stores.nats.publisher import Publication, publish
from turnlog.stores.nats.stream import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnlog.names import ThreadKey
    from turnlog.stores.nats.session import Session

_RENEW: Final = LEASE / 5
_PATIENCE: Final = LEASE / 3  # to renew, or to let go


class _Lease:
    """A lock that we hold.

    Attributes:
        subject: where its message is.
        sequence: the message's number; 0 when it was let go of, or lost.
        changing: held by whoever changes it.
    """

    def __init__(self, subject: str, sequence: int) -> None:
        self.subject = subject
        self.sequence = sequence
        self.changing = asyncio.Lock()


class Leases:
    """The turn locks that a store holds.

    Args:
        session: where they are, with a loop that goes on by itself.
        patience: the longest wait for the servers, in seconds.
    """

    def __init__(self, session: Session, patience: float) -> None:
        """Hold none."""
        self._session = session
        self._patience = patience
        self._held: set[_Lease] = set()
        self._renewing: asyncio.Task[None] | None = None

    def try_take(self, key: ThreadKey) -> Callable[[], None] | None:
        """Take a thread's lock; give what lets go of it, or None where somebody has it.

        Raises:
            Failure: the servers could not do it.
        """
        lease = self._session.run(partial(self._take, self._session.subjects.lock(key)))
        return None if lease is None else partial(self._release, lease)

    async def _take(self, subject: str, session: Session) -> _Lease | None:
        sequence = await self._put(session, subject, 0, self._patience)
        if not sequence:
            return None
        lease = _Lease(subject, sequence)
        self._held.add(lease)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_all(session))
        return lease

    async def _put(self, session: Session, subject: str, after: int, patience: float) -> int:
        """Publish a lock's message after another one; give its number, 0 where it was lost."""
        message = Publication(subject, secrets.token_hex(12), b"", {}, after)
        await publish(session.locks, [message], Deadline(patience))
        if message.refused is not None:
            raise message.refused
        return message.sequence

    # ---- renewing ----

    async def _renew_all(self, session: Session) -> None:
        while True:
            await asyncio.sleep(_RENEW)
            await asyncio.gather(*(self._renew(session, lease) for lease in list(self._held)))

    async def _renew(self, session: Session, lease: _Lease) -> None:
        async with lease.changing:
            if not lease.sequence:
                return
            with suppress(Failure):  # the next time, perhaps
                lease.sequence = await self._put(
                    session, lease.subject, lease.sequence, _PATIENCE
                ) or await self._put(session, lease.subject, 0, _PATIENCE)
            if not lease.sequence:
                self._held.discard(lease)

    # ---- letting go ----

    def _release(self, lease: _Lease) -> None:
        if lease in self._held:  # else it was lost, or is a forked child's parent's
            with suppress(Failure):  # it ends by itself
                self._session.run(partial(self._let_go, lease))

    async def _let_go(self, lease: _Lease, session: Session) -> None:
        async with lease.changing:
            self._held.discard(lease)
            sequence, lease.sequence = lease.sequence, 0
            if sequence:
                request = {"seq": sequence, "no_erase": True}
                name = f"STREAM.MSG.DELETE.{session.locks.name}"
                deadline = Deadline(_PATIENCE)
                answer = await call(session.connection, name, request, Answer, deadline)
                checked(answer, NO_MESSAGE_TO_DELETE)

    def close(self) -> None:
        """Let go of all."""
        if self._held:
            with suppress(Failure):
                self._session.run(self._let_go_of_all)

    async def _let_go_of_all(self, session: Session) -> None:
        letting = [self._let_go(lease, session) for lease in list(self._held)]
        await asyncio.gather(*letting, return_exceptions=True)

    def after_fork(self) -> None:
        """In a forked child: hold none; they are the parent's."""
        self._held = set()
        self._renewing = None
