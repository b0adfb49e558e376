"""Settings in YAML: the same sections and errors as in TOML, without YAML's surprises."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.app.settings_file import dialect_settings
from retinue.app.settings_sections import SECTIONS
from retinue.config.settings import Settings, load
from retinue.config.yaml import MAX_VALUES, read_yaml
from retinue.core.errors import ConfigError, Problem
from retinue.dialects.xzatoma.settings import XzatomaSettings
from tests.config.settings_files import error_message, settings

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{this}: &{this} [{', '.join([f'*{last}'] * 10)}]\n" for last, this in zip("abcdefgh", "bcdefghi", strict=True)
)


def yaml(folder: Path, text: str, name: str = "retinue.yaml") -> Settings:
    (folder / name).write_text(text, encoding="utf-8")
    return load(cwd=folder, sections=SECTIONS)


def yaml_error(folder: Path, text: str) -> str:
    (folder / "retinue.yaml").write_text(text, encoding="utf-8")
    return error_message(folder)


@pytest.mark.promise("XZ-YAML")
@pytest.mark.parametrize("name", ["retinue.yaml", "retinue.yml"])
def test_xzatoma_settings_in_yaml(tmp_path: Path, name: str) -> None:
    text = """\
agent:
  subagent:
    max_depth: 5
    default_max_turns: 15
    output_max_size: 8192
    telemetry_enabled: false
    persistence_enabled: true
    persistence_path: ~/conversations.db
    max_executions: 20
    max_total_tokens: 100000
    max_total_time: 600
    provider: ollama
    model: qwen3
    chat_enabled: true
"""
    found = yaml(tmp_path, text, name)

    assert found.source == tmp_path / name
    assert dialect_settings(found)["xzatoma"] == XzatomaSettings(
        max_depth=5,
        default_max_turns=15,
        output_max_size=8192,
        telemetry_enabled=False,
        persistence_enabled=True,
        persistence_path="~/conversations.db",
        max_executions=20,
        max_total_tokens=100_000,
        max_total_time=600,
        provider="ollama",
        model="qwen3",
        chat_enabled=True,
    )


def test_toml_and_yaml_give_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "toml").mkdir()
    in_toml = settings(
        tmp_path / "toml",
        """\
[agents.researcher]
description = "Finds sources"
system_prompt = "You search.\\nAnd you read."
tools = ["search", "fetch"]
limits = { max_tokens = 1000, max_cost = 0.25, wrap_up = true }
[agents.plain]
max_turns = 3
[providers.local]
wire = "openai-chat"
base_url = "http://localhost:9/v1"
headers = { X-Team = "on" }
""",
    )
    in_yaml = yaml(
        tmp_path,
        """\
agents:
  researcher:
    description: Finds sources
    system_prompt: |-
      You search.
      And you read.
    tools: [search, fetch]
    limits: {max_tokens: 1000, max_cost: 0.25, wrap_up: true}
  plain:
    max_turns: 3
providers:
  local:
    wire: openai-chat
    base_url: http://localhost:9/v1
    headers:
      X-Team: on
""",
    )

    assert (in_yaml.agents, in_yaml.providers) == (in_toml.agents, in_toml.providers)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "agent:\n", "agent:\n  subagent:\n    # max_depth: 3\n", "~", "\ufeff"]
)
def test_a_key_without_a_value_counts_as_missing(tmp_path: Path, text: str) -> None:
    assert dialect_settings(yaml(tmp_path, text))["xzatoma"] == XzatomaSettings()


def test_scalars_follow_yaml_1_2() -> None:
    text = """\
