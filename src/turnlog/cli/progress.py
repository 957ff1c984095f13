"""A progress bar on standard error: for a person only, and only where the work takes a while."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from rich.progress import Progress

    _Item = TypeVar("_Item")

_PATIENCE: Final = 0.5  # seconds
_PERIOD: Final = 0.1


class Bar:
    """Shows how far a piece of work is, once it has taken half a second.

    Args:
        doing: what is being done, in a word.
        total: counts the steps; called only when the bar is first shown.

    A context manager: the bar is gone at the end.
    """

    def __init__(self, doing: str, total: Callable[[], int]) -> None:
        """Show nothing yet."""
        self._doing = doing
        self._count = total
        self._total: int | None = None
        self._done = 0
        self._progress: Progress | None = None
        self._due = time.monotonic() + _PATIENCE if sys.stderr.isatty() else float("inf")

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self.hide()

    def track(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Give the items, and count each as a step when the next one is asked for."""
        for item in items:
            yield item
            self._done += 1
            if time.monotonic() >= self._due:
                self._show()

    def hide(self) -> None:
        """Take the bar away for now, so that lines can be written where it stands."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._due = time.monotonic() + _PATIENCE

    def _show(self) -> None:
        if self._total is None:
            self._total = self._count()
        if self._progress is None:
            self._progress = _new_progress()
            self._progress.add_task(self._doing, total=self._total, completed=self._done)
            self._progress.start()
        task = self._progress.task_ids[0]
        self._progress.update(task, completed=self._done, refresh=True)
        self._due = time.monotonic() + _PERIOD


def _new_progress() -> Progress:
    from rich.console import Console  # noqa: PLC0415 - for people only
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # it would go to standard error
    )
