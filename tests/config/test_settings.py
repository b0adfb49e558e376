"""Loading a settings file into typed values."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.app.settings_file import dialect_settings, load_settings, provider_configs
from retinue.app.settings_sections import DIALECT_SECTIONS, SECTIONS
from retinue.config.agents import AgentSettings, LimitSettings
from retinue.config.providers import PriceSettings, ProviderSettings
from retinue.config.settings import Settings, load
from retinue.core.agent import Agent
from retinue.core.errors import Problem
from retinue.core.run import Limits
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers.catalog import ProviderConfig
from retinue.providers.pricing import Rates
from retinue.tools.dependencies import ToolOptions
from tests.config.settings_files import settings

EVERYTHING = """\
[agents.researcher]
description = "Finds sources"
system_prompt = '''You search.
And you read.'''
tools = ["search", "fetch"]
model = "local:qwen3"
fallback = ["vllm:qwen3", "gpt-5-mini"]
max_turns = 30  # more than `spec` would give it
limits = { max_tokens = 1000, max_cost = 0.25 }

[agents.writer]
tools = []
[agents.writer.limits]
timeout = 90
wrap_up = true

[agents.plain]

[providers.local]
wire = "openai-chat"
base_url = "http://localhost:9/v1"
api_key_env = "LOCAL_KEY"
temperature = 1
headers.X-Team = "search"
prices = { "qwen3" = { input = 0.2, output = 1, cached = 0.02 }, "qwen3.5:8b" = { input = 0, output = 0 } }

[providers.vllm]
api_key_env = ""

[tools]
modules = ["./mytools.py", "more/tools.py"]

