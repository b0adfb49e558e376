"""Traces of trees, as a collector receives them from the official OTLP exporter."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import retinue
from retinue.core.errors import BadInput, ProviderError
from retinue.mcp_client import McpServer
from retinue.net.fetcher import Fetcher
from retinue.net.guard import Guard
from retinue.providers.scripted import Line
from retinue.telemetry import genai
from retinue.telemetry.exporters import Telemetry
from retinue.testing import (
    FakeChat,
    FakeResponse,
    FakeServer,
    Script,
    ScriptedProvider,
    calls,
    fails,
    hangs,
    says,
    together,
)
from retinue.testing.fake_chat import Playable, count_replies
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.stage import Command
from tests.cli.stage import retinue as command
from tests.dialects.buzzllm.harness import CHAT, Cast, call_subagent, opened
from tests.telemetry.collector import Collector

pytestmark = pytest.mark.real_time

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"


TOKENS = "gen_ai.client.token.usage"
SECONDS = "gen_ai.client.operation.duration"


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "TRACEPARENT", "OTEL_SERVICE_NAME", genai.CAPTURE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))


@pytest.fixture
def collector() -> Generator[Collector]:
    with Collector() as collector:
        yield collector


@retinue.tool(kind="pure")
def look(at: str) -> str:
    """Look at something."""
    if at == "nothing":
        raise retinue.ToolError("there is nothing")
    return f"saw {at}"


DIG = retinue.Agent(name="dig", description="Digs.", system_prompt="You dig.", tools=("look",))
LEAD = (
    together(calls("dig", task="left"), calls("dig", task="right"), calls("look", at="sky")),
    says("Both dug."),
)
CHILD = (calls("look", at="nothing"), says("Clay."))


def script() -> Script:
    return Script().play("main", *LEAD).play("dig", *CHILD)


async def run(model: Script, telemetry: Telemetry | None, **options: Any) -> retinue.Outcome:
    given: dict[str, Any] = {"home": retinue.MEMORY, "tools": [look, retinue.agent_tool(DIG)]} | options
    provider = ScriptedProvider(model, prices={"clay-1": (1_000, 2_000)})
    async with retinue.open(
        model="anthropic:clay-1", providers={"anthropic": provider}, dialects=(), telemetry=telemetry, **given
    ) as r:
        return await r.run("Dig.")


TREE = Counter(
    {
        ("", "invoke_agent main"): 1,
        ("invoke_agent main", "chat clay-1"): 2,
        ("invoke_agent main", "execute_tool dig"): 2,
        ("invoke_agent main", "execute_tool look"): 1,
        ("execute_tool dig", "invoke_agent dig"): 2,
        ("invoke_agent dig", "chat clay-1"): 4,
        ("invoke_agent dig", "execute_tool look"): 2,
    }
)


async def test_a_tree_is_one_trace_with_spans_of_agents_models_and_tools(collector: Collector) -> None:
    outcome = await run(script(), Telemetry(endpoint=collector.url))

    assert collector.tree() == TREE
    assert len({span.trace for span in collector.received}) == 1
    assert {span.service for span in collector.received} == {"retinue"}
    root = collector.named("invoke_agent main")
    session, run_id = root.attributes["gen_ai.conversation.id"], root.attributes["retinue.run.id"]
    about = {
        "gen_ai.agent.name": "main",
        "gen_ai.conversation.id": session,
        "retinue.run.id": run_id,
        "retinue.run.path": "root",
    }
    asked = {"gen_ai.provider.name": "anthropic", "gen_ai.request.model": "clay-1"}
    assert outcome.cost is not None
    assert root.attributes == about | asked | {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.usage.input_tokens": outcome.usage.input,
        "gen_ai.usage.output_tokens": outcome.usage.output,
        "retinue.cost.usd": outcome.cost / 1e9,
        "retinue.depth": 0,
        "retinue.end_reason": "answered",
        "retinue.turns": 2,
    }
    (first, _) = sorted(
        (span for span in collector.spans.values() if span.name == "chat clay-1" and span.parent == root.id),
        key=lambda span: span.start,
    )
    usage = {name: first.attributes.pop(f"gen_ai.usage.{name}_tokens") for name in ("input", "output")}
    assert usage == {"input": 1, "output": 13}
    assert first.attributes.pop("retinue.cost.usd") == pytest.approx(27e-6)
    assert first.attributes == about | asked | {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.finish_reasons": ["tool_call"],
        "gen_ai.response.model": "clay-1",
        "retinue.turn": 1,
    }
    (call,) = [span for span in collector.spans.values() if span.name.endswith("look") and span.parent == root.id]
    assert call.attributes == about | {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "retinue.turn": 1,
    }
    failed = {(span.error, span.attributes["error.type"]) for span in collector.spans.values() if span.error}
    assert failed == {("tool_error", "tool_error")}
    spans = collector.spans
    for span in spans.values():
        assert span.start <= span.end
        if span.parent:
            assert spans[span.parent].start <= span.start


async def test_usage_duration_and_cost_are_metrics(collector: Collector) -> None:
    outcome = await run(script(), Telemetry(endpoint=collector.url))

    assert sorted(collector.metrics) == [SECONDS, TOKENS, "retinue.cost"]
    tokens = collector.metrics[TOKENS]
    model = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "clay-1",
        "gen_ai.response.model": "clay-1",
    }
    assert sorted(tokens, key=str) == [
        (model | {"gen_ai.token.type": "input"}, sum_of(collector, "input")),
        (model | {"gen_ai.token.type": "output"}, sum_of(collector, "output")),
    ]
    assert sum_of(collector, "input") > outcome.usage.input  # which is that of the root alone
    ((_, seconds),) = collector.metrics[SECONDS]
    assert 0 < seconds < 60
    ((_, dollars),) = collector.metrics["retinue.cost"]
    assert dollars == pytest.approx((sum_of(collector, "input") * 1_000 + sum_of(collector, "output") * 2_000) / 1e9)


def sum_of(collector: Collector, kind: str) -> int:
    spans = (span for span in collector.spans.values() if span.name == "chat clay-1")
    return sum(span.attributes[f"gen_ai.usage.{kind}_tokens"] for span in spans)


NEWER_PROVIDERS = {"moonshot_ai"}
"""Values of the registry in its new place, semantic-conventions-genai, that the package does not have yet."""


def registered(kind: str, group: str) -> set[str]:
    """The names that the published registry has: of attributes or of metrics."""
    module = import_module(f"opentelemetry.semconv._incubating.{kind}.{group}_{kind}")
    return {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def registered_values(name: str) -> set[str]:
    """The values that the published registry has for an attribute."""
    module: Any = import_module("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    return {each.value for each in getattr(module, name)}


async def test_names_are_those_of_the_published_registry(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(genai.CAPTURE, "SPAN_ONLY")
    broken = ProviderError("the key is wrong", fault="auth", status=401)
    await run(script(), Telemetry(endpoint=collector.url))
    await run(Script().play("main", fails(broken)), Telemetry(endpoint=collector.url))

    used = {name for span in collector.spans.values() for name in span.attributes}
    known = registered("attributes", "gen_ai") | registered("attributes", "error")
    assert {name for name in used if not name.startswith("retinue.")} <= known
    operations = {span.attributes["gen_ai.operation.name"] for span in collector.spans.values()}
    assert operations == {"chat", "execute_tool", "invoke_agent"}
    assert operations <= registered_values("GenAiOperationNameValues")
    assert set(genai.PROVIDERS.values()) <= registered_values("GenAiProviderNameValues") | NEWER_PROVIDERS
    assert {TOKENS, SECONDS} <= registered("metrics", "gen_ai")


async def test_contents_are_exported_only_by_the_standard_variable(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(script(), Telemetry(endpoint=collector.url))
    assert "Clay" not in str(collector.received)
    assert "nothing" not in str(collector.received)
    collector.received.clear()
    monkeypatch.setenv(genai.CAPTURE, "true")
    await run(script(), Telemetry(endpoint=collector.url))

    root = collector.named("invoke_agent main").attributes
    assert json.loads(root["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Dig."}]}
    ]
    chats = [span.attributes for span in collector.spans.values() if span.name == "chat clay-1"]
    (second,) = [each for each in chats if each["gen_ai.agent.name"] == "main" and each["retinue.turn"] == 2]
    messages = json.loads(second["gen_ai.input.messages"])
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "tool"]
    assert messages[1]["parts"][0] == {"type": "tool_call", "id": None, "name": "dig", "arguments": {"task": "left"}}
    assert messages[-1]["parts"] == [{"type": "tool_call_response", "id": None, "response": "saw sky"}]
    assert json.loads(second["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Both dug."}], "finish_reason": "stop"}
    ]
    assert json.loads(root["gen_ai.output.messages"]) == json.loads(second["gen_ai.output.messages"])
    child = next(each for each in chats if each["gen_ai.agent.name"] == "dig")
    assert json.loads(child["gen_ai.system_instructions"]) == [{"type": "text", "content": "You dig."}]
    tools = [span.attributes for span in collector.spans.values() if span.name == "execute_tool look"]
    assert ('{"at":"nothing"}', "there is nothing") in {
        (each["gen_ai.tool.call.arguments"], each["gen_ai.tool.call.result"]) for each in tools
    }


def test_a_long_conversation_keeps_its_last_messages() -> None:
    long = [{"content": "x" * 1_000}] * 300 + [{"content": "last"}]
    kept = json.loads(genai.bounded(long))

    assert kept == long[-len(kept) :]
    assert 200 < len(kept) < 300


async def test_a_failed_model_call_is_a_span_with_its_fault(collector: Collector) -> None:
    broken = ProviderError("the key sk-1 is wrong", fault="auth", status=401)
    await run(Script().play("main", fails(broken)), Telemetry(endpoint=collector.url))

    chat, root = collector.named("chat clay-1"), collector.named("invoke_agent main")
    assert (chat.error, chat.attributes["error.type"]) == ("auth", "auth")
    assert (root.error, root.attributes["error.type"]) == ("model_error", "model_error")
    assert "sk-1" not in str(collector.received)


async def test_calls_in_flight_at_a_cancel_have_spans_above_their_children(collector: Collector) -> None:
    begun = asyncio.Event()

    @retinue.tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    model = Script().play("main", calls("dig", task="deep")).play("dig", calls("wait"))
    tools = [wait, retinue.agent_tool(retinue.Agent(name="dig", system_prompt="You dig.", tools=("wait",)))]
    async with retinue.open(
        provider=ScriptedProvider(model),
        model="clay-1",
        tools=tools,
        dialects=(),
        home=retinue.MEMORY,
        telemetry=Telemetry(endpoint=collector.url),
    ) as r:
        handle = await r.spawn("Dig.")
        await begun.wait()
        await handle.cancel()
        await handle.wait()

    assert collector.tree() == Counter(
        {
            ("", "invoke_agent main"): 1,
            ("invoke_agent main", "chat clay-1"): 1,
            ("invoke_agent main", "execute_tool dig"): 1,
            ("execute_tool dig", "invoke_agent dig"): 1,
            ("invoke_agent dig", "chat clay-1"): 1,
            ("invoke_agent dig", "execute_tool wait"): 1,
        }
    )
    assert collector.named("invoke_agent dig").attributes["error.type"] == "cancelled"


# ---- the trace context ----------------------------------------------------------------------------------------------


async def test_a_run_joins_the_trace_of_its_caller(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", CALLER)
    await run(script(), Telemetry(endpoint=collector.url))

    assert {span.trace for span in collector.received} == {TRACE}
    assert collector.named("invoke_agent main").parent == "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "wrong", ["", "nonsense", f"00-{'0' * 32}-00f067aa0ba902b7-01", CALLER[:-1], f"ff{CALLER[2:]}"]
)
async def test_an_invalid_trace_context_is_ignored(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv("TRACEPARENT", wrong)
    await run(Script().play("main", says("Hi.")), Telemetry(endpoint=collector.url))

    assert collector.named("invoke_agent main").parent == ""


async def test_a_caller_that_does_not_sample_gets_no_spans(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"{CALLER[:-1]}0")
    await run(script(), Telemetry(endpoint=collector.url))

    assert collector.received == []


async def test_sampling_keeps_whole_trees(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    for _ in range(60):
        await run(Script().play("main", calls("look", at="sky"), says("Hi.")), Telemetry(endpoint=collector.url))

    per_trace = Counter(span.trace for span in collector.received)
    assert 0 < len(per_trace) < 60
    assert set(per_trace.values()) == {4}


async def test_tools_and_mcp_servers_get_the_context_of_their_call(collector: Collector, tmp_path: Path) -> None:
    contexts: list[str] = []

    @retinue.tool
    def note(context: retinue.CallContext) -> str:
        """Note the trace context."""
        span = trace.get_current_span().get_span_context()
        contexts.append(context.trace)
        contexts.append(f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}")
        return "noted"

    listed = [{"name": "meta", "description": "Says its _meta.", "inputSchema": {"type": "object"}}]
    (tmp_path / "behaviour.json").write_text(json.dumps({"tools": listed}))
    program = tmp_path / "server.py"  # outside the workspace, where a server is not started from
    program.write_bytes((Path(__file__).parent.parent / "mcp_client" / "server.py").read_bytes())
    server = McpServer(name="test", command=sys.executable, args=(str(program), str(tmp_path / "behaviour.json")))
    seen: list[str] = []

    def last(request: Any) -> Line:
        seen.append(request.messages[-1].text)
        return says("Done.")

    await run(
        Script().play("main", calls("note"), calls("mcp__test__meta"), last),
        Telemetry(endpoint=collector.url),
        tools=[note],
        mcp_servers=[server],
        policy=retinue.Policy(autonomy=retinue.Autonomy.FULL, require_approval_for_medium_risk=False),
    )

    noted, meta = collector.named("execute_tool note"), collector.named("execute_tool mcp__test__meta")
    assert contexts == [f"00-{noted.trace}-{noted.id}-01"] * 2
    assert json.loads(seen[0])["traceparent"] == f"00-{meta.trace}-{meta.id}-01"


async def test_a_child_process_continues_the_trace(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    bye = says("Thanks.")
    async with CHAT.vendor(Cast((call_subagent(), bye), says("Clay."))) as vendor, opened(CHAT, vendor) as r:
        outcome = await r.run("Go.")

    assert outcome.text == "Thanks."
    assert len({span.trace for span in collector.received}) == 1
    assert not [pair for pair in collector.tree() if pair[0] == "?"]
    agents = [span for span in collector.spans.values() if span.name.startswith("invoke_agent")]
    assert len(agents) == 3  # the root, its child, and the same child inside its process
    inner = [span for span in agents if collector.spans.get(span.parent) in agents]
    assert len(inner) == 1


async def test_programs_of_the_shell_get_the_context(collector: Collector) -> None:
    seen: list[str] = []

    def last(request: Any) -> Line:
        seen.append(request.messages[-1].text)
        return says("Done.")

    await run(
        Script().play("main", calls("shell", command="printenv TRACEPARENT"), last),
        Telemetry(endpoint=collector.url),
        tools=["shell"],
        tool_options=retinue.ToolOptions(sandbox="off"),
        policy=retinue.Policy(
            autonomy=retinue.Autonomy.FULL, require_approval_for_medium_risk=False, allowed_commands=("printenv",)
        ),
    )

    call = collector.named("execute_tool shell")
    assert f"00-{call.trace}-{call.id}-01" in seen[0]


async def test_web_tools_send_the_context_to_named_hosts_alone() -> None:
    page = FakeResponse(headers={"Content-Type": "text/plain"}, pieces=(b"hello",))
    async with FakeServer(lambda _: page) as server:
        guard = Guard(trusted=[server.url])
        await Fetcher(guard, trace_hosts=("127.0.0.1",)).get(server.url, trace=CALLER)
        await Fetcher(guard, trace_hosts=("example.com",)).get(server.url, trace=CALLER)
        await Fetcher(guard, trace_hosts=("127.0.0.1",)).get(server.url)

        assert [heard.headers.get("traceparent") for heard in server.requests] == [CALLER, None, None]


# ---- crashes --------------------------------------------------------------------------------------------------------


def conversation(fell_silent: asyncio.Event) -> Playable:
    """A root that delegates and falls silent once in its second turn; its children answer."""

    def answer(heard: ReceivedRequest) -> Line | FakeResponse:
        if "Dig" in heard.body["messages"][-1]["content"]:
            return says("Clay.")
        if count_replies(heard) == 0:
            return together(calls("run_agent", task="Dig left."), calls("run_agent", task="Dig right."))
        if not fell_silent.is_set():
            fell_silent.set()
            return hangs("It")
        return says("It was clay.")

    return answer


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize("delay", ["60000", "500"], ids=["nothing was sent", "all was sent"])
async def test_a_tree_that_is_killed_and_resumed_is_one_trace_without_orphans(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fell_silent = asyncio.Event()
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": delay}
    async with FakeChat(conversation(fell_silent)) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "clay-1", "--dialect", "native")
        process = await Command.start("run", *flags, "--otel", "Lead.", env=environment)
        await fell_silent.wait()
        if delay == "500":
            await asyncio.to_thread(collector.wait_for, 7)  # two children with two spans each, and three of the root
        process.signal(signal.SIGKILL)
        killed = await process.ended()
        before = len(collector.received)
        (row,) = (await command("runs", "--json")).json
        resumed = await command("runs", "resume", row["run_id"], env=environment)

    assert killed.code == -signal.SIGKILL
    assert (before == 0) == (delay == "60000")
    assert (resumed.code, resumed.stdout) == (0, "It was clay.\n"), resumed.stderr
    (address,) = [line for line in killed.stderr.splitlines() if line.startswith("traces go to")]
    (trace_id,) = {span.trace for span in collector.received}
    assert address == f"traces go to {collector.url}/v1/traces, as trace {trace_id}"
    assert collector.tree() == Counter(
        {
            ("", "invoke_agent main"): 1,
            ("invoke_agent main", "chat clay-1"): 2,
            ("invoke_agent main", "execute_tool run_agent"): 2,
            ("execute_tool run_agent", "invoke_agent general"): 2,
            ("invoke_agent general", "chat clay-1"): 2,
        }
    )


# ---- configuration --------------------------------------------------------------------------------------------------


def test_without_configuration_opentelemetry_is_not_imported(tmp_path: Path) -> None:
    program = """
