"""Which store a location means, and what is said where there is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from turnlog import Memory, MissingExtra, UnknownStore

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Have the stores on servers imported anew, as in a new process."""
    kept = {name: sys.modules.pop(name) for name in _loaded()}
    yield
    for name in _loaded():
        del sys.modules[name]
    sys.modules.update(kept)


def _loaded() -> list[str]:
    stores = ("turnlog.stores.postgres", "turnlog.stores.nats")
    return [name for name in sys.modules if name.startswith(stores)]


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("postgresql://bot:secret@localhost/chat", "psycopg", "postgres"),
        ("postgres://bot:secret@localhost/chat", "psycopg_pool", "postgres"),
        ("nats://bot:secret@localhost/CHAT", "nats", "nats"),
        ("tls://bot:secret@localhost/CHAT", "nats", "nats"),
    ],
)
def test_a_client_library_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    """Without a store's client library the error has the line to install it, and no password."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as caught:
        Memory(url)
    assert f"pip install 'turnlog[{extra}]'" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["mysql://bot:secret@localhost/chat", "postgresql+psycopg://bot:secret@localhost/chat"]
)
def test_a_scheme_that_is_not_known(url: str) -> None:
    """Where no store is known by a scheme, the error says which are, and no password."""
    with pytest.raises(UnknownStore, match=r"postgresql://…") as caught:
        Memory(url)
    assert "secret" not in str(caught.value)
