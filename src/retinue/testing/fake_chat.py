"""A fake OpenAI chat-completions server that plays a script.

In a test, inside its own event loop::

    async with FakeChat(together(says("Let me look."), calls("search", query="pool"))) as vendor:
        provider = OpenAIChatProvider(vendor.base_url)

It is also a program, for programs under test (`python -m retinue.testing.fake_chat --help`). It is as strict as
vendors are: it rejects conversations that they would reject.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, assert_never, cast

import msgspec
from msgspec import field

from retinue.core.errors import BadInput, ProviderFault
from retinue.core.messages import Stop, ToolCall
from retinue.core.usage import Usage
from retinue.providers.scripted import Line, ScriptedFailure, ScriptedHang, ScriptedReply, ScriptFileLine
from retinue.testing.fake_server import HOST, FakeResponse, FakeServer, ReceivedRequest

LOOKBACK = 20
"""How many blocks before a cache mark are searched for a cached prefix."""


class PromptBlock(NamedTuple):
    """A piece of a prompt; `under` are options that distinguish blocks with the same content."""

    content: bytes
    marked: bool = False
    under: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """Tokens of a prompt: all, those read from the cache, and those written to it."""

    total: int
    cached: int = 0
    written: int = 0


class PromptCache:
    """A vendor's cache of prompt prefixes, up to each block; with `wants_marks` up to each marked block.

    With marks, a prefix is found again if a mark is at its end or up to `LOOKBACK` blocks behind it.

    >>> cache = PromptCache()
    >>> cache.read("model", [PromptBlock(b"four"), PromptBlock(b"and eight")])
    PromptTokens(total=3, cached=0, written=3)
    >>> cache.read("model", [PromptBlock(b"four"), PromptBlock(b"or more..")])
    PromptTokens(total=3, cached=1, written=2)
    """

    def __init__(self, *, wants_marks: bool = False) -> None:
        self._wants_marks = wants_marks
        self._cached: set[bytes] = set()

    def read(self, model: str, blocks: Iterable[PromptBlock]) -> PromptTokens:
        """Look up a prompt for a model and store its prefixes."""
        digest, size = hashlib.sha256(model.encode()), 0
        prefixes: list[tuple[bytes, int]] = []
        marked: list[int] = []
        for block in blocks:
            digest.update(block.under + block.content)
            size += len(block.content)
            if block.marked or not self._wants_marks:
                marked.append(len(prefixes))
            prefixes.append((digest.digest(), size // 4))
        cached = 0
        for end in marked:
            stop = max(-1, end - LOOKBACK)
            hits = (prefixes[at][1] for at in range(end, stop, -1) if prefixes[at][0] in self._cached)
            cached = max(cached, next(hits, 0))
        self._cached.update(prefixes[end][0] for end in marked)
        written = prefixes[marked[-1]][1] - cached if marked else 0
        return PromptTokens(total=size // 4, cached=cached, written=written)


Playable: TypeAlias = Line | FakeResponse | Callable[[ReceivedRequest], Line | FakeResponse]
"""The response to a request: a line, an exact response, or a function of the request that returns either."""

EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}
JSON = {"Content-Type": "application/json"}

_FINISH: dict[Stop, str] = {"end": "stop", "calls": "tool_calls", "length": "length", "refusal": "content_filter"}
_KINDS: dict[ProviderFault, str] = {
    "rate_limited": "rate_limit_exceeded",
    "overloaded": "overloaded_error",
    "timeout": "server_error",
    "auth": "authentication_error",
    "bad_request": "invalid_request_error",
    "too_long": "context_length_exceeded",
    "refused": "content_filter",
}


class FakeChat(FakeServer):
    """The server, which listens at `base_url` inside an `async with` block.

    `chunk` splits every response into parts of so many bytes. `requests` has all requests, rejected ones too.
    """

    def __init__(self, script: Playable, *, chunk: int | None = None, host: str = HOST, port: int = 0) -> None:
        super().__init__(self._response, host=host, port=port)
        self._script = script
        self._chunk = chunk
        self._cache = PromptCache()

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    async def __aenter__(self) -> FakeChat:
        await self.open()
        return self

    def _response(self, request: ReceivedRequest) -> FakeResponse:
        if not request.path.endswith("/chat/completions"):
            return error_response(404, f"Unknown request URL: {request.method} {request.path}")
        if error := request_error(request.body):
            return error_response(400, error)
        played = self._script
        if callable(played):
            played = played(request)
        if not isinstance(played, FakeResponse):
            blocks = prompt_blocks(request.body.get("tools"), request.body["messages"])
            played = response_for(played, request, self._cache.read(request.body["model"], blocks).cached)
        return played if played.chunk else replace(played, chunk=self._chunk)


def prompt_blocks(*parts: Iterable[object] | None) -> Iterable[PromptBlock]:
    """The blocks of a prompt, in order."""
    return (PromptBlock(msgspec.json.encode(item)) for part in parts for item in part or ())


def count_replies(request: ReceivedRequest) -> int:
    """The number of model replies in the request's conversation."""
    return sum(message["role"] == "assistant" for message in request.body["messages"])


