"""Work in an OS thread of its own, for what may block for long while an event loop goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

_Result = TypeVar("_Result")


def in_own_thread(work: Callable[[], _Result]) -> Future[_Result]:
    """Do something in an OS thread of its own; it goes on when its future is cancelled.

    Not in the loop's pool: all of its threads may be waiting for what this work lets go of.
    """
    from concurrent.futures import Future  # noqa: PLC0415 - loaded when it is needed

    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is the awaiting task's
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="turnlog-own", daemon=True).start()
    except RuntimeError:  # the system has no more of them: better here than never
        run()
    return future
