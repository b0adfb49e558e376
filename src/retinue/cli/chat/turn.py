"""One turn of a chat: an input, its answer as it arrives, and the questions that its runs ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from retinue.app.chat.conversation import Conversation
from retinue.app.engine_types import Approver, RunView
from retinue.app.follow import TreeWatch, polled
from retinue.app.retinue import Retinue
from retinue.cli.options import OutputOptions
from retinue.cli.output.approval_prompt import TerminalApprover
from retinue.cli.output.format import count, estimate_text, money, tokens_text, total
from retinue.cli.output.plain_lines import Refusals
from retinue.cli.output.progress import print_outcome
from retinue.cli.output.terminal import say, stdout_for_answers_alone
from retinue.cli.output.turn_screen import ScreenPrompt, TurnPrinter, TurnScreen
from retinue.core.attachments import Attachment
from retinue.core.run import Approval, Outcome
from retinue.core.text import plural

STOPPED = "stopped; the chat continues"


async def take_turn(
    retinue: Retinue,
    conversation: Conversation,
    text: str,
    dialects: tuple[str, ...],
    stop: asyncio.Event,
    *,
    lock: PromptLock | None,
    output: OutputOptions,
    prompt: ScreenPrompt | None = None,
    attachments: Sequence[Attachment] = (),
) -> Outcome:
    """Send an input, print its answer as it arrives, and print its errors; `stop` ends it early."""
    screen = TurnScreen(
        retinue.supervisor, quiet=output.quiet, verbose=output.verbose, plain=output.plain, prompt=prompt
    )
    printer = TurnPrinter(screen, verbose=output.verbose)
    refusals = Refusals()
    refusals.attach(lambda at, line: screen.warn(line), of_root=False)
    with stdout_for_answers_alone(), retinue.supervisor.watch_calls(refusals.receive):
        run_id, key = await conversation.begin(text, dialects, attachments)
        async with _unlocked(lock, retinue, screen):
            watch = TreeWatch(retinue.supervisor, run_id, await retinue.tree(run_id))
            try:
                async with polled(watch, screen.show):
                    outcome = await conversation.answer(key, printer.receive, stop)
            finally:
                printer.close()
                screen.close()
    if children := [view for view in screen.rows if view.parent_id is not None]:
        screen.note(_summary(children))
        screen.close()
    if outcome.result == "cancelled" and stop.is_set():
        say(STOPPED)
    else:
        print_outcome(run_id, outcome, "sse")
    return outcome


def _summary(children: Sequence[RunView]) -> str:
    """A line about the children of an answer; the usage of the root is that of the whole conversation."""
    usage, cost = total(children)
    facts = [
        plural(len(children), "child run"),
        plural(sum(view.turns for view in children), "turn"),
        f"{tokens_text(usage.input)} in, {count(usage.output)} out",
        *(["cost unknown" if cost is None else money(cost)] if cost != 0 else []),
    ]
    if running := sum(view.outcome is None for view in children):
        facts.append(f"{running} still at work")
    return "; ".join(filter(None, (", ".join(facts), estimate_text(children))))


class PromptLock:
    """Approver that asks during turns only: at other times the user types at the prompt.

    Background runs can have questions at any time. These wait for the next turn: two readers of one terminal would
    each get half of what is typed.
    """

    def __init__(self, approver: TerminalApprover) -> None:
        self._approver = approver
        self._lock = asyncio.Lock()

    async def __call__(self, question: Approval) -> bool:
        async with self._lock:
            return await self._approver(question)

    def attach(self, retinue: Retinue, screen: TurnScreen) -> None:
        self._approver.attach(retinue.supervisor, screen)

    async def take(self) -> None:
        """Take the terminal for the prompt; waits for the current question."""
        await self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


def prompt_lock(approver: Approver) -> tuple[Approver, PromptLock | None]:
    """The approver, and the lock in front of it if it uses the terminal."""
    if not isinstance(approver, TerminalApprover):
        return approver, None
    lock = PromptLock(approver)
    return lock, lock


@asynccontextmanager
async def _unlocked(lock: PromptLock | None, retinue: Retinue, screen: TurnScreen) -> AsyncGenerator[None]:
    """Allow questions for as long as the block lasts; waits for the last one to be answered."""
    if lock is None:
        yield
        return
    lock.attach(retinue, screen)
    lock.release()
    try:
        yield
    finally:
        await lock.take()
