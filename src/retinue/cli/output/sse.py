"""Write the replies of a run as they stream, and a run to stdout as server-sent events, from a writer thread.

A connection may break in the middle of a reply, and the model is then called again. A live reply writes what arrives
and takes a discarded attempt back; a held reply is written when it is complete, for readers that cannot take back.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, assert_never

import msgspec

from retinue.app.handle import RunHandle
from retinue.cli.output.terminal import stdout_is_closed, write
from retinue.core.events import CallReturned, Event, ReplyReceived, TurnFailed
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

Part: TypeAlias = tuple[Literal["thinking", "text", "call"], int]
"""A part of a reply: thinking, text, or the tool call with an index."""

THINKING: Part = ("thinking", 0)
TEXT: Part = ("text", 0)


class Piece(NamedTuple):
    """Some characters of a part; a piece of a call has the id of the call."""

    part: Part
    text: str
    id: str = ""


class ReplyWriter(NamedTuple):
    """Callbacks for a reply: its start with the response id, its pieces, its end, and that all of it is taken back."""

    begin: Callable[[str], None]
    write: Callable[[Piece], None]
    close: Callable[[], None]
    discard: Callable[[], None]


class LiveReply:
    """A reply that is written as it arrives; `opening` is the form of a call's name in front of its arguments.

    The next attempt after a discarded one is compared with what was written: while it is the same, nothing is written;
    where it continues, the rest is. Where it differs, all is taken back, and the attempt is written from its beginning.

    >>> from retinue.core.messages import AssistantMessage
    >>> writer = ReplyWriter(
    ...     begin=lambda id: print("begin", id),
    ...     write=lambda piece: print(repr(piece.text)),
    ...     close=lambda: print("end"),
    ...     discard=lambda: print("discard"),
    ... )
    >>> live = LiveReply(writer)
    >>> for delta in (StartDelta("a"), TextDelta("It "), DiscardDelta(), StartDelta("b"), TextDelta("It was")):
    ...     live.receive(delta)
    begin a
    'It '
    'was'
    >>> for delta in (DiscardDelta(), StartDelta("c"), TextDelta("It is ")):
    ...     live.receive(delta)
    discard
    begin c
    'It '
    'is '
    >>> live.finish(Reply(AssistantMessage("It is here."), response_id="c"))
    'here.'
    end
    """

    def __init__(self, writer: ReplyWriter, *, opening: str = "\nFunction: {name} ") -> None:
        self._writer = writer
        self._opening = opening
        self._written: list[Piece] = []
        self._begun = False
        self._attempt: str | None = None
        """The response id of the current attempt; None before its `StartDelta`, and then nothing is streamed."""
        self._ids: dict[Part, str] = {}
        """The ids of the attempt's calls."""
        self._ahead: list[Piece] = []
        """Pieces written by earlier attempts that this attempt has not repeated yet, the next piece last."""

    def receive(self, delta: Delta) -> None:
        """Write what is new in a delta."""
        match delta:
            case StartDelta(id=response_id):  # takes back, too: a reader that lags may have lost the `DiscardDelta`
                self._next_attempt(response_id)
            case DiscardDelta():
                self._next_attempt(None)
            case TextDelta(text=text):
                self._continue(Piece(TEXT, text))
            case ThinkingDelta(text=text):
                self._continue(Piece(THINKING, text))
            case CallDelta(index=index, name=name, arguments=arguments, id=call_id):
                part: Part = ("call", index)
                if name:
                    self._ids[part] = call_id
                    self._continue(Piece(part, self._opening.format(name=name), call_id))
                self._continue(Piece(part, arguments, self._ids.get(part, "")))
            case _:
                assert_never(delta)

    def finish(self, reply: Reply) -> None:
        """Write what is left of the whole reply, and close it."""
        pieces = tuple(self._pieces(reply))
        whole, written = _by_part(pieces), _by_part(self._written)
        if not all(part in whole and _is_continued(written[part], whole[part]) for part in written):
            self._discard()
            written.clear()
        self._begin(reply.response_id)
        known = {part: len(piece.text) for part, piece in written.items()}
        for piece in pieces:
            count = known.get(piece.part, 0)
            known[piece.part] = max(0, count - len(piece.text))
            self._write(piece._replace(text=piece.text[count:]))
        self._writer.close()

    def release(self) -> None:
        """No more of the reply will arrive: take back what its last attempt has not repeated."""
        if self._ahead:
            self._restart()

    def _next_attempt(self, response_id: str | None) -> None:
        self._attempt = response_id
        self._ids.clear()
        self._ahead = self._written[::-1]

    def _pieces(self, reply: Reply) -> Iterator[Piece]:
        yield Piece(THINKING, "".join(thought.text for thought in reply.message.thinking))
        yield Piece(TEXT, reply.message.text)
        for index, call in enumerate(reply.message.calls):
            yield Piece(("call", index), self._opening.format(name=call.name), call.id)
            yield Piece(("call", index), call.arguments, call.id)

    def _continue(self, piece: Piece) -> None:
        """Take the next piece of the attempt; what of it was written before is skipped."""
        if self._attempt is None:
            return
        while piece.text and self._ahead:
            expected = self._ahead[-1]
            same = min(len(piece.text), len(expected.text))
            if expected.part != piece.part or not _is_continued(expected._replace(text=expected.text[:same]), piece):
                self._restart()
                break
            piece = piece._replace(text=piece.text[same:])
            self._ahead[-1] = expected._replace(text=expected.text[same:])
            if same == len(expected.text):
                self._ahead.pop()
        self._write(piece)

    def _restart(self) -> None:
        """Take back what was written, and write what of it the attempt has repeated."""
        same = self._written[: -len(self._ahead)]
        last = self._written[len(same)]
        same.append(last._replace(text=last.text[: len(last.text) - len(self._ahead[-1].text)]))
        self._discard()
        for piece in same:
            self._write(piece)

    def _discard(self) -> None:
        self._writer.discard()
        self._begun = False
        self._written = []
        self._ahead = []

    def _begin(self, response_id: str) -> None:
        if not self._begun:
            self._begun = True
            self._writer.begin(response_id)

    def _write(self, piece: Piece) -> None:
        if piece.text:
            self._begin(self._attempt or "")
            self._written.append(piece)
            self._writer.write(piece)


