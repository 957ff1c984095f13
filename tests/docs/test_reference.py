"""The site of documents: what it has to show is in it. `make docs` builds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import turnlog

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DOCS: Final = REPOSITORY / "docs"


def text_of(path: Path) -> str:
    """Give the text of a file, whatever the locale."""
    return path.read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference() -> None:
    """The docstring of each name that turnlog exports, and of no other, is shown, each once."""
    shown = re.findall(r"^::: (.+)$", text_of(DOCS / "reference.md"), re.MULTILINE)
    assert sorted(shown) == sorted(f"turnlog.{name}" for name in turnlog.__all__)


def test_every_document_can_be_found() -> None:
    """Each document has its place in the site's navigation, its home page and the README."""
    documents = {path.name for path in DOCS.glob("*.md")}
    pages = text_of(REPOSITORY / "mkdocs.yml").split("\nnav:\n")[1]
    navigation = re.findall(r": (\w[\w-]*\.md)$", pages, re.MULTILINE)
    assert sorted(navigation) == sorted(documents)
    home = re.findall(r"\]\((\w[\w-]*\.md)\)", text_of(DOCS / "index.md"))
    assert set(home) == documents - {"index.md"}
    readme = re.findall(r"\]\(docs/(\w[\w-]*\.md)", text_of(REPOSITORY / "README.md"))
    assert set(readme) == documents - {"index.md"}
