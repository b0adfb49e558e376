"""The sections `[risk_profiles.<name>]` and `[runtime_profiles.<name>]`: permissions and runtime options of agents.

An agent names one of each. Together they are its policy; a missing key has the default defined here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from retinue.config.section_type import NamedTables, Section
from retinue.config.validation import Issue
from retinue.core.policy import (
    DEFAULT_AUTO_APPROVE,
    DEFAULT_COMMANDS,
    Autonomy,
    DelegationCeiling,
    Entry,
    Policy,
    RuntimeProfile,
)

Entries = tuple[Entry, ...]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Level = Annotated[
    Literal["readonly", "supervised", "full"], Meta(extra={"expected": "one of: readonly, supervised, full"})
]

DEFAULT_ITERATIONS = 10
DEFAULT_DEPTH = 3


class RiskSettings(Struct, frozen=True, kw_only=True):
    """Permissions of an agent."""

    level: Annotated[
        Level | None,
        Meta(
            description="readonly refuses calls with effects, supervised asks before risky calls, full does not.",
            examples=["supervised"],
        ),
    ] = None
    autonomy: Annotated[Level | None, Meta(description="Another name of level.", examples=["supervised"])] = None
    workspace_only: Annotated[
        bool, Meta(description="Whether files are confined to the workspace and the allowed roots.", examples=[True])
    ] = True
    allowed_roots: Annotated[
        Entries, Meta(description="Readable and writable folders besides the workspace.", examples=[["./data"]])
    ] = ()
    allowed_roots_read_only: Annotated[
        Entries, Meta(description="Readable folders besides the workspace.", examples=[["~/notes"]])
    ] = ()
    allowed_roots_write_only: Annotated[
        Entries, Meta(description="Writable folders that cannot be read.", examples=[["./outbox"]])
    ] = ()
    allowed_commands: Annotated[
        Entries,
        Meta(description="The commands that the shell may run, instead of the default list.", examples=[["git", "ls"]]),
    ] = DEFAULT_COMMANDS
    forbidden_paths: Annotated[
        Entries, Meta(description="Paths that are never accessible, even in allowed folders.", examples=[["~/.ssh"]])
    ] = ()
    require_approval_for_medium_risk: Annotated[
        bool, Meta(description="Whether calls of medium risk need an approval.", examples=[True])
    ] = True
    block_high_risk_commands: Annotated[
        bool, Meta(description="Whether calls of high risk are refused, approved or not.", examples=[True])
    ] = True
    shell_env_passthrough: Annotated[
        Entries, Meta(description="Environment variables passed to shell commands.", examples=[["LANG"]])
    ] = ()
    auto_approve: Annotated[
        Entries,
        Meta(
            description="Tools that need no approval, instead of the default list (all of which only read).",
            examples=[["file_read", "memory_recall"]],
        ),
    ] = DEFAULT_AUTO_APPROVE
    always_ask: Annotated[
        Entries, Meta(description="Tools that need an approval for every call.", examples=[["shell"]])
    ] = ()
    allowed_tools: Annotated[
        Entries, Meta(description="The only tools that may be used; [] is all of them.", examples=[[]])
    ] = ()
    excluded_tools: Annotated[
        Entries,
        Meta(description="Tools that may not be used, even if in allowed_tools.", examples=[["python_execute"]]),
    ] = ()
    sandbox_enabled: Annotated[
        bool, Meta(description="Whether programs are sandboxed; only [tools] sandbox can turn it off.", examples=[True])
    ] = True

    def policy(self, runtime: RuntimeSettings, folder: Path) -> Policy:
        """The policy of an agent with these two profiles; paths are relative to the folder of the settings file."""
        return Policy(
            autonomy=Autonomy(self.level or self.autonomy or Autonomy.SUPERVISED),
            workspace_only=self.workspace_only,
            allowed_roots=_absolute(self.allowed_roots, folder),
            allowed_roots_read_only=_absolute(self.allowed_roots_read_only, folder),
            allowed_roots_write_only=_absolute(self.allowed_roots_write_only, folder),
            forbidden_paths=_absolute(self.forbidden_paths, folder),
            allowed_commands=self.allowed_commands,
            shell_env_passthrough=self.shell_env_passthrough,
            shell_timeout_secs=runtime.shell_timeout_secs,
            max_actions_per_hour=runtime.max_actions_per_hour,
            max_cost_per_day_cents=runtime.max_cost_per_day_cents,
            block_high_risk_commands=self.block_high_risk_commands,
            require_approval_for_medium_risk=self.require_approval_for_medium_risk,
            allowed_tools=self.allowed_tools or None,
            excluded_tools=self.excluded_tools,
            auto_approve=self.auto_approve,
            always_ask=self.always_ask,
        )


class RuntimeSettings(Struct, frozen=True, kw_only=True):
    """Runtime options of an agent, and its rate and time limits."""

    agentic: Annotated[
        bool, Meta(description="Whether it works with tools; otherwise it answers in one turn.", examples=[True])
    ] = True
    max_tool_iterations: Annotated[
        Number, Meta(description=f"Tool rounds in a task delegated to it; 0 is {DEFAULT_ITERATIONS}.", examples=[0])
    ] = 0
    max_actions_per_hour: Annotated[
        Number, Meta(description="Calls with effects per hour, of all its runs together.", examples=[20])
    ] = 20
    max_cost_per_day_cents: Annotated[
        Number, Meta(description="Cents per day for models, of all its runs together.", examples=[500])
    ] = 500
    shell_timeout_secs: Annotated[Number, Meta(description="Seconds for one shell command.", examples=[60])] = 60
    max_delegation_depth: Annotated[
        Number, Meta(description=f"How deep it may delegate; 0 is {DEFAULT_DEPTH}.", examples=[0])
    ] = 0
    delegation_timeout_secs: Annotated[
        Seconds | None, Meta(description="Seconds for a task delegated to it.", examples=[120])
    ] = None
    agentic_timeout_secs: Annotated[
        Seconds | None,
        Meta(description="Seconds for such a task if it is agentic and the key above is not set.", examples=[300]),
    ] = None
    delegation_ceiling: Annotated[
        DelegationCeiling,
        Meta(
            description="Rights of agents it delegates to: their own (target), or within its own too (caller).",
            examples=["target"],
        ),
    ] = None

    def profile(self, risk: RiskSettings) -> RuntimeProfile:
        return RuntimeProfile(
            agentic=self.agentic,
            max_tool_iterations=self.max_tool_iterations or DEFAULT_ITERATIONS,
            max_delegation_depth=self.max_delegation_depth or DEFAULT_DEPTH,
            delegation_timeout_secs=self.delegation_timeout_secs,
            agentic_timeout_secs=self.agentic_timeout_secs,
            delegation_ceiling=self.delegation_ceiling,
            sandbox_enabled=risk.sandbox_enabled,
        )


def absolute(path: str, folder: Path) -> str:
    """A path of the settings, relative to their folder; `~` is the current user's home.

    >>> absolute("../shared", Path("/srv/app"))
    '/srv/shared'
    """
    return os.path.abspath(folder / os.path.expanduser(path))


def _absolute(paths: Iterable[str], folder: Path) -> tuple[str, ...]:
    return tuple(absolute(path, folder) for path in paths)


def unsupported_options(profiles: Mapping[str, RiskSettings]) -> Iterator[Issue]:
    """Warnings about options that cannot be set for a single agent."""
    for name, risk in profiles.items():
        if not risk.sandbox_enabled:
            message = 'not supported and ignored: [tools] sandbox = "off" turns it off for every agent'
            yield Issue(path=(RISK_PROFILES.name, name, "sandbox_enabled"), message=message, is_warning=True)


def _level_conflict(profile: RiskSettings) -> list[tuple[str, str]]:
    level, autonomy = profile.level, profile.autonomy
    if level is None or autonomy is None or level == autonomy:
        return []
    return [("autonomy", f"{autonomy} contradicts level = {level}; leave one of them out")]


_NAMES = {"pattern": r"[A-Za-z0-9_-]{1,64}", "expected": "1 to 64 letters, digits, _ and -"}

RISK_PROFILES = Section(
    name="risk_profiles",
    type=RiskSettings,
    about="Permissions of agents; an agent names one of these with risk_profile.",
    named=NamedTables(example="careful", **_NAMES),
    unsupported=("sandbox_backend", "firejail_args"),
    cross_key_errors=_level_conflict,
)

RUNTIME_PROFILES = Section(
    name="runtime_profiles",
    type=RuntimeSettings,
    about="Runtime options and rate limits of agents; an agent names one with runtime_profile.",
    named=NamedTables(example="patient", **_NAMES),
)
