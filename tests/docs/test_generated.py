"""The generated pages are up to date with the code."""

import re
from pathlib import Path

import pytest

import retinue
from docs.generate import REFERENCE, pages
from retinue.core.model_options import ModelOptions
from retinue.dialects import registry
from retinue.ports import Request
from retinue.providers.catalog import WIRES
from retinue.providers.scripted import Line
from retinue.testing import Script, ScriptedProvider, says

MADE = pages()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    assert path.exists(), "run `make docs`"
    assert path.read_text(encoding="utf-8") == MADE[path], "the page has drifted from the code: run `make docs`"


@pytest.mark.parametrize("dialect", registry.names())
async def test_the_cost_of_delegation_is_what_a_request_has_more_than_one_without(dialect: str) -> None:
    """The figures of the page are of requests that a model gets, not of texts in the source."""
    sizes: list[int] = []

    def measured(request: Request) -> Line:
        described = sum(len(each.description) + len(each.parameters) for each in request.tools)
        sizes.append(len(request.system) + described)
        return says("Done.")

    provider = ScriptedProvider(Script().play("main", measured, measured))
    agents = [retinue.Agent(name="researcher", description="Finds sources")]
    for dialects in ((), (dialect,)):
        async with retinue.open(
            providers={"anthropic": provider},
            model="anthropic:claude-sonnet-4-5",
            dialects=dialects,
            agents=agents,
            home=retinue.MEMORY,
        ) as r:
            await r.run("Hello.")
    without, offered = sizes
    (shown,) = re.findall(
        rf"^\| \[`{dialect}`\].* \| ([\d,]+) \|$", (REFERENCE / "delegation-cost.md").read_text(), re.MULTILINE
    )

    assert int(shown.replace(",", "")) == pytest.approx((offered - without) / 4, abs=2)


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
