"""Connections to MCP servers: a program on pipes or an address, bounded in size, time and number of messages.

Importing this module imports the SDK.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from msgspec import Struct
from pydantic import FileUrl

from retinue.core.errors import BadInput, ToolError
from retinue.core.policy import WorkspaceRights
from retinue.core.ports import Ended, Talk
from retinue.core.text import clean_line, values_in
from retinue.local.programs import trusted_path
from retinue.mcp_client.program import (
    TrustBoundary,
    check_arguments,
    check_code,
    check_variables,
    program_of,
    sandboxed_program_of,
    starting_folder,
)
from retinue.mcp_client.server_config import Converse, McpServer
from retinue.version import __version__

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of one message, and of one answer over HTTP."""

MAX_VALUES = 500_000
"""Commas, lists and objects of one message: decoding takes time and memory for each of its values."""

MAX_UNASKED = 10_000
"""Messages after a request, before the next one: its answer, notifications, and requests of the server."""

MAX_PAGES = 50
MAX_LIST = MAX_MESSAGE
"""Bytes of all pages of a list of tools."""

START_SECONDS, LIST_SECONDS, END_SECONDS = 30.0, 30.0, 2.0
KEPT_ERRORS = 2000


class _Pipes(Struct, frozen=True):
    """A running program: its lines, and its end."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader


class ServerConnection:
    """An open connection to a server for runs with these rights; `client` is the SDK's.

    `converse` runs the server's program in the sandbox; without it the program has all rights of this process.
    """

    def __init__(
        self, server: McpServer, rights: WorkspaceRights, converse: Converse | None, boundary: TrustBoundary
    ) -> None:
        self.server = server
        self._boundary = boundary
        self.client: Client
        self.ended_because = ""
        """Why the connection is gone; empty while it is open."""
        self._rights = rights
        self._converse = converse
        self._stderr = b""
        self._unasked = 0
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect; raises `ToolError` if the server does not answer in time."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        # The SDK's client has to be entered and left by the same task.
        self._task = loop.create_task(self._run(opened), name=f"retinue-mcp-{self.server.name}")
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.shield(opened)
        except TimeoutError:
            self.ended_because = f"it did not answer within {START_SECONDS:g} s"
            await self.close()
        except asyncio.CancelledError:
            await self.close()
            raise
        if self.ended_because:
            raise ToolError(f"The MCP server {self.server.name} did not start: {self._reason()}.")

    def _reason(self) -> str:
        said = clean_line(self._stderr.decode("utf-8", "replace")).strip()
        return f"{self.ended_because}; it said: {said[-300:]}" if said else self.ended_because

    async def close(self) -> None:
        """End the connection and the server's program."""
        self._stop.set()
        if self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(3 * END_SECONDS):
                    await asyncio.shield(asyncio.gather(self._task, return_exceptions=True))
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def tools(self) -> list[dict[str, Any]]:
        """All tools that the server lists, as JSON values.

        Raises `TimeoutError` if it does not list them in time, and `ToolError` for a list of more than `MAX_LIST`.
        """
        try:
            async with asyncio.timeout(LIST_SECONDS):
                return await self._tools()
        except TimeoutError:
            raise TimeoutError(f"it did not list its tools within {LIST_SECONDS:g} s") from None

    async def _tools(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        size = 0
        for _ in range(MAX_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            size += len(page.model_dump_json())  # all of it: the SDK keeps more of a page than what is used here
            if size > MAX_LIST:
                raise ToolError(f"The MCP server {self.server.name} lists tools of more than {MAX_LIST >> 20} MiB.")
            found += [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None or len(found) > 10_000:
                break
        return found

    async def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            async with Client(
                self._transport(),
                list_roots_callback=self._roots,
                client_info=types.Implementation(name="retinue", version=__version__),
                cache=None,
            ) as client:
                # The SDK would match results against the server's own schemas, on the event loop, and a pattern in
                # one can take for ever. Nothing here relies on their form.
                cast("Any", client.session).validate_tool_result = _accept_any
                self.client = client
                opened.set_result(None)
                await self._stop.wait()
        except (Exception, asyncio.CancelledError) as error:
            self.ended_because = self.ended_because or _text_of(error)
        finally:
            self.ended_because = self.ended_because or "it was closed"
            if not opened.done():
                opened.set_result(None)

    async def _roots(self, context: object) -> types.ListRootsResult:
        folder = _folder(self._rights.workspace)
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl(folder.as_uri()), name=folder.name)])

    def _transport(self) -> Any:
        return self._http() if self.server.url else self._stdio()

    @asynccontextmanager
    async def _http(self) -> AsyncGenerator[Any]:
        limits = httpx2.Timeout(30.0, read=None)
        transport = _BoundedTransport()
        async with (
            httpx2.AsyncClient(
                headers=self.server.request_headers(), timeout=limits, transport=transport
            ) as http_client,
            streamable_http_client(self.server.url, http_client=http_client, max_sse_event_size=MAX_MESSAGE) as streams,
        ):
            yield streams

    async def _start(self) -> AbstractAsyncContextManager[_Pipes]:
        """The program of the server, started by the block; leaving it ends the program with all its processes."""
        if self._converse is None:
            return _started(self.server, self._boundary)
        path = await asyncio.to_thread(sandboxed_program_of, self.server, self._boundary)
        server = msgspec.structs.replace(self.server, command=path)
        return _sandboxed(partial(self._converse, server, self._rights))

    @asynccontextmanager
    async def _stdio(self) -> AsyncGenerator[Any]:
        async with self._errors() as errors, await self._start() as pipes:
            errors.set_result(pipes.stderr)
            to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            to_server, from_client = anyio.create_memory_object_stream[SessionMessage](0)
            loop = asyncio.get_running_loop()
            tasks = [
                loop.create_task(self._read(pipes.stdout, to_client)),
                loop.create_task(self._write(pipes.stdin, from_client)),
            ]
            try:
                yield from_server, to_server
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for stream in (to_client, from_server, to_server, from_client):
                    stream.close()

    async def _read(self, stdout: asyncio.StreamReader, to_client: Any) -> None:
        try:
            while line := await stdout.readline():
                if not line.strip():
                    continue
                if values_in(line) > MAX_VALUES:
                    self.ended_because = f"it sent a message with more than {MAX_VALUES} values"
                    break
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    continue  # programs print other things on stdout, too
                self._unasked += 1
                if self._unasked > MAX_UNASKED:
                    self.ended_because = f"it sent {MAX_UNASKED} messages without answering a request"
                    break
                await to_client.send(SessionMessage(message))
            self.ended_because = self.ended_because or "it ended"
        except ValueError:
            self.ended_because = f"it sent a message of more than {MAX_MESSAGE} bytes"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self.ended_because = self.ended_because or "its connection broke"
        finally:
            to_client.close()  # requests that wait for an answer fail now
            self._stop.set()

    async def _write(self, stdin: asyncio.StreamWriter, from_client: Any) -> None:
        with suppress(OSError):
            async for message in from_client:
                if isinstance(message.message, types.JSONRPCRequest):
                    self._unasked = 0
                stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()

    @asynccontextmanager
    async def _errors(self) -> AsyncGenerator[asyncio.Future[asyncio.StreamReader]]:
        """Read stderr of a program, which is set as the result, also what comes at its end."""
        loop = asyncio.get_running_loop()
        stderr: asyncio.Future[asyncio.StreamReader] = loop.create_future()
        reading = loop.create_task(self._read_errors(stderr))
        try:
            yield stderr
        finally:
            if stderr.done():
                await asyncio.wait((reading,), timeout=END_SECONDS)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_errors(self, opened: asyncio.Future[asyncio.StreamReader]) -> None:
        stderr = await opened
        with suppress(OSError):
            while text := await stderr.read(65_536):
                self._stderr = (self._stderr + text)[-KEPT_ERRORS:]