booleans: [true, False, TRUE]
words: [on, off, yes, no, y, 12:30:45, 1_000, 2024-01-01, "true", '12', !!str 7]
numbers: [7, -7, 017, 0x1f, 0o17, 1.5, 1e3, .5, !!int 8]
nothing: [~, null, ""]
left_out: null
"""
    assert read_yaml(text, "retinue.yaml").values == {
        "booleans": [True, False, True],
        "words": ["on", "off", "yes", "no", "y", "12:30:45", "1_000", "2024-01-01", "true", "12", "7"],
        "numbers": [7, -7, 17, 31, 15, 1.5, 1000.0, 0.5, 8],
        "nothing": [None, None, ""],
    }


def test_aliases_are_expanded(tmp_path: Path) -> None:
    found = yaml(tmp_path, "agents:\n  a: &same {max_turns: 3}\n  b: *same\n")

    assert found.agents["a"] == found.agents["b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "agent:\n  subagent:\n\n    max_depth: 11\n",
            "retinue.yaml:4: Configuration error: agent.subagent.max_depth cannot exceed 10 (stack overflow risk)",
        ),
        (
            "agent:\n  subagent:\n    telemetry_enabled: off\n",
            'retinue.yaml:3: agent.subagent.telemetry_enabled: found "off" (a string); expected true or false',
        ),
        (
            "agent:\n  subagent: 3\n",
            "retinue.yaml:2: agent.subagent: found 3 (a whole number); expected a table",
        ),
        (
            "agents:\n  a:\n    tools:\n      - search\n      - 3\n",
            "retinue.yaml:5: agents.a.tools[1]: found 3 (a whole number); expected a string that is not empty",
        ),
        (
            "agents: {a: {tools: [~]}}",
            "retinue.yaml:1: agents.a.tools[0]: found nothing; expected a string that is not empty",
        ),
        (
            "agents:\n  a:\n    max_turns: 1.5\n",
            "retinue.yaml:3: agents.a.max_turns: found 1.5 (a number); expected a whole number from 1",
        ),
        ("agents:\n  a: {}\n  a: {}\n", "retinue.yaml:3: agents.a: set twice; the first is on line 2"),
        (
            "agents:\n  1: {}\n",
            'retinue.yaml:2: agents: found the key 1, which is not a string; write it in quotes: "1"',
        ),
        ("true: 1\n", 'retinue.yaml:1: found the key true, which is not a string; write it in quotes: "true"'),
        ("~: 1\n", 'retinue.yaml:1: found the key ~, which is not a string; write it in quotes: "~"'),
        ("? [a]\n: 1\n", "retinue.yaml:1: found a key that is a table or array; expected a string"),
        ("- agent\n", "retinue.yaml:1: found an array; expected sections, each a key with a colon"),
        ("agent\n", "retinue.yaml:1: found a single value; expected sections, each a key with a colon"),
        ("!thing {}\n", "retinue.yaml:1: found the tag !thing; expected a value without one"),
        (
            "agent: !!python/object/apply:os.system [ls]\n",
            "retinue.yaml:1: agent: found the tag !!python/object/apply:os.system; expected a value without one",
        ),
        ("agent: !!int three\n", "retinue.yaml:1: agent: found the tag !!int; expected a value without one"),
        (
            "a: &a {x: 1}\nb:\n  <<: *a\n",
            "retinue.yaml:3: b: found <<; expected keys: merging of tables is not supported",
        ),
        ("a: &a [*a]\n", "retinue.yaml:1: a[0]: this alias refers to a value that contains it"),
        ("a: " + "9" * 5000, "retinue.yaml:1: a: not readable: a number with too many digits"),
        ("a: " + "[" * 5000, "retinue.yaml: not readable: nested too deeply"),
        (
            "a: [1\n",
            "retinue.yaml:2:1: not valid YAML: while parsing a flow sequence expected ',' or ']', "
            "but got '<stream end>'",
        ),
        (
            "a:\n\tb: 1\n",
            "retinue.yaml:2:1: not valid YAML: while scanning for the next token found character '\\t' that cannot "
            "start any token",
        ),
        ("a: b: c\n", "retinue.yaml:1:5: not valid YAML: mapping values are not allowed here"),
        (
            "a: 1\n---\nb: 2\n",
            "retinue.yaml:2:1: not valid YAML: expected a single document in the stream but found another document",
        ),
        ("a: *b\n", "retinue.yaml:1:4: not valid YAML: found undefined alias 'b'"),
    ],
)
def test_errors_have_their_line(tmp_path: Path, text: str, message: str) -> None:
    assert yaml_error(tmp_path, text) == message


def test_alias_expansion_is_limited(tmp_path: Path) -> None:
    message = yaml_error(tmp_path, BOMB)

    assert message.endswith(f"more than {MAX_VALUES} values with all aliases expanded")


def test_control_characters_are_rejected(tmp_path: Path) -> None:
    assert yaml_error(tmp_path, "a: \x00\n").startswith("retinue.yaml: not valid YAML: unacceptable character #x0000")


def test_an_error_carries_its_facts(tmp_path: Path) -> None:
    (tmp_path / "other.yml").write_text("agent:\n  subagent:\n    max_depth: 11\n")
    with pytest.raises(ConfigError) as caught:
        load("other.yml", cwd=tmp_path, sections=SECTIONS)

    assert caught.value.problems == (
        Problem(
            file="other.yml",
            line=3,
            key="agent.subagent.max_depth",
            complaint="Configuration error: agent.subagent.max_depth cannot exceed 10 (stack overflow risk)",
            found="11",
            allowed="a whole number from 1 to 10",
        ),
    )


@given(st.text(alphabet="ab:- \n\t[]{}&*!?'\"#|>%@~<,0.", max_size=40))
def test_any_text_parses_or_raises_config_error(text: str) -> None:
    with suppress(ConfigError):
        assert isinstance(read_yaml(text, "retinue.yaml").values, dict)


def test_xzatoma_may_use_a_provider_of_the_same_file(tmp_path: Path) -> None:
    text = "providers:\n  mine: {wire: ollama}\nagent:\n  subagent: {provider: %s}\n"

    assert dialect_settings(yaml(tmp_path, text % "mine"))["xzatoma"] == XzatomaSettings(provider="mine")
    assert dialect_settings(yaml(tmp_path, text % "Claude"))["xzatoma"] == XzatomaSettings(provider="Claude")
    refused = yaml_error(tmp_path, text % "yours")
    assert refused.startswith(
        "retinue.yaml:4: Configuration error: Invalid subagent provider override: yours. Must be one of: anthropic, "
    )
    assert refused.endswith(", mine")
