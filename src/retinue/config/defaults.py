"""Defaults of new runs: keys at the top of a settings file, `[defaults]`, and `[profiles.<name>]`.

`tools` and `agent` are names of other tables at the top of a file, so these defaults are in `[defaults]`. Settings
files of other programs have defaults of root runs, too (`RootDefaults`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from retinue.config.agents import Count, Name, Seconds
from retinue.config.model_options import ReplyTokens
from retinue.config.providers import HttpUrl
from retinue.config.section_type import NamedTables, Section
from retinue.core.key_paths import ROOT_DEFAULTS
from retinue.core.model_options import ModelOptions
from retinue.core.run import Limits
from retinue.tools.dependencies import Preset

Names = tuple[Name, ...]

Model = Annotated[
    Name | None, Meta(description="The model: PROVIDER:NAME, or a name at the provider.", examples=["local:qwen3"])
]
ProviderName = Annotated[
    Name | None, Meta(description="The provider: a wire, a local server or [providers.NAME].", examples=["local"])
]
BaseUrl = Annotated[HttpUrl | None, Meta(description="The provider's address.", examples=["http://localhost:8000/v1"])]
Dialects = Annotated[
    Names | None,
    Meta(description="Delegation tools that runs are offered; [] is none.", examples=[[]]),
]
Tools = Annotated[
    Names | None, Meta(description="Tools of runs without an agent and without --tools.", examples=[["file_read"]])
]
PresetName = Annotated[
    Preset | None,
    Meta(description="A preset of runs without --preset: coding, for Python and Node projects.", examples=["coding"]),
]
AgentName = Annotated[Name | None, Meta(description="The agent of runs without --agent.", examples=["researcher"])]


class TopSettings(Struct, frozen=True, kw_only=True):
    """The keys at the top of a settings file; None where it does not set them."""

    model: Model = None
    provider: ProviderName = None
    base_url: BaseUrl = None
    dialects: Dialects = None


class MoreDefaults(Struct, frozen=True, kw_only=True):
    """The section `[defaults]`."""

    tools: Tools = None
    agent: AgentName = None
    preset: PresetName = None


class RunDefaults(Struct, frozen=True, kw_only=True):
    """What one place of the settings says about new runs: a file, or a profile; None where it says nothing.

    `origin` names the place, for messages.
    """

    model: Model = None
    provider: ProviderName = None
    base_url: BaseUrl = None
    dialects: Dialects = None
    tools: Tools = None
    agent: AgentName = None
    preset: PresetName = None


class FileDefaults(Struct, frozen=True):
    """The defaults of one settings file, and the name of the file."""

    values: RunDefaults
    origin: str


def run_defaults(top: TopSettings, more: MoreDefaults) -> RunDefaults:
    return RunDefaults(
        model=top.model,
        provider=top.provider,
        base_url=top.base_url,
        dialects=top.dialects,
        tools=more.tools,
        agent=more.agent,
        preset=more.preset,
    )


CrossKeyErrors = Callable[[TopSettings | RunDefaults], Sequence[tuple[str, str]]]


def default_sections(cross_key_errors: CrossKeyErrors = lambda table: ()) -> tuple[Section, Section, Section]:
    """The three sections; `cross_key_errors` checks providers and dialects, which this package does not know."""
    return (
        Section(
            name="",
            type=TopSettings,
            about="Defaults of new runs. They stand before the first section.",
            cross_key_errors=cross_key_errors,
        ),
        Section(name="defaults", type=MoreDefaults, about="More defaults of new runs."),
        Section(
            name="profiles",
            type=RunDefaults,
            about="Other defaults, which --profile NAME puts in place of those above.",
            named=NamedTables(
                example="fast", pattern=r"[A-Za-z0-9_-]{1,64}", expected="1 to 64 letters, digits, _ and -"
            ),
            cross_key_errors=cross_key_errors,
        ),
    )


class RootDefaults(Struct, frozen=True, kw_only=True):
    """What holds for a root run where neither a flag nor its agent says otherwise: provider, limits and policy.

    Only settings files of other programs set it. A settings file of retinue has no such section: its runs take these
    from flags and from the agent that is started.
    The profiles are the policy of every run; an agent's own profile can only narrow it.
    """

    provider: Annotated[Name | None, Meta(description="The provider of its model.")] = None
    max_turns: Annotated[Count | None, Meta(description="Replies of the model in one run.")] = None
    max_tokens: Annotated[Count | None, Meta(description="Tokens of input and output together.")] = None
    max_calls: Annotated[Count | None, Meta(description="Calls of tools.")] = None
    max_output_tokens: Annotated[ReplyTokens | None, Meta(description="Tokens of one reply.")] = None
    system_prompt: Annotated[str, Meta(description="Its instructions where it has no agent and no flag.")] = ""
    timeout: Annotated[Seconds | None, Meta(description="Seconds of work.")] = None
    risk_profile: Annotated[Name | None, Meta(description="What it may do.")] = None
    runtime_profile: Annotated[Name | None, Meta(description="How it works.")] = None

    def limits_over(self, base: Limits) -> Limits:
        """`base` with the limits that are set here replaced.

        >>> RootDefaults(max_turns=5).limits_over(Limits(max_turns=50, max_calls=9)) == Limits(max_turns=5, max_calls=9)
        True
        """
        changes = {
            "max_turns": self.max_turns,
            "max_tokens": self.max_tokens,
            "max_calls": self.max_calls,
            "timeout": self.timeout,
        }
        return replace(base, **{field: value for field, value in changes.items() if value is not None})

    def options_over(self, given: ModelOptions) -> ModelOptions:
        """`given` with the length of a reply that is set here, unless it has one."""
        if self.max_output_tokens is None or given.max_output_tokens is not None:
            return given
        return replace(given, max_output_tokens=self.max_output_tokens)


NO_ROOT_DEFAULTS = RootDefaults()

ROOT = Section(name=ROOT_DEFAULTS, type=RootDefaults, about="Defaults of root runs.")
"""Declared for settings files of other programs only."""
