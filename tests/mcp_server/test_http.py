"""`retinue mcp --http`: the official client at both generations of the protocol, and raw requests."""

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from retinue.core.errors import BadInput
from retinue.mcp_server.http import HttpAddress, check_access
from tests.mcp_server.harness import HttpServer, arguments, environment, folder
from tests.mcp_server.test_stdio import SIX, answer_of

pytestmark = pytest.mark.real_time  # a child process

ONE, OTHER = "token-of-the-first-client", "token-of-the-second-client"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A server on loopback that accepts every client."""
    with HttpServer(folder(tmp_path_factory.mktemp("http"))) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A server with two tokens."""
    flags = ("--token-env", "ONE", "--token-env", "OTHER")
    with HttpServer(folder(tmp_path_factory.mktemp("tokens")), *flags, variables={"ONE": ONE, "OTHER": OTHER}) as made:
        yield made


@asynccontextmanager
async def client(server: HttpServer, mode: Any, token: str = "") -> AsyncGenerator[Client]:
    """The official client, with a bearer token if one is given."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http_client,
        Client(streamable_http_client(server.url, http_client=http_client), mode=mode) as connected,
    ):
        yield connected


async def post(server: HttpServer, body: bytes, **headers: str) -> tuple[int, str]:
    """Status and text of a raw request."""
    usual = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url, data=io.BytesIO(body), headers=usual | named) as answer,
    ):
        return answer.status, await answer.text()


INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        },
    }
).encode()


@pytest.mark.parametrize(("mode", "lists"), [("legacy", True), ("auto", False)])
async def test_the_official_client_lists_and_calls_every_tool(mode: Any, lists: bool, server: HttpServer) -> None:
    async with client(server, mode) as one:
        tools = (await one.list_tools()).tools
        behind = answer_of(await one.call_tool("run_agent", {"task": "find it", "background": True}))
        waited = answer_of(await one.call_tool("wait_agents", {"runs": [behind["run"]]}))
        sent = answer_of(await one.call_tool("message_agent", {"run": behind["run"], "text": "find more"}))
        await one.call_tool("wait_agents", {"runs": [behind["run"]]})
        read = answer_of(await one.call_tool("agent_result", {"run": behind["run"]}))
        stopped = answer_of(await one.call_tool("cancel_agent", {"run": behind["run"]}))
        listed = answer_of(await one.call_tool("list_agents", {}))

    assert [tool.name for tool in tools] == SIX
    assert waited["runs"] == [{"run": behind["run"], "state": "completed", "answer": "It has 10 connections."}]
    assert sent["run"] == read["run"] == stopped["run"] == behind["run"]
    assert [run["run"] for run in listed["runs"]] == ([behind["run"]] if lists else [])


async def test_sessions_have_different_roots_and_do_not_see_each_other(server: HttpServer) -> None:
    async with client(server, "legacy") as one, client(server, "legacy") as other:
        run = answer_of(await one.call_tool("run_agent", {"task": "find it"}))["run"]
        hidden = await other.call_tool("agent_result", {"run": run})
        listed = answer_of(await other.call_tool("list_agents", {}))
        resources = (await other.list_resources()).resources
        with pytest.raises(MCPError, match="There is no resource"):
            await other.read_resource(f"retinue://runs/{run}")

    assert (hidden.is_error, answer_of(hidden)) == (True, {"error": f"Unknown run {run!r}. Valid: (none)."})
    assert (listed["runs"], resources) == ([], [])


async def test_without_a_session_a_client_is_its_token(server: HttpServer) -> None:
    async with client(server, "auto", ONE) as one:
        run = answer_of(await one.call_tool("run_agent", {"task": "find it", "key": "k"}))["run"]
    async with client(server, "auto", ONE) as later, client(server, "auto", OTHER) as other:
        again = answer_of(await later.call_tool("run_agent", {"task": "find it", "key": "k"}))["run"]
        listed = [answer_of(await each.call_tool("list_agents", {}))["runs"] for each in (later, other)]
        hidden = await other.call_tool("agent_result", {"run": run})
    async with client(server, "auto") as nameless:
        hidden_too = await nameless.call_tool("agent_result", {"run": run})

    assert again == run
    assert [[row["run"] for row in rows] for rows in listed] == [[run], []]
    assert (hidden.is_error, hidden_too.is_error) == (True, True)


async def test_clients_without_an_identity_reach_a_run_by_its_id_alone(server: HttpServer) -> None:
    async with client(server, "auto") as one, client(server, "auto") as other:
        run = answer_of(await one.call_tool("run_agent", {"task": "find it"}))["run"]
        read = answer_of(await other.call_tool("agent_result", {"run": run}))
        unknown = answer_of(await other.call_tool("agent_result", {"run": "r9"}))
        keyed = answer_of(await other.call_tool("run_agent", {"task": "find it", "key": "k"}))
        resources = (await other.list_resources()).resources

    assert read["answer"] == "It has 10 connections."
    assert (unknown, resources) == ({"error": "Unknown run 'r9'. Valid: (none)."}, [])
    assert keyed == {"error": "A key needs a client with an identity: send a bearer token, or leave key out."}


async def test_tools_that_find_runs_by_their_caller_need_an_identity(tmp_path: Path) -> None:
    with HttpServer(folder(tmp_path), "--dialect", "spec") as spec:
        async with client(spec, "auto") as one:
            names = [tool.name for tool in (await one.list_tools()).tools]
            with pytest.raises(MCPError, match="send a bearer token"):
                await one.call_tool("subagent", {"action": "list_agents"})
        async with client(spec, "auto", ONE) as known:
            listed = await known.call_tool("subagent", {"action": "list_agents"})

    assert names == ["subagent", "shared_context"]
    assert not listed.is_error


async def test_pages_of_other_sites_and_other_names_of_this_machine_are_refused(server: HttpServer) -> None:
    port = server.url.rpartition(":")[2].partition("/")[0]
    found = [
        (await post(server, INITIALIZE, **headers))[0]
        for headers in (
            {"Origin": f"http://localhost:{port}"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://localhost.evil.example:{port}"},
            {"Host": f"evil.example:{port}"},
            {"Host": f"127.0.0.1.evil.example:{port}"},
            {"Host": f"localhost:{port}"},
        )
    ]

    assert found == [200, 403, 403, 403, 421, 421, 200]


async def test_malformed_and_huge_requests_are_answered_and_change_nothing(server: HttpServer) -> None:
    statuses = [
        (await post(server, body, **headers))[0]
        for body, headers in (
            (b"no JSON", {}),
            (b"[" * 100_000, {}),
            (b"[]", {}),
            (b"\xff\xfe", {"MCP_Protocol_Version": "2026-07-28"}),
            (b"[" * 100_000, {"MCP_Protocol_Version": "2026-07-28"}),
            (INITIALIZE, {"Mcp_Session_Id": "unknown"}),
            (INITIALIZE, {"MCP_Protocol_Version": "1999-01-01"}),
            (b'{"x":"' + b"y" * 50_000_000 + b'"}', {}),
        )
    ]
    async with aiohttp.ClientSession() as session, session.get(server.url.replace("/mcp", "/")) as answer:
        elsewhere = answer.status
    async with client(server, "legacy") as one:
        works = answer_of(await one.call_tool("run_agent", {"task": "find it"}))

    assert statuses == [400, 400, 400, 400, 400, 404, 400, 413]
    assert (elsewhere, works["state"]) == (404, "completed")


async def test_a_token_is_needed_where_one_is_named(guarded: HttpServer) -> None:
    statuses = [
        (await post(guarded, INITIALIZE, **headers))[0]
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {ONE}"})
    ]
    async with client(guarded, "legacy", ONE) as one:
        run = answer_of(await one.call_tool("run_agent", {"task": "find it"}))

    assert statuses == [401, 401, 200]
    assert run["state"] == "completed"


async def test_a_session_belongs_to_the_token_that_opened_it(guarded: HttpServer) -> None:
    usual = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    async with aiohttp.ClientSession(headers=usual) as session:
        mine, yours = {"Authorization": f"Bearer {ONE}"}, {"Authorization": f"Bearer {OTHER}"}
        async with session.post(guarded.url, data=INITIALIZE, headers=mine) as answer:
            opened = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        listing = b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}'
        statuses: list[int] = []
        for headers in (opened | mine, opened | yours):
            async with session.post(guarded.url, data=listing, headers=headers) as answer:
                statuses.append(answer.status)
        async with session.delete(guarded.url, headers=opened | mine) as answer:
            statuses.append(answer.status)
        async with session.post(guarded.url, data=listing, headers=opened | mine) as answer:
            statuses.append(answer.status)

    assert statuses == [200, 404, 200, 404]


async def test_runs_go_on_when_the_server_ends_and_are_finished_by_the_next_one(tmp_path: Path) -> None:
    with HttpServer(folder(tmp_path)) as first:
        async with client(first, "auto", ONE) as one:
            run = answer_of(await one.call_tool("run_agent", {"task": "slow", "background": True}))["run"]
        code = first.stop()
    with HttpServer(tmp_path) as second:
        async with client(second, "auto", ONE) as one:
            listed = answer_of(await one.call_tool("list_agents", {}))["runs"]
            row: dict[str, str] = {}
            while row.get("state") != "completed":
                (row,) = answer_of(await one.call_tool("wait_agents", {"runs": [run], "seconds": 1}))["runs"]

    assert code == 0
    assert [each["run"] for each in listed] == [run]
    assert row["answer"] == "one two three four five six"


def test_an_address_beyond_loopback_without_a_token_is_bad_usage(tmp_path: Path) -> None:
    command = [sys.executable, *arguments("--http", "0.0.0.0:0")]
    variables = environment(folder(tmp_path))
    ran = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert "name the variable of a bearer token with --token-env NAME" in ran.stderr


def test_addresses_and_tokens_that_cannot_be_used_are_refused() -> None:
    for text in ("localhost:http", "localhost", "127.0.0.1:65536", "::one", "", "127.0.0.1:²"):
        with pytest.raises(BadInput, match="give HOST:PORT"):
            HttpAddress.parse(text)
    with pytest.raises(BadInput, match="too short"):
        check_access(HttpAddress("0.0.0.0", 1), ["abc"])
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"):
        check_access(HttpAddress(host, 1), [])
    for host in ("0.0.0.0", "::", "192.0.2.1", "localhost.evil.example", "::ffff:192.0.2.1"):
        with pytest.raises(BadInput, match="can be reached from other machines"):
            check_access(HttpAddress(host, 1), [])


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.stress)])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_many_clients_at_once_lose_nothing_and_see_no_other_runs(
    mode: Any, count: int, server: HttpServer
) -> None:
    """Each of them makes ten calls: eight runs, a list, and a look at a run of another client."""
    known: list[list[str]] = [[] for _ in range(count)]

    async def use(number: int) -> tuple[set[str], bool]:
        async with client(server, mode, f"the-token-of-client-{count}-{number}") as one:
            for _ in range(8):
                ran = answer_of(await one.call_tool("run_agent", {"task": "find it"}))
                assert ran["answer"] == "It has 10 connections."
                known[number].append(ran["run"])
            listed = answer_of(await one.call_tool("list_agents", {}))["runs"]
            others = known[number - 1][:1] or ["r9"]
            other: types.CallToolResult = await one.call_tool("agent_result", {"run": others[0]})
            return {run["run"] for run in listed}, bool(other.is_error)

    seen = await asyncio.gather(*(use(number) for number in range(count)))

    assert [runs for runs, _ in seen] == [set(runs) for runs in known]
    assert all(refused for _, refused in seen)
    assert len({run for runs in known for run in runs}) == count * 8
