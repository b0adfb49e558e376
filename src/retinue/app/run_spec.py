"""Build the spec of a root run from its agent, dialects and arguments, and store with it how the retinue was opened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from retinue.app.handle import ChildRuns
from retinue.app.registries import ProviderRegistry, RegistryFamilies, ToolRegistry
from retinue.app.structured_output import make_output
from retinue.core.agent import DEFAULT_AGENT, Agent, RunSpec, is_server_tool
from retinue.core.budget import Window
from retinue.core.errors import BadInput, PolicyError, UnknownName
from retinue.core.events import RunAccepted
from retinue.core.log_context import RunFields, line
from retinue.core.model_options import NO_OPTIONS, Effort, ModelOptions
from retinue.core.policy import (
    Policy,
    Verdict,
    allows,
    inherit,
    intersect,
    narrowed_windows,
    verdict,
    windows_of,
)
from retinue.core.ports import Tool, price_of
from retinue.core.run import Limits, Outcome, nanodollars
from retinue.core.state import Run
from retinue.core.workspace import WorkspaceUnavailable, place_of
from retinue.dialects import registry
from retinue.dialects.base import Dialect, PolicyTexts
from retinue.dialects.context import DialectContext, WorktreeChanges
from retinue.engine import PlainOutcomeTexts, Supervisor, plain_log_fields
from retinue.local.workspaces import FetchedWorkspaces
from retinue.providers.catalog import ProviderConfig
from retinue.telemetry import exporters
from retinue.tools.builtin import with_reader
from retinue.tools.dependencies import Preset
from retinue.tools.path_walk import Workspaces

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

PATCH_BYTES = 16_000
"""Bytes of the patch of a worktree that a model reads."""

DetachedApprovals: TypeAlias = Literal["", "wait", "deny", "yes"]
"""How a detached run handles calls that need approval; empty for a run that is not detached."""


class LaunchConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What another process needs to resume a run: providers, tools, agents and folders.

    Headers of a provider may be secret and are left out, and so is the program of an agent, because what is started
    comes from settings alone; both are read from the settings file again.
    """

    model: str = ""
    provider_configs: tuple[ProviderConfig, ...] = field(default=(), name="contacts")
    dialects: tuple[str, ...] = ()
    agents: tuple[Agent, ...] = ()
    tool_modules: tuple[str, ...] = ()
    config: str = ""
    workspace: str = ""
    no_sandbox: bool = False
    """Whether programs of the tools were allowed to run without a sandbox."""
    preset: Preset | None = None
    """The preset of tools, rights and surroundings that the run was started with."""
    mcp_config: tuple[str, ...] = ()
    """JSON files with MCP servers."""
    detached: DetachedApprovals = ""
    """Set for a detached run, which a daemon continues if its process is gone."""
    approvals: Literal["", "deny"] = ""
    """`deny` if calls of this tree that need approval are refused, whatever the process does with those of others."""

    def text(self) -> str:
        """The config as JSON, as a run spec stores it."""
        bare = tuple(msgspec.structs.replace(each, headers={}, program=None) for each in self.provider_configs)
        return msgspec.json.encode(msgspec.structs.replace(self, provider_configs=bare)).decode()


MAX_TURNS = 50
"""The turn limit of a run whose agent and caller set none."""


class DialectOutcomeTexts(PlainOutcomeTexts):
    """Texts about the end of a run: those of the dialect that started it, else the engine's."""

    def __init__(self, dialects: Mapping[str, Dialect]) -> None:
        self._dialects = dialects

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        dialect = self._dialects.get(accepted.dialect)
        text = None if dialect is None else dialect.notice(accepted, outcome)
        return super().notice(accepted, outcome) if text is None else text

    def handover(self, accepted: RunAccepted, outcome: Outcome) -> tuple[bool, str]:
        dialect = self._dialects.get(accepted.dialect)
        result = None if dialect is None else dialect.handover(outcome)
        return super().handover(accepted, outcome) if result is None else result


def log_fields(run: Run, dialects: Mapping[str, Dialect]) -> RunFields:
    """The fields with which the log lines of a run begin: those of its dialects, else the engine's."""
    present = [dialects[name] for name in run.run_spec.dialects if name in dialects]
    named = {dialect.name: line(**fields) for dialect in present if (fields := dialect.log_fields(run))}
    return named or plain_log_fields(run)


