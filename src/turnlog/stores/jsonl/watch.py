"""How a change of a thread's file is seen: by its status, every now and then.

By the time of its last change, which no program can set back; a file that is made or removed
changes its folder's. No file is opened. What is seen may not be synced yet, but who reads then
waits for its writer's lock, which is held until it is.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from turnlog.stores.jsonl.threadfile import SUFFIX
from turnlog.stores.polling import Poller

if TYPE_CHECKING:
    from collections.abc import Hashable

    from turnlog.names import ThreadKey
    from turnlog.stores.jsonl.folders import Folders
    from turnlog.stores.jsonl.osfile import System

_PERIOD: Final = 0.1  # seconds
_FRESH: Final = 50_000_000  # nanoseconds; far more than a file system's clock takes for one step


def file_poller(system: System, folders: Folders) -> Poller:
    """Make what watches the files of a memory."""
    return Poller(partial(_state, system, folders), _PERIOD)


def _state(system: System, folders: Folders, key: ThreadKey) -> Hashable:
    """Give what tells a file from what it was before; of one that is not there, its folder's.

    Two changes in one step of the file system's clock may look the same. So what was changed just
    now counts as changed once more when that is some time ago.
    """
    folder = folders.of(key.namespace)
    try:
        try:
            status = system.status_of(f"{folder}/{key.id}{SUFFIX}")
        except FileNotFoundError:
            status = system.status_of(folder)
    except OSError as error:
        return error.errno
    fresh = time.time_ns() - status.st_ctime_ns < _FRESH
    return (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns, fresh)
