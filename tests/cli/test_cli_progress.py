"""The bar: for people only, where the work takes a while, and gone when it is done."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr

import pytest

from turnlog.cli import progress
from turnlog.cli.progress import Bar


class Screen(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all work for long."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_PATIENCE", 0)
    monkeypatch.setattr(progress, "_PERIOD", 0)


def test_a_bar_shows_how_far_it_is() -> None:
    """Each step is shown, and at the end the bar is taken away and the cursor is back."""
    with redirect_stderr(Screen()) as screen, Bar("Searching", lambda: 3) as bar:
        assert list(bar.track("abc")) == ["a", "b", "c"]
    shown = screen.getvalue()
    assert all(f"{n}/3" in shown for n in (1, 2, 3))
    assert shown.rindex("\x1b[2K") > shown.rindex("3/3")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_a_bar_makes_room() -> None:
    """What is written while the bar is hidden stands where it was; it comes back after."""
    with redirect_stderr(Screen()) as screen, Bar("Searching", lambda: 2) as bar:
        for item in bar.track("ab"):
            bar.hide()
            screen.write(f"found {item}\n")
    shown = screen.getvalue()
    before = shown[: shown.index("found b")]
    assert before.rindex("\x1b[2K") > before.rindex("1/2")
    assert shown.rindex("2/2") > shown.index("found b")


def interrupted() -> None:
    """Be interrupted in the middle of some work."""
    with Bar("Searching", lambda: 9) as bar:
        for item in bar.track("abc"):
            if item == "c":
                raise KeyboardInterrupt


def test_a_bar_is_taken_away_after_ctrl_c() -> None:
    """Ctrl-C, as an error, leaves the terminal as it was."""
    with redirect_stderr(Screen()) as screen, pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("2/9")


def test_a_pipe_gets_no_bar() -> None:
    """Where standard error is no terminal, nothing is counted and nothing shown."""
    with redirect_stderr(io.StringIO()) as pipe, Bar("Searching", pytest.fail) as bar:
        assert list(bar.track("abc")) == ["a", "b", "c"]
    assert pipe.getvalue() == ""


def test_a_warning_and_a_bar() -> None:
    """What is said while the bar is there stands on a line of its own, and the bar goes on."""
    with redirect_stderr(Screen()) as screen, Bar("Searching", lambda: 3) as bar:
        for item in bar.track("abc"):
            if item == "b":
                print("Warning: [x]", file=sys.stderr)
    shown = screen.getvalue()
    assert "Warning: [x]\n" in shown
    assert shown.index("1/3") < shown.index("Warning: [x]") < shown.index("2/3")
