"""Start a new run from settings and options: choose its model, set its limits, open a retinue, spawn.

`retinue run`, `retinue chat` and cron jobs start their runs here, and so can every other front end::

    settings = settings_for(config, agent=options.agent)
    launch = await prepare(settings, options)
    async with launch.open(approvals="wait") as retinue:
        root = await launch.spawn(retinue, task)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from retinue.app.handle import RunHandle
from retinue.app.launch.model_choice import ModelChoice, choose_model, other_model, unpriced
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.app.run_spec import MAX_TURNS, DetachedApprovals, LaunchConfig
from retinue.app.settings_file import dialect_settings, load_settings, mcp_servers, server_tools, telemetry_of
from retinue.app.state_folder import chosen_url
from retinue.app.structured_output import OutputFormat
from retinue.app.tool_modules import load_tools
from retinue.config.agent_files.translation import AGENT_FILES, AgentFileSettings
from retinue.config.defaults import NO_ROOT_DEFAULTS
from retinue.config.precedence import Flags
from retinue.config.settings import Settings
from retinue.core.agent import Agent, RunSpec
from retinue.core.attachments import Attachment
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.model_options import EFFORTS, NO_OPTIONS, Effort, ModelOptions
from retinue.core.policy import Policy
from retinue.core.ports import Hooks, Provider
from retinue.core.run import HistoryRef, Limits
from retinue.core.usage import NANO
from retinue.dialects import registry
from retinue.engine import Approver
from retinue.mcp_client import GET_PROMPT, PREFIX, READ_RESOURCE, McpServer
from retinue.providers.catalog import ProviderConfig, check_temperature
from retinue.tools import coding
from retinue.tools.builtin import with_reader
from retinue.tools.dependencies import Preset

NO_FLAGS = Flags()


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Limits that were given for a run; None leaves what the settings of its agent say."""

    max_turns: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    """Dollars."""
    timeout: float | None = None
    """Seconds."""

    def over(self, limits: Limits) -> Limits:
        given = {
            "max_turns": self.max_turns,
            "max_tokens": self.max_tokens,
            "max_nanodollars": None if self.max_cost is None else round(self.max_cost * NANO),
            "timeout": self.timeout,
        }
        return replace(limits, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The options of a new run; the settings say the rest."""

    flags: Flags = NO_FLAGS
    """Model, provider, address and key variable."""
    agent: str | None = None
    """An agent of the settings; None is an agent without instructions of its own."""
    dialects: tuple[str, ...] = ()
    """See `dialects_for` for those of a run for which none is named."""
    session: SessionId | None = None
    system: str = ""
    tools: tuple[str, ...] | None = None
    """Names; None offers what the agent has."""
    tools_are_ceiling: bool = True
    """Whether `tools` is all that the run's tree may have; False for a list that no person has given."""
    default_tools: tuple[str, ...] = ()
    """Names that are offered where no list is given, neither here nor by the agent."""
    more_tools: tuple[str, ...] = ()
    """Names that are offered on top of `tools`, or of what the agent has."""
    think: bool = False
    model_options: ModelOptions = NO_OPTIONS
    limits: LimitOptions = LimitOptions()
    unpriced_ok: bool = False
    """Whether a limit on cost is accepted for a model whose price is unknown, to which it cannot apply."""
    preset: Preset | None = None
    """Tools, rights and surroundings of programs for one kind of work; `settings_for` has that of the settings."""
    tags: tuple[str, ...] = ()
    """Tags that a worker must have to drive the run."""
    priority: int = 0
    """Waiting runs of a higher one are taken first."""
    workspace: str | None = None
    """Where the tools of the tree work, in place of the current folder; see `core.workspace`."""
    no_sandbox: bool = False
    """Programs of the tools run without a sandbox, whatever the settings say now and on resume."""
    mcp_config: tuple[str, ...] = ()
    """JSON files with MCP servers, besides those of the settings."""
    mcp_servers: tuple[McpServer, ...] = ()
    """MCP servers that a front end was given, in place of others of the same name; they are not stored with a run."""
    model_choice: ModelChoice | None = None
    """A model that a front end itself provides; `flags` and settings are not asked then."""


def settings_for(
    config: str | None, *, agent: str | None, profile: str | None = None, agent_folders: Sequence[str] = ()
) -> Settings:
    """The settings in `config` or those found from the current folder, with a profile and with agents from files.

    Raises `BadInput` if they lack the named agent or profile.
    """
    settings = load_settings(config, agent_folders=agent_folders).with_profile(profile)
    if agent is not None and agent not in settings.agents:
        if not settings.agents:
            raise BadInput(f"unknown agent: {agent!r}; the settings have no [agents.NAME]")
        raise UnknownName("agent", agent, tuple(settings.agents))
    return settings


def dialects_for(named: tuple[str, ...] | None, settings: Settings) -> tuple[str, ...]:
    """The named dialects, else those of the settings; else the default dialect if the settings have agents.

    Tools for delegation cost tokens in every call, and a small model uses whatever it is offered.
    """
    if named is not None:
        return named
    if settings.default_dialects is not None:
        return settings.default_dialects
    return (registry.DEFAULT,) if any(agent.enabled for agent in settings.agents.values()) else ()


def default_tools_for(
    agent: str | None, dialects: tuple[str, ...], settings: Settings, preset: Preset | None = None
) -> tuple[str, ...]:
    """The tools of a run for which none are named and whose agent names none."""
    if agent is None and settings.default_tools is not None:
        return settings.default_tools
    if preset == "coding":
        return coding.TOOLS
    return registry.root_tools(dialects)


async def prepare(settings: Settings, options: LaunchOptions) -> Launch:
    """Choose the model and set the limits; nothing is opened or written yet.

    Raises `BadInput` if a limit on cost is given and a model that it shall apply to has no known price.
    """
    model_choice = options.model_choice or await choose_model(options.flags, settings, agent=options.agent)
    if options.model_choice is None:
        check_temperature(model_choice.provider_config, options.model_options.temperature)
    # A dialect's limits are exact; without a dialect the last turn is reserved for an answer.
    limits, root = Limits(max_turns=MAX_TURNS, wrap_up=not options.dialects), settings.root
    if root != NO_ROOT_DEFAULTS:
        limits = root.limits_over(limits)
        options = dataclasses.replace(options, model_options=root.options_over(options.model_options))
    if options.agent is not None:
        limits = settings.agents[options.agent].limits_over(limits)
    if options.agent is None:
        options = dataclasses.replace(options, system=options.system or root.system_prompt)
    if settings.section(AGENT_FILES.name, AgentFileSettings).instructions:
        from retinue.app.agent_folders import workspace_instructions  # imported late: few settings ask for it

        instructions = workspace_instructions(Path.cwd())
        options = dataclasses.replace(options, system="\n\n".join(filter(None, (options.system, instructions))))
    launch = Launch(settings=settings, options=options, model_choice=model_choice, limits=options.limits.over(limits))
    return launch.checked()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that is decided before a run starts."""

    settings: Settings
    options: LaunchOptions
    model_choice: ModelChoice
    limits: Limits

    @property
    def tools(self) -> tuple[str, ...] | None:
        """Names of the tools that the run is offered; None offers what the agent has."""
        options = self.options
        own = None if options.agent is None else self.settings.agents[options.agent].tools
        listed = own if options.tools is None else options.tools
        if not listed and own is None:  # no list of tools was given, which would be exact
            # An agent without a list has what its dialects give it; those of several dialects do not combine.
            is_default = options.agent is None or len(options.dialects) == 1
            chosen = (*(options.default_tools if is_default else ()), *self._server_tools(), *options.more_tools)
            return with_reader(chosen) if chosen else options.tools
        return (*(listed or ()), *options.more_tools) if options.more_tools else options.tools

    def _server_tools(self) -> tuple[str, ...]:
        """The tools of MCP servers: a run without an agent has all, unless a list of tools was given."""
        has_servers = self.settings.mcp_servers or self.options.mcp_config or self.options.mcp_servers
        if not has_servers or self.options.agent is not None or self.settings.default_tools is not None:
            return ()
        return (f"{PREFIX}*", READ_RESOURCE, GET_PROMPT) if not self.has_ceiling else ()

    @property
    def has_ceiling(self) -> bool:
        """Whether `tools` bounds the whole tree: a person has given a list for the run."""
        return self.options.tools is not None and self.options.tools_are_ceiling

    def checked(self) -> Launch:
        """The launch itself; raises `BadInput` if a limit on cost was given for a model without a known price."""
        if self.options.limits.max_cost is not None and not self.options.unpriced_ok and (unknown := self.warnings()):
            raise BadInput(f"{unknown[0]}, or accept it with --unpriced ok")
        return self

    def with_model(self, model: str) -> Launch:
        """The launch with another model: `provider:name`, or a name at the same provider; raises `BadInput`."""
        choice = other_model(self.model_choice, model)
        check_temperature(choice.provider_config, self.options.model_options.temperature)
        return dataclasses.replace(self, model_choice=choice).checked()

    def with_effort(self, effort: str) -> Launch:
        """The launch with another effort; raises `BadInput` for one that does not exist."""
        chosen: Effort | None = next((each for each in EFFORTS if each == effort), None)
        if chosen is None:
            raise BadInput(f"effort: found {effort!r:.40}; expected one of: {', '.join(EFFORTS)}")
        options = ModelOptions(effort=chosen).over(self.options.model_options)
        return dataclasses.replace(self, options=dataclasses.replace(self.options, model_options=options))

    def with_system(self, system: str) -> Launch:
        """The launch with another system prompt."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, system=system))

    def warnings(self) -> list[str]:
        """One warning for each model without a known price, where a limit on cost applies to it.

        The limits of a run apply to its children, too. The daily limit that every policy has by default is not
        worth a warning.
        """
        agents = self.settings.core_agents()
        delegates = bool(self.options.dialects)
        root = next((each for each in agents if each.name == self.options.agent), None)
        if self.limits.max_cost is not None or (root is not None and _limits_money(root)):
            return unpriced(self.model_choice, agents if delegates else (), root.fallback if root is not None else ())
        limited = [each for each in agents if delegates and _limits_money(each)]
        return unpriced(self.model_choice, limited, first=any(not each.model for each in limited))

    def open(
        self,
        *,
        approvals: Approver = "deny",
        providers: Mapping[str, Provider] | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> Retinue:
        """A retinue for the run, with a launch config that its root runs store. It adopts no older runs.

        `providers` are objects of the front end, by name, and `hooks` are its own.
        """
        config = config_of(
            self.settings,
            model=self.model_choice.model,
            provider_configs=self.model_choice.providers,
            dialects=self.options.dialects,
            workspace=str(Path.cwd()),
            no_sandbox=self.options.no_sandbox,
            preset=self.options.preset,
            mcp_config=tuple(str(Path(file).absolute()) for file in self.options.mcp_config),
        )
        return open_config(
            config,
            self.settings,
            session=self.options.session,
            approvals=approvals,
            providers=providers,
            hooks=hooks,
            servers=self.options.mcp_servers,
        )

    def run_spec(self, retinue: Retinue, *, dialects: tuple[str, ...] | None = None) -> RunSpec:
        """The run spec of a run that is started in the opened retinue."""
        return retinue.run_spec(
            agent=self.options.agent,
            dialects=dialects,
            tools=self.tools,
            model=self.model_choice.full_name,
            system=self.options.system,
            think=self.options.think,
            options=self.options.model_options,
            ceiling=self.has_ceiling,
        )

    async def spawn(
        self,
        retinue: Retinue,
        task: str,
        *,
        limits: Limits | None = None,
        dialects: tuple[str, ...] | None = None,
        key: Key | None = None,
        keep_alive: bool = False,
        per_input: bool = False,
        inherits: HistoryRef | None = None,
        detached: DetachedApprovals = "",
        output: OutputFormat | None = None,
        label: str = "",
        attachments: Sequence[Attachment] = (),
    ) -> RunHandle:
        """Start a run in the opened retinue; the arguments are those of `Retinue.spawn`.

        With `detached` the run is recorded, not started; the value is how a later process handles calls that need
        approval.
        """
        if detached and retinue.launch_config is not None:
            retinue.launch_config = replace(retinue.launch_config, detached=detached)
        return await retinue.spawn(
            task,
            agent=self.options.agent,
            key=key,
            limits=limits or self.limits,
            dialects=dialects,
            tools=self.tools,
            model=self.model_choice.full_name,
            system=self.options.system,
            think=self.options.think,
            options=self.options.model_options,
            keep_alive=keep_alive,
            per_input=per_input,
            inherits=inherits,
            detached=bool(detached),
            output=output,
            label=label,
            ceiling=self.has_ceiling,
            attachments=attachments,
            tags=self.options.tags,
            workspace=self.options.workspace,
            priority=self.options.priority,
        )

    async def save_message(self, retinue: Retinue, run_id: RunId, text: str, dialects: Sequence[str]) -> None:
        """Store a message of the user as a memory of the agent, if the settings and a dialect of the run say so."""
        if self.settings.memory.auto_save:
            from retinue.app.memories import save_message  # imported late: few settings ask for it

            await save_message(
                self.settings, self.options.agent, dialects, text, run_id=run_id, session_id=retinue.session_id
            )


def _limits_money(agent: Agent) -> bool:
    return agent.policy is not None and agent.policy.max_cost_per_day_cents != Policy().max_cost_per_day_cents


def config_of(
    settings: Settings,
    *,
    model: str,
    provider_configs: tuple[ProviderConfig, ...],
    dialects: tuple[str, ...],
    workspace: str = "",
    no_sandbox: bool = False,
    preset: Preset | None = None,
    mcp_config: tuple[str, ...] = (),
) -> LaunchConfig:
    return LaunchConfig(
        model=model,
        provider_configs=provider_configs,
        dialects=dialects,
        agents=settings.core_agents(),
        tool_modules=tuple(str(path) for path in settings.tool_modules),
        config=str(settings.source or ""),
        workspace=workspace,
        no_sandbox=no_sandbox,
        preset=preset,
        mcp_config=mcp_config,
    )


def open_config(
    config: LaunchConfig,
    settings: Settings,
    *,
    session: SessionId | None,
    approvals: Approver,
    home: Path | None = None,
    providers: Mapping[str, Provider] | None = None,
    hooks: Sequence[Hooks] = (),
    servers: Sequence[McpServer] = (),
) -> Retinue:
    """A retinue by a launch config. The settings have what it does not store: tool options and dialect sections.

    `servers` are further MCP servers.
    """
    named = {server.name: server for server in (*mcp_servers(settings, config.mcp_config, home=home), *servers)}
    options = replace(settings.tool_options, preset=config.preset)
    policy = coding.POLICY if config.preset == "coding" and settings.policy is None else settings.policy
    options = replace(options, protected=(*options.protected, *config.mcp_config))
    retinue = open_retinue(
        model=config.model,
        provider=config.provider_configs[0].name,
        provider_configs=config.provider_configs,
        providers=providers,
        tools=load_tools(map(Path, config.tool_modules)) if config.tool_modules else (),
        tool_options=replace(options, sandbox="off") if config.no_sandbox else options,
        dialects=config.dialects,
        dialect_settings=dialect_settings(settings),
        agents=config.agents,
        mcp_servers=tuple(named.values()),
        server_tools=server_tools(settings),
        policy=policy,
        session=session,
        home=home,
        store=chosen_url(),
        approvals=approvals,
        hooks=hooks,
        telemetry=telemetry_of(settings),
    )
    retinue.launch_config = config
    return retinue
