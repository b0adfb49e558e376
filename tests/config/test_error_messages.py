"""Errors in a settings file: file, line, key, the value found and the values allowed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from retinue.app.settings_sections import SECTIONS
from retinue.config import settings
from retinue.config.settings import load
from retinue.core.errors import BadInput, ConfigError, Problem
from tests.config.settings_files import error_message, section

OPTIONS = (
    "effort, max_output_tokens, temperature, top_p, stop, seed, service_tier, tool_choice, parallel_tool_calls, "
    "cache_ttl, stream, betas, extra_body"
)
AGENT_OPTIONS = OPTIONS.replace("betas", "betas, batch_hours")
AGENT_KEYS = (
    "description, system_prompt, tools, model, fallback, max_turns, model_provider, risk_profile, runtime_profile, "
    f"think, {AGENT_OPTIONS}, extra_headers, tags, placement, isolation, background, read_only, "
    "excluded_tools, enabled, workspace, memory, limits"
)
LIMIT_KEYS = (
    "max_tokens, max_input_tokens, max_output_tokens, max_cost, max_calls, max_repeats, "
    "timeout, model_timeout, first_timeout, idle_timeout, tool_timeout, retry_for, wrap_up"
)
NAMES = ", ".join(each.name for each in SECTIONS if each.name)
WIRES = ", ".join(section("providers").choices["wire"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agents.a]\nmax_turns = \n", "retinue.toml:2:13: not valid TOML: invalid value"),
        ('[agents.a]\nmodel = "x', "retinue.toml:2:11: not valid TOML: unterminated string"),
        (
            "[agents.a]\nmax_turns 3\n",
            "retinue.toml:2:11: not valid TOML: expected '=' after a key in a key/value pair",
        ),
        ("x = " + "[" * 5000, "retinue.toml: not readable: nested too deeply"),
    ],
    ids=["no value", "open string", "no equals sign", "deep"],
)
def test_invalid_toml(tmp_path: Path, text: str, message: str) -> None:
    assert error_message(tmp_path, text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[agents.a]\nmax_turns = 3\nmodel = 'm'\nmax_turns = 4\n",
            "retinue.toml:4: agents.a.max_turns: set twice; the first is on line 2",
        ),
        ("[agents.a]\n\n[agents.a]\n", "retinue.toml:3: agents.a: set twice; the first is on line 1"),
        (
            "agents.a.limits = { timeout = 1, timeout = 2 }",
            "retinue.toml:1: agents.a.limits.timeout: set twice; the first is on line 1",
        ),
        (
            'agents.a.model = """\n"""\nagents.a.model = """\n\n"""\n',
            "retinue.toml:3: agents.a.model: set twice; the first is on line 1",
        ),
        ("tools.modules = []\n[tools]\n", "retinue.toml:2:7: this key or table is set above in another way"),
        (
            "tools.modules = []\n[tools]\n[agents.a]\n[agents.a]\n",
            "retinue.toml:2:7: this key or table is set above in another way",
        ),
    ],
    ids=["key", "table", "inline table", "many lines", "dotted and table", "the first of two"],
)
def test_duplicate_keys(tmp_path: Path, text: str, message: str) -> None:
    assert error_message(tmp_path, text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n[rubbish.strict]\n", f"retinue.toml:2: rubbish: unknown section; known: {NAMES}"),
        (
            "[agent.subagnet]",
            f"retinue.toml:1: agent.subagnet: unknown section, did you mean agent.subagent? Known: {NAMES}",
        ),
        ("[provider.x]", f"retinue.toml:1: provider: unknown section, did you mean providers? Known: {NAMES}"),
        (
            "modell = 'gpt'",
            "retinue.toml:1: modell: unknown key, did you mean model? Known: model, provider, base_url, dialects; "
            f"other settings belong in sections: {NAMES}",
        ),
        ("model = 3", "retinue.toml:1: model: found 3 (a whole number); expected a string that is not empty"),
        (
            "[agents.researcher]\nmax_turn = 3\n",
            f"retinue.toml:2: agents.researcher.max_turn: unknown key, did you mean max_turns? Known: {AGENT_KEYS}",
        ),
        (
            "[agents.researcher]\nseat = 'strict'\n",
            f"retinue.toml:2: agents.researcher.seat: unknown key; known: {AGENT_KEYS}",
        ),
        (
            "[agents.a]\nlimits.seconds = 3\n",
            f"retinue.toml:2: agents.a.limits.seconds: unknown key; known: {LIMIT_KEYS}",
        ),
        (
            "[agent.subagent]\ncolour = true\n",
            "retinue.toml:2: agent.subagent.colour: unknown key; "
            "known: max_depth, default_max_turns, output_max_size, telemetry_enabled, persistence_enabled, "
            "persistence_path, max_executions, max_total_tokens, max_total_time, provider, model, chat_enabled",
        ),
        (
            "[providers.vllm]\napi_key = 'sk-123'\n",
            "retinue.toml:2: providers.vllm.api_key: unknown key, did you mean api_key_env? "
            f"Known: wire, base_url, api_key_env, model, {OPTIONS}, headers, prices, context_window, responses_wire, "
            "calls_in_text, bearer, command, env, sandbox, readable, writable, prompt_cache_key",
        ),
    ],
)
def test_unknown_names(tmp_path: Path, text: str, message: str) -> None:
    assert error_message(tmp_path, text) == message


@pytest.mark.parametrize(
    ("setting", "rest"),
    [
        ('max_turns = "ten"', 'max_turns: found "ten" (a string); expected a whole number from 1'),
        ("max_turns = true", "max_turns: found true (a boolean); expected a whole number from 1"),
        ("max_turns = 2.0", "max_turns: found 2.0 (a number); expected a whole number from 1"),
        ("max_turns = []", "max_turns: found an array; expected a whole number from 1"),
        ("max_turns = {}", "max_turns: found a table; expected a whole number from 1"),
        ("model = 2025-01-01", "model: found 2025-01-01 (a date or time); expected a string"),
        ('model = ["a\\nb"]', "model: found an array; expected a string"),
        ("tools = 'search'", 'tools: found "search" (a string); expected an array of strings'),
        ("tools = ['a', 7]", "tools[1]: found 7 (a whole number); expected a string that is not empty"),
        ("limits = 3", "limits: found 3 (a whole number); expected a table"),
        (
            "limits.timeout = 'a\\b\u2028c\"'",
            'limits.timeout: found "a\\\\b\\u2028c\\"" (a string); expected a number above 0',
        ),
        ("limits.wrap_up = 1", "limits.wrap_up: found 1 (a whole number); expected true or false"),
    ],
)
def test_values_of_the_wrong_type(tmp_path: Path, setting: str, rest: str) -> None:
    assert error_message(tmp_path, f"# first\n[agents.a]\n{setting}\n") == f"retinue.toml:3: agents.a.{rest}"


@pytest.mark.parametrize(
    ("setting", "rest"),
    [
        ("max_turns = 0", "max_turns: found 0; expected a whole number from 1"),
        (
            "max_turns = 9223372036854775808",
            "max_turns: found 9223372036854775808; expected a whole number from 1 to 9223372036854775807",
        ),
        (
            f"max_turns = 0x{'f' * 9999}",
            "max_turns: found a whole number of more than 64 bits; "
            "expected a whole number from 1 to 9223372036854775807",
        ),
        ("limits.max_cost = -0.5", "limits.max_cost: found -0.5; expected a number from 0"),
        ("limits.max_cost = nan", "limits.max_cost: found nan; expected a number from 0"),
        ("limits.max_cost = inf", "limits.max_cost: found inf; expected a number from 0 to 1000000000"),
        ("limits.timeout = 0", "limits.timeout: found 0; expected a number above 0"),
        (
            "limits.timeout = 1e10",
            "limits.timeout: found 10000000000.0; expected a number above 0 and up to 1000000000",
        ),
        ("tools = ['']", 'tools[0]: found ""; expected a string that is not empty'),
    ],
)
def test_values_out_of_range(tmp_path: Path, setting: str, rest: str) -> None:
    assert error_message(tmp_path, f"[agents.a]\n{setting}\n") == f"retinue.toml:2: agents.a.{rest}"


def test_a_number_with_too_many_digits(tmp_path: Path) -> None:
    message = error_message(tmp_path, f"agents.a.max_turns = {'9' * 5000}")

    assert message.startswith("retinue.toml: not valid TOML: exceeds the limit (4300 digits)")


@pytest.mark.promise("XZ-SETTINGS-RANGES")
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("max_depth = 0", "Configuration error: agent.subagent.max_depth must be greater than 0"),
        ("max_depth = 11", "Configuration error: agent.subagent.max_depth cannot exceed 10 (stack overflow risk)"),
        ("default_max_turns = 0", "Configuration error: agent.subagent.default_max_turns must be greater than 0"),
        ("default_max_turns = 101", "Configuration error: agent.subagent.default_max_turns cannot exceed 100"),
        ("output_max_size = 1023", "Configuration error: agent.subagent.output_max_size must be at least 1024 bytes"),
        (
            "output_max_size = 9223372036854775808",
            "agent.subagent.output_max_size: found 9223372036854775808; "
            "expected a whole number from 1024 to 9223372036854775807",
        ),
        (
            "provider = 'copilot'",
            f"Configuration error: Invalid subagent provider override: copilot. Must be one of: {WIRES}",
        ),
        ("max_executions = 0", "agent.subagent.max_executions: found 0; expected a whole number from 1"),
        ("max_total_tokens = -1", "agent.subagent.max_total_tokens: found -1; expected a whole number from 1"),
        ("max_total_time = 0", "agent.subagent.max_total_time: found 0; expected a whole number from 1"),
        (
            "max_total_time = 1.5",
            "agent.subagent.max_total_time: found 1.5 (a number); expected a whole number from 1",
        ),
        (
            "telemetry_enabled = 'off'",
            'agent.subagent.telemetry_enabled: found "off" (a string); expected true or false',
        ),
        ("persistence_path = ''", 'agent.subagent.persistence_path: found ""; expected a string that is not empty'),
        ("model = 3", "agent.subagent.model: found 3 (a whole number); expected a string that is not empty"),
        ("max_depth = '3'", 'agent.subagent.max_depth: found "3" (a string); expected a whole number from 1 to 10'),
    ],
)
def test_dialect_settings_have_the_prescribed_error_messages(tmp_path: Path, setting: str, message: str) -> None:
    assert error_message(tmp_path, f"[agent.subagent]\n{setting}\n") == f"retinue.toml:2: {message}"


@pytest.mark.parametrize("name", ["", "Researcher", "my agent", "a.b", "é", "a\n", "x" * 65])
def test_invalid_agent_names(tmp_path: Path, name: str) -> None:
    written = '"' + name.replace("\n", "\\n") + '"'

    message = error_message(tmp_path, f"[agents.{written}]\n")

    shown = name if name == "Researcher" else f'"{"x" * 64}..."' if name == "x" * 65 else written
    expected = "1 to 64 of the characters a-z, 0-9, _ and -"
    assert message == f"retinue.toml:1: agents.{shown}: invalid name; expected {expected}"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("[providers.lab]\n", f"1: providers.lab.wire: missing; expected one of: {WIRES}"),
        (
            "[providers.lab]\nwire = 'openai-caht'\n",
            f'2: providers.lab.wire: found "openai-caht"; expected one of: {WIRES}; did you mean openai-chat?',
        ),
        (
            "[providers.lab]\nwire = 'telepathy'\n",
            f'2: providers.lab.wire: found "telepathy"; expected one of: {WIRES}',
        ),
        ("[providers.lab]\nwire = 3\n", "2: providers.lab.wire: found 3 (a whole number); expected a string"),
        (
            "[providers.vllm]\nbase_url = 'localhost:8000'\n",
            '2: providers.vllm.base_url: found "localhost:8000"; expected an address that begins with http:// or https://',
        ),
        (
            "[providers.vllm]\ntemperature = 3\n",
            "2: providers.vllm.temperature: found 3; expected a number from 0 to 2",
        ),
        (
            "[providers.vllm]\nprices = 3\n",
            "2: providers.vllm.prices: found 3 (a whole number); expected a table of models, each with its price",
        ),
        (
            "[providers.vllm.prices.qwen3]\ninput = -1\noutput = 1\n",
            "2: providers.vllm.prices.qwen3.input: found -1; expected a number from 0 to 1000000",
        ),
        (
            "[providers.vllm.prices.qwen3]\ninput = 1\n",
            "1: providers.vllm.prices.qwen3.output: missing; expected a number from 0 to 1000000",
        ),
        (
            "[providers.lab]\nwire = 'openai-chat'\nbase_url = 'http://me:secret@host/v1'\n",
            "3: providers.lab.base_url: the base URL for host has a secret in it: put the key into an environment "
            'variable and name that (--api-key-env NAME, api_key_env = "NAME")',
        ),
        (
            "[providers.vllm]\nbase_url = 'http://[::1'\n",
            "2: providers.vllm.base_url: the base URL is not an address: what follows the // is no host with a port",
        ),
        (
            "[providers.lab]\nwire = 'openai-chat'\nbase_url = 'http://host/v1'\nresponses_wire = 'seed'\n",
            "4: providers.lab.responses_wire: responses_wire applies to the wire openai-responses only; "
            "the wire of 'openai-chat' is openai-chat",
        ),
        ("[providers]\nvllm = 'x'\n", '2: providers.vllm: found "x" (a string); expected a table'),
        ("providers = []\n", "1: providers: found an array; expected tables [providers.<name>]"),
        ("agent = 3\n", "1: agent: found 3 (a whole number); expected a table"),
        ("[[tools]]\n", "1: tools: found an array; expected a table"),
    ],
)
def test_errors_in_providers_and_tables(tmp_path: Path, text: str, rest: str) -> None:
    assert error_message(tmp_path, text) == f"retinue.toml:{rest}"


def test_an_api_key_in_place_of_its_variable_is_not_shown(tmp_path: Path) -> None:
    message = error_message(
        tmp_path, "[providers.vllm]\napi_key_env = 'sk-secret'\nheaders = { A = \"Bearer x\\n\" }\n"
    )

    assert message == (
        "retinue.toml:2: providers.vllm.api_key_env: found a string of 9 characters; "
        "expected the name of an environment variable, never a key itself\n"
        "retinue.toml:3: providers.vllm.headers.A: found a string of 9 characters; expected a string on one line"
    )


def test_missing_tool_modules(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "good.py").touch()
    long = "x" * 300
    text = f'[tools]\nmodules = [\n  "good.py",\n  "mytools.py",\n  "folder", "notes.txt",\n"a\\u0000",\n"{long}"]\n'

    assert error_message(tmp_path, text).splitlines() == [
        f"retinue.toml:{line}: tools.modules[{place}]: "
        f'found {what} at "{tmp_path}/{name}"; expected a Python file (.py)'
        for line, place, what, name in [
            (4, 1, "nothing", "mytools.py"),
            (5, 2, "a folder", "folder"),
            (5, 3, "a file", "notes.txt"),
            (6, 4, "nothing", "a\\x00"),
            (7, 5, "nothing readable", long),
        ]
    ]


def test_all_errors_are_reported_in_file_order(tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").write_text("[agent.subagent]\nmax_depth = 99\n\n[agents.a]\nmax_turns = 0\ntool = []\n")

    with pytest.raises(BadInput) as caught:
        load(cwd=tmp_path, sections=SECTIONS)

    assert isinstance(caught.value, ConfigError)
    assert caught.value.problems == (
        Problem(
            file="retinue.toml",
            line=2,
            key="agent.subagent.max_depth",
            complaint="Configuration error: agent.subagent.max_depth cannot exceed 10 (stack overflow risk)",
            found="99",
            allowed="a whole number from 1 to 10",
        ),
        Problem(
            file="retinue.toml",
            line=5,
            key="agents.a.max_turns",
            complaint="found 0; expected a whole number from 1",
            found="0",
            allowed="a whole number from 1",
        ),
        Problem(
            file="retinue.toml",
            line=6,
            key="agents.a.tool",
            complaint=f"unknown key, did you mean tools? Known: {AGENT_KEYS}",
            found="tool",
            allowed=AGENT_KEYS,
        ),
    )
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin.toml").write_bytes("# a\n# Grüße\n".encode("latin-1"))

    assert error_message(tmp_path, path="no.toml") == "no.toml: there is no such file"
    assert error_message(tmp_path, path=tmp_path / "no.toml") == f"{tmp_path}/no.toml: there is no such file"
    assert error_message(tmp_path, path="folder") == "folder: found a folder; expected a file"
    assert error_message(tmp_path, path="loop") == "loop: cannot be read: Too many levels of symbolic links"
    assert error_message(tmp_path, path="a\0b") == "a\0b: cannot be read: embedded null byte"
    assert error_message(tmp_path, path="latin.toml") == "latin.toml:2: found the byte 0xfc; expected UTF-8 text"


def test_a_dangling_symlink_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").symlink_to("gone.toml")

    assert error_message(tmp_path) == "retinue.toml: there is no such file"


def test_two_settings_files_in_one_folder_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "retinue.yaml").touch()

    assert error_message(tmp_path, "") == "retinue.toml: retinue.toml and retinue.yaml both exist; keep one of them"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither")
def test_pipes_and_devices_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "retinue.toml")
    assert error_message(tmp_path) == "retinue.toml: found a pipe; expected a file"

    (tmp_path / "retinue.toml").unlink()
    (tmp_path / "retinue.toml").symlink_to("/dev/zero")
    assert error_message(tmp_path) == "retinue.toml: found a device; expected a file"
    assert error_message(tmp_path, path="/dev/zero") == "/dev/zero: found a device; expected a file"

    (tmp_path / "retinue.toml").unlink()
    (tmp_path / "retinue.toml").symlink_to("/dev/null")
    assert load(cwd=tmp_path, sections=SECTIONS).agents == {}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
@pytest.mark.timeout(60)
def test_a_pipe_that_takes_the_place_of_the_file_a_moment_later_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = settings._check_file_type  # pyright: ignore[reportPrivateUsage]

    def replaced(source: Path, file: str, *, named: bool) -> None:
        usual(source, file, named=named)
        source.unlink()
        os.mkfifo(source)

    monkeypatch.setattr(settings, "_check_file_type", replaced)

    assert error_message(tmp_path, "") == "retinue.toml: found a pipe; expected a file"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_an_explicitly_named_pipe_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=(tmp_path / "pipe").write_text, args=('[agents.dig]\nsystem_prompt = "Dig."\n',))
    writing.start()

    assert list(load("pipe", cwd=tmp_path, sections=SECTIONS).agents) == ["dig"]
    writing.join()