class HeldReply:
    """A reply that is written when it is complete: nothing of a discarded attempt is written.

    >>> from retinue.core.messages import AssistantMessage
    >>> writer = ReplyWriter(
    ...     begin=lambda id: print("begin", id),
    ...     write=lambda piece: print(repr(piece.text)),
    ...     close=lambda: print("end"),
    ...     discard=lambda: print("discard"),
    ... )
    >>> held = HeldReply(LiveReply(writer))
    >>> for delta in (StartDelta("a"), TextDelta("It was"), DiscardDelta(), StartDelta("b"), TextDelta("It is ")):
    ...     held.receive(delta)
    >>> held.finish(Reply(AssistantMessage("It is here."), response_id="b"))
    begin b
    'It is '
    'here.'
    end
    """

    def __init__(self, live: LiveReply) -> None:
        self._live = live
        self._held: list[Delta] = []

    def receive(self, delta: Delta) -> None:
        """Keep a delta until the reply is complete, or its attempt is discarded."""
        if isinstance(delta, StartDelta | DiscardDelta):
            self._held.clear()
        self._held.append(delta)

    def finish(self, reply: Reply) -> None:
        """Write the whole reply."""
        self.release()
        self._live.finish(reply)

    def release(self) -> None:
        """Write what has arrived of a reply that will not be completed."""
        for delta in self._held:
            self._live.receive(delta)
        self._held.clear()


def _by_part(pieces: Iterable[Piece]) -> dict[Part, Piece]:
    """The pieces of each part joined."""
    joined: dict[Part, list[str]] = {}
    ids: dict[Part, str] = {}
    for piece in pieces:
        joined.setdefault(piece.part, []).append(piece.text)
        ids.setdefault(piece.part, piece.id)
    return {part: Piece(part, "".join(texts), ids[part]) for part, texts in joined.items()}


def _is_continued(written: Piece, other: Piece) -> bool:
    """Whether the other piece has the same text and perhaps more; its id may come late, but may not differ."""
    return other.text.startswith(written.text) and written.id in ("", other.id)


