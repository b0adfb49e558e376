"""Web search and web pages."""

from retinue.tools.web.web_tools import tools

__all__ = ["tools"]
