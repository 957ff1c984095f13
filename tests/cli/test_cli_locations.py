"""Where the command's threads are: homes, mistyped URLs and nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from stored import Invoke


def test_a_home_as_root(root: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    """`--root=~/x`, which a shell leaves as it is, is in the home; a blank one is refused (C39)."""
    monkeypatch.setenv("HOME", str(root))
    root.mkdir()
    monkeypatch.chdir(root)
    assert invoke("--root=~/x", "append", "t", "Hello").exit_code == 0
    assert [path.name for path in root.iterdir()] == ["x"]
    assert "Hello" in invoke("--root", str(root / "x"), "show", "t").output
    assert invoke("--root= ", "ls").exit_code == 2


@pytest.mark.parametrize("command", [["ls"], ["append", "t", "Hello"], ["doctor"], ["rm", "t"]])
def test_a_mistyped_url_as_root(
    root: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke, command: list[str]
) -> None:
    """A mistyped URL makes no folder, and the command tells no part of its password (C38)."""
    root.mkdir()
    monkeypatch.chdir(root)
    for url in ("postgresql:bot:hunter2@host/chat", "nats://bot:hunter2"):
        done = invoke(f"--root={url}", *command)
        assert done.exit_code == 1
        assert "hunter2" not in done.output + done.stderr
    assert list(root.iterdir()) == []
