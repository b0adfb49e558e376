"""TODO door."""

from retinue.tools.web.web_tools import tools

__all__ = ["tools"]
