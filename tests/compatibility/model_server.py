"""A scripted model server for four wires that keeps every request.

The server uses the standard library only: a change of retinue cannot change the server with it.

Lines belong to conversations. A part has the lines for every conversation whose first user message contains certain
words. The number of replies in a request selects the line, so a process that resumes a run after a crash gets the line
of its turn. A line is a `Line`, or a function from the conversation to a `Line`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeAlias, cast

Json: TypeAlias = dict[str, Any]

PATIENCE = 60.0
"""Seconds until a wait in a scenario fails."""

LEFT_OUT = ("host", "content-length", "accept-encoding", "connection", "user-agent")
"""Headers that belong to the HTTP library."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One answer of the model, or an error with an HTTP status."""

    words: tuple[str, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()
    """Tool calls: name, and arguments as JSON text."""
    thinking: str = ""
    usage: tuple[int, int, int] = (100, 10, 0)
    """Tokens of input, output and cached input."""
    stop: str = ""
    """The wire's stop reason; by default the one of a complete answer."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    times: int = 0
    """The number of attempts at the same request that get this line; further attempts get `then`."""
    then: Line | None = None
    hold: str = ""
    """The name of a gate. The answer waits until the gate is released."""
    cut: bool = False
    """Close the connection after the words."""
    tag: str = ""
    """A name of the conversation in `Request.part`, in place of the words of its part."""


class Conversation:
    """The conversation in one request, for lines that depend on it."""

    def __init__(self, wire: str, body: Json, earlier: str = "") -> None:
        self.wire = wire
        self.body = body
        self._earlier = earlier
        """The first user message, where the request refers to a previous response instead."""

    @property
    def messages(self) -> list[Json]:
        """The messages in the form of the wire."""
        key = {"responses": "input", "gemini": "contents"}.get(self.wire, "messages")
        return cast("list[Json]", self.body.get(key, []))

    @property
    def replies(self) -> int:
        """The number of replies of the model so far."""
        if self.wire == "responses":
            return sum("function_call_output" in str(each.get("type")) for each in self.messages)
        return sum(each.get("role") in ("assistant", "model") for each in self.messages)

    @property
    def system(self) -> str:
        """The system prompt."""
        first = self.messages[0] if self.messages else {}
        if first.get("role") == "system":
            return text_of(first)
        return compact([self.body.get(key) for key in ("system", "instructions", "systemInstruction")])

    @property
    def first_words(self) -> str:
        """The text of the first user message."""
        return self._earlier or next((text_of(each) for each in self.messages if each.get("role") == "user"), "")

    @property
    def last_words(self) -> str:
        """The text of the last user message."""
        return next((text_of(each) for each in reversed(self.messages) if each.get("role") == "user"), "")

    def found(self, pattern: str) -> list[str]:
        """The distinct matches of a pattern in all messages, in order."""
        said = "\n".join(map(text_of, self.messages))
        return list(dict.fromkeys(re.findall(pattern, said)))


def text_of(message: Json) -> str:
    """The text of a message of any wire."""
    content = message.get("content", message.get("parts", message.get("output", "")))
    if isinstance(content, str):
        return content
    parts = cast("list[Json]", content or [])
    return "\n".join(json.dumps(part) if "text" not in part else str(part["text"]) for part in parts)


Played: TypeAlias = Line | Callable[[Conversation], Line]


def says(text: str, **more: Any) -> Line:
    """A text, streamed word by word."""
    return Line(words=tuple(re.findall(r"\S+\s*|\s+", text)), **more)


def calls(name: str, /, **arguments: object) -> Line:
    """One tool call."""
    return Line(calls=((name, compact(arguments)),))


def calls_text(name: str, arguments: str) -> Line:
    """One tool call whose arguments are sent verbatim; they need not be JSON."""
    return Line(calls=((name, arguments),))


def together(*lines: Line) -> Line:
    """The words and calls of several lines in one reply."""
    return Line(
        words=tuple(word for line in lines for word in line.words),
        calls=tuple(call for line in lines for call in line.calls),
    )


def fails(status: int, message: str = "the server is on fire", **more: Any) -> Line:
    """An HTTP error."""
    return Line(words=(message,), status=status, **more)


def compact(value: object) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class Request:
    """One request: path, headers except `LEFT_OUT`, and the body byte for byte.

    `part`, `system` and `replies` identify the conversation and its turn.
    """

    path: str
    headers: Mapping[str, str]
    body: str
    part: str
    system: str
    replies: int


class ModelServer:
    """A server on a free port; it runs inside a `with` block."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._parts: list[tuple[str, tuple[Played, ...]]] = []
        self._gates: dict[str, threading.Event] = {}
        self._arrivals: dict[str, threading.Event] = {}
        self._attempts: dict[str, int] = {}
        self._responses: dict[str, str] = {}
        """The first user message behind each id of an OpenAI response."""
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model_server = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for gate in self._gates.values():
            gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """The port."""
        return int(self._server.server_address[1])

    @property
    def root(self) -> str:
        """The base URL for the wires of Anthropic and Gemini."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base URL for the wires of OpenAI."""
        return f"{self.root}/v1"

    def play(self, *lines: Played, words: str = "") -> ModelServer:
        """Add a part. A part that was added later takes precedence."""
        self._parts.insert(0, (words, lines))
        return self

    # ---- gates ------------------------------------------------------------------------------------------------------

    def wait_for_request(self, gate: str) -> None:
        """Wait until a request is held at the gate."""
        if not self._event(self._arrivals, gate).wait(PATIENCE):
            raise AssertionError(f"no request arrived at the gate {gate!r}")

    def mark(self, gate: str) -> None:
        """Act as if a request was held at the gate."""
        self._event(self._arrivals, gate).set()

    def release(self, gate: str) -> None:
        """Answer the requests that are held at the gate, and hold none there from now on."""
        self._event(self._gates, gate).set()

    def releasing(self, gate: str, line: Played) -> Callable[[Conversation], Line]:
        """The line; its request releases the gate."""

        def played(conversation: Conversation) -> Line:
            self.release(gate)
            return line if isinstance(line, Line) else line(conversation)

        return played

    def after(self, gate: str, line: Played) -> Callable[[Conversation], Line]:
        """The line; its answer waits until a request is held at the gate."""

        def played(conversation: Conversation) -> Line:
            self.wait_for_request(gate)
            return line if isinstance(line, Line) else line(conversation)

        return played

    # ---- requests ---------------------------------------------------------------------------------------------------

    def conversation(self, wire: str, raw: str) -> Conversation:
        """The conversation in a request body."""
        body = json.loads(raw)
        conversation = Conversation(wire, body, self._responses.get(str(body.get("previous_response_id")), ""))
        if wire == "responses":
            self._responses[f"resp_{conversation.replies + 1}"] = conversation.first_words
        return conversation

    def answer(self, conversation: Conversation, path: str, headers: Mapping[str, str], raw: str) -> Line:
        """Keep the request and return its line, after the line's gate was released."""
        part, line = self._line(conversation)
        part = line.tag or part
        with self._lock:
            self.requests.append(Request(path, headers, raw, part, conversation.system, conversation.replies))
            attempt = self._attempts[raw] = self._attempts.get(raw, 0) + 1
        while line.then is not None and line.times < attempt:
            attempt -= line.times
            line = line.then
        if line.hold:
            gate = self._event(self._gates, line.hold)
            self._event(self._arrivals, line.hold).set()
            gate.wait(PATIENCE)
        return line

    def _line(self, conversation: Conversation) -> tuple[str, Line]:
        for words, lines in self._parts:
            if words in conversation.first_words:
                turn = conversation.replies
                if turn >= len(lines):
                    return words, fails(400, f"no line is left for {words!r} after {turn} replies")
                line = lines[turn]
                return words, line if isinstance(line, Line) else line(conversation)
        return "", fails(400, f"no lines for {conversation.first_words!r}")

    def _event(self, events: dict[str, threading.Event], name: str) -> threading.Event:
        with self._lock:
            return events.setdefault(name, threading.Event())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    model_server: ModelServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", "0"))).decode()
        wire, model_server = _wire_of(self.path), cast("_Server", self.server).model_server
        conversation = model_server.conversation(wire, raw)
        headers = {name.lower(): value for name, value in self.headers.items() if name.lower() not in LEFT_OUT}
        line = model_server.answer(conversation, self.path, headers, raw)
        try:
            if line.status != 200:
                error = {"error": {"message": "".join(line.words), "type": "error", "code": None}}
                self._send(line.status, "application/json", compact(error).encode(), line.headers)
            else:
                body = "".join(_ENCODERS[wire](line, conversation.replies + 1)).encode()
                self._send(200, "text/event-stream", body, line.headers, cut=line.cut)
        except OSError:
            self.close_connection = True  # the scenario has ended the process that sent the request

    def do_GET(self) -> None:
        self._send(404, "application/json", b"{}", {})

    def _send(self, status: int, kind: str, body: bytes, headers: Mapping[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) + (1 if cut else 0)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if cut:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


# ---- encoders ------------------------------------------------------------------------------------------------------


def _wire_of(path: str) -> str:
    if path.endswith("/responses"):
        return "responses"
    if path.endswith("/messages") or ":streamRawPredict" in path:
        return "anthropic"
    return "gemini" if ":streamGenerateContent" in path else "chat"


def _data(value: Json) -> str:
    return f"data: {compact(value)}\n\n"


def _halves(text: str) -> Sequence[str]:
    half = len(text) // 2
    return [part for part in (text[:half], text[half:]) if part]


def _chat(line: Line, turn: int) -> Iterator[str]:
    def chunk(delta: Json, finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if line.thinking:
        yield chunk({"reasoning_content": line.thinking})
    for word in line.words:
        yield chunk({"content": word})
    for index, (name, arguments) in enumerate(line.calls):
        call: Json = {"index": index, "id": f"call_{turn}_{index}", "type": "function"}
        yield chunk({"tool_calls": [call | {"function": {"name": name, "arguments": ""}}]})
        for part in _halves(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    if line.cut:
        return
    yield chunk({}, line.stop or ("tool_calls" if line.calls else "stop"))
    read, written, cached = line.usage
    usage = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    yield _data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _anthropic(line: Line, turn: int) -> Iterator[str]:
    def event(kind: str, **fields: object) -> str:
        return f"event: {kind}\n{_data({'type': kind, **fields})}"

    read, written, cached = line.usage
    usage = {"input_tokens": read - cached, "cache_read_input_tokens": cached, "output_tokens": written}
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    yield event("message_start", message=message | {"usage": usage | {"output_tokens": 1}})
    blocks: list[tuple[Json, list[Json]]] = []
    if line.thinking:
        grown = [
            {"type": "thinking_delta", "thinking": line.thinking},
            {"type": "signature_delta", "signature": "c2ln"},
        ]
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, grown))
    if line.words:
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in line.words]))
    for number, (name, arguments) in enumerate(line.calls):
        parts = [{"type": "input_json_delta", "partial_json": part} for part in _halves(arguments)]
        blocks.append(({"type": "tool_use", "id": f"toolu_{turn}_{number}", "name": name, "input": {}}, parts))
    for index, (block, deltas) in enumerate(blocks):
        yield event("content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    reason = line.stop or ("tool_use" if line.calls else "end_turn")
    yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)
    yield event("message_stop")


