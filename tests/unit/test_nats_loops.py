"""The event loops of the JetStream store end, whatever is under way in them."""

from __future__ import annotations

import asyncio
import threading
from typing import TypeAlias

import pytest

from turnlog.stores.nats.failures import Failure
from turnlog.stores.nats.loops import BackgroundLoop, BorrowedLoop

Loop: TypeAlias = BackgroundLoop | BorrowedLoop


@pytest.fixture(params=[BackgroundLoop, BorrowedLoop])
def loop(request: pytest.FixtureRequest) -> Loop:
    """Give a loop of each kind."""
    made: Loop = request.param()
    return made


async def nothing() -> None:
    """Do nothing."""


async def stubborn(cancelled: list[bool]) -> None:
    """Go on after the first cancellation, as `wait_for` may before Python 3.12."""
    for _ in range(2):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(True)
            if len(cancelled) > 1:
                raise


def test_a_task_that_drops_a_cancellation(loop: Loop) -> None:
    """What is under way is cancelled until it ends."""
    cancelled = list[bool]()
    kept = list[asyncio.Task[None]]()

    async def begin() -> None:
        kept.append(asyncio.create_task(stubborn(cancelled)))
        await asyncio.sleep(0)

    loop.run(begin)
    loop.close(nothing)
    assert cancelled == [True, True]
    assert kept[0].cancelled()


def test_last_work_that_is_cancelled(loop: Loop) -> None:
    """A loop ends though its last work was cancelled, as to close a client may be."""

    async def last() -> None:
        raise asyncio.CancelledError

    loop.run(nothing)
    loop.close(last)
    with pytest.raises(Failure, match="closed"):
        loop.run(nothing)


def test_closed_in_the_middle_of_work() -> None:
    """Who waits for a background loop's work when it is closed is told so."""
    loop, working = BackgroundLoop(), threading.Event()
    told = list[Failure]()

    async def work() -> None:
        working.set()
        await asyncio.sleep(3600)

    def wait() -> None:
        with pytest.raises(Failure, match="closed") as error:
            loop.run(work)
        told.append(error.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert working.wait(60)
    loop.close(nothing)
    waiting.join()
    assert told
