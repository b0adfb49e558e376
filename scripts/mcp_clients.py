"""Clients of the MCP server that `make hosts` tries: the protocol's conformance suite, the inspector, FastMCP's client.

Each function starts a server, uses it at both generations of the protocol, and says what was wrong; empty is nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

NODE_PACKAGES = (
    "node@22.23.3",
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@modelcontextprotocol/inspector@2.12.0",
)
"""The suite and the inspector need a newer Node than many machines have; npm has that, too."""

FASTMCP = "fastmcp-slim[client]==4.1.2"
SECONDS = 300

ANSWER = "There are 4711 grumpy owls."
TOOLS = ("run_agent", "wait_agents", "message_agent", "agent_result", "cancel_agent", "list_agents")
ERAS = ("legacy", "auto")
"""With a handshake (2025-11-25 and before), and without (2026-07-28)."""


class Place(NamedTuple):
    """Where a trial works."""

    folder: Path
    """An empty folder for files of the trial."""
    server: Sequence[str]
    """The command of a server on stdin and stdout."""
    variables: Mapping[str, str]
    """The environment of all programs."""
    programs: Path
    """The folder of the programs from npm, or the Python with FastMCP."""


# ---- the conformance suite -------------------------------------------------------------------------------------------

NEEDS_FIXTURES: Mapping[str, Sequence[str]] = {
    "tools with names of the suite, which return fixed contents": (
        "tools-call-image",
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
        "tools-call-with-logging",
        "tools-call-with-progress",
        "tools-call-sampling",
        "tools-call-elicitation",
        "elicitation-sep1034-general",
        "elicitation-sep1330-general",
        "json-schema-2020-12-tool-found",
        "incoming-sse-event",
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
    ),
    "a tool with parameters that are sent as HTTP headers": (
        "sep-2243-server-no-xmcp-tool",
        "sep-2243-server-decode-base64",
        "sep-2243-server-validate-param-match",
        "sep-2243-server-reject-invalid-param-chars",
        "sep-2243-server-reject-param-mismatch",
    ),
    "resources of the suite (test://...)": (
        "resources-read-text",
        "resources-read-binary",
        "resources-templates-read",
        "resources-subscribe",
        "resources-unsubscribe",
    ),
    "prompts of the suite": (
        "prompts-get-simple",
        "prompts-get-with-args",
        "prompts-get-embedded-resource",
        "prompts-get-with-image",
    ),
    "tools of the suite that ask for input": (
        "sep-2322-elicitation-incomplete",
        "sep-2322-sampling-incomplete",
        "sep-2322-list-roots-incomplete",
        "sep-2322-request-state-incomplete",
        "sep-2322-multiple-inputs-incomplete",
        "sep-2322-multi-round-r1",
        "sep-2322-non-tool-incomplete",
        "sep-2322-result-type-included",
        "sep-2322-reject-tampered-state",
        "sep-2322-respect-client-capabilities",
    ),
    "tools of the suite that run as tasks": (
        "sep-2663-result-type-task-on-create",
        "sep-2663-tasks-get-status-working",
        "sep-2663-tasks-get-status-completed",
        "sep-2663-tool-error-uses-completed-status",
        "sep-2663-tasks-get-status-failed",
        "sep-2663-cancel-ack-empty-result",
        "tasks-cancel-terminal-idempotent-ack",
        "tasks-per-request-meta-opt-in",
        "tasks-wire-field-renames",
        "tasks-no-early-ttl-expiry",
        "tasks-no-related-task-meta-on-inlined-result",
        "tasks-request-state-removal-setup",
        "sep-2663-tasks-get-status-input-required",
        "tasks-mrtr-tasks-update-resumes",
        "tasks-mrtr-partial-fulfillment",
        "tasks-headers-tolerate-mcp-method-on-tools-call",
        "sep-2663-routing-headers-accepted-on-tasks-get",
        "sep-2663-server-rejects-mismatched-mcp-name-on-tasks-get",
        "tasks-server-directed-creation-no-hint",
        "sep-2663-durable-create-strong-consistency",
        "sep-2663-server-returns-missing-capability-when-required",
        "sep-2663-mrtr-synchronous-before-task-creation",
    ),
}
"""Checks that a server fails which does not have the tools, resources and prompts of the suite, by what they need."""


def conformance(place: Place) -> str:
    """Run all server scenarios, once as the suite chooses the protocol and once without a handshake.

    A check that fails is wrong unless it needs a fixture of the suite.
    """
    excused = {check for checks in NEEDS_FIXTURES.values() for check in checks}
    passed, needing, wrong = 0, set[str](), list[str]()
    with _http_server(place) as url:
        for name, version in (("all", []), ("2026-07-28", ["--spec-version", "2026-07-28"])):
            results = place.folder / f"conformance-{name}"
            command = ["conformance", "server", "--url", url, "--suite", "all", *version, "--output-dir", str(results)]
            said = _run(place, command)
            checks = list(_checks(results))
            passed += sum(check["status"] == "SUCCESS" for check in checks)
            failed = {check["id"]: check for check in checks if check["status"] == "FAILURE"}
            needing |= failed.keys() & excused
            wrong += [f"{id}: {failed[id].get('errorMessage', '')}" for id in sorted(failed.keys() - excused)]
            if not checks:
                wrong.append(f"the suite gave no results: {said[-500:]}")
    print(f"        {passed} checks passed; {len(needing)} need fixtures of the suite; {len(wrong)} failed", flush=True)
    return "; ".join(wrong)


def _checks(results: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(results.glob("*/checks.json")):
        yield from json.loads(file.read_text())


# ---- clients that list and call every tool ---------------------------------------------------------------------------


def inspector(place: Place) -> str:
    """List and call every tool with the MCP inspector, over both transports and at both generations."""
    with _http_server(place) as url:
        # A client on HTTP without a handshake is known by its token, and any token will do on loopback.
        http = [url, "--transport", "http", "--header", "Authorization: Bearer a-token-of-the-inspector"]
        for target in (list(place.server), http):
            for era in ERAS:
                if wrong := _inspect(place, target, era):
                    return f"{wrong} ({'http' if target is http else 'stdio'}, {era})"
    return ""


def _inspect(place: Place, target: Sequence[str], era: str) -> str:
    def ask(*flags: str) -> dict[str, Any]:
        if target[0].startswith("http"):
            server = list(target)
        else:
            settings = {"mcpServers": {"team": {"command": target[0], "args": list(target[1:])}}}
            file = place.folder / "inspector.json"
            file.write_text(json.dumps(settings))
            server = ["--config", str(file), "--server", "team"]
        command = ["mcp-inspector", "--cli", *server, "--protocol-era", era, "--format", "json", "--quiet"]
        said = _run(place, [*command, "--connect-timeout", "60000", *flags])
        try:
            return json.loads(said.partition("\n---\n")[0])["result"]
        except (ValueError, KeyError):
            return {"error": said[-500:]}

    def call(tool: str, arguments: Mapping[str, object]) -> dict[str, Any]:
        found = ask("--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments))
        return _structured(found)

    names = tuple(tool["name"] for tool in ask("--method", "tools/list").get("tools", ()))
    if names != TOOLS:
        return f"tools/list gave {names}"
    ran = call("run_agent", {"task": "Count."})
    run = ran.get("run", "")
    results = {
        "run_agent": ran,
        "wait_agents": call("wait_agents", {"runs": [run]}),
        "agent_result": call("agent_result", {"run": run}),
        "message_agent": call("message_agent", {"run": run, "text": "Again."}),
        "cancel_agent": call("cancel_agent", {"run": run}),
        "list_agents": call("list_agents", {}),
    }
    return _wrong(results, run, target[0].startswith("http") and era == "legacy")


def _structured(found: dict[str, Any]) -> dict[str, Any]:
    """The answer of a tool in what the inspector prints."""
    value: dict[str, Any] | None = found.get("structuredContent")
    return {"error": json.dumps(found)[:500]} if value is None else value


def _wrong(results: Mapping[str, Mapping[str, Any]], run: str, is_new_client: bool) -> str:
    """What is wrong with the answers of the six tools; with a session of its own, a new client knows no run."""
    for tool, result in results.items():
        if is_new_client and tool in ("wait_agents", "agent_result", "message_agent", "cancel_agent"):
            expected = "error" in result and "Unknown run" in result["error"]
        elif tool == "list_agents":
            expected = "runs" in result
        else:
            expected = "error" not in result and (run in json.dumps(result))
        if not expected:
            return f"{tool} answered {json.dumps(result)[:300]}"
    return "" if ANSWER in json.dumps(results["run_agent"]) else f"run_agent answered {results['run_agent']}"


FASTMCP_PROGRAM = """
import asyncio, json, os, sys
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