class ChatScript:
    """Lines by turn, for conversations whose system or user texts contain certain words.

    The next line depends on the request alone, by the number of replies in it, so a program that is killed and
    restarted continues at the right line.

    >>> script = ChatScript().play(ScriptedReply(pieces=("hello",)))
    >>> script = script.play(ScriptedReply(pieces=("42",)), words="find it")
    >>> body = {"messages": [{"role": "user", "content": "please find it"}]}
    >>> print(script(ReceivedRequest(method="POST", path="/", headers={}, raw=b"", body=body)))
    says '42'
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[Playable]] = {}

    def play(self, *lines: Playable, words: str = "") -> ChatScript:
        """Add one line for each turn; the longest `words` that occur win, and empty words match any conversation."""
        self._parts.setdefault(words, []).extend(lines)
        return self

    def __call__(self, request: ReceivedRequest) -> Line | FakeResponse:
        roles = ("system", "developer", "user")
        texts = "\n".join(_text(message) for message in request.body["messages"] if message["role"] in roles)
        matching = [words for words in self._parts if words in texts]
        if not matching:
            known = list(self._parts)
            return error_response(400, f"fake_chat: no lines for this conversation; there are some for: {known}")
        words = max(matching, key=len)
        lines, turn = self._parts[words], count_replies(request) + 1
        if turn > len(lines):
            return error_response(400, f"fake_chat: asked for line {turn} of {words!r}, which has {len(lines)}")
        line = lines[turn - 1]
        return line(request) if callable(line) else line


# ---- lines as responses -------------------------------------------------------------------------------------------


def event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def error_response(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    **headers: str,
) -> FakeResponse:
    """An error in the vendor's format; headers are keywords, as in `retry_after="7"`."""
    extra = {name.replace("_", "-"): value for name, value in headers.items()}
    body = _error(message, kind, param, code)
    return FakeResponse(status=status, headers=JSON | extra, pieces=(msgspec.json.encode(body),))


def response_for(line: Line, request: ReceivedRequest, cached: int = 0) -> FakeResponse:
    """A line as a response; `cached` are the cached tokens of the prompt."""
    match line:
        case ScriptedReply():
            usage = estimated_usage(line, request, cached)
            return _streamed(line, request, usage) if request.body.get("stream") else _whole(line, request, usage)
        case ScriptedHang(pieces=pieces):
            return FakeResponse(headers=EVENTS, pieces=tuple(map(_text_chunk, pieces)), ending="silence")
        case ScriptedFailure(times=times, then=then, error=error):
            if then is not None and request.attempt > times:
                return response_for(then, replace(request, attempt=request.attempt - times), cached)
            if error.status is not None:
                headers = {} if error.retry_after is None else {"retry_after": f"{error.retry_after:g}"}
                return error_response(error.status, str(error), kind=_KINDS.get(error.fault, "error"), **headers)
            if error.fault == "unreachable":
                return FakeResponse(status=0, ending="cut")
            partial = (_text_chunk(error.partial),) if error.partial else ()
            if error.fault == "cut":
                return FakeResponse(headers=EVENTS, pieces=partial, ending="cut")
            failure = event(_error(str(error), _KINDS.get(error.fault, "error")))
            return FakeResponse(headers=EVENTS, pieces=(*partial, failure))
        case _:
            assert_never(line)


