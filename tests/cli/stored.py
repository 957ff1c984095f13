"""Threads that were written by hand, and the type of the command as the tests call it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

MANY: Final = 100_000

DAMAGED: Final = (
    b'{"role":"user","content":"The first."}\n'
    b"\0\0\0\0\n"
    b'{"role":"assistant","content":"The second."}\n'
    b'{"role":"user","content":"half a tu'
)


class Invoke(Protocol):
    """Calls the command in this process, in a pipe, over the test's own memory."""

    def __call__(self, *args: object, input: str | bytes | None = None) -> Result:
        """Give what it wrote, and its exit status."""
        ...


def put(root: Path, id: str, data: bytes, namespace: str = "default") -> Path:
    """Write a thread's file."""
    file = root / namespace / f"{id}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def many_turns() -> bytes:
    """Give the file of a thread of 100,000 turns."""
    return b"".join(
        b'{"role":"%b","content":"This is turn %d.","at":"2026-11-29T13:25:00.%06dZ"}\n'
        % (b"assistant" if n % 2 else b"user", n, n + 1)
        for n in range(MANY)
    )
