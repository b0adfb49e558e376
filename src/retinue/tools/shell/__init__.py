"""Shell commands: parsed, assessed, checked against the policy and run in the sandbox."""

from retinue.tools.shell.parser import parse
from retinue.tools.shell.shell_tool import call_risk, run_command, tools

__all__ = ["call_risk", "parse", "run_command", "tools"]
