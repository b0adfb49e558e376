"""The section `[agents.<name>]`: specialists as the user describes them, what each may do and how much each may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from retinue.config import messages
from retinue.config.key_paths import KeyPath
from retinue.config.profiles import absolute
from retinue.config.providers import ProviderSettings
from retinue.config.sections import Named, Section
from retinue.config.validation import Complaint
from retinue.core.agent import Agent
from retinue.core.policy import Policy
from retinue.core.profiles import RuntimeProfile
from retinue.core.run import Limits

NANODOLLARS = 1_000_000_000

Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Name = Annotated[str, Meta(min_length=1)]
Place = Annotated[
    str,
    Meta(
        pattern=r"\A[^.\s]+\.[^.\s]+\Z",
        extra={"expected": "WIRE.NAME, as in openai-chat.local for [providers.local]"},
    ),
]


class LimitSettings(Struct, frozen=True, kw_only=True):
    """How much a run may use, in the units that people count in; what is left out is not limited here."""

    max_tokens: Annotated[
        Count | None, Meta(description="Tokens of input and output together.", examples=[200_000])
    ] = None
    max_input_tokens: Annotated[Count | None, Meta(description="Tokens of input.", examples=[150_000])] = None
    max_output_tokens: Annotated[Count | None, Meta(description="Tokens of output.", examples=[50_000])] = None
    max_cost: Annotated[Dollars | None, Meta(description="US dollars.", examples=[0.5])] = None
    max_calls: Annotated[Count | None, Meta(description="Calls of tools.", examples=[100])] = None
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
    wrap_up: Annotated[
        bool | None,
        Meta(description="Whether the last turn is kept for saying what was found so far.", examples=[True]),
    ] = None


class WorkspaceSettings(Struct, frozen=True, kw_only=True):
    """Where an agent works, and what it may remember."""

    path: Annotated[
        str | None, Meta(description="The folder it works in; by default the current one.", examples=["./research"])
    ] = None
    read_memory_from: Annotated[
        tuple[Name, ...], Meta(description="Agents whose memory it may read besides its own.", examples=[[]])
    ] = ()


class MemorySettings(Struct, frozen=True, kw_only=True):
    """How an agent's memory is kept."""

    backend: Annotated[
        Literal["sqlite", "markdown", "none", "postgres", "qdrant", "lucid"] | None,
        Meta(
            description="sqlite, markdown for files that people read, or none; by default as [tools] says.",
            examples=["sqlite"],
            extra={"expected": "one of: sqlite, markdown, none"},
        ),
    ] = None

    @property
    def kept(self) -> Literal["sqlite", "markdown", "none"] | None:
        """The backend, if it is one that retinue has."""
        return self.backend if self.backend in ("sqlite", "markdown", "none") else None


