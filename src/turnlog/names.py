"""The rules for plain names: what a namespace and an id may be, since they become file names.

Pure: nothing here looks at a disk. Source: spec R9 and R10; design, section 3, names.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from typing import Final, NamedTuple

from turnlog.errors import InvalidName

DEFAULT_NAMESPACE: Final = "default"
MAX_NAME_BYTES: Final = 240

_CONTROL_OR_HALF: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_WINDOWS_CHARACTERS: Final = frozenset('<>:"|?*')
_WINDOWS_DEVICES: Final = frozenset(
    ("CON", "PRN", "AUX", "NUL", *(f"{d}{n}" for d in ("COM", "LPT") for n in "123456789¹²³"))
)


class ThreadKey(NamedTuple):
    """What a thread is known by: (namespace, id). Make one with `thread_key`, which checks it."""

    namespace: str
    id: str

    def __str__(self) -> str:
        """Name the thread as error messages do."""
        return f"thread {self.id!r} in namespace {self.namespace!r}"


def thread_key(id: str, namespace: str = DEFAULT_NAMESPACE) -> ThreadKey:
    """Make the key of a thread.

    Args:
        id: the thread's name within its namespace.
        namespace: the namespace, "default" unless given.

    Raises:
        InvalidName: either is not a plain name; the message says which rule it broke.
    """
    check_name(namespace, "namespace")
    check_name(id, "id")
    return ThreadKey(str.__str__(namespace), str.__str__(id))  # of a subclass, its text


def check_name(name: object, what: str) -> None:
    """Raise InvalidName unless `name` is plain; `what` ("id", "namespace") is for the message."""
    broken = _broken_rule(name, windows=sys.platform == "win32")
    if broken:
        hint = f"give a plain name of 1 to {MAX_NAME_BYTES} bytes of UTF-8, such as 'user-42'"
        raise InvalidName(f"{what} {_shown(name)}", broken, hint)


def is_plain(name: str) -> bool:
    """Tell whether `name` may be a namespace or an id."""
    return _broken_rule(name, windows=sys.platform == "win32") is None


def _shown(name: object) -> str:
    text = ascii(name)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line's worth


def _broken_rule(name: object, *, windows: bool) -> str | None:
    if not isinstance(name, str):
        return f"it is of type {type(name).__name__}, not str"
    if not name:
        return "it is empty"
    return _broken_text_rule(name) or (_broken_windows_rule(name) if windows else None)


def _broken_text_rule(name: str) -> str | None:  # noqa: PLR0911 - a rule a line
    if "/" in name or "\\" in name:
        return "it holds a path separator"
    if _CONTROL_OR_HALF.search(name):
        return "it holds NUL, a control character or half a character"
    if name.startswith("."):
        return "it starts with '.'"
    if name != name.strip():
        return "it starts or ends with white space"
    if not unicodedata.is_normalized("NFC", name):
        return "it is not in Unicode's NFC form: another spelling of it would be another file"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"it takes more than {MAX_NAME_BYTES} bytes in UTF-8"
    return None


def _broken_windows_rule(name: str) -> str | None:
    if not _WINDOWS_CHARACTERS.isdisjoint(name) or name.endswith("."):
        return "Windows does not take it as a file name"
    if name.partition(".")[0].rstrip().upper() in _WINDOWS_DEVICES:
        return "Windows keeps it for a device"
    return None
