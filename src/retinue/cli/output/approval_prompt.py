"""Approvers on a terminal: prompt for an answer, or print how to answer from another terminal.

A question without an answer stays open in the store: after Ctrl-C it is asked again when the run is resumed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from retinue.app.call_details import readable_arguments
from retinue.app.engine_types import Supervisor, Unanswered
from retinue.cli.output.approved_calls import ApprovedCall, ApprovedCalls
from retinue.cli.output.format import name_of, one_line, short
from retinue.cli.output.terminal import console, prompt, say, say_styled
from retinue.core.policy import asks_every_time
from retinue.core.run import Approval
from retinue.core.text import clean, plural, short_blanks

MAX_SHOWN = 4000
"""Characters of a call's arguments that a question prints: its beginning and its end."""

SHOWN_AT_END = 1000

MAX_GROUP = 60
"""Characters of a group of calls that a prompt names."""

_STYLES = {"  + ": "green", "  - ": "red"}
"""The colours of a diff, by the beginning of a line: in the column of the signs are signs alone."""

NO_BREAK = "\xa0"
"""A blank at which no line ends."""

MIN_WIDTH = 20
"""Columns that arguments are wrapped to at least."""


class Pauses(Protocol):
    """A progress display that can be paused for a question."""

    def paused(self) -> AbstractContextManager[None]:
        """Write nothing to the terminal for as long as the block lasts."""
        ...

    async def printed(self, turn: int) -> None:
        """Wait until the root's reply of this turn has been printed, if it is shown as it arrives."""


class TerminalApprover:
    """Base of the approvers on a terminal: handles one question at a time, once a display is attached."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._attached = asyncio.Event()
        self._supervisor: Supervisor | None = None
        self._screen: Pauses | None = None

    def attach(self, supervisor: Supervisor, screen: Pauses) -> None:
        """Use this display, for runs of this supervisor."""
        self._supervisor, self._screen = supervisor, screen
        self._attached.set()

    async def __call__(self, question: Approval) -> bool:
        """The user's answer; raises `Unanswered` if there is none."""
        await self._attached.wait()
        async with self._lock:
            assert self._screen is not None
            if not self.name_of(question):  # the words of the reply come before the question about its calls
                await self._screen.printed(question.turn)
            if not self.is_open(question):
                raise Unanswered
            return await self.handle(question, self._screen)

    async def handle(self, question: Approval, screen: Pauses) -> bool:
        raise NotImplementedError

    def is_open(self, question: Approval) -> bool:
        """Whether the run still waits for an answer, and none was given elsewhere."""
        assert self._supervisor is not None
        live = self._supervisor.live(question.run_id)
        return live is not None and any(each.id == question.id for each in live.run.open_questions())

    async def closed(self, question: Approval) -> None:
        assert self._supervisor is not None
        async for _ in self._supervisor.events(question.run_id):
            if not self.is_open(question):
                return

    def name_of(self, question: Approval) -> str:
        """The asking run by its name in the tree: agent, task id and label; empty for the root."""
        assert self._supervisor is not None
        live = self._supervisor.live(question.run_id)
        return "" if live is None or live.run.accepted.parent_id is None else name_of(live.view())

    async def shown(self, question: Approval) -> list[str]:
        """The question in lines; a file is compared with that in the folder where the run works."""
        assert self._supervisor is not None
        folder = await self._supervisor.folder(question.run_id)
        name = self.name_of(question)
        return await asyncio.to_thread(question_lines, question, name=name, workspace=folder)

    def workspace_of(self, question: Approval) -> str:
        """The workspace of the asking run, for which approvals are kept; empty if it is not known."""
        assert self._supervisor is not None
        live = self._supervisor.live(question.run_id)
        return "" if live is None else live.run.run_spec.workspace

    def agent_of(self, question: Approval) -> str:
        """The agent whose policy holds for the asking run."""
        assert self._supervisor is not None
        live = self._supervisor.live(question.run_id)
        return "" if live is None else live.run.run_spec.identity or live.run.accepted.agent

    def needs_asking_every_time(self, question: Approval) -> bool:
        """Whether the run's policy requires an approval for every single call of this tool."""
        assert self._supervisor is not None
        live = self._supervisor.live(question.run_id)
        return live is None or asks_every_time(live.run.policy, question.tool)

    def group_of(self, question: Approval) -> str:
        """The group of calls to which this one belongs; its own arguments if that is not known."""
        assert self._supervisor is not None
        live = self._supervisor.live(question.run_id)
        prepared = None if live is None else live.prepared(question.index)
        return question.arguments if prepared is None else prepared.group


class Announcer(TerminalApprover):
    """Prints how to answer from another terminal, and leaves the question open."""

    async def handle(self, question: Approval, screen: Pauses) -> bool:
        shown = await self.shown(question)
        with screen.paused():
            # Not into a log file: arguments may hold secrets.
            lines = shown if sys.stderr.isatty() else shown[:1]
            say(*lines, _instruction(question))
        raise Unanswered


