"""The MCP server: delegation tools for any host that speaks the Model Context Protocol, on stdin and stdout.

`answers` has what the server says, as JSON values; `connection` is one client; `sdk` registers both with the official
SDK, which is imported late. `stdio` answers the handshake before that; `http` serves many clients.
"""

from retinue.mcp_server.connection import ClientConnection
from retinue.mcp_server.orphans import adopt_orphans
from retinue.mcp_server.sampling import NAME as SAMPLING
from retinue.mcp_server.sampling import SamplingProvider
from retinue.mcp_server.stdio import serve_stdio

__all__ = ["SAMPLING", "ClientConnection", "SamplingProvider", "adopt_orphans", "http", "serve_stdio"]
