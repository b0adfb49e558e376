"""Settings files of other programs, given with `--config`: what is used, what is ignored, and what is an error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import retinue
from retinue.app.launch.start import LaunchOptions, LimitOptions, prepare, settings_for
from retinue.app.settings_file import load_settings, provider_configs
from retinue.config.defaults import RootDefaults
from retinue.config.precedence import Flags
from retinue.core.errors import ConfigError
from retinue.core.policy import Autonomy
from retinue.providers.catalog import WIRES
from retinue.providers.scripted import Line, calls, says
from retinue.testing.fake_chat import Playable
from tests.cli.conftest import Cli
from tests.cli.stage import open_in_a_thread, serving
from tests.providers.fakes.anthropic import FakeAnthropic

XZATOMA = """\
provider:
  type: {type}
  copilot:
    model: gpt-5-mini
    enable_streaming: true
  ollama:
    host: {url}
    model: llama3.2:3b
    request_timeout_seconds: 600
  openai:
    api_key: "{key}"
    base_url: {url}/v1
    model: granite
    organization_id: org-1
    enable_streaming: true
agent:
  max_turns: {turns}
  timeout_seconds: 300
  conversation:
    max_tokens: 100000
  tools:
    max_output_size: 1048576
  terminal:
    default_mode: restricted_autonomous
  chat:
    default_mode: planning
  subagent:
    max_depth: 2
    default_max_turns: 4
    chat_enabled: false
skills:
  enabled: true
watcher:
  watcher_type: xzepr
mcp:
  auto_connect: true
