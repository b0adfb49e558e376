"""`retinue run --output-schema` and `--output-json`: JSON on stdout, or an exit code for the failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.providers.scripted import says
from retinue.testing.fake_chat import ChatScript, FakeChat
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, serving

SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string"}, "country": {"type": "string"}},
    "required": ["capital", "country"],
    "additionalProperties": False,
}
PARIS = '{"capital":"Paris","country":"France"}'


def asking(vendor: FakeChat) -> tuple[str, ...]:
    return ("run", "--base-url", vendor.base_url, "--model", "fake-1", "--dialect", "none")


@pytest.fixture
def schema(folder: Path) -> str:
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    return "schema.json"


def test_the_json_is_alone_on_stdout_with_and_without_quiet(cli: Cli, schema: str) -> None:
    with serving(says('{"capital": "Paris", "country": "France"}')) as vendor:
        plain = cli(*asking(vendor), "--output-schema", schema, "Capital of France?")
        quiet = cli(*asking(vendor), "--output-schema", schema, "--quiet", "Capital of France?")

    assert (plain.code, plain.stdout) == (0, f"{PARIS}\n")
    assert quiet == Ended(0, f"{PARIS}\n", "")
    assert [heard.body["response_format"] for heard in vendor.requests] == [
        {"type": "json_schema", "json_schema": {"name": "structured_output", "schema": SCHEMA, "strict": True}}
    ] * 2


def test_json_has_the_value_and_the_text(cli: Cli, schema: str) -> None:
    with serving(says(PARIS)) as vendor:
        ended = cli(*asking(vendor), "--output-schema", schema, "--json", "Capital of France?")

    assert (ended.code, ended.json["structured"], ended.json["text"]) == (0, json.loads(PARIS), PARIS)


def test_any_object_can_be_required(cli: Cli) -> None:
    with serving(says(PARIS)) as vendor:
        ended = cli(*asking(vendor), "--output-json", "--quiet", "Capital of France?")

    assert ended == Ended(0, f"{PARIS}\n", "")
    assert vendor.requests[0].body["response_format"] == {"type": "json_object"}


def test_an_invalid_answer_is_repaired_before_it_is_printed(cli: Cli, schema: str) -> None:
    with serving(ChatScript().play(says("Paris."), says(PARIS))) as vendor:
        ended = cli(*asking(vendor), "--output-schema", schema, "--quiet", "Capital of France?")

    assert ended == Ended(0, f"{PARIS}\n", "")
    assert (
        vendor.requests[1].body["messages"][-1]["content"].startswith("Your answer does not have the required form: ")
    )


def test_an_unrepairable_answer_exits_1_with_empty_stdout(cli: Cli, schema: str) -> None:
    with serving(says("Paris.")) as vendor:
        plain = cli(*asking(vendor), "--output-schema", schema, "Capital of France?")
        as_json = cli(*asking(vendor), "--output-schema", schema, "--json", "Capital of France?")

    assert (plain.code, plain.stdout, len(vendor.requests)) == (1, "", 6)
    assert "failed (bad_output): the answer is not of the form that was demanded: it is not JSON" in plain.stderr
    assert "the answer so far:\nParis." in plain.stderr
    result: dict[str, Any] = as_json.json
    assert (as_json.code, result["status"], result["end_reason"]) == (1, "failed", "bad_output")
    assert (result["text"], result["structured"]) == ("Paris.", None)


def test_a_stored_answer_is_printed_again_in_the_same_way(cli: Cli, schema: str) -> None:
    with serving(says(PARIS)) as vendor:
        first = cli(*asking(vendor), "--output-schema", schema, "--json", "Capital of France?")
    plain = cli("runs", "resume", first.json["run_id"])
    quiet = cli("runs", "resume", first.json["run_id"], "--quiet")

    assert plain == Ended(0, f"{PARIS}\n", "")
    assert quiet == Ended(0, f"{PARIS}\n", "")


@pytest.mark.parametrize("content", [None, "not json", "[]", '{"type":"strange"}', '{"$ref":"#/nowhere"}'])
def test_an_invalid_schema_file_exits_2_before_a_model_call(cli: Cli, folder: Path, content: str | None) -> None:
    if content is not None:
        (folder / "bad.json").write_text(content)
    with serving(says(PARIS)) as vendor:
        ended = cli(*asking(vendor), "--output-schema", "bad.json", "Capital of France?")

    assert (ended.code, ended.stdout, vendor.requests) == (2, "", [])
    assert ended.stderr.startswith("error: bad.json is not a usable JSON Schema: ")


def test_a_schema_on_the_command_line_is_refused_with_what_is_expected(cli: Cli) -> None:
    ended = cli("run", "--output-schema", '{"type":"object","title":"' + "x" * 500 + '"}', "Capital of France?")

    assert ended.code == 2
    assert "expected the name of a file" in ended.stderr


def test_a_schema_and_any_object_exclude_each_other(cli: Cli, schema: str) -> None:
    ended = cli("run", "--output-schema", schema, "--output-json", "hi")

    assert (ended.code, ended.stdout) == (2, "")
    assert "--output-schema and --output-json exclude each other" in ended.stderr
