"""The section `[agents.<name>]`: specialists as the user describes them, and how much each may use."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from retinue.config.sections import Named, Section
from retinue.core.agent import Agent
from retinue.core.run import Limits

NANODOLLARS = 1_000_000_000

Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Name = Annotated[str, Meta(min_length=1)]


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
    idle_timeout: Annotated[Seconds | None, Meta(description="Seconds of silence within an answer.", examples=[60])] = (
        None
    )
    tool_timeout: Annotated[Seconds | None, Meta(description="Seconds for one call of a tool.", examples=[120])] = None
    wrap_up: Annotated[
        bool | None,
        Meta(description="Whether the last turn is kept for saying what was found so far.", examples=[True]),
    ] = None


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
    limits: Annotated[LimitSettings, Meta(description="How much one run of this agent may use.")] = LimitSettings()

    def agent(self, name: str) -> Agent:
        """The agent under its name; tools that nobody named are none."""
        return Agent(
            name=name,
            description=self.description,
            system_prompt=self.system_prompt,
            tools=self.tools or (),
            model=self.model,
            fallback=self.fallback,
            max_turns=self.max_turns,
            limits=self.limits_over(Limits()),
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
)
