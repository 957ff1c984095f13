"""Paths are the system's bytes, whatever the locale is, and so are the lines of its tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from bytesofit import put, turn
from machine import mounted, needs_root
from writers import lines_on_disk

from turnlog import Memory
from turnlog.stores.jsonl import osfile
from turnlog.stores.jsonl.osfile import System

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, sys
from turnlog import Memory

assert sys.getfilesystemencoding() == sys.argv[2], sys.getfilesystemencoding()
os.chdir(sys.argv[3])
for place in (sys.argv[1], os.path.basename(sys.argv[1])):
    with Memory(place) as memory:
        memory.open("t").append("from " + sys.argv[2])
        assert os.path.isdir(memory.store.root)
with Memory("\\uc548\\ub155") as memory:
    memory.open("t").append("first")
"""


@pytest.fixture(scope="module")
def latin_1(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a locale of ISO-8859-1, which is made for it."""
    maker = shutil.which("localedef")
    if maker is None:
        pytest.skip("needs localedef")
    place = tmp_path_factory.mktemp("locales")
    command = [maker, "--no-archive", "-i", "en_US", "-f", "ISO-8859-1", str(place / "one")]
    if subprocess.run(command, capture_output=True, check=False).returncode > 1:
        pytest.skip("localedef does not make it")
    return {**os.environ, "LOCPATH": str(place), "LC_ALL": "one", "PYTHONUTF8": "0"}


def test_root_in_a_locale_of_one_byte_a_character(root: Path, latin_1: dict[str, str]) -> None:
    """A path from the system leads to the same folder in a locale of ISO-8859-1 (C49)."""
    place = root / "Zoë"
    put(place, turn("first"))
    command = [sys.executable, "-c", PROGRAM, str(place), "iso8859-1", str(root)]
    subprocess.run(command, env=latin_1, check=True, timeout=60)
    assert lines_on_disk(place) == ["first", *["from iso8859-1"] * 2]
    assert lines_on_disk(root / "안녕") == ["first"]
    assert sorted(os.listdir(os.fsencode(root))) == sorted(["Zoë".encode(), "안녕".encode()])


def test_command_in_a_locale_of_one_byte_a_character(root: Path, latin_1: dict[str, str]) -> None:
    """The command finds the folder that it is given in a locale of ISO-8859-1 (C49)."""
    place = root / "Zoë"
    put(place, turn("first"))
    for location in (str(place), f"file://{place}"):
        command = [sys.executable, "-m", "turnlog", f"--root={location}", "show", "t"]
        done = subprocess.run(command, env=latin_1, capture_output=True, check=True, timeout=60)
        assert b"first" in done.stdout


@needs_root
@pytest.mark.parametrize("name", ["a\u2028b", "a b", "a\udcff"])
def test_mount_point_with_an_odd_name(tmp_path: Path, name: str) -> None:
    """A mount point's name may hold what ends a line of text elsewhere, or no text at all (C49)."""
    with mounted(tmp_path / name, "-t", "tmpfs", "tmpfs") as place:
        assert System().file_system(str(place)) == "tmpfs"
        with Memory(place / "memory") as memory:
            memory.open("t").append("first")
        assert lines_on_disk(place / "memory") == ["first"]


def test_foreign_lines_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """Lines of the system's table of mounts that are not as expected are passed over (C49)."""
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    table = tmp_path / "mountinfo"
    table.write_bytes(
        f"36 35 {number} / / rw - ext9 /dev/x rw\n".encode()
        + b"\n - \n37\n38 1\n\xff\xff \xff - \xff\n"
        + "39 35 9:9 / /a\u2028b rw - ext8 /dev/y rw\n".encode()
        + f"40 35 {number[:-1]}".encode()
    )
    monkeypatch.setattr(osfile, "_MOUNTS", str(table))
    assert System().file_system(str(tmp_path)) == "ext9"
    with Memory(root) as memory:
        memory.open("t").append("first")
