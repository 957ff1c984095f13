"""How a conversation shows: in a repr, in a notebook, in a terminal with Rich."""

from __future__ import annotations

import datetime as dt
import html
import io
import re
import unicodedata
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from turnlog import Conversation, Memory, Message

if TYPE_CHECKING:
    from collections.abc import Callable

USER, REPLY, SYSTEM = Message("user", "q"), Message("assistant", "a"), Message("system", "s")
AT = dt.datetime(2026, 11, 29, 13, 25, 0, 123456, dt.UTC)

# What Unicode calls Bidi_Control.
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
HALVES = "\ud800\udbff\udc00\udfff"
STEERING = set(CONTROLS) - set("\n\t") | set(BIDI) - {"\u061c"} | set(HALVES) | set("\u2028\u2029")

odd = st.sampled_from(sorted(STEERING | set("<>&'\"[]\\")))
anything = st.text(st.characters(exclude_categories=())) | st.text(odd)


def shown(conv: Conversation, *, width: int = 100, **options: Any) -> str:
    """Give what Rich prints of a conversation on a terminal."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, legacy_windows=False, **options
    )
    console.print(conv)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain(conv: Conversation, **options: Any) -> str:
    """Give what Rich prints of a conversation into a file."""
    return shown(conv, color_system=None, **options)


def notebook(conv: Conversation) -> str:
    """Give the HTML of a conversation."""
    return conv._repr_html_()  # pyright: ignore[reportPrivateUsage]


class Cells(HTMLParser):
    """Reads back the cells of a table, and which tags there are."""

    def __init__(self, source: str) -> None:
        """Read a whole page."""
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Begin a row or a cell."""
        del attrs
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        """Take a cell's text."""
        if self.rows:
            self.rows[-1][-1] += data


# ---- repr ----


def test_a_representation_is_one_short_line() -> None:
    """However long its messages are, a conversation shows as one line with the last of them."""
    conv = Conversation([SYSTEM, USER, REPLY])
    assert repr(conv) == "<Conversation of 3 messages: system: 's' | user: 'q' | assistant: 'a'>"
    assert repr(Conversation()) == "<Conversation of 0 messages>"
    assert repr(conv[:1]) == "<Conversation of 1 message: system: 's'>"
    assert repr(conv.add("z")).startswith("<Conversation of 4 messages: \u2026 | user: 'q' | ")
    assert repr(Conversation([USER] * 1200)).startswith("<Conversation of 1,200 messages: ")
    long = conv.add("word\n" * 100_000).add("x" * 100_000).add("\x1b[31m\u2028")
    assert len(repr(long)) < 250


@given(st.lists(anything, max_size=4))
def test_a_representation_never_steers(contents: list[str]) -> None:
    """Whatever the texts hold, a repr can be printed anywhere: no control, no half character."""
    text = repr(Conversation(Message("user", content) for content in contents))
    assert text.isprintable()
    text.encode()
    assert len(text) < 3 * 41 * len(r"\U0010ffff") + 100


# ---- in a notebook ----


def test_a_notebook_shows_a_table() -> None:
    """A notebook gets a caption and a row for each message, with its role and its text."""
    source = notebook(Conversation([SYSTEM, USER, Message("assistant", "one\ntwo  three")]))
    cells = Cells(source)
    assert cells.rows == [["system", "s"], ["user", "q"], ["assistant", "one\ntwo  three"]]
    assert "<caption>Conversation of 3 messages</caption>" in source
    assert "pre-wrap" in source  # else its lines and spaces run together
    assert Cells(notebook(Conversation())).rows == []
    assert "Conversation of 0 messages" in notebook(Conversation())


@given(st.lists(anything, max_size=3))
def test_a_notebook_takes_no_html_of_a_text(contents: list[str]) -> None:
    """Whatever the texts hold, they are text in a cell: no tag, and no half character."""
    source = notebook(Conversation(Message("user", content) for content in contents))
    source.encode()
    cells = Cells(source)
    assert cells.tags <= {"table", "caption", "tr", "td", "b"}
    assert len(cells.rows) == len(contents)
    halves = re.findall("[\ud800-\udfff]", "".join(contents))
    assert all(ascii(half)[1:-1] in source for half in halves)


