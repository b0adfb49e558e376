"""What the sandbox adds to the start of a program, measured next to the bare start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retinue.core.ports import Sandbox

AT_MOST = 0.025
ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("sandbox")
def test_a_start_in_the_sandbox_takes_at_most_25_ms_more_than_a_bare_one(sandbox: Sandbox, work: Path) -> None:
    measured = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.start_cost", str(work), str(AT_MOST)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert float(measured.stdout) <= AT_MOST
