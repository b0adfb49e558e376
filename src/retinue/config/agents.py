"""The section `[agents.<name>]`: agents with their prompts, tools, models, profiles and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from retinue.config import error_texts
from retinue.config import model_options as keys
from retinue.config.memory import Backend, backend_issues, supported_backend
from retinue.config.profiles import absolute
from retinue.config.providers import ProviderSettings
from retinue.config.section_type import NamedTables, Section
from retinue.config.validation import Issue
from retinue.config.worker import Tag
from retinue.core.agent import Agent, Placement
from retinue.core.errors import BadInput
from retinue.core.key_paths import KeyPath
from retinue.core.policy import Policy, RuntimeProfile
from retinue.core.run import Limits

NANODOLLARS = 1_000_000_000

Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Name = Annotated[str, Meta(min_length=1)]
ProviderRef = Annotated[
    str,
    Meta(
        pattern=r"\A[^.\s]+\.[^.\s]+\Z", extra={"expected": "WIRE.NAME, as in openai-chat.local for [providers.local]"}
    ),
]


class LimitSettings(Struct, frozen=True, kw_only=True):
    """Limits of a run in user units (dollars, seconds); a missing limit is not set here."""

    max_tokens: Annotated[
        Count | None, Meta(description="Tokens of input and output together.", examples=[200_000])
    ] = None
    max_input_tokens: Annotated[Count | None, Meta(description="Tokens of input.", examples=[150_000])] = None
    max_output_tokens: Annotated[Count | None, Meta(description="Tokens of output.", examples=[50_000])] = None
    max_cost: Annotated[Dollars | None, Meta(description="US dollars.", examples=[0.5])] = None
    max_calls: Annotated[Count | None, Meta(description="Calls of tools.", examples=[100])] = None
    max_repeats: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000_000)] | None,
        Meta(
            description="Replies in a row with equal calls and equal results; 5 by default, 0 for no limit.",
            examples=[5],
        ),
    ] = None
    timeout: Annotated[Seconds | None, Meta(description="Seconds of work.", examples=[600])] = None
    model_timeout: Annotated[Seconds | None, Meta(description="Seconds for one answer of a model.", examples=[300])] = (
        None
    )
    first_timeout: Annotated[
        Seconds | None, Meta(description="Seconds of silence before the first word of an answer.", examples=[300])
    ] = None
    idle_timeout: Annotated[Seconds | None, Meta(description="Seconds of silence within an answer.", examples=[60])] = (
        None
    )
    tool_timeout: Annotated[Seconds | None, Meta(description="Seconds for one call of a tool.", examples=[120])] = None
    retry_for: Annotated[
        Annotated[float, Meta(ge=0, le=1_000_000_000)] | None,
        Meta(description="Seconds for which an overloaded model is called again; 600 by default.", examples=[600]),
    ] = None
    wrap_up: Annotated[
        bool | None,
        Meta(description="Whether the last turn is reserved for a summary of what was found.", examples=[True]),
    ] = None


class WorkspaceSettings(Struct, frozen=True, kw_only=True):
    """An agent's working folder and the memories it may read."""

    path: Annotated[
        str | None, Meta(description="The folder it works in; by default the current one.", examples=["./research"])
    ] = None
    read_memory_from: Annotated[
        tuple[Name, ...], Meta(description="Agents whose memory it may read besides its own.", examples=[[]])
    ] = ()


class MemorySettings(Struct, frozen=True, kw_only=True):
    """An agent's memory backend."""

    backend: Annotated[
        Backend | None,
        Meta(
            description="sqlite, postgres (the store), workspace (its MEMORY.md; alias: markdown) or none; "
            "by default as set in [memory].",
            examples=["sqlite"],
        ),
    ] = None


