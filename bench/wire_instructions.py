"""Instructions of each wire per streamed event, per encoded history and per turn, next to those of an earlier commit.

`python -m bench.wire_instructions --before COMMIT` runs both sources under callgrind with the same inputs and prints a
table. A count of instructions hardly differs between runs: a change of one percent can be seen on a busy machine.

- `decode`: one event of a long stream, which arrives alone; `recorded` is a stream of a real vendor.
- `encode`: the whole body of a request with so many messages that were not encoded before.
- `turn`: a turn after so many messages over a connection on loopback: its two new messages are encoded, the request is
  sent, and a short answer is decoded. The server is part of the process, and of the count.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "tests/providers/recordings"
WIRES = ("openai-chat", "openai-responses", "anthropic", "gemini")
RECORDED = {
    "openai-chat": ("chat-deepseek-thinking.0", "chat-llm-tools-a.1"),
    "openai-responses": ("responses-tool-call.0", "responses-tool-call.1"),
    "anthropic": ("anthropic-thinking.0", "anthropic-llm-tools.0"),
    "gemini": ("gemini-tool-calls.0", "gemini-tool-calls.2"),
}
KINDS = ("text", "calls", "thinking")
SIZES = (1, 20, 100)
EVENTS = 200
STREAMS = 2
TURNS = 5
MOST = 1.03
"""The promised limit of the ratio to the commit before, for an event and for a turn, of which encoding is a part."""

MARK = "getpriority"
"""The C function whose calls divide the count: nothing else in the process calls it."""


class Count(Struct, frozen=True):
    """The name of a case, and what its instructions are divided by."""

    name: str
    units: int


# ---- streams ---------------------------------------------------------------------------------------------------------


def stream(wire: str, kind: str, events: int) -> list[bytes]:
    """An answer of so many pieces of text, of thinking with a short text, or of a call's arguments."""
    words = [f"word{number} " for number in range(events)]
    return {"openai-chat": _chat, "openai-responses": _responses, "anthropic": _anthropic, "gemini": _gemini}[wire](
        kind, words
    )


def _event(body: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, msgspec.json.encode(body))


def _arguments(words: Sequence[str]) -> list[str]:
    return ['{"query":"', *words, '"}']


def _chat(kind: str, words: Sequence[str]) -> list[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-1"}
        return _event({**head, "system_fingerprint": "fp_1", "choices": [choice]})

    pieces = [chunk({"role": "assistant", "content": ""})]
    match kind:
        case "text":
            pieces += [chunk({"content": word}) for word in words]
        case "thinking":
            pieces += [chunk({"content": None, "reasoning_content": word}) for word in words]
            pieces.append(chunk({"content": "Done."}))
        case _:
            function = {"name": "search", "arguments": ""}
            pieces.append(
                chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})
            )
            pieces += [
                chunk({"tool_calls": [{"index": 0, "function": {"arguments": word}}]}) for word in _arguments(words)
            ]
    pieces.append(chunk({}, "tool_calls" if kind == "calls" else "stop"))
    usage = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
    pieces.append(_event({"id": "chatcmpl-1", "model": "fake-1", "choices": [], "usage": usage}))
    return [*pieces, b"data: [DONE]\n\n"]


def _responses(kind: str, words: Sequence[str]) -> list[bytes]:
    number = 0

    def event(name: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return _event({"type": f"response.{name}", "sequence_number": number, **fields}, f"response.{name}")

    def item(
        item: dict[str, Any], delta: str, words: Sequence[str], done: dict[str, Any], **fields: Any
    ) -> list[bytes]:
        place = {"item_id": item["id"], "output_index": len(output), **fields}
        output.append({**item, **done})
        added = event("output_item.added", output_index=len(output) - 1, item=item)
        deltas = [event(delta, **place, delta=word) for word in words]
        return [added, *deltas, event("output_item.done", output_index=len(output) - 1, item=output[-1])]

    def message(words: Sequence[str]) -> list[bytes]:
        content: list[Any] = [{"type": "output_text", "text": "".join(words), "annotations": []}]
        begun: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        done: dict[str, Any] = {"status": "completed", "content": content}
        return item(begun, "output_text.delta", words, done, content_index=0, logprobs=[])

    output: list[dict[str, Any]] = []
    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "model": "fake-1",
        "output": [],
        "status": "in_progress",
    }
    pieces = [event("created", response=response)]
    match kind:
        case "text":
            pieces += message(words)
        case "thinking":
            begun: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "encrypted_content": "c2VjcmV0", "summary": []}
            done = {"summary": [{"type": "summary_text", "text": "".join(words)}]}
            pieces += item(begun, "reasoning_summary_text.delta", words, done, summary_index=0)
            pieces += message(["Done."])
        case _:
            begun = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "search", "arguments": ""}
            arguments = _arguments(words)
            done = {"arguments": "".join(arguments), "status": "completed"}
            pieces += item({**begun, "status": "in_progress"}, "function_call_arguments.delta", arguments, done)
    usage = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150}
    return [*pieces, event("completed", response={**response, "status": "completed", "output": output, "usage": usage})]


