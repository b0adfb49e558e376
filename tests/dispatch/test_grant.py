"""What a child process is handed: it arrives as it was sent."""

from __future__ import annotations

import os

from retinue.core.policy import Policy
from retinue.dialects.child_process import Grant, read_grant
from retinue.tools.dependencies import ToolOptions


def test_a_grant_arrives_as_it_was_sent_with_the_files_that_no_tool_may_write() -> None:
    options = ToolOptions(sandbox="off", memory="markdown", protected=("/srv/retinue.toml", "/srv/mytools.py"))
    grant = Grant(run_id="r1", policy=Policy(excluded_tools=("shell",)), tool_options=options)
    receiver, sender = os.pipe()
    try:
        os.write(sender, grant.line())
        assert read_grant(receiver) == grant
    finally:
        os.close(receiver)
        os.close(sender)
