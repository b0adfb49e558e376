"""The tools `shell` and `terminal`: parse a command, check it against the policy, run it in the sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

import msgspec
from msgspec.structs import replace

from retinue.core.agent import ToolSpec
from retinue.core.errors import ToolError
from retinue.core.policy import Policy, Risk
from retinue.core.ports import CallContext, CallRisk, Ended, PreparedCall, Program, Tool, ToolResult
from retinue.tools.builtin import with_allowed_commands
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.function import FunctionTool
from retinue.tools.function_schema import Misfit
from retinue.tools.program_access import (
    MIB,
    environment_of,
    files_of,
    home_of,
    memory_limits,
    mounts_of,
    program_path,
    run_in_sandbox,
)
from retinue.tools.settings_guard import watch_settings
from retinue.tools.shell.first_words import first_words
from retinue.tools.shell.parser import ParsedCommand, parse, refusal_of
from retinue.tools.shell.repository import folders_of_git, starts_programs
from retinue.tools.shell.risk import risk_of
from retinue.tools.threads import in_thread

MAX_OUTPUT = MIB
# Enough for builds and test runs; node alone starts a dozen threads.
PROCESSES = 256
MAX_FILE = 1024 * MIB
SCRATCH = 256 * MIB
RESERVED = 64 * 1024 * MIB
"""Address space of each process: node reserves 10 GB for one WebAssembly module and uses next to nothing of it."""
MAX_SECONDS = 86_400.0
"""The limit of the policy is nearly always shorter and ends the program by itself."""
SHORT = 4096
"""Characters of a command that is read on the event loop."""
READING_SECONDS = 10.0
"""Time to read a longer one, in a thread."""

RunCommand = Callable[[CallContext], Awaitable[ToolResult]]
Examine = Callable[[CallContext], Awaitable[PreparedCall]]


class ShellRequest(msgspec.Struct, frozen=True):
    """The arguments of one call of either tool."""

    command: str
    seconds: int | None
    folder: str


class _ShellCall(msgspec.Struct, frozen=True):
    """One call as the model wrote it; `instead` is what it does if its arguments do not fit."""

    arguments: str
    request: ShellRequest
    instead: RunCommand | None = None


def tools(dependencies: ToolDependencies) -> Sequence[Tool]:
    """`shell` and `terminal`: two names and argument lists of one implementation."""

    def shell(command: str, timeout_secs: int | None = None, working_dir: str = "") -> ShellRequest:
        """Run a shell command in the workspace and return what it printed.

        Args:
            command: The command line, for /bin/sh. Only allowed commands are started; substitutions are not read.
            timeout_secs: Seconds after which it is killed, up to what the policy allows.
            working_dir: The folder to run it in, seen from the workspace.
        """
        return ShellRequest(command, timeout_secs, working_dir)

    def terminal(command: str, cwd: str = "", timeout: int | None = None) -> ShellRequest:
        """Run a shell command in the workspace and return what it printed.

        Args:
            command: The command line, for /bin/sh. Only allowed commands are started.
            cwd: The folder to run it in, seen from the workspace.
            timeout: Seconds after which it is killed, up to what the policy allows.
        """
        return ShellRequest(command, timeout, cwd)

    return [ShellTool(shell, dependencies), ShellTool(terminal, dependencies)]


class ShellTool(FunctionTool[..., ShellRequest]):
    """A tool that runs shell commands; its function maps the tool's own argument names to a `ShellRequest`.

    The command is parsed once, in `prepare`, or in a thread if it is long; risk, policy and execution use the same
    `ParsedCommand`.
    """

    def __init__(self, function: Callable[..., ShellRequest], dependencies: ToolDependencies) -> None:
        super().__init__(function, kind="once", risk=Risk.MEDIUM, acts=True, timeout=MAX_SECONDS)
        self.stoppable = True
        self._dependencies = dependencies

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return with_allowed_commands(self.spec, policy)

    def prepare(self, arguments: str) -> PreparedCall:
        decoded = self.decode(arguments)
        if isinstance(decoded, Misfit):
            request = ShellRequest(_command_in(arguments), None, "")
            call = _ShellCall(arguments, request, partial(self.call_decoded, decoded))
        else:
            args, kwargs = self._arguments.bind(decoded)
            call = _ShellCall(arguments, self(*args, **kwargs))
        if len(call.request.command) > SHORT:
            run = call.instead or partial(self._run_unread, call.request)
            risk = CallRisk(Risk.HIGH, acts=True)
            examine = partial(self._examine_long, call)
            group = _with_folder(call.request.command, call.request.folder)
            return PreparedCall(arguments, risk, run, examine=examine, group=group)
        command = parse(call.request.command)
        risk = call_risk(command)
        examine = partial(self._examine_harmless, call, command) if risk.risk is Risk.LOW else None
        return self._prepared(call, command, risk, examine)

    def _prepared(
        self, call: _ShellCall, command: ParsedCommand, risk: CallRisk, examine: Examine | None = None
    ) -> PreparedCall:
        run = call.instead or partial(self._run, call.request, command)
        return PreparedCall(
            call.arguments,
            risk,
            run,
            denied_by=partial(refusal_of, command),
            examine=examine,
            group=_with_folder(first_words(command), call.request.folder),
        )

    async def _examine_long(self, call: _ShellCall, context: CallContext) -> PreparedCall:
        command, risk = await _read_in_thread(call.request.command)
        if risk.risk is Risk.LOW:
            return await self._examine_harmless(call, command, context)
        return self._prepared(call, command, risk)

    async def _examine_harmless(self, call: _ShellCall, command: ParsedCommand, context: CallContext) -> PreparedCall:
        """A command of low risk is of medium risk where files of the workspace decide what its programs are or start.

        Those are programs of a project that have the names of its programs, and for git the settings of a repository.
        """
        if command.unreadable:
            return self._prepared(call, command, call_risk(command))
        if await in_thread(_starts_other_programs, command, call.request.folder, context, self._dependencies):
            return self._prepared(call, command, CallRisk(Risk.MEDIUM, acts=True))
        prepared = self._prepared(call, command, CallRisk(Risk.LOW, acts=True))
        return prepared if call.instead else replace(prepared, run=partial(self._run_harmless, call.request, command))

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return await self.prepare(arguments).run(context)

    async def _run_unread(self, request: ShellRequest, context: CallContext) -> ToolResult:
        return await self._run(request, (await _read_in_thread(request.command))[0], context)

    async def _run_harmless(self, request: ShellRequest, command: ParsedCommand, context: CallContext) -> ToolResult:
        """Run a command that needed no approval, because of files of the workspace that may have changed since."""
        is_changed = None
        if _reads_repository(command):
            is_changed = partial(_git_starts_programs, command, request.folder, context, self._dependencies)
        return await run_command(
            command,
            context,
            self._dependencies,
            seconds=request.seconds,
            folder=request.folder,
            is_changed=is_changed,
            trusted_path=True,
        )

    async def _run(self, request: ShellRequest, command: ParsedCommand, context: CallContext) -> ToolResult:
        return await run_command(command, context, self._dependencies, seconds=request.seconds, folder=request.folder)


async def _read_in_thread(text: str) -> tuple[ParsedCommand, CallRisk]:
    """A command parsed and assessed in a thread; unreadable if that takes longer than `READING_SECONDS`."""

    def read() -> tuple[ParsedCommand, CallRisk]:
        command = parse(text)
        return command, call_risk(command)

    try:
        async with asyncio.timeout(READING_SECONDS):
            return await in_thread(read)
    except TimeoutError:
        command = ParsedCommand(text, unreadable="the command takes too long to read; write it shorter")
        return command, call_risk(command)


def _with_folder(words: str, folder: str) -> str:
    """Words of a command, and the folder in which they mean something else."""
    return f"{words} in {folder}" if folder else words


def _reads_repository(command: ParsedCommand) -> bool:
    return any(step.name == "git" for step in command.steps)


def _starts_other_programs(
    command: ParsedCommand, folder: str, context: CallContext, dependencies: ToolDependencies
) -> bool:
    """Whether a command that reads may start programs of the workspace."""
    path = program_path(context, dependencies, folder)
    if not all(path.is_trusted(step.name) for step in command.steps):
        return True
    return _reads_repository(command) and _git_starts_programs(command, folder, context, dependencies)


def _git_starts_programs(
    command: ParsedCommand, folder: str, context: CallContext, dependencies: ToolDependencies
) -> bool:
    home, passed = home_of(dependencies), context.policy.shell_env_passthrough
    folders = folders_of_git(command)
    if folders is None or "CDPATH" in passed:
        return True
    workspace = os.path.join(context.workspace or os.curdir, folder)
    return starts_programs(workspace, folders, "" if "HOME" in passed else home)


def call_risk(command: ParsedCommand) -> CallRisk:
    """Risk of a command; low if unreadable: `refusal_of` refuses that with a reason, which a refusal for risk hides."""
    return CallRisk(Risk.LOW if command.unreadable else risk_of(command), acts=True)


def _command_in(arguments: str) -> str:
    """The command in arguments of which another one does not fit; empty if there is none."""
    try:
        command: object = msgspec.json.decode(arguments)["command"]
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeEncodeError, RecursionError):
        return ""
    return command if isinstance(command, str) else ""


async def run_command(
    command: ParsedCommand,
    context: CallContext,
    dependencies: ToolDependencies,
    *,
    seconds: int | None,
    folder: str,
    is_changed: Callable[[], bool] | None = None,
    trusted_path: bool = False,
) -> ToolResult:
    """Run a command under the caller's policy; a command that fails is a result, not an error.

    `is_changed` is asked immediately before the start: whether what was decided about the command holds no longer. With
    `trusted_path`, the programs are looked for only where no agent can have placed them.
    """
    if not command.text.strip():
        raise ToolError("the command is empty")
    if "\0" in command.text:
        raise ToolError("the command holds a zero byte")
    if refused := refusal_of(command, context.policy):
        raise ToolError(refused)
    limit = context.policy.shell_timeout_secs
    allowed = limit if seconds is None else max(1, min(seconds, limit))
    memory, memory_of_all = memory_limits(dependencies)
    environment, files = await in_thread(_surroundings, context, dependencies)
    if trusted_path:
        path = await in_thread(program_path, context, dependencies, folder)
        environment = {**environment, "PATH": os.pathsep.join(path.trusted)}
    with ExitStack() as resources:
        mounts = resources.enter_context(closing(await in_thread(mounts_of, context, dependencies, folder=folder)))
        async with watch_settings(mounts.writable, dependencies.settings, dependencies.home) as watch:
            if watch.needs_new_mounts(mounts.readable):
                mounts = resources.enter_context(
                    closing(await in_thread(mounts_of, context, dependencies, folder=folder))
                )
            program = Program(
                argv=("/bin/sh", "-c", command.text),
                folder=mounts.folder,
                readable=mounts.readable,
                writable=mounts.writable,
                hidden=mounts.hidden,
                descriptors=mounts.descriptors,
                files=files,
                environment=environment,
                network=dependencies.network,
                seconds=float(allowed),
                max_output=MAX_OUTPUT,
                memory=memory,
                memory_of_all=memory_of_all,
                reserved=RESERVED,
                processes=PROCESSES,
                file_size=MAX_FILE,
                scratch=SCRATCH,
            )
            if is_changed is not None and await in_thread(is_changed):
                raise ToolError("the settings of the repository have changed since this was allowed; call again")
            ended = await run_in_sandbox(program, dependencies)
    text = "\n".join((_output(ended, allowed), *(f"[{message}]" for message in watch.messages)))
    return ToolResult(text, failed=ended.code != 0 or ended.timed_out)


def _surroundings(
    context: CallContext, dependencies: ToolDependencies
) -> tuple[Mapping[str, str], Mapping[str, bytes]]:
    """The variables and the generated files of a program; with the preset `coding` folders are looked at."""
    return environment_of(context, dependencies), files_of(dependencies)


def _output(ended: Ended, seconds: int) -> str:
    """Stdout, then stderr, then how the program ended unless it succeeded."""
    parts = [_text(ended.stdout)]
    if ended.stderr.strip():
        parts.append(f"[stderr]\n{_text(ended.stderr)}")
    if ended.cut:
        parts.append(f"[more than {MAX_OUTPUT} bytes were printed; the rest is lost]")
    if ended.timed_out:
        parts.append(f"Command timed out after {seconds}s and was killed")
    elif ended.killed_for:
        parts.append(ended.killed_for)
    elif ended.code:
        parts.append(f"[exit code {ended.code}]" if ended.code > 0 else f"[killed by signal {-ended.code}]")
    return "\n".join(part.rstrip("\n") for part in parts if part.strip()) or "[no output]"


def _text(printed: bytes) -> str:
    return printed.decode("utf-8", "replace")
