"""A fake vendor that speaks OpenAI's chat completions on this machine, and says what a script tells it to.

In a test, inside its own event loop::

    async with FakeChat(together(says("Let me look."), calls("search", query="pool"))) as vendor:
        provider = OpenAIChatProvider(vendor.base_url)

For programs under test it is a program itself (`python -m retinue.testing.fake_chat --help`). It is as strict as the
vendors are: a conversation that they would refuse is refused here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias, assert_never, cast

import msgspec

from retinue.core.errors import ProviderFault
from retinue.core.messages import Stop, ToolCall
from retinue.core.usage import Usage
from retinue.providers.scripted import Line, ScriptedFailure, ScriptedHang, ScriptedReply
from retinue.testing.fake_prompts import Block, PromptCache
from retinue.testing.fake_server import HOST, Answer, FakeServer, Heard

Played: TypeAlias = Line | Answer | Callable[[Heard], Line | Answer]
"""What to say to a request: a line, the very bytes, or either of them depending on what was heard."""

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
    """The vendor, open inside of an `async with` block; a provider finds it at `base_url`.

    `chunk` sends every answer in pieces of so many bytes. `heard` has all requests, refused ones too.
    """

    def __init__(self, played: Played, *, chunk: int | None = None, host: str = HOST, port: int = 0) -> None:
        super().__init__(self._answer, host=host, port=port)
        self._played = played
        self._chunk = chunk
        self._cache = PromptCache()

    @property
    def base_url(self) -> str:
        """What a provider wants to know."""
        return f"{self.url}/v1"

    async def __aenter__(self) -> FakeChat:
        await self.open()
        return self

    def _answer(self, heard: Heard) -> Answer:
        if not heard.path.endswith("/chat/completions"):
            return failed(404, f"Unknown request URL: {heard.method} {heard.path}")
        if wrong := objection(heard.body):
            return failed(400, wrong)
        played = self._played
        if callable(played):
            played = played(heard)
        if not isinstance(played, Answer):
            blocks = blocks_of(heard.body.get("tools"), heard.body["messages"])
            played = answer_of(played, heard, self._cache.read(heard.body["model"], blocks).cached)
        return played if played.chunk else replace(played, chunk=self._chunk)


def blocks_of(*parts: Iterable[object] | None) -> Iterable[Block]:
    """The blocks of a prompt, in order."""
    return (Block(msgspec.json.encode(each)) for part in parts for each in part or ())


def replies(heard: Heard) -> int:
    """How many replies the model has made in this conversation."""
    return sum(message["role"] == "assistant" for message in heard.body["messages"])


class ChatScript:
    """Lines by turn, for those conversations whose system or user texts have certain words in them.

    Which line comes is read off the request alone: the number of replies in it. So a program that is killed and started
    again goes on at the right line.

    >>> script = ChatScript().play(ScriptedReply(pieces=("hello",))).play(ScriptedReply(pieces=("42",)), words="find it")
    >>> body = {"messages": [{"role": "user", "content": "please find it"}]}
    >>> heard = Heard(method="POST", path="/", headers={}, raw=b"", body=body)
    >>> print(script(heard))
    says '42'
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[Played]] = {}

    def play(self, *lines: Played, words: str = "") -> ChatScript:
        """One line for each turn; the longest `words` that occur win, and no words fit every conversation."""
        self._parts.setdefault(words, []).extend(lines)
        return self

    def __call__(self, heard: Heard) -> Line | Answer:
        speakers = ("system", "developer", "user")
        texts = "\n".join(message["content"] for message in heard.body["messages"] if message["role"] in speakers)
        fitting = [words for words in self._parts if words in texts]
        if not fitting:
            return failed(400, f"fake_chat: no lines for this conversation; there are some for: {list(self._parts)}")
        words = max(fitting, key=len)
        lines, turn = self._parts[words], replies(heard) + 1
        if turn > len(lines):
            return failed(400, f"fake_chat: asked for line {turn} of {words!r}, which has {len(lines)}")
        line = lines[turn - 1]
        return line(heard) if callable(line) else line


# ---- lines as bytes -------------------------------------------------------------------------------------------------


def event(value: object) -> bytes:
    """One event of a stream."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def failed(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    **headers: str,
) -> Answer:
    """An error as vendors tell it; headers as `retry_after="7"`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = _error(message, kind, param, code)
    return Answer(status=status, headers=JSON | named, pieces=(msgspec.json.encode(body),))


