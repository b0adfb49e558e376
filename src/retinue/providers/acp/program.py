"""How an agent program is started, and what the provider needs from the process to do so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from retinue.core.ids import RunId
from retinue.core.ports import Ended, Talk

KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""The kinds of tool calls that the protocol has."""

PREFIX = "acp_"
"""The beginning of the tool names in which the calls of an agent are recorded; the kind follows."""

TOOLS = tuple(PREFIX + kind for kind in KINDS)
"""The names in which the calls of agents are recorded, and which policies can list."""


class AgentProgram(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program that speaks the Agent Client Protocol, as the settings of a provider name it.

    `env` are names of environment variables that it is given. In the sandbox it sees the workspace of its run, and of
    everything else only the system, `readable` and `writable`; it has the network. With `sandbox` off it has every
    right of the user.

    >>> AgentProgram(command=("gemini", "--acp"), env=("GEMINI_API_KEY",)).sandbox
    True
    """

    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    sandbox: bool = True
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


class SessionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the store keeps of the session of a run with its agent.

    `sent` is the number of messages of the run's history that the agent was sent; `cost` is what the session has cost
    by then, in nanodollars, as the agent reports it.
    """

    session: str
    sent: int = 0
    cost: int = 0


class AgentPrograms(Protocol):
    """Starts agent programs for runs, within the rights of each run, and keeps the records of their sessions."""

    def workspace(self, run_id: RunId) -> str:
        """The folder of a live run, absolute."""
        ...

    async def run(self, program: AgentProgram, run_id: RunId, talk: Talk) -> Ended:
        """Run a program until the talk or the program ends; kills it with all its processes, also when cancelled.

        Raises `ToolError` if it cannot be started.
        """
        ...

    async def record(self, run_id: RunId) -> SessionRecord | None:
        """The record of a run's session; None for a run that has none."""
        ...

    async def store(self, run_id: RunId, record: SessionRecord) -> None:
        """Keep the record of a run's session; it is on disk when this returns."""
        ...

    def on_end(self, callback: Callable[[RunId], None]) -> None:
        """Call `callback` when a run ends in this process."""
        ...
