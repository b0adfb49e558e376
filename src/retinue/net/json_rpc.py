"""JSON-RPC 2.0 over lines of JSON: one end of a connection on which both sides make requests.

Bounded: the caller bounds the length of a line, and this end its values, the requests at work and the lines that are no
messages.
Notifications are delivered in their order, and before the answer of a request that was sent after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

import msgspec

from retinue.core.log_context import logger
from retinue.core.text import MAX_JSON_VALUES, NOT_JSON, clean_line, values_in

log = logger("retinue.net")

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603

MAX_REQUESTS = 64
"""Requests of the other side that are worked on at the same time; more are refused."""

MAX_GARBAGE = 1000
"""Lines in a row that are no messages, before the connection is given up."""

BREATH = 100
"""Messages in a row after which other tasks have their turn."""

ENDED = "it ended"
"""Why a connection is gone whose other side has closed it."""

MAX_ERROR_CHARACTERS = 2000


class RpcError(Exception):
    """An error answer: one that this end received, or one that a handler gives.

    >>> str(RpcError(METHOD_NOT_FOUND, "no such method"))
    'no such method'
    """

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class ConnectionGone(Exception):
    """The connection ended before the answer came; the text says why."""


class JsonRpcHandler(Protocol):
    """What this end does with messages of the other side."""

    async def requested(self, method: str, params: dict[str, Any]) -> object:
        """The result of a request; raises `RpcError`."""
        ...

    def notified(self, method: str, params: dict[str, Any]) -> None:
        """Takes a notification; must not block. An exception is logged."""
        ...


class JsonRpcPeer:
    """One end of a connection. `send` takes a line without its end; `drain` waits until the other side has read enough.

    A line that is no message is skipped, or answered with an error if this end is `strict`.
    """

    def __init__(
        self,
        handler: JsonRpcHandler,
        send: Callable[[bytes], None],
        drain: Callable[[], Awaitable[None]] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.gone_because = ""
        """Why the connection has ended; empty while it is open."""
        self._handler = handler
        self._send = send
        self._drain = drain
        self._strict = strict
        self._count = 0
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._at_work: set[asyncio.Task[None]] = set()

    async def request(self, method: str, params: Mapping[str, object]) -> object:
        """The result of a request; raises `RpcError` for an error answer, and `ConnectionGone`."""
        if self.gone_because:
            raise ConnectionGone(self.gone_because)
        self._count += 1
        id = self._count
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting[id] = answer
        try:
            self._write({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            return await answer
        finally:
            self._waiting.pop(id, None)

    def notify(self, method: str, params: Mapping[str, object]) -> None:
        """Send a notification; without effect when the connection has ended."""
        if not self.gone_because:
            self._write({"jsonrpc": "2.0", "method": method, "params": params})

    async def serve(self, lines: AsyncGenerator[bytes]) -> None:
        """Take messages until the lines end, and then stop what is at work for the other side."""
        garbage = count = 0
        try:
            async for line in lines:
                count += 1
                if count % BREATH == 0:
                    await asyncio.sleep(0)
                if not line.strip():
                    continue
                if await self._take(line):
                    garbage = 0
                elif (garbage := garbage + 1) > MAX_GARBAGE:
                    self.give_up(f"it sent {MAX_GARBAGE} lines that are no messages")
                    break
        finally:
            await lines.aclose()
            self.give_up(ENDED)
            for task in self._at_work:
                task.cancel()
            await asyncio.gather(*self._at_work, return_exceptions=True)

    def give_up(self, reason: str) -> None:
        """End the connection: requests that wait for an answer fail with the reason. The first reason counts."""
        self.gone_because = self.gone_because or reason
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionGone(self.gone_because))

    def refuse(self, id: object, code: int, message: str, data: object = None) -> None:
        """Answer a request with an error."""
        error: dict[str, object] = {"code": code, "message": message}
        if data is not None:
            error["data"] = data
        self._write({"jsonrpc": "2.0", "id": id, "error": error})

    def _write(self, message: Mapping[str, object]) -> None:
        self._send(msgspec.json.encode(message))

    async def _take(self, line: bytes) -> bool:
        """Handle one line; False if it is no message."""
        if values_in(line) > MAX_JSON_VALUES:
            return self._reject(INVALID_REQUEST, f"the message has more than {MAX_JSON_VALUES} values")
        try:
            message: object = msgspec.json.decode(line)
        except NOT_JSON as error:
            return self._reject(PARSE_ERROR, f"the message is not JSON: {error}")
        if not isinstance(message, dict):
            return self._reject(INVALID_REQUEST, "the message is not a JSON-RPC object")
        fields = cast("dict[str, Any]", message)
        method, id = fields.get("method"), fields.get("id")
        if isinstance(method, str):
            params = fields.get("params")
            given = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
            if "id" not in fields:
                self._notified(method, given)
            elif not _is_id(id):
                return self._reject(INVALID_REQUEST, "the id of a request is a string or an integer")
            else:
                await self._begin(id, method, given)
            return True
        if "result" in fields or "error" in fields:
            self._answered(id, fields)
            return True
        return self._reject(INVALID_REQUEST, "the message has neither a method nor a result")

    def _reject(self, code: int, message: str) -> bool:
        if self._strict:
            self.refuse(None, code, message)
        return False

    def _notified(self, method: str, params: dict[str, Any]) -> None:
        try:
            self._handler.notified(method, params)
        except Exception:
            log.exception("the notification %s could not be handled", clean_line(method)[:100])

    def _answered(self, id: object, fields: Mapping[str, Any]) -> None:
        answer = self._waiting.get(id) if isinstance(id, int) else None
        if answer is None or answer.done():
            return
        if "error" not in fields or fields["error"] is None:
            answer.set_result(fields.get("result"))
            return
        error: object = fields["error"]
        facts = cast("dict[str, object]", error) if isinstance(error, dict) else {}
        code, text = facts.get("code"), facts.get("message")
        answer.set_exception(
            RpcError(
                code if isinstance(code, int) else INTERNAL_ERROR,
                clean_line(text)[:MAX_ERROR_CHARACTERS] if isinstance(text, str) else "an error without a text",
                facts.get("data"),
            )
        )

    async def _begin(self, id: object, method: str, params: dict[str, Any]) -> None:
        """Start work on a request of the other side, unless too many are at work."""
        if len(self._at_work) >= MAX_REQUESTS:
            self.refuse(id, INTERNAL_ERROR, f"more than {MAX_REQUESTS} requests at the same time")
        else:
            task = asyncio.get_running_loop().create_task(self._perform(id, method, params))
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)
        if self._drain is not None:  # a side that asks and does not read the answers is not read either
            await self._drain()

    async def _perform(self, id: object, method: str, params: dict[str, Any]) -> None:
        try:
            result = await self._handler.requested(method, params)
        except RpcError as error:
            self.refuse(id, error.code, str(error), error.data)
        except Exception as error:
            log.exception("the request %s could not be handled", clean_line(method)[:100])
            self.refuse(id, INTERNAL_ERROR, f"internal error: {type(error).__name__}")
        else:
            self._write({"jsonrpc": "2.0", "id": id, "result": result})


def _is_id(id: object) -> bool:
    return isinstance(id, str | int) and not isinstance(id, bool)
