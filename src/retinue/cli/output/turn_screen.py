"""The terminal during an answer: its text on stdout as it arrives, calls and the tree of runs on stderr.

Both share one terminal. On one that can be redrawn, the text is rendered as Markdown: finished blocks are printed, and
the block that still grows is drawn in an area at the bottom, with the calls in progress and the tree. The area is
removed before anything is printed. Elsewhere the text is written as it is.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import groupby, islice
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec.structs import replace

from retinue.app.engine_types import RunView, Supervisor
from retinue.app.follow import failure_text
from retinue.cli.output.call_line import SIGNS, CallLine, called, returned_line
from retinue.cli.output.format import elapsed, name_of, one_line
from retinue.cli.output.plain_lines import WIDTH, PlainLines, redrawable, refusal_line
from retinue.cli.output.reply import TEXT, THINKING, HeldReply, LiveReply, Piece, ReplyWriter
from retinue.cli.output.terminal import console, markdown_screen, say, write, write_styled
from retinue.core.events import CallReturned, Event, HistoryCompacted, ReplyReceived, TurnFailed
from retinue.core.ids import RunId
from retinue.core.messages import Delta, DiscardDelta, StartDelta, TextDelta, ThinkingDelta, ToolCall
from retinue.core.step import MODEL
from retinue.core.text import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from retinue.cli.output.live import TreeFrames
    from retinue.cli.output.markdown import MarkdownPrinter
    from retinue.cli.output.styled_lines import StyledText

RESTARTED = "(the answer broke off and starts again)"

PATIENCE = 1.0
"""Seconds without text after which a run without children is drawn, too."""

MAX_FAILURES = 10
"""Failed children of one answer that get a line of their own."""

MAX_LINES = 30
"""Lines that are printed with one frame; of more calls that return at the same time, the number is printed."""

CHEAP = 0.003
"""CPU seconds of a frame below which frames are drawn as often as rows come."""

SHARE = 0.015
"""The part of the process's CPU time that frames may take that cost more."""

LONGEST = 1.0
"""Seconds after which such a frame is drawn all the same."""

MAX_CALLS = 5
"""Calls in progress that are shown at the same time."""

MAX_THOUGHT = 2_000
"""Characters of the model's thinking that are kept to be shown."""


class TurnPrinter:
    """Prints the events and deltas of one run on a screen.

    On a terminal the answer is printed as it arrives, and a discarded attempt stays above a line that says so. A reply
    is printed elsewhere when it is complete, because nothing can be taken back there.
    """

    def __init__(self, screen: TurnScreen, *, verbose: bool = False) -> None:
        self._screen = screen
        self._verbose = verbose
        self._has_text = False
        self._reply = self._next_reply()
        self._calls: dict[tuple[int, int], tuple[ToolCall, float]] = {}
        self.printed = ""
        """The text of the last complete reply."""

    def receive(self, event: Event | Delta) -> None:
        """Print what is new in an event or delta."""
        match event:
            case StartDelta() | DiscardDelta() | TextDelta() | ThinkingDelta():
                self._reply.receive(event)
            case ReplyReceived(reply=reply, turn=turn, at=at):
                # Calls are shown when the reply is complete.
                self._reply.finish(replace(reply, message=replace(reply.message, calls=())))
                self._screen.end_text()
                self.printed = reply.message.text
                for index, call in enumerate(reply.message.calls):
                    self._calls[turn, index] = call, at
                    self._screen.begin_call(index, call, verbose=self._verbose)
                self._screen.reply_printed(turn)
                self._reply = self._next_reply()
            case CallReturned(turn=turn, index=index) if (turn, index) in self._calls:
                call, began = self._calls.pop((turn, index))
                self._screen.end_call(index, call, event, event.at - began)
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
        if self._has_text and not self._screen.take_back():
            self._screen.mark(RESTARTED)

    def _write(self, piece: Piece) -> None:
        if piece.part == TEXT:
            self._has_text = True
            self._screen.write(piece.text)
        elif piece.part == THINKING:
            self._screen.think(piece.text)


class _Thinking(NamedTuple):
    """The thinking of the current reply: when it began, its last words, and the number of its characters."""

    began: float
    last: str
    size: int


