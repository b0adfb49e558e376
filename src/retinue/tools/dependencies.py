"""Dependencies and options of the built-in tools: everything through which they reach outside the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from retinue.core.commands import Decide, WriteResult
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.ports import Clock, KeyValue, Sandbox, Tool
from retinue.tools.file_changes import FileChanges
from retinue.tools.path_walk import Workspaces

if TYPE_CHECKING:
    from retinue.tools.coding import CodingPreset

READER = "artifact_read"
"""The tool that pages through results that were cut."""

PROGRAM_MEMORY_MB = 2048

Preset: TypeAlias = Literal["coding"]
"""A named set of tools, rights and surroundings of programs."""
PRESETS: tuple[Preset, ...] = ("coding",)


class ToolOptions(Struct, frozen=True, kw_only=True):
    """Options of the built-in tools, for `retinue.open(tool_options=...)`.

    - `sandbox`: with `required`, a program of an agent is refused where the machine has no sandbox; with `off`, it runs
      without one.
    - `network`: whether programs of agents may use the network.
    - `web_search`: the search engine: `ddgs`, `brave` or `searxng:ADDRESS`; `auto` is the first that is set up.
    - `memory`: how memories of agents are stored: `sqlite`, `postgres` (in the database of the store), `markdown`
      (files in the state folder), `workspace` (`MEMORY.md` in the workspace of each agent) or `none`.
    - `workspaces`: patterns of workspaces that this process fetches for runs that another one has started, such as
      `git+https://git.example/team/*`.
    - `preset`: with `coding`, programs find the project's virtual environment, `node_modules/.bin` and a home folder
      with the user's git identity, and read the Python and the Node that these need.
    - `max_result`: characters of a result that a model reads at once; it can page through the rest.

    >>> ToolOptions(network=True).sandbox
    'required'
    """

    sandbox: Literal["required", "off"] = "required"
    network: bool = False
    web_search: str = "auto"
    workspaces: tuple[str, ...] = ()
    memory: str = "sqlite"
    max_result: int = 50_000
    preset: Preset | None = None
    program_memory_mb: int = PROGRAM_MEMORY_MB
    """MiB that a program of an agent may use, with all processes that it starts."""
    program_memory_total_mb: int | None = None
    """MiB that all programs of this process may use at once; None is three quarters of the memory of the machine."""
    protected: tuple[str, ...] = ()
    """Paths of files that define what agents may do, or that retinue runs; no tool may write them.

    They are strings because these options are also sent to other processes.
    """


Origins: TypeAlias = Callable[[RunId], Awaitable[Sequence[RunId]]]


async def _no_origins(root_id: RunId) -> Sequence[RunId]:
    return ()


class MemoryStatements(Protocol):
    """Statements of one transaction on the table `memories`."""

    def fetch(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        ...

    def send(self, query: str, *values: object) -> object:
        """Execute a statement without rows."""
        ...


class MemoryTables(Protocol):
    """A PostgreSQL store that also has the memories of agents; raises `StoreError` if it cannot be reached."""

    def transaction(self) -> AbstractContextManager[MemoryStatements]:
        """A transaction, committed at the end of the block."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDependencies:
    """What a `ToolFactory` makes tools from.

    `home` is the state folder (None keeps everything in memory); no tool may show it to a model. `web_search` names the
    search engine, `memory` the backend of agents' memories: `sqlite`, `postgres`, `markdown` or `workspace`, which
    people can read, or `none`.
    """

    sandbox: Sandbox
    key_value: KeyValue
    clock: Clock
    home: Path | None = None
    web_search: str = "auto"
    memory: str = "sqlite"
    memories: Mapping[str, str] = field(default_factory=dict[str, str])
    """Agents with another memory backend."""
    memory_tables: MemoryTables | None = None
    """Where the backend `sqlite` stores instead, because the store is a PostgreSQL database."""
    workspaces: Mapping[str, str] = field(default_factory=dict[str, str])
    """Agents whose workspace is not the current folder."""
    opened_workspaces: Workspaces = field(default_factory=Workspaces)
    """The workspaces of this process, each resolved once; every tool reaches its workspace through them."""
    max_result: int = 50_000
    """Characters of a result that a model gets at once."""
    program_memory_mb: int = PROGRAM_MEMORY_MB
    """MiB that a program of an agent may use, with all processes that it starts."""
    program_memory_total_mb: int | None = None
    """MiB that all programs of this process may use at once; None is three quarters of the memory of the machine."""
    trace_hosts: tuple[str, ...] = ()
    """Hosts to which web tools send the trace context of a call."""
    network: bool = False
    """Whether programs of the shell tools may access the network."""
    coding: CodingPreset | None = None
    """What programs find in a project, with the preset `coding`."""
    sandboxed: bool = True
    """Whether programs run in a sandbox, and not with all rights of this process."""
    origins: Origins = _no_origins
    """Returns the roots of the trees whose conversation a tree continues, the latest first."""
    settings: tuple[Path, ...] = ()
    """Files and folders that define what agents may do, or that retinue runs; no tool may write them."""
    changes: FileChanges | None = None
    """Records what the file tools change; None records nothing."""
    agents_write: tuple[str, ...] = ()
    """Folders in which agents may write, of every configuration; no program in them is started outside a sandbox."""


class NoKeyValue:
    """An empty `KeyValue` for tools that store nothing, or that are only listed."""

    async def look(self, space: str) -> Mapping[str, bytes]:
        return {}

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        raise NotImplementedError(space)


ToolFactory: TypeAlias = Callable[[ToolDependencies], Sequence[Tool]]
"""Makes the tools of one module; the function is called `tools`."""
