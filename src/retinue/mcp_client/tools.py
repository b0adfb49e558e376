"""What agents have of MCP servers: their tools as `mcp__SERVER__TOOL`, and two tools for resources and prompts."""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.attachments import MAX_COUNT, Attachment, recognised
from retinue.core.errors import BadInput, ToolError
from retinue.core.ids import RunId
from retinue.core.log_context import logger
from retinue.core.policy import Policy, Risk, WorkspaceRights
from retinue.core.ports import CallContext, CallRisk, KeyValue, PreparedCall, Tool, ToolResult
from retinue.core.text import NOT_JSON, clean, clean_line, name_list
from retinue.mcp_client.definitions import PREFIX, Pins, ToolDefinition, changes, listed
from retinue.mcp_client.program import TrustBoundary, boundary_of
from retinue.mcp_client.server_config import Converse, McpServer

if TYPE_CHECKING:
    from retinue.mcp_client.connection import ServerConnection

log = logger("retinue.mcp")

READ_RESOURCE, GET_PROMPT = "mcp_read_resource", "mcp_get_prompt"
MAX_MEDIA = 5 * 1024 * 1024
"""Bytes of the images, PDF and audio of one result together, which every later request of the run sends again."""

NOT_SHOWN = "not shown"

MAX_RUNS = 10_000
"""Runs whose restarts of servers are remembered."""

T = TypeVar("T")

ServerWork = Callable[["ServerConnection"], Awaitable[T]]