class AgentSettings(Struct, frozen=True, kw_only=True):
    """An agent as it is settled; `tools` is None where nobody says, and dialects differ in what that means."""

    description: Annotated[
        str,
        Meta(description="What the agent is good at: others choose it by this.", examples=["Finds and reads sources"]),
    ] = ""
    system_prompt: Annotated[
        str, Meta(description="What the agent is told first.", examples=["You are a careful researcher."])
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
            description="PROVIDER:NAME, or a name at the provider of whoever starts it, whose model is the default.",
            examples=["local:qwen3"],
        ),
    ] = ""
    fallback: Annotated[
        tuple[Name, ...],
        Meta(
            description="Models that are asked, in this order, when its own cannot be had.",
            examples=[["openai:gpt-5-mini"]],
        ),
    ] = ()
    max_turns: Annotated[Count | None, Meta(description="Replies of the model in one run.", examples=[20])] = None
    model_provider: Annotated[
        Place | None,
        Meta(
            description="Where its model is: WIRE.NAME of a provider below, in place of PROVIDER: in model.",
            examples=["openai-chat.local"],
        ),
    ] = None
    risk_profile: Annotated[
        Name | None, Meta(description="What it may do: the name of a [risk_profiles] table.", examples=["careful"])
    ] = None
    runtime_profile: Annotated[
        Name | None, Meta(description="How it works: the name of a [runtime_profiles] table.", examples=["patient"])
    ] = None
    think: Annotated[bool, Meta(description="Whether it reasons, where its model can.", examples=[False])] = False
    enabled: Annotated[bool, Meta(description="Whether it can be started at all.", examples=[True])] = True
    workspace: Annotated[WorkspaceSettings, Meta(description="Where it works.")] = WorkspaceSettings()
    memory: Annotated[MemorySettings, Meta(description="How it remembers.")] = MemorySettings()
    limits: Annotated[LimitSettings, Meta(description="How much one run of this agent may use.")] = LimitSettings()

    @property
    def asked_model(self) -> str:
        """The model as it is written everywhere else: PROVIDER:NAME where a provider is named.

        >>> AgentSettings(model="qwen3", model_provider="openai-chat.local").asked_model
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
        """The agent under its name, with what its profiles come to; tools that nobody named are none."""
        path = self.workspace.path
        return Agent(
            name=name,
            description=self.description,
            system_prompt=self.system_prompt,
            tools=self.tools or (),
            model=self.asked_model,
            fallback=self.fallback,
            max_turns=self.max_turns,
            limits=self.limits_over(Limits()),
            policy=policy,
            runtime=runtime or RuntimeProfile(),
            workspace=absolute(path, folder or Path()) if path else "",
            memory_from=self.workspace.read_memory_from,
            memory=self.memory.kept,
            think=self.think,
            no_tools=self.tools == (),
        )

    def limits_over(self, base: Limits) -> Limits:
        """`base`, changed where the settings say something.

        >>> settled = AgentSettings(max_turns=5, limits=LimitSettings(max_cost=0.25, timeout=60))
        >>> settled.limits_over(Limits(max_turns=50, max_calls=9)) == Limits(
        ...     max_turns=5, max_calls=9, max_cost=250_000_000, seconds=60
        ... )
        True
        """
        said = self.limits
        changes = {
            "max_turns": self.max_turns,
            "max_tokens": said.max_tokens,
            "max_input_tokens": said.max_input_tokens,
            "max_output_tokens": said.max_output_tokens,
            "max_cost": None if said.max_cost is None else round(said.max_cost * NANODOLLARS),
            "max_calls": said.max_calls,
            "seconds": said.timeout,
            "model_seconds": said.model_timeout,
            "first_seconds": said.first_timeout,
            "idle_seconds": said.idle_timeout,
            "tool_seconds": said.tool_timeout,
            "wrap_up": said.wrap_up,
        }
        return replace(base, **{field: value for field, value in changes.items() if value is not None})


AGENTS = Section(
    name="agents",
    type=AgentSettings,
    about="Agents that can be started with --agent NAME, and that others can hand work to.",
    named=Named(
        example="researcher",
        pattern=r"[a-z0-9_-]{1,64}",
        expected="1 to 64 of the characters a-z, 0-9, _ and -",
    ),
    unsupported=("skill_bundles", "cron_jobs", "workspace.access", "workspace.unrestricted_filesystem"),
)


def misnamed(
    agents: Mapping[str, AgentSettings],
    providers: Mapping[str, ProviderSettings],
    written: Mapping[str, Sequence[str]],
) -> Iterator[Complaint]:
    """Names in agents' tables that nothing else in the settings answers to, and memories that are not supported.

    `written` are the names of the tables in other sections, those with mistakes in them included.
    """
    for name, agent in agents.items():
        here = (AGENTS.name, name)
        wanted = [
            ("risk_profiles", (*here, "risk_profile"), agent.risk_profile),
            ("runtime_profiles", (*here, "runtime_profile"), agent.runtime_profile),
            *(
                (AGENTS.name, (*here, "workspace", "read_memory_from", place), other)
                for place, other in enumerate(agent.workspace.read_memory_from)
            ),
        ]
        for section, path, named in wanted:
            yield from _misnamed(path, named, written.get(section, ()), section)
        yield from _misplaced_model((*here, "model_provider"), agent, providers)
        if agent.memory.backend != agent.memory.kept:
            text = f"{agent.memory.backend} is not supported, and left out of account"
            yield Complaint(path=(*here, "memory", "backend"), text=text, is_warning=True)


def _misnamed(path: KeyPath, name: str | None, known: Sequence[str], section: str) -> Iterator[Complaint]:
    if name is None or name in known:
        return
    allowed = messages.one_of(known) if known else f"the name of a table [{section}.NAME], and there is none"
    meant = messages.nearest(name, known)
    hint = f"; did you mean {meant}?" if meant else ""
    found = messages.found(name, with_kind=False)
    yield Complaint(path=path, text=f"found {found}; expected {allowed}{hint}", found=found, allowed=allowed)


def _misplaced_model(
    path: KeyPath, agent: AgentSettings, providers: Mapping[str, ProviderSettings]
) -> Iterator[Complaint]:
    if agent.model_provider is None:
        return
    _, _, name = agent.model_provider.partition(".")
    known = [f"{settled.wire}.{alias}" for alias, settled in providers.items()]
    if agent.model_provider not in known:
        yield from _misnamed(path, agent.model_provider, known, "providers")
    elif not agent.model:
        yield Complaint(path=path, text=f"needs a model: say which one of {name} with model = NAME")
