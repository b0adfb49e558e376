"""A run as server-sent events on stdout, for programs that read `retinue run --sse`.

Each event is three lines: `event:` with its type, `data:` with one JSON object of `id`, `delta` and `type`, and an
empty one. Words are told as they arrive (see `sse_reply`), results of calls when they are there. Of a tree of runs,
this is the root.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Literal, TypeAlias

import msgspec

from retinue.cli.sse_reply import LiveReply, Piece, Teller
from retinue.core.events import CallReturned, Event, ReplyReceived, TurnFailed
from retinue.core.messages import CallDelta, Delta, Reply, StartDelta, TextDelta, ThinkingDelta, ToolCall
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

OPENINGS = {"anthropic": "Function: {name}\n", "vertexai-anthropic": "Function: {name}\n"}
"""How a call's name is written in front of its arguments, by wire."""

OPENING = "\nFunction: {name} "
"""How it is for all others."""

_KINDS: dict[Literal["thinking", "text", "call"], Kind] = {
    "thinking": "reasoning_content",
    "text": "output_text",
    "call": "tool_call",
}


def sse(kind: Kind, delta: str = "", id: str = "") -> str:
    r"""One event as it is written.

    >>> sse("output_text", "Hi")
    'event: output_text\ndata: {"id":"","delta":"Hi","type":"output_text"}\n\n'
    """
    # Escaped to ASCII: halves of characters and odd terminals do no harm, and every parser reads it.
    data = json.dumps({"id": id, "delta": delta, "type": kind}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n"


class SseStream:
    """Writes one run.

    With `structured` its answer is told once, at the end, as JSON; with `brief` neither calls nor their results are
    told. `wire` is how the run's model is spoken to.
    """

    def __init__(
        self, write: Callable[[str], None], *, structured: bool = False, brief: bool = False, wire: str = ""
    ) -> None:
        self._write = write
        self._structured = structured
        self._brief = brief
        self._teller = Teller(begin=self._begin, say=self._say, close=self._close)
        self._opening = OPENINGS.get(wire, OPENING)
        self._reply = self._next_reply()
        self._calls: tuple[ToolCall, ...] = ()

    async def follow(self, happenings: AsyncIterator[Event | Delta]) -> None:
        """Tell what happens in the run until it is over; how it ended is for `end` to tell."""
        answer: Reply | None = None
        async for what in happenings:
            if answer is not None:
                self._finish(answer)
                answer = None
            match what:
                case StartDelta() | TextDelta() | ThinkingDelta() | CallDelta():
                    self._reply.hear(what)
                case ReplyReceived(reply=reply) if not reply.message.calls:
                    # It may be the last one, and then its end waits for the end of the run, which is told once it is on
                    # disk: an answer that has left the process as a whole must not be lost with it.
                    answer = reply
                case ReplyReceived(reply=reply):
                    self._calls = reply.message.calls
                    self._finish(reply)
                case TurnFailed():
                    self._reply = self._next_reply()
                case CallReturned(index=index, text=text) if not self._brief:
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

    def _next_reply(self) -> LiveReply:
        return LiveReply(self._teller, opening=self._opening)

    def _finish(self, reply: Reply) -> None:
        self._reply.finish(reply)
        self._reply = self._next_reply()

    def _begin(self, response_id: str) -> None:
        self._write(sse("response_start", id=response_id))

    def _say(self, piece: Piece) -> None:
        what, _ = piece.part
        if not (self._structured and what == "text") and not (self._brief and what == "call"):
            self._write(sse(_KINDS[what], piece.text, piece.id))

    def _close(self) -> None:
        if not self._structured:
            self._write(sse("block_end"))
