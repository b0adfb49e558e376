"""What the documentation says is there, is there: links lead somewhere, files and names exist, examples run."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = (ROOT / "src" / "retinue", ROOT)

FENCE = re.compile(r" *(`{3,})(\w*)")
HEADING = re.compile(r"#+ +(.+)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE_CODE = re.compile(r"`([^`\n]+)`")
SOURCE_FILE = re.compile(r"((?:[\w.-]+/)*[\w-]+\.py)(?::([A-Za-z_][\w.]*))?")
"""A file as pages name it, `engine/loop.py`, and perhaps something in it, `engine/loop.py:drive`."""

TRACE_OF_THE_WORKSHOP = re.compile(r"issues\s+show|/(?:work|root|home/\w+|Users/\w+)/")
PATHS_ARE_ITS_SUBJECT = {"tests/core/test_policy.py"}


class Example(NamedTuple):
    """A block of Python on a page, and the line where it begins."""

    line: int
    code: str


class Page(NamedTuple):
    """A page as a reader sees it: prose with its blocks of code taken out (the lines stay), and the Python blocks."""

    path: Path
    prose: str
    examples: tuple[Example, ...]

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def anchors(self) -> set[str]:
        """What a link may name behind `#`, made from headings as code hosts do it."""
        headings = filter(None, map(HEADING.fullmatch, self.prose.splitlines()))
        return {re.sub(r"[^\w -]", "", found[1].strip().lower()).replace(" ", "-") for found in headings}


@cache
def read(path: Path) -> Page:
    prose: list[str] = []
    examples: list[Example] = []
    fence = language = ""
    block: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = FENCE.match(line)
        if fence:
            if found and found[1] == fence:
                if language == "python":
                    examples.append(Example(number - len(block), dedent("\n".join(block))))
                fence = ""
            block.append(line)
            prose.append("")
        elif found:
            fence, language, block = found[1], found[2], []
            prose.append("")
        else:
            prose.append(line)
    assert not fence, f"{path}: a block of code has no end"
    return Page(path, "\n".join(prose), tuple(examples))


PAGES = [read(path) for path in sorted(DOCS.rglob("*.md"))]
on_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@on_every_page
def test_every_relative_link_leads_somewhere(page: Page) -> None:
    links = [link for link in LINK.findall(page.prose) if not re.match(r"[a-z]+:", link)]

    assert [link for link in links if not leads_somewhere(page, link)] == []


def leads_somewhere(page: Page, link: str) -> bool:
    place, _, anchor = link.partition("#")
    target = (page.path.parent / place).resolve() if place else page.path
    if not target.exists():
        return False
    return not anchor or (target.suffix == ".md" and anchor in read(target).anchors)


@on_every_page
def test_every_source_file_and_name_that_is_mentioned_exists(page: Page) -> None:
    mentioned = filter(None, map(SOURCE_FILE.fullmatch, INLINE_CODE.findall(page.prose)))

    assert [found[0] for found in mentioned if not exists(found[1], found[2])] == []


def exists(file: str, name: str | None) -> bool:
    found = next((folder / file for folder in SOURCES if (folder / file).is_file()), None)
    return found is not None and (name is None or name in names_in(found))


@cache
def names_in(file: Path) -> frozenset[str]:
    return frozenset(_names(ast.parse(file.read_text()).body, ""))


def _names(body: list[ast.stmt], inside: str) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield inside + name
            case ast.ClassDef(name=name):
                yield inside + name
                yield from _names(statement.body, f"{inside}{name}.")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield inside + name
            case _:
                pass


@pytest.mark.parametrize("page", [page for page in PAGES if page.examples], ids=lambda page: page.name)
def test_every_python_example_runs(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    namespace = ModuleType("example")  # a module, because tools and dataclasses look theirs up by name
    monkeypatch.setitem(sys.modules, "example", namespace)
    for example in page.examples:
        # Empty lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * (example.line - 1) + example.code, page.path, "exec"), namespace.__dict__)


def test_every_decision_record_is_in_the_index_and_has_its_four_parts() -> None:
    folder = DOCS / "explanation" / "decisions"
    records = sorted(folder.glob("[0-9]*.md"))
    indexed = [link for link in LINK.findall(read(folder / "README.md").prose) if re.match(r"\d", link)]

    assert indexed == [record.name for record in records]
    parts = {"context", "decision", "consequences", "alternatives-looked-at"}
    assert [record.name for record in records if not parts <= read(record).anchors] == []


@on_every_page
def test_no_page_speaks_of_how_it_was_made(page: Page) -> None:
    assert re.findall(r"\bseeds?\b", page.prose, re.IGNORECASE) == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a git checkout knows which files are its own")
def test_no_file_carries_traces_of_the_machine_it_was_written_on() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    texts = {name: text for name in listed if (text := text_of(ROOT / name)) is not None}

    assert "tests/docs/test_docs.py" in texts
    found = {name for name, text in texts.items() if TRACE_OF_THE_WORKSHOP.search(text)}
    assert found <= PATHS_ARE_ITS_SUBJECT


def text_of(file: Path) -> str | None:
    """What stands in a file; None if it is not text, a link to a folder, or was deleted a moment ago."""
    try:
        return file.read_text(encoding="utf-8")
    except (UnicodeDecodeError, IsADirectoryError, FileNotFoundError):
        return None
