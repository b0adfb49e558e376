"""MCP servers on the command line, and a server over HTTP."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue.mcp_client import McpServer
from retinue.testing import calls
from tests.mcp_client.test_tools import SERVER, behave, results, tool
from tests.mcp_server.harness import HttpServer, environment, folder

pytestmark = pytest.mark.real_time  # child processes


def command(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "retinue", *words],
        cwd=path,
        env=environment(path),
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_a_run_uses_the_servers_of_a_file_and_changes_are_accepted_by_a_person(tmp_path: Path) -> None:
    reads: dict[str, Any] = {"annotations": {"readOnlyHint": True}}
    behave(tmp_path, tool("echo", **reads))
    script = tmp_path / "server.py"
    script.write_bytes(SERVER.read_bytes())
    server = {"command": sys.executable, "args": [str(script), str(tmp_path / "behaviour.json")]}
    work = tmp_path / "work"
    work.mkdir()
    (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"test": server}}))
    lines = [{"call": {"name": "mcp__test__echo", "arguments": {"a": 1}}}, {"say": "Done."}]
    (work / "lines.json").write_text(json.dumps({"main": lines}))

    ran = command(work, "run", "--model", "scripted:lines.json", "--mcp-config", ".mcp.json", "--json", "Use it.")
    behave(tmp_path, tool("echo", **reads), tool("new", **reads))
    before = command(work, "mcp-servers", "--mcp-config", ".mcp.json", "--json")
    accepted = command(work, "mcp-servers", "--mcp-config", ".mcp.json", "--accept", "test")

    assert (ran.returncode, json.loads(ran.stdout)["text"]) == (0, "Done."), ran.stderr
    (report,) = json.loads(before.stdout)
    assert [row["name"] for row in report["tools"]] == ["mcp__test__echo"]
    assert report["changes"] == ["tool 'new' was not there when the server was first used, and is left out"]
    assert accepted.returncode == 0
    assert "mcp__test__new" in accepted.stdout


async def test_a_server_over_http_is_used_with_headers_from_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENT", "Bearer the-token-of-the-server")
    variables = {"TOKEN": "the-token-of-the-server"}
    with HttpServer(folder(tmp_path), "--token-env", "TOKEN", variables=variables) as running:
        remote = McpServer(name="team", url=running.url, headers={"Authorization": "SENT"})
        found = await results([remote], calls("mcp__team__run_agent", task="find it"), calls("mcp__team__list_agents"))

    assert json.loads(found[0])["answer"] == "It has 10 connections."
    assert len(json.loads(found[1])["runs"]) == 1
