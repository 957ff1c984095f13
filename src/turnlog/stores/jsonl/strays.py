"""What lies in a memory's folders and belongs to no thread. Pure: it is given what is there.

A thread's own are `<id>.jsonl` and, beside it, `<id>.jsonl.torn` and `<id>.jsonl.lock`.

Source: design, section 4, point 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnlog.errors import InvalidName
from turnlog.names import check_name, is_plain
from turnlog.stores.jsonl.doctor import is_rewritten_name
from turnlog.stores.jsonl.lockfile import LOCK_SUFFIX
from turnlog.stores.jsonl.osfile import is_folder, is_link, is_regular
from turnlog.stores.jsonl.repair import TORN_SUFFIX
from turnlog.stores.jsonl.threadfile import SUFFIX

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Stray:
    """Something in a memory's folders that belongs to no thread.

    Attributes:
        path: where it is, relative to the root.
        reason: what it is, or why it is no thread's.
    """

    path: str
    reason: str


def strays_in_root(entries: Iterable[tuple[str, os.stat_result]]) -> Iterator[Stray]:
    """Give the entries of a memory's root that are no namespaces."""
    for name, status in sorted(entries, key=_name_of):
        if is_link(status):
            yield Stray(name, "a symbolic link, which is not followed")
        elif not is_folder(status):
            yield Stray(name, "a file where only the folders of namespaces are")
        elif (broken := _broken_rule(name)) is not None:
            yield Stray(name, f"a folder whose name is not plain: {broken}")


def strays_in_namespace(
    namespace: str, entries: Iterable[tuple[str, os.stat_result]]
) -> Iterator[Stray]:
    """Give the entries of a namespace's folder that are neither threads nor belong to one."""
    files: set[str] = set()
    found: list[tuple[str, os.stat_result]] = []
    for name, status in entries:
        if is_regular(status):
            files.add(name)
        if not _is_thread(name, status):  # there may be very many of those
            found.append((name, status))
    for name, status in sorted(found, key=_name_of):
        reason = _reason(name, files) if is_regular(status) else _kind(name, status)
        if reason is not None:
            yield Stray(f"{namespace}/{name}", reason)


def _is_thread(name: str, status: os.stat_result) -> bool:
    return is_regular(status) and name.endswith(SUFFIX) and is_plain(name.removesuffix(SUFFIX))


def _name_of(entry: tuple[str, os.stat_result]) -> str:
    return entry[0]


def _kind(name: str, status: os.stat_result) -> str:
    """Say what an entry is that is no regular file."""
    if is_link(status):
        return "a symbolic link, which is not followed"
    what = "a folder" if is_folder(status) else "a special file"
    return (
        f"{what} under the name of a thread" if name.endswith(SUFFIX) else f"{what} among threads"
    )


def _reason(name: str, files: set[str]) -> str | None:
    """Say why a file belongs to no thread; None where it does."""
    if is_rewritten_name(name):
        return "what a repair left that did not finish; the thread's next repair removes it"
    thread = name
    for suffix in (TORN_SUFFIX, LOCK_SUFFIX):
        if name.endswith(SUFFIX + suffix):
            thread = name.removesuffix(suffix)
    if not thread.endswith(SUFFIX):
        return f"a file whose name does not end in {SUFFIX}"
    broken = _broken_rule(thread.removesuffix(SUFFIX))
    if broken is not None:
        return f"a file whose name is not plain: {broken}"
    if name.endswith(TORN_SUFFIX) and thread not in files:
        return "what was set aside from a thread that is gone"
    return None


def _broken_rule(name: str) -> str | None:
    try:
        check_name(name, "name")
    except InvalidName as error:
        return error.what
    return None
