"""The documents: what they show runs, what they name exists, what exists is named."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from localserver import Provider, Reply, turns
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

import turnlog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sybil import Example


def text_of(path: Path) -> str:
    """Give the text of a file, whatever the locale."""
    return path.read_text(encoding="utf-8")


REPOSITORY: Final = Path(__file__).resolve().parents[2]
DOCS: Final = REPOSITORY / "docs"
DOCUMENTS: Final = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.glob("*.md")),
]
WITH_EXAMPLES: Final = [path for path in DOCUMENTS if "```python" in text_of(path)]

FILE: Final = re.compile(r"# (\w+\.py)\n")
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
SPEC_ID: Final = re.compile(r"\b(R\d{1,2}|[CA]\d{2})\b")
POINTS: Final = re.compile(r"\bContract (\d+(?:(?:, | and )\d+)*)")

API: Final = text_of(DOCS / "api.md")
# Public for turnlog's own modules.
INTERNAL: Final = {
    "over",
    "end",
    "tell",
    "after_fork",
    "close_at_exit",
    "check_may_append",
    "performing",
}

# The environment of the examples that need a server, and the fixture that has one.
SERVERS: Final = {"DATABASE_URL": "postgres_url", "NATS_URL": "nats_url"}

REQUIRED: Final = {
    *(f"R{n}" for n in range(1, 25)),
    *(f"C{n:02}" for n in (*range(1, 40), *range(41, 44), *range(45, 52), *range(53, 63))),
    *(f"A{n:02}" for n in range(1, 20)),
}


# ---- the examples ----


class Runner:
    """Runs a document's blocks in turn: python, sh, and text, which is what they printed."""

    def __init__(self) -> None:
        """Begin with nothing printed."""
        self.printed = ""
        self._python = PythonEvaluator()

    def python(self, example: Example) -> None:
        """Run a python block in the document's namespace, or save it to the file that it names."""
        named = FILE.match(example.parsed)
        if named:
            Path(named[1]).write_text(example.parsed, encoding="utf-8")
            importlib.invalidate_caches()
            return
        out = io.StringIO()
        with redirect_stdout(out):
            self._python(example)
        self.printed = out.getvalue()

    def sh(self, example: Example) -> None:
        """Run a sh block in the document's folder, with this very Python as `python`."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-ec", example.parsed],
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        self.printed = done.stdout

    def text(self, example: Example) -> None:
        """Compare a text block with what was printed last; all times are alike."""
        assert TIME.sub("TIME", str(example.parsed)) == TIME.sub("TIME", self.printed)


def reply(body: dict[str, Any]) -> Reply:
    """Say what a model says in the documents; it remembers what it was sent."""
    said = [text for role, text in turns(body) if role == "user"]
    replies: dict[tuple[str, ...], str] = {
        ("My invoice is wrong.",): "I am sorry to hear that. Which one is it?",
        ("My invoice is wrong.", "Any update?"): "Not yet. I still need the number of the invoice.",
    }
    return Reply(replies.get(tuple(said), "Hello."), usage=(25, 13))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: Provider) -> Iterator[None]:
    """Work in a folder of one's own, with a default memory and a provider of its own."""
    provider.reply = reply
    monkeypatch.delenv("TURNLOG_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as Python has it at a prompt
    turnlog.default_memory().close()  # one of an earlier test; the next use makes another
    yield
    turnlog.default_memory().close()
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.name)
def test_the_examples_of_a_document_run(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every example in the documents runs, and prints what the document says."""
    for name, server in SERVERS.items():
        if f'"{name}"' in text_of(path):
            monkeypatch.setenv(name, request.getfixturevalue(server))
    runner = Runner()
    parsers = [
        CodeBlockParser("python", runner.python),
        CodeBlockParser("sh", runner.sh),
        CodeBlockParser("text", runner.text),
        SkipParser(),
    ]
    for example in Sybil(parsers).parse(path).examples():
        example.evaluate()


# ---- links and names ----


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_links_of_a_document_lead_somewhere(path: Path) -> None:
    """Every relative link leads to a file in the repository, and to a heading in it."""
    for target in LINK.findall(text_of(path)):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        assert not heading or heading in anchors(file), target


def anchors(path: Path) -> set[str]:
    """Give the names by which the headings of a document can be linked to."""
    headings = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    titles = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}
    return titles | set(re.findall(r'<a id="(\w+)">', text_of(path)))


def test_every_public_name_is_documented() -> None:
    """Each name that turnlog exports, and no other, has an entry in docs/api.md."""
    names = re.findall(r"^(?:## |\| )`(?:await )?turnlog\.(\w+)", API, re.MULTILINE)
    assert sorted(names) == sorted(turnlog.__all__)


@pytest.mark.parametrize(
    "name",
    [
        *("open", "aopen", "default_memory", "sandbox"),
        *("run", "arun", "stream", "astream", "chat", "achat", "tool"),
    ],
)
def test_every_function_is_documented_as_it_is(name: str) -> None:
    """Each public function stands in docs/api.md with its parameters and defaults."""
    assert f"\n| `{shown(turnlog, name).replace(name, f'turnlog.{name}')}` |" in API


@pytest.mark.parametrize(
    "name",
    ["Memory", "MemoryThread", "Conversation", "Agent", "TextStream", "BlockingTextStream"],
)
def test_every_method_is_documented_as_it_is(name: str) -> None:
    """Each method and property of the main classes stands there as it is called."""
    section = API.split(f"\n## `turnlog.{name}`\n")[1].split("\n## ")[0]
    owner = getattr(turnlog, name)
    for method in sorted(set(dir(owner)) - set(dir(Sequence)) - INTERNAL):
        if not method.startswith("_"):
            assert f"\n| `{shown(owner, method)}` |" in section


@pytest.mark.parametrize("name", ["RunOptions", "ChatOptions", "ToolEvent", "Result"])
def test_every_option_is_documented(name: str) -> None:
    """Each option, and each field of an event and a result, stands there, and no other."""
    section = API.split(f"\n## `turnlog.{name}`\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert documented == list(getattr(turnlog, name).__annotations__)


def shown(owner: object, name: str) -> str:
    """Give a function or property of a module or class as a call of it is written."""
    member = getattr(owner, name)
    if not callable(member):
        return name
    signature = inspect.signature(member)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    plain = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    call = f"{name}{plain}".replace("'", '"')
    return f"await {call}" if inspect.iscoroutinefunction(member) else call


# ---- the specification's ids ----


def test_every_id_has_an_entry() -> None:
    """Each id that there is stands in the specification, and no other."""
    assert entries() == REQUIRED


def test_every_id_that_a_test_names_leads_somewhere() -> None:
    """A test's docstring names only ids that have an entry, and points that the contract has."""
    contract = text_of(DOCS / "durability.md")
    points = {int(n) for n in re.findall(r"^## (\d+)\. ", contract, re.MULTILINE)}
    assert points == set(range(1, 11))
    for where, docstring in docstrings():
        assert set(SPEC_ID.findall(docstring)) <= entries(), where
        assert points_in(docstring) <= points, where


def test_every_requirement_has_a_test() -> None:
    """Each requirement and case that is done, and each point of the contract, has a test."""
    named = {id_ for _, docstring in docstrings() for id_ in SPEC_ID.findall(docstring)}
    points = {point for _, docstring in docstrings() for point in points_in(docstring)}
    missing = [*sorted(REQUIRED - named), *sorted(set(range(1, 11)) - points)]
    assert not missing, f"no test names {', '.join(map(str, missing))}"


def entries() -> set[str]:
    """Give the ids that have an entry in the specification."""
    text = text_of(DOCS / "specification.md")
    return set(re.findall(r"^\| <a id=\"\w+\"></a>\*\*(\w+)\*\* \|", text, re.MULTILINE))


def points_in(docstring: str) -> set[int]:
    """Give the points of the contract that a docstring names: "Contract 2 and 3"."""
    return {int(n) for found in POINTS.findall(docstring) for n in re.findall(r"\d+", found)}


def docstrings() -> Iterator[tuple[str, str]]:
    """Give the docstring of every test, and of every class of tests, with where it stands."""
    folders = (REPOSITORY / "tests", REPOSITORY / "src" / "turnlog" / "testing")
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(text_of(path))):
            match node:
                case ast.FunctionDef(name=name) if name.startswith("test_"):
                    yield f"{path.name}: {name}", ast.get_docstring(node) or ""
                case ast.ClassDef(name=name):
                    yield f"{path.name}: {name}", ast.get_docstring(node) or ""
                case _:
                    pass
