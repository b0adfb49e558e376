"""The document of buzzllm: its contracts and examples, under its own headings, in its order.

What the document prints is what is sent here, and what comes back is compared with what it prints. Differences that the
project settled are named in the docstring of the test, with the row of the settled list.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from retinue.dialects.buzzllm import process_provider
from retinue.providers.scripted import Line, calls, says, streams, together
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.output.test_sse import SseEvent, events, joined
from tests.cli.stage import Ended, open_in_a_thread
from tests.dialects.buzzllm.harness import WIRES, AnyVendor, Wire, is_root, one_by_one, serving

CHAT, RESPONSES, ANTHROPIC, VERTEX = WIRES
NAMES = ["search_web", "scrape_webpage", "bash_find", "bash_ripgrep", "bash_read", "python_execute"]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret-1234")


class Play:
    """A model that delegates with these arguments, and repeats what it reads; `child` is its sub-agent."""

    def __init__(self, arguments: Mapping[str, object], child: Line | FakeResponse | None = None) -> None:
        self._arguments = arguments
        self._child = child or says("Found.")
        self.declared: list[dict[str, Any]] = []
        self.children: list[ReceivedRequest] = []

    def __call__(self, request: ReceivedRequest) -> Line | FakeResponse:
        if not is_root(request):
            self.children.append(request)
            return self._child
        self.declared = request.body["tools"]
        last = request.body["messages"][-1]
        return says(last["content"]) if last["role"] == "tool" else calls("call_subagent", **self._arguments)


def delegate(cli: Cli, play: Play, *flags: str) -> str:
    """What the model reads as the result of its call."""
    with serving(play) as vendor:
        where = ("--base-url", vendor.base_url, "--api-key-env", "MY_KEY", "--model", "fake-1")
        ended = cli("run", "--dialect", "buzzllm", "--quiet", *where, *flags, "Go.")
    assert (ended.code, ended.stderr) == (0, "")
    return ended.stdout.removesuffix("\n")


def order(wire: Wire, vendor: AnyVendor, **fields: object) -> dict[str, object]:
    """The example payload of the document, with its placeholders filled in."""
    payload: dict[str, object] = {
        "model": "fake-1",
        "provider": wire.name,
        "url": wire.url(vendor),
        "api_key_name": "MY_KEY",
        "prompt": "...",
        "system_prompt": "...",
        "tool_subset": ["search_web", "scrape_webpage"],
        "think": False,
        "temperature": 0.8,
        "max_tokens": 8192,
    }
    return payload | fields


def call(cli: Cli, payload: Mapping[str, object]) -> Ended:
    return cli("call", stdin=json.dumps(payload).encode())


# ---- API -----------------------------------------------------------------------------------------------------------


class TestToolCallSubagent:
    """1. Tool: call_subagent."""

    def test_signature(self, cli: Cli) -> None:
        """`prompt: str, system_prompt: str | None = None, tool_subset: list[str] | None = None`.

        The array has the six names as its items: vendors refuse an array without items.
        """
        play = Play({"prompt": "Find it."})
        assert delegate(cli, play) == "Found."

        (tool,) = play.declared
        schema = tool["function"]["parameters"]
        assert tool["function"]["name"] == "call_subagent"
        assert list(schema["properties"]) == ["prompt", "system_prompt", "tool_subset"]
        assert [each["type"] for each in schema["properties"].values()] == [
            "string",
            ["string", "null"],
            ["array", "null"],
        ]
        assert schema["required"] == ["prompt"]
        assert schema["properties"]["tool_subset"]["items"] == {"type": "string", "enum": NAMES}

    def test_behavior_returns_the_concatenated_output_text_of_a_subprocess(self, cli: Cli) -> None:
        play = Play({"prompt": "Find it.", "system_prompt": "You dig."}, streams("It is ", "the ", "pool."))

        assert delegate(cli, play) == "It is the pool."
        assert play.children[0].body["messages"] == [
            {"role": "system", "content": "You dig."},
            {"role": "user", "content": "Find it."},
        ]

    def test_error_behavior_of_a_validation_error(self, cli: Cli) -> None:
        play = Play({"prompt": "Find it.", "tool_subset": ["shell", "bash_find", "call_subagent"]})

        assert delegate(cli, play) == "Error: Unknown tool names: call_subagent, shell"
        assert play.children == []

    def test_error_behavior_of_a_subprocess_failure(self, cli: Cli) -> None:
        """`Error: <message>`: the reason of the child, and never an empty text (row 61)."""
        refused = FakeResponse(status=400, pieces=(b'{"error":{"message":"no such model"}}',))
        result = delegate(cli, Play({"prompt": "Find it."}, refused))

        assert result.startswith("Error: http://127.0.0.1:")
        assert result.endswith("/v1/chat/completions answered 400: no such model")

    def test_error_behavior_of_a_subprocess_that_exits_without_a_reason(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process_provider, "COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))

        assert delegate(cli, Play({"prompt": "Find it."})) == "Error: Subagent exited with code 3"


class TestSubprocessInputContract:
    """2. Subprocess input contract (stdin JSON)."""

    def test_fields(self, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The ten fields in their order, with the caller's model, address and name of the key's variable."""
        stdin = tmp_path / "stdin"
        program = (
            f"import sys; read = sys.stdin.read(); read and open({str(stdin)!r}, 'w').write(read); "
            """print('event: output_text\\ndata: {"delta":"Hi."}\\n\\nevent: response_end\\ndata: {}\\n')"""
        )
        monkeypatch.setattr(process_provider, "COMMAND", (sys.executable, "-c", program))
        play = Play({"prompt": "...", "system_prompt": "...", "tool_subset": ["search_web", "scrape_webpage"]})
        with serving(play) as vendor:
            where = ("--base-url", vendor.base_url, "--api-key-env", "MY_KEY", "--model", "fake-1")
            ended = cli("run", "--dialect", "buzzllm", "--quiet", *where, "Go.")

        assert ended == Ended(0, "Hi.\n", "")
        read = json.loads(stdin.read_text())
        assert (list(read), read) == (list(order(CHAT, vendor)), order(CHAT, vendor))

    @pytest.mark.parametrize("wire", [CHAT, ANTHROPIC, VERTEX, RESPONSES], ids=lambda wire: wire.name)
    def test_example_payload(self, cli: Cli, wire: Wire) -> None:
        """`openai-chat|anthropic|vertexai-anthropic`, and `openai-responses`, which the document describes below."""
        with serving(says("Found."), wire) as vendor:
            ended = call(cli, order(wire, vendor))

        body = vendor.requests[0].body
        names = [tool.get("name") or tool["function"]["name"] for tool in body["tools"]]
        assert (ended.code, ended.stderr) == (0, "")
        assert joined(events(ended.stdout))[1:] == [
            SseEvent("output_text", "Found."),
            SseEvent("block_end"),
            SseEvent("response_end"),
        ]
        assert names == ["search_web", "scrape_webpage"]
        assert (body["temperature"], body.get("max_tokens", body.get("max_output_tokens"))) == (0.8, 8192)


