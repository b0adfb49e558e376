"""A fake server of the Anthropic Messages API on this machine, which plays a script.

In a test, inside its own event loop::

    async with FakeAnthropic(together(says("Let me look."), calls("search", query="pool"))) as vendor:
        provider = AnthropicProvider(vendor.base_url)

It is as strict as the vendor: a conversation that the vendor would reject is rejected here. It also caches prompts as
the vendor does, and counts the cached tokens; see `PromptCache`. At a URL of Google's form it plays the Vertex AI
server, which has the same format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, assert_never, cast

import msgspec

from retinue.core.errors import ProviderFault
from retinue.core.messages import Stop, ToolCall
from retinue.providers.scripted import Line, ScriptedFailure, ScriptedHang, ScriptedReply
from retinue.testing.fake_chat import EVENTS, JSON, Playable, PromptBlock, PromptCache, PromptTokens
from retinue.testing.fake_server import HOST, FakeResponse, FakeServer, ReceivedRequest
from tests.providers.fakes.anthropic_rules import rejection_of, signature_of
from tests.providers.fakes.scripted_parts import calls_with_ids, counted

_STOPS: dict[Stop, str] = {"end": "end_turn", "calls": "tool_use", "length": "max_tokens", "refusal": "refusal"}
_KINDS: dict[ProviderFault, str] = {
    "rate_limited": "rate_limit_error",
    "overloaded": "overloaded_error",
    "timeout": "timeout_error",
    "auth": "authentication_error",
    "bad_request": "invalid_request_error",
    "too_long": "invalid_request_error",
}


class FakeAnthropic(FakeServer):
    """The server, open inside an `async with` block; `base_url` is its address for a provider.

    `chunk` sends every answer in pieces of so many bytes. `heard` has all requests, including rejected ones.
    """

    def __init__(self, played: Playable, *, chunk: int | None = None, host: str = HOST, port: int = 0) -> None:
        super().__init__(self._response, host=host, port=port)
        self._played = played
        self._chunk = chunk
        self._cache = PromptCache(wants_marks=True)

    @property
    def base_url(self) -> str:
        """The base URL for a provider."""
        return self.url

    @property
    def google_url(self) -> str:
        """The base URL for a provider of the Vertex AI wire."""
        return f"{self.url}/v1/projects/p/locations/l"

    async def __aenter__(self) -> FakeAnthropic:
        await self.open()
        return self

    def _response(self, heard: ReceivedRequest) -> FakeResponse:
        if not heard.path.endswith(("/v1/messages", ":streamRawPredict")):
            return failed(404, f"Not found: {heard.method} {heard.path}", kind="not_found_error")
        if problem := rejection_of(heard):
            return failed(400, problem)
        played = self._played
        if callable(played):
            played = played(heard)
        if not isinstance(played, FakeResponse):
            key = f"{heard.path} {heard.body.get('model')}"
            played = answer_of(played, heard, self._cache.read(key, _blocks(heard.body)))
        return played if played.chunk else replace(played, chunk=self._chunk)


def replies(heard: ReceivedRequest) -> int:
    """The number of replies in this conversation."""
    return sum(message["role"] == "assistant" for message in heard.body["messages"])


def _blocks(body: dict[str, Any]) -> Iterable[PromptBlock]:
    """All blocks of a prompt without their cache marks. A change of tool choice or thinking invalidates the cached
    messages.
    """
    modes = msgspec.json.encode([body.get("tool_choice"), body.get("thinking")])
    parts: list[tuple[str, object, bytes]] = [
        ("tools", body.get("tools", []), b""),
        ("system", body.get("system", []), b""),
    ]
    parts += [(message["role"], message["content"], modes) for message in body["messages"]]
    for part, content, under in parts:
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in cast("list[dict[str, object]]", blocks):
            bare = {key: value for key, value in block.items() if key != "cache_control"}
            yield PromptBlock(msgspec.json.encode([part, bare]), "cache_control" in block, under)


# ---- responses ------------------------------------------------------------------------------------------------------


def event(kind: str, **fields: object) -> bytes:
    """One event of a stream."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind} | fields))


