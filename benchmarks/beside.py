"""Rows that show turnlog's figure beside each peer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peers import Turnlog
from table import Row, at_least, ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from peers import Library


def beside(
    what: str,
    shown: Mapping[type[Library], str],
    speeds: Mapping[type[Library], Sequence[float]],
    least: float | None = None,
) -> Iterator[Row]:
    """Give a row for each peer, or turnlog's figure alone where none is installed.

    Args:
        what: what was measured.
        shown: each library's figure as the table shows it.
        speeds: each library's speed in each repetition.
        least: how many times as fast as a peer turnlog has to be. It is the target beside the peers
            that sync as turnlog does.
    """
    peers = [library for library in shown if library is not Turnlog]
    if not peers:
        yield Row(what, shown[Turnlog])
    for peer in peers:
        times = ratio(speeds[Turnlog], speeds[peer])
        yield Row(
            what,
            shown[Turnlog],
            f"{peer.label()}: {shown[peer]}",
            f"{times:.1f} x the speed",
            at_least(least, times, " x") if least is not None and peer.syncs else "",
        )
