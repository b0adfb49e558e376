"""The batch APIs of Anthropic, OpenAI and Gemini: submit, find again, poll, read results, cancel."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import ClassVar, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from retinue.core.errors import ProviderError
from retinue.core.text import NOT_JSON
from retinue.providers.http import Endpoint

_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")
_NULL = Raw(b"null")
MAX_ANSWER = 16 << 20
"""Bytes of an answer about a batch, and of one result."""
MAX_LISTED = 1000
"""Batches that are looked at to find one again."""


class BatchState(Struct, frozen=True):
    """How far a batch is; `error` says why the vendor did not begin it."""

    state: Literal["working", "ended", "failed"]
    error: str = ""


class AnsweredRequest(Struct, frozen=True):
    """The response to one request of a batch, as it would have come alone."""

    body: bytes


class NotAnswered(Struct, frozen=True):
    """Why a request of a batch has no response; `status` and `body` are those of an error response."""

    why: Literal["errored", "expired", "cancelled"]
    status: int = 0
    body: bytes = b""


ItemResult: TypeAlias = AnsweredRequest | NotAnswered


class BatchApi(ABC):
    """The batches of one vendor. All methods raise `ProviderError`.

    The ids that a batch has here are `KEY-NUMBER`, so that its results tell whose it is.
    """

    max_items: ClassVar[int]
    max_bytes: ClassVar[int]
    finds_by_key: ClassVar[bool] = True
    """Whether the vendor's list names the key; otherwise what `find` returns may be another's."""

    def __init__(self, endpoint: Endpoint, headers: dict[str, str]) -> None:
        self._endpoint = endpoint
        self._headers = headers

    @abstractmethod
    async def submit(self, key: str, model: str, bodies: Sequence[bytes]) -> str:
        """Submit requests, and return the vendor's id of the batch."""

    @abstractmethod
    async def find(self, key: str, *, since: float, count: int) -> list[str]:
        """The ids of batches that may be the one with this key, which was submitted after `since`."""

    @abstractmethod
    async def state(self, batch_id: str) -> BatchState: ...

    @abstractmethod
    def results(self, batch_id: str) -> AsyncIterator[tuple[str, ItemResult]]:
        """The results of an ended batch, each with the id of its request."""

    @abstractmethod
    async def cancel(self, batch_id: str) -> None: ...

    async def _get(self, path: str, *, query: str = "", max_bytes: int = MAX_ANSWER) -> bytes:
        return await self._endpoint.exchange("GET", path, query=query, headers=self._headers, max_bytes=max_bytes)

    async def _post(self, path: str, body: bytes = b"{}", *, content_type: str = "application/json") -> bytes:
        headers = self._headers | {"Content-Type": content_type}
        return await self._endpoint.exchange("POST", path, body=body, headers=headers, max_bytes=MAX_ANSWER)


def item_id(key: str, number: int) -> str:
    """The id of a request in its batch."""
    return f"{key}-{number}"


def checked_id(batch_id: str) -> str:
    """An id of a vendor, which becomes a part of an address; raises `ProviderError` for anything else."""
    if not _ID.fullmatch(batch_id):
        raise ProviderError("the server gave a batch an id that cannot be used", fault="internal")
    return batch_id


T = TypeVar("T")


def _decode(kind: type[T], body: bytes) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except NOT_JSON:
        raise ProviderError("the server's answer about a batch cannot be read", fault="internal") from None


# ---- Anthropic -------------------------------------------------------------------------------------------------------


class _MessageBatch(Struct):
    id: str = ""
    processing_status: str = ""
    created_at: str = ""
    request_counts: dict[str, int] = {}


class _MessageBatches(Struct):
    data: list[_MessageBatch] = []
    has_more: bool = False
    last_id: str | None = None


class _ResultOfMessage(Struct):
    type: str = ""
    message: Raw = _NULL
    error: Raw = _NULL


class _LineOfMessages(Struct):
    custom_id: str = ""
    result: _ResultOfMessage = msgspec.field(default_factory=_ResultOfMessage)


