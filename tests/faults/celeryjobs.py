"""A real Celery worker, with jobs that append until their soft time limit ends that.

`python celeryjobs.py work FOLDER COUNT URL...` sends itself so many jobs, by files in FOLDER, and
works until it is ended. The stores take turns. Each job appends to a thread of its own and to one
that all jobs share, until Celery's `SoftTimeLimitExceeded` comes. Then it appends a last turn, and
leaves a file in FOLDER/done, which says how often it was told, by both threads, that a turn is
durable, or what it failed with.

Celery looks at the limits once a second. So only the first job of each store waits for its limit;
the others send themselves the limit's signal a moment after they begin. The handler is Celery's.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any, Final

from celery import Celery  # pyright: ignore[reportMissingTypeStubs]
from celery.exceptions import SoftTimeLimitExceeded  # pyright: ignore[reportMissingTypeStubs]

from turnlog import Memory

SHARED: Final = "shared"
LAST: Final = "last"
LOCK_TIMEOUT: Final = 5.0

app: Any = Celery("jobs", broker="filesystem://")


@cache
def memory(url: str) -> Memory:
    """Return the memory of this process, which all its jobs share."""
    return Memory(url, lock_timeout=LOCK_TIMEOUT)


@app.task(ignore_result=True)
def job(url: str, folder: str, number: int, *, limited: bool) -> None:
    """Append until the time limit comes, and a last turn after it."""
    said = ""
    try:
        said = _append_until_limit(memory(url), f"job-{number}", limited=limited)
    except BaseException as error:
        said = repr(error)
        raise
    finally:
        _leave(Path(folder) / "done", number, said)


def _append_until_limit(memory: Memory, name: str, *, limited: bool) -> str:
    count = 0
    try:
        thread, shared = memory.open(name), memory.open(SHARED)
        if not limited:
            after = random.uniform(0.01, 0.1)
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        while True:
            content = f"{name} {count}"
            thread.append(content)
            shared.append(content, key=content)
            count += 1
    except SoftTimeLimitExceeded:
        memory.open(name).append(LAST)
    return str(count)


def _leave(folder: Path, number: int, said: str) -> None:
    (folder / f".{number}").write_text(said, encoding="utf-8")
    (folder / f".{number}").rename(folder / str(number))


def main(folder: str, count: str, *urls: str) -> None:
    """Send jobs, and work."""
    for name in ("messages", "control"):
        Path(folder, name).mkdir()
    app.conf.update(
        broker_transport_options={
            "data_folder_in": f"{folder}/messages",
            "data_folder_out": f"{folder}/messages",
            "control_folder": f"{folder}/control",
            "polling_interval": 0.01,
        },
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )
    for number in range(int(count)):
        limited = number < len(urls)
        job.apply_async(
            (urls[number % len(urls)], folder, number),
            {"limited": limited},
            soft_time_limit=0.1 if limited else None,
        )
    app.worker_main(
        [
            *("worker", "--pool=prefork", "--concurrency=2", "--loglevel=warning"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ]
    )


if __name__ == "__main__":
    main(*sys.argv[2:])
