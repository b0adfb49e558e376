"""Retinue as an agent for editors that speak the Agent Client Protocol on stdin and stdout."""

from retinue.acp_server.server import AcpServer, serve
from retinue.acp_server.session import OpenedSession

__all__ = ["AcpServer", "OpenedSession", "serve"]
