"""`retinue mcp` on stdin and stdout, with the official client and with raw lines."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

import retinue
from retinue.mcp_server import answers
from retinue.mcp_server.sdk import make_server
from retinue.providers.scripted import Script, ScriptedProvider
from retinue.store.postgres import PostgresStore
from tests.mcp_server.harness import RawClient, arguments, environment, folder, parameters

pytestmark = pytest.mark.real_time  # child processes

SIX = ["run_agent", "wait_agents", "message_agent", "agent_result", "cancel_agent", "list_agents"]


def answer_of(result: types.CallToolResult) -> dict[str, Any]:
    """The answer of a call, which text and structured content have to agree on."""
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    assert json.loads(content.text) == result.structured_content
    return json.loads(content.text)


def text_of(content: object) -> str:
    """The text of a content block or of a resource."""
    assert isinstance(content, types.TextContent | types.TextResourceContents)
    return content.text


# ---- the official client, with the handshake and without -------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_lists_and_calls_every_tool(mode: Any, tmp_path: Path) -> None:
    async with Client(parameters(folder(tmp_path)), mode=mode) as client:
        tools = (await client.list_tools()).tools
        ran = answer_of(await client.call_tool("run_agent", {"task": "find it"}))
        behind = answer_of(await client.call_tool("run_agent", {"task": "find it", "background": True}))
        waited = answer_of(await client.call_tool("wait_agents", {"runs": [behind["run"]]}))
        sent = answer_of(await client.call_tool("message_agent", {"run": behind["run"], "text": "find more"}))
        await client.call_tool("wait_agents", {"runs": [behind["run"]]})
        read = answer_of(await client.call_tool("agent_result", {"run": behind["run"]}))
        stopped = answer_of(await client.call_tool("cancel_agent", {"run": behind["run"]}))
        listed = answer_of(await client.call_tool("list_agents", {}))

    assert [tool.name for tool in tools] == SIX
    assert (ran["state"], ran["answer"]) == ("completed", "It has 10 connections.")
    assert waited["runs"] == [{"run": behind["run"], "state": "completed", "answer": "It has 10 connections."}]
    assert sent["run"] == read["run"] == stopped["run"] == behind["run"]
    assert (read["state"], read["page"], read["pages"]) == ("completed", 1, 1)
    assert stopped["state"] == "completed"
    assert listed["agents"] == [{"name": "reader", "description": "Reads logs"}]
    assert [run["run"] for run in listed["runs"]] == [behind["run"], ran["run"]]


async def test_annotations_and_sizes_of_the_definitions(tmp_path: Path) -> None:
    async with Client(parameters(folder(tmp_path)), mode="legacy") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}

    noted = {name: tool.annotations.model_dump(exclude_none=True) for name, tool in tools.items() if tool.annotations}
    reads = {"read_only_hint": True, "destructive_hint": False, "open_world_hint": False}
    starts = {"read_only_hint": False, "destructive_hint": False, "open_world_hint": True}
    assert noted == {
        "run_agent": starts,
        "wait_agents": reads,
        "message_agent": starts,
        "agent_result": reads,
        "cancel_agent": {"read_only_hint": False, "destructive_hint": True, "open_world_hint": False},
        "list_agents": reads,
    }
    assert [name for name, tool in tools.items() if tool.meta == {"anthropic/alwaysLoad": True}] == SIX[:2]
    assert [tool.output_schema for tool in tools.values()] == [None] * 6
    listed = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools.values()]
    assert len(json.dumps(listed, separators=(",", ":"))) <= 3_900


async def test_a_server_whose_runs_have_no_tools_says_that_nothing_is_changed(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "retinue.toml").unlink()
    async with Client(parameters(tmp_path, "--tools", ""), mode="legacy") as client:
        run_agent = (await client.list_tools()).tools[0]

    assert run_agent.annotations is not None
    assert (run_agent.annotations.destructive_hint, run_agent.annotations.open_world_hint) == (False, False)


async def test_a_server_with_an_agent_program_says_that_its_runs_may_change_anything(tmp_path: Path) -> None:
    folder(tmp_path)
    with (tmp_path / "retinue.toml").open("a") as settings:
        settings.write('\n[providers.helper]\nwire = "acp"\ncommand = ["agent", "--acp"]\n')
    async with Client(parameters(tmp_path, "--tools", ""), mode="legacy") as client:
        run_agent = (await client.list_tools()).tools[0]

    assert run_agent.annotations is not None
    assert (run_agent.annotations.destructive_hint, run_agent.annotations.open_world_hint) == (True, True)


async def test_refusals_are_results_that_list_what_is_valid(tmp_path: Path) -> None:
    async with Client(parameters(folder(tmp_path)), mode="legacy") as client:
        wrong = await client.call_tool("run_agent", {"task": "find it", "agent": "writer"})
        unknown = await client.call_tool("agent_result", {"run": "r9"})
        no_tool = await client.call_tool("shell", {})

    assert [result.is_error for result in (wrong, unknown, no_tool)] == [True] * 3
    assert answer_of(wrong) == {"error": "Unknown agent 'writer'. Valid: reader; or leave agent out."}
    assert answer_of(unknown) == {"error": "Unknown run 'r9'. Valid: (none)."}
    assert "Valid: run_agent, wait_agents" in text_of(no_tool.content[0])


async def test_a_call_that_takes_longer_than_max_wait_names_the_next_one(tmp_path: Path) -> None:
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async with Client(parameters(folder(tmp_path)), mode="legacy") as client:
        first = answer_of(await client.call_tool("run_agent", {"task": "slow"}, progress_callback=hear))
        answers = [first]
        while answers[-1].get("timed_out", True) and len(answers) < 10:
            answers.append(answer_of(await client.call_tool("wait_agents", {"runs": [first["run"]]})))

    assert first["state"] == "working"
    assert first["next"] == f'Call wait_agents with {{"runs":["{first["run"]}"]}} to get the answer.'
    assert answers[-1]["runs"] == [{"run": first["run"], "state": "completed", "answer": "one two three four five six"}]
    assert [message for _, message in heard] == ["run_agent has been at work for 2 s"]


async def test_a_blocking_dialect_answers_within_max_wait_and_is_joined_by_the_same_call(tmp_path: Path) -> None:
    lines = {"main": [{"say": "one two three four five six", "every": 1.0}, {"say": "Six words."}]}
    call = {"label": "dig", "task_prompt": "count"}
    async with Client(parameters(folder(tmp_path, lines), "--dialect", "xzatoma"), mode="legacy") as client:
        answers = [answer_of(await client.call_tool("subagent", call))]
        while "success" not in answers[-1] and len(answers) < 10:
            answers.append(answer_of(await client.call_tool("subagent", call)))

    assert (answers[0]["state"], answers[0]["next"]) == (
        "working",
        "Call subagent again with the same arguments to go on waiting.",
    )
    assert (answers[-1]["success"], answers[-1]["output"]) == (True, "Six words.")


async def test_runs_are_resources_and_agents_are_prompts(tmp_path: Path) -> None:
    async with Client(parameters(folder(tmp_path)), mode="legacy") as client:
        run = answer_of(await client.call_tool("run_agent", {"task": "twice"}))["run"]
        listed = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates
        result, transcript, tree = [
            text_of((await client.read_resource(f"retinue://runs/{run}{part}")).contents[0])
            for part in ("", "/transcript", "/tree")
        ]
        prompts = (await client.list_prompts()).prompts
        prompt = (await client.get_prompt("reader", {"task": "Read it."})).messages
        with pytest.raises(MCPError, match="There is no resource"):
            await client.read_resource("retinue://runs/r9")
        with pytest.raises(MCPError, match="Valid: reader"):
            await client.get_prompt("writer", {"task": "x"})

    assert [str(resource.uri) for resource in listed] == [f"retinue://runs/{run}"]
    assert [template.uri_template for template in templates] == [
        "retinue://runs/{id}",
        "retinue://runs/{id}/transcript",
        "retinue://runs/{id}/tree",
    ]
    assert (json.loads(result)["answer"], json.loads(result)["outcome"]) == ("Nothing to do.", "completed")
    assert transcript.startswith("user: twice\n\nassistant: [calls task_list {}]\n\ntool: ")
    assert transcript.endswith("assistant: Nothing to do.")
    assert [row["run_id"] for row in json.loads(tree)] == [run]
    assert [(each.name, each.description) for each in prompts] == [("reader", "Reads logs")]
    assert text_of(prompt[0].content).endswith("Read it.")


# ---- raw lines -------------------------------------------------------------------------------------------------------


async def test_the_early_handshake_says_what_the_sdk_says(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        early = await client.handshake()
        tools = (await client.request("tools/list"))["result"]
        await client.call("list_agents")  # answered by the SDK, which is loaded by now
        again = (await client.request("tools/list"))["result"]
        await client.leave()

    async def find(context: object) -> Any:
        raise NotImplementedError

    server: Server[Any] = make_server(find)
    options = server.create_initialization_options()
    stated = options.capabilities.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert early["capabilities"] == stated
    assert early["serverInfo"] == server.server_info.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert early["instructions"] == options.instructions
    assert answers.HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS
    assert tools["tools"] == again["tools"]


async def test_an_mcp_server_of_the_settings_that_is_silent_does_not_keep_the_host_waiting(tmp_path: Path) -> None:
    folder(tmp_path)
    with (tmp_path / "retinue.toml").open("a") as settings:
        silent = ["-c", "import sys; sys.stdin.read()"]
        settings.write(
            f"\n[mcp_servers.silent]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(silent)}\n"
            "timeout = 3600\n"
        )
    async with RawClient(tmp_path) as client:
        await client.handshake()
        tools = (await client.request("tools/list"))["result"]["tools"]
        listed = await client.call("list_agents")
        await client.leave()
        assert client.process.stderr is not None
        errors = (await client.process.stderr.read()).decode()

    assert ([tool["name"] for tool in tools], listed["runs"]) == (SIX, [])
    assert "The MCP server silent has not listed its tools within 5 s" in errors


STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "a", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def test_a_client_without_a_handshake_is_answered_early_as_the_sdk_does(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        found = [await client.request(method, _meta=STATELESS) for method in ("server/discover", "tools/list")]
        await client.request("tools/call", name="list_agents", arguments={}, _meta=STATELESS)  # loads the SDK
        again = [await client.request(method, _meta=STATELESS) for method in ("server/discover", "tools/list")]
        await client.leave()

    assert [each["result"] for each in found] == [each["result"] for each in again]
    assert found[0]["result"]["supportedVersions"] == list(MODERN_PROTOCOL_VERSIONS) == [*answers.STATELESS_VERSIONS]
    assert found[0]["result"]["capabilities"]["tools"] == {"listChanged": False}
    assert [tool["name"] for tool in found[1]["result"]["tools"]] == SIX


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({**STATELESS, "io.modelcontextprotocol/protocolVersion": "2030-01-01"}, -32022),
        ({name: value for name, value in STATELESS.items() if not name.endswith("Capabilities")}, -32602),
        ({**STATELESS, "io.modelcontextprotocol/clientCapabilities": 7}, -32602),
    ],
)
async def test_a_request_without_what_its_protocol_needs_is_refused(
    tmp_path: Path, meta: dict[str, Any], code: int
) -> None:
    async with RawClient(folder(tmp_path)) as client:
        refused = await client.request("server/discover", _meta=meta)
        await client.leave()

    assert refused["error"]["code"] == code


def test_the_handshake_does_not_load_the_sdk() -> None:
    program = (
        "import sys, retinue.mcp_server, retinue.cli.mcp; "
        "print(*sorted({'mcp', 'pydantic', 'anyio'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "\n"


async def test_requests_before_the_end_of_stdin_are_answered(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        first = await client.begin(
            "initialize", protocolVersion="1999", capabilities={}, clientInfo={"name": "a", "version": "1"}
        )
        second = await client.begin("tools/list")
        third = await client.begin("tools/call", name="list_agents", arguments={})
        assert client.process.stdin is not None
        client.process.stdin.close()
        initialized = await client.answer(first)
        listed = await client.answer(second)
        called = await client.answer(third)
        code = await asyncio.wait_for(client.process.wait(), 10)

    assert initialized["result"]["protocolVersion"] == answers.HANDSHAKE_VERSIONS[-1]
    assert [tool["name"] for tool in listed["result"]["tools"]] == SIX
    assert called["result"]["structuredContent"]["runs"] == []
    assert code == 0


async def test_a_client_that_gives_up_its_probe_can_still_begin_with_the_handshake(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
        probe = await client.begin("server/discover", _meta=meta)
        hello = await client.begin(
            "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "a", "version": "1"}
        )
        refused, initialized = await client.answer(probe), await client.answer(hello)
        await client.notify("notifications/initialized")
        listed = await client.call("list_agents")

    assert refused["error"]["code"] == -32601
    assert initialized["result"]["protocolVersion"] == "2025-11-25"
    assert listed["runs"] == []


async def test_stdout_carries_the_protocol_alone(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        await client.handshake()
        answer = await client.call("run_agent", task="print")
        code = await client.leave()
        assert client.process.stdout is not None
        assert client.process.stderr is not None
        rest, errors = await client.process.stdout.read(), await client.process.stderr.read()

    assert (answer["answer"], client.others, rest, code) == ("Printed.", [], b"", 0)
    assert [word in errors.decode() for word in ("printed", "written", "from a child")] == [True] * 3


async def test_malformed_and_unknown_messages_are_answered_and_change_nothing(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        await client.handshake()
        behind = await client.call("run_agent", task="slow", background=True)
        found: list[int] = []
        for line in (b"no JSON", b"[]", b'"text"', b'{"jsonrpc":', b"\xff\xfe", b"[" * 100_000):
            await client.write(line)
            found.append((await client.answer(None))["error"]["code"])
        unknown = await client.request("tools/destroy")
        await client.write(b'{"jsonrpc":"2.0","method":"notifications/nonsense"}')
        wrong = await client.request("tools/call", name=7)
        listed = await client.call("list_agents")

    assert found == [-32700, -32600, -32600, -32700, -32700, -32700]
    assert (unknown["error"]["code"], wrong["error"]["code"]) == (-32601, -32602)
    assert [run["run"] for run in listed["runs"]] == [behind["run"]]


async def test_a_message_of_fifty_megabytes_is_refused_and_the_server_goes_on(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        await client.handshake()
        huge = {
            "jsonrpc": "2.0",
            "id": 99,
            "method": "tools/call",
            "params": {"name": "run_agent", "x": "y" * 50_000_000},
        }
        await client.write(json.dumps(huge).encode())
        refused = await client.answer(None)
        answer = await client.call("run_agent", task="find it")

    assert refused["error"] == {"code": -32600, "message": "the message is longer than 16777216 bytes"}
    assert answer["state"] == "completed"


async def test_a_cancelled_request_cancels_its_run_and_no_background_run(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path, max_wait=60)) as client:
        await client.handshake()
        behind = await client.call("run_agent", task="stuck too", background=True)
        id = await client.begin("tools/call", name="run_agent", arguments={"task": "stuck"})
        listed: list[dict[str, Any]] = []
        while len(listed) < 2:
            listed = (await client.call("list_agents"))["runs"]
        await client.notify("notifications/cancelled", requestId=id)
        states: dict[str, str] = {}
        while states.get("stuck") != "cancelled":
            states = {run["task"]: run["state"] for run in (await client.call("list_agents"))["runs"]}

    assert states == {"stuck": "cancelled", "stuck too": "working"}
    assert behind["state"] == "working"


# ---- ends ------------------------------------------------------------------------------------------------------------


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended; it may be left as a zombie where nothing waits for orphans."""
    state = "R"
    while state and not state.startswith("Z"):
        time.sleep(0.1)
        listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
        state = listed.stdout.strip()


