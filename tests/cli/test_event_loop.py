"""The command line runs on uvloop where it is installed, and on asyncio's loop where it is not."""

import asyncio
import sys

import pytest

from retinue.cli.event_loop import perform
from tests.cli.conftest import Cli


async def loop_module() -> int:
    print(type(asyncio.get_running_loop()).__module__.partition(".")[0])
    return 0


@pytest.mark.parametrize("installed", [True, False])
def test_commands_run_on_the_fastest_loop_that_is_installed(
    installed: bool, cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if installed:
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    expected = "uvloop" if installed else "asyncio"

    assert perform(loop_module()) == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == (f"{expected}\n", "")

    findings = cli("doctor").stdout
    assert f"commands run on the event loop of {expected}" in " ".join(findings.split())
