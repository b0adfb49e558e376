"""One turn of a chat: an input, the words of its answer as they come, and the tree of whoever helps with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from retinue.app.retinue import Retinue
from retinue.cli.asking import AtTheTerminal
from retinue.cli.chat_conversation import Conversation
from retinue.cli.chat_screen import ChatScreen
from retinue.cli.chat_speech import Speech
from retinue.cli.driving import tell
from retinue.cli.rows import total
from retinue.cli.terminal import say, stdout_for_answers_alone
from retinue.cli.watching import TreeWatch, shown
from retinue.cli.words import count, many, money, tokens
from retinue.core.run import Approval, Outcome
from retinue.engine.parts import Approver
from retinue.engine.view import RunView

STOPPED = "stopped; the chat goes on"


class Floor:
    """Who may speak on the terminal: the person at the prompt, or, while a turn lasts, whoever has a question.

    Runs in the background can have questions at any time. They wait for the next turn: two readers of one terminal
    would each get half of what is typed.
    """

    def __init__(self, asker: AtTheTerminal) -> None:
        self._asker = asker
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
