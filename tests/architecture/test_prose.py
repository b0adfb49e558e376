"""Prose is plain: docstrings, comments, pages and names of tests name the thing or its actor, not a general person."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREES = ("src/retinue", "tests", "bench", "docs", "examples", "scripts")
PAGES = ("AGENTS.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")

# Their sentences come from docstrings, or are prescribed by the document of a dialect.
GENERATED = ROOT / "docs/reference"

PRONOUNS = re.compile(
    r"\b(?:nobody|somebody|whoever|whomever|everybody|anybody|everyone|someone|anyone|who|whom)\b", re.IGNORECASE
)
"""Pronouns in place of a noun (process, caller, driver, run, model, test)."""

PERSONS = re.compile(r"\b(?:person|people|users?|contributors|tenants|of the (?:caller|user)),? who\b", re.IGNORECASE)
"""Persons in particular, of whom a sentence may say more."""

TOOL_TEXTS = frozenset({"owner: who is to do it"})
"""Lines of docstrings that models read as the description of a tool."""

CODE = re.compile(r"`[^`]*`|^\s*(?:>>>|\.\.\. ).*")
"""Code in a line of prose: `everyone=True` is an argument, `nobody` a user of the system."""


def pronoun(text: str) -> str:
    """The first pronoun in a line of prose; empty if there is none.

    >>> pronoun("Wake whoever waits."), pronoun("The store decides who drives a run.")
    ('whoever', 'who')
    >>> pronoun("Wake the runs that wait."), pronoun("For a person who reads `everyone`.")
    ('', '')
    """
    if text.strip() in TOOL_TEXTS:
        return ""
    found = PRONOUNS.search(PERSONS.sub("", CODE.sub("", text)))
    return "" if found is None else found[0]


def modules() -> Iterator[Path]:
    for tree in TREES:
        yield from sorted(path for path in (ROOT / tree).rglob("*.py") if not path.is_symlink())


def pages() -> Iterator[Path]:
    for tree in TREES:
        yield from sorted(path for path in (ROOT / tree).rglob("*.md") if not path.is_relative_to(GENERATED))
    yield from (ROOT / name for name in PAGES)


def prose_of_module(source: str) -> Iterator[tuple[int, str]]:
    """Lines of docstrings and comments, and the words in names of tests, with their line numbers.

    >>> list(prose_of_module('\\"\\"\\"Tests.\\"\\"\\"\\n# why\\ndef test_it_ends():\\n    text = "no prose"'))
    [(2, '# why'), (1, 'Tests.'), (3, 'test it ends')]
    """
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield from enumerate(text.splitlines(), child.lineno)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                    yield child.lineno, name.replace("_", " ")
                case _:
                    pass


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a page outside of code blocks, with their numbers.

    >>> list(prose_of_page("Run it:\\n```\\n$ whoami\\n```\\nDone."))
    [(1, 'Run it:'), (5, 'Done.')]
    """
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


@pytest.mark.parametrize("tree", TREES)
def test_docstrings_comments_and_names_of_tests_have_nouns(tree: str) -> None:
    paths = [path for path in modules() if path.is_relative_to(ROOT / tree) and path != Path(__file__)]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {found!r}"
        for path in paths
        if PRONOUNS.search((source := path.read_text()).replace("_", " "))  # most need no parser
        for number, line in prose_of_module(source)
        if (found := pronoun(line))
    ]

    assert paths  # the tree is where it is expected
    assert not found, "\n".join(found)


def test_pages_have_nouns() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {found!r}"
        for path in pages()
        for number, line in prose_of_page(path.read_text())
        if (found := pronoun(line))
    ]

    assert len(list(pages())) > 100  # the pages are where they are expected
    assert not found, "\n".join(found)


def test_every_module_has_a_docstring() -> None:
    # An empty `__init__.py` makes a folder a package, and that is all.
    sources = {path: source for path in modules() if (source := path.read_text()).strip()}
    missing = [path for path, source in sources.items() if ast.get_docstring(ast.parse(source)) is None]

    assert len(sources) > 500  # the trees are where they are expected
    assert not missing
