"""The loop of a chat: read an input, run a command or answer it, until the user leaves."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.app.chat.conversation import Conversation, EarlierChat, earlier_chat
from retinue.app.chat.delegation import DelegationSwitch
from retinue.app.chat.open_chats import OpenChats
from retinue.app.chat.person_calls import PersonCalls
from retinue.app.follow import unless_stopped
from retinue.app.launch.start import Launch, LaunchOptions, prepare
from retinue.app.open import default_home
from retinue.app.retinue import Retinue
from retinue.cli.chat import commands
from retinue.cli.chat.attachments import MAX_FILES, TextAttachment, named_files, with_attachments
from retinue.cli.chat.input import FILE, HistoryFile, InvalidLine, Lines, Piped, Unclosed, lines_of_stdin, whole_input
from retinue.cli.chat.loop_thread import LoopThread, loop_thread
from retinue.cli.chat.turn import STOPPED, PromptLock, prompt_lock, take_turn
from retinue.cli.event_loop import exit_now
from retinue.cli.options import ApprovalOptions, OutputOptions
from retinue.cli.output.format import moment, one_line
from retinue.cli.output.plain_lines import redrawable
from retinue.cli.output.progress import approver_for
from retinue.cli.output.terminal import INTERRUPTED, answer, answer_lines, console, say, say_text, say_wrapped
from retinue.cli.runs.export import WRITERS
from retinue.cli.runs.html_page import ExportedRun
from retinue.config.settings import Settings
from retinue.core.agent import ToolSpec
from retinue.core.attachments import Attachment as Media
from retinue.core.attachments import described
from retinue.core.errors import RetinueError, StoreError
from retinue.core.ports import ToolResult
from retinue.core.run import Outcome
from retinue.core.text import plural

if TYPE_CHECKING:
    from retinue.cli.chat.editor import Editor

LEAVE_HINT = "(press Ctrl-C again, or Ctrl-D, to leave)"
NOTHING_YET = "no input was sent yet"
NOT_SHARED = "neither chat sees the input of the other"
WIDE = 200
"""Columns of help in a pipe."""


def run_chat(
    settings: Settings,
    options: LaunchOptions,
    delegation: DelegationSwitch,
    approval: ApprovalOptions,
    output: OutputOptions,
) -> int:
    """Chat until the user leaves; the exit code."""
    with loop_thread() as thread:
        with thread.interruptible(str):  # finding a model server may take a while
            launch = thread.run(prepare(settings, options))
        code = _chat(thread, launch, delegation, approval, output)
    if thread.cannot_close:
        exit_now(code)
    return code


def _chat(
    thread: LoopThread, launch: Launch, delegation: DelegationSwitch, approval: ApprovalOptions, output: OutputOptions
) -> int:
    if not output.quiet:
        say(str(launch.model_choice))
    for warning in launch.warnings():
        say_wrapped(f"warning: {warning}")
    approver, lock = prompt_lock(approver_for(approval))
    if lock is not None:
        thread.run(lock.take())
    retinue = launch.open(approvals=approver)
    thread.run(retinue.__aenter__())
    open_chats = OpenChats(retinue)
    try:
        thread.run(_offered(retinue, launch, delegation))  # an unknown tool is an error now, not with the first input
        earlier = thread.run(_look_back(retinue, launch.options, open_chats, quiet=output.quiet))
        history = HistoryFile(default_home() / FILE)
        prompt = _editor(history, retinue, launch, output)
        repl = Repl(
            thread=thread,
            lines=prompt or lines_of_stdin(history),
            prompt=prompt,
            retinue=retinue,
            launch=launch,
            conversation=Conversation(retinue, launch, earlier),
            delegation=delegation,
            open_chats=open_chats,
            lock=lock,
            output=output,
            person=PersonCalls(retinue, launch),
        )
        with prompt.keeping_keys() if prompt else nullcontext():
            code = repl.run()
        repl.leave()
        return code
    finally:
        thread.run(open_chats.unregister())
        thread.run(retinue.__aexit__(None, None, None))


def _editor(history: HistoryFile, retinue: Retinue, launch: Launch, output: OutputOptions) -> Editor | None:
    """The prompt on a terminal that can be redrawn; None elsewhere."""
    if output.plain or not (sys.stdin.isatty() and sys.stdout.isatty()) or redrawable() is None:
        return None
    from retinue.cli.chat.editor import Editor

    choice = launch.model_choice
    models = [f"{each.name}:" for each in choice.providers]
    return Editor(
        history,
        agents=list(retinue.agents),
        models=[choice.full_name, *models],
        plain=bool(os.environ.get("NO_COLOR")),
    )


async def _offered(retinue: Retinue, launch: Launch, delegation: DelegationSwitch) -> tuple[ToolSpec, ...]:
    """The tools that the model is offered; raises for an unknown one."""
    return retinue.offers(
        agent=launch.options.agent, dialects=delegation.dialects, tools=launch.tools, ceiling=launch.has_ceiling
    )


async def _look_back(
    retinue: Retinue, options: LaunchOptions, open_chats: OpenChats, *, quiet: bool
) -> EarlierChat | None:
    """The earlier chat of the session; prints a line about it, and about other processes that have it open."""
    if not quiet and sys.stdin.isatty():
        say("/help lists the commands; Ctrl-D leaves")
    is_shared = await open_chats.register()
    earlier = None if options.session is None else await earlier_chat(retinue)
    name = retinue.session_id
    if earlier is None:
        if is_shared:
            say(f"warning: session {name} is open in another process; {NOT_SHARED}")
        return None
    last = earlier.last
    if not quiet:
        since = moment(last.ended_at or last.started_at)
        say(f"continuing session {name}: {plural(earlier.messages, 'message')}, last run {last.run_id} of {since}")
    if last.state == "interrupted" and earlier.is_answering:
        say(
            "its last answer was interrupted: the next input continues without it; to finish it, leave and run: "
            f"retinue runs resume {last.run_id}"
        )
    elif is_shared or last.state not in ("interrupted", "ended"):
        say(
            f"warning: session {name} is open in another process; this chat continues from the messages so far, and "
            f"from now on {NOT_SHARED}"
        )
    return earlier


async def _done(task: asyncio.Future[ToolResult]) -> None:
    await task


@dataclass(slots=True, kw_only=True)
class Repl:
    """The parts of one chat, and its loop."""

    thread: LoopThread
    lines: Lines
    retinue: Retinue
    launch: Launch
    conversation: Conversation
    delegation: DelegationSwitch
    open_chats: OpenChats
    lock: PromptLock | None
    output: OutputOptions
    person: PersonCalls
    prompt: Editor | None = None
    """The prompt of a terminal that can be redrawn, on which a person types during answers, too; also `lines`."""
    outputs: list[TextAttachment] = field(default_factory=list[TextAttachment])
    """What goes along with the next input: the output of commands, and notes for the model."""
    code: int = 0
    """The exit code of the last answer."""

    def run(self) -> int:
        """Loop until the user leaves; the exit code: 0 on a terminal, that of the last answer in a pipe."""
        waiting_to_leave = False
        while True:
            try:
                text = self._next()
            except KeyboardInterrupt:
                if isinstance(self.lines, Piped):
                    return INTERRUPTED
                typed = self.thread.cleared.strip()
                say(*([""] if typed or waiting_to_leave else ["", LEAVE_HINT]))
                if waiting_to_leave and not typed:
                    break
                waiting_to_leave = not typed
                continue
            except (InvalidLine, Unclosed, UnicodeDecodeError) as error:
                self._print_error(str(error))
                continue
            waiting_to_leave = False
            if text is None or not self._handle(text):
                break
        return self.code if isinstance(self.lines, Piped) else 0

    def _next(self) -> str | None:
        """The next input; None to leave."""
        if self.prompt is not None:
            with self.thread.interrupting(self.prompt.interrupt):
                return whole_input(self.prompt)
        with self.thread.interruptible(self.lines.typed):
            return whole_input(self.lines)

    def _handle(self, text: str) -> bool:
        """Handle an input; whether the chat goes on."""
        if not text.strip():
            return True
        match commands.parse_input(text, by_hand=self.by_hand):
            case commands.Command(name="quit"):
                return False
            case commands.Command() as command:
                self._run_command(command)
            case commands.ShellCommand(text=shell_command):
                self._run_shell_command(shell_command)
            case commands.Mistake(message=message):
                self._print_error(message)
            case commands.PromptLine(text=prompt):
                return self._answer(*self._with_attachments(prompt))
        return True

    @property
    def by_hand(self) -> bool:
        """Whether a person types the inputs: only then they may name files and shell commands."""
        return not isinstance(self.lines, Piped)

    def _with_attachments(self, text: str) -> tuple[str, list[Media]]:
        """The input with the files that it names, and with what waits for the next input; and the images it names."""
        attachments, self.outputs = self.outputs, []
        media: list[Media] = []
        names = named_files(text) if self.by_hand else []
        for name in names[:MAX_FILES]:
            result = self.thread.run(self.person.read_file(name))
            if result.failed:
                if "." in name or "/" in name:  # other words with @ are names of people, or decorators of code
                    say(f"note: @{name} is sent as it is: {result.text}")
                continue
            if result.attachments:
                media += result.attachments
                say(f"added {described(result.attachments)}")
                continue
            attachments.append(TextAttachment("file", name, result.text))
            say(f"added {name} ({plural(len(result.text.splitlines()), 'line')})")
        if len(names) > MAX_FILES:
            say(f"note: of {len(names)} files, the first {MAX_FILES} are added")
        return with_attachments(text, attachments), media

    def _run_shell_command(self, command: str) -> None:
        """Run a command of the person, print its output, and keep it for the next input."""

        async def run(stop: asyncio.Event) -> ToolResult | None:
            working = asyncio.ensure_future(self.person.run_command(command))
            return working.result() if await unless_stopped(_done(working), stop) else None

        result = self.thread.run_stoppable(run)
        if result is None:
            say(STOPPED)
            return
        (say_text if result.failed else answer)(result.text)
        self.outputs.append(TextAttachment("shell", command, result.text))

    def _answer(self, text: str, media: Sequence[Media] = ()) -> bool:
        """Answer an input; whether the chat goes on."""
        if self.thread.run(self.open_chats.has_new()):
            say(f"warning: session {self.retinue.session_id} was opened by another process as well; {NOT_SHARED}")
        if message := self.delegation.enable_by(text):
            say(message)

        async def turn(stop: asyncio.Event) -> Outcome:
            dialects = self.delegation.dialects
            return await take_turn(
                self.retinue,
                self.conversation,
                text,
                dialects,
                stop,
                lock=self.lock,
                output=self.output,
                prompt=self.prompt,
                attachments=media,
            )

        self.retinue.file_changes.begin()
        try:
            outcome = self.thread.run_stoppable(turn, self.prompt)
        except StoreError:
            raise  # a chat cannot go on if nothing more can be stored
        except RetinueError as error:
            self._print_error(str(error))
            return True
        self.code = 0 if outcome.ok else 1
        if isinstance(self.lines, Piped) and outcome.reason == "cancelled":
            self.code = INTERRUPTED
            return False
        return True

    def _run_command(self, command: commands.Command) -> None:
        run = self.thread.run
        match command.name:
            case "help":
                screen = console()
                answer_lines(*commands.help_lines(screen.width if screen.is_terminal else WIDE))
            case "status":
                commands.print_status(self._status(), run(self.conversation.trees()))
            case "tools":
                commands.print_tools(run(_offered(self.retinue, self.launch, self.delegation)))
            case "cost":
                commands.print_cost(run(self.conversation.trees()))
            case "agents":
                commands.print_agents(self.retinue.agents.values(), run(self.conversation.trees()))
            case "model":
                self._set_model(command.argument)
            case "effort":
                self._set_effort(command.argument)
            case "system":
                self._set_system(command.argument)
            case "subagents":
                try:
                    answer_lines(self.delegation.set(command.argument))
                except ValueError as error:
                    self._print_error(str(error))
            case "retry":
                self._retry()
            case "undo":
                self._undo()
            case "compact":
                found = self.conversation.compact()
                answer_lines("the conversation is shortened before the next answer" if found else NOTHING_YET)
            case "export":
                self._export(command.argument)
            case "clear":
                run(self.conversation.clear())
                answer_lines("a new conversation begins")
            case "quit":
                pass

    def _set_model(self, model: str) -> None:
        if model:
            try:
                self.conversation.use(self.conversation.launch.with_model(model))
            except RetinueError as error:
                self._print_error(str(error))
                return
        answer_lines(str(self.conversation.launch.model_choice))

    def _set_effort(self, effort: str) -> None:
        if effort:
            try:
                self.conversation.use(self.conversation.launch.with_effort(effort))
            except RetinueError as error:
                self._print_error(str(error))
                return
        answer_lines(f"effort: {self.conversation.launch.options.model_options.effort or 'as the model has it'}")

    def _set_system(self, system: str) -> None:
        if system:
            self.conversation.use(self.conversation.launch.with_system(system))
        answer_lines(self.conversation.launch.options.system or "no system prompt is set")

    def _retry(self) -> None:
        text = self.thread.run(self.conversation.rewind(self.delegation.dialects))
        if text is None:
            self._print_error(NOTHING_YET)
            return
        say(f"again: {one_line(text)}")
        self._answer(text)

    def _undo(self) -> None:
        undone = self.person.undo_files()
        if not undone:
            self._print_error("the file tools have changed nothing that can be undone")
            return
        for path, result in undone:
            answer_lines(f"{result}: {os.path.relpath(path)}")
        if paths := [each.path for each in undone if each.result in ("restored", "removed")]:
            self.outputs.append(TextAttachment("undone_changes", "files", "\n".join(paths)))

    def _export(self, name: str) -> None:
        """Write the runs of the conversation to a new file; the end of its name says how."""
        path = Path(name).expanduser()
        form = path.suffix.removeprefix(".").lower()
        if form not in WRITERS:
            self._print_error(f"/export {name}: the name ends in none of {', '.join(f'.{each}' for each in WRITERS)}")
            return
        runs = self.thread.run(self._exported())
        if not runs:
            self._print_error(NOTHING_YET)
            return
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(WRITERS[form](runs))
        except OSError as error:
            self._print_error(f"/export {name}: {error.strerror}")
            return
        answer_lines(f"wrote {plural(len(runs), 'run')} to {name}")

    async def _exported(self) -> list[ExportedRun]:
        views = [view for tree in await self.conversation.trees() for view in tree]
        stored = self.retinue.supervisor.stored
        return [ExportedRun(view, [event for _, event in await stored.events(view.run_id)]) for view in views]

    def _status(self) -> commands.ChatStatus:
        return commands.ChatStatus(
            model=self.conversation.launch.model_choice.full_name,
            session=self.retinue.session_id,
            run_id=self.conversation.current,
            agent=self.launch.options.agent,
            delegates=self.delegation.is_on,
        )

    def _print_error(self, message: str) -> None:
        say(f"error: {message}")
        if isinstance(self.lines, Piped):
            self.code = 1

    def leave(self) -> None:
        """Close the conversation, and wait for background runs; Ctrl-C leaves these to be resumed later."""
        if notice := self.thread.run(self.conversation.close()):
            say(*notice.split("\n"))
        self.thread.run(self.person.close())
        at_work = self.conversation.at_work()
        if at_work:
            say(f"waiting for {plural(len(at_work), 'run')} in the background; after Ctrl-C they can be resumed later")

            async def wait(stop: asyncio.Event) -> bool:
                return await unless_stopped(self.retinue.wait(*at_work), stop)

            if not self.thread.run_stoppable(wait):
                say("interrupted; see: retinue runs --all")
        if self.conversation.runs and sys.stdin.isatty() and not self.output.quiet:
            say(f"go on with: retinue chat --session {self.retinue.session_id}")