class AgentSettings(Struct, frozen=True, kw_only=True):
    """A configured agent. `tools` is None where it is not set; dialects differ in what that means."""

    description: Annotated[
        str,
        Meta(description="What the agent is good at: models choose it by this.", examples=["Finds and reads sources"]),
    ] = ""
    system_prompt: Annotated[
        str, Meta(description="The agent's system prompt.", examples=["You are a careful researcher."])
    ] = ""
    tools: Annotated[
        tuple[Name, ...] | None,
        Meta(
            description="The tools it may use; [] is none, and leaving it out is the dialect's default.", examples=[[]]
        ),
    ] = None
    model: Annotated[
        str,
        Meta(
            description="PROVIDER:NAME, or a name at the provider of the parent run, whose model is the default.",
            examples=["local:qwen3"],
        ),
    ] = ""
    fallback: Annotated[
        tuple[Name, ...],
        Meta(
            description="Models that are called, in this order, when its own is unavailable.",
            examples=[["openai:gpt-5-mini"]],
        ),
    ] = ()
    max_turns: Annotated[Count | None, Meta(description="Replies of the model in one run.", examples=[20])] = None
    model_provider: Annotated[
        ProviderRef | None,
        Meta(
            description="The provider of its model: WIRE.NAME of a provider below, instead of PROVIDER: in model.",
            examples=["openai-chat.local"],
        ),
    ] = None
    risk_profile: Annotated[
        Name | None, Meta(description="What it may do: the name of a [risk_profiles] table.", examples=["careful"])
    ] = None
    runtime_profile: Annotated[
        Name | None, Meta(description="How it works: the name of a [runtime_profiles] table.", examples=["patient"])
    ] = None
    think: Annotated[bool, Meta(description="Whether it reasons, if its model can.", examples=[False])] = False
    effort: keys.EffortValue = None
    max_output_tokens: keys.MaxOutputTokens = None
    temperature: keys.Temperature = None
    top_p: keys.TopP = None
    stop: keys.StopTexts = ()
    seed: keys.Seed = None
    service_tier: keys.ServiceTier = None
    tool_choice: keys.ToolChoice = None
    parallel_tool_calls: keys.ParallelToolCalls = None
    cache_ttl: keys.CacheTtl = None
    stream: keys.Stream = None
    betas: keys.Betas = ()
    batch_hours: keys.BatchHours = None
    extra_body: keys.ExtraBody = {}
    extra_headers: keys.ExtraHeaders = {}
    tags: Annotated[
        tuple[Tag, ...], Meta(description="Tags that a worker must have to drive its runs.", examples=[["gpu"]])
    ] = ()
    placement: Annotated[
        Placement,
        Meta(description="Which worker drives its runs: that of the tree, or any (anywhere).", examples=["tree"]),
    ] = "tree"
    isolation: Annotated[
        Literal["worktree"] | None,
        Meta(description="As a sub-agent it works in a git worktree of its own.", examples=["worktree"]),
    ] = None
    background: Annotated[
        bool, Meta(description="As a sub-agent it works in the background, if the dialect has that.", examples=[False])
    ] = False
    read_only: Annotated[
        bool,
        Meta(description="Calls with effects are refused, whatever its profile and its caller allow.", examples=[True]),
    ] = False
    excluded_tools: Annotated[
        tuple[Name, ...],
        Meta(
            description="Tools it may not use, whatever its profile and its caller allow; patterns for MCP servers.",
            examples=[["shell", "mcp__github__*"]],
        ),
    ] = ()
    enabled: Annotated[bool, Meta(description="Whether it can be started at all.", examples=[True])] = True
    workspace: Annotated[WorkspaceSettings, Meta(description="Its workspace.")] = WorkspaceSettings()
    memory: Annotated[MemorySettings, Meta(description="Its memory.")] = MemorySettings()
    limits: Annotated[LimitSettings, Meta(description="How much one run of this agent may use.")] = LimitSettings()

    @property
    def qualified_model(self) -> str:
        """The model in the usual notation: PROVIDER:NAME if a provider is named.

        >>> AgentSettings(model="qwen3", model_provider="openai-chat.local").qualified_model
        'local:qwen3'
        """
        if self.model_provider is None:
            return self.model
        provider = self.model_provider.partition(".")[2]
        return f"{provider}:{self.model.removeprefix(f'{provider}:')}"

    def agent(
        self,
        name: str,
        *,
        policy: Policy | None = None,
        runtime: RuntimeProfile | None = None,
        folder: Path | None = None,
    ) -> Agent:
        """The agent with its name, policy and runtime profile; unset tools become an empty list."""
        path = self.workspace.path
        return Agent(
            name=name,
            description=self.description,
            system_prompt=self.system_prompt,
            tools=self.tools or (),
            model=self.qualified_model,
            fallback=self.fallback,
            max_turns=self.max_turns,
            limits=self.limits_over(Limits()),
            policy=policy,
            runtime=runtime or RuntimeProfile(),
            workspace=absolute(path, folder or Path()) if path else "",
            memory_from=self.workspace.read_memory_from,
            memory=supported_backend(self.memory.backend),
            think=self.think,
            no_tools=self.tools == (),
            options=keys.model_options_of(self),
            tags=self.tags,
            placement=self.placement,
            isolation=self.isolation,
            background=self.background,
            read_only=self.read_only,
            excluded_tools=self.excluded_tools,
        )

    def limits_over(self, base: Limits) -> Limits:
        """`base` with the configured limits replaced.

        >>> agent = AgentSettings(max_turns=5, limits=LimitSettings(max_cost=0.25, timeout=60))
        >>> agent.limits_over(Limits(max_turns=50, max_calls=9)) == Limits(
        ...     max_turns=5, max_calls=9, max_cost=0.25, timeout=60
        ... )
        True
        """
        own = self.limits
        changes = {
            "max_turns": self.max_turns,
            "max_tokens": own.max_tokens,
            "max_input_tokens": own.max_input_tokens,
            "max_output_tokens": own.max_output_tokens,
            "max_nanodollars": None if own.max_cost is None else round(own.max_cost * NANODOLLARS),
            "max_calls": own.max_calls,
            "timeout": own.timeout,
            "model_timeout": own.model_timeout,
            "first_timeout": own.first_timeout,
            "idle_timeout": own.idle_timeout,
            "tool_timeout": own.tool_timeout,
            "retry_for": own.retry_for,
            "wrap_up": own.wrap_up,
        }
        limits = replace(base, **{field: value for field, value in changes.items() if value is not None})
        return limits if own.max_repeats is None else replace(limits, max_repeats=own.max_repeats or None)


