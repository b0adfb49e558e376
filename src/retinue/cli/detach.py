"""A process of its own that drives a run after its command has left: out of reach of the terminal's Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from retinue.app.open import default_home
from retinue.core.ids import RunId

FOLDER = "logs"

PYTHON = (sys.executable, "-P")
"""`-P`: the folder in which somebody works must not be where a process finds its modules."""


def begin(run_id: RunId, *flags: str) -> Path:
    """Start a process that resumes the run with these flags; where its output goes."""
    log = default_home() / FOLDER / f"{run_id}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # Only the owner may read what a model has answered.
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        subprocess.Popen(
            [*PYTHON, "-m", "retinue", "runs", "resume", run_id, "--quiet", *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)
    return log