class McpTools:
    """The MCP servers of a process, and the tools that agents have of them.

    `load` has to be awaited before the tools are looked up. A server is started when one of its tools is first called;
    one that was never listed is also started by `load`, with the rights of `policy` in the current folder. `converse`
    runs servers with `sandbox` in the sandbox; without it they run as others do. Those outside it are not started from
    the folders that `agents_write` gives; their own empty folders are made in `home`.
    """

    def __init__(
        self,
        servers: Sequence[McpServer],
        key_value: Callable[[], KeyValue],
        *,
        converse: Converse | None = None,
        policy: Policy | None = None,
        agents_write: Callable[[], Sequence[str]] = tuple,
        home: Path | None = None,
    ) -> None:
        self._agents_write = agents_write
        self._home = home
        self._servers = {server.name: server for server in servers}
        if len(self._servers) < len(servers):
            names = [server.name for server in servers]
            raise BadInput(f"two MCP servers are named {next(name for name in names if names.count(name) > 1)!r}")
        self._key_value = key_value
        self._converse = converse
        self._policy = policy or Policy()
        self._definitions: dict[str, dict[str, ToolDefinition]] = {}
        self._tools: dict[str, Tool] = {}
        self._connections: dict[tuple[str, WorkspaceRights], ServerConnection] = {}
        self._opening: dict[tuple[str, WorkspaceRights], asyncio.Lock] = {}
        self._restarted: OrderedDict[tuple[RunId, str], None] = OrderedDict()
        self._reported: set[str] = set()
        self.first_list_timeout: float | None = None
        """Seconds for which `load` awaits a server that was never listed; None for as long as its timeout says."""
        self._listing: set[asyncio.Task[dict[str, ToolDefinition]]] = set()
        """Servers that `load` did not wait for; their tools are there when the next process loads them."""

    def __bool__(self) -> bool:
        return bool(self._servers)

    # Names

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that agents can have."""
        return tuple(self._tools)

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def expanded(self, names: Iterable[str]) -> tuple[str, ...]:
        """Names of tools with patterns such as `mcp__github__*` replaced by the tools that they match.

        `mcp__github` is all tools of that server. A name of a tool that no server has is left out.
        """
        found: dict[str, None] = {}
        for name in names:
            if not name.startswith(PREFIX):
                found[name] = None
                continue
            pattern = f"{name}__*" if name.removeprefix(PREFIX) in self._servers else name
            found |= dict.fromkeys(each for each in self._tools if fnmatchcase(each, pattern))
        return tuple(found)

    # Definitions

    async def load(self) -> None:
        """Read the pinned definitions, and list the servers that have none. A server that fails is reported."""
        await asyncio.gather(*map(self._load, self._servers.values()))
        for server in self._servers.values():
            if (definitions := self._definitions.get(server.name)) is None:
                continue
            for tool in _tools_of(self, server, definitions) or _own_reading_tools(self, server):
                self._tools[tool.spec.name] = tool
        if self._servers:
            self._tools |= {READ_RESOURCE: ReadResource(self), GET_PROMPT: GetPrompt(self)}

    async def _load(self, server: McpServer) -> None:
        pinned = await self._pins.of(server)
        if not pinned:
            try:
                pinned = await self._first_list(server)
            except (ToolError, BadInput) as error:
                log.warning("%s Its tools are missing.", str(error).rstrip(".") + ".")
                return
        self._definitions[server.name] = pinned

    async def _first_list(self, server: McpServer) -> dict[str, ToolDefinition]:
        async def pin() -> dict[str, ToolDefinition]:
            return await self._pins.add(server, await self.list_now(server))

        listing = asyncio.get_running_loop().create_task(pin())
        self._listing.add(listing)
        try:
            done, _ = await asyncio.wait({listing}, timeout=self.first_list_timeout)
        except BaseException:
            listing.cancel()
            raise
        if not done:
            listing.add_done_callback(self._listed_late)
            raise ToolError(
                f"The MCP server {server.name} has not listed its tools within {self.first_list_timeout:g} s; once it "
                "has, they are there from the next start."
            )
        self._listing.discard(listing)
        return listing.result()

    def _listed_late(self, listing: asyncio.Task[dict[str, ToolDefinition]]) -> None:
        self._listing.discard(listing)
        if not listing.cancelled() and (error := listing.exception()) is not None:
            log.warning("%s", error)

    @property
    def _pins(self) -> Pins:
        return Pins(self._key_value())

    async def list_now(self, server: McpServer) -> dict[str, ToolDefinition]:
        """The tools that a server lists now; raises `ToolError` if it cannot be asked."""
        # The workspace and the rights of most runs.
        connection = await self._connection(server, WorkspaceRights(os.getcwd(), self._policy), run_id="")
        return await self._listed(connection)

    async def report(self, server: McpServer, *, accept: bool) -> ServerReport:
        """Ask a server for its tools, and compare them with the pinned ones, which `accept` replaces."""
        pinned = await self._pins.of(server)
        try:
            now = await self.list_now(server)
        except (ToolError, BadInput) as error:
            return ServerReport(server.name, _tools_of(self, server, pinned), error=str(error))
        if accept:
            await self._pins.replace(server, now)
            pinned = now
        elif not pinned:
            pinned = await self._pins.add(server, now)
        return ServerReport(server.name, _tools_of(self, server, pinned), changes=tuple(changes(pinned, now)))

    async def _listed(self, connection: ServerConnection) -> dict[str, ToolDefinition]:
        server = connection.server
        try:
            tools = await self._answered(connection, lambda it: it.tools())
        except _ConnectionLostError as error:
            raise ToolError(f"The MCP server {server.name} cannot list its tools: {error}.") from error
        found = listed(tools, server)
        for complaint in found.complaints[:10]:
            self._report(server, complaint)
        return found.definitions

    def _report(self, server: McpServer, text: str) -> None:
        sentence = f"MCP server {server.name}: {text}"
        if sentence not in self._reported and len(self._reported) < 1000:
            self._reported.add(sentence)
            log.warning("%s", sentence)

    # Connections

    async def use(self, server_name: str, context: CallContext, work: ServerWork[T], *, repeatable: bool) -> T:
        """Do something on the connection to a server, which is opened and after a crash reopened once for each run.

        Raises `ToolError`. Work that is not `repeatable` is not done again after a crash: it may have had its effect.
        """
        server = self._servers[server_name]
        for attempt in range(2):
            rights = WorkspaceRights(context.workspace, context.policy)
            connection = await self._connection(server, rights, context.run_id)
            try:
                return await self._answered(connection, work)
            except _ConnectionLostError as lost:
                if repeatable and not attempt:
                    continue
                raise ToolError(
                    f"The MCP server {server.name} was lost during the call ({lost}): the call was interrupted, and "
                    "may or may not have taken effect. Find out before you repeat it."
                ) from lost
        raise AssertionError

    async def _answered(self, connection: ServerConnection, work: ServerWork[T]) -> T:
        from anyio import BrokenResourceError, ClosedResourceError
        from httpx2 import HTTPError
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        try:
            return await work(connection)
        except MCPError as error:
            if connection.ended_because:
                raise _ConnectionLostError(connection.ended_because) from error
            said = clean(error.message)[:2000]
            raise ToolError(f"The MCP server {connection.server.name} answered: {said}") from error
        except (HTTPError, BrokenResourceError, ClosedResourceError, OSError) as error:
            connection.ended_because = connection.ended_because or clean_line(str(error) or type(error).__name__)
            raise _ConnectionLostError(connection.ended_because) from error
        except (ValidationError, RuntimeError) as error:
            raise ToolError(f"The MCP server {connection.server.name} gave an answer that is not valid.") from error

    async def _connection(self, server: McpServer, rights: WorkspaceRights, run_id: RunId) -> ServerConnection:
        """The connection for these rights: a server in the sandbox serves no run of others, which may be less."""
        if not self._is_sandboxed(server):
            rights = replace(rights, policy=self._policy)  # it has all rights in any case
        place = (server.name, rights)
        async with self._opening.setdefault(place, asyncio.Lock()):
            existing = self._connections.get(place)
            if existing is not None and not existing.ended_because:
                return existing
            if existing is not None:
                await existing.close()
                self._count_restart(server, run_id, existing.ended_because)
            return await self._open(server, rights)

    def _is_sandboxed(self, server: McpServer) -> bool:
        return server.sandbox and self._converse is not None

    async def _open(self, server: McpServer, rights: WorkspaceRights) -> ServerConnection:
        try:
            from retinue.mcp_client.connection import ServerConnection
        except ImportError as error:
            raise ToolError("MCP servers need the package mcp: install the extra retinue[mcp].") from error
        boundary = await asyncio.to_thread(self._boundary, rights.workspace)
        connection = ServerConnection(server, rights, self._converse if self._is_sandboxed(server) else None, boundary)
        self._connections[server.name, rights] = connection
        try:
            await connection.open()
        except BaseException:
            connection.ended_because = connection.ended_because or "it did not start"
            raise
        if pinned := await self._pins.of(server):
            for sentence in changes(pinned, await self._listed(connection))[:10]:
                self._report(server, sentence)
        return connection

    def _boundary(self, workspace: str) -> TrustBoundary:
        return boundary_of(tuple(self._agents_write()), workspace, self._home)

    def _count_restart(self, server: McpServer, run_id: RunId, reason: str) -> None:
        if (run_id, server.name) in self._restarted:
            raise ToolError(
                f"The MCP server {server.name} was restarted in this run and was lost again ({reason}); do without it."
            )
        self._restarted[run_id, server.name] = None
        if len(self._restarted) > MAX_RUNS:
            self._restarted.popitem(last=False)

    async def close(self) -> None:
        """End all servers."""
        for listing in self._listing:
            listing.cancel()
        await asyncio.gather(*self._listing, return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))
        self._connections.clear()

    # Resources and prompts

    def server_of(self, name: str, method: str, context: CallContext) -> str:
        """The name of a server that a run may use by a method, because it has a tool of it; raises `ToolError`."""
        usable = [
            each
            for each, server in self._servers.items()
            if server.offers(method) and any(tool.startswith(f"{PREFIX}{each}__") for tool in context.offered)
        ]
        if name not in usable:
            raise ToolError(f"There is no MCP server {name[:100]!r} for you. Valid: {name_list(usable)}.")
        return name

    def risk_of(self, name: str, method: str) -> Risk:
        """The risk of a method of a server, low unless the settings say otherwise."""
        server = self._servers.get(name)
        return (server.risk_of(method) if server else None) or Risk.LOW


class ServerReport(Struct, frozen=True):
    """A server as it is now: its pinned tools, what has changed since, and why it could not be asked."""

    server: str
    tools: tuple[Tool, ...]
    changes: tuple[str, ...] = ()
    error: str = ""


class _ConnectionLostError(Exception):
    """The server ended, or its connection broke, before it answered."""


class McpTool(Tool):
    """A tool of an MCP server."""

    def __init__(self, tools: McpTools, server: McpServer, definition: ToolDefinition) -> None:
        self._tools = tools
        self._server = server
        self._name = definition.name
        about = f"Tool of the MCP server {server.name}, which describes it so:\n{definition.description}"
        self.spec = ToolSpec(definition.name_for(server.name), about, definition.schema)
        self.kind: ToolKind = definition.kind
        configured = server.risk_of(definition.name)
        self.risk = definition.risk if configured is None else configured
        self.acts = not definition.read_only if configured is None else configured != Risk.LOW
        self.timeout = server.timeout

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        values = _object(arguments)
        result: Any = await self._tools.use(
            self._server.name,
            context,
            lambda connection: connection.client.call_tool(self._name, values),
            repeatable=self.kind != "once",
        )
        media = _Media()
        text = content_text(result.content, media)
        if not text and not media.found and result.structured_content is not None:
            text = msgspec.json.encode(result.structured_content).decode()
        return ToolResult(text, failed=bool(result.is_error), attachments=tuple(media.found))


def _tools_of(tools: McpTools, server: McpServer, definitions: Mapping[str, ToolDefinition]) -> tuple[Tool, ...]:
    return tuple(McpTool(tools, server, definition) for definition in definitions.values())


def _object(arguments: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (*NOT_JSON, msgspec.ValidationError) as error:
        raise ToolError(f"The arguments are not a JSON object: {error}") from error


class _Media:
    """The images, PDF and audio of one result, by their content, up to what a result may have."""

    def __init__(self) -> None:
        self.found: list[Attachment] = []
        self._room = MAX_MEDIA

    def add(self, base64: str, name: str = "") -> str:
        """Add the data, or return why it is left out; its size is looked at before it is decoded."""
        size = _size(base64)
        if size > self._room or len(self.found) == MAX_COUNT:
            return f"left out: a result has at most {MAX_COUNT} of {MAX_MEDIA >> 20} MiB together"
        try:
            data = b64decode(base64)
        except ValueError:
            return NOT_SHOWN
        found = recognised(data, name)
        if found is None:
            return NOT_SHOWN
        self._room -= size
        self.found.append(found)
        return ""


def _size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")


def content_text(blocks: Iterable[Any], media: _Media | None = None) -> str:
    """Content of an MCP server as text: untrusted, without control characters.

    Images, PDF and audio are added to `media`; what has no place there is named in the text.
    """
    return "\n".join(filter(None, (_block_text(block, media) for block in blocks)))


def _block_text(block: Any, media: _Media | None) -> str:
    match block.type:
        case "text":
            return clean(block.text)
        case "image" | "audio":
            if reason := _left_out(media, block.data):
                return f"[{block.type}: {clean_line(block.mime_type)[:100]}, {_size(block.data)} bytes, {reason}]"
            return ""
        case "resource_link":
            return f"[resource: {clean_line(str(block.uri))[:500]} {clean_line(block.name)[:200]}]"
        case "resource":
            return _resource_text(block.resource, media)
        case _:
            return ""


def _resource_text(resource: Any, media: _Media | None = None) -> str:
    text: str | None = getattr(resource, "text", None)
    if text is not None:
        return clean(text)
    uri = clean_line(str(resource.uri))
    if not (reason := _left_out(media, resource.blob, uri[-200:])):
        return ""
    kind = clean_line(resource.mime_type or "unknown type")[:100]
    return f"[resource: {uri[:500]}, {kind}, {_size(resource.blob)} bytes, {reason}]"


def _left_out(media: _Media | None, base64: str, name: str = "") -> str:
    """Add data to `media`; why it is not shown to the model, empty if it is."""
    return NOT_SHOWN if media is None else media.add(base64, name)


ServerName = Annotated[str, Meta(description="Name of the MCP server.")]


class _ResourceArguments(Struct, forbid_unknown_fields=True):
    server: ServerName
    uri: Annotated[str | None, Meta(description="Its address; leave it out for a list of resources.")] = None


class _PromptArguments(Struct, forbid_unknown_fields=True):
    server: ServerName
    name: Annotated[str | None, Meta(description="Its name; leave it out for a list of prompts.")] = None
    arguments: Annotated[dict[str, str] | None, Meta(description="Values for the prompt.")] = None


A = TypeVar("A", bound=Struct)


def _schema(kind: type[Struct], *, without: Collection[str] = ()) -> str:
    schema = msgspec.json.schema(kind, ref_template="#/$defs/{name}")
    (definition,) = schema["$defs"].values()
    properties = {name: value for name, value in definition["properties"].items() if name not in without}
    required = [name for name in definition["required"] if name not in without]
    return msgspec.json.encode({"type": definition["type"], "properties": properties, "required": required}).decode()


class _ReadingTool(Tool):
    """Base class of the tools that only read from a server; with a `server` of its own, a tool takes no other.

    The settings of a server allow and deny them, and set their risk, by the name of the `method`.
    """

    kind: ToolKind = "pure"
    timeout: float | None = 60.0
    method: ClassVar[str]
    name: ClassVar[str]
    about: ClassVar[str]
    arguments: ClassVar[type[_ResourceArguments | _PromptArguments]]

    def __init__(self, tools: McpTools, server: str | None = None) -> None:
        self._tools = tools
        self._server = server
        own_name = self.name if server is None else f"{PREFIX}{server}__{self.name.removeprefix('mcp_')}"
        about = self.about.format("an MCP server" if server is None else f"the MCP server {server}")
        self.spec = ToolSpec(own_name, about, _schema(self.arguments, without=() if server is None else ("server",)))

    def prepare(self, arguments: str) -> PreparedCall:
        try:
            server = self._read(arguments, self.arguments).server
        except ToolError:
            server = ""
        risk = self._tools.risk_of(server, self.method)
        return PreparedCall(arguments, CallRisk(risk, risk != Risk.LOW), partial(self.call, arguments), self.waits)

    def _read(self, text: str, kind: type[A]) -> A:
        try:
            if self._server is not None:
                text = msgspec.json.encode({**_object(text), "server": self._server}).decode()
            return msgspec.json.decode(text or "{}", type=kind)
        except (*NOT_JSON, msgspec.ValidationError) as error:
            raise ToolError(f"The arguments are not valid: {error}") from error


class ReadResource(_ReadingTool):
    """`mcp_read_resource`: a resource of a server, or the list of its resources."""

    method = "resources/read"
    name = READ_RESOURCE
    about = "Read a resource of {}, or list its resources."
    arguments = _ResourceArguments

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        asked = self._read(arguments, _ResourceArguments)
        server = self._tools.server_of(asked.server, self.method, context)
        uri = asked.uri
        if uri is None:
            page: Any = await self._tools.use(server, context, lambda it: it.client.list_resources(), repeatable=True)
            rows = [f"{clean_line(str(each.uri))[:500]} {clean_line(each.name)[:200]}" for each in page.resources[:200]]
            return ToolResult("\n".join(rows) or "The server has no resources.")
        read: Any = await self._tools.use(server, context, lambda it: it.client.read_resource(uri), repeatable=True)
        media = _Media()
        text = "\n".join(filter(None, (_resource_text(each, media) for each in read.contents)))
        return ToolResult(text, attachments=tuple(media.found))


class GetPrompt(_ReadingTool):
    """`mcp_get_prompt`: a prompt of a server, or the list of its prompts."""

    method = "prompts/get"
    name = GET_PROMPT
    about = "Get a prompt of {}, or list its prompts."
    arguments = _PromptArguments

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        asked = self._read(arguments, _PromptArguments)
        server = self._tools.server_of(asked.server, self.method, context)
        name = asked.name
        if name is None:
            page: Any = await self._tools.use(server, context, lambda it: it.client.list_prompts(), repeatable=True)
            return ToolResult("\n".join(map(_prompt_line, page.prompts[:200])) or "The server has no prompts.")
        got: Any = await self._tools.use(
            server, context, lambda it: it.client.get_prompt(name, asked.arguments or {}), repeatable=True
        )
        lines: Mapping[int, str] = {
            place: f"{message.role}: {content_text([message.content])}" for place, message in enumerate(got.messages)
        }
        return ToolResult("\n\n".join(lines.values()))


def _own_reading_tools(tools: McpTools, server: McpServer) -> tuple[Tool, ...]:
    """The tools of a server that has none: those that read its resources and prompts, which agents have by name."""
    kinds: tuple[type[_ReadingTool], ...] = (ReadResource, GetPrompt)
    return tuple(kind(tools, server.name) for kind in kinds if server.offers(kind.method))


def _prompt_line(prompt: Any) -> str:
    names = ", ".join(clean_line(each.name)[:100] for each in prompt.arguments or ())
    return f"{clean_line(prompt.name)[:200]}({names}) {clean_line(prompt.description or '')[:300]}".strip()