class RunSpecBuilder:
    """Builds the specs of root runs, and their dialects; `agents` are those configured, `model` is the default one."""

    def __init__(
        self,
        supervisor: Supervisor,
        tools: ToolRegistry,
        providers: ProviderRegistry,
        *,
        agents: Mapping[str, Agent],
        model: str,
        dialect_settings: Mapping[str, object],
        workspaces: Workspaces,
        folders: FetchedWorkspaces,
        own_dialects: Sequence[Dialect] = (),
    ) -> None:
        self._own_dialects = {dialect.name: dialect for dialect in own_dialects}
        self._supervisor = supervisor
        self._tools = tools
        self._providers = providers
        self._agents = agents
        self._model = model
        self._settings = dialect_settings
        self._workspaces = workspaces
        self._folders = folders
        self._dialects: dict[str, Dialect] = {}
        self._known_unpriced: set[tuple[str, str]] = set()
        self._dialect_context: DialectContext

    def begin(self, chosen: Sequence[str], *, meter_provider: MeterProvider | None = None) -> None:
        """Create the default dialects; others are created when a run first names them."""
        self._dialect_context = DialectContext(
            supervisor=self._supervisor,
            key_value=self._supervisor.key_value,
            clock=self._supervisor.clock,
            agents=tuple(self._agents.values()),
            tool_names=self._tools.names,
            temperature=self._providers.temperatures.get,
            families=RegistryFamilies(self._providers),
            meter=exporters.meter(meter_provider),
            workspaces=self._workspaces,
            worktree_changes=self._worktree_changes,
            make_output=make_output,
            resolve=lambda model, caller_spec: self._providers.split(model, caller_spec.provider),
        )
        self._supervisor.use_spawner(ChildRuns(self._dialect_context, self._own_tools_at))
        self._together(chosen)
        self._supervisor.use_outcome_texts(DialectOutcomeTexts(self._dialects))
        self._supervisor.use_log_fields(lambda run: log_fields(run, self._dialects))

    async def _worktree_changes(self, workspace: str) -> WorktreeChanges | None:
        from retinue.local.worktrees import Worktrees, readable_text  # few runs have worktrees

        def read() -> WorktreeChanges | None:
            worktrees = Worktrees(self._folders.home, self._folders.git)
            view = worktrees.find(place_of(workspace, ""))
            if not view.files:
                return None
            patch = worktrees.patch(view, binary=False, longest=PATCH_BYTES)
            return WorktreeChanges(view.branch, view.files, readable_text(patch))

        try:
            return await asyncio.to_thread(read)
        except (BadInput, WorkspaceUnavailable):  # it was removed
            return None

    def load_dialects(self, names: Sequence[str]) -> None:
        """Create these dialects, for runs that another process started; raises `UnknownName` for an unknown one."""
        for name in names:
            self._dialect(name)

    def tool(self, name: str, dialects: tuple[str, ...]) -> Tool | None:
        """The tool of that name, as a run with these dialects calls it."""
        return self._tools.find(name, dialects)

    def agent(self, name: str | None) -> Agent:
        """The agent with this name, or an agent `main` with all tools and no system prompt."""
        if name is None:
            return Agent(name=DEFAULT_AGENT, tools=self._tools.offered, no_tools=not self._tools.offered)
        if name not in self._agents:
            raise UnknownName("agent", name, tuple(self._agents))
        return self._agents[name]

    def run_spec(
        self,
        agent: Agent,
        chosen: tuple[str, ...],
        *,
        tools: Sequence[str] | None = None,
        model: str | None = None,
        system: str = "",
        think: bool = False,
        effort: Effort | None = None,
        options: ModelOptions = NO_OPTIONS,
        policy: Policy | None = None,
        ceiling: bool = True,
    ) -> RunSpec:
        """The spec of a run of this agent with these dialects: system prompt, tools, provider and model.

        With `ceiling`, the tools in `tools` and those of the dialects are all that the run's tree may have.

        The dialects' texts are about those tools that the agent's policy, and `policy` if one is given, allow.
        """
        dialects = self._together(chosen)
        own = self._tools.expanded(_own_tools(agent, dialects) if tools is None else tuple(tools))
        for name in own:
            if name not in self._tools.names and self._tools.find(name, chosen) is None:
                raise UnknownName("tool", name, self._tools.names)
        delegation = tuple(name for dialect in dialects for name in dialect.offered(depth=0))
        offered = tuple(dict.fromkeys((*own, *delegation)))
        agents = tuple(self._agents.values())
        policies = [self._supervisor.rules.ceiling_of(agent.name), *([] if policy is None else [policy])]
        visible = tuple(name for name in offered if all(allows(each, name) for each in policies))
        texts = [agent.system_prompt, system, *(dialect.system_text(agents, visible) for dialect in dialects)]
        model, first = model or agent.model, self._providers.first
        provider, name = self._providers.split(model, first) if model else (first, self._model)
        chosen_options = ModelOptions(effort=effort).over(options).over(agent.options)
        self._providers.check_options(provider, chosen_options)
        fallback = tuple(self._providers.split(other, provider) for other in agent.fallback)
        if any(map(is_server_tool, visible)):
            self._check_server_tools(visible, chosen, ((provider, name), *fallback), policies)
        temperature = chosen_options.temperature
        return RunSpec(
            agent=agent.name,
            system="\n\n".join(text for text in texts if text),
            offered=offered,
            dialects=chosen,
            provider=provider,
            model=name,
            fallback=fallback,
            max_output=chosen_options.max_output_tokens,
            temperature=self._providers.temperatures.get(provider) if temperature is None else temperature,
            top_p=chosen_options.top_p,
            think=think or agent.think,
            effort=chosen_options.effort,
            options=chosen_options.request_options,
            workspace=agent.workspace or str(Path.cwd()),
            identity=agent.name,
            memory_from=agent.memory_from,
            tool_ceiling=_tool_ceiling(own, dialects) if ceiling and dialects and tools is not None else None,
            tags=agent.tags,
        )

    def _check_server_tools(
        self,
        offered: Sequence[str],
        dialects: tuple[str, ...],
        models: Sequence[tuple[str, str]],
        policies: Sequence[Policy],
    ) -> None:
        """Raise `BadInput` for a tool of the vendor that a model does not have, or that needs an approval."""
        found = [tool for name in offered if (tool := self._tools.find(name, dialects)) is not None]
        tools = [tool for tool in found if tool.server is not None]
        decisions = (
            (tool, verdict(policy, tool=tool.spec.name, risk=tool.risk, acts=tool.acts))
            for tool in tools
            for policy in policies
        )
        for tool, decision in decisions:
            if decision.verdict is not Verdict.ALLOW:
                raise BadInput(
                    f"{tool.spec.name} is run by the model's vendor, where no call waits for an approval: "
                    f"{decision.reason}. List it in auto_approve, or leave it out"
                )
        specs = [tool.server for tool in tools if tool.server is not None]
        for provider, model in models:
            self._providers.check_server_tools(provider, model, specs, others=len(found) > len(tools))

    def unpriced(self, run_spec: RunSpec, limits: Limits) -> Iterator[str]:
        """Warnings that a limit on cost may not bind: one for each model without a known price that a run may call.

        With a limit of the run, its model, its fallbacks and those of the agents that it can delegate to are checked;
        else those of agents with limits of their own. Each model has one warning for each `retinue.open`.
        """
        first, limited = (run_spec.provider, run_spec.model), limits.max_nanodollars is not None
        asked = [first, *run_spec.fallback] if limited else []
        for agent in self._agents.values() if run_spec.dialects else ():
            if limited or agent.limits.max_nanodollars is not None:
                named = [self._providers.split(model, first[0]) for model in (agent.model, *agent.fallback) if model]
                asked += named if agent.model else [first, *named]
        for provider, model in asked:
            if (provider, model) not in self._known_unpriced and not self._has_price(provider, model):
                self._known_unpriced.add((provider, model))
                yield (
                    f"no price known for model {model or '(default)'} (provider {provider}): max_cost is only enforced "
                    "as far as the provider reports costs; give the model a price (retinue.ports.PricedProvider), or "
                    "set max_tokens instead"
                )

    def _has_price(self, provider: str, model: str) -> bool:
        try:
            found = self._providers.find(provider)
            return found is None or price_of(found, model) is not None
        except Exception:  # also a bug of the provider: the run says so when it calls the model
            return True

    def _own_tools_at(self, dialects: Sequence[str], depth: int) -> tuple[str, ...]:
        """The tools that dialects which are not built in offer to a run at this depth."""
        others = [self._dialect(name) for name in dialects if name not in registry.PACKAGES]
        return tuple(name for dialect in others for name in dialect.offered(depth=depth))

    def _together(self, chosen: Sequence[str]) -> list[Dialect]:
        """The dialects of one run; raises `BadInput` if they have a tool name in common."""
        dialects = [self._dialect(name) for name in chosen]
        self._tools.check_together(chosen)
        return dialects

    def _dialect(self, name: str) -> Dialect:
        if name not in self._dialects:
            dialect = self._own_dialects.get(name) or registry.make(
                name, self._dialect_context, self._settings.get(name)
            )
            self._dialects[name] = dialect
            self._tools.add(dialect)
        return self._dialects[name]


def limits_of(agent: Agent, asked: Limits | None, *, delegates: bool) -> Limits:
    """The limits of a run: those that the caller set, else those of its agent."""
    if asked is None:
        # The dialects' limits are exact; without one, the last turn is set aside for an answer.
        return replace(agent.limits, max_turns=agent.max_turns or MAX_TURNS, wrap_up=not delegates)
    if asked.max_turns is None and asked.exchange_turns is None and agent.max_turns is not None:
        return replace(asked, max_turns=agent.max_turns)
    return asked


def with_single_limits(
    limits: Limits,
    *,
    max_turns: int | None,
    max_tokens: int | None,
    max_cost: float | Decimal | None,
    timeout: float | None,
) -> Limits:
    """The limits with those that are given one by one; `max_cost` is in dollars, `timeout` in seconds."""
    given: dict[str, object] = {
        "max_turns": max_turns,
        "max_tokens": max_tokens,
        "max_nanodollars": None if max_cost is None else nanodollars(max_cost),
        "timeout": timeout,
    }
    given = {name: value for name, value in given.items() if value is not None}
    return replace(limits, **given) if given else limits


def _tool_ceiling(tools: Sequence[str], dialects: Sequence[Dialect]) -> tuple[str, ...]:
    """The only tools of a tree: those given for its root, and those with which its runs delegate.

    A run without dialects needs none: it has no runs below, and is offered its own tools alone.
    """
    return tuple(dict.fromkeys((*tools, *(name for dialect in dialects for name in dialect.tools()))))


