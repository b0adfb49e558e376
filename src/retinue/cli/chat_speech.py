"""Tells a run's replies on a chat's screen while they arrive, nothing of them twice, and which tools are called."""

from __future__ import annotations

from retinue.cli.chat_screen import ChatScreen
from retinue.cli.sse_reply import TEXT, LiveReply, Piece, Teller
from retinue.cli.words import one_line
from retinue.core.events import Event, HistoryCompacted, ReplyReceived, TurnFailed
from retinue.core.messages import CallDelta, Delta, StartDelta, TextDelta, ThinkingDelta

AGAIN = "(the connection broke; the answer begins again)"


class Speech:
    """One turn of a chat, as its events and deltas tell it."""

    def __init__(self, screen: ChatScreen, *, verbose: bool = False) -> None:
        self._screen = screen
        self._verbose = verbose
        self._has_begun = False
        self._spoke = False
        self._reply = self._next_reply()

    def hear(self, what: Event | Delta) -> None:
        """Tell what is new in this."""
        match what:
            case StartDelta() | TextDelta() | ThinkingDelta() | CallDelta():
                self._reply.hear(what)
            case ReplyReceived(reply=reply):
                self._reply.finish(reply)
                self._screen.fall_silent()
                for call in reply.message.calls:
                    arguments = f" {one_line(call.arguments)}" if self._verbose else ""
                    self._screen.note(f"-> {one_line(call.name)}{arguments}")
                self._reply = self._next_reply()
            case TurnFailed():
                self._screen.fall_silent()
                self._reply = self._next_reply()
            case HistoryCompacted():
                self._screen.note("(the conversation was made shorter to fit the model)")
            case _:
                pass

    def _next_reply(self) -> LiveReply:
        self._has_begun = self._spoke = False
        return LiveReply(Teller(begin=self._begin, say=self._say, close=lambda: None))

    def _begin(self, response_id: str) -> None:
        if self._has_begun and self._spoke:
            self._screen.fall_silent()
            self._screen.note(AGAIN)
        self._has_begun = True

    def _say(self, piece: Piece) -> None:
        if piece.part == TEXT:
            self._spoke = True
            self._screen.speak(piece.text)