# ---- server-sent events ----------------------------------------------------------------------------------------------


Kind: TypeAlias = Literal[
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

_KINDS: dict[Literal["thinking", "text", "call"], Kind] = {
    "thinking": "reasoning_content",
    "text": "output_text",
    "call": "tool_call",
}


def sse(kind: Kind, delta: str = "", id: str = "") -> str:
    r"""One event in wire format.

    >>> sse("output_text", "Hi")
    'event: output_text\ndata: {"id":"","delta":"Hi","type":"output_text"}\n\n'
    """
    # Escaped to ASCII: lone surrogates and terminals without UTF-8 do no harm, and every parser reads it.
    data = json.dumps({"id": id, "delta": delta, "type": kind}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n"


class Render(Protocol):
    """Makes text of an event."""

    def __call__(self, kind: Kind, delta: str = "", id: str = "") -> str: ...


class SseStream:
    """The events of one run, written with `write`; `wire` is the wire of the run's model.

    With `structured` the answer is written once, at the end, as JSON; `brief` leaves out calls and their results. With
    `held` each reply is written when it is complete, for readers that do not know the event `restarted`. `render` makes
    text of each event.
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
                case CallReturned(index=index, text=text) if not self._brief:
                    call = self._calls[index]
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


async def stream_run(
    root: RunHandle, work: Coroutine[Any, Any, Outcome | None], *, structured: bool, brief: bool, wire: str
) -> Outcome | None:
    """The outcome of `work`, its events on stdout, the last in any case; cancelled if stdout is closed."""
    writer = WriterThread(write, stdout_is_closed)
    stream = SseStream(writer.write, structured=structured, brief=brief, wire=wire)
    following = asyncio.ensure_future(stream.follow(root.events()))
    working = asyncio.ensure_future(work)
    reading = asyncio.ensure_future(writer.closed())
    outcome = None
    try:
        await asyncio.wait({working, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            outcome = await working
            if outcome is not None:
                await following
    finally:
        for task in (following, working, reading):
            task.cancel()
        await asyncio.gather(following, working, reading, return_exceptions=True)
        stream.end(outcome)
        await writer.close()
    return outcome


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

    async def gone(self) -> None:
        await self._writer.closed()

    async def close(self) -> None:
        await self._writer.close()


CHECK_SECONDS = 1.0
"""Seconds without output after which a writer checks whether its reader is gone."""


class WriterThread:
    """Writes text from a thread of its own, so that a slow or paused reader does not block the event loop.

    `is_closed` says whether the reader is gone; it is asked while there is nothing to write.

    >>> import asyncio
    >>> async def main() -> list[str]:
    ...     written: list[str] = []
    ...     writer = WriterThread(written.append, lambda: False)
    ...     writer.write("a")
    ...     writer.write("b")
    ...     await writer.close()
    ...     return written
    >>> asyncio.run(main())
    ['a', 'b']
    """

    def __init__(self, write: Callable[[str], None], is_closed: Callable[[], bool]) -> None:
        self._write = write
        self._is_closed = is_closed
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[OSError | None] = self._loop.create_future()
        # A daemon thread: the process may exit although a reader never comes back.
        threading.Thread(target=self._run, name="retinue-outlet", daemon=True).start()

    def write(self, text: str) -> None:
        """Queue text; it is dropped if the reader is gone."""
        self._pieces.put(text)

    async def closed(self) -> None:
        """Wait until nothing can be written any more; raises what writing raised."""
        trouble = await asyncio.shield(self._over)
        if trouble is not None:
            raise trouble

    async def close(self) -> None:
        """Wait until everything is written; raises what writing raised."""
        self._pieces.put(None)
        await self.closed()

    def _run(self) -> None:
        trouble: OSError | None = None
        try:
            while (text := self._next()) is not None:
                self._write(text)
        except OSError as error:
            trouble = error
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._over.set_result, trouble)

    def _next(self) -> str | None:
        """The next text to write; raises `BrokenPipeError` if the reader is gone before there is any."""
        while True:
            try:
                return self._pieces.get(timeout=CHECK_SECONDS)
            except Empty:
                if self._is_closed():
                    raise BrokenPipeError from None
