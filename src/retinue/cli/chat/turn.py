"""One turn of a chat: an input, the text of its answer on stdout as it arrives, and the tree of runs on stderr.

Both share one terminal. The tree is removed before text is written, and drawn again while no text arrives.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from retinue.app.chat.conversation import Conversation
from retinue.app.engine_types import Approver, RunView
from retinue.app.follow import TreeWatch, polled
from retinue.app.retinue import Retinue
from retinue.cli.options import OutputOptions
from retinue.cli.output.approval_prompt import TerminalApprover
from retinue.cli.output.format import count, money, one_line, tokens, total
from retinue.cli.output.progress import PlainLines, print_outcome, redrawable
from retinue.cli.output.reply import TEXT, HeldReply, LiveReply, Piece, ReplyWriter
from retinue.cli.output.terminal import console, say, stdout_for_answers_alone, write
from retinue.core.events import Event, HistoryCompacted, ReplyReceived, TurnFailed
from retinue.core.ids import RunId
from retinue.core.messages import CallDelta, Delta, DiscardDelta, StartDelta, TextDelta, ThinkingDelta
from retinue.core.run import Approval, Outcome
from retinue.core.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from retinue.cli.output.live import LiveTree

STOPPED = "stopped; the chat continues"
RESTARTED = "(the answer broke off and starts again)"

PATIENCE = 1.0
"""Seconds without text after which a run without children is drawn, too."""


async def take_turn(
    retinue: Retinue,
    conversation: Conversation,
    text: str,
    dialects: tuple[str, ...],
    stop: asyncio.Event,
    *,
    lock: PromptLock | None,
    output: OutputOptions,
) -> Outcome:
    """Send an input, print its answer as it arrives, and print its errors; `stop` ends it early."""
    screen = ChatScreen(quiet=output.quiet, verbose=output.verbose)
    printer = TurnPrinter(screen, verbose=output.verbose)
    with stdout_for_answers_alone():
        run_id, key = await conversation.begin(text, dialects)
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
        f"{tokens(usage.input)} in, {count(usage.output)} out",
        *(["cost unknown" if cost is None else money(cost)] if cost != 0 else []),
    ]
    if running := sum(view.outcome is None for view in children):
        facts.append(f"{running} still at work")
    return ", ".join(facts)


class TurnPrinter:
    """Prints the events and deltas of one turn on a screen.

    On a terminal the answer is printed as it arrives, and a discarded attempt stays above a line that says so. A reply
    is printed elsewhere when it is complete, because nothing can be taken back there.
    """

    def __init__(self, screen: ChatScreen, *, verbose: bool = False) -> None:
        self._screen = screen
        self._verbose = verbose
        self._has_text = False
        self._reply = self._next_reply()

    def receive(self, event: Event | Delta) -> None:
        """Print what is new in an event or delta."""
        match event:
            case StartDelta() | DiscardDelta() | TextDelta() | ThinkingDelta() | CallDelta():
                self._reply.receive(event)
            case ReplyReceived(reply=reply):
                self._reply.finish(reply)
                self._screen.end_text()
                for call in reply.message.calls:
                    arguments = f" {one_line(call.readable)}" if self._verbose else ""
                    self._screen.note(f"-> {one_line(call.name)}{arguments}")
                self._reply = self._next_reply()
            case TurnFailed():
                self._reply.release()
                self._screen.end_text()
                self._reply = self._next_reply()
            case HistoryCompacted():
                self._screen.note("(the history was compacted to fit the model)")
            case _:
                pass

    def close(self) -> None:
        """Print what has arrived of a reply that was stopped."""
        self._reply.release()

    def _next_reply(self) -> LiveReply | HeldReply:
        live = LiveReply(ReplyWriter(self._begin, self._write, close=lambda: None, discard=self._discard))
        return live if self._screen.on_terminal else HeldReply(live)

    def _begin(self, response_id: str) -> None:
        self._has_text = False

    def _discard(self) -> None:
        if self._has_text:
            self._screen.mark(RESTARTED)

    def _write(self, piece: Piece) -> None:
        if piece.part == TEXT:
            self._has_text = True
            self._screen.write(piece.text)


class ChatScreen:
    """The terminal during one turn."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._quiet = quiet
        self._verbose = verbose
        self.on_terminal = sys.stdout.isatty()
        self._began = time.time()
        self._silent_since: float | None = self._began
        """None while text arrives."""
        self._at_line_start = True
        self._paused = False
        self._tree: LiveTree | None = None
        self._terminal = redrawable()
        self._plain = PlainLines(verbose=verbose, write=self.note)
        self.rows: Sequence[RunView] = ()
        """The root, and the descendants that worked during the turn."""

    # Text

    def write(self, text: str) -> None:
        self._hide()
        self._silent_since = None
        write(text)
        self._at_line_start = text.endswith("\n")

    def end_text(self) -> None:
        """End a text: the next output starts on a line of its own."""
        if not self._at_line_start:
            write("\n")
            self._at_line_start = True
        if self._silent_since is None:
            self._silent_since = time.time()

    def mark(self, line: str) -> None:
        """Write a line among the text, in a quiet chat too."""
        self._hide()
        self.end_text()
        write(f"{line}\n")

    def note(self, line: str) -> None:
        if self._quiet:
            return
        self._hide()
        self.end_text()
        if sys.stderr.isatty():
            from rich.text import Text

            console(stderr=True).print(Text(line, style="dim"), soft_wrap=True)
        else:
            say(line)

    # Tree

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        self.rows = [_of_this_turn(view, self._began) for view in rows if self._belongs(view)]
        if self._quiet or self._paused or self._silent_since is None:
            return
        children = [view for view in self.rows if view.parent_id is not None]
        if self._terminal is None:
            self._plain.show(children, tasks)
        elif any(view.outcome is None for view in children) or time.time() - self._silent_since > PATIENCE:
            self._drawn(self._terminal).show(self.rows, tasks)
        else:
            self._hide()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave the terminal to a question for as long as the block lasts."""
        self._hide()
        self.end_text()
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def close(self) -> None:
        """Remove the tree, and leave the cursor at the start of a line."""
        self._hide()
        self.end_text()

    def _belongs(self, view: RunView) -> bool:
        return view.parent_id is None or view.ended_at is None or view.ended_at >= self._began

    def _drawn(self, terminal: Console) -> LiveTree:
        if self._tree is None:
            from retinue.cli.output.live import LiveTree

            self.end_text()
            self._tree = LiveTree(terminal, verbose=self._verbose)
            self._tree.__enter__()
        return self._tree

    def _hide(self) -> None:
        if self._tree is not None:
            self._tree.__exit__(None, None, None)
            self._tree = None


def _of_this_turn(view: RunView, began: float) -> RunView:
    """A keep-alive root with the start of this turn, so that its time is that of the answer."""
    return view if view.parent_id is not None else replace(view, started_at=began)


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

    def attach(self, retinue: Retinue, screen: ChatScreen) -> None:
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
async def _unlocked(lock: PromptLock | None, retinue: Retinue, screen: ChatScreen) -> AsyncGenerator[None]:
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
