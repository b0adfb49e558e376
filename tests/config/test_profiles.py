"""Risk and runtime profiles: the resulting policies of agents, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.agent import Agent
from retinue.core.policy import DEFAULT_AUTO_APPROVE, Autonomy, Policy, RuntimeProfile
from tests.config.settings_files import error_message, settings


def agent_of(folder: Path, text: str) -> Agent:
    """The only agent of the settings."""
    (agent,) = settings(folder, text).core_agents()
    return agent


def policy_of(folder: Path, profile: str) -> Policy:
    """The policy of an agent with this risk profile."""
    policy = agent_of(folder, f'[agents.a]\nrisk_profile = "p"\n[risk_profiles.p]\n{profile}').policy
    assert policy is not None
    return policy


# ---- policies and agents ------------------------------------------------------------------------------------------


def test_an_agent_without_profiles_has_no_policy_of_its_own(tmp_path: Path) -> None:
    assert agent_of(tmp_path, "[agents.a]\n") == Agent(name="a")


def test_default_profiles_give_the_default_policy_with_auto_approve(tmp_path: Path) -> None:
    defaults = Policy(auto_approve=DEFAULT_AUTO_APPROVE)

    assert policy_of(tmp_path, "") == defaults
    only_runtime = agent_of(tmp_path, '[agents.a]\nruntime_profile = "r"\n[runtime_profiles.r]\n')
    assert (only_runtime.policy, only_runtime.runtime) == (defaults, RuntimeProfile())


def test_every_key_of_both_profiles_reaches_the_agent(tmp_path: Path) -> None:
    found = agent_of(
        tmp_path,
        """\
[agents.a]
risk_profile = "wide"
runtime_profile = "long"

[risk_profiles.wide]
level = "full"
workspace_only = false
allowed_roots = ["/srv/a"]
allowed_roots_read_only = ["/srv/b"]
allowed_roots_write_only = ["/srv/c"]
allowed_commands = ["make"]
forbidden_paths = ["/srv/a/keys"]
require_approval_for_medium_risk = false
block_high_risk_commands = false
shell_env_passthrough = ["LANG"]
auto_approve = ["shell"]
always_ask = ["deploy"]
allowed_tools = ["shell", "deploy"]
excluded_tools = ["fetch"]
sandbox_enabled = false

[runtime_profiles.long]
agentic = false
max_tool_iterations = 7
max_actions_per_hour = 100
max_cost_per_day_cents = 900
shell_timeout_secs = 30
max_delegation_depth = 2
delegation_timeout_secs = 5
agentic_timeout_secs = 6.5
delegation_ceiling = "caller"
""",
    )

    assert found.policy == Policy(
        autonomy=Autonomy.FULL,
        workspace_only=False,
        allowed_roots=("/srv/a",),
        allowed_roots_read_only=("/srv/b",),
        allowed_roots_write_only=("/srv/c",),
        allowed_commands=("make",),
        forbidden_paths=("/srv/a/keys",),
        require_approval_for_medium_risk=False,
        block_high_risk_commands=False,
        shell_env_passthrough=("LANG",),
        auto_approve=("shell",),
        always_ask=("deploy",),
        allowed_tools=("shell", "deploy"),
        excluded_tools=("fetch",),
        max_actions_per_hour=100,
        max_cost_per_day_cents=900,
        shell_timeout_secs=30,
    )
    assert found.runtime == RuntimeProfile(
        agentic=False,
        max_tool_iterations=7,
        max_delegation_depth=2,
        delegation_timeout_secs=5,
        agentic_timeout_secs=6.5,
        delegation_ceiling="caller",
        sandbox_enabled=False,
    )


@pytest.mark.parametrize("key", ["level", "autonomy"])
def test_the_level_of_autonomy_has_two_names(tmp_path: Path, key: str) -> None:
    assert policy_of(tmp_path, f'{key} = "readonly"').autonomy == Autonomy.READONLY


def test_contradicting_levels_are_an_error(tmp_path: Path) -> None:
    both = '[risk_profiles.p]\nlevel = "full"\nautonomy = "readonly"\n'

    assert error_message(tmp_path, both) == (
        "retinue.toml:3: risk_profiles.p.autonomy: readonly contradicts level = full; leave one of them out"
    )
    assert policy_of(tmp_path, 'level = "full"\nautonomy = "full"').autonomy == Autonomy.FULL


def test_paths_are_relative_to_the_settings_file_and_expand_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/where/they/live")
    found = policy_of(tmp_path, 'allowed_roots = ["data", "../next", "~/notes"]\nforbidden_paths = ["~/.ssh", "keys"]')

    assert found.allowed_roots == (f"{tmp_path}/data", f"{tmp_path.parent}/next", "/where/they/live/notes")
    assert found.forbidden_paths == ("/where/they/live/.ssh", f"{tmp_path}/keys")


def test_zero_means_the_default_iterations_and_depth(tmp_path: Path) -> None:
    text = (
        '[agents.a]\nruntime_profile = "r"\n[runtime_profiles.r]\nmax_tool_iterations = 0\nmax_delegation_depth = 0\n'
    )

    assert agent_of(tmp_path, text).runtime == RuntimeProfile(max_tool_iterations=10, max_delegation_depth=3)


def test_model_provider_workspace_and_memory_of_an_agent(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        """\
[agents.a]
model = "qwen3"
model_provider = "openai-chat.local"
think = true

