"""Starts agent programs for runs: in the sandbox with the folders of the run's policy, or as the settings allow it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing

import msgspec

from retinue.core.commands import Decide, Decision
from retinue.core.errors import ToolError
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.policy import Autonomy
from retinue.core.ports import CallContext, Ended, InteractiveSandbox, Program, Talk
from retinue.core.run import Outcome
from retinue.engine import LiveView, Supervisor
from retinue.local.programs import find_program, why_untrusted
from retinue.providers.acp import AgentProgram, SessionRecord
from retinue.sandbox.probe import choose
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.path_walk import locate
from retinue.tools.program_access import mounts_of
from retinue.tools.settings_guard import watch_settings
from retinue.tools.threads import in_thread

GIB = 1024 * 1024 * 1024
MEMORY = 4 * GIB
"""Bytes of memory of an agent with the programs that it starts, in the sandbox."""
RESERVED = 1024 * GIB
"""Bytes of address space: node reserves much more than it uses."""
PROCESSES = 512
MAX_FILE = 4 * GIB
SCRATCH = GIB
CPU_SECONDS = 7 * 24 * 3600
MAX_STDERR = 64 * 1024

USUAL = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""Variables that a program without a sandbox is given; keys of model vendors are not among them."""

EMPTY_HOME = "/tmp"
"""The home folder in the sandbox of a program that is given nothing of the user's own."""


