"""TODO door."""

from retinue.tools.search.search_tools import tools

__all__ = ["tools"]
