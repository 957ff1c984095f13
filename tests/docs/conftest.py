"""What the documents and the examples run against: a stand-in for the providers of models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "llm"))

from localserver import Provider, environment, serving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Give a provider that the real SDKs speak to, in this process and in those it starts."""
    with serving() as provider:
        for name, value in environment(provider).items():
            monkeypatch.setenv(name, value)
        yield provider
