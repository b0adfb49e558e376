"""MCP servers in the sandbox: what a server reaches, how it ends, and which runs share one."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import retinue
from retinue.mcp_client import McpServer
from retinue.messages import ToolMessage
from retinue.testing import Script, ScriptedProvider, calls, says
from retinue.tools.dependencies import ToolOptions
from tests.mcp_client.test_tools import FULL, SERVER, behave, count, results, tool
from tests.mcp_client.test_tools import server as plain_server

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("sandbox")]

PYTHON = os.path.realpath(sys.executable)
INSTALLATION = str(Path(PYTHON).parent.parent)
READS: dict[str, Any] = {"annotations": {"readOnlyHint": True}}


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace of the runs, which is the current folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def server(*tools: str | dict[str, Any], readable: tuple[str, ...] = (), **options: Any) -> McpServer:
    """A server in the sandbox, whose behaviour is a file of the workspace."""
    behave(Path.cwd(), *tools)
    args = (str(SERVER), str(Path.cwd() / "behaviour.json"))
    given: dict[str, Any] = {"sandbox": True, "readable": (INSTALLATION, str(SERVER), *readable), **options}
    return McpServer(name="test", command=PYTHON, args=args, **given)


def reading(*paths: Path) -> list[Any]:
    return [calls("mcp__test__read", path=str(path)) for path in paths]


async def test_a_server_reads_the_workspace_and_what_it_is_given_and_nothing_else(tmp_path: Path, work: Path) -> None:
    names = ("work/own", "given/file", "given/state/secret", "outside", "work/hidden")
    for path in (paths := [tmp_path / name for name in names]):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(path.name)
    found = await results(
        [server("read", readable=(str(tmp_path / "given"),))],
        *reading(*paths),
        home=tmp_path / "given" / "state",
        policy=replace(FULL, forbidden_paths=("hidden",)),
    )

    assert found[:2] == ["own", "file"]
    assert found[2:] == ["No such file or directory", "No such file or directory", "Permission denied"]


@pytest.mark.parametrize(("autonomy", "said"), [("full", "written 1"), ("readonly", "Read-only file system")])
async def test_a_server_writes_the_workspace_unless_the_run_only_reads(
    tmp_path: Path, work: Path, autonomy: Any, said: str
) -> None:
    (tmp_path / "given").mkdir()
    paths = [work / "made", tmp_path / "given" / "made", tmp_path / "made"]
    writes = [calls("mcp__test__write", path=str(path)) for path in paths]
    found = await results(
        [server(tool("write", **READS), writable=(str(tmp_path / "given"),))],
        *writes,
        policy=retinue.Policy(autonomy=autonomy),
    )

    assert found == [said, "written 1", "written 1"]  # the last one in a /tmp of its own
    assert [path.exists() for path in paths] == [autonomy == "full", True, False]


async def test_a_run_uses_no_server_that_was_started_with_more_rights(work: Path) -> None:
    agents = [
        retinue.Agent(name=name, tools=("mcp__test",), policy=retinue.Policy(autonomy=autonomy))
        for name, autonomy in (("writer", retinue.Autonomy.FULL), ("reader", retinue.Autonomy.READONLY))
    ]
    write = calls("mcp__test__write", path=str(work / "made"))
    script = Script().play("writer", write, write, says("Done.")).play("reader", write, says("Done."))
    found: list[str] = []
    async with retinue.open(
        provider=ScriptedProvider(script),
        mcp_servers=[server(tool("write", **READS))],
        agents=agents,
        dialects=(),
        home=retinue.MEMORY,
        policy=FULL,
    ) as r:
        for name in ("writer", "reader"):
            handle = await r.spawn("Write.", agent=name)
            await handle.wait()
            history = (await r.supervisor.replay(handle.run_id)).history
            found += [message.text for message in history if isinstance(message, ToolMessage)]

    assert found == ["written 1", "written 1", "Read-only file system"]


async def test_a_server_is_killed_with_its_processes_when_a_retinue_closes(work: Path) -> None:
    found = await results([server("leave")], calls("mcp__test__leave"))
    ran = await asyncio.create_subprocess_exec("ps", "-eo", "args", stdout=asyncio.subprocess.PIPE)
    listed, _ = await ran.communicate()

    assert found == ["left"]
    assert str(work) not in listed.decode()


async def test_a_crashed_server_is_restarted_once(work: Path) -> None:
    found = await results(
        [server("crash", "echo")],
        calls("mcp__test__crash"),
        calls("mcp__test__echo", a=1),
        calls("mcp__test__crash"),
        calls("mcp__test__echo", a=2),
    )

    assert "interrupted" in found[0]
    assert found[1] == '{"a": 1}'
    assert "was restarted in this run and was lost again" in found[3]
    assert (count(work, "started"), count(work, "calls")) == (2, 3)


async def test_a_server_that_ends_at_once_is_reported_with_what_it_said(
    caplog: pytest.LogCaptureFixture, work: Path
) -> None:
    dead = server()
    behave(work, dies=True)
    await results([dead])

    assert "no license" in caplog.text


async def test_a_server_has_the_network_unless_the_settings_say_no() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"0100007F:{listening.getsockname()[1]:04X}"
        (with_it,) = await results([server("read")], *reading(Path("/proc/net/tcp")))
        (without,) = await results([server("read", network=False)], *reading(Path("/proc/net/tcp")))

    assert (address in with_it, address in without) == (True, False)


async def test_without_a_sandbox_in_the_settings_of_tools_a_server_runs_as_others_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "outside").write_text("seen")
    beside = replace(plain_server(tmp_path, "read"), sandbox=True)
    off = ToolOptions(sandbox="off")

    found = await results([beside], *reading(tmp_path / "outside"), tool_options=off)
    await results([server("read")], tool_options=off)  # its files lie in the workspace

    assert found == ["seen"]
    assert "where agents may write" in caplog.text


async def test_a_folder_that_a_server_cannot_access_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await results([server("echo", cwd=str(tmp_path))])
    (inside,) = await results([server("cwd", cwd=str(tmp_path), readable=(str(tmp_path),))], calls("mcp__test__cwd"))

    assert f"a program cannot start in {tmp_path}, which is in none of its folders" in caplog.text
    assert inside == str(tmp_path)