"""
"""A whole settings file of xzatoma."""

IGNORED = (
    "config.yaml: ignored: provider.copilot, provider.ollama.request_timeout_seconds, "
    "provider.openai.enable_streaming, agent.conversation, agent.tools, agent.terminal, agent.chat, skills, watcher, "
    "mcp.auto_connect"
)


def xzatoma(folder: Path, url: str = "http://localhost:1", **changed: object) -> Path:
    """The file in the folder."""
    values = {"type": "ollama", "url": url.removesuffix("/v1"), "key": "", "turns": 50} | changed
    (folder / "config.yaml").write_text(XZATOMA.format(**values))
    return folder / "config.yaml"


def warnings(stderr: str) -> list[str]:
    """The log lines of the settings, without their times."""
    return [line.partition("retinue.config ")[2] for line in stderr.splitlines() if " WARNING retinue.config " in line]


def in_turn(*lines: Line) -> Playable:
    """These lines, one for each request."""
    left = iter(lines)
    return lambda request: next(left)


# ---- xzatoma: config.yaml -----------------------------------------------------------------------------------------


@pytest.mark.promise("XZ-CONFIG-FILE")
def test_a_whole_config_yaml_loads_with_one_warning_and_chooses_the_model(cli: Cli, folder: Path) -> None:
    with serving(says("Forty-two.")) as vendor:
        xzatoma(folder, vendor.base_url)
        ended = cli("run", "--config", "config.yaml", "--dialect", "xzatoma", "What is 6 times 7?")

    assert (ended.code, ended.stdout) == (0, "Forty-two.\n")
    assert warnings(ended.stderr) == [IGNORED]
    assert f"model llama3.2:3b at {vendor.base_url} (ollama)" in ended.stderr
    assert vendor.requests[0].body["model"] == "llama3.2:3b"


@pytest.mark.promise("XZ-CONFIG-FILE")
def test_the_type_of_the_provider_chooses_among_the_tables(cli: Cli, folder: Path) -> None:
    with serving(says("Yes.")) as vendor:
        xzatoma(folder, vendor.base_url, type="openai", key="sk-secret")
        without = cli("run", "--config", "config.yaml", "Is it?")
        ended = cli("run", "--config", "config.yaml", "Is it?", env={"XZATOMA_OPENAI_API_KEY": "sk-mine"})

    assert (without.code, without.stderr.splitlines()[-1]) == (
        2,
        "error: the environment variable XZATOMA_OPENAI_API_KEY is not set; set it to the key for "
        f"{vendor.base_url}, or name another variable with --api-key-env",
    )
    assert (ended.code, ended.stdout) == (0, "Yes.\n")
    (request,) = vendor.requests
    headers = request.headers
    assert (request.body["model"], headers["authorization"]) == ("granite", "Bearer sk-mine")
    assert headers["openai-organization"] == "org-1"
    (warning,) = warnings(ended.stderr)
    assert "provider.openai.api_key (keys are not read from files: set XZATOMA_OPENAI_API_KEY)" in warning
    assert "sk-secret" not in without.stderr + ended.stderr


@pytest.mark.promise("XZ-CONFIG-FILE")
def test_flags_and_variables_override_the_provider_of_the_file(cli: Cli, folder: Path) -> None:
    with serving(says("Yes.")) as vendor:
        xzatoma(folder, vendor.base_url, type="copilot")
        by_flag = cli("run", "--config", "config.yaml", "--provider", "ollama", "--quiet", "Is it?")
        by_model = cli("run", "--config", "config.yaml", "--model", "openai:other", "--quiet", "Is it?")
        by_variable = cli(
            *("run", "--config", "config.yaml", "--quiet", "Is it?"),
            env={"RETINUE_PROVIDER": "ollama", "RETINUE_MODEL": "tiny"},
        )

    assert [each.code for each in (by_flag, by_model, by_variable)] == [0, 0, 0]
    assert [request.body["model"] for request in vendor.requests] == ["llama3.2:3b", "other", "tiny"]


@pytest.mark.promise("XZ-CONFIG-FILE")
def test_an_unsupported_provider_says_what_to_do(cli: Cli, folder: Path) -> None:
    xzatoma(folder, type="copilot")

    ended = cli("run", "--config", "config.yaml", "Is it?")

    assert ended.code == 2
    assert ended.stderr.splitlines()[-1] == (
        "error: config.yaml:2: provider.type: copilot is not supported; set it to one of: "
        f"{', '.join(sorted({*WIRES, 'openai'}))}, or give --provider W --model M"
    )


@pytest.mark.promise("XZ-CONFIG-FILE")
def test_the_limits_of_the_file_hold_for_the_root(cli: Cli, folder: Path) -> None:
    again = calls("subagent", label="dig", task_prompt="find it")
    with serving(in_turn(again, says("Found."), says("Summary."), again, says("Never asked."))) as vendor:
        xzatoma(folder, vendor.base_url, turns=2)
        ended = cli("run", "--config", "config.yaml", "--dialect", "xzatoma", "--json", "Dig.")

    assert (ended.code, ended.json["end_reason"]) == (1, "max_turns")
    settings = load_settings(folder / "config.yaml")
    assert (settings.root.max_turns, settings.root.timeout) == (2, 300)


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        (
            "max_turns: 50",
            "max_turns: lots",
            '31: agent.max_turns: found "lots" (a string); expected a whole number from 1',
        ),
        ("max_depth: 2", "max_depth: 11", "43: Configuration error: agent.subagent.max_depth cannot exceed 10"),
        ("model: granite", "model: [a]", "13: provider.openai.model: found an array; expected a string"),
        (
            "host: http://localhost:1",
            "host: localhost",
            '7: provider.ollama.host: found "localhost"; expected an address that begins with http:// or https://',
        ),
        ("type: ollama", "type: 5", "2: provider.type: found 5 (a whole number); expected a string that is not empty"),
    ],
)
def test_a_wrong_value_of_a_known_key_is_an_error_with_its_line(
    cli: Cli, folder: Path, line: str, wrong: str, message: str
) -> None:
    path = xzatoma(folder)
    text = path.read_text()
    assert line in text
    path.write_text(text.replace(line, wrong))
    number = path.read_text().splitlines().index(next(each for each in path.read_text().splitlines() if wrong in each))

    ended = cli("run", "--config", "config.yaml", "Is it?")

    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: config.yaml:{number + 1}: {message.partition(': ')[2]}")


def test_a_value_in_the_place_of_a_table_is_an_error(cli: Cli, folder: Path) -> None:
    (folder / "config.yaml").write_text("provider: ollama\n")

    ended = cli("run", "--config", "config.yaml", "Is it?")

    assert (ended.code, ended.stderr) == (2, "error: config.yaml:1: provider: expected a table\n")


def test_only_a_file_of_that_name_that_is_given_is_read_leniently(cli: Cli, folder: Path) -> None:
    xzatoma(folder)
    for name in ("retinue.yaml", "other.yaml"):
        (folder / name).write_text((folder / "config.yaml").read_text())

    found = cli("run", "Is it?")
    given = cli("run", "--config", "other.yaml", "Is it?")
    (folder / "retinue.yaml").unlink()
    unread = cli("run", "--model", "scripted:none.json", "Is it?")

    assert (found.code, given.code) == (2, 2)
    assert "retinue.yaml:1: provider: unknown section, did you mean providers?" in found.stderr
    assert "other.yaml:1: provider: unknown section, did you mean providers?" in given.stderr
    assert "config.yaml" not in unread.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!python/object:os.system {}\n", "config.yaml:1: a: found the tag !!python/object:os.system"),
        (
            "a: &a [x, x]\n"
            + "".join(
                f"{c}: &{c} [{', '.join(f'*{p}' for _ in range(50))}]\n" for p, c in zip("abc", "bcd", strict=True)
            ),
            "more than 20000 values with all aliases expanded",
        ),
        ("a: '" + "x" * (1 << 20) + "'\n", "config.yaml: not readable: larger than 1 MiB"),
    ],
    ids=["tags", "aliases", "size"],
)
def test_lenient_files_are_bounded_and_build_no_objects(cli: Cli, folder: Path, text: str, message: str) -> None:
    (folder / "config.yaml").write_text(text)

    ended = cli("run", "--config", "config.yaml", "Is it?")

    assert ended.code == 2
    assert message in ended.stderr


def test_keys_of_ignored_sections_may_be_numbers(folder: Path) -> None:
    (folder / "config.yaml").write_text("provider:\n  type: ollama\nskills:\n  ports:\n    8080: x\n    true: y\n")

    (warning,) = load_settings("config.yaml").warnings

    assert str(warning) == "config.yaml: ignored: skills"


def test_a_python_program_takes_model_and_provider_of_the_file(folder: Path) -> None:
    async def ask() -> str:
        async with retinue.open(config="config.yaml", home=retinue.MEMORY, dialects=[]) as opened:
            return (await opened.run("Is it?")).text

    with serving(says("Yes.")) as vendor:
        xzatoma(folder, vendor.base_url)
        answer = asyncio.run(ask())

    assert (answer, vendor.requests[0].body["model"]) == ("Yes.", "llama3.2:3b")


# ---- zeroclaw: config.toml ----------------------------------------------------------------------------------------

NEW = """\
schema_version = 3

