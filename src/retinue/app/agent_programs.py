"""Starts agent programs for runs: in the sandbox with the folders of the run's policy, or as the settings allow it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from retinue.app.interactive_programs import RESERVED, converse, interactive_program
from retinue.core.commands import Decide, Decision
from retinue.core.errors import ToolError
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.policy import WorkspaceRights
from retinue.core.ports import Ended, InteractiveSandbox, Program, Talk
from retinue.core.run import Outcome
from retinue.engine import LiveView, Supervisor
from retinue.local.programs import find_program, why_untrusted
from retinue.providers.acp import AgentProgram, SessionRecord
from retinue.sandbox.probe import choose
from retinue.tools.dependencies import ToolDependencies

USUAL = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""Variables that a program without a sandbox is given; keys of model vendors are not among them."""


class LocalAgentPrograms:
    """The `AgentPrograms` of a retinue. Records are stored below the tree of their run, and pruned with it."""

    def __init__(self, supervisor: Supervisor, dependencies: Callable[[], ToolDependencies]) -> None:
        self._supervisor = supervisor
        self._dependencies = dependencies

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
            if program.sandbox and self._dependencies().sandboxed:
                return await self._run_in_sandbox(program, run_id, talk)
            return await self._run_freely(program, run_id, talk)
        except OSError as error:
            raise ToolError(f"it could not be run: {error.strerror or type(error).__name__}") from error

    async def _run_freely(self, program: AgentProgram, run_id: RunId, talk: Talk) -> Ended:
        sandbox = choose("off", agents_write=self._dependencies().agents_write)
        assert isinstance(sandbox, InteractiveSandbox)
        plain = self._program(program, run_id)
        # The address space of each process is the only memory that can be limited here, and node reserves much of it.
        return await sandbox.converse(msgspec.structs.replace(plain, memory=RESERVED), talk)

    async def _run_in_sandbox(self, program: AgentProgram, run_id: RunId, talk: Talk) -> Ended:
        live = self._live(run_id)
        rights = WorkspaceRights(live.folder or live.run.run_spec.workspace, live.run.policy)
        return await converse(
            self._program(program, run_id),
            talk,
            rights,
            self._dependencies(),
            readable=program.readable,
            writable=program.writable,
        )

    def _program(self, program: AgentProgram, run_id: RunId) -> Program:
        environment = {name: os.environ[name] for name in (*USUAL, *program.env) if name in os.environ}
        # It has the network: an agent has to reach its model.
        return interactive_program((self._path(program), *program.command[1:]), self.workspace(run_id), environment)

    def _path(self, program: AgentProgram) -> str:
        """The program, where neither an agent nor another user can have placed it; raises `ToolError`."""
        name = os.path.expanduser(program.command[0])
        agents_write = (os.getcwd(), *self._dependencies().agents_write)
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
