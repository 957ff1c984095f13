"""Standard output, for a person at a terminal or for a program behind a pipe.

A person gets colours, and never a turn's control characters: they are shown escaped. A pipe gets
the text as it is, without colours; only half characters, which UTF-8 cannot hold, become U+FFFD.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from turnlog.codec import encode_turn, rfc3339, to_json
from turnlog.display import ASIDE_STYLE, ROLE_STYLES, aside, to_the_second, visible
from turnlog.wire import whole_characters

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from turnlog.message import Message

_STYLES: Final[dict[str, str]] = {
    **ROLE_STYLES,
    "aside": ASIDE_STYLE,
    "match": "bold red",
    "name": "magenta",
}


class Output:
    """Standard output.

    Attributes:
        person: whether it is a terminal.
    """

    def __init__(self) -> None:
        """Look at what standard output is."""
        self.person: bool = sys.stdout.isatty()
        self._coloured = self.person and _wants_colour()

    def clean(self, text: str) -> str:
        """Give a text of unknown origin as it may be written."""
        return visible(text) if self.person else whole_characters(text)

    def styled(self, text: str, style: str) -> str:
        """Give a clean text in a style, where there are any."""
        if not self._coloured or not text:
            return text
        from rich.color import ColorSystem  # noqa: PLC0415 - for people only
        from rich.style import Style  # noqa: PLC0415

        return Style.parse(_STYLES[style]).render(text, color_system=ColorSystem.STANDARD)

    def line(self, text: str = "") -> None:
        """Write a line of clean text."""
        sys.stdout.write(f"{text}\n")

    def json(self, value: object) -> None:
        """Write a value as a line of JSON."""
        self._json_line(to_json(value))

    def _json_line(self, line: bytes) -> None:
        """Write JSON; its own escapes are those that `visible` gives."""
        text = line.decode()
        self.line(visible(text) if self.person else text)

    def time(self, at: dt.datetime) -> str:
        """Give a time in UTC: to the second for a person, in full for a pipe."""
        return to_the_second(at) if self.person else rfc3339(at)

    def turns(self, messages: Iterable[Message], *, as_json: bool) -> None:
        """Write turns, for whoever reads or as lines of a thread's file."""
        for message in messages:
            if as_json:
                self._json_line(encode_turn(message))
            else:
                self._turn(message)

    def _turn(self, message: Message) -> None:
        """Write a turn: its role and time, its text, and an empty line."""
        if self.person:
            beside = aside(message)
        else:
            beside = "" if message.at is None else f"  {rfc3339(message.at)}"
        self.line(self.styled(message.role, message.role) + self.styled(beside, "aside"))
        self.line(self.clean(message.content))
        self.line()

    def flush(self) -> None:
        """Let the reader have what was written."""
        sys.stdout.flush()


def _wants_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
