"""A person's sitting with a model: reads what they say, does what commands ask, and has the rest answered."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from retinue.app.chat.conversation import Conversation
from retinue.app.chat.delegation import Delegation
from retinue.app.chat.open_chats import Presence
from retinue.app.retinue import Retinue
from retinue.cli.chat.commands import Command, Mistake, Prompt, help_lines, understood
from retinue.cli.chat.input import Lines, NotText, Piped, Unclosed, whole_input
from retinue.cli.chat.loop_thread import Room
from retinue.cli.chat.status import Standing, show_agents, show_cost, show_status, show_tools
from retinue.cli.chat.turn import Floor, take_turn
from retinue.cli.event_loop import INTERRUPTED, first_of
from retinue.cli.output.format import many
from retinue.cli.output.terminal import answer, console, say
from retinue.core.errors import RetinueError, StoreError
from retinue.core.run import Outcome

LEAVE_HINT = "(Ctrl-C again or Ctrl-D leaves)"
WIDE = 200
"""Columns where nobody counts them, as in a pipe."""


@dataclass(slots=True, kw_only=True)
class Sitting:
    """Everything that a chat is made of."""

    room: Room
    lines: Lines
    retinue: Retinue
    conversation: Conversation
    delegation: Delegation
    presence: Presence
    model: str
    agent: str | None = None
    tools: tuple[str, ...] | None = None
    floor: Floor | None = None
    quiet: bool = False
    verbose: bool = False
    code: int = 0
    """How the last answer was: 0 for a good one."""

    def hold(self) -> int:
        """Go on until somebody leaves; the exit code: at a terminal 0, of a pipe that of its last answer."""
        waiting_to_leave = False
        while True:
            try:
                with self.room.listening(self.lines.typed):
                    text = whole_input(self.lines)
            except KeyboardInterrupt:
                if isinstance(self.lines, Piped):
                    return INTERRUPTED
                typed = self.room.cleared.strip()
                say("" if typed or waiting_to_leave else f"\n{LEAVE_HINT}")
                if waiting_to_leave and not typed:
                    break
                waiting_to_leave = not typed
                continue
            except (NotText, Unclosed, UnicodeDecodeError) as error:
                self._complain(str(error))
                continue
            waiting_to_leave = False
            if text is None:
                break
            if not self._is_done_with(text):
                break
        return self.code if isinstance(self.lines, Piped) else 0

    def _is_done_with(self, text: str) -> bool:
        """Do what was said; whether the chat goes on."""
        if not text.strip():
            return True
        match understood(text):
            case Command(name="quit"):
                return False
            case Command() as command:
                self._obey(command)
            case Mistake(message=message):
                self._complain(message)
            case Prompt(text=words):
                return self._ask(words)
        return True

    def _ask(self, text: str) -> bool:
        if others := self.room.do(self.presence.news()):
            say(others)
        if news := self.delegation.hear(text):
            say(news)

        async def turn(stop: asyncio.Event) -> Outcome:
            return await take_turn(
                self.retinue,
                self.conversation,
                text,
                self.delegation.dialects,
                stop,
                floor=self.floor,
                quiet=self.quiet,
                verbose=self.verbose,
            )

        try:
            outcome = self.room.do_until_stopped(turn)
        except StoreError:
            raise  # nothing more can be kept: there is no chat without it
        except RetinueError as error:
            self._complain(str(error))
            return True
        self.code = 0 if outcome.ok else 1
        if isinstance(self.lines, Piped) and outcome.reason == "cancelled":
            self.code = INTERRUPTED
            return False
        return True

    def _obey(self, command: Command) -> None:
        match command.name:
            case "help":
                screen = console()
                answer("\n".join(help_lines(screen.width if screen.is_terminal else WIDE)))
            case "status":
                show_status(self._standing(), self.room.do(self.conversation.trees()))
            case "tools":
                self._show_tools()
            case "cost":
                show_cost(self.room.do(self.conversation.trees()))
            case "agents":
                show_agents(self.retinue.agents.values(), self.room.do(self.conversation.trees()))
            case "subagents":
                self._switch(command.argument)
            case "clear":
                self.room.do(self.conversation.clear())
                answer("a new conversation begins")
            case "quit":
                pass

    def _standing(self) -> Standing:
        return Standing(
            model=self.model,
            session=self.retinue.session_id,
            run_id=self.conversation.current,
            agent=self.agent,
            delegates=self.delegation.is_on,
        )

    def _show_tools(self) -> None:
        async def offered() -> None:
            show_tools(self.retinue.offers(agent=self.agent, dialects=self.delegation.dialects, tools=self.tools))

        self.room.do(offered())

    def _switch(self, argument: str) -> None:
        try:
            answer(self.delegation.turn(argument))
        except ValueError as error:
            self._complain(str(error))

    def _complain(self, message: str) -> None:
        say(f"error: {message}")
        if isinstance(self.lines, Piped):
            self.code = 1

    def leave(self) -> None:
        """Close the conversation, and wait for what was to go on without it; Ctrl-C leaves that for later."""
        if notice := self.room.do(self.conversation.close()):
            say(notice)
        at_work = self.conversation.at_work()
        if at_work:
            say(f"waiting for {many(len(at_work), 'run')} in the background; Ctrl-C leaves them to be resumed")

            async def wait(stop: asyncio.Event) -> bool:
                return await first_of(self.retinue.wait(*at_work), stop)

            if not self.room.do_until_stopped(wait):
                say("interrupted; see: retinue runs --all")
        if self.conversation.runs and sys.stdin.isatty() and not self.quiet:
            say(f"go on with: retinue chat --session {self.retinue.session_id}")
