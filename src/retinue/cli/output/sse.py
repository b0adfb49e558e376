"""Write a run to stdout as server-sent events, from a writer thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from retinue.app.handle import RunHandle
from retinue.app.json_rows import event_row
from retinue.cli.output.progress import Followed
from retinue.cli.output.reply import HeldReply, LiveReply, Piece, ReplyWriter
from retinue.cli.output.terminal import stdout_is_closed, write
from retinue.cli.output.writer_thread import WriterThread
from retinue.core.attachments import with_labels
from retinue.core.events import CallReturned, Event, ReplyReceived, TreeEvent, TurnFailed
from retinue.core.messages import (
    CallDelta,
    Delta,
    DiscardDelta,
    Reply,
    StartDelta,
    TextDelta,
    ThinkingDelta,
    ToolCall,
)
from retinue.core.run import Outcome

SseKind: TypeAlias = Literal[
    "response_start",
    "restarted",
    "output_text",
    "reasoning_content",
    "tool_call",
    "tool_result",
    "block_end",
    "output_structured",
    "response_end",
]

OPENINGS = {"anthropic": "Function: {name}\n", "vertexai-anthropic": "Function: {name}\n"}
"""The form of a call's name in front of its arguments, by wire."""

OPENING = "\nFunction: {name} "
"""The form for all other wires."""

_KINDS: dict[Literal["thinking", "text", "call"], SseKind] = {
    "thinking": "reasoning_content",
    "text": "output_text",
    "call": "tool_call",
}


