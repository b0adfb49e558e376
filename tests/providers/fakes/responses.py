"""A fake server of the OpenAI Responses API on this machine, which plays a script.

In a test, inside its own event loop::

    async with FakeResponses(together(says("Let me look."), calls("search", query="pool"))) as vendor:
        provider = OpenAIResponsesProvider(vendor.base_url)

It is as strict as the vendor: a conversation that the vendor would reject is rejected here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never, cast

from retinue.core.messages import ToolCall
from retinue.providers.openai_responses.request import Spelling
from retinue.providers.scripted import Line, ScriptedFailure, ScriptedHang, ScriptedReply
from retinue.testing.fake_chat import (
    EVENTS,
    Playable,
    PromptCache,
    error_response,
    estimated_usage,
    event,
    prompt_blocks,
)
from retinue.testing.fake_server import HOST, FakeResponse, FakeServer, ReceivedRequest


class FakeResponses(FakeServer):
    """The server, open inside an `async with` block; `base_url` is its address for a provider.

    `spelling` is how it names calls. It stores its responses by id if it `remembers` them. `chunk` sends every answer
    in pieces of so many bytes. `heard` has all requests, including rejected ones; a script gets them with the whole
    conversation.
    """

    def __init__(
        self,
        played: Playable,
        *,
        spelling: Spelling = "function_call",
        remembers: bool = True,
        chunk: int | None = None,
        host: str = HOST,
        port: int = 0,
    ) -> None:
        super().__init__(self._response, host=host, port=port)
        self._played = played
        self._spelling: Spelling = spelling
        self._chunk = chunk
        self._remembers = remembers
        self._known: dict[str, list[Any]] = {}
        self._cache = PromptCache()

    @property
    def base_url(self) -> str:
        """The base URL for a provider."""
        return f"{self.url}/v1"

    async def __aenter__(self) -> FakeResponses:
        await self.open()
        return self

    def _response(self, heard: ReceivedRequest) -> FakeResponse:
        if not heard.path.endswith("/responses"):
            return error_response(404, f"Unknown request URL: {heard.method} {heard.path}")
        previous = heard.body.get("previous_response_id")
        if previous is not None and previous not in self._known:
            return error_response(
                400,
                f"Previous response with id '{previous}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        items = [*self._known.get(previous or "", ()), *(heard.body.get("input") or ())]
        heard = replace(heard, body=heard.body | {"input": items})
        if problem := rejection_of(heard.body, self._spelling):
            return error_response(400, problem)
        played = self._played
        if callable(played):
            played = played(heard)
        if not isinstance(played, FakeResponse):
            played = self._answer_of(played, heard)
        return played if played.chunk else replace(played, chunk=self._chunk)

    def _answer_of(self, line: Line, heard: ReceivedRequest) -> FakeResponse:
        items, response_id = heard.body["input"], f"resp_{len(self._known) + 1}"
        blocks = prompt_blocks(heard.body.get("tools"), [heard.body.get("instructions")], items)
        cached = self._cache.read(heard.body["model"], blocks).cached
        answer = answer_of(line, heard, self._spelling, response_id=response_id, cached=cached)
        if self._remembers and isinstance(line, ScriptedReply):
            reply_items = events_of(line, heard, self._spelling)[-1]["response"]["output"]
            self._known[response_id] = [*items, *reply_items]
        return answer


def answer_of(
    line: Line,
    heard: ReceivedRequest,
    spelling: Spelling = "function_call",
    *,
    response_id: str = "resp_1",
    cached: int = 0,
) -> FakeResponse:
    """The response to a line, in the format of this wire; `cached` tokens of the input were cached."""
    match line:
        case ScriptedReply():
            events = events_of(line, heard, spelling, response_id=response_id, cached=cached)
            return FakeResponse(headers=EVENTS, pieces=tuple(map(event, events)), every=line.every)
        case ScriptedHang(pieces=pieces):
            return FakeResponse(headers=EVENTS, pieces=_begun(pieces), ending="silence")
        case ScriptedFailure(times=times, then=then, error=error):
            if then is not None and heard.attempt > times:
                again = replace(heard, attempt=heard.attempt - times)
                return answer_of(then, again, spelling, response_id=response_id, cached=cached)
            if error.status is not None:
                details = {} if error.retry_after is None else {"retry_after": f"{error.retry_after:g}"}
                return error_response(error.status, str(error), **details)
            if error.fault == "unreachable":
                return FakeResponse(status=0, ending="cut")
            partial = _begun((error.partial,) if error.partial else ())
            if error.fault == "cut":
                return FakeResponse(headers=EVENTS, pieces=partial, ending="cut")
            code = {"rate_limited": "rate_limit_exceeded", "overloaded": "server_error"}.get(error.fault, error.fault)
            fields = {"error": {"code": code, "message": str(error)}, "status": "failed"}
            return FakeResponse(
                headers=EVENTS, pieces=(*partial, event({"type": "response.failed", "response": _response() | fields}))
            )
        case _:
            assert_never(line)


def events_of(
    line: ScriptedReply,
    heard: ReceivedRequest,
    spelling: Spelling = "function_call",
    *,
    response_id: str = "resp_1",
    cached: int = 0,
) -> list[dict[str, Any]]:
    """The events of a response, from its creation to its end."""
    output: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = [{"type": "response.created", "response": _response(response_id)}]
    if line.thinking:
        events += _thoughts(line.thinking, output)
    if line.text or not (line.calls or line.thinking):
        events += _message(line.pieces, output)
    for index, call in enumerate(line.calls):
        events += _call(call, f"{len(heard.body.get('input', ()))}_{index}", output, spelling)
    refused = line.stop == "refusal"
    status = "incomplete" if line.stop == "length" or refused else "completed"
    why = {"reason": "content_filter" if refused else "max_output_tokens"} if status == "incomplete" else None
    fields = {"status": status, "output": output, "incomplete_details": why, "usage": _usage(line, heard, cached)}
    return [*events, {"type": f"response.{status}", "response": _response(response_id) | fields}]


def _thoughts(text: str, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "encrypted_content": "gAAA",
        "summary": [{"type": "summary_text", "text": text}],
    }
    delta = {"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "summary_index": 0, "delta": text}
    return _told(item, item | {"summary": []}, [delta], output)


def _message(pieces: Sequence[str], output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    content = [{"type": "output_text", "text": "".join(pieces), "annotations": list[object]()}]
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    deltas = [
        {"type": "response.output_text.delta", "item_id": "msg_1", "content_index": 0, "delta": piece}
        for piece in pieces
    ]
    return _told(item, item | {"content": list[object]()}, deltas, output)


def _call(call: ToolCall, suffix: str, output: list[dict[str, Any]], spelling: Spelling) -> list[dict[str, Any]]:
    named = {"call_id": call.id or f"call_{suffix}"} if spelling == "function_call" else {}
    item = {"type": spelling, "id": f"fc_{suffix}", "name": call.name, "arguments": call.arguments} | named
    half = len(call.arguments) // 2
    deltas = [
        {"type": f"response.{spelling}_arguments.delta", "item_id": item["id"], "delta": part}
        for part in (call.arguments[:half], call.arguments[half:])
        if part
    ]
    return _told(item, item | {"arguments": ""}, deltas, output)


def _told(
    item: dict[str, Any], announced: dict[str, Any], deltas: list[dict[str, Any]], output: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    at = {"output_index": len(output)}
    output.append(item)
    return [
        {"type": "response.output_item.added", "item": announced} | at,
        *(delta | at for delta in deltas),
        {"type": "response.output_item.done", "item": item} | at,
    ]


def _begun(pieces: Sequence[str]) -> tuple[bytes, ...]:
    """A response that is cut off."""
    words = [{"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "delta": p} for p in pieces]
    return tuple(map(event, ({"type": "response.created", "response": _response()}, *words)))


def _response(response_id: str = "resp_1") -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "response",
        "status": "in_progress",
        "model": "fake-1",
        "output": list[object](),
    }


def _usage(line: ScriptedReply, heard: ReceivedRequest, cached: int) -> dict[str, Any] | None:
    usage = estimated_usage(line, heard, cached)
    if usage is None:
        return None
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def is_whole(message: dict[str, Any]) -> bool:
    """Whether a message of the model has all fields that Azure and vLLM require."""
    has_fields = message.get("type") == "message" and message.get("status") == "completed"
    is_named = str(message.get("id")).startswith("msg_")
    return has_fields and is_named and all(part.get("annotations") == [] for part in message["content"])


# ---- rejections -----------------------------------------------------------------------------------------------------


def rejection_of(body: dict[str, Any], spelling: Spelling = "function_call") -> str | None:
    """The reason for which the vendor would reject this request, or None."""
    items = body.get("input")
    if not isinstance(body.get("model"), str) or not isinstance(items, list) or not items:
        return "Missing required parameter: 'model' or 'input'."
    called: set[str] = set()
    answered: set[str] = set()
    thought = ""
    for number, item in enumerate(cast("list[dict[str, Any]]", items)):
        kind = item.get("type", "message")
        match kind, spelling:
            case ("reasoning", _):
                if not item.get("encrypted_content") and not item.get("content"):
                    return f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is false."
                thought = str(item.get("id"))
                continue
            case ("message", _):
                wanted = "output_text" if item.get("role") == "assistant" else "input_text"
                content = cast("list[dict[str, Any]]", item.get("content"))
                if not all(_is_part(part, wanted) for part in content):
                    return f"Invalid value: input[{number}].content; supported values are: '{wanted}'."
                if wanted == "output_text" and not is_whole(item):
                    return f"input[{number}]: Field required: type, id, status, annotations"
            case ("function_call", "function_call") | ("tool_call", "tool_call"):
                call_id = item.get("call_id" if spelling == "function_call" else "id")
                if not call_id or call_id in called or not isinstance(item.get("arguments"), str):
                    return f"input[{number}]: a call needs an id of its own and arguments as a string: {item}"
                called.add(call_id)
            case ("function_call_output", "function_call") | ("tool_result", "tool_call"):
                call_id = item.get("call_id" if spelling == "function_call" else "tool_call_id")
                if call_id not in called - answered:
                    return f"No tool call found for function call output with call_id {call_id}."
                output = item.get("output" if spelling == "function_call" else "content")
                parts = cast("list[dict[str, Any]]", output if isinstance(output, list) else [])
                if not isinstance(output, str) and not (parts and all(_is_part(part, "input_text") for part in parts)):
                    return f"input[{number}]: a result is a string or a list of parts"
                answered.add(str(call_id))
            case _:
                return f"Invalid value: '{kind}' at input[{number}]."
        if thought and kind in ("function_call_output", "tool_result"):
            return f"Item '{thought}' of type 'reasoning' was provided without its required following item."
        thought = ""
    if thought:
        return f"Item '{thought}' of type 'reasoning' was provided without its required following item."
    return f"No tool output found for function call {min(called - answered)}." if called - answered else None


def _is_part(part: dict[str, Any], text: str) -> bool:
    """Whether a part of a message is one that the vendor takes; `text` is the type of texts there."""
    match part.get("type"):
        case "input_image" if text == "input_text":
            return str(part.get("image_url")).startswith("data:image/")
        case "input_file" if text == "input_text":
            return bool(part.get("filename")) and str(part.get("file_data")).startswith("data:application/pdf;")
        case kind:
            return kind == text and isinstance(part.get("text"), str)
