"""A dialect of a program's own, as an object and as an entry point of another package."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import retinue
from retinue.ports import CallContext, Tool
from retinue.testing import Script, ScriptedProvider, calls, says

DBA = retinue.Agent(name="dba", system_prompt="You know databases.")


@retinue.tool(kind="keyed", waits=True)
async def ask(agent: str, question: str, context: CallContext) -> str:
    """Ask a colleague."""
    run = await context.spawn(question, agent=agent)
    return (await run.wait()).unwrap()


class Colleagues(retinue.Dialect):
    """One tool, at every depth but the second."""

    name = "colleagues"

    def tools(self) -> Mapping[str, Tool]:
        return {"ask": ask}

    def offered(self, *, depth: int) -> tuple[str, ...]:
        return ("ask",) if depth < 2 else ()


def script() -> ScriptedProvider:
    lines = Script().play("main", calls("ask", agent="dba", question="How many?"), says("Ten, I hear."))
    lines.play("dba", calls("ask", agent="dba", question="Really?"), says("Ten."), task="How many?")
    return ScriptedProvider(lines.play("dba", says("Yes."), task="Really?"))


async def test_a_dialect_object_offers_its_tools_beside_built_in_dialects() -> None:
    async with retinue.open(
        provider=script(), agents=[DBA], dialects=["native", Colleagues()], home=retinue.MEMORY
    ) as r:
        offered = [tool.name for tool in r.offers()]
        run = await r.spawn("How large is the pool?")
        outcome = await run.wait()
        tree = {view.path: view.outcome.text for view in await r.tree(run) if view.outcome is not None}

    assert "ask" in offered
    assert "run_agent" in offered
    assert outcome.text == "Ten, I hear."
    assert tree == {"root": "Ten, I hear.", "root/dba/1": "Ten.", "root/dba/1/dba/1": "Yes."}


@pytest.mark.parametrize(
    ("dialects", "text"),
    [
        ([Colleagues], r"dialects: Colleagues is a class: write Colleagues\(\)"),
        ([7], "found a int; expected names or objects of retinue.Dialect"),
        (7, r"dialects is not a list: write dialects=\["),
    ],
)
def test_what_is_no_dialect_is_refused(dialects: object, text: str) -> None:
    with pytest.raises(retinue.RetinueError, match=text):
        retinue.open(provider=script(), dialects=dialects, home=retinue.MEMORY)  # pyright: ignore[reportArgumentType]


def test_the_name_of_a_built_in_dialect_is_taken() -> None:
    class Spec(Colleagues):
        name = "spec"

    with pytest.raises(retinue.RetinueError, match="'spec' is the name of a built-in dialect"):
        retinue.open(provider=script(), dialects=[Spec()], home=retinue.MEMORY)


MODULE = '''
import retinue

@retinue.tool(kind="keyed", waits=True)
async def ask(agent: str, question: str, context: retinue.CallContext) -> str:
    """Ask a colleague."""
    return (await (await context.spawn(question, agent=agent)).wait()).text

class Colleagues(retinue.Dialect):
    name = "colleagues"

    def tools(self):
        return {"ask": ask}
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with two entry points, one of them wrong."""
    (tmp_path / "colleagues_dialect.py").write_text(MODULE)
    info = tmp_path / "colleagues-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: colleagues\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[retinue.dialects]\ncolleagues = colleagues_dialect:Colleagues\nother = colleagues_dialect:Colleagues\n"
        "absent = no_such_module:Dialect\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "colleagues_dialect", raising=False)


@pytest.mark.usefixtures("installed")
async def test_a_dialect_of_another_package_is_found_by_its_entry_point() -> None:
    model = ScriptedProvider(
        Script()
        .play("main", calls("ask", agent="dba", question="How many?"), says("Ten, I hear."))
        .play("dba", says("Ten."))
    )
    async with retinue.open(provider=model, agents=[DBA], dialects=["colleagues"], home=retinue.MEMORY) as r:
        assert (await r.run("How large is the pool?")).text == "Ten, I hear."


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other", "the entry point 'other' .* is not a retinue.Dialect with the name 'other'"),
        ("absent", r"the dialect 'absent' \(no_such_module:Dialect\) cannot be loaded: ModuleNotFoundError"),
        ("nothing", "unknown dialect: 'nothing'; known: spec, .*, colleagues"),
    ],
)
async def test_an_unusable_entry_point_is_named(name: str, text: str) -> None:
    with pytest.raises(retinue.RetinueError, match=text):
        async with retinue.open(provider=script(), dialects=[name], home=retinue.MEMORY):
            pass