async def main(target, mode):
    if target[0].startswith("http"):
        transport = StreamableHttpTransport(target[0], headers={"Authorization": "Bearer a-token-of-fastmcp"})
    else:
        transport = StdioTransport(command=target[0], args=target[1:], env=dict(os.environ))
    async with Client(transport, mode=mode) as client:
        names = [tool.name for tool in await client.list_tools()]
        async def call(name, **arguments):
            return (await client.call_tool(name, arguments)).structured_content
        ran = await call("run_agent", task="Count.")
        run = ran["run"]
        results = {
            "run_agent": ran,
            "wait_agents": await call("wait_agents", runs=[run]),
            "agent_result": await call("agent_result", run=run),
            "message_agent": await call("message_agent", run=run, text="Again."),
            "cancel_agent": await call("cancel_agent", run=run),
            "list_agents": await call("list_agents"),
        }
    print(json.dumps({"names": names, "run": run, "results": results}))

asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))
"""


def fastmcp(place: Place) -> str:
    """List and call every tool with FastMCP's client, over both transports and at both generations."""
    with _http_server(place) as url:
        for target in (list(place.server), [url]):
            for era in ERAS:
                said = _run(place, [str(place.programs), "-c", FASTMCP_PROGRAM, json.dumps(target), era])
                kind = f"({'http' if target == [url] else 'stdio'}, {era})"
                try:
                    found = json.loads(said.partition("\n---\n")[0])
                except ValueError:
                    return f"no answer {kind}: {said[-500:]}"
                if tuple(found["names"]) != TOOLS:
                    return f"list_tools gave {found['names']} {kind}"
                if wrong := _wrong(found["results"], found["run"], is_new_client=False):
                    return f"{wrong} {kind}"
    return ""


