"""What the built-in tools are made of: everything that reaches outside the process is handed in here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.core.commands import Decide, Written
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.ports import Clock, KeyValue, Sandbox, Tool

PROGRAM_MEMORY_MB = 2048


class ToolOptions(Struct, frozen=True, kw_only=True):
    """Options of the built-in tools, for `retinue.open(tool_options=...)`.

    - `sandbox`: with `required`, a program of an agent is refused where the machine has no sandbox; with `off`, it runs
      without one.
    - `network`: whether programs of agents may use the network.
    - `web_search`: the search engine: `ddgs`, `brave` or `searxng:ADDRESS`.
    - `memory`: how memories of agents are stored, `sqlite` or `markdown`.
    - `max_result`: characters of a result that a model reads at once; it can page through the rest.

    >>> ToolOptions(network=True).sandbox
    'required'
    """

    sandbox: Literal["required", "off"] = "required"
    network: bool = False
    web_search: str = "ddgs"
    memory: str = "sqlite"
    max_result: int = 50_000
    program_memory_mb: int = PROGRAM_MEMORY_MB
    """MiB that a command of the shell tools may use, with all that it starts."""
    protected: tuple[str, ...] = ()
    """Paths of files that say what agents may do, or are run as part of retinue; no tool may write them.

    They are texts because these options also travel to other processes.
    """


Origins: TypeAlias = Callable[[RunId], Awaitable[Sequence[RunId]]]


async def _none(root_id: RunId) -> Sequence[RunId]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDependencies:
    """Handed to whoever makes built-in tools.

    `home` is the state folder (None keeps everything in memory); no tool may show it to a model. `web_search` names the
    engine that searches, `memory` how agents' memories are kept: `sqlite`, or `markdown`, which people can read.
    """

    sandbox: Sandbox
    key_value: KeyValue
    clock: Clock
    home: Path | None = None
    web_search: str = "ddgs"
    memory: str = "sqlite"
    memories: Mapping[str, str] = field(default_factory=dict[str, str])
    """Agents whose memory is kept otherwise: `sqlite`, `markdown`, or `none`."""
    max_result: int = 50_000
    """Characters of a result that a model gets at once."""
    program_memory_mb: int = PROGRAM_MEMORY_MB
    """MiB that a command of the shell tools may use, with all that it starts."""
    network: bool = False
    """Whether programs of the shell tools may access the network."""
    sandboxed: bool = True
    """Whether programs run in a sandbox, and not with every right of ours."""
    origins: Origins = _none
    """The roots of the trees whose conversation a tree goes on with, the latest first."""
    settings: tuple[Path, ...] = ()
    """Files that say what agents may do, or are run as part of retinue; no tool may write them."""


class NoKeyValue:
    """A shelf for tools that have nothing to keep, or that are only looked at."""

    async def look(self, space: str) -> Mapping[str, bytes]:
        """Nothing."""
        return {}

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> Written:
        """Cannot be done."""
        raise NotImplementedError(space)


ToolFactory: TypeAlias = Callable[[ToolDependencies], Sequence[Tool]]
"""Makes the tools of one file; a file's function of this kind is called `tools`."""