def sse(kind: SseKind, delta: str = "", id: str = "") -> str:
    r"""One event in wire format.

    >>> sse("output_text", "Hi")
    'event: output_text\ndata: {"id":"","delta":"Hi","type":"output_text"}\n\n'
    """
    # Escaped to ASCII: lone surrogates and terminals without UTF-8 do no harm, and every parser reads it.
    data = json.dumps({"id": id, "delta": delta, "type": kind}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n"


class Render(Protocol):
    """Formats an event as text."""

    def __call__(self, kind: SseKind, delta: str = "", id: str = "") -> str: ...


class SseStream:
    """The events of one run, written with `write`; `wire` is the wire of the run's model.

    With `structured` the answer is written once, at the end, as JSON; `brief` leaves out calls and their results. With
    `held` each reply is written when it is complete, for readers that do not know the event `restarted`. `render`
    formats each event as text.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        structured: bool = False,
        brief: bool = False,
        held: bool = False,
        wire: str = "",
        render: Render = sse,
    ) -> None:
        self._write = write
        self._render = render
        self._structured = structured
        self._brief = brief
        self._held = held
        self._writer = ReplyWriter(
            begin=self._begin, write=self._write_piece, close=self._close, discard=lambda: write(render("restarted"))
        )
        self._opening = OPENINGS.get(wire, OPENING)
        self._reply = self._next_reply()
        self._calls: tuple[ToolCall, ...] = ()

    async def follow(self, events: AsyncIterator[Event | Delta]) -> None:
        """Write the events of the run until it has ended; `end` writes the outcome."""
        answer: Reply | None = None
        async for event in events:
            if answer is not None:
                self._finish(answer)
                answer = None
            match event:
                case StartDelta() | DiscardDelta() | TextDelta() | ThinkingDelta() | CallDelta():
                    self._reply.receive(event)
                case ReplyReceived(reply=reply) if not reply.message.calls:
                    # It may be the last reply. Its end is then written after the end of the run, which is published
                    # once it is on disk: an answer that was written as a whole must not be lost with the process.
                    answer = reply
                case ReplyReceived(reply=reply):
                    self._calls = reply.message.calls
                    self._finish(reply)
                case TurnFailed():
                    self._reply.release()
                    self._reply = self._next_reply()
                case CallReturned(index=index) if not self._brief:
                    call, text = self._calls[index], with_labels(event.text, event.attachments)
                    self._write(self._render("tool_result", f"\n\nTool Result ({call.name}):\n{text}\n", call.id))
                case _:
                    pass

    def end(self, outcome: Outcome | None) -> None:
        """Write the last events: the structured answer, or the error; None is an interrupted run."""
        self._reply.release()
        if outcome is None:
            self._write(self._render("block_end", "Error: interrupted"))
        elif not outcome.ok:
            why = outcome.error or ("the model gave an empty answer" if outcome.reason == "empty" else outcome.reason)
            self._write(self._render("block_end", f"Error: {why}"))
        elif self._structured:
            self._write(self._render("output_structured", msgspec.json.encode(outcome.structured).decode()))
        self._write(self._render("response_end"))

    def _next_reply(self) -> LiveReply | HeldReply:
        live = LiveReply(self._writer, opening=self._opening)
        return HeldReply(live) if self._held else live

    def _finish(self, reply: Reply) -> None:
        self._reply.finish(reply)
        self._reply = self._next_reply()

    def _begin(self, response_id: str) -> None:
        self._write(self._render("response_start", id=response_id))

    def _write_piece(self, piece: Piece) -> None:
        kind, _ = piece.part
        if not (self._structured and kind == "text") and not (self._brief and kind == "call"):
            self._write(self._render(_KINDS[kind], piece.text, piece.id))

    def _close(self) -> None:
        if not self._structured:
            self._write(self._render("block_end"))


class TreeStream:
    """The events of a run and of all runs below it, written with `write`, in the form of `runs follow --tree --json`.

    The name of an event is the type of what it carries. Stored events have an id, `RUN:NUMBER`; deltas have none.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    async def follow(self, events: AsyncIterator[TreeEvent]) -> None:
        async for item in events:
            row = event_row(item)
            name = f"id: {item.run}:{item.seq}\n" if item.seq else ""
            data = json.dumps(row, separators=(",", ":"))
            self._write(f"{name}event: {type(item.event).__struct_config__.tag}\ndata: {data}\n\n")

    def end(self, outcome: Outcome | None) -> None:
        """The end of the run is among its events; an interrupted run has none."""


async def stream_run(
    root: RunHandle,
    work: Coroutine[Any, Any, Followed],
    *,
    structured: bool,
    brief: bool,
    wire: str,
    tree: bool = False,
) -> Followed:
    """The result of `work`, its events on stdout, the last in any case; cancelled if stdout is closed."""
    writer = WriterThread(write, stdout_is_closed)
    if tree:
        stream = TreeStream(writer.write)
        following = asyncio.ensure_future(stream.follow(root.events(tree=True)))
    else:
        stream = SseStream(writer.write, structured=structured, brief=brief, wire=wire)
        following = asyncio.ensure_future(stream.follow(root.events()))
    working = asyncio.ensure_future(work)
    reading = asyncio.ensure_future(writer.closed())
    followed = Followed(None)
    try:
        await asyncio.wait({working, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            followed = await working
            if followed.outcome is not None:
                await following
    finally:
        for task in (following, working, reading):
            task.cancel()
        await asyncio.gather(following, working, reading, return_exceptions=True)
        stream.end(followed.outcome)
        await writer.close()
    return followed


class HeldStream:
    """The events of a call on stdout, written by a thread, each reply when it is complete.

    Readers of this contract join all `output_text`; nothing of a discarded attempt may be among it.
    """

    def __init__(
        self,
        *,
        structured: bool = False,
        brief: bool = False,
        wire: str = "",
        render: Render = sse,
        write: Callable[[str], None] = write,
    ) -> None:
        self._writer = WriterThread(write, stdout_is_closed)
        self._stream = SseStream(
            self._writer.write, structured=structured, brief=brief, held=True, wire=wire, render=render
        )

    async def follow(self, events: AsyncIterator[Event | Delta]) -> None:
        await self._stream.follow(events)

    def end(self, outcome: Outcome | None) -> None:
        self._stream.end(outcome)

    async def closed(self) -> None:
        await self._writer.closed()

    async def close(self) -> None:
        await self._writer.close()