def answer_of(line: Line, heard: Heard, cached: int = 0) -> Answer:
    """A line as this wire tells it; of the tokens it has read, so many were `cached`."""
    match line:
        case ScriptedReply():
            usage = counted(line, heard, cached)
            return _streamed(line, heard, usage) if heard.body.get("stream") else _whole(line, heard, usage)
        case ScriptedHang(pieces=pieces):
            return Answer(headers=EVENTS, pieces=tuple(map(_words, pieces)), ending="silence")
        case ScriptedFailure(times=times, then=then, error=error):
            if then is not None and heard.attempt > times:
                return answer_of(then, replace(heard, attempt=heard.attempt - times), cached)
            if error.status is not None:
                spawn_request = {} if error.retry_after is None else {"retry_after": f"{error.retry_after:g}"}
                return failed(error.status, str(error), kind=_KINDS.get(error.fault, "error"), **spawn_request)
            if error.fault == "unreachable":
                return Answer(status=0, ending="cut")
            partial = (_words(error.partial),) if error.partial else ()
            if error.fault == "cut":
                return Answer(headers=EVENTS, pieces=partial, ending="cut")
            told = event(_error(str(error), _KINDS.get(error.fault, "error")))
            return Answer(headers=EVENTS, pieces=(*partial, told))
        case _:
            assert_never(line)


def _streamed(line: ScriptedReply, heard: Heard, used: Usage | None) -> Answer:
    pieces = [_chunk({"role": "assistant", "content": ""})]
    if line.thinking:
        pieces.append(_chunk({"reasoning_content": line.thinking}))
    pieces += [_words(piece) for piece in line.pieces]
    for index, call in enumerate(_calls(line, heard)):
        named: dict[str, object] = {"name": call.name, "arguments": ""}
        pieces.append(_chunk(_calling(index, id=call.id, type="function", function=named)))
        half = len(call.arguments) // 2
        for part in filter(None, (call.arguments[:half], call.arguments[half:])):
            pieces.append(_chunk(_calling(index, function={"arguments": part})))
    pieces.append(_chunk({}, finish=_finish(line)))
    options: dict[str, Any] = heard.body.get("stream_options") or {}
    usage = _usage(used)
    if usage is not None and options.get("include_usage"):
        last: dict[str, object] = {"choices": [], "usage": usage}
        pieces.append(event(_envelope("chat.completion.chunk") | last))
    return Answer(headers=EVENTS, pieces=(*pieces, DONE), every=line.every)


def _whole(line: ScriptedReply, heard: Heard, used: Usage | None) -> Answer:
    message: dict[str, object] = {"role": "assistant", "content": line.text}
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in _calls(line, heard)
    ]
    if made:
        message["tool_calls"] = made
    choice = {"index": 0, "message": message, "finish_reason": _finish(line)}
    body = _envelope("chat.completion") | {"choices": [choice], "usage": _usage(used)}
    return Answer(headers=JSON, pieces=(msgspec.json.encode(body),))


def _envelope(kind: str) -> dict[str, object]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1767225600, "model": "fake-1"}


def _chunk(delta: dict[str, object], *, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(_envelope("chat.completion.chunk") | {"choices": [choice]})


def _words(text: str) -> bytes:
    return _chunk({"content": text})


def _calling(index: int, **part: object) -> dict[str, object]:
    return {"tool_calls": [{"index": index} | part]}


def _calls(line: ScriptedReply, heard: Heard) -> Iterable[ToolCall]:
    turn = replies(heard) + 1
    return (
        msgspec.structs.replace(call, id=call.id or f"call_{turn}_{index}") for index, call in enumerate(line.calls)
    )


def _finish(line: ScriptedReply) -> str:
    return _FINISH[line.stop or ("calls" if line.calls else "end")]


def counted(line: ScriptedReply, heard: Heard, cached: int) -> Usage | None:
    """The tokens of an answer: what the line says, else by the length of what was read and said."""
    if line.usage != "counted":
        return line.usage
    written = len(line.text) + len(line.thinking) + sum(len(call.arguments) for call in line.calls)
    read = len(heard.raw) // 4
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


# ---- what vendors refuse --------------------------------------------------------------------------------------------


def objection(body: dict[str, Any]) -> str | None:
    """Why a vendor would refuse this request, or None."""
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
        if not isinstance(message.get("content"), str) and not made:
            return f"messages[{number}]: content must be a string"
        for call in made:
            if not call.get("id") or call["id"] in used or not isinstance(call["function"]["arguments"], str):
                return f"messages[{number}]: a call needs an id of its own and arguments as a string: {call}"
            used.add(call["id"])
            open_calls.append(call["id"])
    return f"these tool_call_ids did not have response messages: {', '.join(open_calls)}" if open_calls else None


if __name__ == "__main__":
    from retinue.testing.fake_chat_program import main

    asyncio.run(main())
