"""What `import turnlog` adds to an empty program."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from table import Row, at_most, median

if TYPE_CHECKING:
    from collections.abc import Iterator


def import_rows(repetitions: int) -> Iterator[Row]:
    """Measure whole programs, an empty one and one that imports turnlog in turn."""
    more = median(_time("import turnlog") - _time("pass") for _ in range(repetitions)) * 1e3
    yield Row(
        "import turnlog", f"{more:.0f} ms", "beyond python -c pass", "", at_most(60, more, " ms")
    )


def _time(program: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - start
