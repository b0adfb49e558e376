"""TODO door."""

from retinue.tools.shell.shell_tool import run_command, tools, weigh

__all__ = ["run_command", "tools", "weigh"]
