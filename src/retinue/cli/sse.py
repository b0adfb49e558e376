"""A run as server-sent events on stdout, for programs that read `retinue run --sse`.

Each event is three lines: `event:` with its type, `data:` with one JSON object of `id`, `delta` and `type`, and an
empty one. What is written never has to be taken back: a reply is told when it is whole, not word by word, because an
attempt that breaks in the middle is made again. Of a tree of runs, this is the root.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Literal, TypeAlias

import msgspec

from retinue.core.events import CallReturned, Event, ReplyReceived
from retinue.core.messages import CallDelta, Delta, Reply, TextDelta, ThinkingDelta, ToolCall
from retinue.core.run import Outcome

Kind: TypeAlias = Literal[
    "response_start",
    "output_text",
    "reasoning_content",
    "tool_call",
    "tool_result",
    "block_end",
    "output_structured",
    "response_end",
]


def sse(kind: Kind, delta: str = "", id: str = "") -> str:
    r"""One event as it is written.

    >>> sse("output_text", "Hi")
    'event: output_text\ndata: {"id":"","delta":"Hi","type":"output_text"}\n\n'
    """
    # Escaped to ASCII: halves of characters and odd terminals do no harm, and every parser reads it.
    data = json.dumps({"id": id, "delta": delta, "type": kind}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n"


class SseStream:
    """Writes one run; with `structured` its answer is told once, at the end, as JSON."""

    def __init__(self, write: Callable[[str], None], *, structured: bool = False) -> None:
        self._write = write
        self._structured = structured
        self._calls: tuple[ToolCall, ...] = ()

    async def follow(self, happenings: AsyncIterator[Event | Delta]) -> None:
        """Tell what happens in the run until it is over; how it ended is for `end` to tell."""
        answer: Reply | None = None
        async for what in happenings:
            if isinstance(what, (TextDelta, ThinkingDelta, CallDelta)):
                continue
            if answer is not None:
                self._tell(answer)
                answer = None
            match what:
                case ReplyReceived(reply=reply) if not reply.message.calls:
                    # It may be the last one, and then it waits for the end of the run, which is told once it is on
                    # disk: an answer that has left the process must not be lost with it.
                    answer = reply
                case ReplyReceived(reply=reply):
                    self._calls = reply.message.calls
                    self._tell(reply)
                case CallReturned(index=index, text=text):
                    call = self._calls[index]
                    self._write(sse("tool_result", f"\n\nTool Result ({call.name}):\n{text}\n", call.id))
                case _:
                    pass

    def end(self, outcome: Outcome | None) -> None:
        """The last events: the answer as data, or what went wrong; None is for a run that was interrupted."""
        if outcome is None:
            self._write(sse("block_end", "Error: interrupted"))
        elif not outcome.ok:
            why = outcome.error or ("the model gave an empty answer" if outcome.reason == "empty" else outcome.reason)
            self._write(sse("block_end", f"Error: {why}"))
        elif self._structured:
            self._write(sse("output_structured", msgspec.json.encode(outcome.structured).decode()))
        self._write(sse("response_end"))

    def _tell(self, reply: Reply) -> None:
        for event in self._reply(reply):
            self._write(event)

    def _reply(self, reply: Reply) -> Iterator[str]:
        yield sse("response_start", id=reply.response_id)
        for thought in reply.message.thinking:
            if thought.text:
                yield sse("reasoning_content", thought.text)
        if reply.message.text and not self._structured:
            yield sse("output_text", reply.message.text)
        for call in reply.message.calls:
            yield sse("tool_call", f"\nFunction: {call.name} ", call.id)
            yield sse("tool_call", call.arguments, call.id)
        if not self._structured:
            yield sse("block_end")
