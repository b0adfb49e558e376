"""`[mcp_servers.NAME]`, and the JSON files of Claude Code, Cursor and VS Code."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinue.app.settings_file import load_settings, mcp_servers
from retinue.core.errors import BadInput, ConfigError
from retinue.core.policy import Risk
from retinue.mcp_client import McpServer, read_server_file


def written(folder: Path, content: str | dict[str, Any]) -> Path:
    file = folder / "servers.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_servers_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").write_text("""
[mcp_servers.files]
command = "files-server"
args = ["--root", "."]
env = ["FILES_TOKEN"]
cwd = "sub"
timeout = 5
allow = ["get_*"]
deny = ["get_secret"]
risk = { "get_*" = "low" }

[mcp_servers.remote]
url = "https://host/mcp"
headers = { Authorization = "REMOTE_AUTH" }
""")
    found = mcp_servers(load_settings(tmp_path / "retinue.toml"))

    assert found == (
        McpServer(
            name="files",
            command="files-server",
            args=("--root", "."),
            env=("FILES_TOKEN",),
            cwd=str(tmp_path / "sub"),
            folder=str(tmp_path),
            timeout=5.0,
            allow=("get_*",),
            deny=("get_secret",),
            risk={"get_*": Risk.LOW},
        ),
        McpServer(name="remote", url="https://host/mcp", headers={"Authorization": "REMOTE_AUTH"}),
    )


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("[mcp_servers.x]\n", "expected a command, or a url"),
        ('[mcp_servers.a__b]\ncommand = "a"\n', "single _"),
        ('[mcp_servers.x]\ncommand = "a"\nenv = ["sk-secret-key"]\n', "the name of an environment variable"),
        ('[mcp_servers.x]\ncommand = "a"\nrisk = { x = "none" }\n', "low, medium"),
        ('[mcp_servers.x]\ncommand = "a"\nnetwork = false\n', "expected sandbox = true beside it"),
    ],
)
def test_settings_that_cannot_be_used_are_errors(table: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").write_text(table)
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path / "retinue.toml")
    message = "\n".join(map(str, caught.value.problems))

    assert text in message
    assert "sk-secret-key" not in message


def test_a_server_is_a_program_or_an_address() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": "x", "command": "a", "url": "https://host/mcp"}, "either a command or a url"),
        ({"name": "x", "url": "https://host/mcp", "args": ("a",)}, "for a server with a command"),
        ({"name": "x", "command": "a", "headers": {"X-Key": "KEY"}}, "for a server with a url"),
        ({"name": "x", "url": "https://host/mcp", "sandbox": True}, "for a server with a command"),
        ({"name": "x", "command": "a", "network": False}, "for a server with sandbox = true"),
        ({"name": "a__b", "command": "a"}, "no two _ in a row"),
        (
            {"name": "x", "url": "http://other.example/mcp", "headers": {"Authorization": "KEY"}},
            "the header Authorization is not sent to other.example over plain http",
        ),
        (
            {"name": "x", "url": "http://10.0.0.7/mcp", "header_values": {"X-Api-Key": "secret"}},
            "the header X-Api-Key is not sent to 10.0.0.7 over plain http",
        ),
        (
            {"name": "x", "url": "http://10.0.0.7/mcp", "headers": {"X-Team": "TEAM"}},
            "the header X-Team has the value of TEAM and is not sent to 10.0.0.7 over plain http",
        ),
    ]
    for options, text in wrong:
        with pytest.raises(BadInput, match=text):
            McpServer(**options)


def test_files_of_claude_code_and_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    file = written(
        tmp_path,
        {
            "mcpServers": {
                "my server!": {
                    "command": "npx",
                    "args": ["-y", "server", "${ROOT:-/tmp}"],
                    "env": {"KEY": "${TOKEN}"},
                    "disabled": False,
                },
                "remote": {
                    "type": "http",
                    "url": "https://host/mcp",
                    "headers": {"Authorization": "Bearer ${env:TOKEN}"},
                    "timeout": 30000,
                },
            }
        },
    )

    assert read_server_file(file) == (
        McpServer(
            name="my_server",
            command="npx",
            args=("-y", "server", "/tmp"),
            values={"KEY": "secret"},
            folder=str(tmp_path),
        ),
        McpServer(
            name="remote",
            url="https://host/mcp",
            header_values={"Authorization": "Bearer secret"},
            timeout=30.0,
        ),
    )


def test_files_of_vs_code_with_comments(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """{
  // servers of the workspace
  "servers": {"docs": {"type": "stdio", "command": "docs", "args": ["${workspaceFolder}/docs", "http://x"],},},
  /* nothing else */
}""",
    )

    assert read_server_file(file) == (
        McpServer(name="docs", command="docs", args=(f"{tmp_path}/docs", "http://x"), folder=str(tmp_path)),
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[]", "has neither mcpServers nor servers"),
        ("{", "not JSON"),
        ({"mcpServers": {"a": {"command": ["x"]}}}, "server 'a': Expected `str`"),
        ({"mcpServers": {"a": {}}}, "needs either a command or a url"),
        ({"mcpServers": {"a": {"type": "sse", "url": "https://host"}}}, "the transport sse is not supported"),
        ({"mcpServers": {"a": {"command": "${MISSING_VARIABLE}"}}}, "MISSING_VARIABLE is not set"),
        ({"servers": {"a": {"command": "x", "args": ["${input:key}"]}}}, "asks a person"),
        ({"mcpServers": {"a": {"url": "file:///etc/passwd"}}}, "has to begin with http"),
    ],
)
def test_files_that_cannot_be_used_are_bad_input(content: str | dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_server_file(written(tmp_path, content))

    assert text in str(caught.value)


def test_a_server_that_cannot_be_used_is_left_out_and_the_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(
        tmp_path,
        {
            "mcpServers": {
                "old": {"type": "sse", "url": "https://host"},
                "docs": {"command": "docs"},
                "off": {"command": "off", "disabled": True},
                "also off": {"command": "x", "enabled": False},
                "do/cs": {"command": "${MISSING_VARIABLE}"},
                "docs_": {"command": "other"},
            }
        },
    )

    assert read_server_file(file) == (McpServer(name="docs", command="docs", folder=str(tmp_path)),)
    assert [record.getMessage() for record in caplog.records] == [
        f"{file}: server 'old': the transport sse is not supported; use http; this server is left out",
        f"{file}: server 'do/cs': the environment variable MISSING_VARIABLE is not set; this server is left out",
        f"{file}: two servers are named 'docs'; this server is left out",
    ]


def test_a_file_whose_servers_are_all_switched_off_has_none(tmp_path: Path) -> None:
    assert read_server_file(written(tmp_path, {"servers": {"off": {"command": "x", "disabled": True}}})) == ()


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, made: Callable[[Path], None]) -> None:
    made(path := tmp_path / "servers.json")

    with pytest.raises(BadInput, match=r"expected a file|Is a directory"):
        read_server_file(path)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"url": "http://h.example/mcp", "headers": {"X-Team": "a ${env:TOKEN}"}}, "header X-Team"),
        ({"url": "http://h.example/mcp?key=${TOKEN}"}, "the url of"),
        ({"url": "http://${HOST_NAME}/mcp", "headers": {"X-Team": "${TOKEN:-none}"}}, "header X-Team"),
    ],
)
def test_values_of_variables_are_not_sent_in_plain_text(
    server: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "very-secret")
    monkeypatch.setenv("HOST_NAME", "h.example")
    file = written(tmp_path, {"mcpServers": {"x": server}})

    with pytest.raises(BadInput, match=rf"{message}.* has the value of TOKEN and is not sent to h.example") as caught:
        read_server_file(file)
    assert "very-secret" not in str(caught.value)
    for loopback in ("localhost:1", "127.0.0.1"):
        file.write_text(file.read_text().replace("h.example", loopback).replace("${HOST_NAME}", loopback))
        assert len(read_server_file(file)) == 1
        file = written(tmp_path, {"mcpServers": {"x": server}})
    monkeypatch.delenv("TOKEN")
    if "TOKEN:-" in str(server):
        assert read_server_file(file)[0].header_values == {"X-Team": "none"}
