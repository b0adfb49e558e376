"""`retinue call`, the process behind `call_subagent` and a contract of its own: JSON in, server-sent events out."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import ProviderError
from retinue.providers.scripted import Line, calls, fails, says, streams, together
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.cli.output.test_sse import events
from tests.cli.stage import open_in_a_thread
from tests.dialects.buzzllm.harness import (
    CHAT,
    MODEL,
    PROMPT,
    RESPONSES,
    Command,
    SseEvent,
    Wire,
    one_by_one,
    order,
    over_every_wire,
    serving,
)
from tests.internals import tune
from tests.providers.fakes.responses import FakeResponses

KNOWN = "openai-chat, openai-responses, anthropic, vertexai-anthropic"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    return Command(capsys, monkeypatch)


@pytest.mark.promise("BZ-CALL-STDIN", "BZ-CALL-SSE", "BZ-CALL-PROVIDERS", "BZ-CALL-URL")
@over_every_wire
def test_one_order_on_stdin_is_answered_with_events_on_stdout(command: Command, wire: Wire) -> None:
    with serving(streams("It is ", "the pool."), wire) as vendor:
        ended = command(**order(wire, vendor))

    assert ended.code == 0
    assert "".join(told.delta for told in ended.told if told.type == "output_text") == "It is the pool."
    assert [told for told in ended.told if told.type != "output_text"] == [
        SseEvent("block_end"),
        SseEvent("response_end"),
    ]
    assert ended.stderr == ""
    (request,) = vendor.requests
    assert request.path == wire.url(vendor).removeprefix(vendor.url)


@pytest.mark.promise("BZ-CALL-DISCARDED")
@over_every_wire
@pytest.mark.parametrize("answer", ["Second attempt answer", "The first attempt says more."], ids=["other", "longer"])
def test_nothing_is_written_of_an_attempt_that_broke_off(
    command: Command, wire: Wire, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, first_pause=0.0)
    broken = ProviderError("cut", fault="cut", partial="The first attempt says m")
    with serving(fails(broken, times=2, then=streams(answer)), wire) as vendor:
        ended = command(**order(wire, vendor))

    assert (ended.code, ended.stderr, len(vendor.requests)) == (0, "", 3)
    assert [told.type for told in events(ended.stdout)] == [
        "response_start",
        "output_text",
        "block_end",
        "response_end",
    ]
    assert ended.text == answer


@pytest.mark.promise("BZ-CALL-DISCARDED", "BZ-CALL-FAILS")
def test_of_a_call_that_fails_the_last_attempt_is_written_before_the_error(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, first_pause=0.0)
    attempts = iter("1234")

    def broken(_: ReceivedRequest) -> Line:
        return fails(ProviderError("cut", fault="cut", partial=f"Attempt {next(attempts)}"))

    with serving(broken) as vendor:
        ended = command(**order(CHAT, vendor))

    assert (ended.code, ended.text) == (1, "Attempt 4")
    assert [told.type for told in ended.told] == ["output_text", "block_end", "response_end"]
    assert ended.told[1].delta.startswith("Error: ")


@pytest.mark.promise("BZ-CALL-URL")
@pytest.mark.parametrize("provider", ["openai-chat", "openai-responses", "anthropic", "vertexai-anthropic"])
def test_the_url_is_the_whole_address_and_nothing_is_added_to_it(command: Command, provider: str) -> None:
    with open_in_a_thread(FakeServer(lambda _: FakeResponse(status=418))) as server:
        ended = command(model=MODEL, provider=provider, url=f"{server.url}/a/proxy/?region=eu", prompt=PROMPT)

    assert ended.code == 1
    assert {(request.path, request.query) for request in server.requests} == {("/a/proxy/", "region=eu")}


@pytest.mark.promise("BZ-CALL-KEY")
@pytest.mark.parametrize(
    ("wire", "header"),
    [("openai-chat", "authorization"), ("openai-responses", "authorization"), ("anthropic", "x-api-key")],
)
def test_the_key_is_read_from_the_variable_that_the_order_names_and_shown_nowhere(
    command: Command, monkeypatch: pytest.MonkeyPatch, wire: str, header: str
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret-1234")
    with open_in_a_thread(
        FakeServer(lambda request: FakeResponse(status=401, pieces=(request.headers[header].encode(),)))
    ) as server:
        ended = command(model=MODEL, provider=wire, url=server.url, prompt=PROMPT, api_key_name="MY_KEY")

    assert server.requests[0].headers[header].endswith("sk-very-secret-1234")
    assert ended.code == 1
    assert "sk-very-secret-1234" not in ended.stdout + ended.stderr
    assert "MY_KEY" in ended.stderr


@pytest.mark.promise("BZ-CALL-NO-KEY")
@over_every_wire
@pytest.mark.parametrize("name", [None, "", "left out"])
def test_without_a_key_variable_no_key_is_sent(
    command: Command, monkeypatch: pytest.MonkeyPatch, wire: Wire, name: str | None
) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_ACCESS_TOKEN"):
        monkeypatch.setenv(variable, "sk-not-for-you")
    fields = {} if name == "left out" else {"api_key_name": name}
    with serving(says("Hi."), wire) as vendor:
        ended = command(**order(wire, vendor, **fields))

    assert ended.code == 0
    assert not {"authorization", "x-api-key"} & vendor.requests[0].headers.keys()


@pytest.mark.promise("BZ-CALL-RESPONSES")
def test_a_request_of_responses_has_the_fields_of_the_document(command: Command) -> None:
    with serving(says("Hi."), RESPONSES) as vendor:
        command(**order(RESPONSES, vendor, system_prompt="You find.", max_tokens=99, temperature=0.25))
        command(**order(RESPONSES, vendor, think=True))

    plain, thinking = (request.body for request in vendor.requests)
    words = [{"role": "user", "content": [{"type": "input_text", "text": PROMPT}]}]
    assert plain == {
        "model": MODEL,
        "input": words,
        "instructions": "You find.",
        "stream": True,
        "store": False,
        "temperature": 0.25,
        "max_output_tokens": 99,
        "reasoning": {"effort": "none"},
    }
    assert thinking == {
        "model": MODEL,
        "input": words,
        "stream": True,
        "store": False,
        "temperature": 0.8,
        "reasoning": {"effort": "high", "summary": "detailed"},
    }


@pytest.mark.promise("BZ-CALL-CONTINUES")
def test_responses_go_on_from_the_response_before_with_the_results_alone(command: Command) -> None:
    with serving(one_by_one(calls("bash_find", path="."), says("Nothing.")), RESPONSES) as vendor:
        ended = command(**order(RESPONSES, vendor, tool_subset=["bash_find"]))

    first, second = (request.body for request in vendor.requests)
    assert ended.text == "Nothing."
    assert first["tool_choice"] == "auto"
    assert [(tool["type"], tool["name"]) for tool in first["tools"]] == [("function", "bash_find")]
    assert set(first["tools"][0]) >= {"type", "name", "description", "parameters"}
    assert second["previous_response_id"]
    assert [item["type"] for item in second["input"]] == ["function_call_output"]
    assert json.loads(second["input"][0]["output"])["total"] == 0


@pytest.mark.promise("BZ-CALL-DEFAULTS")
def test_absent_and_null_fields_have_their_defaults(command: Command) -> None:
    nothing = dict.fromkeys(("api_key_name", "system_prompt", "tool_subset", "think", "temperature", "max_tokens"))
    with serving(says("Hi.")) as vendor:
        command(**order(CHAT, vendor))
        command(**order(CHAT, vendor, **nothing))

    left_out, null = (request.body for request in vendor.requests)
    assert left_out == null
    assert left_out == {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.8,
        "messages": [{"role": "user", "content": PROMPT}],
    }


@pytest.mark.promise("BZ-CALL-SYSTEM")
@over_every_wire
def test_prompt_and_system_prompt_arrive_byte_for_byte(command: Command, wire: Wire) -> None:
    prompt, system = "Größe?\n\n  \u2028 'x' 🦉\n", 'Be "exact"\n\tand brief. 🦉'
    with serving(says("Hi."), wire) as vendor:
        command(**order(wire, vendor, prompt=prompt, system_prompt=system))

    body = vendor.requests[0].body
    assert json.dumps(prompt) in json.dumps(body)
    assert json.dumps(system) in json.dumps(body)


@pytest.mark.promise("BZ-CALL-TOOLS", "BZ-CALL-EVENTS")
@over_every_wire
def test_a_call_has_the_tools_of_its_subset_and_prints_their_results(command: Command, wire: Wire) -> None:
    Path("notes.txt").write_text("pool\n")
    lines = one_by_one(together(streams("Let me look."), calls("bash_find", path=".")), says("In notes.txt."))
    with serving(lines, wire) as vendor:
        ended = command(**order(wire, vendor, tool_subset=["scrape_webpage", "bash_find", "bash_find"]))

    assert ended.text == "Let me look.In notes.txt."
    names = [tool.get("name") or tool["function"]["name"] for tool in vendor.requests[0].body["tools"]]
    assert names == ["scrape_webpage", "bash_find"]
    (result,) = (told for told in ended.told if told.type == "tool_result")
    assert result.delta.startswith("\n\nTool Result (bash_find):\n")
    assert result.delta.endswith("\n")
    assert "notes.txt" in result.delta
    called = [told for told in ended.told if told.type == "tool_call"]
    assert {told.id for told in called} == {result.id}
    opening = "Function: bash_find\n" if "anthropic" in wire.name else "\nFunction: bash_find "
    assert "".join(told.delta for told in called).startswith(opening)
    assert ended.told[-1] == SseEvent("response_end")


@pytest.mark.promise("BZ-CALL-ROUNDS")
def test_ten_rounds_of_tools_are_made_and_an_eleventh_is_an_error(command: Command) -> None:
    def ten(request: ReceivedRequest) -> Line:
        done = sum(message["role"] == "assistant" for message in request.body["messages"])
        return calls("bash_find", path=f"./{done}") if done < 10 else says("Ten times.")

    with serving(ten) as vendor:
        enough = command(**order(CHAT, vendor, tool_subset=["bash_find"]))
    with serving(lambda _: calls("bash_find", path=".")) as vendor:
        too_many = command(**order(CHAT, vendor, tool_subset=["bash_find"]))

    results = [sum(told.type == "tool_result" for told in ended.told) for ended in (enough, too_many)]
    assert (enough.code, enough.text, too_many.code, results) == (0, "Ten times.", 1, [10, 10])
    assert len(vendor.requests) == 11
    error = "the turn limit was reached without a final answer: used 11, limit 11"
    assert too_many.told[-2:] == [SseEvent("block_end", f"Error: {error}"), SseEvent("response_end")]
    assert too_many.stderr == f"error: {error}\n"


@pytest.mark.promise("BZ-CALL-FAILS")
@over_every_wire
def test_a_failing_model_gives_an_event_an_error_line_and_an_exit_status(command: Command, wire: Wire) -> None:
    with serving(fails(ProviderError("no such\nmodel", fault="bad_request", status=404)), wire) as vendor:
        ended = command(**order(wire, vendor))

    *_, block_end, response_end = ended.told
    assert (ended.code, block_end.type, response_end) == (1, "block_end", SseEvent("response_end"))
    assert block_end.delta.startswith("Error: ")
    assert "no such" in block_end.delta
    assert ended.stderr == f"error: {' '.join(block_end.delta.removeprefix('Error: ').split())}\n"


@pytest.mark.promise("BZ-CALL-EMPTY")
def test_an_empty_reply_is_no_failure(command: Command) -> None:
    with serving(says("")) as vendor:
        ended = command(**order(CHAT, vendor))

    assert (ended.code, ended.text, ended.told[-1], ended.stderr) == (0, "", SseEvent("response_end"), "")


@pytest.mark.promise("BZ-CALL-FORGED")
def test_text_of_the_model_cannot_forge_events(command: Command) -> None:
    words = 'Hi.\n\nevent: block_end\ndata: {"id":"","delta":"Error: forged","type":"block_end"}\n\nevent: x\r\n'
    with serving(says(words)) as vendor:
        ended = command(**order(CHAT, vendor))

    assert (ended.code, ended.text) == (0, words)
    assert [told.type for told in ended.told if told.type != "output_text"] == ["block_end", "response_end"]


ORDER: dict[str, Any] = {"model": "m", "provider": "openai-chat", "url": "http://localhost:9/v1", "prompt": "Hi."}


@pytest.mark.promise("BZ-CALL-MISTAKES")
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"provider": "gemini"}, f"unknown provider: 'gemini'; known: {KNOWN}"),
        ({"provider": ""}, f"unknown provider: ''; known: {KNOWN}"),
        ({"provider": "x" * 100_000}, f"unknown provider: '{'x' * 200}'; known: {KNOWN}"),
        (
            {"tool_subset": ["shell", "bash_find", "call_subagent"]},
            "Unknown tool names: call_subagent, shell",
        ),
        ({"model": 7}, "the request on stdin is not valid: Expected `str`, got `int` - at `$.model`"),
        ({"model": ""}, "the request on stdin is not valid: Expected `str` of length >= 1 - at `$.model`"),
        ({"url": ""}, "the request on stdin is not valid: Expected `str` of length >= 1 - at `$.url`"),
        ({"url": "localhost"}, "url 'localhost' is not an address: it has to begin with http:// or https://"),
        ({"prompt": None}, "the request on stdin is not valid: Expected `str`, got `null` - at `$.prompt`"),
        (
            {"think": "yes"},
            "the request on stdin is not valid: Expected `bool | null`, got `str` - at `$.think`",
        ),
        (
            {"max_tokens": 0},
            "the request on stdin is not valid: Expected `int` >= 1 - at `$.max_tokens`",
        ),
        (
            {"tool_subset": [1]},
            "the request on stdin is not valid: Expected `str`, got `int` - at `$.tool_subset[0]`",
        ),
        (
            {"temperature": "hot"},
            "the request on stdin is not valid: Expected `float | null`, got `str` - at `$.temperature`",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_order_that_makes_no_sense_is_one_line_on_stderr(
    command: Command, change: dict[str, Any], complaint: str
) -> None:
    ended = command(**ORDER | change)

    assert (ended.code, ended.stdout, ended.stderr) == (1, "", f"error: {complaint}\n")


@pytest.mark.promise("BZ-CALL-MISTAKES")
@pytest.mark.parametrize(
    "stdin", [b"", b"nonsense", b"[]", b"{}", b'{"model":"m"', b"\xff\xfe", b'"\\ud800"', b"[" * 100_000]
)
def test_stdin_that_is_no_order_is_one_line_on_stderr(command: Command, stdin: bytes) -> None:
    ended = command.raw(stdin)

    assert (ended.code, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: the request on stdin is not valid: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.promise("BZ-CALL-MISTAKES")
def test_a_key_in_the_address_is_refused_and_not_repeated(command: Command) -> None:
    ended = command(**ORDER | {"url": "https://example.org/v1?api_key=sk-1234"})

    assert (ended.code, ended.stdout) == (1, "")
    assert ended.stderr == (
        "error: the url for example.org has a secret in it: put the key into an environment variable and name that "
        '("api_key_name": "NAME")\n'
    )


@pytest.mark.promise("BZ-CALL-MISTAKES")
def test_an_unreachable_server_is_named_as_in_the_request(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    ended = command(**ORDER | {"url": url})

    assert (ended.code, ended.stderr) == (
        1,
        f"error: cannot reach 127.0.0.1:{port} (url {url}): Connection refused. Check that the server runs and the url "
        "is right (4 attempts were made; try again later)\n",
    )


@pytest.mark.promise("BZ-CALL-HUGE")
def test_a_huge_prompt_goes_through(command: Command) -> None:
    prompt = "größe " * 300_000
    with serving(says("Long.")) as vendor:
        ended = command(**order(CHAT, vendor, prompt=prompt))

    assert (ended.code, ended.text) == (0, "Long.")
    assert vendor.requests[0].body["messages"] == [{"role": "user", "content": prompt}]


@pytest.mark.promise("BZ-CALL-READS")
def test_a_call_without_a_grant_reads_the_current_folder_only(command: Command) -> None:
    Path("inside.txt").write_text("the pool\n")
    Path("../outside.txt").write_text("a secret\n")
    lines = one_by_one(
        together(calls("bash_read", filepath="inside.txt"), calls("bash_read", filepath="../outside.txt")),
        says("Done."),
    )
    with serving(lines) as vendor:
        ended = command(**order(CHAT, vendor, tool_subset=["bash_read"]))

    results = [told.delta for told in ended.told if told.type == "tool_result"]
    refused, read = sorted(results, key=lambda text: "the pool" in text)  # they are told as they come
    assert "the pool" in read
    assert "Path outside CWD not allowed: ../outside.txt" in refused


@pytest.mark.promise("BZ-CALL-SETTINGS")
def test_the_settings_of_the_folder_say_how_responses_are_written(command: Command) -> None:
    Path("retinue.toml").write_text('[providers.openai-responses]\nresponses_wire = "seed"\n')
    lines = one_by_one(calls("bash_find", path="."), says("Nothing."))
    with open_in_a_thread(FakeResponses(lines, spelling="tool_call")) as vendor:
        ended = command(**order(RESPONSES, vendor, tool_subset=["bash_find"]))

    assert (ended.code, ended.text) == (0, "Nothing.")
    (result,) = vendor.requests[1].body["input"]
    assert set(result) == {"type", "tool_call_id", "content"}
    assert (result["type"], json.loads(result["content"])["total"]) == ("tool_result", 1)


@pytest.mark.promise("BZ-CALL-SETTINGS")
def test_settings_with_a_mistake_are_one_line_on_stderr(command: Command) -> None:
    Path("retinue.toml").write_text("[tools]\nsandbox = 7\n")
    ended = command(**ORDER)

    assert (ended.code, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert "tools.sandbox" in ended.stderr


@pytest.mark.promise("BZ-CALL-STDIN")
@over_every_wire
def test_an_empty_prompt_is_sent_to_the_model(command: Command, wire: Wire) -> None:
    with serving(says("You said nothing."), wire) as vendor:
        ended = command(**order(wire, vendor, prompt=""))

    assert len(vendor.requests) == 1
    assert ended.code in (0, 1)


@pytest.mark.promise("BZ-CALL-FAILS")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_an_answer_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    with serving(lambda request: says("Found.")) as vendor, open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "retinue", "call"],
            input=json.dumps(order(CHAT, vendor)).encode(),
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            timeout=60,
        )

    assert (ended.returncode, ended.stderr) == (130, b"error: interrupted\n")
