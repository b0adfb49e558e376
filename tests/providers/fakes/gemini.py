"""A fake server of the Gemini API on this machine, which plays a script.

In a test, inside its own event loop::

    async with FakeGemini(together(says("Let me look."), calls("search", query="pool"))) as vendor:
        provider = GeminiProvider(vendor.base_url)

It is as strict as the vendor: a conversation that the vendor would reject is rejected here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, assert_never, cast

import msgspec

from retinue.core.errors import ProviderFault
from retinue.core.messages import Stop
from retinue.providers.scripted import Line, ScriptedFailure, ScriptedHang, ScriptedReply
from retinue.testing.fake_chat import EVENTS, JSON, Playable, estimated_usage, event
from retinue.testing.fake_server import HOST, FakeResponse, FakeServer, ReceivedRequest

_PATH = re.compile(
    r"(?:/v1beta|/v1/projects/[^/]+/locations/[^/]+/publishers/google)/(?:models|tunedModels)/[^/:]+:streamGenerateContent"
)
_FINISH: dict[Stop, str] = {"end": "STOP", "calls": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}
_STATUS: dict[ProviderFault, str] = {
    "rate_limited": "RESOURCE_EXHAUSTED",
    "overloaded": "UNAVAILABLE",
    "timeout": "DEADLINE_EXCEEDED",
    "auth": "UNAUTHENTICATED",
    "bad_request": "INVALID_ARGUMENT",
}


class FakeGemini(FakeServer):
    """The server, open inside an `async with` block; `base_url` is its address for a provider.

    With `signs`, calls carry signatures and have to come back with them. `chunk` sends every answer in pieces of so
    many bytes. `heard` has all requests, including rejected ones.
    """

    def __init__(
        self, played: Playable, *, signs: bool = False, chunk: int | None = None, host: str = HOST, port: int = 0
    ) -> None:
        super().__init__(self._response, host=host, port=port)
        self._played = played
        self._signs = signs
        self._chunk = chunk

    @property
    def base_url(self) -> str:
        """The base URL for a provider."""
        return self.url

    async def __aenter__(self) -> FakeGemini:
        await self.open()
        return self

    def _response(self, heard: ReceivedRequest) -> FakeResponse:
        if not _PATH.fullmatch(heard.path) or heard.query != "alt=sse":
            return failed(404, f"no such method: {heard.path}?{heard.query}", "NOT_FOUND")
        if problem := rejection_of(heard.body, signs=self._signs):
            return failed(400, problem, "INVALID_ARGUMENT")
        played = self._played
        if callable(played):
            played = played(heard)
        answer = played if isinstance(played, FakeResponse) else answer_of(played, heard, signs=self._signs)
        return answer if answer.chunk else replace(answer, chunk=self._chunk)


def failed(status: int, message: str, kind: str, *, details: list[dict[str, Any]] | None = None) -> FakeResponse:
    """An error response of this vendor."""
    return FakeResponse(
        status=status, headers=JSON, pieces=(msgspec.json.encode(error_of(status, message, kind, details)),)
    )


def error_of(code: int, message: str, kind: str, details: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The error object of this vendor, as in a stream."""
    return {"error": {"code": code, "message": message, "status": kind} | ({"details": details} if details else {})}


def retry_in(seconds: float) -> list[dict[str, Any]]:
    """The error details with the retry delay."""
    return [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "RequestsPerMinute"}]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds:g}s"},
    ]


def answer_of(line: Line, heard: ReceivedRequest, *, signs: bool = False) -> FakeResponse:
    """The response to a line, in the format of this wire."""
    match line:
        case ScriptedReply():
            return FakeResponse(
                headers=EVENTS, pieces=tuple(map(event, chunks_of(line, heard, signs))), every=line.every
            )
        case ScriptedHang(pieces=pieces):
            return FakeResponse(
                headers=EVENTS, pieces=tuple(event(_chunk({"text": p})) for p in pieces), ending="silence"
            )
        case ScriptedFailure(times=times, then=then, error=error):
            if then is not None and heard.attempt > times:
                return answer_of(then, replace(heard, attempt=heard.attempt - times), signs=signs)
            kind = _STATUS.get(error.fault, "UNKNOWN")
            details = None if error.retry_after is None else retry_in(error.retry_after)
            if error.status is not None:
                return failed(error.status, str(error), kind, details=details)
            if error.fault == "unreachable":
                return FakeResponse(status=0, ending="cut")
            partial = (event(_chunk({"text": error.partial})),) if error.partial else ()
            if error.fault == "cut":
                return FakeResponse(headers=EVENTS, pieces=partial, ending="cut")
            return FakeResponse(headers=EVENTS, pieces=(*partial, event(error_of(500, str(error), kind, details))))
        case _:
            assert_never(line)