[providers.models.ollama.default]
model = "llama3.2"
uri = "{url}"
temperature = 0.7
num_ctx = 8192

[providers.models.custom.gateway]
model = "house-1"
uri = "{url}/v1"
api_key = "enc2:abcdef"
extra_headers = {{ X-Team = "search" }}

[providers.tts.openai.default]
api_key = "tts"

[agents.frontline]
enabled = true
channels = ["telegram.main"]
model_provider = "ollama.default"
risk_profile = "careful"
runtime_profile = ""
delegate_same_risk_profile = true

[agents.frontline.workspace]
path = "./desk"

[agents.reviewer]
model_provider = "custom.gateway"
risk_profile = "careful"
runtime_profile = "patient"

[risk_profiles.careful]
level = "supervised"
allowed_commands = ["git"]
delegation_policy = {{ mode = "allow" }}

[runtime_profiles.patient]
max_delegation_depth = 2
max_context_tokens = 32000

[cron.digest]
job_type = "agent"
prompt = "Summarise."

[memory]
backend = "markdown"
auto_save = true
hygiene_enabled = true

[gateway]
port = 42617

[secrets]
encrypt = true
"""
"""A settings file of zeroclaw in its newest layout."""

OLD = """\
api_key = "sk-global"
default_provider = "custom:{url}/v1"
default_model = "house-1"
default_temperature = 0.5
locale = "en"