class TestSseParsingContract:
    """3. SSE parsing contract."""

    def test_only_output_text_counts_and_the_other_events_are_ignored(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kinds = ("tool_call", "tool_result", "reasoning_content", "output_text", "block_end", "response_end")
        stdout = "".join(f'event: {kind}\ndata: {{"id": "", "delta": "{kind}"}}\n\n' for kind in kinds)
        monkeypatch.setattr(process_provider, "COMMAND", (sys.executable, "-c", f"print({stdout!r})"))

        assert delegate(cli, Play({"prompt": "Find it."})) == "output_text"


class TestAvailableToolNames:
    """Available tool names."""

    def test_the_six_names(self, cli: Cli) -> None:
        play = Play({"prompt": "Find it.", "tool_subset": NAMES[::-1]})

        assert delegate(cli, play) == "Found."
        assert [tool["function"]["name"] for tool in play.children[0].body["tools"]] == NAMES


# ---- OpenAI Responses API Contract ---------------------------------------------------------------------------------


def raw(*streamed: Mapping[str, object]) -> FakeResponse:
    """Events of the Responses API, as they stand on the wire."""
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in streamed)
    return FakeResponse(headers={"Content-Type": "text/event-stream"}, pieces=(text.encode(),))


def completed(response_id: str, output: Iterable[object] = ()) -> dict[str, object]:
    usage = {"input_tokens": 10, "output_tokens": 2}
    response = {"id": response_id, "status": "completed", "output": list(output), "usage": usage}
    return {"type": "response.completed", "response": response}


def look(spelling: str) -> FakeResponse:
    """A reply that reasons, speaks and calls `bash_find`, with the event names of the document."""
    item = {"type": spelling, "id": "call_1", "name": "bash_find"} | (
        {"call_id": "call_1"} if spelling == "function_call" else {}
    )
    whole = item | {"arguments": '{"path":"."}'}
    return raw(
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "summary_index": 0, "delta": "hm"},
        {"type": "response.output_text.delta", "item_id": "msg_1", "content_index": 0, "delta": "Let me look."},
        {"type": "response.output_item.added", "output_index": 2, "item": item | {"arguments": ""}},
        {"type": f"response.{spelling}_arguments.delta", "item_id": "call_1", "output_index": 2, "delta": '{"path"'},
        {"type": f"response.{spelling}_arguments.delta", "item_id": "call_1", "output_index": 2, "delta": ':"."}'},
        {"type": "response.output_item.done", "output_index": 2, "item": whole},
        completed(
            "resp_1",
            [
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Let me look."}]},
                whole,
            ],
        ),
    )


