"""The JSON of the commands has the fields of docs/reference/json.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.core.errors import ProviderError
from retinue.providers.scripted import calls, fails, says
from retinue.testing.fake_chat import ChatScript, FakeChat
from tests.cli.conftest import Cli
from tests.cli.stage import open_in_a_thread, retinue, serving
from tests.providers.fakes.batches import FakeBatches

pytestmark = pytest.mark.real_time

PAGE = Path(__file__).parents[2] / "docs/reference/json.md"

SETTINGS = """
[agents.dig]
description = "Digs."
system_prompt = "You dig."
tools = ["file_read"]

[providers.local]
wire = "openai-chat"
base_url = "{base_url}"
"""


def documented() -> dict[str, list[str]]:
    """The fields of each command on the page."""
    sections = re.split(r"^## `retinue ([^`]+)`\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {
        name: re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }


FIELDS = documented()
SOMETIMES = {"citations", "estimated"}
"""Fields of an object that has something to say in them."""


def fields_of(value: Any, known: list[str]) -> set[str]:
    """The fields of an object or of all objects of an array, as deep as the page describes them."""
    rows = objects(value)
    found = {name for row in rows for name in row}
    for name in sorted(found):
        if any(each.startswith(f"{name}.") for each in known):
            below = [inner for row in rows if row.get(name) for inner in objects(row[name])]
            found |= {f"{name}.{field}" for row in below for field in row}
    return found


def objects(value: Any) -> list[dict[str, Any]]:
    return msgspec.convert(value if isinstance(value, list) else [value], list[dict[str, Any]])


def check(command: str, value: Any, *, more: str = "") -> None:
    known = [*FIELDS[command], *(FIELDS[more] if more else [])]
    found = fields_of(value, known)
    assert found <= set(known)
    assert {name for name in known if "." not in name} - SOMETIMES <= found


def test_the_json_of_runs_is_that_of_the_page(cli: Cli) -> None:
    script = ChatScript().play(calls("shared_context", action="set", key="k", value="v"), says("Done."))
    script.play(fails(ProviderError("no", fault="bad_request", status=400)), words="FAIL")
    with serving(script) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "spec", "--json")
        good = cli("run", *where, "--session", "audit", "Set it.").json
        failed = cli("run", *where, "FAIL")
    run_id = good["run_id"]

    check("run --json", good)
    check("run --json", failed.json)
    assert (failed.code, failed.json["status"], failed.json["error"]) == (
        1,
        "failed",
        f"{vendor.base_url} answered 400: no",
    )
    check("run --json", cli("runs", "resume", run_id, "--json").json)
    check("runs list --json", cli("runs", "list", "--json").json)
    check("runs show --json", cli("runs", "show", run_id, "--json").json, more="runs list --json")
    check("runs show --json", cli("runs", "show", run_id, "--all", "--json").json, more="runs list --json")
    check("runs tree --json", cli("runs", "tree", run_id, "--json").json)
    lines = [json.loads(line) for line in cli("runs", "follow", run_id, "--json").stdout.splitlines()]
    check("runs follow --json", lines)
    exported = [json.loads(line) for line in cli("runs", "export", run_id).stdout.splitlines()]
    kinds = [line.pop("type") for line in exported]
    assert kinds == ["run"] + ["event"] * len(lines)
    check("runs list --json", exported[0])
    check("runs follow --json", exported[1:])
    check("context list --json", cli("context", "list", "--json").json)
    check("context show --json", cli("context", "show", "audit", "--json").json)
    check("store check --json", cli("store", "check", "--json").json)
    check("store backup --json", cli("store", "backup", "copy.db", "--json").json)


def test_the_json_of_a_demanded_form_is_alone_on_stdout(cli: Cli, folder: Path) -> None:
    (folder / "schema.json").write_text('{"type": "object", "required": ["sum"]}')
    with serving(ChatScript().play(says('{"sum": 42}'))) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m")
        ended = cli("run", *where, "--output-schema", "schema.json", "6 times 7?")

    assert (ended.code, ended.stdout) == (0, '{"sum":42}\n')


@pytest.mark.usefixtures("folder")
async def test_the_json_of_detached_runs_and_approvals_is_that_of_the_page() -> None:
    async with FakeChat(ChatScript().play(calls("file_write", path="a.txt", content="a"), says("Done."))) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m", "--tools", "file_write", "--dialect", "none")
        started = (await retinue("run", *where, "--detach", "--approvals", "wait", "--json", "Write.")).json
        check("run --detach --json", started)
        while not (waiting := (await retinue("approvals", "--json")).json):
            pass
        check("approvals --json", waiting)
        await retinue("runs", "cancel", started["run_id"])


def test_the_json_of_settings_and_state_is_that_of_the_page(cli: Cli, folder: Path) -> None:
    remembers = calls("memory_store", key="style", content="short", category="core")
    with serving(ChatScript().play(remembers, says("Done."))) as vendor:
        (folder / "retinue.toml").write_text(SETTINGS.format(base_url=vendor.base_url))
        where = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "none")
        assert cli("run", *where, "--tools", "memory_store", "--yes", "Remember.").code == 0
        check("models --json", cli("models", "--json").json)
        check("doctor --json", cli("doctor", "--json").json)
    cli("cron", "add", "tidy", "--every", "1h", "--shell", "ls")

    check("agents list --json", cli("agents", "list", "--json").json)
    check("tools --json", cli("tools", "--json").json)
    check("memory list --json", cli("memory", "list", "--json").json)
    check("memory list --json", cli("memory", "show", "main", "style", "--json").json)
    check("cron list --json", cli("cron", "list", "--json").json)
    check("daemon status --json", cli("daemon", "status", "--json").json)


def test_the_json_of_batches_is_that_of_the_page(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.providers.batch.queue.WINDOW", 0.05)
    monkeypatch.setattr("retinue.providers.batch.queue.FIRST_PAUSE", 0.05)
    with open_in_a_thread(FakeBatches("anthropic", lambda text: "Yes.").server()) as server:
        where = ("--provider", "anthropic", "--base-url", server.url, "--model", "m")
        ended = cli("batch", "submit", "-", "--name", "nightly", "--wait", *where, stdin=b"Is it so?")

    check("batch wait", [json.loads(line) for line in ended.stdout.splitlines()], more="run --json")
    check("batch list --json", cli("batch", "list", "--json").json)
    check("batch list --json", cli("batch", "status", "nightly", "--json").json)


def test_every_command_of_the_page_is_compared() -> None:
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    compared = set(re.findall(r'\bcheck\("([^"]+ --json|batch wait)"', tests))

    assert compared == set(FIELDS)