[agent.subagent]
max_depth = 2
"""

SPECIAL = (
    *("", "defaults", "profiles", "agents", "providers", "tools", "risk_profiles", "runtime_profiles", "memory"),
    "mcp_servers",
    "server_tools",
)
DEFAULTS = {section.name: section.type() for section in SECTIONS if section.name not in SPECIAL}
"""The sections of an empty file."""


def test_a_full_settings_file(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for module in ("mytools.py", "more/tools.py"):
        (tmp_path / module).touch()

    found = settings(tmp_path, EVERYTHING)

    assert found == Settings(
        agents={
            "researcher": AgentSettings(
                description="Finds sources",
                system_prompt="You search.\nAnd you read.",
                tools=("search", "fetch"),
                model="local:qwen3",
                fallback=("vllm:qwen3", "gpt-5-mini"),
                max_turns=30,
                limits=LimitSettings(max_tokens=1000, max_cost=0.25),
            ),
            "writer": AgentSettings(tools=(), limits=LimitSettings(timeout=90.0, wrap_up=True)),
            "plain": AgentSettings(),
        },
        providers={
            "local": ProviderSettings(
                wire="openai-chat",
                base_url="http://localhost:9/v1",
                api_key_env="LOCAL_KEY",
                temperature=1.0,
                headers={"X-Team": "search"},
                prices={
                    "qwen3": PriceSettings(input=0.2, output=1.0, cached=0.02),
                    "qwen3.5:8b": PriceSettings(input=0.0, output=0.0),
                },
            ),
            "vllm": ProviderSettings(wire="vllm", api_key_env=""),
        },
        tool_modules=(tmp_path / "mytools.py", tmp_path / "more" / "tools.py"),
        sections=DEFAULTS | {"agent.subagent": XzatomaSettings(max_depth=2)},
        tool_options=ToolOptions(
            protected=tuple(str(tmp_path / each) for each in ("retinue.toml", "mytools.py", "more/tools.py"))
        ),
        source=tmp_path / "retinue.toml",
        tool_references=tuple(
            Problem(file="retinue.toml", line=5, key=f"agents.researcher.tools[{place}]", complaint="", found=name)
            for place, name in enumerate(("search", "fetch"))
        ),
    )
    assert list(found.agents) == ["researcher", "writer", "plain"]
    assert found.core_agents()[0].fallback == ("vllm:qwen3", "gpt-5-mini")
    assert provider_configs(found)[0].prices == {
        "qwen3": Rates(input=0.2, output=1.0, cached=0.02),
        "qwen3.5:8b": Rates(input=0.0, output=0.0),
    }


def test_no_file_gives_defaults(tmp_path: Path) -> None:
    assert load(cwd=tmp_path, sections=SECTIONS) == Settings(sections=DEFAULTS)


@pytest.mark.parametrize("text", ["", "# nothing\n", "\ufeff", "[agents]\n[providers]\n[tools]\n[agent]\n"])
def test_an_empty_file_gives_defaults(tmp_path: Path, text: str) -> None:
    source = tmp_path / "retinue.toml"

    assert settings(tmp_path, text) == Settings(
        sections=DEFAULTS, source=source, tool_options=ToolOptions(protected=(str(source),))
    )


def test_unset_tools_differ_from_no_tools(tmp_path: Path) -> None:
    found = settings(tmp_path, "[agents.a]\n[agents.b]\ntools = []\n")

    assert (found.agents["a"].tools, found.agents["b"].tools) == (None, ())


def test_modules_are_relative_to_the_settings_file(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "mytools.py").touch()
    (project / "other.toml").write_text('tools.modules = ["./mytools.py"]')

    found = load("project/other.toml", cwd=tmp_path, sections=SECTIONS)

    assert (found.tool_modules, found.source) == ((project / "mytools.py",), project / "other.toml")


def test_an_explicit_file_overrides_the_one_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").write_text("[agents.wrong]")
    (tmp_path / "settings").write_text("[agents.right]")  # a file without a kind is TOML

    assert list(load(tmp_path / "settings", cwd=tmp_path, sections=SECTIONS).agents) == ["right"]


def test_core_agents(tmp_path: Path) -> None:
    text = '[agents.dig]\ntools = ["search"]\nmax_turns = 3\nlimits.max_calls = 9\n[agents.plain]\n'
    found = settings(tmp_path, text)

    limits = Limits(max_turns=3, max_calls=9)
    assert found.core_agents() == (
        Agent(name="dig", tools=("search",), max_turns=3, limits=limits),
        Agent(name="plain"),
    )


def test_limits_change_only_configured_fields(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        """\
[agents.dig.limits]
max_tokens = 1
max_input_tokens = 2
max_output_tokens = 3
max_cost = 0.000000004
max_calls = 5
timeout = 6
model_timeout = 7
idle_timeout = 8
tool_timeout = 9.5
retry_for = 0
wrap_up = false
""",
    )

    base = Limits(max_turns=50, exchange_turns=10, wrap_up=True)
    assert found.agents["dig"].limits_over(base) == Limits(
        max_turns=50,
        exchange_turns=10,
        max_tokens=1,
        max_input_tokens=2,
        max_output_tokens=3,
        max_nanodollars=4,
        max_calls=5,
        timeout=6,
        model_timeout=7,
        idle_timeout=8,
        tool_timeout=9.5,
        retry_for=0,
        wrap_up=False,
    )
    assert AgentSettings().limits_over(base) == base


def test_provider_configs_and_dialect_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "retinue.toml").write_text(
        '[agent.subagent]\nmax_depth = 1\n[providers.lab]\nwire = "vllm"\nheaders = { A = "b" }\n'
    )

    found = load_settings()

    assert provider_configs(found) == (
        ProviderConfig(name="lab", wire="vllm", base_url="http://localhost:8000/v1", headers={"A": "b"}),
    )
    defaults = {name: section.type() for name, section in DIALECT_SECTIONS.items()}
    assert dialect_settings(found) == defaults | {"xzatoma": XzatomaSettings(max_depth=1)}
    assert dialect_settings(Settings()) == defaults