def _anthropic(kind: str, words: Sequence[str]) -> list[bytes]:
    def event(name: str, **fields: Any) -> bytes:
        return _event({"type": name, **fields}, name)

    def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
        grown = [event("content_block_delta", index=index, delta=delta) for delta in deltas]
        begin = event("content_block_start", index=index, content_block=start)
        return [begin, *grown, event("content_block_stop", index=index)]

    def text(index: int, words: Iterable[str]) -> list[bytes]:
        return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": word} for word in words))

    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "fake-1", "content": []}
    usage = {"input_tokens": 100, "output_tokens": 1}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    pieces = [event("message_start", message=message), event("ping")]
    match kind:
        case "text":
            pieces += text(0, words)
        case "thinking":
            thoughts = [{"type": "thinking_delta", "thinking": word} for word in words]
            signature = {"type": "signature_delta", "signature": "c2lnbmF0dXJl"}
            pieces += block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thoughts, signature)
            pieces += text(1, ["Done."])
        case _:
            start: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}
            json = [{"type": "input_json_delta", "partial_json": word} for word in _arguments(words)]
            pieces += block(0, start, *json)
    stop = {"stop_reason": "tool_use" if kind == "calls" else "end_turn", "stop_sequence": None}
    return [*pieces, event("message_delta", delta=stop, usage={"output_tokens": 50}), event("message_stop")]


def _gemini(kind: str, words: Sequence[str]) -> list[bytes]:
    def chunk(*parts: dict[str, Any], **more: Any) -> bytes:
        candidate = {"content": {"parts": parts, "role": "model"}, "index": 0, **more}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 50, "totalTokenCount": 150}
        return _event({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "fake-1", "responseId": "r1"})

    match kind:
        case "text":
            parts: list[dict[str, Any]] = [{"text": word} for word in words]
        case "thinking":
            parts = [{"text": word, "thought": True} for word in words]
            parts.append({"text": "Done.", "thoughtSignature": "c2lnbmF0dXJl"})
        case _:  # arguments of a call are never in pieces
            parts = [{"functionCall": {"name": "search", "args": {"query": word}}} for word in words]
    return [*map(chunk, parts), chunk({"text": ""}, finishReason="STOP")]


def recorded(name: str) -> list[bytes]:
    """The events of a recording."""
    text = (RECORDINGS / f"{name}.sse").read_bytes().replace(b"\r\n", b"\n")
    return [event + b"\n\n" for event in text.split(b"\n\n") if event.strip()]


# ---- what is counted, in the process below callgrind ----------------------------------------------------------------


