"""Asks the person at the terminal whether a call may be made, or tells how to answer from another one.

A question that nobody answers here stays open in the store: Ctrl-C leaves it to whoever resumes the run.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeAlias

import msgspec
import typer

from retinue.app.engine_types import Approver, Supervisor, Unanswered
from retinue.cli.output.format import clean, one_line, short
from retinue.cli.output.terminal import console, say
from retinue.core.run import Approval

Mode: TypeAlias = Literal["ask", "wait", "deny"]

MODES: tuple[Mode, ...] = ("ask", "wait", "deny")

MOST_SHOWN = 4000
"""Characters of a call's arguments that a person is shown."""

NARROWEST = 20


class Pauses(Protocol):
    """Progress that makes room for a question."""

    def paused(self) -> AbstractContextManager[None]:
        """Keep off the terminal for as long as the block lasts."""
        ...


def mode_of(said: str | None, *, yes: bool, detach: bool = False) -> Mode:
    """How questions are answered: as the flag says, else at this terminal if there is one, else not at all."""
    if said is not None and said not in MODES:
        raise typer.BadParameter(f"--approvals {said!r}: expected one of: {', '.join(MODES)}")
    if said is not None and yes:
        raise typer.BadParameter("--yes and --approvals exclude each other")
    at_a_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if said == "ask" and detach:
        raise typer.BadParameter("--detach and --approvals ask exclude each other; --approvals wait asks elsewhere")
    if said == "ask" and not at_a_terminal:
        raise typer.BadParameter("--approvals ask needs a terminal on stdin and stderr; try --approvals wait")
    if said is None:
        return "deny" if not at_a_terminal else "wait" if detach else "ask"
    return next(mode for mode in MODES if mode == said)


def approver_for(mode: Mode, *, yes: bool) -> Approver:
    """Who answers questions of this command's runs."""
    if yes:
        return lambda question: True
    return "deny" if mode == "deny" else Asking() if mode == "ask" else Announcing()


class AtTheTerminal:
    """What asking and announcing have in common: they wait until there is a screen, and keep it to themselves."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._attached = asyncio.Event()
        self._supervisor: Supervisor | None = None
        self._screen: Pauses | None = None

    def attach(self, supervisor: Supervisor, screen: Pauses) -> None:
        """Speak on this screen, about runs of this supervisor."""
        self._supervisor, self._screen = supervisor, screen
        self._attached.set()

    async def __call__(self, question: Approval) -> bool:
        """The person's answer; raises `Unanswered` if there is none."""
        await self._attached.wait()
        async with self._turn:
            assert self._screen is not None
            if not self.is_open(question):
                raise Unanswered
            return await self.put(question, self._screen)

    async def put(self, question: Approval, screen: Pauses) -> bool:
        """Put one question while no other is put."""
        raise NotImplementedError

    def is_open(self, question: Approval) -> bool:
        """Whether nobody has answered it elsewhere, and the run still waits for it."""
        assert self._supervisor is not None
        live = self._supervisor.live(question.run_id)
        return live is not None and any(each.id == question.id for each in live.run.open_questions())

    async def closed(self, question: Approval) -> None:
        """Wait until the question is open no more."""
        assert self._supervisor is not None
        async for _ in self._supervisor.events(question.run_id):
            if not self.is_open(question):
                return

    def needs_asking_every_time(self, question: Approval) -> bool:
        """Whether the run's policy wants a person for every single call of this tool."""
        assert self._supervisor is not None
        live = self._supervisor.live(question.run_id)
        return live is None or question.tool in live.run.policy.always_ask


class Announcing(AtTheTerminal):
    """Says how to answer from another terminal, and leaves the question open."""

    async def put(self, question: Approval, screen: Pauses) -> bool:
        """Tell of the question."""
        with screen.paused():
            # A log file is no place for arguments: they may hold secrets.
            lines = described(question) if sys.stderr.isatty() else described(question)[:1]
            say("\n".join([*lines, _how_to_answer(question)]))
        raise Unanswered


class Asking(AtTheTerminal):
    """Asks on stderr and reads the answer from stdin; `always` holds as long as this process lives.

    It holds for calls of the tool that are asked about for the same reason: who lets a shell commit has not said that
    it may delete.
    """

    def __init__(self) -> None:
        super().__init__()
        self._always: set[tuple[str, str]] = set()

    async def put(self, question: Approval, screen: Pauses) -> bool:
        """Ask until the answer can be understood."""
        every_time = self.needs_asking_every_time(question)
        if (question.tool, question.reason) in self._always and not every_time:
            return True
        with screen.paused():
            say("\n".join(described(question)))
            forget_what_was_typed()
            while True:
                match (await self._answer(question, every_time)).strip().lower():
                    case "y" | "yes":
                        return True
                    case "n" | "no":
                        return False
                    case "a" | "always" if not every_time:
                        self._always.add((question.tool, question.reason))
                        return True
                    case _:
                        pass

    async def _answer(self, question: Approval, every_time: bool) -> str:
        always = "" if every_time else f", [a]lways for {one_line(question.tool, 40)} in this run"
        sys.stderr.write(f"Allow? [y]es, [n]o{always}: ")
        sys.stderr.flush()
        reading = asyncio.ensure_future(line_from_stdin())
        closing = asyncio.ensure_future(self.closed(question))
        try:
            await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
            line = reading.result() if reading.done() else None
        except asyncio.CancelledError:
            say("")  # the next words begin on a line of their own
            raise
        finally:
            for task in (reading, closing):
                task.cancel()
            await asyncio.gather(reading, closing, return_exceptions=True)
        if not line:
            words = "answered elsewhere, or not needed any more" if line is None else _how_to_answer(question)
            say(f"\n{words}")
            raise Unanswered
        return line


def described(question: Approval) -> list[str]:
    """The question for a person: who asks, what exactly would be done, and why that needs an answer."""
    arguments = clean(_as_understood(question.arguments))
    if (more := len(arguments) - MOST_SHOWN) > 0:
        arguments = f"{arguments[:MOST_SHOWN]}… and {more} characters more: see retinue approvals --json"
    return [
        f"{one_line(question.path, 200)} wants to call {one_line(question.tool)}",
        *_indented(arguments),
        *([f"  {one_line(question.reason, 400)}"] if question.reason else []),
    ]


def _indented(text: str) -> list[str]:
    """The text in lines that fit: if the terminal broke them, what a model wrote could begin a line of its own."""
    from rich.cells import chop_cells

    room = max(console(stderr=True).width - 3, NARROWEST)
    return [f"  {piece}" for line in text.split("\n") for piece in chop_cells(line, room) or [""]]


def _as_understood(arguments: str) -> str:
    """The arguments as they will be understood: letters can be spelled as numbers, and room can hide what follows."""
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments)).decode()
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments


def _how_to_answer(question: Approval) -> str:
    name = f"{short(question.run_id)}/{question.turn}/{question.index}"
    return f"answer with: retinue approve {name}  (or: retinue deny {name})"


def forget_what_was_typed() -> None:
    """What was typed before the question was there is no answer to it."""
    try:
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    except (ImportError, OSError, ValueError):
        pass  # no such terminal; a pipe has nothing to forget


async def line_from_stdin() -> str:
    """The next line of the terminal, empty at its end; being cancelled, it leaves the terminal alone."""
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
    # A terminal hands over whole lines.
    return os.read(fd, 65536).decode(errors="replace")