class FrameCost:
    """The CPU time that frames have taken: a tree of a thousand runs is drawn less often."""

    def __init__(self) -> None:
        self._last = 0.0
        self._spent = 0.0
        self._drawn_at = 0.0

    def is_due(self) -> bool:
        """Whether the next frame shall be drawn now."""
        return (
            self._last < CHEAP
            or time.monotonic() - self._drawn_at >= LONGEST
            or self._spent < SHARE * time.process_time()
        )

    @contextmanager
    def counted(self) -> Generator[None]:
        """Count the CPU time of a frame."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._drawn_at = time.monotonic()
            self._last = time.thread_time() - began
            self._spent += self._last


class Area(Protocol):
    """The lines at the bottom of the terminal; `stays` if they need not be removed before text is printed."""

    stays: bool

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(
        self,
        rows: Sequence[RunView],
        tasks: Mapping[RunId, str] = ...,
        *,
        above: Sequence[Text] = (),
        doing: Callable[[RunView], str] = ...,
    ) -> None:
        """Draw lines, and the tree below them."""


class ScreenPrompt(Protocol):
    """A prompt at which a person types while an answer is printed above it."""

    def area(self, terminal: Console) -> Area:
        """The lines above the prompt."""
        ...

    def suspended(self) -> AbstractContextManager[None]:
        """Leave the terminal to a question for as long as the block lasts."""
        ...


class TurnScreen:
    """The terminal during one answer; `supervisor` drives the runs whose current calls are shown.

    With a `prompt`, the lines at the bottom are drawn above it.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        quiet: bool = False,
        verbose: bool = False,
        plain: bool = False,
        with_text: bool = True,
        prompt: ScreenPrompt | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._quiet = quiet
        self._verbose = verbose
        self._with_text = with_text
        self.on_terminal = sys.stdout.isatty()
        self._began = time.time()
        self._silent_since: float | None = self._began
        """None while text arrives."""
        self._at_line_start = True
        self._paused = False
        self._turn = -1
        """The turn of the last reply that was printed."""
        self._next_turn = asyncio.Event()
        self._held: list[Callable[[], None]] = []
        """What is to be printed after a question."""
        self._prompt = prompt
        self._tree: Area | None = None
        self._tree_frames: TreeFrames | None = None
        self._terminal = None if plain else redrawable()
        self._markdown: MarkdownPrinter | None = None if plain or not with_text else markdown_screen()
        self._plain = PlainLines(verbose=verbose, write=self.note)
        self._thinking: _Thinking | None = None
        self._calls: dict[int, tuple[ToolCall, float]] = {}
        """The root's calls in progress, by index."""
        self._lines: list[Text | list[StyledText]] = []
        """Lines to be printed with the next frame: a run with a thousand children returns as many calls."""
        self._uncounted = 0
        """Calls without a line, because many returned at the same time."""
        self._failed: set[RunId] = set()
        self._frames = FrameCost()
        self._rows: Sequence[RunView] = ()
        """All rows of the last look; few looks are drawn."""

    @property
    def rows(self) -> list[RunView]:
        """The root, and the descendants that worked during the turn."""
        return [_of_this_turn(view, self._began) for view in self._rows if self._belongs(view)]

    # Text

    def write(self, text: str) -> None:
        """Write a piece of the answer."""
        if not self._with_text:
            return
        if self._paused:
            self._held.append(lambda: self.write(text))
            return
        self._end_thinking()
        self._silent_since = None
        if self._markdown is not None:
            self._markdown.add(text)
            return
        self._hide()
        write(text)
        self._at_line_start = text.endswith("\n")

    def end_text(self) -> None:
        """End a text: the next output starts on a line of its own."""
        if self._paused:
            self._held.append(self.end_text)
            return
        self._end_thinking()
        if self._markdown is not None and self._markdown.is_unfinished:
            self._flush_lines()
            self._hide()
            write_styled(self._markdown.end())
        if not self._at_line_start:
            write("\n")
            self._at_line_start = True
        if self._silent_since is None:
            self._silent_since = time.time()

    def take_back(self) -> bool:
        """Discard the text since the last `end_text`; False if a part of it has been printed."""
        return self._markdown is not None and self._markdown.take_back()

    def mark(self, line: str) -> None:
        """Write a line among the text, in a quiet chat too."""
        self.end_text()
        self._flush_lines()
        self._hide()
        write(f"{line}\n")

    def think(self, text: str) -> None:
        """Show the last words of the model's thinking for as long as it thinks."""
        before = self._thinking or _Thinking(time.time(), "", 0)
        self._thinking = _Thinking(before.began, (before.last + text)[-MAX_THOUGHT:], before.size + len(text))

    def _end_thinking(self) -> None:
        thinking, self._thinking = self._thinking, None
        if thinking is not None and self._terminal is not None:
            took = elapsed(time.time() - thinking.began)
            self.note(f"(thought for {took}, {plural(thinking.size, 'character')})")

    # Lines

    def note(self, line: str) -> None:
        """Print a line about the work."""
        if not self._quiet:
            self._print(line)

    def _print(self, line: str | Text | list[StyledText]) -> None:
        if self._paused:
            self._held.append(lambda: self._print(line))
            return
        if self._terminal is not None:
            from rich.text import Text

            self._lines.append(Text(line, style="dim") if isinstance(line, str) else line)
            return
        self.end_text()
        assert not isinstance(line, list)
        if sys.stderr.isatty():
            from rich.text import Text

            text = Text(line, style="dim") if isinstance(line, str) else line
            console(stderr=True).print(text, soft_wrap=True)
        else:
            say(str(line))

    def _flush_lines(self) -> None:
        """Print the lines that wait; the unfinished block of the answer is drawn below them."""
        lines, self._lines = self._lines, []
        more, self._uncounted = self._uncounted, 0
        if self._terminal is None or not lines:
            return
        self._hide()
        for is_cut, group in groupby(lines, lambda line: isinstance(line, list)):
            if is_cut:
                from retinue.cli.output.styled_lines import StyledLines

                self._terminal.print(StyledLines([line for line in group if isinstance(line, list)]), crop=False)
            else:
                for line in group:
                    self._terminal.print(line)
        if more:
            self._terminal.print(f"(and {plural(more, 'call')} more)", style="dim")

    def warn(self, line: str) -> None:
        """Print a line that matters in a quiet chat, too."""
        from rich.text import Text

        self._print(Text(line, style="red") if sys.stderr.isatty() else line)

    def begin_call(self, index: int, call: ToolCall, *, verbose: bool) -> None:
        """Show a call of the root for as long as it is in progress; without a redrawable terminal, print a line."""
        if self._terminal is not None:
            self._calls[index] = call, time.time()
            return
        arguments = f" {one_line(call.readable)}" if verbose else ""
        self.note(f"-> {one_line(call.name)}{arguments}")

    def end_call(self, index: int, call: ToolCall, returned: CallReturned, seconds: float) -> None:
        """Print the line of a call that has returned."""
        self._calls.pop(index, None)
        if returned.refused is not None and (self._terminal is None or self._quiet):
            self.warn(refusal_line(call, returned))
            return
        if self._terminal is None or self._quiet:
            return
        if len(self._lines) >= MAX_LINES:
            self._uncounted += 1
            return
        line = returned_line(call, returned, seconds)
        if returned.refused is None:
            self._print(_cut_line(line, self._terminal))
            return
        from rich.text import Text

        self._print(Text(line.text(WIDTH, ascii_only=not _is_unicode(self._terminal)), style="red"))

    # Tree

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """Show the tree as it stands now, the root first."""
        self._rows = rows
        if self._paused or not self._frames.is_due():
            return
        with self._frames.counted():
            self._draw(tasks)

    def _draw(self, tasks: Mapping[RunId, str]) -> None:
        rows = self.rows
        children = [view for view in rows if view.parent_id is not None]
        if self._terminal is not None and not self._quiet:
            self._report_failures(children)
        self._flush_lines()
        if self._markdown is not None and (block := self._markdown.take_finished()):
            self._hide()
            write_styled(block)
        if self._quiet:
            return
        if self._terminal is None:
            if self._silent_since is not None:
                self._plain.show(children, tasks)
            return
        is_writing = self._silent_since is None
        above = list(self._area(self._terminal))
        if any(view.outcome is None for view in children) or (
            not is_writing and time.time() - (self._silent_since or 0.0) > PATIENCE
        ):
            known = {view.run_id: view.task for view in rows}
            self._drawn(self._terminal).show(rows, known, above=above, doing=self._doing)
        elif above:
            self._drawn(self._terminal).show((), above=above)
        else:
            self._remove()

    def _report_failures(self, children: Sequence[RunView]) -> None:
        """Print a line for each child that has failed since the last look, up to a number."""
        for view in children:
            outcome = view.outcome
            if outcome is None or outcome.ok or outcome.result == "cancelled" or view.run_id in self._failed:
                continue
            self._failed.add(view.run_id)
            if len(self._failed) <= MAX_FAILURES:
                from rich.text import Text

                assert self._terminal is not None
                sign = SIGNS[not _is_unicode(self._terminal)]["bad"]
                reason = one_line(f"{sign} {name_of(view)}: {failure_text(outcome)}", WIDTH)
                self._print(Text(reason, style="red"))

    def _area(self, terminal: Console) -> Iterator[Text]:
        """The lines above the tree: the unfinished block, thinking, calls in progress, and a pause."""
        from rich.text import Text

        if self._markdown is not None:
            yield from self._markdown.preview(max(1, terminal.height // 2))
        width = terminal.width
        if self._thinking is not None:
            words = " ".join(self._thinking.last.split())
            yield Text(_last(f"thinking: {words}", width), style="dim italic", no_wrap=True)
        signs = SIGNS[not _is_unicode(terminal)]
        for call, began in islice(self._calls.values(), MAX_CALLS):
            name, arguments = called(call)
            took = elapsed(time.time() - began)
            room = max(1, width - len(name) - len(took) - 6)
            text = f"{signs['busy']} {name}  {one_line(arguments, room)}  {took}"
            yield Text(text[:width], style="cyan", no_wrap=True)
        if len(self._calls) > MAX_CALLS:
            yield Text(
                f"{signs['busy']} {plural(len(self._calls) - MAX_CALLS, 'call')} more", style="cyan", no_wrap=True
            )
        if self._rows and (pause := self._pause(self._rows[0].run_id)):
            yield Text(one_line(pause, width), style="yellow", no_wrap=True)

    def _pause(self, run_id: RunId) -> str:
        live = self._supervisor.live(run_id)
        if live is None or live.pause is None:
            return ""
        left = max(0.0, live.pause.until - asyncio.get_running_loop().time())
        return f"waits {left:.0f} s, then tries again: {live.pause.error}"

    def _doing(self, view: RunView) -> str:
        """The current call of a descendant, or why it waits; those of the root are above the tree."""
        if view.parent_id is None:
            return ""
        live = self._supervisor.live(view.run_id)
        if live is None:
            return ""
        if live.pause is not None:
            return self._pause(view.run_id)
        indices = sorted(index for index in live.in_flight if index != MODEL)
        if not indices:
            return ""
        if indices[0] >= len(live.run.open):
            return ""
        name, arguments = called(live.run.open[indices[0]].call)
        more = f" +{len(indices) - 1}" if len(indices) > 1 else ""
        return f"{name} {arguments}{more}"

    def reply_printed(self, turn: int) -> None:
        """Say that the reply of this turn is on the screen."""
        self._turn = turn
        self._next_turn.set()

    async def printed(self, turn: int) -> None:
        """Wait until the root's reply of this turn has been printed; that of a resumed run was printed before."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self._turn < turn:
                    self._next_turn.clear()
                    await self._next_turn.wait()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave the terminal to a question for as long as the block lasts; what comes meanwhile is printed after it."""
        self.end_text()
        self._flush_lines()
        self._remove()
        self._paused = True
        try:
            with self._prompt.suspended() if self._prompt is not None else nullcontext():
                yield
        finally:
            self._paused = False
            held, self._held = self._held, []
            for act in held:
                act()

    def close(self) -> None:
        """Remove the area, and leave the cursor at the start of a line."""
        self.end_text()
        if (more := len(self._failed) - MAX_FAILURES) > 0:
            self.note(f"and {more} more failed")
            self._failed.clear()
        self._flush_lines()
        self._remove()

    def _belongs(self, view: RunView) -> bool:
        return view.parent_id is None or view.ended_at is None or view.ended_at >= self._began

    def _drawn(self, terminal: Console) -> Area:
        if self._tree is None:
            from retinue.cli.output.live import LiveTree, TreeFrames

            if self._markdown is None:
                self.end_text()
            self._tree_frames = self._tree_frames or TreeFrames(terminal, verbose=True)
            self._tree = (
                LiveTree(terminal, frames=self._tree_frames) if self._prompt is None else self._prompt.area(terminal)
            )
            self._tree.__enter__()
        return self._tree

    def _hide(self) -> None:
        """Remove the area, if nothing can be printed while it is there."""
        if self._tree is not None and not self._tree.stays:
            self._remove()

    def _remove(self) -> None:
        if self._tree is not None:
            self._tree.__exit__(None, None, None)
            self._tree = None


def _is_unicode(terminal: Console) -> bool:
    return terminal.encoding.lower().startswith("utf")


def _cut_line(line: CallLine, terminal: Console) -> list[StyledText]:
    """The parts of a line about a call, in the width of the terminal."""
    from retinue.cli.output.styled_lines import cut_line

    sign, name, arguments, result = line.parts(terminal.width, ascii_only=not _is_unicode(terminal))
    parts = [(sign, "green" if line.kind == "good" else "red"), (f" {name}", "bold")]
    parts += [(f"  {arguments}", "dim")] if arguments else []
    parts += [(f"  {result}", "dim" if line.kind == "good" else "red")] if result else []
    return cut_line(parts, terminal.width)


def _last(text: str, width: int) -> str:
    """The end of a line."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def _of_this_turn(view: RunView, began: float) -> RunView:
    """A keep-alive root with the start of this turn, so that its time is that of the answer."""
    return view if view.parent_id is not None else replace(view, started_at=began)