[autonomy]
level = "readonly"
workspace_only = true
max_actions_per_hour = 7
non_cli_excluded_tools = ["browser"]

[agent]
max_tool_iterations = 12
parallel_tools = true

[delegate]
timeout_secs = 60

[agents.helper]
provider = "ollama"
model = "llama3.2"
system_prompt = "You help."
agentic = true
allowed_tools = ["file_read"]
max_depth = 4

[model_providers.ollama]
name = "ollama"
base_url = "{url}"

[scheduler]
max_concurrent = 2
max_tasks = 64

[cron]
enabled = true
catch_up_on_startup = false

[memory]
backend = "sqlite"
auto_save = true
"""
"""A settings file of zeroclaw in its first layout."""


def zeroclaw(folder: Path, text: str, url: str = "http://localhost:1") -> Path:
    """The file in the folder."""
    (folder / "config.toml").write_text(text.format(url=url.removesuffix("/v1")))
    return folder / "config.toml"


@pytest.mark.promise("ZC-CONFIG-FILE")
def test_a_whole_config_toml_loads_with_one_warning(cli: Cli, folder: Path) -> None:
    (folder / "desk").mkdir()
    with serving(in_turn(says("First."), says("Second."))) as vendor:
        zeroclaw(folder, NEW, vendor.base_url)
        flags = ("run", "--config", "config.toml", "--dialect", "zeroclaw")
        first = cli(*flags, "--agent", "frontline", "Is it?")
        variable = "ZEROCLAW_providers__models__custom__gateway__api_key"
        second = cli(*flags, "--agent", "reviewer", "Is it?", env={variable: "sk-gateway"})

    assert [(each.code, each.stdout) for each in (first, second)] == [(0, "First.\n"), (0, "Second.\n")]
    assert [request.body["model"] for request in vendor.requests] == ["llama3.2", "house-1"]
    assert vendor.requests[0].body["temperature"] == 0.7
    headers = vendor.requests[1].headers
    assert (headers["authorization"], headers["x-team"]) == ("Bearer sk-gateway", "search")
    assert warnings(first.stderr) == [
        "config.toml: ignored: providers.models.ollama.default.num_ctx, providers.models.custom.gateway.api_key (keys "
        f"are not read from files: set {variable}), providers.tts, agents.frontline.channels, "
        "agents.frontline.delegate_same_risk_profile, risk_profiles.careful.delegation_policy, "
        "runtime_profiles.patient.max_context_tokens, cron.digest (add jobs with retinue cron add), "
        "memory.hygiene_enabled, gateway, secrets"
    ]


@pytest.mark.promise("ZC-CONFIG-FILE")
def test_the_known_tables_of_a_config_toml_are_used(folder: Path) -> None:
    settings = load_settings(zeroclaw(folder, NEW))

    frontline, reviewer = settings.core_agents()
    assert (frontline.model, reviewer.model) == ("default:llama3.2", "gateway:house-1")
    assert frontline.policy is not None
    assert (frontline.policy.autonomy, frontline.policy.allowed_commands) == (Autonomy.SUPERVISED, ("git",))
    assert frontline.workspace == str(folder / "desk")
    assert reviewer.runtime.max_delegation_depth == 2
    assert (settings.memory.backend, settings.memory.auto_save) == ("markdown", True)
    assert settings.policy is None


@pytest.mark.promise("ZC-CONFIG-FILE")
def test_the_first_layout_loads_too(cli: Cli, folder: Path) -> None:
    with serving(in_turn(calls("file_write", path="a.txt", content="x"), says("Refused."))) as vendor:
        path = zeroclaw(folder, OLD, vendor.base_url)
        ended = cli(
            *("run", "--config", "config.toml", "--dialect", "zeroclaw", "--tools", "file_write", "Write it."),
            env={"ZEROCLAW_API_KEY": "sk-mine"},
        )

    assert (ended.code, ended.stdout) == (1, "Refused.\n")
    first, second = vendor.requests
    assert (first.body["model"], first.body["temperature"]) == ("house-1", 0.5)
    assert first.headers["authorization"] == "Bearer sk-mine"
    assert "read-only" in json.dumps(second.body["messages"][-1])
    assert warnings(ended.stderr) == [
        "config.toml: ignored: api_key (keys are not read from files: set ZEROCLAW_API_KEY), locale, "
        "autonomy.non_cli_excluded_tools, agent.parallel_tools, scheduler.max_tasks, cron.enabled"
    ]
    settings = load_settings(path)
    assert settings.policy is not None
    assert (settings.policy.autonomy, settings.policy.max_actions_per_hour) == (Autonomy.READONLY, 7)
    assert settings.root.max_turns == 12
    (helper,) = settings.core_agents()
    assert (helper.model, helper.tools, helper.runtime.max_delegation_depth) == ("ollama:llama3.2", ("file_read",), 4)
    assert helper.runtime.delegation_timeout_secs == 60
    assert [(each.name, each.wire) for each in provider_configs(settings)] == [
        ("custom", "openai-chat"),
        ("ollama", "ollama"),
    ]


def test_a_resumed_run_has_the_policy_of_the_file(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def accept() -> str:
        options = LaunchOptions(tools=("file_write",), dialects=("zeroclaw",))
        launch = await prepare(settings_for("config.toml", agent=None), options)
        async with launch.open() as opened:
            return (await launch.spawn(opened, "Write it.", detached="wait")).run_id

    monkeypatch.setenv("ZEROCLAW_API_KEY", "sk-mine")
    with serving(in_turn(calls("file_write", path="a.txt", content="x"), says("Refused."))) as vendor:
        zeroclaw(folder, OLD, vendor.base_url)
        run_id = asyncio.run(accept())
        ended = cli("runs", "resume", run_id)

    assert (ended.code, ended.stdout) == (1, "Refused.\n")
    assert "read-only" in json.dumps(vendor.requests[1].body["messages"][-1])
    assert not (folder / "a.txt").exists()


@pytest.mark.promise("ZC-CONFIG-FILE")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[providers.models.bedrock.work]\nmodel = "m"\n[agents.a]\nmodel_provider = "bedrock.work"\n',
            "config.toml:4: agents.a.model_provider: bedrock is not supported; supported: anthropic, openai, gemini, "
            "ollama, lmstudio, llamacpp, vllm, custom, openrouter, groq, deepseek, mistral, xai. Name another "
            "provider, or disable the agent",
        ),
        (
            '[providers.models.ollama.a]\nuri = "nowhere"\n',
            'config.toml:2: providers.models.ollama.a.uri: found "nowhere"; expected an address that begins with '
            "http:// or https://",
        ),
        (
            "[memory]\nauto_save = 1\n",
            "config.toml:2: memory.auto_save: found 1 (a whole number); expected true or false",
        ),
        (
            '[autonomy]\nlevel = "loose"\n',
            'config.toml:2: autonomy.level: found "loose"; expected one of: readonly, supervised, full',
        ),
        ('autonomy = "full"\n', "config.toml:1: autonomy: expected a table"),
    ],
)
def test_wrong_values_of_a_config_toml_are_errors(folder: Path, text: str, message: str) -> None:
    (folder / "config.toml").write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_settings("config.toml")

    assert str(caught.value) == message


def test_two_providers_of_one_alias_have_different_keys(folder: Path) -> None:
    (folder / "config.toml").write_text(
        '[providers.models.ollama.home]\nmodel = "small"\n'
        '[providers.models.openrouter.home]\nmodel = "large"\n'
        '[agents.a]\nmodel_provider = "openrouter.home"\n'
    )

    settings = load_settings("config.toml")

    assert [(each.name, each.base_url, each.api_key_env) for each in provider_configs(settings)] == [
        ("ollama-home", "http://localhost:11434/v1", ""),
        ("openrouter-home", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    ]
    assert settings.agents["a"].qualified_model == "openrouter-home:large"


def test_of_very_many_ignored_settings_the_first_are_named(folder: Path) -> None:
    (folder / "config.toml").write_text("".join(f"[gateway_{number}]\n" for number in range(250)))

    (warning,) = load_settings("config.toml").warnings

    first = ", ".join(f"gateway_{number}" for number in range(200))
    assert str(warning) == f"config.toml: ignored: {first}, and 50 more"


# ---- meerkat: .rkat/config.toml ------------------------------------------------------------------------------------

MEERKAT = """\
max_tokens = 2048

