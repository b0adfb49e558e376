"""The generated pages are up to date with the code."""

from pathlib import Path

import pytest

from docs.generate import REFERENCE, pages

MADE = pages()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    assert path.exists(), "run `make docs`"
    assert path.read_text(encoding="utf-8") == MADE[path], "the page has drifted from the code: run `make docs`"


def test_there_is_no_page_about_a_dialect_that_is_gone() -> None:
    assert set((REFERENCE / "dialects").glob("*.md")) <= MADE.keys()
