"""Tools that a model's vendor runs, as tools of an agent: web search, web fetch, code execution, file search, MCP."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from retinue.core.agent import SERVER_PREFIX, ToolKind, ToolSpec
from retinue.core.errors import ToolError
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.server_tools import SERVER_TOOL_KINDS, ServerToolSpec

_ABOUT = {
    "web_search": "Searches the web.",
    "web_fetch": "Reads web pages.",
    "code_execution": "Runs programs in a container of the vendor.",
    "file_search": "Searches the vendor's document stores.",
    "mcp": "Calls the tools of an MCP server from the vendor's side.",
}


class ServerTool(Tool):
    """A tool that the vendor of a model runs; agents list it as `server:NAME`.

    `name` is `web_search`, `web_fetch`, `code_execution` or `file_search`, or with `url` the name of a remote MCP
    server. `retinue.core.server_tools.ServerToolSpec` explains the options. The vendor's use of the tool cannot be
    asked about: a policy that wants an approval for it leaves the tool out. An MCP server counts as medium `risk`,
    because what it does is not known; the other tools as low.

    >>> ServerTool("web_search", max_uses=3).spec.name
    'server:web_search'
    >>> ServerTool("docs", url="https://mcp.example/mcp", token_env="DOCS_TOKEN").risk
    <Risk.MEDIUM: 'medium'>
    """

    kind: ToolKind = "pure"

    def __init__(
        self,
        name: str,
        *,
        max_uses: int | None = None,
        allowed_domains: Sequence[str] = (),
        blocked_domains: Sequence[str] = (),
        stores: Sequence[str] = (),
        url: str = "",
        token_env: str = "",
        allow: Sequence[str] = (),
        price: float | None = None,
        risk: Risk | None = None,
    ) -> None:
        server = ServerToolSpec(
            name=name.removeprefix(SERVER_PREFIX),
            max_uses=max_uses,
            allowed_domains=tuple(allowed_domains),
            blocked_domains=tuple(blocked_domains),
            stores=tuple(stores),
            url=url,
            token_env=token_env,
            allow=tuple(allow),
            price=price,
        )
        self.server = server
        self.acts = server.kind == "mcp"
        self.risk = risk or (Risk.MEDIUM if self.acts else Risk.LOW)
        self.spec: ToolSpec = ToolSpec(server.full_name, f"{_ABOUT[server.kind]} The model's vendor runs it.")

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        raise ToolError(f"{self.spec.name} is run by the vendor of the model, not by a call")


@cache
def standard_tools() -> dict[str, ServerTool]:
    """The server tools that need no options, by their full names."""
    return {tool.spec.name: tool for tool in map(ServerTool, SERVER_TOOL_KINDS)}
