"""What a test needs of the machine: tiny file systems, strace, a child process by fork."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import subprocess
import traceback
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


@contextmanager
def mounted(place: Path, *options: str) -> Generator[Path]:
    """Mount a file system on a new folder, with the arguments of `mount`; unmount it at the end."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", *options, str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"the machine does not mount it: {done.stderr.strip()}")
    try:
        yield place
    finally:
        # Lazily too, so that a failed test that still has a file open leaves no mount behind.
        if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode:
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


@contextmanager
def tiny_tmpfs(place: Path, options: str = "size=256k") -> Generator[Path]:
    """Mount a file system of 256 kilobytes in memory."""
    with mounted(place, "-t", "tmpfs", "-o", options, "tmpfs"):
        yield place


@contextmanager
def tiny_ext4(place: Path, *features: str, size: str = "8M", mount: str = "") -> Generator[Path]:
    """Make an ext4 file system in a file, without reserved blocks, and mount it."""
    image = place.with_suffix(".image")
    make_ext4(image, *features, size=size)
    options = ",".join(filter(None, ("loop", mount)))
    with mounted(place, "-t", "ext4", "-o", options, str(image)):
        yield place


def make_ext4(image: Path, *features: str, size: str = "8M") -> None:
    """Make an ext4 file system in a file."""
    maker = shutil.which("mkfs.ext4") or shutil.which("mkfs.ext4", path="/usr/sbin:/sbin")
    if maker is None:
        pytest.skip("needs mkfs.ext4")
    subprocess.run(["truncate", "-s", size, str(image)], check=True)
    done = subprocess.run(
        [maker, "-q", "-F", "-m", "0", *features, str(image)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"mkfs.ext4 does not make it: {done.stderr.strip()}")


def strace(inject: str, at: Path) -> list[str]:
    """Give the command that runs a program with faults in one system call on one file or folder.

    `inject` is strace's: "fdatasync:error=EIO:when=2". A `when` counts a thread's own calls.
    """
    call = inject.partition(":")[0]
    return [
        *("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(at)),
        *("-e", f"trace={call}", "-e", f"inject={inject}"),
    ]


def in_child(work: Callable[[], Any], *, user: int | None = None) -> Any:
    """Run something in a forked child, as another user if need be, and give what it gives.

    The child has all that was imported and read here: it needs no permission to read Python.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of a fork while other threads run: that is what such a test is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.close(reading)
            os.write(writing, pickle.dumps(_outcome(work, user)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer, "the child died"
    good, value = pickle.loads(answer)
    assert good, value
    return value


def limited(limit: int, soft: int, work: Callable[[], Any]) -> Any:
    """Run something in a child with a limit on what it may use."""

    def inside() -> Any:
        resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))
        return work()

    return in_child(inside)


def _outcome(work: Callable[[], Any], user: int | None) -> tuple[bool, Any]:
    try:
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        return True, work()
    except BaseException:  # noqa: BLE001 - the parent is told
        return False, traceback.format_exc()


def tree(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Give everything below a folder with what would show that somebody wrote to it."""
    found: dict[str, tuple[int, int, int, bytes]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        name = str(path.relative_to(folder))
        found[name] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, data)
    return found
