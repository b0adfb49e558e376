"""`retinue buzz`: the command line of buzzllm, its colours, its events and its end."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.core.errors import ProviderError
from retinue.providers.scripted import Line, ScriptedReply, calls, fails, hangs, says, streams, together
from retinue.testing.fake_chat import FakeChat
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.output.test_sse import SseEvent, events
from tests.cli.pty_command import PtyCommand
from tests.cli.stage import Command, Ended, open_in_a_thread, retinue, serving
from tests.dialects.buzzllm.harness import WIRES, AnyVendor, Wire, one_by_one
from tests.dialects.buzzllm.harness import serving as serving_wire
from tests.internals import tune

KEY = "sk-very-secret-1234"
DONE = "\n\n=== [ DONE ] ===\n"
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string"}, "country": {"type": "string"}},
    "required": ["capital", "country"],
    "additionalProperties": False,
}
PARIS = '{"capital":"Paris","country":"France"}'
CYAN, GREEN, YELLOW, RESET = "\x1b[96m", "\x1b[92m", "\x1b[93m", "\x1b[0m"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


def asking(vendor: FakeChat, *more: str, prompt: str = "Why?") -> tuple[str, ...]:
    url = f"{vendor.base_url}/chat/completions"
    return ("buzz", "fake-1", url, prompt, "--provider", "openai-chat", "--api-key-name", "MY_KEY", *more)


@pytest.mark.promise("BZ-BUZZ", "BZ-BUZZ-DONE", "BZ-BUZZ-DEFAULTS")
def test_the_answer_is_followed_by_a_blank_line_and_done(cli: Cli, home: Path) -> None:
    with serving(streams("It is ", "the pool.")) as vendor:
        ended = cli(*asking(vendor))

    assert ended == Ended(0, f"It is the pool.{DONE}", "")
    (request,) = vendor.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "fake-1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8192,
        "temperature": 0.8,
        "messages": [{"role": "user", "content": "Why?"}],
    }
    assert not home.exists()  # nothing is stored


@pytest.mark.promise("BZ-BUZZ")
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_the_four_wires_are_asked_at_the_whole_address_with_the_options(cli: Cli, wire: Wire) -> None:
    options = ("--system-prompt", "You dig.", "--max-tokens", "99", "--temperature", "0.25")
    with serving_wire(says("Found."), wire) as vendor:
        ended = cli(*addressed(wire, vendor), *options)

    body = vendor.requests[0].body
    assert ended == Ended(0, f"Found.{DONE}", "")
    assert vendor.requests[0].path == wire.url(vendor).removeprefix(vendor.url)
    assert "You dig." in json.dumps(body)
    assert body.get("max_tokens", body.get("max_output_tokens")) == 99
    assert body["temperature"] == 0.25


def addressed(wire: Wire, vendor: AnyVendor) -> tuple[str, ...]:
    return ("buzz", "fake-1", wire.url(vendor), "Why?", "--provider", wire.name, "--api-key-name", "MY_KEY")


def look_and_answer() -> Callable[[ReceivedRequest], Line | FakeResponse]:
    look = together(streams("Let me look."), calls("bash_find", path="."))
    return one_by_one(look, says("In notes.txt.", thinking="hm"))


@pytest.mark.promise("BZ-BUZZ-COLOURS")
def test_calls_are_cyan_results_green_and_reasoning_yellow(cli: Cli, folder: Path) -> None:
    (folder / "notes.txt").write_text("pool\n")
    with serving(look_and_answer()) as vendor:
        ended = cli(*asking(vendor, "--system-prompt", "codesearch"))

    head, _, rest = ended.stdout.partition(f"{GREEN}\n\nTool Result (bash_find):\n")
    result, _, tail = rest.partition(f"\n{RESET}")
    assert ended.code == 0
    assert head.startswith(f"Let me look.{CYAN}\nFunction: bash_find {RESET}{CYAN}")
    assert head.replace(CYAN, "").replace(RESET, "") == 'Let me look.\nFunction: bash_find {"path":"."}\n'
    assert "notes.txt" in result
    assert tail == f"{YELLOW}hm{RESET}In notes.txt.{DONE}"


@pytest.mark.promise("BZ-BUZZ-COLOURS")
def test_no_color_leaves_the_colours_out_and_brief_the_calls(cli: Cli) -> None:
    with serving(look_and_answer()) as vendor:
        plain = cli(*asking(vendor, "--system-prompt", "codesearch"), env={"NO_COLOR": "1"})
    with serving(look_and_answer()) as vendor:
        brief = cli(*asking(vendor, "--system-prompt", "codesearch", "-b"))

    assert "\x1b" not in plain.stdout
    assert 'Let me look.\nFunction: bash_find {"path":"."}\n\n\nTool Result (bash_find):\n' in plain.stdout
    assert plain.stdout.endswith(f"\nhmIn notes.txt.{DONE}")
    assert brief.stdout == f"Let me look.\n{YELLOW}hm{RESET}In notes.txt.{DONE}"


@pytest.mark.promise("BZ-BUZZ-TOOLS")
@pytest.mark.parametrize(
    ("prompt", "tools"),
    [
        ("websearch", ["search_web", "scrape_webpage", "call_subagent"]),
        ("codesearch", ["bash_find", "bash_ripgrep", "bash_read", "call_subagent"]),
        ("pythonexec", ["python_execute", "call_subagent"]),
        ("helpful", []),
        ("You dig.", []),
    ],
)
def test_a_named_prompt_brings_its_tools_and_call_subagent(cli: Cli, prompt: str, tools: list[str]) -> None:
    with serving(says("Yes.")) as vendor:
        ended = cli(*asking(vendor, "--system-prompt", prompt))

    body = vendor.requests[0].body
    assert ended.stdout == f"Yes.{DONE}"
    assert [tool["function"]["name"] for tool in body.get("tools", [])] == tools
    assert (body["messages"][0]["content"] == prompt) == (prompt == "You dig.")


@pytest.mark.real_time
@pytest.mark.promise("BZ-BUZZ-TOOLS")
def test_a_subagent_of_the_command_asks_the_same_model_at_the_same_address(cli: Cli) -> None:
    def play(request: ReceivedRequest) -> Line:
        if not any(tool["function"]["name"] == "call_subagent" for tool in request.body.get("tools", [])):
            return says("It is the pool.")
        if request.body["messages"][-1]["role"] == "tool":
            return says(f"It says: {request.body['messages'][-1]['content']}")
        return calls("call_subagent", prompt="Find it.")

    with serving(play) as vendor:
        url = f"{vendor.url}/a/proxy/chat/completions?region=eu"
        ended = cli(
            *("buzz", "fake-1", url, "Why?", "--provider", "openai-chat", "--api-key-name", "MY_KEY", "-b"),
            *("--system-prompt", "codesearch", "--temperature", "0.25", "--max-tokens", "99"),
        )

    assert ended == Ended(0, f"It says: It is the pool.{DONE}", "")
    first, child, last = vendor.requests
    assert {(request.path, request.query) for request in vendor.requests} == {
        ("/a/proxy/chat/completions", "region=eu")
    }
    assert {request.headers["authorization"] for request in vendor.requests} == {f"Bearer {KEY}"}
    assert child.body["messages"] == [{"role": "user", "content": "Find it."}]
    assert {(each.body["temperature"], each.body["max_tokens"]) for each in (first, child, last)} == {(0.25, 99)}


@pytest.mark.promise("BZ-BUZZ-SSE")
@pytest.mark.parametrize("flag", ["-S", "--sse"])
def test_sse_prints_the_events_of_the_document(cli: Cli, flag: str) -> None:
    with serving(look_and_answer()) as vendor:
        ended = cli(*asking(vendor, flag, "--system-prompt", "codesearch"))
    with serving(look_and_answer()) as vendor:
        brief = cli(*asking(vendor, flag, "--brief", "--system-prompt", "codesearch"))

    printed = list(events(ended.stdout))
    assert (ended.code, ended.stderr) == (0, "")
    assert list(dict.fromkeys(each.type for each in printed)) == [
        "response_start",
        "output_text",
        "tool_call",
        "block_end",
        "tool_result",
        "reasoning_content",
        "response_end",
    ]
    assert printed[-1] == SseEvent("response_end")
    assert not {"tool_call", "tool_result"} & {each.type for each in events(brief.stdout)}


@pytest.mark.promise("BZ-BUZZ-SSE", "BZ-STRUCTURED-SSE")
def test_sse_has_one_event_with_the_structured_answer(cli: Cli, folder: Path) -> None:
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    with serving(streams('{"capital": "Paris", ', '"country": "France"}')) as vendor:
        ended = cli(*asking(vendor, "--sse", "--output-schema", "schema.json"))

    assert ended.code == 0
    assert ended.stdout.endswith(
        'event: output_structured\ndata: {"id":"","delta":"{\\"capital\\":\\"Paris\\",\\"country\\":\\"France\\"}",'
        '"type":"output_structured"}\n\n'
        'event: response_end\ndata: {"id":"","delta":"","type":"response_end"}\n\n'
    )
    assert [each.type for each in events(ended.stdout)] == ["response_start", "output_structured", "response_end"]


@pytest.mark.promise("BZ-STRUCTURED-PLAIN", "BZ-BUZZ-DONE")
def test_structured_output_is_printed_once_and_done_after_it(cli: Cli, folder: Path) -> None:
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    with serving(streams('{"capital": "Paris", ', '"country": "France"}')) as vendor:
        by_schema = cli(*asking(vendor, "--output-schema", "schema.json"))
        any_object = cli(*asking(vendor, "--output-json"))

    printed = '{"capital":"Paris","country":"France"}\n\n=== [ DONE ] ===\n'
    assert (by_schema, any_object) == (Ended(0, printed, ""), Ended(0, printed, ""))
    assert [request.body["response_format"] for request in vendor.requests] == [
        {"type": "json_schema", "json_schema": {"name": "structured_output", "schema": SCHEMA, "strict": True}},
        {"type": "json_object"},
    ]


@pytest.mark.promise("BZ-BUZZ-DONE")
@pytest.mark.parametrize("text", ["", "42", "42\n", "a\n\nb"])
def test_there_is_one_blank_line_before_done_whatever_the_answer_ends_with(cli: Cli, text: str) -> None:
    with serving(says(text)) as vendor:
        ended = cli(*asking(vendor))

    assert ended == Ended(0, f"{text.rstrip()}{DONE}" if text else "\n=== [ DONE ] ===\n", "")


@pytest.mark.promise("BZ-BUZZ-FAILS")
def test_a_failing_model_is_an_error_on_stderr_without_done(cli: Cli) -> None:
    with serving(fails(ProviderError("no such model", fault="bad_request", status=404))) as vendor:
        plain, streamed = cli(*asking(vendor)), cli(*asking(vendor, "--sse"))
        address = f"{vendor.base_url}/chat/completions"

    error = f"{address} answered 404: no such model"
    assert (plain.code, plain.stdout) == (1, "")
    assert plain.stderr.startswith(f"error: {error}")
    assert streamed.code == 1
    *_, block_end, response_end = events(streamed.stdout)
    assert (block_end.type, response_end) == ("block_end", SseEvent("response_end"))
    assert block_end.delta.startswith(f"Error: {error}")


@pytest.mark.promise("BZ-BUZZ-FAILS")
def test_a_key_is_never_shown(cli: Cli) -> None:
    with open_in_a_thread(
        FakeServer(lambda request: FakeResponse(status=401, pieces=(request.headers["authorization"].encode(),)))
    ) as server:
        ended = cli("buzz", "m", server.url, "Hi", "--provider", "openai-chat", "--api-key-name", "MY_KEY")

    assert (ended.code, ended.stdout) == (1, "")
    assert "MY_KEY" in ended.stderr
    assert KEY not in ended.stderr


@pytest.mark.promise("BZ-BUZZ-DISCARDED")
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("answer", ["Second attempt answer", "The first attempt says more."], ids=["other", "longer"])
def test_nothing_is_printed_of_an_attempt_that_broke_off(
    cli: Cli, wire: Wire, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, first_pause=0.0)
    cut = fails(ProviderError("cut", fault="cut", partial="The first attempt says m"))
    with serving_wire(one_by_one(*[cut, cut, streams(answer)] * 2), wire) as vendor:
        plain = cli(*addressed(wire, vendor))
        streamed = cli(*addressed(wire, vendor), "--sse")

    assert len(vendor.requests) == 6
    assert plain == Ended(0, f"{answer}{DONE}", "")
    assert (streamed.code, streamed.stderr) == (0, "")
    assert [(each.type, each.delta) for each in events(streamed.stdout)] == [
        ("response_start", ""),
        ("output_text", answer),
        ("block_end", ""),
        ("response_end", ""),
    ]


@pytest.mark.promise("BZ-BUZZ-DISCARDED", "BZ-BUZZ-FAILS")
def test_of_a_question_that_fails_the_last_attempt_is_printed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, first_pause=0.0)
    attempts = iter("1234")

    def broken(_: ReceivedRequest) -> Line:
        return fails(ProviderError("cut", fault="cut", partial=f"Attempt {next(attempts)}"))

    with serving(broken) as vendor:
        ended = cli(*asking(vendor))

    assert (ended.code, ended.stdout) == (1, "Attempt 4\n")
    assert ended.stderr.startswith("error: ")


URL = "http://127.0.0.1:9/v1/chat/completions"
KNOWN = "openai-chat, openai-responses, anthropic, vertexai-anthropic"


@pytest.mark.promise("BZ-BUZZ-MISTAKES")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("m", "localhost", "Hi", "openai-chat", "MY_KEY"), "url 'localhost' is not an address: it has to begin with"),
        (("m", "", "Hi", "openai-chat", "MY_KEY"), "URL is empty"),
        (("", URL, "Hi", "openai-chat", "MY_KEY"), "MODEL is empty"),
        (("m", URL, " ", "openai-chat", "MY_KEY"), "the prompt is empty"),
        (("m", URL, "Hi", "gemini", "MY_KEY"), f"unknown provider: 'gemini'; known: {KNOWN}"),
        (
            ("m", URL, "Hi", "openai-chat", "NOT_SET"),
            f"the environment variable NOT_SET is not set; set it to the key for {URL}, or name another variable with "
            "--api-key-name",
        ),
        (
            ("m", URL, "Hi", "openai-chat", "sk-1234567890"),
            "api_key_name: found a string of 13 characters; expected the name of an environment variable, never a key",
        ),
        (("m", f"{URL}?api_key=x", "Hi", "openai-chat", "MY_KEY"), "the url for 127.0.0.1 has a secret in it"),
        (("m", URL, "Hi", "openai-chat", "MY_KEY", "--temperature", "2.5"), "2.5 is not in the range 0<=x<=2"),
        (("m", URL, "Hi", "openai-chat", "MY_KEY", "--temperature", "nan"), "expected a finite number"),
        (("m", URL, "Hi", "openai-chat", "MY_KEY", "--max-tokens", "0"), "0 is not in the range x>=1"),
        (
            ("m", URL, "Hi", "openai-chat", "MY_KEY", "--output-json", "--output-schema", "x.json"),
            "--output-schema and --output-json exclude each other",
        ),
        (
            ("m", URL, "Hi", "openai-chat", "MY_KEY", "--output-schema", "none.json"),
            "none.json is not a usable JSON Schema: ",
        ),
    ],
    ids=str,
)
def test_mistakes_exit_2_and_say_what_is_wrong(cli: Cli, arguments: tuple[str, ...], error: str) -> None:
    model, url, prompt, provider, key, *more = arguments
    ended = cli("buzz", model, url, prompt, "--provider", provider, "--api-key-name", key, *more)

    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ")
    assert error in ended.stderr
    assert "1234567890" not in ended.stderr


@pytest.mark.promise("BZ-BUZZ-MISTAKES")
@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("m", URL, "Hi", "--provider", "openai-chat"), "--api-key-name"),
        (("m", URL, "Hi", "--api-key-name", "MY_KEY"), "--provider"),
        (("m", URL, "--provider", "openai-chat", "--api-key-name", "MY_KEY"), "PROMPT"),
    ],
)
def test_what_the_program_requires_is_required(cli: Cli, arguments: tuple[str, ...], missing: str) -> None:
    ended = cli("buzz", *arguments)

    assert (ended.code, ended.stdout) == (2, "")
    assert missing in ended.stderr


@pytest.mark.promise("BZ-BUZZ")
def test_an_empty_name_sends_no_key_and_a_dash_reads_the_prompt_from_stdin(cli: Cli) -> None:
    with serving(says("Hi.")) as vendor:
        url = f"{vendor.base_url}/chat/completions"
        arguments = ("buzz", "m", url, "-", "--provider", "openai-chat", "--api-key-name", "")
        ended = cli(*arguments, stdin="größe\n".encode())

    assert ended.stdout == f"Hi.{DONE}"
    assert "authorization" not in vendor.requests[0].headers
    assert vendor.requests[0].body["messages"] == [{"role": "user", "content": "größe\n"}]


@pytest.mark.promise("BZ-BUZZ-FAILS")
def test_an_unreachable_server_is_an_error_that_names_it(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1/messages"
    ended = cli("buzz", "m", url, "Hi", "--provider", "anthropic", "--api-key-name", "MY_KEY")

    assert (ended.code, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"error: cannot reach 127.0.0.1:{port} (url {url}): ")


def test_a_reply_that_was_cut_off_is_noted_on_stderr(cli: Cli) -> None:
    with serving(ScriptedReply(pieces=("It is the",), stop="length")) as vendor:
        ended = cli(*asking(vendor))

    assert ended.code == 0
    assert ended.stderr == "note: the model ended with 'length', so the answer may be incomplete\n"


@pytest.mark.real_time
@pytest.mark.promise("BZ-BUZZ-FAILS")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_stops_the_question_and_exits_130(folder: Path, number: signal.Signals) -> None:
    async with FakeChat(one_by_one(calls("bash_find", path="."), hangs("Let me "))) as vendor:
        command = await Command.start(*asking(vendor, "--system-prompt", "codesearch"))
        await command.expect_stdout("Tool Result")
        command.signal(number)
        ended = await command.ended()

    assert (ended.code, ended.stderr) == (130, "interrupted\n")
    assert "DONE" not in ended.stdout


@pytest.mark.real_time
async def test_a_closed_stdout_ends_the_command_silently(folder: Path) -> None:
    async with FakeChat(says("word")) as vendor:
        command = await Command.start(*asking(vendor))
        command.close_stdout()
        ended = await command.ended()

    assert (ended.code, ended.stderr) == (1, "")


@pytest.mark.real_time
async def test_escape_codes_of_a_model_do_not_reach_a_terminal(folder: Path) -> None:
    async with FakeChat(says("red \x1b[31malert", thinking="hm\x1b[2J")) as vendor:
        printed = (await PtyCommand(*asking(vendor), all_there=True).result()).terminal
        piped = (await retinue(*asking(vendor))).stdout

    assert printed == f"{YELLOW}hm␛[2J{RESET}red ␛[31malert\r\n\r\n=== [ DONE ] ===\r\n"
    assert piped == f"{YELLOW}hm\x1b[2J{RESET}red \x1b[31malert{DONE}"