def answer() -> FakeResponse:
    message = {"type": "message", "id": "msg_2", "content": [{"type": "output_text", "text": "Nothing."}]}
    return raw(
        {"type": "response.created", "response": {"id": "resp_2"}},
        {"type": "response.output_text.delta", "item_id": "msg_2", "content_index": 0, "delta": "Nothing."},
        completed("resp_2", [message]),
    )


def ask_responses(cli: Cli, spelling: str, **fields: object) -> tuple[Ended, list[ReceivedRequest]]:
    replies = iter((look(spelling), answer()))
    with open_in_a_thread(FakeServer(lambda _: next(replies))) as server:
        payload = {"model": "fake-1", "provider": "openai-responses", "url": f"{server.url}/v1/responses"}
        ended = call(cli, payload | {"prompt": "Why?", "tool_subset": ["bash_find"]} | fields)
    return ended, server.requests


class TestOpenAiResponsesApiContract:
    def test_request_args(self, cli: Cli) -> None:
        """1. Request args. Tools are flattened, as the API takes them (row 63)."""
        with serving(says("Yes."), RESPONSES) as vendor:
            call(cli, order(RESPONSES, vendor, prompt="Why?", system_prompt="You dig.", tool_subset=[]))
            call(cli, order(RESPONSES, vendor, prompt="Why?", think=True, tool_subset=["bash_find"]))

        plain, thinking = (request.body for request in vendor.requests)
        assert plain == {
            "model": "fake-1",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Why?"}]}],
            "instructions": "You dig.",
            "stream": True,
            "store": False,
            "temperature": 0.8,
            "max_output_tokens": 8192,
            "reasoning": {"effort": "none"},
        }
        assert thinking["reasoning"] == {"effort": "high", "summary": "detailed"}
        assert thinking["tool_choice"] == "auto"
        assert [(tool["type"], tool["name"]) for tool in thinking["tools"]] == [("function", "bash_find")]

    @pytest.mark.parametrize("spelling", ["tool_call", "function_call"])
    def test_streaming_event_mapping(self, cli: Cli, spelling: str) -> None:
        """2. Streaming event mapping, in the document's spelling and in that of the API (row 63)."""
        ended, _ = ask_responses(cli, spelling)

        first, *rest = joined(events(ended.stdout))
        result = next(each for each in rest if each.type == "tool_result")
        assert (ended.code, ended.stderr) == (0, "")
        assert [first, *(each for each in rest if each.type != "tool_result")] == [
            SseEvent("response_start", id="resp_1"),
            SseEvent("reasoning_content", "hm"),
            SseEvent("output_text", "Let me look."),
            SseEvent("tool_call", '\nFunction: bash_find {"path":"."}', "call_1"),
            SseEvent("block_end"),
            SseEvent("response_start", id="resp_2"),
            SseEvent("output_text", "Nothing."),
            SseEvent("block_end"),
            SseEvent("response_end"),
        ]
        assert (result.id, result.delta.startswith("\n\nTool Result (bash_find):\n")) == ("call_1", True)

    def test_tool_response_continuation(self, cli: Cli, folder: Path) -> None:
        """3. Tool response continuation, as the document writes it with `responses_wire = "seed"` (row 63)."""
        (folder / "retinue.toml").write_text('[providers.openai-responses]\nresponses_wire = "seed"\n')
        _, (_, second) = ask_responses(cli, "tool_call")

        assert second.body["previous_response_id"] == "resp_1"
        (item,) = second.body["input"]
        assert (item["type"], item["tool_call_id"]) == ("tool_result", "call_1")
        assert set(item) == {"type", "tool_call_id", "content"}
        assert json.loads(item["content"])["total"] == 1  # retinue.toml

    def test_tool_response_continuation_of_the_api(self, cli: Cli) -> None:
        """3. The same with the names of the API, which is the default (row 63)."""
        _, (_, second) = ask_responses(cli, "function_call")

        assert second.body["previous_response_id"] == "resp_1"
        assert [(item["type"], item["call_id"]) for item in second.body["input"]] == [
            ("function_call_output", "call_1")
        ]

    def test_invoke_llm_routing_contract(self, cli: Cli) -> None:
        """4. invoke_llm routing contract: `messages` grow, `input` is replaced."""
        lines = one_by_one(calls("bash_find", path="."), says("Nothing."))
        with serving(lines) as vendor:
            call(cli, order(CHAT, vendor, tool_subset=["bash_find"]))
        _, (first, second) = ask_responses(cli, "function_call")

        roles = [[message["role"] for message in request.body["messages"]] for request in vendor.requests]
        assert roles == [["system", "user"], ["system", "user", "assistant", "tool"]]
        assert [len(request.body["input"]) for request in (first, second)] == [1, 1]