def install_fastmcp(cache: Path) -> Path:
    """An environment with FastMCP's client, which retinue itself does not need; its Python."""
    python = cache / "fastmcp" / "bin" / "python"
    done = cache / "fastmcp" / "installed.txt"
    if not done.exists() or done.read_text() != FASTMCP:
        print(f"installing {FASTMCP} in {cache}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(cache / "fastmcp")], check=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", FASTMCP], check=True)
        done.write_text(FASTMCP)
    return python


# ---- programs --------------------------------------------------------------------------------------------------------


@contextmanager
def _http_server(place: Place) -> Generator[str]:
    """A server on HTTP, until the end of the block; its address."""
    process = subprocess.Popen(
        [*place.server, "--http", "127.0.0.1:0"],
        cwd=place.folder,
        env=place.variables,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "http://" not in line:
            raise RuntimeError(f"the server did not start: {line}{process.stderr.read()}")
        yield line[line.index("http://") :].strip()
    finally:
        process.terminate()
        process.communicate()


def _run(place: Place, command: Sequence[str]) -> str:
    """What a command prints: stdout, a line, stderr."""
    ended = subprocess.run(
        command,
        cwd=place.folder,
        env=place.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = f"{ended.stdout}\n---\n{ended.stderr}"
    with (place.folder / "output.txt").open("a") as file:
        file.write(f"$ {' '.join(command)}\n{said}\n")
    return said