async def finished(path: Path, run: str) -> list[str]:
    """The states that a new server on the same state folder lists of a run, until it has ended."""
    states: list[str] = []
    async with RawClient(path) as client:
        await client.handshake()
        while not states or states[-1] in ("working", "interrupted", "waiting"):
            listed = {each["run"]: each["state"] for each in (await client.call("list_agents"))["runs"]}
            states.append(listed[run])
            await client.call("wait_agents", runs=[run], seconds=0.2)
        answer = await client.call("agent_result", run=run)
        await client.leave()
    assert answer["answer"] == "one two three four five six"
    return states


@pytest.mark.parametrize("end", ["stdin", "SIGTERM", "SIGKILL"])
async def test_runs_survive_the_end_of_client_and_server(end: str, tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        await client.handshake()
        run = (await client.call("run_agent", task="slow", background=True))["run"]
        if end == "stdin":
            await client.begin("tools/call", name="run_agent", arguments={"task": "slow as well"})  # in the foreground
            code = await client.leave()
        else:
            client.process.send_signal(signal.Signals[end])
            code = await asyncio.wait_for(client.process.wait(), 10)

    assert code == {"stdin": 0, "SIGTERM": 0, "SIGKILL": -9}[end]
    assert (await finished(tmp_path, run))[-1] == "completed"
    async with retinue.open(provider=ScriptedProvider(Script()), home=tmp_path / "home") as r:
        roots = await r.list()
    assert {(view.label, view.state) for view in roots} == {("host:mcp", "ended")}


HOST = """
import json, subprocess, sys

server = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def ask(id, method, **params):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\\n")
    server.stdin.flush()
    while (answer := json.loads(server.stdout.readline())).get("id") != id:
        pass
    return answer["result"]

ask(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "host", "version": "1"})
task = {"task": "slow", "background": True}
print(ask(2, "tools/call", name="run_agent", arguments=task)["structuredContent"]["run"], server.pid, flush=True)
sys.stdin.read()
"""


async def test_a_background_run_survives_kill_9_of_the_host(tmp_path: Path) -> None:
    command = json.dumps([sys.executable, *arguments()])
    host = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOST,
        command,
        cwd=folder(tmp_path),
        env=environment(tmp_path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert host.stdin is not None
    assert host.stdout is not None
    run, pid = (await asyncio.wait_for(host.stdout.readline(), 60)).decode().split()
    host.kill()
    await host.wait()
    host.stdin.close()
    states = await finished(tmp_path, run)
    await asyncio.to_thread(wait_for_end, int(pid))

    assert states[-1] == "completed"


async def test_bad_usage_ends_before_the_handshake(tmp_path: Path) -> None:
    folder(tmp_path)
    for more, text in (
        (("--dialect", "klingon"), "unknown dialect: 'klingon'"),
        (("--dialect", "spec", "--dialect", "xzatoma"), "both have a tool named 'subagent'"),
    ):
        async with RawClient(tmp_path, *more) as client:
            assert client.process.stdout is not None
            assert client.process.stderr is not None
            out, errors = await asyncio.gather(client.process.stdout.read(), client.process.stderr.read())
            code = await client.process.wait()
        assert (code, out) == (2, b"")
        assert text in errors.decode()


async def test_a_server_on_postgres_leaves_its_runs_there(tmp_path: Path, postgres_url: str) -> None:
    async with RawClient(folder(tmp_path), "--store", postgres_url) as client:
        await client.handshake()
        answer = await client.call("run_agent", task="find the pool", wait_seconds=30)
        assert answer["state"] == "completed"
        assert await client.leave() == 0

    with closing(PostgresStore(postgres_url)) as store:
        assert store.run(answer["run"]) is not None
    assert not (tmp_path / "home" / "retinue.db").exists()