class Prompter(TerminalApprover):
    """Prompts on stderr and reads the answer from stdin; `always` holds as long as this process lives.

    It holds for one run, and for calls of one tool and group with the same reason: for `git commit`, not for
    `git clean`, and not for the runs below. `project` is kept in a file, and holds for all runs of the agent in the
    folder of the run.
    """

    def __init__(self, approved: ApprovedCalls | None = None) -> None:
        super().__init__()
        self._always: set[tuple[str, str, str, str]] = set()
        self._approved = approved

    async def handle(self, question: Approval, screen: Pauses) -> bool:
        every_time = self.needs_asking_every_time(question)
        group = self.group_of(question)
        alike = (question.run_id, question.tool, group, question.reason)
        workspace = self.workspace_of(question)
        kept = ApprovedCall(workspace, self.agent_of(question), question.tool, group, question.reason)
        approved = self._approved if workspace and not every_time else None
        if not every_time and (alike in self._always or (approved is not None and kept in approved.load())):
            return True
        choices = ["[y]es", "[n]o"]
        if not every_time:
            choices.append(f"[a]lways for {_named(question, group)} in this run")
        if approved is not None:
            choices.append("[p] in this project")
        shown = await self.shown(question)
        with screen.paused():
            for line in shown:
                say_styled(line, _STYLES.get(f"{line} "[:4], ""))
            flush_typed_input()
            while True:
                match (await self._answer(question, choices)).strip().lower():
                    case "y" | "yes":
                        return True
                    case "n" | "no":
                        return False
                    case "a" | "always" if not every_time:
                        self._always.add(alike)
                        return True
                    case "p" | "project" if approved is not None:
                        self._always.add(alike)
                        _keep(approved, kept)
                        return True
                    case _:
                        pass

    async def _answer(self, question: Approval, choices: Sequence[str]) -> str:
        *first, last = _asking(choices)
        say(*first)
        prompt(f"{last} ")
        reading = asyncio.ensure_future(line_from_stdin())
        closing = asyncio.ensure_future(self.closed(question))
        try:
            await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
            line = reading.result() if reading.done() else None
        except asyncio.CancelledError:
            say("")  # the next output starts on a line of its own
            raise
        finally:
            for task in (reading, closing):
                task.cancel()
            await asyncio.gather(reading, closing, return_exceptions=True)
        if not line:
            closed = "answered elsewhere, or not needed any more"
            say("", closed if line is None else _instruction(question))
            raise Unanswered
        return line


def _asking(choices: Sequence[str]) -> list[str]:
    """The question in lines that fit, each choice on one line: the terminal would cut them within a word."""
    text = f"Allow? {', '.join(choice.replace(' ', NO_BREAK) for choice in choices)}:"
    lines = textwrap.wrap(text, max(console(stderr=True).width - 2, MIN_WIDTH), break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def _keep(approved: ApprovedCalls, call: ApprovedCall) -> None:
    try:
        approved.add(call)
    except OSError as error:
        say(f"the approval holds for this run alone: {error}")


def _named(question: Approval, group: str) -> str:
    """What `always` covers: the tool, or a group of its calls."""
    tool = one_line(question.tool, 40)
    if not group:
        return tool
    shown = one_line(group, MAX_GROUP + 1)
    return f"{tool} ({shown})" if len(shown) <= MAX_GROUP else f"{tool} (exactly this)"


def question_lines(question: Approval, *, whole: bool = False, name: str = "", workspace: str = "") -> list[str]:
    """The question in lines: the run, the call with its arguments, and the reason for asking.

    `name` is that of the run in its tree, `workspace` its folder. Of long arguments the beginning and the end are
    shown, unless `whole`.
    """
    path = one_line(question.path, 200)
    asker = f"{name} ({path})" if name else path
    first, *rest = _chopped(f"{asker} wants to call {one_line(question.tool)}")
    return [
        first,
        *(f"    {piece}" for piece in rest),
        *argument_lines(question, whole=whole, workspace=workspace),
        *_wrapped(one_line(question.reason, 400)),
    ]


def argument_lines(question: Approval, *, whole: bool = False, workspace: str = "") -> list[str]:
    """The arguments in indented lines: a diff for an edit or a write, the lines of a command, else JSON."""
    arguments = short_blanks(clean(readable_arguments(question.tool, question.arguments, workspace)))
    if whole or len(arguments) <= MAX_SHOWN:
        return _indented(arguments)
    start, end = arguments[: MAX_SHOWN - SHOWN_AT_END], arguments[-SHOWN_AT_END:]
    left_out = plural(len(arguments) - MAX_SHOWN, "character")
    note = f"  … {left_out} left out here, shown by: retinue approvals {_name_of(question)} …"
    return [*_indented(start), note, *_indented(end)]


def _indented(text: str) -> list[str]:
    """The text in lines that fit: if the terminal wrapped them, text of a model could start a line of its own."""
    lines: list[str] = []
    for line in text.split("\n"):
        # The rest of a line is indented further: in the column of the signs of a diff are signs alone.
        first, *rest = _chopped(line)
        lines += [f"  {first}", *(f"    {piece}" for piece in rest)]
    return lines


def _chopped(line: str) -> list[str]:
    from rich.cells import chop_cells

    return chop_cells(line, _room()) or [""]


def _wrapped(text: str) -> list[str]:
    """Words in indented lines that fit."""
    return textwrap.wrap(text, _room() + 2, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _room() -> int:
    return max(console(stderr=True).width - 5, MIN_WIDTH)


def _name_of(question: Approval) -> str:
    return f"{short(question.run_id)}/{question.turn}/{question.index}"


def _instruction(question: Approval) -> str:
    name = _name_of(question)
    return f"answer with: retinue approve {name}  (or: retinue deny {name})"


def flush_typed_input() -> None:
    """Discard what was typed before the question was printed."""
    try:
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    except (ImportError, OSError, ValueError):
        pass  # no such terminal; a pipe has nothing to discard


async def line_from_stdin() -> str:
    """The next line of the terminal, empty at its end; cancelling it stops reading."""
    loop = asyncio.get_running_loop()
    there: asyncio.Future[None] = loop.create_future()
    fd = sys.stdin.fileno()
    try:
        loop.add_reader(fd, lambda: None if there.done() else there.set_result(None))
    except (NotImplementedError, OSError):
        return await asyncio.to_thread(sys.stdin.readline)
    try:
        await there
    finally:
        loop.remove_reader(fd)
    # A terminal delivers whole lines.
    return os.read(fd, 65536).decode(errors="replace")
