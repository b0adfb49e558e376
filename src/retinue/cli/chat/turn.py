"""One turn of a chat: an input, the words of its answer as they come, and the tree of whoever helps with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from retinue.app.chat.conversation import Conversation
from retinue.app.engine_types import Approver, RunView
from retinue.app.retinue import Retinue
from retinue.cli.chat.screen import ChatScreen
from retinue.cli.follow import tell
from retinue.cli.output.approval_prompt import AtTheTerminal
from retinue.cli.output.format import count, many, money, one_line, tokens
from retinue.cli.output.json_rows import total
from retinue.cli.output.sse import TEXT, LiveReply, Piece, Teller
from retinue.cli.output.terminal import say, stdout_for_answers_alone
from retinue.cli.output.tree_poll import TreeWatch, shown
from retinue.core.events import Event, HistoryCompacted, ReplyReceived, TurnFailed
from retinue.core.messages import CallDelta, Delta, StartDelta, TextDelta, ThinkingDelta
from retinue.core.run import Approval, Outcome

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


STOPPED = "stopped; the chat goes on"


class Floor:
    """Who may speak on the terminal: the person at the prompt, or, while a turn lasts, whoever has a question.

    Runs in the background can have questions at any time. They wait for the next turn: two readers of one terminal
    would each get half of what is typed.
    """

    def __init__(self, caller_spec: AtTheTerminal) -> None:
        self._asker = caller_spec
        self._lock = asyncio.Lock()

    async def __call__(self, question: Approval) -> bool:
        """The person's answer, once they listen."""
        async with self._lock:
            return await self._asker(question)

    def attach(self, retinue: Retinue, screen: ChatScreen) -> None:
        """Questions are put on this screen from now on."""
        self._asker.attach(retinue.supervisor, screen)

    async def take(self) -> None:
        """Nobody asks from now on; waits for the question that is being put."""
        await self._lock.acquire()

    def give(self) -> None:
        """Whoever has a question may ask."""
        self._lock.release()


def with_a_floor(approver: Approver) -> tuple[Approver, Floor | None]:
    """The approver, and the floor that it waits for if it speaks on the terminal."""
    if not isinstance(approver, AtTheTerminal):
        return approver, None
    floor = Floor(approver)
    return floor, floor


def _helped(children: Sequence[RunView]) -> str:
    """A line about those who worked below an answer; the root's own numbers are the whole conversation's."""
    usage, cost = total(children)
    facts = [
        many(len(children), "child run"),
        many(sum(view.turns for view in children), "turn"),
        f"{tokens(usage.input)} in, {count(usage.output)} out",
        *(["cost unknown" if cost is None else money(cost)] if cost != 0 else []),
    ]
    if running := sum(view.outcome is None for view in children):
        facts.append(f"{running} still at work")
    return ", ".join(facts)


@asynccontextmanager
async def _the_floor_is_free(floor: Floor | None, retinue: Retinue, screen: ChatScreen) -> AsyncGenerator[None]:
    """Questions may be put for as long as the block lasts; it ends once the last one is answered."""
    if floor is None:
        yield
        return
    floor.attach(retinue, screen)
    floor.give()
    try:
        yield
    finally:
        await floor.take()


async def take_turn(
    retinue: Retinue,
    conversation: Conversation,
    text: str,
    dialects: tuple[str, ...],
    stop: asyncio.Event,
    *,
    floor: Floor | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> Outcome:
    """Ask, tell the answer while it comes, and say what went wrong; `stop` ends it early."""
    screen = ChatScreen(quiet=quiet, verbose=verbose)
    speech = Speech(screen, verbose=verbose)
    with stdout_for_answers_alone():
        run_id, key = await conversation.begin(text, dialects)
        async with _the_floor_is_free(floor, retinue, screen):
            watch = TreeWatch(retinue.supervisor, run_id, await retinue.tree(run_id))
            try:
                async with shown(watch, screen):
                    outcome = await conversation.answer(key, speech.hear, stop)
            finally:
                screen.close()
    if children := [view for view in screen.rows if view.parent_id is not None]:
        screen.note(_helped(children))
    if outcome.result == "cancelled" and stop.is_set():
        say(STOPPED)
    else:
        tell(run_id, outcome, form="sse")
    return outcome