def failed(status: int, message: str, *, kind: str = "invalid_request_error", **headers: str) -> FakeResponse:
    """An error response of this vendor; headers as `retry_after="7"`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return FakeResponse(status=status, headers=JSON | named, pieces=(msgspec.json.encode(body),))


def answer_of(line: Line, heard: ReceivedRequest, prompt: PromptTokens) -> FakeResponse:
    """The response to a line, in the format of this wire."""
    match line:
        case ScriptedReply():
            return _streamed(line, heard, prompt) if heard.body.get("stream") else _whole(line, heard, prompt)
        case ScriptedHang(pieces=pieces):
            return FakeResponse(headers=EVENTS, pieces=_words(*pieces), ending="silence")
        case ScriptedFailure(times=times, then=then, error=error):
            if then is not None and heard.attempt > times:
                return answer_of(then, replace(heard, attempt=heard.attempt - times), prompt)
            kind = _KINDS.get(error.fault, "api_error")
            if error.status is not None:
                details = {} if error.retry_after is None else {"retry_after": f"{error.retry_after:g}"}
                return failed(error.status, str(error), kind=kind, **details)
            if error.fault == "unreachable":
                return FakeResponse(status=0, ending="cut")
            partial = _words(error.partial) if error.partial else ()
            if error.fault == "cut":
                return FakeResponse(headers=EVENTS, pieces=partial, ending="cut")
            error_event = event("error", error={"type": kind, "message": str(error)})
            return FakeResponse(headers=EVENTS, pieces=(*partial, error_event))
        case _:
            assert_never(line)


def _streamed(line: ScriptedReply, heard: ReceivedRequest, prompt: PromptTokens) -> FakeResponse:
    usage = _usage(line, prompt)
    pieces = [_start(usage and usage | {"output_tokens": 1}), event("ping")]
    number = 0
    if line.thinking:
        pieces.append(_begin(0, type="thinking", thinking="", signature=""))
        pieces.append(_grow(0, type="thinking_delta", thinking=line.thinking))
        pieces.append(_grow(0, type="signature_delta", signature=signature_of(line.thinking)))
        pieces.append(_end(0))
        number += 1
    if line.pieces:
        pieces.append(_begin(number, type="text", text=""))
        pieces += [_grow(number, type="text_delta", text=piece) for piece in line.pieces]
        pieces.append(_end(number))
        number += 1
    for index, call in enumerate(_calls(line, heard), start=number):
        pieces.append(_begin(index, type="tool_use", id=call.id, name=call.name, input={}))
        arguments = "" if call.arguments == "{}" else call.arguments
        half = len(arguments) // 2
        pieces += [
            _grow(index, type="input_json_delta", partial_json=part)
            for part in ("", arguments[:half], arguments[half:])
        ]
        pieces.append(_end(index))
    counted = {} if usage is None else {"usage": usage}
    pieces.append(event("message_delta", delta={"stop_reason": _stop(line), "stop_sequence": None}, **counted))
    return FakeResponse(headers=EVENTS, pieces=(*pieces, event("message_stop")), every=line.every)


def _whole(line: ScriptedReply, heard: ReceivedRequest, prompt: PromptTokens) -> FakeResponse:
    content: list[dict[str, object]] = []
    if line.thinking:
        content.append({"type": "thinking", "thinking": line.thinking, "signature": signature_of(line.thinking)})
    if line.text:
        content.append({"type": "text", "text": line.text})
    for call in _calls(line, heard):
        made = msgspec.Raw(call.arguments.encode())
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": made})
    body = _envelope() | {"content": content, "stop_reason": _stop(line), "usage": _usage(line, prompt)}
    return FakeResponse(headers=JSON, pieces=(msgspec.json.encode(body),))


def _envelope() -> dict[str, object]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "fake-1"}


def _start(usage: dict[str, object] | None) -> bytes:
    message: dict[str, object] = {"content": (), "stop_reason": None, "stop_sequence": None}
    return event("message_start", message=_envelope() | message | ({} if usage is None else {"usage": usage}))


def _begin(index: int, **block: object) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def _grow(index: int, **delta: object) -> bytes:
    return event("content_block_delta", index=index, delta=delta)


def _end(index: int) -> bytes:
    return event("content_block_stop", index=index)


def _words(*pieces: str) -> tuple[bytes, ...]:
    """The beginning of a response, up to the end of its text."""
    if not pieces:
        return ()
    grown = (_grow(0, type="text_delta", text=piece) for piece in pieces)
    return (_start(None), _begin(0, type="text", text=""), *grown)


def _calls(line: ScriptedReply, heard: ReceivedRequest) -> list[ToolCall]:
    return calls_with_ids(line, "toolu_fake", heard.body["messages"])


def _stop(line: ScriptedReply) -> str:
    return _STOPS[line.stop or ("calls" if line.calls else "end")]


def _usage(line: ScriptedReply, prompt: PromptTokens) -> dict[str, object] | None:
    usage, written = counted(line, prompt)
    if usage is None:
        return None
    return {
        "input_tokens": usage.input - usage.cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }
