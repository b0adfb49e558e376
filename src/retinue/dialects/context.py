"""What a dialect is given: the supervisor, the key-value store, and the agents, tools and providers of the process."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from retinue.core.agent import Agent, Output, RunSpec, is_server_tool
from retinue.core.budget import Window
from retinue.core.commands import RunRow
from retinue.core.errors import TreeCancelled
from retinue.core.ids import Key, RunId
from retinue.core.model_options import NO_OPTIONS, NO_REQUEST_OPTIONS, with_hours_of
from retinue.core.policy import Policy, allows, intersect, windows_of
from retinue.core.ports import CallContext, Clock, KeyValue, Meter, NoMeter, Provider
from retinue.core.workspace import is_address, is_worktree, worktree_of
from retinue.dialects.error_codes import CallRefused
from retinue.engine import SpawnRequest, StartedRun, Supervisor
from retinue.tools.path_walk import WorkspaceRefused, Workspaces

if TYPE_CHECKING:
    from retinue.providers.catalog import ProviderConfig
    from retinue.tools.dependencies import ToolOptions


class ProviderFamilies:
    """The providers of the process and the vendors whose models they have; this base class has none."""

    def names(self) -> Sequence[str]:
        """Every provider that can be named."""
        return ()

    def config(self, provider: str) -> ProviderConfig | None:
        """How a provider is reached; None for an object that was handed in, and for an unknown name."""
        return None

    def family(self, provider: str) -> str | None:
        """The vendor whose API a provider speaks: `anthropic`, `openai`, `gemini` or None."""
        return None

    def called(self, name: str) -> str | None:
        """The family of that name, in upper or lower case; None for any other name."""
        return None

    def member(self, family: str) -> str:
        """A provider of that family: one from the settings, else the vendor's own."""
        return family

    def complaint(self, provider: str) -> str:
        """Why a provider cannot be used; empty when it can, as far as is known without a request."""
        return ""

    def is_local(self, provider: str) -> bool:
        """Whether the provider is a server of the user's own: a local one, or any address but the vendor's."""
        return True

    def wire(self, provider: str) -> str:
        """The name of the wire that a provider speaks; its own name for an object that was handed in."""
        return provider

    def secrets(self) -> Sequence[str]:
        """The keys that are sent to providers; they must not be written to files."""
        return ()


class ProviderHost(Struct, frozen=True, kw_only=True):
    """What the providers are given that a dialect adds to a process; see `DialectEntry.processes`."""

    supervisor: Supervisor
    families: ProviderFamilies
    find: Callable[[str], Provider | None]
    """The provider of that name, which may be an added one."""
    tool_options: ToolOptions
    home: Path | None
    """The state folder; None for a store in memory."""
    workspaces: Workspaces = field(default_factory=Workspaces)


def _unchecked_output(schema: Mapping[str, object]) -> Output:
    return Output(mode="json_schema", schema=msgspec.json.encode(schema).decode())


class WorktreeChanges(Struct, frozen=True):
    """What a child has changed in a worktree of its own: a branch of the caller's repository, and a patch."""

    branch: str
    files: int
    patch: str
    """The first part of a long one."""


async def _no_worktree(workspace: str) -> WorktreeChanges | None:
    return None


class DialectContext(Struct, frozen=True, kw_only=True):
    """Handed to every dialect when it is made.

    `agents` are those of the application, in the order of its settings; `tool_names` are all its tools, without those
    of dialects. `resolve` returns provider and model for a model name that a caller with that run spec used;
    `temperature` returns that of the settings for a provider.
    """

    supervisor: Supervisor
    key_value: KeyValue
    clock: Clock
    agents: Sequence[Agent]
    tool_names: Sequence[str]
    resolve: Callable[[str, RunSpec], tuple[str, str]]
    temperature: Callable[[str], float | None] = lambda provider: None
    families: ProviderFamilies = field(default_factory=ProviderFamilies)
    meter: Meter = field(default_factory=NoMeter)
    workspaces: Workspaces = field(default_factory=Workspaces)
    worktree_changes: Callable[[str], Awaitable[WorktreeChanges | None]] = _no_worktree
    """Returns what a worktree has handed back, by its address; None for nothing."""
    make_output: Callable[[Mapping[str, object]], Output] = _unchecked_output
    """Returns the required form of an answer for a JSON Schema; raises `BadInput` for one that cannot be used."""

    def tools_within(self, policy: Policy) -> tuple[str, ...]:
        """The application's tools that a policy does not exclude."""
        return tuple(name for name in self.tool_names if allows(policy, name))

    def run_spec_for(
        self,
        caller_spec: RunSpec,
        *,
        agent: str,
        system: str,
        offered: tuple[str, ...],
        model: str = "",
        fallback: tuple[str, ...] = (),
    ) -> RunSpec:
        """The run spec of a child: with the caller's model, or the one that `model` resolves to.

        An agent of the application works under its own name, in its own workspace if it has one. Any other works for
        the caller: with the caller's memory and in the caller's workspace. A fallback belongs to its model: a child
        without a model of its own has the caller's, unless it names another.
        """
        provider, name = self.resolve(model, caller_spec) if model else (caller_spec.provider, caller_spec.model)
        own = replace(caller_spec, provider=provider, model=name)
        others = tuple(self.resolve(other, own) for other in fallback)
        known = self.known(agent)
        if known is not None and agent != caller_spec.identity:
            caller_spec = replace(
                caller_spec,
                identity=agent,
                memory_from=known.memory_from,
                workspace=known.workspace or caller_spec.workspace,
                think=caller_spec.think or known.think,
            )
        own_options = NO_OPTIONS if known is None else known.options
        request_options = NO_REQUEST_OPTIONS if known is None else own_options.request_options
        if known is not None:
            # The vendor's tools cost money and send data out: an agent has those that a person gave it, by name.
            server_tools = (name for name in known.tools if is_server_tool(name))
            offered = tuple(dict.fromkeys((*offered, *server_tools)))
        if (
            caller_spec.options.batch_hours is not None
            and own_options.batch_hours is None
            and provider == caller_spec.provider
        ):
            # A caller whose own replies may take hours waits as long for its children.
            request_options = with_hours_of(caller_spec.options, request_options)
        temperature = own_options.temperature
        return replace(
            caller_spec,
            agent=agent,
            system=system,
            offered=offered,
            provider=provider,
            model=name,
            fallback=others if model or fallback else caller_spec.fallback,
            # What else the caller was started with holds for it alone, except the effort of an unnamed agent.
            max_output=own_options.max_output_tokens,
            temperature=self.temperature(provider) if temperature is None else temperature,
            top_p=own_options.top_p,
            effort=caller_spec.effort if known is None else own_options.effort,
            options=request_options,
            output=None,  # a child answers its caller in plain text
            launch_config="",
        )

    def known(self, agent: str) -> Agent | None:
        """The application's agent of that name; None for one that a model has defined."""
        return next((known for known in self.agents if known.name == agent), None)

    def grant(self, agent: str, caller: Policy) -> tuple[Policy | None, tuple[Window, ...]]:
        """The policy of a child of that name under its caller's, and the windows that it draws on besides.

        None and no windows for an agent without a policy: such a child has the caller's.
        """
        known = self.known(agent)
        if known is None or known.policy is None:
            return None, ()
        policy = intersect(caller, known.policy)
        return policy, windows_of(agent, policy)

    async def begun(self, context: CallContext) -> RunRow | None:
        """The run that this call started before a crash, whatever the settings are now."""
        if not context.again:
            return None
        return await self.supervisor.stored.run_by_key(context.key)

    async def spawn(self, spawn_request: SpawnRequest, context: CallContext, *, key: Key | None = None) -> StartedRun:
        """Start a run below the caller, in its session, under the key of the call unless another is given."""
        session_id, key = context.session_id, context.key if key is None else key
        agent = self.known(spawn_request.agent)
        if agent is not None and agent.isolation == "worktree":
            spawn_request = self.in_worktree(spawn_request, context, key)
        return await self.supervisor.spawn(spawn_request, session_id=session_id, caller=context, key=key)

    def in_worktree(self, spawn_request: SpawnRequest, context: CallContext, key: Key) -> SpawnRequest:
        """The request of a child that works in a git worktree of its own; one that goes on stays in its worktree.

        Raises `CallRefused` where the workspace is not the top folder of a repository.
        """
        run_spec = spawn_request.run_spec
        caller_workspace = self.run_spec_of(context.run_id).workspace
        if is_worktree(run_spec.workspace) and run_spec.workspace != caller_workspace:
            return spawn_request
        named = context.workspace if is_address(run_spec.workspace) else run_spec.workspace
        try:
            folder = self.workspaces.open(named).path
        except WorkspaceRefused as refused:
            raise CallRefused(str(refused)) from refused
        if not os.path.isdir(os.path.join(folder, ".git")):
            raise CallRefused(
                f"The workspace {folder} is not the top folder of a git repository with its own .git. "
                "Valid: no isolation."
            )
        return replace(
            spawn_request,
            run_spec=replace(run_spec, workspace=worktree_of(key, folder)),
            policy=_without_folder(spawn_request.policy or context.policy, folder),
            stays_here=True,
        )

    def run_spec_of(self, run_id: RunId) -> RunSpec:
        """The run spec of a live run, or of a child that another process drives for it."""
        live = self.supervisor.live(run_id)
        run_spec = self.supervisor.placed_spec(run_id) if live is None else live.run.run_spec
        if run_spec is None:
            raise TreeCancelled(run_id)
        return run_spec


def _without_folder(policy: Policy, folder: str) -> Policy:
    """The policy of a child in a worktree: the folder of its caller is closed to it, and no root any more.

    What is forbidden in that folder is forbidden at the same place of the worktree, which has a copy of it.
    """
    absolute = [os.path.expanduser(path) for path in policy.forbidden_paths]
    spellings = (spelling for path in absolute if os.path.isabs(path) for spelling in (path, os.path.realpath(path)))
    inside = [os.path.relpath(path, folder) for path in spellings if os.path.commonpath((path, folder)) == folder]

    def outside(roots: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(root for root in roots if os.path.commonpath((os.path.realpath(root), folder)) != folder)

    return replace(
        policy,
        forbidden_paths=tuple(dict.fromkeys((*policy.forbidden_paths, *inside, folder))),
        allowed_roots=outside(policy.allowed_roots),
        allowed_roots_read_only=outside(policy.allowed_roots_read_only),
        allowed_roots_write_only=outside(policy.allowed_roots_write_only),
    )
