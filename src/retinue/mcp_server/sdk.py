"""The MCP SDK around a `ClientConnection`; importing this module imports the SDK, which takes about a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from retinue.core.errors import BadInput, ProviderError
from retinue.core.run import Approval
from retinue.mcp_server import answers
from retinue.mcp_server.connection import RUN, Ask, ClientConnection, PausedCall
from retinue.version import __version__

Context = ServerRequestContext[Any, Any]
Find = Callable[[Context], Awaitable[ClientConnection]]
"""The connection of the client that sent a request."""

M = TypeVar("M", bound=BaseModel)


def make_server(find: Find) -> Server[Any]:
    """A server that answers each request on the connection that `find` returns."""

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return _model(types.ListToolsResult, (await find(context)).tool_list())

    async def set_level(context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        (await find(context)).log_level = params.level
        return types.EmptyResult()

    async def complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        connection, argument = await find(context), params.argument
        uri = params.ref.uri if isinstance(params.ref, types.ResourceTemplateReference) else ""
        return _model(types.CompleteResult, await connection.completions(uri, argument.name, argument.value))

    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        began = asyncio.get_running_loop().time()

        async def report(seconds: float, message: str) -> None:
            await context.session.report_progress(seconds, None, message)

        connection = await find(context)
        _offer_sampling(connection, context)
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        if is_modern and _has_tasks(context) and params.name == RUN and not (params.arguments or {}).get("background"):
            return await connection.start_task(params.arguments or {})
        if params.request_state is not None:
            found = await connection.resume(params.request_state, _given(params.input_responses), report)
        else:
            arguments = params.arguments or {}
            pauses = is_modern and _can_ask(context)
            found = await connection.call(params.name, arguments, report, ask=_asker(context), pauses=pauses)
        if isinstance(found, PausedCall):
            requests: types.InputRequests = {each.id: _question(each) for each in found.questions}
            return types.InputRequiredResult(input_requests=requests, request_state=found.token)
        level, data = answers.call_log(params.name, found, asyncio.get_running_loop().time() - began)
        await _log(connection, context, level, data)
        return _model(types.CallToolResult, found)

    async def subscribe(context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        with _invalid_params():
            await (await find(context)).subscribe(str(params.uri), context.session.send_resource_updated)
        return types.EmptyResult()

    async def unsubscribe(context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        (await find(context)).unsubscribe(str(params.uri))
        return types.EmptyResult()

    async def listen(
        context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        bus = InMemorySubscriptionBus()
        uris = params.notifications.resource_subscriptions or []
        watching = asyncio.get_running_loop().create_task(
            (await find(context)).watch(uris, lambda uri: bus.publish(ResourceUpdated(uri=uri)))
        )
        try:
            return await ListenHandler(bus)(context, params)
        finally:
            watching.cancel()

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
        with _invalid_params():
            return _model(types.ReadResourceResult, await connection.resource(str(params.uri)))

    async def list_prompts(context: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        return _model(types.ListPromptsResult, (await find(context)).prompt_list())

    async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        connection = await find(context)
        with _invalid_params():
            return _model(types.GetPromptResult, connection.prompt(params.name, params.arguments or {}))

    async def discover(context: Context, params: types.RequestParams | None) -> types.DiscoverResult:
        return _model(types.DiscoverResult, answers.discovered())

    async def get_task(context: Context, params: _TaskParams) -> dict[str, Any]:
        _need_tasks(context)
        with _invalid_params():
            return await (await find(context)).task(params.task_id, asks=_can_ask(context))

    async def update_task(context: Context, params: _TaskAnswers) -> dict[str, Any]:
        _need_tasks(context)
        with _invalid_params():
            await (await find(context)).answer_task(params.task_id, _given(params.input_responses))
        return {}

    async def cancel_task(context: Context, params: _TaskParams) -> dict[str, Any]:
        _need_tasks(context)
        with _invalid_params():
            await (await find(context)).cancel_task(params.task_id)
        return {}

    server: Server[Any] = Server(
        answers.NAME,
        version=__version__,
        title=answers.TITLE,
        instructions=answers.INSTRUCTIONS,
        on_list_tools=list_tools,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=listen,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
    )
    server.extensions = {answers.TASKS: {}}
    # A call may be answered with the result of an extension, which the parameter of the constructor does not allow.
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    # The constructor warns of the parameter for this one, which clients with a handshake still use.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    # That of the SDK says that lists change, which they never do.
    server.add_request_handler("server/discover", types.RequestParams, discover)
    server.add_request_handler("tasks/get", _TaskParams, get_task)
    server.add_request_handler("tasks/update", _TaskAnswers, update_task)
    server.add_request_handler("tasks/cancel", _TaskParams, cancel_task)
    return server


class _TaskParams(types.RequestParams):
    task_id: str


class _TaskAnswers(_TaskParams):
    input_responses: types.InputResponses


@contextmanager
def _invalid_params() -> Generator[None]:
    """Turn an error about a request into one of the protocol."""
    try:
        yield
    except BadInput as error:
        raise MCPError(types.INVALID_PARAMS, str(error)) from error


def _has_tasks(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and answers.TASKS in (capabilities.extensions or {})


def _need_tasks(context: Context) -> None:
    """Refuse a method of the extension for a client that has not announced it."""
    if not _has_tasks(context):
        needed = types.ClientCapabilities(extensions={answers.TASKS: {}})
        data = types.MissingRequiredClientCapabilityErrorData(required_capabilities=needed)
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"{context.method} needs the extension {answers.TASKS}, which the client has not announced",
            data.model_dump(by_alias=True, mode="json", exclude_none=True),
        )


async def _log(connection: ClientConnection, context: Context, level: str, data: dict[str, Any]) -> None:
    """Send a log message if the client asked for its level: once by `logging/setLevel`, or with this request."""
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        least = (context.meta or {}).get(types.LOG_LEVEL_META_KEY)
    else:
        least = connection.log_level
    if least in answers.LOG_LEVELS and answers.LOG_LEVELS.index(level) >= answers.LOG_LEVELS.index(str(least)):
        fields = {"level": level, "logger": answers.NAME, "data": data}
        message = types.LoggingMessageNotification(params=_model(types.LoggingMessageNotificationParams, fields))
        await context.session.send_notification(message, related_request_id=context.request_id)


def _offer_sampling(connection: ClientConnection, context: Context) -> None:
    """Let runs use the model of the client, if it offers that."""
    session, capabilities = context.session, context.session.client_capabilities
    sampling = None if capabilities is None else capabilities.sampling
    if connection.sampling is None or sampling is None or not session.can_send_request:
        return

    async def sample(params: dict[str, Any]) -> dict[str, Any]:
        request = types.CreateMessageRequest(params=_model(types.CreateMessageRequestParams, params))
        try:
            result = await session.send_request(request, types.CreateMessageResultWithTools)
        except MCPError as error:
            raise ProviderError(f"the MCP client refused to sample: {error.message}", fault="bad_request") from error
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)

    connection.sampling.use(sample, has_tools=sampling.tools is not None)


def _can_ask(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


def _asker(context: Context) -> Ask | None:
    """A function that asks the person at the client; None where the client cannot, or where requests go one way."""
    if not _can_ask(context) or not context.session.can_send_request:
        return None

    async def ask(question: Approval) -> bool | None:
        try:
            answer = await context.session.elicit_form(
                answers.question_text(question), answers.QUESTION_SCHEMA, related_request_id=context.request_id
            )
        except MCPError:
            return None
        return _allowed(answer)

    return ask


def _question(question: Approval) -> types.ElicitRequest:
    return _model(types.ElicitRequest, answers.question_request(question))


def _given(responses: types.InputResponses | None) -> dict[str, bool | None]:
    return {
        id: _allowed(response) for id, response in (responses or {}).items() if isinstance(response, types.ElicitResult)
    }


def _allowed(answer: types.ElicitResult) -> bool | None:
    """The answer of a person: only a plain yes allows; one that is dismissed is none."""
    if answer.action == "cancel":
        return None
    return answer.action == "accept" and (answer.content or {}).get("allow") is True


def _model(kind: type[M], value: dict[str, Any]) -> M:
    return kind.model_validate(value, by_alias=True, by_name=False)