class Wire:
    """A provider of the source that is measured, with requests that sources before and after it understand."""

    def __init__(self, wire: str, url: str) -> None:
        from retinue.core.agent import ToolSpec
        from retinue.providers.catalog import create_provider, provider_config

        self.name = wire
        self.provider: Any = create_provider(provider_config(wire, base_url=url, api_key_env=""))
        self.http: Any = self.provider.provider
        schema = '{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}'
        self.tools = tuple(ToolSpec(f"tool_{n}", "Searches for something.", schema) for n in range(4))

    def decode(self, pieces: Sequence[bytes]) -> Any:
        """The reply of a stream whose events come one by one."""
        from retinue.net.sse import EventReader

        published: list[Any] = []
        publish, reader, decoder = published.append, EventReader(), self.http.decoder("fake-1")
        for piece in pieces:
            for payload in reader.feed(piece):
                for delta in decoder.feed(payload):
                    publish(delta)
        return decoder.finish()

    def history(self, kind: str, size: int) -> list[Any]:
        """So many messages; replies with thinking are those that the decoder makes."""
        from retinue.core.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage

        thinking = self.decode(stream(self.name, "thinking", 20)).message.thinking if kind == "thinking" else ()
        messages: list[Any] = [UserMessage("Find out why the queue is slow, and say what to do. " * 4)]
        for number in range(size // 2):
            if kind == "text":
                messages.append(AssistantMessage("The queue is slow, as its workers wait for the database. " * 4))
                messages.append(UserMessage(f"And then? ({number})"))
            else:
                call = ToolCall("tool_1", '{"query":"pool size of the workers"}', f"call_{number}")
                messages.append(AssistantMessage("Let me look.", (call,), thinking))
                messages.append(ToolMessage("tool_1", "12 lines match. " * 20, call.id))
        return messages

    def request(self, messages: list[Any], **more: Any) -> Any:
        from retinue.core.ports import Request

        return Request(
            model="fake-1",
            system="You are careful. " * 60,
            messages=messages,
            tools=self.tools,
            max_output=1000,
            **more,
        )


Work = Callable[[], Awaitable[None]]


async def _count(counts: list[Count], name: str, units: int, *, prepare: Callable[[], Work]) -> None:
    await prepare()()  # caches are filled, and the interpreter has specialised the code
    await prepare()()
    work = prepare()
    gc.collect()
    os.getpriority(os.PRIO_PROCESS, 0)
    await work()
    os.getpriority(os.PRIO_PROCESS, 0)
    counts.append(Count(name, units))


async def measure(wires: Sequence[str]) -> list[Count]:
    """Do the work of each case between two marks."""
    counts: list[Count] = []
    for wire in wires:
        async with _server(stream(wire, "text", 20)) as url:
            await _measure_wire(Wire(wire, url), counts)
    return counts


async def _measure_wire(wire: Wire, counts: list[Count]) -> None:
    def decoding(pieces: Sequence[bytes]) -> Callable[[], Work]:
        async def work() -> None:
            for _ in range(STREAMS):
                wire.decode(pieces)

        return lambda: work

    streams = {kind: stream(wire.name, kind, EVENTS) for kind in KINDS}
    streams |= {f"recorded {name}": recorded(name) for name in RECORDED[wire.name]}
    for kind, pieces in streams.items():
        await _count(counts, f"{wire.name} decode {kind}", STREAMS * len(pieces), prepare=decoding(pieces))

    for kind in KINDS:
        for size in SIZES:
            messages = wire.history(kind, size)

            def encoding(messages: list[Any] = messages) -> Work:
                async def work() -> None:
                    for _ in range(TURNS):
                        wire.http.encode(wire.request(messages), frozenset())

                return work

            def turns(messages: list[Any] = messages, kind: str = kind) -> Work:
                memos: list[dict[str, object]] = [{} for _ in range(TURNS)]
                for memo in memos:
                    wire.http.encode(wire.request(messages, memo=memo), frozenset())
                more = [*messages, *wire.history(kind, 3)[1:]]

                async def work() -> None:
                    for memo in memos:
                        published: list[Any] = []
                        await wire.provider.answer(wire.request(more, memo=memo), published.append)

                return work

            await _count(counts, f"{wire.name} encode {size} {kind}", TURNS, prepare=encoding)
            await _count(counts, f"{wire.name} turn {size} {kind}", TURNS, prepare=turns)
    await wire.provider.close()


class _Connection(asyncio.Protocol):
    """Answers each request with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._left = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            head, _, body = data.partition(b"\r\n\r\n")
            found = re.search(rb"(?i)content-length: (\d+)", head)
            assert found is not None
            self._left, data = int(found[1]), body
        self._left -= len(data)
        if not self._left:
            self._left = -1
            self._transport.write(self._answer)


@asynccontextmanager
async def _server(events: Sequence[bytes]) -> AsyncGenerator[str]:
    """The address of a server that sends these events, each in a chunk of its own, as vendors do."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = b"".join((head, *(b"%x\r\n%b\r\n" % (len(event), event) for event in events), b"0\r\n\r\n"))
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(answer), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


# ---- the comparison --------------------------------------------------------------------------------------------------


def instructions(source: Path, wires: Sequence[str]) -> dict[str, float]:
    """The instructions of each case with the packages in this folder."""
    with tempfile.TemporaryDirectory() as folder:
        dump, names = Path(folder) / "counts", Path(folder) / "names.json"
        environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0", "PYTHONPATH": f"{source}:{ROOT}"}
        subprocess.run(
            [
                *("valgrind", "-q", "--tool=callgrind", f"--dump-before={MARK}", f"--callgrind-out-file={dump}"),
                *(sys.executable, "-m", "bench.wire_instructions", "--measure", str(names), *wires),
            ],
            cwd=folder,
            env=environment,
            check=True,
        )
        counts = msgspec.json.decode(names.read_bytes(), type=list[Count])
        totals = [_total(dump.with_name(f"counts.{2 * number + 2}")) for number in range(len(counts))]
    return {count.name: total / count.units for count, total in zip(counts, totals, strict=True)}


def _total(dump: Path) -> int:
    found = re.search(r"^totals: (\d+)", dump.read_text(), flags=re.MULTILINE)
    assert found is not None
    return int(found[1])


class Row(NamedTuple):
    """A case with its instructions before and now."""

    name: str
    before: float
    now: float

    @property
    def ratio(self) -> float:
        return self.now / self.before


def compare(commit: str, wires: Sequence[str]) -> list[Row]:
    """The instructions of this source next to those of a commit."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        before = instructions(Path(folder) / "src", wires)
    now = instructions(ROOT / "src", wires)
    return [Row(name, before[name], now[name]) for name in now]


def main() -> int:
    """Run the command line; 1 if a case costs more than is promised."""
    parser = argparse.ArgumentParser(prog="python -m bench.wire_instructions", description=__doc__)
    parser.add_argument("wires", nargs="*", default=list(WIRES))
    parser.add_argument("--before", metavar="COMMIT", help="compare with the sources of this commit")
    parser.add_argument("--measure", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        Path(options.measure).write_bytes(msgspec.json.encode(asyncio.run(measure(options.wires))))
        return 0
    if options.before is None:
        for name, count in instructions(ROOT / "src", options.wires).items():
            print(f"{count:12,.0f}  {name}")
        return 0
    rows = compare(options.before, options.wires)
    for row in rows:
        print(f"{row.before:12,.0f}  {row.now:12,.0f}  {row.ratio - 1:+7.1%}  {row.name}")
    return 0 if all(row.ratio <= MOST for row in rows if " encode " not in row.name) else 1


if __name__ == "__main__":
    sys.exit(main())