def _own_tools(agent: Agent, dialects: Sequence[Dialect]) -> tuple[str, ...]:
    """The tools that an agent names, or those that the dialects have for an agent that names none."""
    if agent.tools or agent.no_tools:
        return agent.tools
    return with_reader([name for dialect in dialects for name in dialect.default_tools(agent)])


class Grants:
    """Computes the policies and windows that the settings and earlier runs allow."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._rules = supervisor.rules

    def windows(self, identity: str, policy: Policy | None) -> tuple[Window, ...]:
        """The hourly and daily windows of an agent, if it or the session has a policy."""
        given = policy if policy is not None else self._rules.policy_for(identity)
        return () if given is None else windows_of(identity, given)

    async def of_fork(self, origin: Run, policy: Policy | None) -> Policy:
        """The policy of a fork: what its origin may do today, narrowed by `policy`; raises `PolicyError` for more."""
        grants = await self._supervisor.current_policy(origin)
        grants = intersect(grants, self._rules.ceiling_of(_identity(origin)))
        try:
            return inherit(grants, policy)
        except PolicyError as refused:
            raise escalation(refused) from refused

    async def windows_of_fork(self, origin: Run, grants: Policy, *, own: Policy | None) -> tuple[Window, ...]:
        """The windows of a fork, including those of the runs above its origin, so that it draws on the same limits."""
        windows = {window.name: window for window in self.windows(_identity(origin), own)}
        above: Run | None = origin
        while above is not None:
            for window in above.accepted.windows:
                windows.setdefault(window.name, window)
            parent_id = above.accepted.parent_id
            above = await self._supervisor.replay(parent_id) if parent_id is not None else None
        return narrowed_windows(tuple(windows.values()), grants)


def escalation(refused: PolicyError) -> PolicyError:
    """The error for a policy that asks for more than is allowed, with the text that the caller's dialect prescribes."""
    return PolicyError(
        _texts().escalation.format(refusal=refused), field=refused.field, asked=refused.asked, allowed=refused.allowed
    )


def narrowed_memory(asked: Sequence[str], run_spec: RunSpec) -> tuple[str, ...]:
    """The agents whose memory a run may read: those it asks for, which its agent must be allowed (`PolicyError`)."""
    for name in asked:
        if name not in (run_spec.identity, *run_spec.memory_from):
            raise PolicyError(
                _texts().memory.format(alias=json.dumps(name, ensure_ascii=False)),
                field="memory_from",
                asked=name,
                allowed=run_spec.memory_from,
            )
    return tuple(name for name in run_spec.memory_from if name in asked)


def _identity(run: Run) -> str:
    return run.run_spec.identity or run.accepted.agent


def _texts() -> PolicyTexts:
    return next(registry.having(lambda entry: entry.policy_texts))
