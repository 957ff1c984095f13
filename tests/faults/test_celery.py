"""Jobs of a real Celery worker, whose soft time limit is raised in the middle of their appends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import celeryjobs
from celeryjobs import LAST, SHARED
from serverprocess import wait_until
from writers import each_in_order

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

COUNT: Final = 30
LONGEST: Final = 20.0


@contextmanager
def working(folder: Path, urls: Sequence[str]) -> Generator[None]:
    """Start a worker with its jobs; it and its children are dead when the block ends."""
    command = [sys.executable, celeryjobs.__file__, "work", str(folder), str(COUNT), *urls]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        ) as worker,
    ):
        try:
            yield
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            print((folder / "log").read_text(encoding="utf-8"))


def test_soft_time_limit(tmp_path: Path, postgres_url: str, nats_url: str) -> None:
    """Jobs on three stores go on after their time limit, with all that they were told (C45)."""
    urls = (str(tmp_path / "memory"), postgres_url, nats_url)
    done = tmp_path / "done"
    done.mkdir()
    with working(tmp_path, urls):
        with suppress(TimeoutError):
            wait_until(lambda: len([*done.glob("[0-9]*")]) == COUNT, "all jobs end", LONGEST)
        said = {int(file.name): file.read_text(encoding="utf-8") for file in done.glob("[0-9]*")}
        good = {number: int(what) for number, what in said.items() if what.isdecimal()}
        failed = {number: what for number, what in said.items() if number not in good}
        assert len(good) == COUNT, f"{len(failed)} of {COUNT} failed, {len(said)} ended: {failed}"
        for place, url in enumerate(urls):
            check(url, dict(sorted(good.items())[place :: len(urls)]))


def name_of(number: int) -> str:
    """Return the id of a job's own thread."""
    return f"job-{number}"


def check(url: str, counts: dict[int, int]) -> None:
    """Check that the worker left no lock, and that the turns of each job are there, in order."""
    with Memory(url, lock_timeout=2.0) as memory:
        shared = memory.open(SHARED).append("probe 0")
        in_shared = each_in_order(message.content for message in shared.messages())
        for number, count in counts.items():
            name = name_of(number)
            thread = memory.open(name).append("probe 0")
            turns = [message.content for message in thread.messages()]
            assert turns[-2:] == [LAST, "probe 0"]
            there = each_in_order(turns[:-2])[name]
            assert there in (count, count + 1)  # the limit may come after an append
            assert in_shared[name] in (count, there)
