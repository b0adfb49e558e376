"""The prompt of a chat on a terminal: an input can be edited at any time, also while an answer is printed above it.

prompt_toolkit reads the keys and draws the lines at the bottom, on every platform: what is at work, the inputs that
wait, and the input that is being typed. Everything else that is written to the terminal meanwhile is printed above
them. Only the main thread draws; the thread of the event loop sets what is drawn.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import Any, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, get_app, in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style as PromptStyle
from rich.console import Console
from rich.style import Style
from rich.text import Text

from retinue.app.engine_types import RunView
from retinue.cli.chat.commands import COMMANDS
from retinue.cli.chat.input import BLOCK, MORE, PROMPT, HistoryFile, is_continued
from retinue.cli.event_loop import exit_now, undone_at_exit
from retinue.cli.output.format import one_line
from retinue.cli.output.live import NO_TASKS, TreeFrames
from retinue.cli.output.terminal import INTERRUPTED, write_styled
from retinue.core.ids import RunId
from retinue.core.text import clean

MENU = 8
"""Lines for a menu of completions."""

MAX_QUEUED = 100
"""Inputs that can wait for the end of an answer."""

LEAVING = "leaves after this answer"

STYLES = [
    ("sign", "bold"),
    ("waiting", "dim"),
    # The menu has the colours of the terminal: those of prompt_toolkit are grey on grey on a light one.
    ("completion-menu", "noinherit"),
    ("completion-menu.completion", "noinherit"),
    ("completion-menu.completion.current", "noinherit reverse"),
    ("completion-menu.meta.completion", "noinherit dim"),
    ("completion-menu.meta.completion.current", "noinherit reverse"),
    ("scrollbar.background", "noinherit"),
    ("scrollbar.button", "noinherit reverse"),
]


class Editor:
    """Reads whole inputs; `during` reads while an answer is printed, and what is entered then waits for `line`.

    Enter sends the input. Alt-Enter begins a new line, and so does Enter after a backslash and in a block of triple
    quotes. Ctrl-C clears the line, and stops the answer during one.
    """

    def __init__(self, history: HistoryFile, *, agents: Sequence[str], models: Sequence[str], plain: bool) -> None:
        self._file = history
        self._history = _InputHistory(history)
        self._plain = plain
        self._queue: list[str | None] = []
        """Inputs that were entered during an answer; None leaves the chat."""
        self._given_back: list[str] = []
        """Inputs that waited when Ctrl-C stopped the answer: they come back into the line."""
        self._typed = Document()
        """What is typed and not entered yet."""
        self._stop: Callable[[], object] | None = None
        """Stops the current answer."""
        self._presses = 0
        self._interrupted = False
        self._interrupts_next = False
        """Whether Ctrl-C arrived between two prompts; the next one receives it."""
        self._frame: StyleAndTextTuples = []
        self._above = _AbovePrompt()
        self._session: PromptSession[str | None] = PromptSession(
            self._message,
            history=self._history,
            completer=InputCompleter(agents, models),
            complete_while_typing=Condition(_completes_while_typing),
            reserve_space_for_menu=MENU,
            multiline=True,
            prompt_continuation=[("class:sign", MORE)],
            key_bindings=self._bindings(),
            enable_history_search=False,
            enable_suspend=True,
            erase_when_done=True,
            color_depth=ColorDepth.DEPTH_1_BIT if plain else ColorDepth.DEPTH_4_BIT,
            style=PromptStyle([] if plain else STYLES),
        )
        # A terminal that does not report the position of its cursor is no reason for a warning.
        self._session.app.renderer.cpr_not_supported_callback = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None

    # Input

    def line(self, prompt: str) -> str | None:
        """The next input: one that waits, or the next that is entered; None to leave, Ctrl-C raises."""
        self._interrupted = False
        text = self._queue.pop(0) if self._queue else asyncio.run(self._read())
        if self._interrupted:
            raise KeyboardInterrupt
        if text is not None:
            self._print_input(text)
        return text

    def typed(self) -> str:
        """What is in the line."""
        return self._session.default_buffer.text

    def remember(self, text: str) -> None:
        """Add an input to the history."""
        if self._file.add(text):
            self._history.append_string(text)

    def interrupt(self) -> None:
        """Do what Ctrl-C does; called by the handler of SIGINT."""
        if self._loop is None:
            self._interrupts_next = True
        else:
            self._loop.call_soon_threadsafe(self._interrupt)

    @contextmanager
    def keeping_keys(self) -> Generator[None]:
        """Keep keys that are pressed between two prompts for the next one, without an echo, while the block lasts.

        A terminal that delivers lines would hold them back, and would take Ctrl-D as the end of its input. Ctrl-C stays
        a signal.
        """
        terminal = sys.stdin.fileno()
        with undone_at_exit(_read_by_key(terminal)):
            yield

    def printing_above(self) -> AbstractContextManager[None]:
        """Print what is written to the terminal above the prompt for as long as the block lasts."""
        return self._above.patched()

    def during(self, work: Future[Any], stop: Callable[[], object]) -> None:
        """Read inputs until `work` is done; Ctrl-C calls `stop`, and a second one ends the process."""
        self._stop, self._presses, self._frame = stop, 0, []
        try:
            left = asyncio.run(self._read_during(work))
        finally:
            self._stop, self._frame = None, []
        if left:
            exit_now(INTERRUPTED)
        if self._given_back:
            text = "\n".join([*self._given_back, *filter(None, [self._typed.text])])
            self._given_back.clear()
            self._typed = Document(text, len(text))

    async def _read(self) -> str | None:
        self._loop = asyncio.get_running_loop()
        try:
            text = await self._session.prompt_async(
                default=self._typed, handle_sigint=False, pre_run=self._receive_interrupt
            )
        finally:
            self._loop = None
            self._typed = Document()
        return text

    async def _read_during(self, work: Future[Any]) -> bool:
        """Whether the process shall end."""
        self._loop = loop = asyncio.get_running_loop()
        app = self._session.app
        drawn: asyncio.Future[None] = loop.create_future()

        def begin() -> None:
            self._above.attach(loop, app)
            drawn.set_result(None)
            self._receive_interrupt()

        prompting = asyncio.ensure_future(
            self._session.prompt_async(default=self._typed, handle_sigint=False, pre_run=begin)
        )
        ended: asyncio.Future[None] = loop.create_future()
        work.add_done_callback(lambda _: _set(ended, loop))
        try:
            await asyncio.wait({prompting, drawn}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({prompting, ended}, return_when=asyncio.FIRST_COMPLETED)
            self._typed = self._session.default_buffer.document
            if not (prompting.done() or app.is_done):
                app.exit(result=None)
            await prompting
        finally:
            self._above.detach()
            self._loop = None
            ended.cancel()
        return not work.done()

    def _print_input(self, text: str) -> None:
        lines = clean(text).split("\n")
        bold, end = ("", "") if self._plain else ("\x1b[1m", "\x1b[0m")
        shown = [f"{bold}{PROMPT if number == 0 else MORE}{end}{line}\n" for number, line in enumerate(lines)]
        write_styled("".join(shown))

    # Keys

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        @keys.add("c-j")  # what Enter was while the terminal delivered lines
        def _(event: KeyPressEvent) -> None:
            self._enter(event)

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            self._interrupt()

        @keys.add("c-d", filter=Condition(lambda: not get_app().current_buffer.text))
        def _(event: KeyPressEvent) -> None:
            if self._stop is None:
                event.app.exit(result=None)
            elif None not in self._queue:
                self._queue.append(None)

        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
            if not buffer.text.startswith("/"):
                return  # the name of a file is taken, and the input goes on
        text = _without_quotes(buffer.text)
        document = buffer.document
        if text is not None and document.is_cursor_at_the_end and is_continued(document.current_line):
            buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
            return
        if text is None:
            buffer.insert_text("\n")
        elif self._stop is None:
            event.app.exit(result=text)
        elif text.strip() and len(self._queue) < MAX_QUEUED:
            buffer.reset()
            self._queue.append(text)

    def _receive_interrupt(self) -> None:
        """At the beginning of a prompt: the Ctrl-C that came before it."""
        if self._interrupts_next:
            self._interrupts_next = False
            asyncio.get_running_loop().call_soon(self._interrupt)

    def _interrupt(self) -> None:
        app = self._session.app
        if self._stop is not None:
            self._presses += 1
            if self._presses == 1:  # a stopped answer does not start the next one
                self._given_back = [text for text in self._queue if text is not None]
                self._queue.clear()
                self._stop()
            elif self._above.is_suspended:
                exit_now(INTERRUPTED)
            elif not app.is_done:
                app.exit(result=None)
        elif self.typed():
            self._session.default_buffer.reset()
        elif app.future is not None and not app.is_done:
            self._interrupted = True
            app.exit(result=None)

    # Lines at the bottom

    def _message(self) -> StyleAndTextTuples:
        waiting = [f"next: {one_line(text, 70)}" if text is not None else LEAVING for text in self._queue]
        return [*self._frame, *(("class:waiting", f"{line}\n") for line in waiting), ("class:sign", PROMPT)]

    def area(self, terminal: Console) -> PromptArea:
        """The lines above the prompt, for the display of one answer on this terminal."""
        return PromptArea(self, terminal)

    def draw(self, frame: StyleAndTextTuples) -> None:
        """Draw these lines above the prompt; from any thread."""
        self._frame = frame
        self._session.app.invalidate()

    def suspended(self) -> AbstractContextManager[None]:
        """Leave the terminal to a question for as long as the block lasts; from the other thread."""
        return self._above.suspended()


def _read_by_key(terminal: int) -> Callable[[], None]:
    """Have a terminal deliver single keys without an echo; the result restores it."""
    try:
        import termios
    except ImportError:
        return lambda: None  # Windows keeps keys by itself
    before = termios.tcgetattr(terminal)
    by_key = [*before[:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]
    termios.tcsetattr(terminal, termios.TCSANOW, by_key)

    def restore() -> None:
        with suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(terminal, termios.TCSANOW, before)

    return restore


def _set(ended: asyncio.Future[None], loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))


def _without_quotes(text: str) -> str | None:
    """An input without the lines of triple quotes around it; None if the block is not closed yet.

    >>> _without_quotes(f"{BLOCK}\\na\\nb\\n{BLOCK}"), _without_quotes(f"{BLOCK}\\na"), _without_quotes("a")
    ('a\\nb', None, 'a')
    """
    first, *lines = text.split("\n")
    if first.strip() != BLOCK:
        return text
    if not lines or lines[-1].strip() != BLOCK:
        return None
    return "\n".join(lines[:-1])


def _completes_while_typing() -> bool:
    """Whether completions are shown without Tab: for commands and files."""
    before = get_app().current_buffer.document.text_before_cursor
    return before.startswith("/") or before.rpartition(" ")[2].startswith("@")


class _InputHistory(History):
    """The inputs of the history file; new ones are appended there by `Editor.remember`."""

    def __init__(self, file: HistoryFile) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        """The inputs, the latest first."""
        return reversed(self._file.load())

    def store_string(self, string: str) -> None:
        """Nothing: it is stored already."""


class InputCompleter(Completer):
    """Completes commands and their arguments, `@` with the names of files, and with Tab names of agents."""

    def __init__(self, agents: Sequence[str], models: Sequence[str]) -> None:
        self._agents = agents
        self._arguments = {"/model": models, "/subagents": ("on", "off")}
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """What fits the text before the cursor."""
        before = document.text_before_cursor
        word = before.rpartition(" ")[2].rpartition("\n")[2]
        command, blank, argument = before.partition(" ")
        if word.startswith("@"):
            yield from self._files(word[1:], complete_event)
        elif command == "/export" and blank:
            yield from self._files(argument, complete_event)
        elif before.startswith("/") and not blank:
            for name, (_, about) in COMMANDS.items():
                if f"/{name}".startswith(before):
                    yield Completion(f"/{name}", -len(before), display_meta=about)
        elif command in self._arguments and blank:
            yield from _fitting(self._arguments[command], argument)
        elif word and complete_event.completion_requested:
            yield from _fitting(self._agents, word)

    def _files(self, path: str, complete_event: CompleteEvent) -> Iterable[Completion]:
        return self._paths.get_completions(Document(path, len(path)), complete_event)


def _fitting(names: Iterable[str], beginning: str) -> Iterable[Completion]:
    return (Completion(name, -len(beginning)) for name in names if name.startswith(beginning))


# ---- the terminal above and below ------------------------------------------------------------------------------------


class _AbovePrompt:
    """Standard streams whose text is printed above the prompt, in whole lines, while it is drawn."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._terminal: TextIO = sys.stdout
        self._pending = ""
        self._is_scheduled = False
        self._drawn: tuple[asyncio.AbstractEventLoop, Application[Any]] | None = None
        self._has_begun = threading.Event()
        """Whether the prompt is drawn, was drawn, or will not be."""
        self._has_begun.set()
        self.is_suspended = False

    @contextmanager
    def patched(self) -> Generator[None]:
        """Replace `sys.stdout` and `sys.stderr` for as long as the block lasts."""
        before = sys.stdout, sys.stderr
        self._terminal = sys.stdout
        self._has_begun.clear()
        sys.stdout, sys.stderr = (_Stream(self.write, stream) for stream in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            self._has_begun.set()
            self._print_all()

    def attach(self, loop: asyncio.AbstractEventLoop, app: Application[Any]) -> None:
        """The prompt is drawn from now on."""
        self._drawn = loop, app
        self._has_begun.set()

    def detach(self) -> None:
        """The prompt is gone."""
        self._has_begun.set()
        with self._lock:
            self._drawn = None
            self._print_all()

    def write(self, text: str) -> None:
        """Print a text; from any thread."""
        with self._lock:
            self._pending += text
            if self._drawn is None or self.is_suspended:
                self._print_all()
            elif not self._is_scheduled and "\n" in self._pending:
                self._is_scheduled = True
                self._drawn[0].call_soon_threadsafe(self._print_above)

    def _print_above(self) -> None:
        """In the thread that draws: remove the prompt, print, and have it drawn again."""
        with self._lock:
            self._is_scheduled = False
            if self._drawn is None or self.is_suspended:
                self._print_all()
                return
            whole, end, self._pending = self._pending.rpartition("\n")
            _, app = self._drawn
            app.renderer.erase()
            self._terminal.write(whole + end)
            self._terminal.flush()
            app.invalidate()

    def _print_all(self) -> None:
        text, self._pending = self._pending, ""
        if text:
            self._terminal.write(text)
            self._terminal.flush()

    @contextmanager
    def suspended(self) -> Generator[None]:
        """Remove the prompt, and let the terminal deliver lines, for as long as the block lasts."""
        self._has_begun.wait()  # a prompt that begins now would read the answer to the question
        if self._drawn is None:
            yield
            return
        loop, _ = self._drawn
        entered, leave = threading.Event(), asyncio.Event()

        async def hold() -> None:
            async with in_terminal():
                with self._lock:
                    self.is_suspended = True
                    self._print_all()
                entered.set()
                await leave.wait()
                self.is_suspended = False

        holding = asyncio.run_coroutine_threadsafe(hold(), loop)
        entered.wait()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(leave.set)
            holding.result()


class _Stream(io.TextIOBase):
    """A standard stream that passes its text on; otherwise as the stream that it replaces."""

    def __init__(self, write: Callable[[str], None], stream: TextIO) -> None:
        super().__init__()
        self._write = write
        self._stream = stream

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the terminal."""
        return self._stream.encoding

    def write(self, text: str, /) -> int:
        """Pass a text on."""
        self._write(text)
        return len(text)

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The descriptor of the terminal."""
        return self._stream.fileno()


class PromptArea:
    """The lines above the prompt: they stay when text is printed."""

    stays = True

    def __init__(self, editor: Editor, terminal: Console) -> None:
        self._editor = editor
        self._terminal = terminal
        self._frames = TreeFrames(terminal, verbose=True)

    def __enter__(self) -> PromptArea:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._editor.draw([])

    def show(
        self,
        rows: Sequence[RunView],
        tasks: Mapping[RunId, str] = NO_TASKS,
        *,
        above: Sequence[Text] = (),
        doing: Callable[[RunView], str] = lambda view: "",
    ) -> None:
        """Draw the tree below the lines `above`."""
        height = max(1, self._terminal.size.height * 2 // 3)
        frame = self._frames.frame(rows, tasks, above=above, doing=doing, height=height)
        plain = self._terminal.color_system is None
        self._editor.draw(
            [
                ("" if plain or segment.style is None else _prompt_style(segment.style), segment.text)
                for segment in self._terminal.render(frame, self._terminal.options)
                if not segment.control
            ]
        )


_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "gray")
_ATTRIBUTES = ("bold", "dim", "italic", "underline")


@cache
def _prompt_style(style: Style) -> str:
    """A style of Rich in the words of prompt_toolkit.

    >>> _prompt_style(Style.parse("bold red")), _prompt_style(Style.parse("dim"))
    ('bold fg:ansired', 'dim')
    """
    parts = [name for name in _ATTRIBUTES if getattr(style, name)]
    if style.color is not None and style.color.number is not None and style.color.number < len(_COLOURS):
        parts.append(f"fg:ansi{_COLOURS[style.color.number]}")
    return " ".join(parts)