import asyncio, sys, retinue
from retinue.testing import Script, ScriptedProvider, says
async def main():
    model = ScriptedProvider(Script().play("main", says("Hi.")))
    async with retinue.open(provider=model, dialects=(), home=retinue.MEMORY) as r:
        await r.run("Hello.")
        assert r.exporting is None
asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry.") or name.startswith("retinue.telemetry.spans")])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


async def test_a_program_with_its_own_provider_receives_the_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with provider.get_tracer("app").start_as_current_span("request") as request:
        await run(script(), None)
    context = request.get_span_context()

    found = spans.get_finished_spans()
    assert {span.context.trace_id for span in found if span.context} == {context.trace_id}
    (root,) = [span for span in found if span.name == "invoke_agent main"]
    assert root.parent is not None
    assert root.parent.span_id == context.span_id
    assert len(found) == 1 + sum(TREE.values())


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER: found 'zipkin'; expected one of: otlp, console"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: found 'grpc'; retinue exports by http/protobuf",
        ),
    ],
)
def test_unsupported_variables_are_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=message):
        retinue.open(provider=ScriptedProvider(Script()), home=retinue.MEMORY)


@pytest.mark.parametrize(
    ("variables", "telemetry"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, Telemetry(otel=True)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, Telemetry(otel=False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
async def test_exports_can_be_turned_off(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], telemetry: Telemetry | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with retinue.open(provider=ScriptedProvider(Script()), home=retinue.MEMORY, telemetry=telemetry) as r:
        assert r.exporting is None


async def test_headers_of_the_settings_have_their_values_in_variables(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "retinue.toml"
    file.write_text(
        f'[telemetry]\nendpoint = "{collector.url}"\nservice_name = "diggers"\nheaders = {{ x-team = "TEAM_KEY" }}\n'
    )
    model = ScriptedProvider(Script().play("main", says("Hi.")))

    def opened_with_settings() -> retinue.Retinue:
        return retinue.open(provider=model, config=file, dialects=(), home=retinue.MEMORY)

    with pytest.raises(BadInput, match="the environment variable TEAM_KEY is not set"):
        opened_with_settings()
    monkeypatch.setenv("TEAM_KEY", "s3cret")
    async with opened_with_settings() as r:
        await r.run("Hello.")

    assert {span.service for span in collector.received} == {"diggers"}
    assert {headers["x-team"] for headers in collector.headers} == {"s3cret"}


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
async def test_headers_of_the_settings_go_to_no_collector_of_the_environment(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("TEAM_KEY", "s3cret")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv(variable, f"{collector.url}/v1/traces" if "TRACES" in variable else collector.url)
    telemetry = Telemetry(endpoint="https://own.example", headers={"x-team": "TEAM_KEY"})
    await run(Script().play("main", says("Hi.")), telemetry)

    assert collector.headers
    assert not any("x-team" in headers for headers in collector.headers)


async def test_headers_of_the_settings_go_to_another_machine_over_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", "s3cret")
    telemetry = Telemetry(endpoint="http://collector.example:4318", headers={"x-team": "TEAM_KEY"})

    with pytest.raises(BadInput, match="header x-team of exports has the value of TEAM_KEY and is not sent to"):
        await run(Script().play("main", says("Hi.")), telemetry)


async def test_a_redirect_of_a_collector_is_not_followed_and_reported(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TEAM_KEY", "s3cret")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with Collector(elsewhere=collector.url) as first:
        await run(Script().play("main", says("Hi.")), Telemetry(endpoint=first.url, headers={"x-team": "TEAM_KEY"}))

    assert collector.headers == []
    assert "answers with a redirect, which is not followed" in caplog.text


async def test_a_collector_that_is_gone_fails_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    outcome = await run(Script().play("main", says("Hi.")), Telemetry(endpoint="http://127.0.0.1:9"))

    assert outcome.text == "Hi."
