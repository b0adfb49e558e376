"""The command collects garbage less often in a process of its own, and leaves a host's collector alone."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Cli

PRINTING = """
import gc, retinue
print("collector:", gc.get_threshold()[0], gc.get_freeze_count() > 10_000)

@retinue.tool
def look() -> str:
    return "nothing"
"""


def test_the_command_collects_rarely_and_never_walks_through_its_modules(folder: Path) -> None:
    (folder / "mine.py").write_text(PRINTING)
    (folder / "retinue.toml").write_text('[tools]\nmodules = ["mine.py"]\n')
    ended = subprocess.run(
        [sys.executable, "-m", "retinue", "tools", "--config", "retinue.toml"], capture_output=True, text=True
    )

    assert "collector: 10000 True" in (ended.stdout + ended.stderr).splitlines()


def test_the_command_in_the_process_of_a_host_leaves_the_collector_alone(cli: Cli) -> None:
    before = gc.get_threshold(), gc.get_freeze_count()

    assert cli("tools").code == 0

    assert (gc.get_threshold(), gc.get_freeze_count()) == before
