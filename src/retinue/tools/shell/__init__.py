"""TODO door."""

from retinue.tools.shell.shell_tool import assess, run_command, tools

__all__ = ["assess", "run_command", "tools"]