def _responses(line: Line, turn: int) -> Iterator[str]:
    response: Json = {"id": f"resp_{turn}", "object": "response", "status": "in_progress", "model": "m", "output": []}
    yield _data({"type": "response.created", "response": response})
    output: list[Json] = []

    def item(whole: Json, begun: Json, deltas: list[Json]) -> Iterator[str]:
        at = {"output_index": len(output)}
        output.append(whole)
        yield _data({"type": "response.output_item.added", "item": whole | begun} | at)
        for delta in deltas:
            yield _data(delta | at)
        yield _data({"type": "response.output_item.done", "item": whole} | at)

    if line.thinking:
        summary = [{"type": "summary_text", "text": line.thinking}]
        thought: Json = {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAA", "summary": summary}
        delta = {"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "delta": line.thinking}
        yield from item(thought, {"summary": []}, [delta | {"summary_index": 0}])
    if line.words:
        content: list[Json] = [{"type": "output_text", "text": "".join(line.words), "annotations": []}]
        message: Json = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
        deltas = [
            {"type": "response.output_text.delta", "item_id": "msg_1", "content_index": 0, "delta": word}
            for word in line.words
        ]
        yield from item(message, {"content": []}, deltas)
    for number, (name, arguments) in enumerate(line.calls):
        named: Json = {"id": f"fc_{turn}_{number}", "call_id": f"call_{turn}_{number}", "name": name}
        deltas = [
            {"type": "response.function_call_arguments.delta", "item_id": named["id"], "delta": part}
            for part in _halves(arguments)
        ]
        yield from item({"type": "function_call", "arguments": arguments} | named, {"arguments": ""}, deltas)
    read, written, cached = line.usage
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }
    done = response | {"status": "completed", "output": output, "usage": usage}
    yield _data({"type": "response.completed", "response": done})


def _gemini(line: Line, turn: int) -> Iterator[str]:
    def chunk(part: Json) -> str:
        content = {"content": {"parts": [part], "role": "model"}, "index": 0}
        return _data({"candidates": [content], "modelVersion": "m", "responseId": f"resp_{turn}"})

    if line.thinking:
        yield chunk({"text": line.thinking, "thought": True})
    for word in line.words:
        yield chunk({"text": word})
    for name, arguments in line.calls:
        yield chunk({"functionCall": {"name": name, "args": json.loads(arguments)}})
    read, written, cached = line.usage
    usage = {
        "promptTokenCount": read,
        "candidatesTokenCount": written,
        "cachedContentTokenCount": cached,
        "totalTokenCount": read + written,
    }
    last: Json = {"candidates": [{"finishReason": line.stop or "STOP", "index": 0}], "usageMetadata": usage}
    yield _data(last | {"modelVersion": "m", "responseId": f"resp_{turn}"})


_ENCODERS: Mapping[str, Callable[[Line, int], Iterator[str]]] = {
    "chat": _chat,
    "anthropic": _anthropic,
    "responses": _responses,
    "gemini": _gemini,
}
