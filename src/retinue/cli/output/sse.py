"""One reply of a model, told while it arrives, and nothing of it twice.

A connection may break in the middle of a reply, and the model is then asked again. What it says the second time is held
against what was told: as long as it is the same, nothing is told; where it goes on, the rest is. If it says something
else, the reply that was told is closed and the other one begins, because what has been told cannot be taken back.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias, assert_never

import msgspec

from retinue.core.events import CallReturned, Event, ReplyReceived, TurnFailed
from retinue.core.messages import CallDelta, Delta, Reply, StartDelta, TextDelta, ThinkingDelta, ToolCall
from retinue.core.run import Outcome

Part: TypeAlias = tuple[Literal["thinking", "text", "call"], int]
"""What is spoken: thoughts, words, or the call of a number."""

THINKING: Part = ("thinking", 0)
TEXT: Part = ("text", 0)


class Piece(NamedTuple):
    """A few characters of a part; those of a call have its id."""

    part: Part
    text: str
    id: str = ""


class Teller(NamedTuple):
    """Where a reply goes: that it begins, what it says, and that it is over."""

    begin: Callable[[str], None]
    say: Callable[[Piece], None]
    close: Callable[[], None]


class LiveReply:
    """What a consumer has been told of one reply; `opening` is how a call's name is written in front of its arguments.

    >>> teller = Teller(lambda id: print("begin", id), lambda piece: print(repr(piece.text)), lambda: print("end"))
    >>> live = LiveReply(teller)
    >>> for delta in (StartDelta("a"), TextDelta("It "), StartDelta("b"), TextDelta("It is "), TextDelta("here.")):
    ...     live.hear(delta)
    begin a
    'It '
    'is '
    'here.'
    >>> for delta in (StartDelta("c"), TextDelta("It was")):
    ...     live.hear(delta)
    end
    begin c
    'It '
    'was'
    """

    def __init__(self, teller: Teller, *, opening: str = "\nFunction: {name} ") -> None:
        self._teller = teller
        self._opening = opening
        self._told: list[Piece] = []
        self._begun = False
        self._attempt: str | None = None
        """The id of the attempt that speaks; None while nobody has said that one begins, and then nothing is live."""
        self._ids: dict[Part, str] = {}
        """Those of the attempt's calls."""
        self._ahead: list[Piece] = []
        """What was told of earlier attempts and this one has not come to yet, the next piece last."""

    def hear(self, delta: Delta) -> None:
        """Tell what is new in this."""
        match delta:
            case StartDelta(id=response_id):
                self._attempt = response_id
                self._ids.clear()
                self._ahead = self._told[::-1]
            case TextDelta(text=text):
                self._go_on(Piece(TEXT, text))
            case ThinkingDelta(text=text):
                self._go_on(Piece(THINKING, text))
            case CallDelta(index=index, name=name, arguments=arguments, id=call_id):
                part: Part = ("call", index)
                if name:
                    self._ids[part] = call_id
                    self._go_on(Piece(part, self._opening.format(name=name), call_id))
                self._go_on(Piece(part, arguments, self._ids.get(part, "")))
            case _:
                assert_never(delta)

    def finish(self, reply: Reply) -> None:
        """Tell whatever is left of the whole reply, and that it is over."""
        pieces = tuple(self._pieces(reply))
        whole, told = _by_part(pieces), _by_part(self._told)
        if not all(part in whole and _goes_on_with(told[part], whole[part]) for part in told):
            self._give_up()
            told.clear()
        self._begin(reply.response_id)
        known = {part: len(piece.text) for part, piece in told.items()}
        for piece in pieces:
            count = known.get(piece.part, 0)
            known[piece.part] = max(0, count - len(piece.text))
            self._say(piece._replace(text=piece.text[count:]))
        self._teller.close()

    def _pieces(self, reply: Reply) -> Iterator[Piece]:
        yield Piece(THINKING, "".join(thought.text for thought in reply.message.thinking))
        yield Piece(TEXT, reply.message.text)
        for index, call in enumerate(reply.message.calls):
            yield Piece(("call", index), self._opening.format(name=call.name), call.id)
            yield Piece(("call", index), call.arguments, call.id)

    def _go_on(self, piece: Piece) -> None:
        """The attempt says this next; what of it was told before is passed over."""
        if self._attempt is None:
            return
        while piece.text and self._ahead:
            told = self._ahead[-1]
            same = min(len(piece.text), len(told.text))
            if told.part != piece.part or not _goes_on_with(told._replace(text=told.text[:same]), piece):
                self._say_otherwise(self._attempt)
                break
            piece = piece._replace(text=piece.text[same:])
            self._ahead[-1] = told._replace(text=told.text[same:])
            if same == len(told.text):
                self._ahead.pop()
        if piece.text:
            self._begin(self._attempt)
            self._say(piece)

    def _say_otherwise(self, attempt: str) -> None:
        """The attempt has left what was told: close that, and tell the attempt from its own beginning."""
        same = self._told[: -len(self._ahead)]
        last = self._told[len(same)]
        same.append(last._replace(text=last.text[: len(last.text) - len(self._ahead[-1].text)]))
        self._give_up()
        self._begin(attempt)
        for piece in same:
            self._say(piece)

    def _give_up(self) -> None:
        self._teller.close()
        self._begun = False
        self._told = []
        self._ahead = []

    def _begin(self, response_id: str) -> None:
        if not self._begun:
            self._begun = True
            self._teller.begin(response_id)

    def _say(self, piece: Piece) -> None:
        if piece.text:
            self._told.append(piece)
            self._teller.say(piece)


def _by_part(pieces: Iterable[Piece]) -> dict[Part, Piece]:
    """All that is said of each part."""
    said: dict[Part, list[str]] = {}
    ids: dict[Part, str] = {}
    for piece in pieces:
        said.setdefault(piece.part, []).append(piece.text)
        ids.setdefault(piece.part, piece.id)
    return {part: Piece(part, "".join(texts), ids[part]) for part, texts in said.items()}


def _goes_on_with(told: Piece, other: Piece) -> bool:
    """Whether the other says the same and perhaps more; an id may come late, but it may not be another."""
    return other.text.startswith(told.text) and told.id in ("", other.id)


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
