"""Pages and examples import nothing but the public modules, so that what readers copy keeps working.

No page and no example is exempt. The scripts in `docs` that make the reference pages are no pages: they read the code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.docs.pages import PAGES, ROOT, Page

PUBLIC = {"retinue", "retinue.errors", "retinue.events", "retinue.messages", "retinue.ports", "retinue.testing"}

PYTHON = ("python", "pycon")
EXAMPLES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize("page", [page for page in PAGES if page.of(*PYTHON)], ids=lambda page: page.name)
def test_a_page_imports_public_modules_only(page: Page) -> None:
    found = [f"line {block.line}: {name}" for block in page.of(*PYTHON) for name in private_imports(block.code)]

    assert found == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_imports_public_modules_only(example: str) -> None:
    assert [*private_imports((ROOT / example).read_text(encoding="utf-8"))] == []


def private_imports(code: str) -> Iterator[str]:
    """Modules of retinue that a program or a session imports and that are not public.

    >>> [*private_imports("import asyncio, retinue.core.run as run"), *private_imports("from retinue import tool")]
    ['retinue.core.run']
    >>> [*private_imports(">>> from retinue.core import run\\n>>> 1 + 1\\n2")]
    ['retinue.core']
    """
    for node in ast.walk(ast.parse(source_of(code))):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case _:
                continue
        yield from (name for name in modules if name.partition(".")[0] == "retinue" and name not in PUBLIC)


def source_of(code: str) -> str:
    """The program in a block: all of it, or the lines behind the prompts of a session."""
    lines = code.splitlines()
    if not any(line.startswith(">>> ") for line in lines):
        return code
    return "\n".join(line[4:] for line in lines if line.startswith((">>>", "...")))