# ---- Structured Outputs API Contract -------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string"}, "country": {"type": "string"}},
    "required": ["capital", "country"],
    "additionalProperties": False,
}

PARIS = '{"capital": "Paris", "country": "France"}'

NON_SSE_EXAMPLE = """\
{"capital":"Paris","country":"France"}

=== [ DONE ] ===
"""

SSE_EXAMPLE = r"""event: output_structured
data: {"id":"","delta":"{\"capital\":\"Paris\",\"country\":\"France\"}","type":"output_structured"}

event: response_end
data: {"id":"","delta":"","type":"response_end"}

"""


def buzz(cli: Cli, wire: Wire, vendor: AnyVendor, *flags: str) -> Ended:
    where = ("--provider", wire.name, "--api-key-name", "MY_KEY")
    return cli("buzz", "fake-1", wire.url(vendor), "What is the capital of France?", *where, *flags)


@pytest.fixture
def schema(folder: Path) -> str:
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    return "schema.json"


class TestStructuredOutputsApiContract:
    """1. LLMOptions additions (internal): `--output-schema` is `json_schema`, `--output-json` is `json_object`."""

    def test_openai_chat_request_args(self, cli: Cli, schema: str) -> None:
        """2. OpenAI chat request args."""
        with serving(says(PARIS)) as vendor:
            buzz(cli, CHAT, vendor, "--output-schema", schema)
            buzz(cli, CHAT, vendor, "--output-json")

        assert [request.body["response_format"] for request in vendor.requests] == [
            {"type": "json_schema", "json_schema": {"name": "structured_output", "schema": SCHEMA, "strict": True}},
            {"type": "json_object"},
        ]

    @pytest.mark.parametrize("wire", [ANTHROPIC, VERTEX], ids=lambda wire: wire.name)
    def test_anthropic_and_vertex_request_args(self, cli: Cli, schema: str, wire: Wire) -> None:
        """3. Anthropic/Vertex request args."""
        with serving(says(PARIS), wire) as vendor:
            ended = buzz(cli, wire, vendor, "--output-schema", schema)

        assert ended == Ended(0, NON_SSE_EXAMPLE, "")
        assert vendor.requests[0].body["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}

    def test_output_to_stdout_non_sse_example(self, cli: Cli, schema: str) -> None:
        """4.1. Non-SSE prints JSON once at end, then DONE marker (row 67: `retinue buzz`)."""
        with serving(streams('{"capital": "Paris", ', '"country": "France"}')) as vendor:
            ended = buzz(cli, CHAT, vendor, "--output-schema", schema)

        assert ended == Ended(0, NON_SSE_EXAMPLE, "")

    def test_output_to_stdout_of_run(self, cli: Cli, schema: str) -> None:
        """4.1. `retinue run` prints the JSON alone (row 67)."""
        with serving(says(PARIS)) as vendor:
            where = ("--base-url", vendor.base_url, "--model", "fake-1", "--quiet")
            ended = cli("run", *where, "--output-schema", schema, "What is the capital of France?")

        assert ended == Ended(0, '{"capital":"Paris","country":"France"}\n', "")

    def test_output_to_stdout_sse_example(self, cli: Cli, schema: str) -> None:
        """4.2. SSE emits one output_structured event with JSON string; a response_start comes first."""
        with serving(streams('{"capital": "Paris", ', '"country": "France"}')) as vendor:
            ended = buzz(cli, CHAT, vendor, "-S", "--output-schema", schema)

        start, _, rest = ended.stdout.partition("\n\n")
        assert (ended.code, ended.stderr, rest) == (0, "", SSE_EXAMPLE)
        assert start.startswith("event: response_start\n")

    def test_tool_calls_are_printed_before_the_structured_output(self, cli: Cli, schema: str) -> None:
        lines = one_by_one(
            together(streams("Looking."), calls("bash_find", path=".")), says('{"capital":"Paris","country":"France"}')
        )
        with serving(lines) as vendor:
            ended = buzz(cli, CHAT, vendor, "--system-prompt", "codesearch", "--brief", "--output-schema", schema)

        assert ended == Ended(0, NON_SSE_EXAMPLE, "")
