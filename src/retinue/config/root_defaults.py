"""Defaults of root runs, which only settings files of other programs set: provider, limits and policy.

A settings file of retinue has no such section: its runs take these from flags and from the agent that is started.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from retinue.config.agents import Count, Name, Seconds
from retinue.config.model_options import ReplyTokens
from retinue.config.section_type import Section
from retinue.core.key_paths import ROOT_DEFAULTS
from retinue.core.model_options import ModelOptions
from retinue.core.run import Limits


class RootDefaults(Struct, frozen=True, kw_only=True):
    """What holds for a root run where neither a flag nor its agent says otherwise.

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


ROOT = Section(name=ROOT_DEFAULTS, type=RootDefaults, about="Defaults of root runs.")
"""Declared for settings files of other programs only."""