def test_html_in_a_text_is_escaped() -> None:
    """A script in a text is shown, not run, whichever quotes it has."""
    text = "<script>alert('1')</script><img src=\"x\" onerror='y'>&amp;</td></table>"
    source = notebook(Conversation([Message("user", text)]))
    assert "<script" not in source
    assert "<img" not in source
    assert html.escape(text) in source
    assert Cells(source).rows == [["user", text]]


@pytest.mark.parametrize(
    "character",
    [pytest.param(character, id=f"U+{ord(character):04X}") for character in BIDI],
)
def test_a_text_reverses_no_line_in_a_notebook(character: str) -> None:
    """A bidirectional control is shown by its escape in a notebook too, not obeyed."""
    assert character not in notebook(Conversation([Message("user", f"a{character}b")]))


@pytest.mark.parametrize("show", [notebook, plain], ids=["notebook", "Rich"])
def test_at_most_twenty_messages_are_shown(show: Callable[[Conversation], str]) -> None:
    """Of a long conversation the last 20 messages are shown, and how many there are."""
    conv = Conversation(Message("user", f"<{number}>") for number in range(1, 2001))
    source = html.unescape(show(conv))
    found = re.findall(r"<(\d+)>", source)
    assert found == [str(number) for number in range(1981, 2001)]
    assert "2,000 messages; the last 20:" in source
    assert "the last 20" not in show(conv[:20])
    assert len(re.findall(r"<(\d+)>", html.unescape(show(conv[:20])))) == 20


# ---- in a terminal ----


def test_rich_shows_roles_times_and_texts(memory: Memory) -> None:
    """A terminal gets each message with its role, its time, its meta and its text."""
    conv = Conversation(
        [
            SYSTEM,
            Message("user", "one\ntwo", AT, {"name": "Ada", "n": 1}),
            Message("assistant", "three"),
        ]
    )
    assert [line.rstrip() for line in plain(conv).splitlines()] == [
        "Conversation of 3 messages",
        *("system", "s", ""),
        *("user  2026-11-29 13:25:00 UTC  name=Ada  n=1", "one", "two", ""),
        *("assistant", "three", ""),
    ]
    assert "\x1b[" in shown(conv)  # in colours, on a terminal
    stored = memory.open("t").append("from a thread").messages()
    assert "from a thread" in plain(stored)
    assert plain(Conversation()).strip() == "Conversation of 0 messages"


def test_rich_takes_no_markup_of_a_text() -> None:
    """What looks like Rich's markup, an emoji's name or a link is text like any other."""
    text = "[bold]x[/bold] [/] [link=https://example.org]y[/link] :smile: [red"
    conv = Conversation([Message("user", text, AT, {"m": "[bold]z"})])
    assert text in plain(conv)
    assert "m=[bold]z" in plain(conv)


@pytest.mark.parametrize(
    "character",
    [
        pytest.param(character, id=f"U+{ord(character):04X}")
        for character in sorted(STEERING | set(BIDI))
    ],
)
def test_nothing_in_a_text_steers_the_terminal(character: str) -> None:
    """Controls, separators, bidirectional controls and halves are shown by their escapes."""
    conv = Conversation([Message("user", f"a{character}b", AT, {"m": f"c{character}d"})])
    escape = ascii(character)[1:-1]
    text = plain(conv)
    assert character not in text
    assert f"a{escape}b" in text
    assert f"m=c{escape}d" in text


@given(anything)
def test_whatever_a_text_holds_only_rich_steers(text: str) -> None:
    """Of any text nothing reaches the terminal that controls it; the output is UTF-8."""
    printed = plain(Conversation([Message("user", text, None, {"m": text})]), width=10_000)
    printed.encode()
    assert not STEERING & set(printed)
    kinds = {unicodedata.category(character) for character in set(printed) - set("\n\t")}
    assert "Cc" not in kinds
    assert "Cs" not in kinds


def test_a_narrow_terminal_shows_the_whole_text() -> None:
    """Long texts and wide characters are wrapped, not cut."""
    text = "".join(f"{number:04}" for number in range(100)) + "\u4e16\u754c" * 50
    printed = plain(Conversation([Message("user", text)]), width=20)
    assert text in printed.replace("\n", "").replace(" ", "")
    assert max(map(len, printed.splitlines())) <= 20