_STATUS_OF_KIND = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}


class _ErrorKind(Struct):
    type: str = ""


class _ErrorOfMessage(Struct):
    error: _ErrorKind = msgspec.field(default_factory=_ErrorKind)


class AnthropicBatches(BatchApi):
    """Message Batches. A batch carries no name, so one that was lost is known by its results alone."""

    max_items: ClassVar[int] = 10_000
    max_bytes: ClassVar[int] = 100 << 20
    finds_by_key: ClassVar[bool] = False

    async def submit(self, key: str, model: str, bodies: Sequence[bytes]) -> str:
        requests = (
            b'{"custom_id":"%b","params":%b}' % (item_id(key, number).encode(), body)
            for number, body in enumerate(bodies)
        )
        answer = await self._post("/v1/messages/batches", b'{"requests":[' + b",".join(requests) + b"]}")
        return checked_id(_message_batch(answer).id)

    async def find(self, key: str, *, since: float, count: int) -> list[str]:
        found: list[str] = []
        after, seen = "", 0
        while seen < MAX_LISTED:
            query = "limit=100" + (f"&after_id={after}" if after else "")
            page = _decode(_MessageBatches, await self._get("/v1/messages/batches", query=query))
            for batch in page.data:
                seen += 1
                if _time(batch.created_at) < since:
                    return found
                if sum(batch.request_counts.values()) == count:
                    found.append(checked_id(batch.id))
            if not page.has_more or not page.data:
                return found
            after = checked_id(page.data[-1].id)
        return found

    async def state(self, batch_id: str) -> BatchState:
        batch = _message_batch(await self._get(f"/v1/messages/batches/{checked_id(batch_id)}"))
        return BatchState("ended" if batch.processing_status == "ended" else "working")

    async def results(self, batch_id: str) -> AsyncIterator[tuple[str, ItemResult]]:
        # The address that the server names is not followed: the key goes to the configured one alone.
        path = f"/v1/messages/batches/{checked_id(batch_id)}/results"
        async for line in self._endpoint.lines(path, headers=self._headers, max_line=MAX_ANSWER):
            found = _decode(_LineOfMessages, line)
            match found.result.type:
                case "succeeded":
                    yield found.custom_id, AnsweredRequest(bytes(found.result.message))
                case "expired":
                    yield found.custom_id, NotAnswered("expired")
                case "canceled":
                    yield found.custom_id, NotAnswered("cancelled")
                case _:
                    error = bytes(found.result.error)
                    kind = _decode(_ErrorOfMessage, error)
                    status = _STATUS_OF_KIND.get(kind.error.type, 500)
                    yield found.custom_id, NotAnswered("errored", status, error)

    async def cancel(self, batch_id: str) -> None:
        await self._post(f"/v1/messages/batches/{checked_id(batch_id)}/cancel")


def _message_batch(body: bytes) -> _MessageBatch:
    return _decode(_MessageBatch, body)


