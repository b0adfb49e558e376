"""Write the replies of a model as they stream.

A connection may break in the middle of a reply, and the model is then called again. A live reply writes what arrives
and takes a discarded attempt back; a held reply is written when it is complete, for readers that cannot take back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias, assert_never

from retinue.core.messages import CallDelta, Delta, DiscardDelta, Reply, StartDelta, TextDelta, ThinkingDelta

ReplyPart: TypeAlias = tuple[Literal["thinking", "text", "call"], int]
"""A part of a reply: thinking, text, or the tool call with an index."""

THINKING: ReplyPart = ("thinking", 0)
TEXT: ReplyPart = ("text", 0)


class Piece(NamedTuple):
    """Some characters of a part; a piece of a call has the id of the call."""

    part: ReplyPart
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
        self._ids: dict[ReplyPart, str] = {}
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
                part: ReplyPart = ("call", index)
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


def _by_part(pieces: Iterable[Piece]) -> dict[ReplyPart, Piece]:
    """The pieces of each part joined."""
    joined: dict[ReplyPart, list[str]] = {}
    ids: dict[ReplyPart, str] = {}
    for piece in pieces:
        joined.setdefault(piece.part, []).append(piece.text)
        ids.setdefault(piece.part, piece.id)
    return {part: Piece(part, "".join(texts), ids[part]) for part, texts in joined.items()}


def _is_continued(written: Piece, other: Piece) -> bool:
    """Whether the other piece has the same text and perhaps more; its id may come late, but may not differ."""
    return other.text.startswith(written.text) and written.id in ("", other.id)