[agent]
system_prompt = "You are brief."
model = "claude-sonnet-4-5"
max_tokens_per_turn = 2048
temperature = 0.5
checkpoint_interval = 5
budget_warning_threshold = 0.8
max_turns = 9

[models]
anthropic = "claude-opus-4-6"
openai = "gpt-5.2"
gemini = "gemini-3-pro-preview"

[provider]
type = "anthropic"
api_key = "sk-in-a-file"

[providers.base_urls]
anthropic = "{url}"

[budget]
max_tokens = 90000
max_tool_calls = 40

[limits]
budget = 80000
max_duration = "1h 30m"

[retry]
max_retries = 3

[tools]
builtins_enabled = true
subagents_enabled = true
max_concurrent = 10

[sub_agents]
default_provider = "inherit"
default_model = "inherit"

[sub_agents.concurrency_limits]
max_children_per_agent = 1

[shell]
program = "nu"
timeout_secs = 30

[comms]
mode = "inproc"
auto_enable_for_subagents = true

[store]
sessions_path = "sessions"

[rest]
port = 8080
"""
"""A whole settings file of meerkat."""


def meerkat(folder: Path, url: str = "http://localhost:1") -> Path:
    """The file in the place where that program has it."""
    file = folder / ".rkat" / "config.toml"
    file.parent.mkdir()
    file.write_text(MEERKAT.format(url=url))
    return file


@pytest.mark.promise("MK-CONFIG-FILE")
def test_a_whole_config_toml_of_meerkat_chooses_model_limits_and_prompt(cli: Cli, folder: Path) -> None:
    spawned = calls("agent_spawn", prompt="Count the lines.")
    lines = in_turn(spawned, says("Waiting."), says("Ten."), says("There are ten."))
    with open_in_a_thread(FakeAnthropic(lines)) as vendor:
        file = meerkat(folder, vendor.url)
        ended = cli(
            *("run", "--config", ".rkat/config.toml", "--dialect", "meerkat", "--json", "How many lines?"),
            env={"RKAT_ANTHROPIC_API_KEY": "sk-mine"},
        )

    assert ended.code == 0, ended.stderr
    assert warnings(ended.stderr) == [
        ".rkat/config.toml: ignored: agent.checkpoint_interval, agent.budget_warning_threshold, provider.api_key "
        "(keys are not read from files: set RKAT_ANTHROPIC_API_KEY), budget.max_tokens, retry, tools.builtins_enabled, "
        "tools.subagents_enabled (give --dialect meerkat), tools.max_concurrent, shell, comms.mode, "
        "store.sessions_path, rest"
    ]
    root = vendor.requests[0]
    assert root.headers["x-api-key"] == "sk-mine"
    assert (root.body["model"], root.body["max_tokens"], root.body["temperature"]) == ("claude-sonnet-4-5", 2048, 0.5)
    assert json.dumps(root.body["system"]).count("You are brief.") == 1
    assert "send_message" in [tool["name"] for tool in root.body["tools"]], "comms are enabled"
    settings = load_settings(file)
    assert settings.root == RootDefaults(
        provider="anthropic",
        max_turns=9,
        max_tokens=80_000,
        max_calls=40,
        max_output_tokens=2048,
        system_prompt="You are brief.",
        timeout=5400.0,
    )
    assert {name: each.model for name, each in settings.providers.items()} == {
        "anthropic": "claude-sonnet-4-5",
        "gemini": "gemini-3-pro-preview",
        "openai": "gpt-5.2",
    }


@pytest.mark.promise("MK-CONFIG-FILE")
def test_the_limits_of_a_config_toml_of_meerkat_hold_and_flags_win(folder: Path) -> None:
    settings = load_settings(meerkat(folder))
    flags = Flags(provider="openai", api_key_env="HOME")

    by_file = asyncio.run(prepare(settings, LaunchOptions(flags=flags)))
    by_flag = asyncio.run(
        prepare(
            settings,
            LaunchOptions(
                flags=flags,
                system="Speak.",
                model_options=retinue.ModelOptions(max_output_tokens=7),
                limits=LimitOptions(max_tokens=5, max_turns=2),
            ),
        )
    )

    assert by_file.model_choice.full_name == "openai:gpt-5.2"
    limits = by_file.limits
    assert (limits.max_turns, limits.max_tokens, limits.max_calls, limits.timeout) == (9, 80_000, 40, 5400.0)
    assert (by_file.options.system, by_file.options.model_options.max_output_tokens) == ("You are brief.", 2048)
    assert (by_flag.limits.max_turns, by_flag.limits.max_tokens) == (2, 5)
    assert (by_flag.options.system, by_flag.options.model_options.max_output_tokens) == ("Speak.", 7)


@pytest.mark.promise("MK-CONFIG-FILE")
@pytest.mark.parametrize(
    ("text", "provider", "model"),
    [
        ('[agent]\nmodel = "gpt-5.2"\n', "openai", "gpt-5.2"),
        ('[agent]\nmodel = "o3-mini"\n', "openai", "o3-mini"),
        ('[agent]\nmodel = "gemini-3-flash-preview"\n', "gemini", "gemini-3-flash-preview"),
        ('[provider]\ntype = "gemini"\n[models]\ngemini = "g"\n', "gemini", "g"),
        ('[provider]\ntype = "openai"\n[agent]\nmodel = "house-model"\n', "openai", "house-model"),
    ],
)
def test_the_provider_of_a_config_toml_of_meerkat(folder: Path, text: str, provider: str, model: str) -> None:
    (folder / "config.toml").write_text(text)

    settings = load_settings("config.toml")

    assert (settings.root.provider, settings.providers[provider].model) == (provider, model)
    assert settings.warnings == ()


@pytest.mark.promise("MK-CONFIG-FILE")
def test_a_model_of_no_known_provider_is_named_in_the_warning(folder: Path) -> None:
    (folder / "config.toml").write_text('[agent]\nmodel = "house-model"\n')

    (warning,) = load_settings("config.toml").warnings

    assert str(warning) == "config.toml: ignored: agent.model (of no known provider: give --model WIRE:NAME)"


@pytest.mark.promise("MK-CONFIG-FILE")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[limits]\nmax_duration = "soon"\n',
            "config.toml:2: limits.max_duration: expected a duration, as in 30s, 5m or 1h 30m",
        ),
        (
            "[agent]\nmodel = 5\n",
            "config.toml:2: agent.model: found 5 (a whole number); expected a string that is not empty",
        ),
        (
            "[sub_agents]\ndefault_budget = 0\n",
            "config.toml:2: sub_agents.default_budget: found 0; expected a whole number from 1",
        ),
        ('budget = "small"\n[sub_agents]\n', "config.toml:1: budget: expected a table"),
    ],
)
def test_wrong_values_of_a_config_toml_of_meerkat_are_errors(folder: Path, text: str, message: str) -> None:
    (folder / "config.toml").write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_settings("config.toml")

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "auto_saves"),
    [
        ("[sub_agents]\nenable_comms = true\n", False),
        ('[agent]\nmodel = "gpt-5.2"\n[models]\nopenai = "gpt-5.2"\n', False),
        ("[agents.a]\n", True),
        ("[agent]\nmax_tool_iterations = 5\n", True),
        ("[agents.a]\n[risk_profiles.p]\n[sub_agents]\nenable_comms = true\n", True),
        ("[tools]\nnetwork = true\n", True),
    ],
)
def test_a_config_toml_belongs_to_the_program_whose_keys_it_has(folder: Path, text: str, auto_saves: bool) -> None:
    """`auto_save` is on by default in a file of zeroclaw alone; `[sub_agents]` is read in both."""
    (folder / "config.toml").write_text(text)

    settings = load_settings("config.toml")

    assert settings.memory.auto_save is auto_saves
    comms = settings.section("sub_agents", retinue.MeerkatSettings).enable_comms
    assert comms is ("enable_comms" in text)
