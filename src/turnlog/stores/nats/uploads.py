"""What is too large for one message goes ahead in parts, at a subject of its own.

Parts are nothing by themselves: they are turns when a message in the thread says so. Parts that no
such message followed are removed by who sent them; if he died, they go when the thread is deleted.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from turnlog.stores.nats.deadline import Deadline
from turnlog.stores.nats.failures import Failure
from turnlog.stores.nats.publisher import Publication, publish
from turnlog.stores.nats.wire import PART, split

if TYPE_CHECKING:
    from turnlog.stores.nats.stream import Stream

_PATIENCE_TO_REMOVE: Final = 2.0  # seconds


class Upload:
    """The parts of one payload.

    Args:
        stream: where to.
        subject: where they go; no other upload's.
        payload: what they hold.
        most: how much each of them may hold.

    Attributes:
        payload: what they hold.
        parts: how many they are.
        first: the sequence of the first of them; 0 as long as they are not all there.
    """

    def __init__(self, stream: Stream, subject: str, payload: bytes, most: int) -> None:
        """Send nothing yet."""
        self.payload = payload
        self.parts: int = -(-len(payload) // most)
        self.first: int = 0
        self._stream = stream
        self._subject = subject
        self._most = most

    @property
    def name(self) -> str:
        """What the subject ends in."""
        return self._subject.rpartition(".")[2]

    async def send(self, deadline: Deadline) -> None:
        """Send all parts.

        Raises:
            Failure: not all of them are there.
        """
        parts = [
            # Each time with an id of its own: the servers know ids of what was deleted, too.
            Publication(self._subject, secrets.token_hex(12), part, {PART: str(number)})
            for number, part in enumerate(split(self.payload, self._most))
        ]
        await publish(self._stream, parts, deadline)
        refused = next((part.refused for part in parts if part.refused is not None), None)
        if refused is not None:
            raise refused
        self.first = min(part.sequence for part in parts)

    async def ensure(self, deadline: Deadline) -> None:
        """See that they are there, now that the thread's message is.

        A thread that was deleted in between took them along, and the message came after that. What
        is deleted from now on takes the message along, too.

        Raises:
            Failure: that cannot be seen, or they cannot be sent again.
        """
        first = await self._stream.part(self._subject, self.first, deadline)
        if first is None or first.sequence != self.first:
            message_says = self.first
            await self.send(deadline)
            self.first = message_says  # whoever looks from there on finds them

    async def remove(self) -> None:
        """Remove them, since no message will need them."""
        with suppress(Failure):  # then they stay, and nobody sees them
            await self._stream.purge(self._subject, Deadline(_PATIENCE_TO_REMOVE))
