"""Messages for people: in a repr, in a terminal with Rich, in a notebook.

A turn's text is anybody's: what could steer a terminal or reverse a line is shown by its escape.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from rich.text import Text

    from turnlog.message import Message, Role

# Control characters but for newline and tab, separators of lines, reversals, half characters.
_STEERING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# In Rich's words.
ROLE_STYLES: Final[dict[Role, str]] = {
    "user": "bold green",
    "assistant": "bold cyan",
    "system": "bold yellow",
}
ASIDE_STYLE: Final = "dim"
_CELL: Final = "text-align: left; vertical-align: top"
_TEXT: Final = f"{_CELL}; white-space: pre-wrap"


def short(text: str, width: int = 40) -> str:
    """Give the beginning of a text as a literal of one line."""
    line = " ".join(islice(text.split(), width))
    return repr(line if len(line) <= width else line[: width - 1] + "…")


def visible(text: str) -> str:
    """Give a text as a terminal may have it: nothing in it steers the terminal."""
    return _STEERING.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """Give a text as one line that a terminal may have."""
    return visible(text).replace("\n", "\\n")


def counted(number: int, thing: str) -> str:
    """Give a number of things in words: 1 message, 1,200 messages."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def cut_short(turn: Message) -> str:
    """Return why a reply ends before its end, in words for people; "" where it does not."""
    reason = (turn.meta or {}).get("finish_reason")
    if reason == "length":
        return "the reply was cut at the limit of tokens"
    return "the provider's filter cut the reply" if reason == "content_filter" else ""


def to_the_second(at: dt.datetime) -> str:
    """Give a time in UTC."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def aside(message: Message) -> str:
    """Give what stands beside a message's role: its time and its meta."""
    shown = [] if message.at is None else [to_the_second(message.at)]
    shown += [f"{name}={value}" for name, value in (message.meta or {}).items()]
    return "".join(f"  {one_line(each)}" for each in shown)


def rich_text(message: Message) -> Text:
    """Give a message for Rich: its role and time on a line, and its text below."""
    from rich.text import Text  # noqa: PLC0415 - only somebody who has Rich asks for it

    shown = Text.assemble((message.role, ROLE_STYLES[message.role]), (aside(message), ASIDE_STYLE))
    return shown.append("\n").append(visible(message.content)).append("\n")


def html_table(caption: str, messages: Iterable[Message]) -> str:
    """Give messages as an HTML table for a notebook."""
    rows = "".join(
        f'<tr><td style="{_CELL}"><b>{message.role}</b></td>'
        f'<td style="{_TEXT}">{_escaped(message.content)}</td></tr>'
        for message in messages
    )
    return f"<table><caption>{_escaped(caption)}</caption>{rows}</table>"


def _escaped(text: str) -> str:
    import html  # noqa: PLC0415 - for notebooks only

    return html.escape(visible(text))