[agents.a.workspace]
path = "./work"
read_memory_from = ["b"]

[agents.a.memory]
backend = "markdown"

[agents.b]
enabled = false

[providers.local]
wire = "openai-chat"
""",
    )

    assert found.core_agents() == (
        Agent(
            name="a",
            model="local:qwen3",
            think=True,
            workspace=f"{tmp_path}/work",
            memory_from=("b",),
            memory="workspace",
        ),
    )


# ---- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[agents.a]\nrisk_profile = "carful"\n[risk_profiles.careful]\n[risk_profiles.wide]\n',
            'retinue.toml:2: agents.a.risk_profile: found "carful"; expected one of: careful, wide; did you mean '
            "careful?",
        ),
        (
            '[agents.a]\nruntime_profile = "fast"\n',
            'retinue.toml:2: agents.a.runtime_profile: found "fast"; expected the name of a table '
            "[runtime_profiles.NAME], and there is none",
        ),
        (
            '[risk_profiles.p]\nlevel = "ful"\n',
            'retinue.toml:2: risk_profiles.p.level: found "ful"; expected one of: readonly, supervised, full',
        ),
        (
            "[risk_profiles.p]\nlevel = 3\n",
            "retinue.toml:2: risk_profiles.p.level: found 3 (a whole number); expected one of: readonly, supervised, "
            "full",
        ),
        (
            '[runtime_profiles.r]\ndelegation_ceiling = "mine"\n',
            'retinue.toml:2: runtime_profiles.r.delegation_ceiling: found "mine"; expected one of: caller, target',
        ),
        (
            "[runtime_profiles.r]\nmax_actions_per_hour = -1\n",
            "retinue.toml:2: runtime_profiles.r.max_actions_per_hour: found -1; expected a whole number from 0",
        ),
        (
            '[agents.a.workspace]\nread_memory_from = ["b"]\n',
            'retinue.toml:2: agents.a.workspace.read_memory_from[0]: found "b"; expected one of: a',
        ),
        (
            '[agents.a.memory]\nbackend = "redis"\n',
            'retinue.toml:2: agents.a.memory.backend: found "redis"; '
            "expected one of: sqlite, postgres, workspace, markdown, none",
        ),
        (
            '[agents.a]\nmodel = "m"\nmodel_provider = "anthropic.local"\n[providers.local]\nwire = "openai-chat"\n',
            'retinue.toml:3: agents.a.model_provider: found "anthropic.local"; expected one of: openai-chat.local',
        ),
        (
            '[agents.a]\nmodel_provider = "openai-chat.local"\n[providers.local]\nwire = "openai-chat"\n',
            "retinue.toml:2: agents.a.model_provider: needs a model of local: set model = NAME",
        ),
        (
            '[agents.a]\nmodel_provider = "local"\n',
            'retinue.toml:2: agents.a.model_provider: found "local"; expected WIRE.NAME, as in openai-chat.local for '
            "[providers.local]",
        ),
    ],
)
def test_profile_errors_name_the_known_values(tmp_path: Path, text: str, message: str) -> None:
    assert error_message(tmp_path, text) == message


def test_an_error_in_a_profile_is_not_reported_for_its_agent(tmp_path: Path) -> None:
    text = '[agents.a]\nrisk_profile = "p"\n[risk_profiles.p]\nlevel = "ful"\n'

    assert error_message(tmp_path, text).startswith("retinue.toml:4: risk_profiles.p.level: ")


@pytest.mark.promise("ZC-KEYS")
def test_unknown_keys_are_errors_and_unsupported_ones_warnings(tmp_path: Path) -> None:
    text = """\
[agents.a]
skill_bundles = ["x"]
cron_jobs = []

[agents.a.workspace]
unrestricted_filesystem = true
access = { b = "read" }

[agents.a.memory]
backend = "qdrant"

[risk_profiles.p]
sandbox_backend = "firejail"
firejail_args = ["--net=none"]
sandbox_enabled = false
"""
    found = settings(tmp_path, text)
    ignored = "not supported and ignored"

    assert [str(warning) for warning in found.warnings] == [
        f"retinue.toml:2: agents.a.skill_bundles: {ignored}",
        f"retinue.toml:3: agents.a.cron_jobs: {ignored}",
        f"retinue.toml:6: agents.a.workspace.unrestricted_filesystem: {ignored}",
        f"retinue.toml:7: agents.a.workspace.access: {ignored}",
        f"retinue.toml:10: agents.a.memory.backend: qdrant is {ignored}",
        f"retinue.toml:13: risk_profiles.p.sandbox_backend: {ignored}",
        f"retinue.toml:14: risk_profiles.p.firejail_args: {ignored}",
        f"retinue.toml:15: risk_profiles.p.sandbox_enabled: {ignored}: "
        '[tools] sandbox = "off" turns it off for every agent',
    ]
    assert found.core_agents() == (Agent(name="a"),)
    assert "unknown key" in error_message(tmp_path, f"{text}nonsense = 1\n")
