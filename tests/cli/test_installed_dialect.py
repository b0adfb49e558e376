"""`--dialect` takes a dialect that another package has installed."""

import sys
from pathlib import Path

import pytest

from retinue.providers.scripted import says
from tests.cli.conftest import Cli
from tests.cli.stage import serving

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


def test_run_offers_the_tools_of_an_installed_dialect(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    info = packages / "colleagues-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "colleagues_of_cli.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: colleagues\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[retinue.dialects]\ncolleagues = colleagues_of_cli:Colleagues\n")
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])

    with serving(says("Hello.")) as vendor:
        ended = cli("run", "--base-url", vendor.base_url, "--model", "m", "--dialect", "colleagues", "Hi.")

    assert (ended.code, ended.stdout) == (0, "Hello.\n")
    assert [tool["function"]["name"] for tool in vendor.requests[0].body["tools"]] == ["ask"]
