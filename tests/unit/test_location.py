"""Which store a location means, and what is said where there is none."""

from __future__ import annotations

import os
import pwd
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from turnlog import Memory, MissingExtra, StoreError, UnknownStore
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Iterator


class Place(os.PathLike[str]):
    """A path of some library's own."""

    def __init__(self, path: str) -> None:
        """Be the path."""
        self.path = path

    def __fspath__(self) -> str:
        """Return it."""
        return self.path


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


# ---- secrets ----

SECRET = "hunter2"
# URLs that lack a part, or the percent-encoding of what is special in them.
MISTYPED = [
    "postgresql:bot:{}@host/chat",
    "postgres:bot:{}@host",
    "postgresql:/bot:{}@host/chat",
    "PostgreSQL:bot:{}@host/chat",
    " postgresql:bot:{}@host/chat",
    "'postgresql://bot:{}@host/chat'",
    "postgresql://bot:{}@host\0/chat",
    "postgresql://bot:{}\ud800@host/chat",
    "postgresql://bot:{}/chat",
    "postgresql://bot:{}",
    "postgresql://host/chat;password={}",
    "postgresql://host/chat&password={}",
    "postgresql://host;password={}/chat",
    "postgresql://host,password={}/chat",
    "postgresql://host:5432 password={}/chat",
    "postgresql://host/chat?sslmode=disable;password={}",
    "postgresql://host/chat?max_connections=5;password={}",
    "postgresql+psycopg://bot:{}@host/chat",
    "nats:bot:{}@host/CHAT",
    "nats://bot:{}",
    "nats://bot:{}?x=y@host/CHAT",
    "nats://{}?@host",
    "nats://bot:{}@host:99999/CHAT",
    "nats://host/CHAT#{}",
    "nats://host/CHAT?replicas=3;password={}",
    "nats://host/CHAT?password={}",
    "nats://host/CHAT?{}",
    "nats://host/CHAT?tls_ca={}",
    "tls://host/CHAT?tls_ca=ca.pem;password={}",
    "mysql:bot:{}@host/chat",
    "bot:{}@host/chat",
    "{}:x@host/chat",
    "file://bot:{}@host/chat",
    "file:{}",
    "memory:{}",
    "memory://{}",
    "bot:{}@host://chat",
]


@pytest.mark.parametrize("url", MISTYPED)
@pytest.mark.parametrize("kind", [str, Place])
def test_a_mistyped_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, kind: type[str | Place]
) -> None:
    """A URL that is not well written makes no folder, and tells no secret part of it (C38)."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownStore) as caught:
        Memory(kind(url.format(SECRET)))
    told = [repr(caught.value), *traceback.format_exception(caught.value)]
    assert SECRET not in "".join(told)
    assert list(tmp_path.iterdir()) == []


def test_a_path_object_of_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that was made a Path, which takes a slash from it, is not a path (C38)."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownStore) as caught:
        Memory(Path(f"postgresql://bot:{SECRET}@host/chat"))
    assert SECRET not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["PostgreSQL://bot:hunter2@host/chat", "NATS://bot:hunter2@host/CHAT"]
)
def test_a_scheme_in_capitals(url: str) -> None:
    """A scheme means the same in capitals, and what is shown of the URL holds no password (C38)."""
    with Memory(url) as memory:
        assert url.partition(":")[0].lower() in repr(memory)
        assert SECRET not in repr(memory)


@pytest.mark.parametrize("name", ["notes:2024", "./postgresql:x", "./bot:pw@host", "a/b://c", "é:"])
def test_a_path_with_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A path may have a colon; one that looks like a URL begins with ./ (C38)."""
    monkeypatch.chdir(tmp_path)
    with Memory(name) as memory:
        assert isinstance(memory.store, JsonlStore)
        assert memory.store.root == os.path.abspath(name)


# ---- homes, and nothing ----


@pytest.mark.parametrize("url", ["~/x", "file:~/x", "file://~/x", "~//x", "~/y/../x"])
@pytest.mark.parametrize("way", ["location", "path", "environment", "store"])
def test_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, way: str) -> None:
    """`~` is the user's home in every location (C39)."""
    monkeypatch.setenv("HOME", str(tmp_path))
    if way == "environment":
        monkeypatch.setenv("TURNLOG_URL", url)
        store = Memory().store
    elif way == "store":
        store = JsonlStore(url.removeprefix("file:").removeprefix("//"))
    else:
        store = Memory(Place(url) if way == "path" else url).store
    assert isinstance(store, JsonlStore)
    assert store.root == str(tmp_path / "x")


def test_the_home_of_a_user() -> None:
    """`~user` is the home of that user (C39)."""
    user = pwd.getpwuid(os.geteuid())
    store = Memory(f"~{user.pw_name}/x").store
    assert isinstance(store, JsonlStore)
    assert store.root == os.path.join(user.pw_dir, "x")


def test_the_home_of_an_unknown_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home of an unknown user is refused, and no folder of that name is made (C39)."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownStore, match=r"~no-such-user/x.*does not know whose home"):
        Memory("~no-such-user/x")
    with Memory("./~no-such-user") as memory:
        memory.open("t").append("first")
    assert os.listdir() == ["~no-such-user"]


@pytest.mark.parametrize("location", ["", " ", "\n\t", "file:", "file://", "a\0b", "a\ud800b"])
@pytest.mark.parametrize("way", ["location", "path", "environment"])
def test_no_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, way: str
) -> None:
    """A location that is empty, blank or no path at all is refused, and makes nothing (C39)."""
    monkeypatch.chdir(tmp_path)
    if way == "environment":
        if not location or "\0" in location or "\ud800" in location:
            pytest.skip("a variable cannot be so, or is as good as not set")
        monkeypatch.setenv("TURNLOG_URL", location)
    with pytest.raises(UnknownStore, match=r"location '.*give "):
        Memory(None if way == "environment" else Place(location) if way == "path" else location)
    assert list(tmp_path.iterdir()) == []


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative location in a folder that was removed is an error of ours (C36)."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(StoreError, match="working directory"):
        Memory("memory")