def _time(text: str) -> float:
    """Seconds since 1970; the end of time for what is no time, so that it is looked at."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return float("inf")


# ---- OpenAI ----------------------------------------------------------------------------------------------------------


class _File(Struct):
    id: str = ""


class _LineError(Struct):
    message: str | None = None
    line: int | None = None


class _Errors(Struct):
    data: list[_LineError] | None = None


class _OpenAIBatch(Struct):
    id: str = ""
    status: str = ""
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _Errors | None = None
    metadata: dict[str, str] | None = None
    created_at: float = 0.0


class _OpenAIBatches(Struct):
    data: list[_OpenAIBatch] = []
    has_more: bool = False


class _ResponseOfItem(Struct):
    status_code: int = 0
    body: Raw = _NULL


class _ErrorOfItem(Struct):
    code: str | None = None
    message: str | None = None


class _LineOfFile(Struct):
    custom_id: str = ""
    response: _ResponseOfItem | None = None
    error: _ErrorOfItem | None = None


METADATA = "retinue_key"


class OpenAIBatches(BatchApi):
    """Batches of OpenAI: a file of requests, a batch of that file, and files of results."""

    max_items: ClassVar[int] = 10_000
    max_bytes: ClassVar[int] = 100 << 20

    def __init__(self, endpoint: Endpoint, headers: dict[str, str], *, path: str) -> None:
        super().__init__(endpoint, headers)
        self._path = path

    async def submit(self, key: str, model: str, bodies: Sequence[bytes]) -> str:
        lines = b"".join(
            b'{"custom_id":"%b","method":"POST","url":"/v1%b","body":%b}\n'
            % (item_id(key, number).encode(), self._path.encode(), body)
            for number, body in enumerate(bodies)
        )
        boundary = secrets.token_hex(16)
        form = b"".join(
            (
                b'--%b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' % boundary.encode(),
                b'--%b\r\nContent-Disposition: form-data; name="file"; filename="%b.jsonl"\r\n'
                % (boundary.encode(), key.encode()),
                b"Content-Type: application/jsonl\r\n\r\n",
                lines,
                b"\r\n--%b--\r\n" % boundary.encode(),
            )
        )
        uploaded = await self._post("/files", form, content_type=f"multipart/form-data; boundary={boundary}")
        file = _decode(_File, uploaded)
        batch = {
            "input_file_id": checked_id(file.id),
            "endpoint": f"/v1{self._path}",
            "completion_window": "24h",
            "metadata": {METADATA: key},
        }
        return checked_id(_openai_batch(await self._post("/batches", msgspec.json.encode(batch))).id)

    async def find(self, key: str, *, since: float, count: int) -> list[str]:
        after, seen = "", 0
        while seen < MAX_LISTED:
            query = "limit=100" + (f"&after={after}" if after else "")
            page = _decode(_OpenAIBatches, await self._get("/batches", query=query))
            for batch in page.data:
                seen += 1
                if (batch.metadata or {}).get(METADATA) == key:
                    return [checked_id(batch.id)]
                if batch.created_at < since:
                    return []
            if not page.has_more or not page.data:
                return []
            after = checked_id(page.data[-1].id)
        return []

    async def state(self, batch_id: str) -> BatchState:
        batch = _openai_batch(await self._get(f"/batches/{checked_id(batch_id)}"))
        match batch.status:
            case "failed":
                found = (batch.errors.data if batch.errors is not None else None) or []
                reasons = [each.message for each in found[:3] if each.message]
                return BatchState("failed", "; ".join(reasons)[:500])
            case "completed" | "expired" | "cancelled":
                return BatchState("ended")
            case _:
                return BatchState("working")

    async def results(self, batch_id: str) -> AsyncIterator[tuple[str, ItemResult]]:
        batch = _openai_batch(await self._get(f"/batches/{checked_id(batch_id)}"))
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            path = f"/files/{checked_id(file)}/content"
            async for line in self._endpoint.lines(path, headers=self._headers, max_line=MAX_ANSWER):
                found = _decode(_LineOfFile, line)
                yield found.custom_id, _result_of_line(found)

    async def cancel(self, batch_id: str) -> None:
        await self._post(f"/batches/{checked_id(batch_id)}/cancel", b"")


def _openai_batch(body: bytes) -> _OpenAIBatch:
    return _decode(_OpenAIBatch, body)


def _result_of_line(line: _LineOfFile) -> ItemResult:
    if line.error is not None:
        match line.error.code:
            case "batch_expired":
                return NotAnswered("expired")
            case "batch_cancelled":
                return NotAnswered("cancelled")
            case _:
                return NotAnswered("errored", 500, msgspec.json.encode({"error": line.error}))
    if line.response is None:
        return NotAnswered("errored", 500)
    if 200 <= line.response.status_code < 300:
        return AnsweredRequest(bytes(line.response.body))
    return NotAnswered("errored", line.response.status_code, bytes(line.response.body))


# ---- Gemini ----------------------------------------------------------------------------------------------------------


class _Status(Struct):
    code: int = 0
    message: str = ""


class _Metadata(Struct, rename="camel"):
    display_name: str = ""
    state: str = ""
    create_time: str = ""


class _KeyOfItem(Struct):
    key: str = ""


class _InlinedResponse(Struct):
    metadata: _KeyOfItem = msgspec.field(default_factory=_KeyOfItem)
    response: Raw = _NULL
    error: Raw = _NULL


class _InlinedResponses(Struct, rename="camel"):
    inlined_responses: list[_InlinedResponse] = []


class _BatchResponse(Struct, rename="camel"):
    inlined_responses: _InlinedResponses | None = None


class _Operation(Struct):
    name: str = ""
    done: bool = False
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    response: _BatchResponse | None = None
    error: _Status | None = None


class _Operations(Struct, rename="camel"):
    operations: list[_Operation] = []
    next_page_token: str = ""


_HTTP_STATUS = {3: 400, 5: 404, 7: 403, 8: 429, 9: 400, 13: 500, 14: 503, 16: 401}
"""HTTP statuses of gRPC codes."""


class GeminiBatches(BatchApi):
    """Batches of Gemini, with their requests inline; the key is the display name."""

    max_items: ClassVar[int] = 10_000
    max_bytes: ClassVar[int] = 18 << 20
    MAX_RESULTS: ClassVar[int] = 256 << 20

    async def submit(self, key: str, model: str, bodies: Sequence[bytes]) -> str:
        requests = (
            b'{"request":%b,"metadata":{"key":"%b"}}' % (body, item_id(key, number).encode())
            for number, body in enumerate(bodies)
        )
        batch = b'{"batch":{"displayName":"%b","inputConfig":{"requests":{"requests":[%b]}}}}' % (
            key.encode(),
            b",".join(requests),
        )
        name = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
        return _batch_id(_operation(await self._post(f"/v1beta/{name}:batchGenerateContent", batch)).name)

    async def find(self, key: str, *, since: float, count: int) -> list[str]:
        token, seen = "", 0
        while seen < MAX_LISTED:
            query = "pageSize=100" + (f"&pageToken={checked_id(token)}" if token else "")
            page = _decode(_Operations, await self._get("/v1beta/batches", query=query))
            for operation in page.operations:
                seen += 1
                if operation.metadata.display_name == key:
                    return [_batch_id(operation.name)]
            token = page.next_page_token
            if not token or not page.operations:
                return []
        return []

    async def state(self, batch_id: str) -> BatchState:
        operation = _operation(await self._get(f"/v1beta/batches/{checked_id(batch_id)}", max_bytes=self.MAX_RESULTS))
        state = operation.metadata.state.rpartition("_")[2]
        if state == "FAILED" and operation.response is None:
            return BatchState("failed", operation.error.message[:500] if operation.error is not None else "")
        return BatchState("ended" if operation.done else "working")

    async def results(self, batch_id: str) -> AsyncIterator[tuple[str, ItemResult]]:
        operation = _operation(await self._get(f"/v1beta/batches/{checked_id(batch_id)}", max_bytes=self.MAX_RESULTS))
        response = operation.response
        answers = response.inlined_responses if response is not None else None
        for each in answers.inlined_responses if answers is not None else ():
            yield each.metadata.key, _result_of_response(each)

    async def cancel(self, batch_id: str) -> None:
        await self._post(f"/v1beta/batches/{checked_id(batch_id)}:cancel")


def _operation(body: bytes) -> _Operation:
    return _decode(_Operation, body)


def _batch_id(name: str) -> str:
    return checked_id(name.removeprefix("batches/"))


def _result_of_response(each: _InlinedResponse) -> ItemResult:
    if len(each.error) <= len(_NULL):
        return AnsweredRequest(bytes(each.response))
    error = _decode(_Status, bytes(each.error))
    if error.code in (1, 4):
        return NotAnswered("cancelled" if error.code == 1 else "expired")
    body = msgspec.json.encode({"error": {"code": error.code, "message": error.message}})
    return NotAnswered("errored", _HTTP_STATUS.get(error.code, 500), body)
