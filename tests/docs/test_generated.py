"""The generated pages are up to date with the code."""

from pathlib import Path

import pytest

from docs.generate import REFERENCE, pages
from retinue.core.model_options import ModelOptions
from retinue.providers.catalog import WIRES

MADE = pages()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    assert path.exists(), "run `make docs`"
    assert path.read_text(encoding="utf-8") == MADE[path], "the page has drifted from the code: run `make docs`"


def test_there_is_no_page_about_a_dialect_that_is_gone() -> None:
    assert set((REFERENCE / "dialects").glob("*.md")) <= MADE.keys()


def test_the_table_of_wires_is_true_of_each_wire_that_it_names() -> None:
    """Wires were put into one column that do not have the same: no vendor on chat completions has batches."""
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (REFERENCE / "wires.md").read_text().split("## Server tools")[0].splitlines()
        if line.startswith("|")
    ]
    shown = {
        (name, feature.strip("`")): cell == "yes"
        for feature, *cells in rows
        for names, cell in zip(header[1:], cells, strict=True)
        for name in names.split(", ")
    }

    wires = {name: wire for name, wire in WIRES.items() if wire.kind in ("vendor", "local")}
    options = {(name, each): each in wires[name].supports for name in wires for each in ModelOptions.__struct_fields__}
    assert {name for name, _ in shown} == set(wires)
    assert options.items() <= shown.items()
    assert [name for name in wires if shown[name, "list of models"]] == [n for n, w in wires.items() if w.models_path]
    assert (shown["groq", "batch_hours"], shown["openai-chat", "batch_hours"]) == (False, True)
