"""What the tests of the command share: a way to call it, a long thread, a damaged one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from stored import DAMAGED, Invoke, many_turns, put

from turnlog.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def invoke(root: Path) -> Invoke:
    """Give the command, to be called in this process."""

    def call(*args: object, input: str | bytes | None = None) -> Result:
        words = list(map(str, args))
        result = CliRunner().invoke(app, words, input=input, env={"TURNLOG_URL": str(root)})
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return call


@pytest.fixture
def big(root: Path) -> Path:
    """Give the file of the thread "big", of 100,000 turns."""
    return put(root, "big", many_turns())


@pytest.fixture
def hurt(root: Path) -> Path:
    """Give the file of the thread "hurt": two turns, a bad line, and half an append at the end."""
    return put(root, "hurt", DAMAGED)