def _streamed(line: ScriptedReply, request: ReceivedRequest, used: Usage | None) -> FakeResponse:
    pieces = [_chunk({"role": "assistant", "content": ""})]
    if line.thinking:
        pieces.append(_chunk({"reasoning_content": line.thinking}))
    pieces += [_text_chunk(piece) for piece in line.pieces]
    for index, call in enumerate(_calls(line, request)):
        function: dict[str, object] = {"name": call.name, "arguments": ""}
        pieces.append(_chunk(_call_delta(index, id=call.id, type="function", function=function)))
        half = len(call.arguments) // 2
        for part in filter(None, (call.arguments[:half], call.arguments[half:])):
            pieces.append(_chunk(_call_delta(index, function={"arguments": part})))
    pieces.append(_chunk({}, finish=_finish(line)))
    options: dict[str, Any] = request.body.get("stream_options") or {}
    usage = _usage(used)
    if usage is not None and options.get("include_usage"):
        last: dict[str, object] = {"choices": [], "usage": usage}
        pieces.append(event(_envelope("chat.completion.chunk") | last))
    return FakeResponse(headers=EVENTS, pieces=(*pieces, DONE), every=line.every)


def _whole(line: ScriptedReply, request: ReceivedRequest, used: Usage | None) -> FakeResponse:
    message: dict[str, object] = {"role": "assistant", "content": line.text}
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in _calls(line, request)
    ]
    if made:
        message["tool_calls"] = made
    choice = {"index": 0, "message": message, "finish_reason": _finish(line)}
    body = _envelope("chat.completion") | {"choices": [choice], "usage": _usage(used)}
    return FakeResponse(headers=JSON, pieces=(msgspec.json.encode(body),))


def _envelope(kind: str) -> dict[str, object]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1767225600, "model": "fake-1"}


