"""Processes that do as they are told: an order is a line, and so is the answer."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class Told:
    """Programs of Python's, which get the same orders at the same time.

    Args:
        commands: of each the program and its arguments.
    """

    def __init__(self, *commands: Sequence[object]) -> None:
        """Start the processes."""
        self._processes = [
            subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for command in commands
        ]

    def __enter__(self) -> Self:
        """Give the processes themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End them: at once where something failed, else when they have nothing more to do."""
        for process in self._processes:
            if kind is not None:
                process.kill()
            process.communicate()

    def ask(self, order: str) -> list[str]:
        """Give an order to all of them; give their answers."""
        self.tell(order)
        return self.answers()

    def tell(self, order: str) -> None:
        """Give an order to all of them."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{order}\n")
            process.stdin.flush()

    def answers(self) -> list[str]:
        """Wait for an answer of each."""
        return [self._answer(process) for process in self._processes]

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        answer = process.stdout.readline()
        if not answer:
            raise SystemExit(f"{process.args}: it ended before it had done its work")
        return answer.rstrip("\n")
