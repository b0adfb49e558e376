"""The pages about the public Python modules have an entry for every public name, and name no private type."""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from docs.python_reference import NAMES, PAGE_OF, missing, public_names
from tests.docs.pages import DOCS, ROOT, Page, read

PAGES = [read(DOCS / "reference" / name) for name in sorted(set(PAGE_OF.values()))]
ENTRY = re.compile(r"^#{3,} (retinue\.[\w.]*|\w+)$(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"```.*?```", re.DOTALL)

NOT_PUBLIC = {"DialectContext", "ForkOptions", "OpenOptions", "Run", "RunOptions", "Task"}
"""What a dialect is given, types of keyword arguments that another signature explains, and the name of a tool."""


def entries() -> dict[str, str]:
    """What the pages say about each public name."""
    found = (each for page in PAGES for each in ENTRY.findall(page.path.read_text(encoding="utf-8")))
    return {name.rpartition(".")[2]: text for name, text in found if name.rpartition(".")[2] in public_names()}


@pytest.mark.parametrize("module", PAGE_OF)
def test_every_public_name_has_an_entry(module: str) -> None:
    assert missing(module) == []
    assert set(import_module(module).__all__) <= entries().keys()


def test_every_entry_has_a_text() -> None:
    silent = [name for name, text in entries().items() if not prose(text)]

    assert silent == []


def prose(text: str) -> str:
    """What an entry says in words: no code, no table, no base classes."""
    lines = BLOCK.sub("", text).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("|", "Subclass of "))).strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_two_headings_of_a_page_have_the_same_anchor(page: Page) -> None:
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.prose), re.MULTILINE)
    anchors = Counter(re.sub(r"[^\w -]", "", heading.lower()) for heading in headings)

    assert [anchor for anchor, count in anchors.items() if count > 1] == []


def test_the_types_in_public_signatures_are_public() -> None:
    signatures = "\n".join(block.code for page in PAGES for block in page.of("py"))
    types = "\n".join(
        line.split(" | ")[1] for page in PAGES for line in page.prose.splitlines() if line.count(" | ") > 1
    )
    mentioned = set(re.findall(r"\b[A-Z]\w+", signatures + types))

    assert mentioned & private_classes() == NOT_PUBLIC


def private_classes() -> set[str]:
    """The classes of the package that are not public."""
    files: list[Path] = sorted((ROOT / "src" / "retinue").rglob("*.py"))
    nodes = [node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body]
    return {node.name for node in nodes if isinstance(node, ast.ClassDef)} - public_names() - NAMES