class LocalAgentPrograms:
    """The `AgentPrograms` of a retinue. Records are stored below the tree of their run, and pruned with it."""

    def __init__(self, supervisor: Supervisor, dependencies: Callable[[], ToolDependencies]) -> None:
        self._supervisor = supervisor
        self._make_dependencies = dependencies
        self._made: ToolDependencies | None = None

    @property
    def _dependencies(self) -> ToolDependencies:
        if self._made is None:
            self._made = self._make_dependencies()
        return self._made

    def workspace(self, run_id: RunId) -> str:
        live = self._live(run_id)
        return os.path.abspath(live.folder or live.run.run_spec.workspace or os.curdir)

    def _live(self, run_id: RunId) -> LiveView:
        live = self._supervisor.live(run_id)
        if live is None:
            raise ToolError(f"run {run_id or '(none)'} is not at work in this process")
        return live

    async def run(self, program: AgentProgram, run_id: RunId, talk: Talk) -> Ended:
        try:
            if program.sandbox and self._dependencies.sandboxed:
                return await self._run_in_sandbox(program, run_id, talk)
            return await self._run_freely(program, run_id, talk)
        except OSError as error:
            raise ToolError(f"it could not be run: {error.strerror or type(error).__name__}") from error

    async def _run_freely(self, program: AgentProgram, run_id: RunId, talk: Talk) -> Ended:
        sandbox = choose("off", agents_write=self._dependencies.agents_write)
        assert isinstance(sandbox, InteractiveSandbox)
        plain = self._program(program, run_id)
        # The address space of each process is the only memory that can be limited here, and node reserves much of it.
        return await sandbox.converse(msgspec.structs.replace(plain, memory=RESERVED), talk)

    async def _run_in_sandbox(self, program: AgentProgram, run_id: RunId, talk: Talk) -> Ended:
        dependencies = self._dependencies
        sandbox = dependencies.sandbox
        if not isinstance(sandbox, InteractiveSandbox):
            raise ToolError("this sandbox cannot run a program that is talked to")
        plain, context = self._program(program, run_id), self._context(run_id)
        writes = context.policy.autonomy is not Autonomy.READONLY
        with ExitStack() as resources:

            async def mounted() -> Program:
                mounts = resources.enter_context(
                    closing(await in_thread(mounts_of, context, dependencies, writes=writes))
                )
                readable = _located(program.readable, resources)
                writable = _located(program.writable, resources)
                return msgspec.structs.replace(
                    plain,
                    folder=mounts.folder,
                    readable=(*mounts.readable, *(path for path in readable if path not in mounts.writable)),
                    writable=tuple(dict.fromkeys((*mounts.writable, *writable))),
                    hidden=mounts.hidden,
                    descriptors={**readable, **writable, **mounts.descriptors},
                    environment={**plain.environment, "HOME": _home((*readable, *writable)), "TMPDIR": "/tmp"},
                )

            fenced = await mounted()
            async with watch_settings(fenced.writable, dependencies.settings, dependencies.home) as watch:
                if watch.needs_new_mounts(fenced.readable):
                    fenced = await mounted()
                return await sandbox.converse(fenced, talk)

    def _program(self, program: AgentProgram, run_id: RunId) -> Program:
        return Program(
            argv=(self._path(program), *program.command[1:]),
            folder=self.workspace(run_id),
            environment={name: os.environ[name] for name in (*USUAL, *program.env) if name in os.environ},
            network=True,  # an agent has to reach its model
            cpu_seconds=CPU_SECONDS,
            memory=MEMORY,
            reserved=RESERVED,
            processes=PROCESSES,
            file_size=MAX_FILE,
            scratch=SCRATCH,
            max_output=MAX_STDERR,
        )

    def _path(self, program: AgentProgram) -> str:
        """The program, where neither an agent nor another user can have placed it; raises `ToolError`."""
        name = os.path.expanduser(program.command[0])
        agents_write = (os.getcwd(), *self._dependencies.agents_write)
        if os.sep in name:
            if not os.path.isabs(name):
                raise ToolError(f"the program {name} is a relative path: name it alone, or write its whole path")
            reason = "there is no such program" if not os.access(name, os.X_OK) else ""
            reason = reason or why_untrusted(name, agents_write=agents_write)
            if reason:
                raise ToolError(f"{name} is not started: {reason}")
            return name
        found = find_program(name, agents_write=agents_write)
        if not found.path:
            raise ToolError("; ".join((f"there is no program {name} on PATH", *found.passed_over)))
        return found.path

    def _context(self, run_id: RunId) -> CallContext:
        """What decides about the folders of a program: the rights and the place of the run."""
        live = self._live(run_id)
        run, accepted = live.run, live.run.accepted
        return CallContext(
            run_id=run_id,
            session_id=accepted.session_id,
            root_id=accepted.root_id,
            key=f"{run_id}/agent",
            turn=run.turns,
            index=0,
            depth=accepted.depth,
            agent=accepted.agent,
            path=accepted.path,
            handle=accepted.handle,
            policy=run.policy,
            offered=run.run_spec.offered,
            workspace=live.folder or run.run_spec.workspace,
        )

    # Records

    async def record(self, run_id: RunId) -> SessionRecord | None:
        stored = await self._supervisor.key_value.look(self._space(run_id))
        return msgspec.json.decode(stored["session"], type=SessionRecord) if "session" in stored else None

    async def store(self, run_id: RunId, record: SessionRecord) -> None:
        await self._supervisor.key_value.change(self._space(run_id), _put(msgspec.json.encode(record)))

    def _space(self, run_id: RunId) -> str:
        return f"artifact/{self._live(run_id).run.accepted.root_id}/acp/{run_id}"

    def on_end(self, callback: Callable[[RunId], None]) -> None:
        def ended(accepted: RunAccepted, outcome: Outcome) -> None:
            callback(accepted.run_id)

        self._supervisor.on_end(ended)


def _put(body: bytes) -> Decide:
    def decide(stored: Mapping[str, bytes]) -> Decision:
        return Decision(b"", puts={"session": body})

    return decide


def _home(given: Iterable[str]) -> str:
    """The home folder of a program in the sandbox: the user's, if it is given something there, to find it."""
    own = os.path.expanduser("~")
    return own if any(path == own or path.startswith(f"{own}/") for path in given) else EMPTY_HOME


def _located(paths: tuple[str, ...], resources: ExitStack) -> dict[str, int]:
    """The files and folders that the settings give to a program, as far as they exist, each with an open descriptor."""
    found: dict[str, int] = {}
    for path in paths:
        place = locate(os.path.abspath(os.path.expanduser(path)), keep=True)
        if place.descriptor is not None:
            resources.enter_context(closing(place.descriptor))
            found[place.path] = place.descriptor.number
    return found
