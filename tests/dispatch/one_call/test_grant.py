"""The grant for a child process survives its encoding."""

from __future__ import annotations

import os

from retinue.core.policy import Policy
from retinue.dialects.child_process import Grant, read_grant
from retinue.tools.dependencies import ToolOptions


def test_a_grant_round_trips_with_its_protected_files() -> None:
    options = ToolOptions(sandbox="off", memory="markdown", protected=("/srv/retinue.toml", "/srv/mytools.py"))
    grant = Grant(run_id="r1", policy=Policy(excluded_tools=("shell",)), tool_options=options)
    receiver, sender = os.pipe()
    try:
        os.write(sender, grant.line())
        assert read_grant(receiver) == grant
    finally:
        os.close(receiver)
        os.close(sender)
