"""Many appends at once, whoever does them: what came of them, and what a loop felt meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from beside import beside
from peers import Turnlog
from table import Row, at_most, duration, median

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from heart import Heart
    from peers import Library, Thread


class Load(NamedTuple):
    """What came of many appends.

    Attributes:
        tried: the turns that were to be appended.
        acknowledged: those whose append returned without an error.
        kept: those that are in the thread afterwards, each counted once.
        seconds: how long it took.
    """

    tried: int
    acknowledged: int
    kept: int
    seconds: float

    @property
    def speed(self) -> float:
        """The acknowledged turns a second."""
        return self.acknowledged / self.seconds


async def append_each(thread: Thread, texts: Iterable[str], *, alone: bool = False) -> int:
    """Append texts one after another, and give how many were acknowledged."""
    acknowledged = 0
    for text in texts:
        try:
            await (thread.append_alone(text) if alone else thread.append(text))
        except Exception:  # noqa: BLE001 - what a library refuses is a figure here
            continue
        acknowledged += 1
    return acknowledged


async def count_kept(library: Library, id_: str, texts: set[str]) -> int:
    """Count those of the texts that a thread holds; none where it cannot be read any more."""
    try:
        return len(texts.intersection(await library.load(id_)))
    except Exception:  # noqa: BLE001 - what a library has broken is a figure here
        return 0


def load_rows(
    what: str, loads: Mapping[type[Library], Sequence[Load]], least: float | None = None
) -> Iterator[Row]:
    """Give the rows of a load: speed, and how many turns were kept over all repetitions."""
    yield from beside(
        what,
        {library: _shown(runs) for library, runs in loads.items()},
        {library: [run.speed for run in runs] for library, runs in loads.items()},
        least,
    )


def _shown(runs: Sequence[Load]) -> str:
    tried, acknowledged, kept = (
        sum(numbers) for numbers in zip(*(run[:3] for run in runs), strict=True)
    )
    lost = "" if acknowledged == kept else f", {acknowledged:,} acknowledged"
    speed = median(run.speed for run in runs)
    return f"{speed:,.0f} turns/s, kept {kept:,} of {tried:,}{lost}"


def delay_row(what: str, hearts: Mapping[type[Library], Sequence[Heart]]) -> Row:
    """Give the row of a loop's delay: the p99's median, and the worst of all repetitions."""
    shown = {library: delays(own) for library, own in hearts.items()}
    peers = [f"{one.label()}: {text}" for one, text in shown.items() if one is not Turnlog]
    p99 = median(heart.p99 for heart in hearts[Turnlog]) * 1e3
    return Row(what, shown[Turnlog], "; ".join(peers), "", at_most(5, p99, " ms p99"))


def delays(hearts: Sequence[Heart]) -> str:
    """Write the delays of a loop."""
    p99 = median(heart.p99 for heart in hearts)
    return f"p99 {duration(p99)}, worst {duration(max(heart.worst for heart in hearts))}"
