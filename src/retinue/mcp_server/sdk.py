"""The official MCP SDK around a `Connection`; importing this module imports the SDK, which takes most of a second."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from retinue.core.errors import BadInput
from retinue.mcp_server import answers
from retinue.mcp_server.connection import Connection
from retinue.version import __version__

Context = ServerRequestContext[Any, Any]
Find = Callable[[Context], Awaitable[Connection]]
"""The connection of the client that sent a request."""

M = TypeVar("M", bound=BaseModel)


def make_server(find: Find) -> Server[Any]:
    """A server that answers each request on the connection that `find` returns."""

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return _model(types.ListToolsResult, (await find(context)).tool_list())

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        async def report(seconds: float, message: str) -> None:
            await context.session.report_progress(seconds, None, message)

        connection = await find(context)
        return _model(types.CallToolResult, await connection.call(params.name, params.arguments or {}, report))

    async def list_resources(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return _model(types.ListResourcesResult, await (await find(context)).resource_list())

    async def list_templates(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return _model(types.ListResourceTemplatesResult, (await find(context)).resource_templates())

    async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        connection = await find(context)
        try:
            return _model(types.ReadResourceResult, await connection.resource(str(params.uri)))
        except BadInput as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error

    async def list_prompts(context: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        return _model(types.ListPromptsResult, (await find(context)).prompt_list())

    async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        connection = await find(context)
        try:
            return _model(types.GetPromptResult, connection.prompt(params.name, params.arguments or {}))
        except BadInput as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error

    return Server(
        answers.NAME,
        version=__version__,
        title=answers.TITLE,
        instructions=answers.INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def _model(kind: type[M], value: dict[str, Any]) -> M:
    return kind.model_validate(value, by_alias=True, by_name=False)
