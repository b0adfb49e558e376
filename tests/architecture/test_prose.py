"""The first docstring line of every module is plain: it names the thing or its actor, not a person in general."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREES = ("src/retinue", "tests", "bench", "docs", "examples", "scripts")

PRONOUNS = re.compile(
    r"\b(?:nobody|somebody|whoever|everybody|anybody|everyone|someone|(?:those|anyone|one|ones|people|person) who)\b"
    r"|(?:\A|[:;,] )who\b",
    re.IGNORECASE,
)
"""Pronouns in place of a noun (process, caller, driver, run, model, test)."""


def modules() -> Iterator[Path]:
    for tree in TREES:
        yield from sorted(path for path in (ROOT / tree).rglob("*.py") if not path.is_symlink())


def complaint(source: str) -> str:
    """What is wrong with the first line of a module's docstring; empty if nothing is.

    >>> complaint("x = 1"), complaint("")
    ('no docstring', '')
    >>> complaint('"Tests: those who wait are woken."'), complaint('"Waiting: who waits is woken."')
    ("has 'those who'", "has ': who'")
    >>> complaint('"Wake the runs that wait."')
    ''
    """
    if not source.strip():
        return ""  # an empty `__init__.py` makes a folder a package, and that is all
    docstring = ast.get_docstring(ast.parse(source))
    if docstring is None:
        return "no docstring"
    found = PRONOUNS.search(docstring.partition("\n")[0])
    return "" if found is None else f"has {found[0]!r}"


def test_the_first_docstring_line_of_every_module_is_plain() -> None:
    complaints = {str(path.relative_to(ROOT)): complaint(path.read_text()) for path in modules()}

    assert len(complaints) > 500  # the trees are where they are expected
    found = [f"{path}: {text}" for path, text in complaints.items() if text]
    assert not found, "\n".join(found)