async def _accept_any(name: str, result: types.CallToolResult) -> None: ...


def _text_of(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return clean_line(str(error) or type(error).__name__)[:500]


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """HTTP with answers of at most `MAX_MESSAGE` bytes and `MAX_VALUES` values, or `MAX_UNASKED` events of so many."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        is_stream = "text/event-stream" in response.headers.get("content-type", "")
        response.stream = _BoundedStream(response.stream, is_stream=is_stream)
        return response


_DATA_LINE = re.compile(rb"[\r\n]data")
_END_OF_EVENT = re.compile(rb"\n\n|\r\r|\r\n\r\n")


class _BoundedStream(httpx2.AsyncByteStream):
    """The bytes of an answer; of a stream of events, whose size the SDK limits, the values of each event count."""

    def __init__(self, stream: httpx2.AsyncByteStream, *, is_stream: bool) -> None:
        self._stream = stream
        self._is_stream = is_stream

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        size = values = events = 0
        seen = b"\n"
        async for chunk in self._stream:
            size += len(chunk)
            values += values_in(chunk)
            seen += chunk  # with the end of the chunk before: a line may be sent in pieces
            events += len(_DATA_LINE.findall(seen)) if self._is_stream else 0  # each event has one such line, or more
            if events > MAX_UNASKED:
                raise httpx2.ReadError(f"the answer has more than {MAX_UNASKED} events")
            if size > MAX_MESSAGE and not self._is_stream:
                raise httpx2.ReadError(f"the answer has more than {MAX_MESSAGE} bytes")
            if values > MAX_VALUES:
                raise httpx2.ReadError(f"the answer has more than {MAX_VALUES} values")
            yield chunk
            if self._is_stream and _END_OF_EVENT.search(seen):
                values = 0
            seen = seen[-4:]

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def _started(server: McpServer, boundary: TrustBoundary) -> AsyncGenerator[_Pipes]:
    """Start the program of a server with all rights, in a session of its own; at the end its group is killed."""
    with ExitStack() as resources:
        folder = await asyncio.to_thread(resources.enter_context, starting_folder(server, boundary))
        path = await asyncio.to_thread(program_of, server, boundary)
        await asyncio.to_thread(check_arguments, server, folder, boundary)
        await asyncio.to_thread(check_code, server, boundary)
        await asyncio.to_thread(check_variables, server, boundary)
        async with _running(msgspec.structs.replace(server, command=path), folder, boundary) as pipes:
            yield pipes


@asynccontextmanager
async def _running(server: McpServer, folder: str, boundary: TrustBoundary) -> AsyncGenerator[_Pipes]:
    try:
        process = await asyncio.create_subprocess_exec(
            server.command,
            *server.args,
            cwd=folder,
            env=_environment(server, boundary),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_MESSAGE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput(f"{clean_line(server.command)} cannot be started: {reason}") from error
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        yield _Pipes(process.stdin, process.stdout, process.stderr)
    finally:
        await asyncio.shield(_end(process))


@asynccontextmanager
async def _sandboxed(converse: Callable[[Talk], Awaitable[Ended]]) -> AsyncGenerator[_Pipes]:
    """Start a program in the sandbox, which kills it with all its processes at the end; its stderr is known then."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[_Pipes] = loop.create_future()
    leave = asyncio.Event()
    stderr = asyncio.StreamReader()

    async def talk(stdin: IO[bytes], stdout: IO[bytes]) -> None:
        async with _streams(stdin, stdout) as (writer, reader):
            opened.set_result(_Pipes(writer, reader, stderr))
            await leave.wait()

    running = asyncio.ensure_future(converse(talk))
    try:
        await asyncio.wait((running, opened), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await running  # raises why it did not start
            raise BadInput("its program ended at once")
        yield opened.result()
    finally:
        leave.set()
        if not opened.done():
            running.cancel()
        (ended,) = await asyncio.gather(running, return_exceptions=True)
        if isinstance(ended, Ended):
            stderr.feed_data(ended.stderr + ended.killed_for.encode())
        stderr.feed_eof()


@asynccontextmanager
async def _streams(
    stdin: IO[bytes], stdout: IO[bytes]
) -> AsyncGenerator[tuple[asyncio.StreamWriter, asyncio.StreamReader]]:
    loop = asyncio.get_running_loop()
    reader, idle = asyncio.StreamReader(limit=MAX_MESSAGE), asyncio.StreamReader()
    reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdout)
    writing, protocol = await loop.connect_write_pipe(lambda: asyncio.StreamReaderProtocol(idle), stdin)
    try:
        yield asyncio.StreamWriter(writing, protocol, None, loop), reader
    finally:
        reading.close()
        writing.abort()


def _environment(server: McpServer, boundary: TrustBoundary) -> dict[str, str]:
    """The variables of a server with all rights: it looks for programs, such as node, in no folder of agents.

    A PATH that the settings name is given as it is.
    """
    environment = server.environment()
    if "PATH" in environment and "PATH" not in (*server.env, *server.values):
        environment["PATH"] = trusted_path(agents_write=boundary.agents_write)
    return environment


def _folder(workspace: str) -> Path:
    return Path.cwd() / workspace


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let a program end by itself when its stdin is closed, then ask it to, then kill it with its group."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
                break
    with suppress(ProcessLookupError, PermissionError):  # processes that it left behind
        os.killpg(process.pid, signal.SIGKILL)
    # A pipe that is no longer read never reports its end: asyncio would keep it open.
    transport: asyncio.SubprocessTransport = cast("Any", process)._transport
    transport.close()
    await asyncio.sleep(0)
