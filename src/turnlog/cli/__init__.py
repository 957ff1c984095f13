"""The `turnlog` command, a module a command. It needs the extra "cli": click, and rich for people.

`main` is here, apart from all that needs the extra, so that it can say so where it is missing.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

_MISSING = (
    "Error: the turnlog command needs click and rich; install them: pip install 'turnlog[cli]'"
)


def main() -> None:
    """Run the command with the process's arguments, and end the process with its exit status."""
    if find_spec("click") is None or find_spec("rich") is None:
        sys.exit(_MISSING)
    try:
        from turnlog.cli.app import run  # noqa: PLC0415 - it needs the extra

        run()
    except KeyboardInterrupt:
        sys.exit(130)