def chunks_of(line: ScriptedReply, heard: ReceivedRequest, signs: bool = False) -> list[dict[str, Any]]:
    """The events of a response."""
    chunks: list[dict[str, Any]] = []
    if line.thinking:
        chunks.append(_chunk({"text": line.thinking, "thought": True}))
    chunks += [_chunk({"text": piece}) for piece in line.pieces]
    turn = sum(content["role"] == "model" for content in heard.body.get("contents", ()))
    for index, call in enumerate(line.calls):
        made: dict[str, Any] = {"functionCall": {"name": call.name, "args": msgspec.Raw(call.arguments.encode())}}
        # Of parallel calls, the first one carries the signature.
        chunks.append(_chunk(made | ({"thoughtSignature": f"c2ln{turn}"} if signs and not index else {})))
    stop = line.stop or ("calls" if line.calls else "end")
    last: dict[str, Any] = {"candidates": [{"finishReason": _FINISH[stop], "index": 0}], "responseId": "resp_1"}
    usage = _usage(line, heard)
    return [*chunks, last | {"modelVersion": "fake-1"} | ({"usageMetadata": usage} if usage else {})]


def _chunk(part: dict[str, Any]) -> dict[str, Any]:
    content = {"content": {"parts": [part], "role": "model"}, "index": 0}
    return {"candidates": [content], "modelVersion": "fake-1", "responseId": "resp_1"}


def _usage(line: ScriptedReply, heard: ReceivedRequest) -> dict[str, Any] | None:
    usage = estimated_usage(line, heard, 0)
    if usage is None:
        return None
    return {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "cachedContentTokenCount": usage.cached,
        "totalTokenCount": usage.total,
    }


# ---- rejections -----------------------------------------------------------------------------------------------------


def rejection_of(body: dict[str, Any], *, signs: bool = False) -> str | None:
    """The reason for which the vendor would reject this request, or None."""
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return "contents is not specified"
    calls: list[dict[str, Any]] = []
    for number, content in enumerate(cast("list[dict[str, Any]]", contents)):
        role, parts = content.get("role"), cast("list[dict[str, Any]]", content.get("parts") or [])
        if role not in ("user", "model") or not parts:
            return f"contents[{number}]: please use a valid role: user, model; parts must not be empty"
        responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if [_who(call) for call in calls] != [_who(response) for response in responses]:
            return (
                "Please ensure that the number of function response parts is equal to the number of function call "
                f"parts of the function call turn (contents[{number}])."
            )
        if not all(isinstance(response.get("response"), dict) for response in responses):
            return f"contents[{number}]: a response is an object"
        if not signs and any("parts" in response for response in responses):
            return "Multimodal function responses are not supported by this model"
        made = [part for part in parts if "functionCall" in part]
        calls = [part["functionCall"] for part in made]
        if calls and role != "model":
            return f"contents[{number}]: only a model calls functions"
        if not all(isinstance(call.get("args"), dict) for call in calls):
            return f"contents[{number}]: arguments are an object"
        if signs and made and not made[0].get("thoughtSignature"):
            return f"Function call is missing a thought_signature in functionCall parts (contents[{number}])."
        if any(part.get("text") == "" and "thoughtSignature" not in part for part in parts):
            return f"contents[{number}]: empty text parameter"
    return "function calls without responses at the end" if calls else None


def _who(part: dict[str, Any]) -> tuple[Any, Any]:
    return part.get("name"), part.get("id")
