"""Shell commands: read for what they would start, then run in the sandbox, with what the policy lets through."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from retinue.core.errors import ToolError
from retinue.core.policy import Policy, Risk
from retinue.core.ports import CallContext, CallRisk, Ended, Program, Tool, ToolResult
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.function import FunctionTool
from retinue.tools.sandbox_mounts import Fence, environment_of, fence_of, run_fenced, settings_in
from retinue.tools.shell.parser import Unreadable, refusal_of, steps_of
from retinue.tools.shell.risk import risk_of
from retinue.tools.threads import in_thread

MIB = 1024 * 1024
MAX_OUTPUT = MIB
# What the commands of a build or a test run need; node alone starts a dozen threads.
PROCESSES = 256
MAX_FILE = 1024 * MIB
SCRATCH = 256 * MIB
RESERVED = 64 * 1024 * MIB
"""Address space of each process: node takes 10 GB of it for one module of WebAssembly, and uses next to nothing."""
LONGEST = 86_400.0
"""Seconds; the policy's own limit is nearly always shorter, and ends the program by itself."""
ASIDE = ".made-by-an-agent"


def tools(dependencies: ToolDependencies) -> Sequence[Tool]:
    """`shell` and `terminal`: two names and argument lists of one implementation."""

    async def shell(
        command: str, context: CallContext, timeout_secs: int | None = None, working_dir: str = ""
    ) -> ToolResult:
        """Run a shell command in the workspace and return what it printed.

        Args:
            command: The command line, for /bin/sh. Only allowed commands are started; substitutions are not read.
            timeout_secs: Seconds after which it is killed, up to what the policy allows.
            working_dir: The folder to run it in, seen from the workspace.
        """
        return await run_command(command, context, dependencies, seconds=timeout_secs, folder=working_dir)

    async def terminal(command: str, context: CallContext, cwd: str = "", timeout: int | None = None) -> ToolResult:
        """Run a shell command in the workspace and return what it printed.

        Args:
            command: The command line, for /bin/sh.
            cwd: The folder to run it in, seen from the workspace.
            timeout: Seconds after which it is killed, up to what the policy allows.
        """
        return await run_command(command, context, dependencies, seconds=timeout, folder=cwd)

    return [
        FunctionTool(shell, kind="once", risk=Risk.MEDIUM, acts=True, assess=assess, closes=closed_by, timeout=LONGEST),
        FunctionTool(
            terminal, kind="once", risk=Risk.MEDIUM, acts=True, assess=assess, closes=closed_by, timeout=LONGEST
        ),
    ]


def assess(arguments: str) -> CallRisk:
    """What there is to lose by a call: the risk of its command.

    Arguments that do not fit start nothing, and neither does a command that cannot be read: `closed_by` says why, and a
    refusal for its risk would leave the model guessing.
    """
    command = _command_in(arguments)
    starts_nothing = command is None or isinstance(steps_of(command), Unreadable)
    return CallRisk(Risk.LOW if command is None or starts_nothing else risk_of(command), acts=True)


def closed_by(policy: Policy, arguments: str) -> str | None:
    """Why a policy closes a call, whoever approves: its command is not on the list, or cannot be read."""
    command = _command_in(arguments)
    return None if command is None else refusal_of(command, policy)


def _command_in(arguments: str) -> str | None:
    try:
        command: object = msgspec.json.decode(arguments)["command"]
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeEncodeError, RecursionError):
        return None
    return command if isinstance(command, str) else None


async def run_command(
    command: str, context: CallContext, dependencies: ToolDependencies, *, seconds: int | None, folder: str
) -> ToolResult:
    """Run a command under the caller's policy; a command that fails is a result, not an error."""
    if not command.strip():
        raise ToolError("the command is empty")
    if "\0" in command:
        raise ToolError("the command holds a zero byte")
    if refused := refusal_of(command, context.policy):
        raise ToolError(refused)
    most = context.policy.shell_timeout_secs
    allowed = most if seconds is None else max(1, min(seconds, most))
    fence = await in_thread(fence_of, context, dependencies, folder=folder)
    there = await in_thread(settings_in, fence.writable)
    try:
        ended = await run_fenced(_program(command, fence, context, dependencies, seconds=allowed), dependencies)
    finally:
        aside = await in_thread(_put_aside_new_settings, fence, there)
    told = _told(ended, allowed)
    if aside:
        told += f"\n[{', '.join(aside)} was renamed to ...{ASIDE}: what agents may do is settled by people]"
    return ToolResult(told, failed=ended.code != 0 or ended.timed_out)


def _program(
    command: str, fence: Fence, context: CallContext, dependencies: ToolDependencies, *, seconds: int
) -> Program:
    return Program(
        argv=("/bin/sh", "-c", command),
        folder=fence.folder,
        readable=fence.readable,
        writable=fence.writable,
        hidden=fence.hidden,
        environment=environment_of(context),
        network=dependencies.network,
        seconds=float(seconds),
        max_output=MAX_OUTPUT,
        memory=dependencies.program_memory_mb * MIB,
        reserved=RESERVED,
        processes=PROCESSES,
        file_size=MAX_FILE,
        scratch=SCRATCH,
    )


def _put_aside_new_settings(fence: Fence, there: list[str]) -> list[str]:
    """Give settings that a program made another name: a person who starts retinue in that folder would obey them."""
    made = [path for path in settings_in(fence.writable) if path not in there]
    for path in made:
        with suppress(OSError):  # another command of the same moment has seen it too
            os.rename(path, f"{path}{ASIDE}")
    return [os.path.basename(path) for path in made]


def _told(ended: Ended, seconds: int) -> str:
    """Stdout, then stderr, then how it ended where that is worth a word."""
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
