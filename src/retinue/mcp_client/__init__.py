"""The MCP client: tools, resources and prompts of MCP servers, for agents.

`server_config` says how a server is started or reached, `definitions` pins the tools that it lists, `connection` talks
to it, and `tools` has what agents call. The official SDK is imported with the first connection.
"""

from retinue.mcp_client.server_config import McpServer, read_server_file
from retinue.mcp_client.tools import GET_PROMPT, PREFIX, READ_RESOURCE, McpTools, ServerReport

__all__ = ["GET_PROMPT", "PREFIX", "READ_RESOURCE", "McpServer", "McpTools", "ServerReport", "read_server_file"]