def _chunk(delta: dict[str, object], *, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(_envelope("chat.completion.chunk") | {"choices": [choice]})


def _text_chunk(text: str) -> bytes:
    return _chunk({"content": text})


def _call_delta(index: int, **part: object) -> dict[str, object]:
    return {"tool_calls": [{"index": index} | part]}


def _calls(line: ScriptedReply, request: ReceivedRequest) -> Iterable[ToolCall]:
    turn = count_replies(request) + 1
    return (
        msgspec.structs.replace(call, id=call.id or f"call_{turn}_{index}") for index, call in enumerate(line.calls)
    )


def _finish(line: ScriptedReply) -> str:
    return _FINISH[line.stop or ("calls" if line.calls else "end")]


def estimated_usage(line: ScriptedReply, request: ReceivedRequest, cached: int) -> Usage | None:
    """The usage of a line: its own, or an estimate from the lengths of request and reply."""
    if line.usage != "counted":
        return line.usage
    written = len(line.text) + len(line.thinking) + sum(len(call.arguments) for call in line.calls)
    read = len(request.raw) // 4
    return Usage(input=read, output=written // 4, cached=min(cached, read), reasoning=len(line.thinking) // 4)


def _usage(usage: Usage | None) -> dict[str, object] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _error(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


# ---- rejected requests --------------------------------------------------------------------------------------------


def request_error(body: dict[str, Any]) -> str | None:
    """Why a vendor would reject this request, or None."""
    messages = body.get("messages")
    if not isinstance(body.get("model"), str) or not isinstance(messages, list) or not messages:
        return "a request needs a model and messages"
    if body.get("tools") == []:
        return "[] is too short - 'tools'"
    open_calls: list[str] = []
    used: set[str] = set()
    for number, message in enumerate(cast("list[dict[str, Any]]", messages)):
        role, made = message.get("role"), cast("list[dict[str, Any]]", message.get("tool_calls") or [])
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                return f"messages[{number}]: a 'tool' message must be a response to a preceding 'tool_calls'"
            open_calls.remove(str(message["tool_call_id"]))
        elif open_calls:
            return f"messages[{number}]: these tool_call_ids did not have response messages: {', '.join(open_calls)}"
        if role not in ("system", "developer", "user", "assistant", "tool"):
            return f"messages[{number}]: unknown role {role!r}"
        if not isinstance(message.get("content"), str) and not made and (error := _parts_error(message, number)):
            return error
        for call in made:
            if not call.get("id") or call["id"] in used or not isinstance(call["function"]["arguments"], str):
                return f"messages[{number}]: a call needs an id of its own and arguments as a string: {call}"
            used.add(call["id"])
            open_calls.append(call["id"])
    return f"these tool_call_ids did not have response messages: {', '.join(open_calls)}" if open_calls else None


_PARTS = ("text", "image_url", "input_audio", "file")


def _parts_error(message: dict[str, Any], number: int) -> str | None:
    """Why a vendor would reject a content of parts: only a user sends other parts than text."""
    parts = message.get("content")
    if not isinstance(parts, list) or not parts:
        return f"messages[{number}]: content must be a string"
    kinds = [part.get("type") for part in cast("list[dict[str, Any]]", parts)]
    if "image_url" in kinds and message["role"] != "user":
        return (
            f"Invalid 'messages[{number}]'. Image URLs are only allowed for messages with role 'user', but this "
            f"message with role '{message['role']}' contains an image URL."
        )
    wrong = next((kind for kind in kinds if kind not in _PARTS), None)
    return None if wrong is None else f"Invalid value: '{wrong}'. Supported values are: {', '.join(_PARTS)}."


def _text(message: dict[str, Any]) -> str:
    content: str | list[dict[str, Any]] = message["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


# ---- the program --------------------------------------------------------------------------------------------------

USAGE = """\
A fake OpenAI chat-completions server: prints its base URL, and plays the lines of a JSON file.

The file has lines by words: {"default": [...], "find it": [...]}. A conversation whose system or user texts contain
"find it" gets those lines, any other the default ones; the number of replies in it says which is next. Lines are:

    {"say": "hello", "think": "..."}
    {"call": {"name": "search", "arguments": {"query": "pool"}}}
    {"say": "Both.", "calls": [{"name": "a"}, {"name": "b"}]}
    {"status": 429, "message": "slow down", "headers": {"Retry-After": "1"}, "times": 2, "then": {"say": "at last"}}
    {"say": "It is bec", "ending": "cut"}          or "silence"
    {"say": "slowly", "delay": 0.5, "every": 0.1}  seconds before the answer, and between its words
"""


class ServedLine(ScriptFileLine, frozen=True, forbid_unknown_fields=True):
    """A line of a script file, as the server plays it."""

    then: ServedLine | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    delay: float = 0.0

    def __call__(self, request: ReceivedRequest) -> FakeResponse:
        """The response of this line, or of `then` after `times` identical requests."""
        if self.then is not None and request.attempt > (self.times or 1):
            return self.then(replace(request, attempt=request.attempt - (self.times or 1)))
        if self.status != 200:
            response = error_response(self.status, self.message, **self.headers)
            return replace(response, delay=self.delay)
        response = response_for(self.reply(), request)
        if self.ending != "whole":  # send the text, but neither the finish reason nor the usage
            kept = sum(b'"finish_reason":null' in piece for piece in response.pieces)
            response = replace(response, pieces=response.pieces[:kept])
        return replace(response, delay=self.delay, ending=self.ending)


def read_script(text: bytes) -> ChatScript:
    """Parse a script file; raises `BadInput` with the position of an error.

    >>> isinstance(read_script(b'{"default": [{"say": "hello"}]}'), ChatScript)
    True
    """
    try:
        parts = msgspec.json.decode(text, type=dict[str, list[ServedLine]])
    except msgspec.DecodeError as error:
        raise BadInput(f"the script cannot be read: {error}") from None
    script = ChatScript()
    for words, lines in parts.items():
        script.play(*lines, words="" if words == "default" else words)
    return script


class _LoggedScript:
    """A script that logs each request as a line of JSON before it is answered."""

    def __init__(self, script: ChatScript, log: Path) -> None:
        self._script = script
        self._log = log

    def __call__(self, request: ReceivedRequest) -> Any:
        line = {"path": request.path, "headers": request.headers, "body": request.body, "attempt": request.attempt}
        with self._log.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        return self._script(request)


async def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m retinue.testing.fake_chat",
        description=USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--script", type=Path, required=True, help="the JSON file with the lines")
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free port")
    parser.add_argument("--chunk", type=int, help="split responses into parts of so many bytes")
    parser.add_argument("--log", type=Path, help="append every request to this file, as lines of JSON")
    options = parser.parse_args(arguments)
    try:
        script = read_script(options.script.read_bytes())
    except (OSError, BadInput) as error:
        sys.exit(f"fake_chat: {options.script}: {error}")
    played = _LoggedScript(script, options.log) if options.log else script
    done = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, done.set)
    async with FakeChat(played, chunk=options.chunk, host=options.host, port=options.port) as vendor:
        print(vendor.base_url, flush=True)
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
