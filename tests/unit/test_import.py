"""The package from outside: what importing it brings along, and its public names."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import turnlog

# What a program that only imports turnlog does not need yet, and what takes long to import.
LATER = [
    "asyncio",
    "concurrent.futures",
    "pytest",
    "turnlog.stores.inmemory",
    "turnlog.stores.jsonl",
    "turnlog.testing",
]


def modules_after(code: str) -> set[str]:
    """Give the modules that a fresh interpreter has loaded after some code."""
    code = f"import sys\n{code}\nprint(*sys.modules)"
    environment = {name: value for name, value in os.environ.items() if "COV" not in name}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,  # a measured run would bring modules of its own
    )
    return set(done.stdout.split())


def test_importing_brings_only_what_is_needed() -> None:
    """`import turnlog` loads neither asyncio nor a store, a test library or a pool of threads."""
    loaded = modules_after("import turnlog")
    assert "turnlog.memory" in loaded
    assert [name for name in LATER if name in loaded] == []
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    foreign.discard("typing_extensions")  # msgspec takes it where it is
    assert {name for name in foreign if not name.startswith("_")} == {"msgspec", "turnlog"}


def test_a_synchronous_program_never_loads_asyncio(tmp_path: Path) -> None:
    """A program that opens a thread and appends to it loads its store, and no event loop."""
    loaded = modules_after(
        f"import turnlog\nturnlog.Memory({str(tmp_path)!r}).open('t').append('x')"
    )
    assert "turnlog.stores.jsonl" in loaded
    assert {"asyncio", "pytest", "turnlog.testing", "turnlog.stores.inmemory"} & loaded == set()


def test_every_public_name_is_there_and_documented() -> None:
    """Each name in `__all__` resolves; each that can have a docstring of its own has one."""
    for name in turnlog.__all__:
        value = getattr(turnlog, name)
        if name != "Role":  # a type's alias has none
            assert inspect.getdoc(value), name
            assert value.__doc__, name
    assert len(set(turnlog.__all__)) == len(turnlog.__all__)
    assert turnlog.__doc__


def test_nothing_public_is_left_out_of_all() -> None:
    """What the package imports for its users is in `__all__`, and nothing else is public."""
    public = {
        name
        for name in dir(turnlog)
        if not name.startswith("_") and not isinstance(getattr(turnlog, name), ModuleType)
    }
    assert public == set(turnlog.__all__)


def _public_members() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name in turnlog.__all__:
        value = getattr(turnlog, name)
        if inspect.isclass(value):
            own = vars(value).items()
            found += [(f"{name}.{key}", each) for key, each in own if not key.startswith("_")]
    return [(name, each) for name, each in found if callable(each) or isinstance(each, property)]


@pytest.mark.parametrize(
    ("name", "member"), [pytest.param(*each, id=each[0]) for each in _public_members()]
)
def test_every_public_method_and_property_is_documented(name: str, member: Any) -> None:
    """Each method and property of a public class says what it does."""
    assert inspect.getdoc(member), name


@pytest.mark.parametrize(
    "path",
    sorted(Path(turnlog.__file__).parent.rglob("*.py")),
    ids=lambda path: "/".join(path.parts[-2:]),
)
def test_every_module_has_a_docstring_and_imports_on_its_own(path: Path) -> None:
    """Each module says what it is for, and can be imported first."""
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    parts = path.relative_to(Path(turnlog.__file__).parent.parent).with_suffix("").parts
    name = ".".join(parts).removesuffix(".__init__")
    assert importlib.import_module(name).__name__ == name


def test_the_package_says_that_it_is_typed() -> None:
    """The marker for type checkers is installed with the package."""
    assert Path(turnlog.__file__).with_name("py.typed").is_file()


def test_an_async_method_takes_what_its_sync_one_takes() -> None:
    """Every async method has a sync one of the same parameters, but for the `a` in its name."""
    for kind in (turnlog.Memory, turnlog.MemoryThread):
        for name, member in vars(kind).items():
            if name.startswith("a") and inspect.iscoroutinefunction(member):
                plain = getattr(kind, name[1:])
                assert (
                    inspect.signature(member).parameters == inspect.signature(plain).parameters
                ), name
    assert inspect.signature(turnlog.aopen).parameters == inspect.signature(turnlog.open).parameters
