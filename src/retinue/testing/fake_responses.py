"""A fake vendor that speaks OpenAI's Responses on this machine, and says what a script tells it to.

In a test, inside its own event loop::

    async with FakeResponses(together(says("Let me look."), calls("search", query="pool"))) as vendor:
        provider = OpenAIResponsesProvider(vendor.base_url)

It is as strict as the vendor is: a conversation that it would refuse is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never, cast

from retinue.core.messages import ToolCall
from retinue.core.usage import Usage
from retinue.providers.openai_responses import Spelling
from retinue.providers.script import Fails, Hangs, Line, Speaks
from retinue.testing.fake_chat import EVENTS, Played, event, failed
from retinue.testing.fake_server import HOST, Answer, FakeServer, Heard

_CALL: dict[Spelling, str] = {"live": "function_call", "seed": "tool_call"}


class FakeResponses(FakeServer):
    """The vendor, open inside of an `async with` block; a provider finds it at `base_url`.

    `spelling` is how it names calls. `chunk` sends every answer in pieces of so many bytes. `heard` has all requests,
    refused ones too.
    """

    def __init__(
        self,
        played: Played,
        *,
        spelling: Spelling = "live",
        chunk: int | None = None,
        host: str = HOST,
        port: int = 0,
    ) -> None:
        super().__init__(self._answer, host=host, port=port)
        self._played = played
        self._spelling: Spelling = spelling
        self._chunk = chunk

    @property
    def base_url(self) -> str:
        """What a provider wants to know."""
        return f"{self.url}/v1"

    async def __aenter__(self) -> FakeResponses:
        await self.open()
        return self

    def _answer(self, heard: Heard) -> Answer:
        if not heard.path.endswith("/responses"):
            return failed(404, f"Unknown request URL: {heard.method} {heard.path}")
        if wrong := objection(heard.body, self._spelling):
            return failed(400, wrong)
        played = self._played
        if callable(played):
            played = played(heard)
        answer = played if isinstance(played, Answer) else answer_of(played, heard, self._spelling)
        return answer if answer.chunk else replace(answer, chunk=self._chunk)


def answer_of(line: Line, heard: Heard, spelling: Spelling = "live") -> Answer:
    """A line as this wire tells it."""
    match line:
        case Speaks():
            return Answer(headers=EVENTS, pieces=tuple(map(event, events_of(line, heard, spelling))), every=line.every)
        case Hangs(pieces=pieces):
            return Answer(headers=EVENTS, pieces=_begun(pieces), ending="silence")
        case Fails(times=times, then=then, error=error):
            if then is not None and heard.attempt > times:
                return answer_of(then, replace(heard, attempt=heard.attempt - times), spelling)
            if error.status is not None:
                wish = {} if error.retry_after is None else {"retry_after": f"{error.retry_after:g}"}
                return failed(error.status, str(error), **wish)
            if error.fault == "unreachable":
                return Answer(status=0, ending="cut")
            partial = _begun((error.partial,) if error.partial else ())
            if error.fault == "cut":
                return Answer(headers=EVENTS, pieces=partial, ending="cut")
            code = {"rate_limited": "rate_limit_exceeded", "overloaded": "server_error"}.get(error.fault, error.fault)
            told = {"error": {"code": code, "message": str(error)}, "status": "failed"}
            return Answer(
                headers=EVENTS, pieces=(*partial, event({"type": "response.failed", "response": _response() | told}))
            )
        case _:
            assert_never(line)


def events_of(line: Speaks, heard: Heard, spelling: Spelling = "live") -> list[dict[str, Any]]:
    """The events of an answer, from its creation to its end."""
    output: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = [{"type": "response.created", "response": _response()}]
    if line.thinking:
        events += _thoughts(line.thinking, output)
    if line.text or not (line.calls or line.thinking):
        events += _message(line.pieces, output)
    for index, call in enumerate(line.calls):
        events += _call(call, f"{len(heard.body.get('input', ()))}_{index}", output, spelling)
    refused = line.stop == "refusal"
    status = "incomplete" if line.stop == "length" or refused else "completed"
    why = {"reason": "content_filter" if refused else "max_output_tokens"} if status == "incomplete" else None
    told = {"status": status, "output": output, "incomplete_details": why, "usage": _usage(line, heard)}
    return [*events, {"type": f"response.{status}", "response": _response() | told}]


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
    named = {"call_id": call.id or f"call_{suffix}"} if spelling == "live" else {}
    item = {"type": _CALL[spelling], "id": f"fc_{suffix}", "name": call.name, "arguments": call.arguments} | named
    half = len(call.arguments) // 2
    deltas = [
        {"type": f"response.{_CALL[spelling]}_arguments.delta", "item_id": item["id"], "delta": part}
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
    """An answer that does not come to its end."""
    words = [{"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "delta": p} for p in pieces]
    return tuple(map(event, ({"type": "response.created", "response": _response()}, *words)))


def _response() -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": "in_progress", "model": "fake-1", "output": list[object]()}


def _usage(line: Speaks, heard: Heard) -> dict[str, Any] | None:
    usage = line.usage
    if usage == "counted":
        written = len(line.text) + len(line.thinking) + sum(len(call.arguments) for call in line.calls)
        usage = Usage(input=len(heard.raw) // 4, output=written // 4, reasoning=len(line.thinking) // 4)
    if usage is None:
        return None
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


# ---- what the vendor refuses ----------------------------------------------------------------------------------------


def objection(body: dict[str, Any], spelling: Spelling = "live") -> str | None:
    """Why the vendor would refuse this request, or None."""
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
                if any(part.get("type") != wanted or not isinstance(part.get("text"), str) for part in content):
                    return f"Invalid value: input[{number}].content; supported values are: '{wanted}'."
            case ("function_call", "live") | ("tool_call", "seed"):
                call_id = item.get("call_id" if spelling == "live" else "id")
                if not call_id or call_id in called or not isinstance(item.get("arguments"), str):
                    return f"input[{number}]: a call needs an id of its own and arguments as a string: {item}"
                called.add(call_id)
            case ("function_call_output", "live") | ("tool_result", "seed"):
                call_id = item.get("call_id" if spelling == "live" else "tool_call_id")
                if call_id not in called - answered:
                    return f"No tool call found for function call output with call_id {call_id}."
                if not isinstance(item.get("output" if spelling == "live" else "content"), str):
                    return f"input[{number}]: a result is a string"
                answered.add(str(call_id))
            case _:
                return f"Invalid value: '{kind}' at input[{number}]."
        if thought and kind in ("function_call_output", "tool_result"):
            return f"Item '{thought}' of type 'reasoning' was provided without its required following item."
        thought = ""
    if thought:
        return f"Item '{thought}' of type 'reasoning' was provided without its required following item."
    return f"No tool output found for function call {min(called - answered)}." if called - answered else None
