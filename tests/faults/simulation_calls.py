"""The calls of a run, noted: what a power cut may undo is worked out from them (`powercut`)."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from systems import Arguments, Before, Watched


@dataclass(frozen=True)
class Op:
    """One call. The kinds: make, create, rename, unlink, folder; write, cut, sync, failed.

    And two that no disk sees: begun and done, with how much has happened by then as `file`.
    """

    kind: str
    path: str = ""
    file: int = 0
    offset: int = 0
    data: bytes = b""
    old: str = ""  # the path before a renaming


def go_on(_call: str, _args: Arguments) -> None:
    """Do nothing before a call."""


@dataclass
class Recorder(Watched):
    """Notes each call that changes something; syncs nothing, since nothing is cut off for real.

    Several on the same `ops` and `files` are several processes on one disk.
    """

    before: Before = go_on
    ops: list[Op] = field(default_factory=list[Op])
    skip: str = ""  # a kind of call, or of file by its suffix, that this faulty system leaves out
    fail_next: int = 0  # so many syncs fail
    most: int = 1 << 30  # the longest write that it takes at once
    files: dict[str, int] = field(default_factory=dict[str, int])
    fds: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])

    def done(self, count: int) -> None:
        """Note that so many units are acknowledged."""
        self.ops.append(Op("done", file=count))

    def leaves_out(self, op: Op) -> bool:
        """Tell whether this faulty system leaves out a sync of a file or of a folder."""
        if op.kind == "folder":
            return self.skip in {"folder", os.path.basename(op.path)}
        return self.skip == "sync" or op.path.endswith(f".{self.skip}")

    def note_sync(self, op: Op) -> None:
        """Note a sync, or have it fail."""
        if self.fail_next:
            self.fail_next -= 1
            self.ops.append(Op("failed", op.path, op.file))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if not self.leaves_out(op):
            self.ops.append(op)

    def open_file(
        self,
        folder: str,
        name: str,
        *,
        write: bool = False,
        create: bool = False,
        exclusive: bool = False,
    ) -> int:
        """Open a file; note a new one."""
        path = f"{folder}/{name}"
        new = not os.path.lexists(path)
        fd = super().open_file(folder, name, write=write, create=create, exclusive=exclusive)
        if new or path not in self.files:
            self.files[path] = len(self.ops) + 1
        if new:
            self.ops.append(Op("create", path, self.files[path]))
        self.fds[fd] = (path, self.files[path])
        return fd

    def close(self, fd: int) -> None:
        """Close it, and forget which it was. What was killed has nothing to close any more."""
        if self.fds.pop(fd, None) is not None:
            super().close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write, and note it."""
        end = os.fstat(fd).st_size
        written = super().write(fd, data[: self.most])
        self.ops.append(Op("write", *self.fds[fd], end, bytes(data[:written])))
        return written

    def truncate(self, fd: int, size: int) -> None:
        """Cut, and note it."""
        super().truncate(fd, size)
        self.ops.append(Op("cut", *self.fds[fd], size))

    def sync(self, fd: int) -> None:
        """Note that what was written is safe from here on, or fail."""
        self.note_sync(Op("sync", *self.fds[fd]))

    def sync_folder(self, path: str) -> None:
        """Note that the folder's names are safe from here on, or fail."""
        self.note_sync(Op("folder", path))

    def make_folder(self, path: str) -> bool:
        """Make a folder, and note it."""
        made = super().make_folder(path)
        if made:
            self.ops.append(Op("make", path))
        return made

    def rename(self, old: str, new: str) -> None:
        """Give a file a new name, and note it."""
        super().rename(old, new)
        self.files[new] = self.files.pop(old)
        self.ops.append(Op("rename", new, self.files[new], old=old))

    def unlink(self, path: str) -> None:
        """Remove a name, and note it."""
        super().unlink(path)
        del self.files[path]
        self.ops.append(Op("unlink", path))
