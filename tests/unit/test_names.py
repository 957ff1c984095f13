"""The rules for plain names: each rule, its error's text, and that nothing is made on the disk."""

from __future__ import annotations

import asyncio
import enum
import os
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog import InvalidName, Memory, NotAThread, ThreadKey, TurnlogError
from turnlog.names import MAX_NAME_BYTES, check_name, is_plain, thread_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEPARATOR = "it holds a path separator"
CONTROL = "it holds NUL, a control character or half a character"
DOT = "it starts with '.'"
SPACE = "it starts or ends with white space"
NFC = "it is not in Unicode's NFC form: another spelling of it would be another file"
LONG = "it takes more than 240 bytes in UTF-8"

BROKEN: list[tuple[Any, str]] = [
    ("", "it is empty"),
    (None, "it is of type NoneType, not str"),
    (7, "it is of type int, not str"),
    (b"bytes", "it is of type bytes, not str"),
    (("a", "b"), "it is of type tuple, not str"),
    ("a/b", SEPARATOR),
    ("/", SEPARATOR),
    ("/etc/passwd", SEPARATOR),
    ("../up", SEPARATOR),
    ("a/../../b", SEPARATOR),
    ("..\\up", SEPARATOR),
    ("a\\b", SEPARATOR),
    ("a\0b", CONTROL),
    ("a\nb", CONTROL),
    ("a\x1b[31m", CONTROL),
    ("a\x7f", CONTROL),
    ("a\x85b", CONTROL),
    ("a\x9f", CONTROL),
    ("\ud800", CONTROL),
    ("a\udcffb", CONTROL),
    (".", DOT),
    ("..", DOT),
    (".hidden", DOT),
    ("...", DOT),
    (" a", SPACE),
    ("a ", SPACE),
    ("a\u00a0", SPACE),
    ("\u3000a", SPACE),
    ("a\u2028", SPACE),
    ("e\u0301", NFC),
    ("\u212b", NFC),
    ("\u1100\u1161", NFC),
    ("x" * 241, LONG),
    ("\u00e9" * 121, LONG),
    ("\U0001f9f5" * 61, LONG),
]

PLAIN = [
    "a",
    "user-42",
    "a.b",
    "a..b",
    "a b",
    "trailing.",
    "~",
    "-",
    "a:b*?|",
    "CON",
    "\u00e9",
    "\u65e5\u672c\u8a9e",
    "\U0001f469\u200d\U0001f4bb",
    "x" * 240,
    "\u00e9" * 120,
    "\U0001f9f5" * 60,
]


@pytest.mark.parametrize(("name", "rule"), BROKEN, ids=lambda value: ascii(value)[:30])
def test_a_name_that_breaks_a_rule_is_told_which(name: Any, rule: str) -> None:
    """The error says whether it is the id or the namespace, shows it and names its rule. R10."""
    for what, give in (("id", {"id": name}), ("namespace", {"id": "x", "namespace": name})):
        with pytest.raises(InvalidName) as caught:
            thread_key(**give)
        assert caught.value.what == rule
        assert caught.value.subject.startswith(f"{what} ")
        assert str(caught.value).startswith(f"{what} ")
        assert str(caught.value).isprintable()
        assert "such as 'user-42'" in caught.value.hint
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", PLAIN, ids=lambda name: ascii(name)[:30])
def test_a_plain_name_is_taken_as_it_is(name: str) -> None:
    """A name that breaks no rule makes a key that holds it unchanged. R10."""
    assert thread_key(name, name) == ThreadKey(name, name) == (name, name)


def test_the_namespace_defaults_to_default() -> None:
    """Without a namespace a thread is in "default". R9."""
    assert thread_key("a") == ("default", "a")


def test_a_long_name_is_shown_shortened() -> None:
    """The error for a name of a megabyte has the length of a line or two."""
    with pytest.raises(InvalidName) as caught:
        thread_key("/" * 1_000_000)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(("name", "rule"), BROKEN, ids=lambda value: ascii(value)[:30])
