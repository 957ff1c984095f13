"""A program in which a package is missing: `python without.py PACKAGE EXPRESSION ...`.

It cannot import PACKAGE, nor what is in it, just as where it is not installed. For each expression
it writes a line: the name of the error that it raises, or "", and the error's text or the value's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

# ---- what a test calls ----


class Came(NamedTuple):
    """What an expression came to: the name of its error, or ""; and a text."""

    error: str
    text: str


def evaluated(*expressions: str, without: str = "-") -> list[Came]:
    """Evaluate expressions about `turnlog` in a new process in which a package is missing."""
    done = subprocess.run(
        [sys.executable, __file__, without, *expressions],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
    )
    return [Came(*json.loads(line)) for line in done.stdout.splitlines()]


# ---- the program ----


class Missing(MetaPathFinder):
    """Fails for one package as Python does where it is not installed."""

    def __init__(self, package: str) -> None:
        """Take the package's name."""
        self._package = package

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Raise for the package and what is in it; leave any other to the next finder."""
        del path, target
        if f"{fullname}.".startswith(f"{self._package}."):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def main(package: str, *expressions: str) -> None:
    """Evaluate the expressions, one after another."""
    sys.meta_path.insert(0, Missing(package))
    import turnlog  # noqa: PLC0415

    names = {"turnlog": turnlog, "sys": sys}
    for expression in expressions:
        try:
            came = Came("", str(eval(expression, names)))
        except Exception as error:  # noqa: BLE001 - which one is told
            came = Came(type(error).__name__, str(error))
        print(json.dumps(came))


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("error")
    main(*sys.argv[1:])
