"""Search for files and in their contents."""

from retinue.tools.search.search_tools import tools

__all__ = ["tools"]