def test_a_broken_name_makes_nothing(root: Path, name: Any, rule: str) -> None:
    """Every call that takes a name refuses a broken one, and nothing is created. R10, C16."""
    del rule
    with Memory(root) as memory:
        calls: list[Callable[[], object]] = [
            lambda: memory.open(name),
            lambda: memory.open("x", name),
            lambda: asyncio.run(memory.aopen(name)),
            lambda: memory.delete(name),
            lambda: memory.delete("x", name),
            lambda: memory.open("x").fork(name),
        ]
        if name is not None:  # where None means that none is given
            calls += [
                lambda: memory.open("x").fork("y", namespace=name),
                lambda: memory.threads(name),
            ]
        for call in calls:
            with pytest.raises(InvalidName):
                call()
    assert os.listdir(root.parent) == []


@pytest.mark.parametrize("name", ["con", "NUL", "aux.txt", "LPT1", "Com\u00b9.log", "prn .x"])
def test_windows_keeps_device_names(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On Windows, and there only, a device's name is refused. R10."""
    assert is_plain(name)
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(InvalidName, match="Windows keeps it for a device"):
        check_name(name, "id")


@pytest.mark.parametrize("name", ["a:b", "a*", "a?", 'a"', "a<b", "a>b", "a|b", "a.", "a.b."])
def test_windows_takes_fewer_characters(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On Windows, and there only, what its file names cannot hold is refused. R10."""
    assert is_plain(name)
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(InvalidName, match="Windows does not take it"):
        check_name(name, "namespace")
    check_name("con-1.x", "namespace")


@given(st.text())
def test_a_plain_name_is_one_file_name(name: str) -> None:
    """Whatever is plain leads to one file below its folder, and to no other spelling's. R10."""
    if not is_plain(name):
        return
    assert os.path.basename(f"root/{name}.jsonl") == f"{name}.jsonl"
    assert os.path.normpath(f"root/{name}") == f"root/{name}"
    assert os.fsdecode(os.fsencode(name)) == name
    assert name == unicodedata.normalize("NFC", name)
    assert name == name.strip()
    assert len(f"{name}.jsonl.torn".encode()) <= 255
    assert len(name.encode()) <= MAX_NAME_BYTES


class Team(str, enum.Enum):  # noqa: UP042 - as many applications still have it
    """Names as applications keep them: the members are str, and format as `Team.SUPPORT`."""

    SUPPORT = "support"
    UP = "../up"


class Loud(str):
    """A str that shows itself as something else."""

    __slots__ = ()

    def __str__(self) -> str:
        """Show another text."""
        return "../loud"

    def __format__(self, spec: str) -> str:
        """Show another text."""
        return str(self)


@pytest.mark.parametrize("name", [Team.SUPPORT, Loud("support")], ids=["enum", "subclass"])
def test_a_subclass_of_str_is_taken_for_its_text(root: Path, name: str) -> None:
    """A name that is a member of an enum, or another str, leads to its text's file. R3, R10."""
    with Memory(root) as memory:
        mem = memory.open(name, namespace=name).append("x")
    assert [str(path.relative_to(root)) for path in root.rglob("*.jsonl")] == [
        "support/support.jsonl"
    ]
    assert str(mem.key) == "thread 'support' in namespace 'support'"
    with Memory(root) as memory:
        assert len(memory.open("support", namespace="support")) == 1


def test_a_subclass_of_str_keeps_the_rules(root: Path) -> None:
    """A member of an enum whose text is no plain name is refused. R10."""
    with Memory(root) as memory, pytest.raises(InvalidName):
        memory.open(Team.UP)
    assert not root.exists()


def test_a_link_under_a_name_leads_nowhere(root: Path) -> None:
    """A symbolic link to a namespace's folder is neither opened nor listed. R10."""
    with Memory(root) as memory:
        memory.open("t", "real").append("x")
        (root / "link").symlink_to(root / "real")
        with pytest.raises(NotAThread):
            memory.open("t", "link")
        assert [info.namespace for info in memory.threads()] == ["real"]
        assert list(memory.threads("link")) == []


def test_a_key_names_its_thread() -> None:
    """A key shows as error messages name the thread, with its quotes."""
    assert str(ThreadKey("n s", "a'b")) == "thread \"a'b\" in namespace 'n s'"
    error = TurnlogError(ThreadKey("default", "user-42"), "what", "do")
    assert str(error) == "thread 'user-42' in namespace 'default': what; do"
