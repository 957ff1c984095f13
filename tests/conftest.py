"""What all the tests share: a memory of their own, and two watchmen."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest
from blockbuster import BlockBusterFunction, blockbuster_ctx
from hypothesis import settings

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A disk may take its time; in CI a run is the same each time.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give the root folder of a memory; it does not exist yet."""
    return tmp_path / "memory"


@pytest.fixture
def memory(root: Path) -> Iterator[Memory]:
    """Give a memory over `root`, closed at the end."""
    with Memory(root) as memory:
        yield memory


@pytest.fixture
def no_blocking() -> Iterator[None]:
    """Make every call fail that blocks in a running event loop; in other threads it may block."""
    with blockbuster_ctx() as watch:
        for module, name in (
            (os, "fsync"),
            (os, "fdatasync"),
            (os, "pread"),
            (os, "open"),
            (fcntl, "flock"),
        ):
            watch.functions[name] = BlockBusterFunction(module, name).activate()
        yield
