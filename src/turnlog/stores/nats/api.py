"""The servers' API of JetStream: requests and answers in JSON, at subjects below `$JS.API`.

What is here is in every server since 2.9, but for what is said to be newer. Tried with 2.10.26,
2.12.8 and 2.15.1, alone and three of them; 2.9.10 crashes by itself where several read at once.

Source: NATS documentation, JetStream wire API reference; the servers' errors.json.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import MsgspecError, Struct, json  # noqa: TID251 - the servers speak JSON

from turnlog.stores.nats.failures import OutOfTime, Refused, Unanswered, Unsent
from turnlog.stores.nats.wire import Stored  # noqa: TC001 - msgspec looks at a struct's types

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from turnlog.stores.nats.connection import Connection
    from turnlog.stores.nats.deadline import Deadline

PREFIX: Final = "$JS.API"
NO_RESPONDERS: Final = "503"
_FIRST_PATIENCE: Final = 0.5  # seconds, for an answer: none comes from a leader just being elected
_LONGEST_PATIENCE: Final = 2.0
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

NO_PEERS: Final = 10005
NO_MESSAGE: Final = 10037
NO_MESSAGE_TO_DELETE: Final = 10057
ANOTHER_CONFIGURATION: Final = 10058
NO_STREAM: Final = 10059
STORE_FAILED: Final = 10077
_WRONG_LAST: Final = frozenset((10071, 10164))
_LATER: Final = frozenset((NO_PEERS, 10008, 10009, 10039, 10076, 10118, 10158, 10167))
_NO_ROOM: Final = frozenset((10023, 10028, 10047))
_BUSY: Final = 429


class ApiError(Struct):
    """Why a server did not do it.

    Attributes:
        code: which kind, as in HTTP.
        err_code: which error.
        description: the server's words.
    """

    code: int = 0
    err_code: int = 0
    description: str = ""

    def __str__(self) -> str:
        """Give the server's words and the code."""
        return f"{self.description} ({self.err_code})"

    def refusal(self) -> Refused:
        """Make the error to raise for it."""
        return Refused.by(str(self), self.err_code)

    @property
    def wrong_last(self) -> bool:
        """Whether the thread's last message was another one, or may be soon."""
        return self.err_code in _WRONG_LAST

    @property
    def later(self) -> bool:
        """Whether it may go well another time, and was surely not done now."""
        return self.err_code in _LATER or self.code == _BUSY

    @property
    def final(self) -> bool:
        """Whether the server will not do it, and no other one has done it."""
        if self.err_code == STORE_FAILED:  # a limit is seen before, a failing disk by one of them
            return self.description.startswith("maximum ")
        return self.err_code in _NO_ROOM or (self.code < 500 and not self.later)  # noqa: PLR2004


class Ack(Struct):
    """What is answered to a publisher.

    Attributes:
        seq: the sequence of the message.
        error: why it was not taken.
    """

    seq: int = 0
    error: ApiError | None = None


class Answer(Struct):
    """What any call is answered, at least.

    Attributes:
        error: why it was not done.
    """

    error: ApiError | None = None


class Got(Answer):
    """A message.

    Attributes:
        message: the message.
    """

    message: Stored | None = None


class Purged(Answer):
    """How much was removed.

    Attributes:
        purged: how many messages.
    """

    purged: int = 0


class Republish(Struct, frozen=True):
    """What is told to whoever listens when it was stored.

    Attributes:
        src: what subjects.
        dest: where it is told.
        headers_only: whether only the headers are.
    """

    src: str = ""
    dest: str = ""
    headers_only: bool = False


class StreamConfig(Struct, frozen=True, omit_defaults=True):
    """How a stream is set up; times in nanoseconds. As the servers document it."""

    name: str
    subjects: tuple[str, ...] = ()
    num_replicas: int = 1
    retention: str = ""
    storage: str = ""
    discard: str = ""
    max_msgs: int = 0
    max_bytes: int = 0
    max_age: int = 0
    max_msgs_per_subject: int = 0
    max_msg_size: int = 0
    duplicate_window: int = 0
    first_seq: int = 0  # since 2.10
    republish: Republish | None = None
    sealed: bool = False
    no_ack: bool = False
    mirror: object = None
    subject_transform: object = None
    persist_mode: str = ""  # since 2.12


class ClusterInfo(Struct):
    """Where in a cluster something is.

    Attributes:
        leader: the server that leads it.
    """

    leader: str = ""


class StreamState(Struct):
    """What a stream holds.

    Attributes:
        last_seq: the sequence of the last message that it ever took.
        subjects: how many messages it holds of each subject that was asked for.
    """

    last_seq: int = 0
    subjects: dict[str, int] | None = None


class StreamInfo(Answer):
    """A stream.

    Attributes:
        config: how it is set up; None where there is an error.
        state: what it holds; None where there is an error.
        cluster: who leads it.
    """

    config: StreamConfig | None = None
    state: StreamState | None = None
    cluster: ClusterInfo | None = None


class ConsumerInfo(Answer):
    """A consumer.

    Attributes:
        cluster: who leads it; None where there is one server only.
    """

    cluster: ClusterInfo | None = None


_Answer = TypeVar("_Answer", bound=Answer)
_Decoded = TypeVar("_Decoded", bound=Struct)
_STRANGE: Final = ApiError(500, 0, "somebody else answers in JetStream's place")


def is_unclaimed(message: Msg) -> bool:
    """Whether an answer says that nobody listens to what was asked."""
    return bool(message.headers) and message.headers.get("Status") == NO_RESPONDERS


def ack_of(message: Msg) -> Ack:
    """Read what a publisher is answered: by whoever listens, and need not be a stream."""
    ack = _decoded(message, Ack)
    return Ack(error=_STRANGE) if ack is None else ack


def _decoded(message: Msg, kind: type[_Decoded]) -> _Decoded | None:
    """Read an answer; None where it is none of JetStream's."""
    try:
        return json.decode(message.data, type=kind)
    except MsgspecError:
        return None


async def call(
    connection: Connection,
    name: str,
    request: Struct | dict[str, Any],
    kind: type[_Answer],
    deadline: Deadline,
) -> _Answer:
    """Call the API until it gives an answer, which may be a final error.

    What is called is such that doing it twice does no harm.

    Raises:
        OutOfTime: there was no answer in time.
        Refused: one may not call it.
    """
    pause, patience = _FIRST_PAUSE, _FIRST_PATIENCE
    payload = json.encode(request)
    while True:
        await connection.client(deadline)
        trouble = "the servers do not answer"
        try:
            seconds = min(patience, deadline.left)
            message = await connection.answer(f"{PREFIX}.{name}", payload, seconds)
        except Unsent:
            trouble = connection.trouble
        except Unanswered:
            patience = min(2 * patience, _LONGEST_PATIENCE)
        else:
            if is_unclaimed(message):
                trouble = "JetStream does not answer"
            else:
                answer = _decoded(message, kind)
                error = _STRANGE if answer is None else answer.error
                if answer is not None and (error is None or not error.later):
                    return answer
                trouble = str(error)
        if deadline.left < pause:
            raise OutOfTime.after(deadline.seconds, trouble)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def checked(answer: _Answer, *known: int) -> _Answer:
    """Give an answer back; raise Refused where it is an error, unless it is a known one."""
    if answer.error is not None and answer.error.err_code not in known:
        raise answer.error.refusal()
    return answer
