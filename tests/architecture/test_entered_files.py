"""How many files a reader has to open to follow a run of the command line, and one spawn."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "entered_files.py"


# Of the files of `spawn`, six are those of the commit: a caller that waits alone makes it on its own stack.
@pytest.mark.parametrize(("walk", "most"), [("run", 90), ("spawn", 28)])
def test_a_walk_through_the_source_enters_few_files(walk: str, most: int) -> None:
    files: list[str] = runpy.run_path(str(SCRIPT))["entered_files"](walk)
    assert {"engine/supervisor.py", "engine/tool_calls.py"} <= set(files)
    assert len(files) <= most, f"{len(files)} files: {', '.join(files)}"
