"""What the tests share: a memory of their own, a provider of models, and two watchmen."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from blockbuster import BlockBusterFunction, blockbuster_ctx
from hypothesis import settings

# The provider needs the standard library alone: tests without a model load nothing else for it.
sys.path.insert(0, str(Path(__file__).parent / "llm"))

from localserver import Provider, environment, serving

from turnlog import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator

# Started in the background of a shell, this ignores Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Give a provider that the real SDKs speak to, in this process and in those it starts."""
    with serving() as provider:
        for name, value in environment(provider).items():
            monkeypatch.setenv(name, value)
        yield provider


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