def option_errors(agent: AgentSettings) -> Sequence[tuple[str, str]]:
    """Errors in the options of an agent, each with its key."""
    try:
        keys.model_options_of(agent)
    except BadInput as error:
        key, _, message = str(error).partition(": ")
        return ((key, message),)
    return ()


AGENTS = Section(
    name="agents",
    type=AgentSettings,
    about="Agents that can be started with --agent NAME, and to which other agents can delegate.",
    named=NamedTables(
        example="researcher", pattern=r"[a-z0-9_-]{1,64}", expected="1 to 64 of the characters a-z, 0-9, _ and -"
    ),
    cross_key_errors=option_errors,
    unsupported=("skill_bundles", "cron_jobs", "workspace.access", "workspace.unrestricted_filesystem"),
)


def reference_issues(
    agents: Mapping[str, AgentSettings], providers: Mapping[str, ProviderSettings], written: Mapping[str, Sequence[str]]
) -> Iterator[Issue]:
    """Issues about unknown profiles, agents and providers named by agents, and about unsupported memory backends.

    `written` are the names of the tables in other sections, including invalid tables.
    """
    for name, agent in agents.items():
        here = (AGENTS.name, name)
        references = [
            ("risk_profiles", (*here, "risk_profile"), agent.risk_profile),
            ("runtime_profiles", (*here, "runtime_profile"), agent.runtime_profile),
            *(
                (AGENTS.name, (*here, "workspace", "read_memory_from", index), other)
                for index, other in enumerate(agent.workspace.read_memory_from)
            ),
        ]
        for section, path, reference in references:
            yield from _reference_issue(path, reference, written.get(section, ()), section)
        yield from _model_provider_issue((*here, "model_provider"), agent, providers)
        yield from backend_issues((*here, "memory", "backend"), agent.memory.backend)


def default_agent_issues(named: Mapping[KeyPath, str | None], known: Sequence[str]) -> Iterator[Issue]:
    """Issues about default agents that are unknown, by the path of the table that names them."""
    for path, name in named.items():
        yield from _reference_issue((*path, "agent"), name, known, AGENTS.name)


def _reference_issue(path: KeyPath, name: str | None, known: Sequence[str], section: str) -> Iterator[Issue]:
    if name is None or name in known:
        return
    allowed = error_texts.one_of(known) if known else f"the name of a table [{section}.NAME], and there is none"
    match = error_texts.closest_match(name, known)
    hint = f"; did you mean {match}?" if match else ""
    found = error_texts.describe_value(name, with_kind=False)
    yield Issue(path=path, message=error_texts.mismatch(found, allowed, hint), found=found, allowed=allowed)


def _model_provider_issue(
    path: KeyPath, agent: AgentSettings, providers: Mapping[str, ProviderSettings]
) -> Iterator[Issue]:
    if agent.model_provider is None:
        return
    _, _, name = agent.model_provider.partition(".")
    known = [f"{provider.wire}.{alias}" for alias, provider in providers.items()]
    if agent.model_provider not in known:
        yield from _reference_issue(path, agent.model_provider, known, "providers")
    elif not agent.model:
        yield Issue(path=path, message=f"needs a model of {name}: set model = NAME")
