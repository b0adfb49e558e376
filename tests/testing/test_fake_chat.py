"""The fake chat server plays its lines like a vendor, in a test and as a program, and is as strict."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from retinue.core.errors import BadInput
from retinue.core.messages import AssistantMessage, Message, Reply, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.scripted import Line, says, together
from retinue.providers.scripted import calls as calling
from retinue.testing.fake_chat import (
    ChatScript,
    FakeChat,
    FakeResponse,
    ReceivedRequest,
    main,
    read_script,
    request_error,
)
from retinue.testing.virtual_time import run_in_virtual_time

USER: dict[str, Any] = {"role": "user", "content": "hi"}


def call(call_id: object = "a", arguments: object = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "ls", "arguments": arguments}}


def reply(*made: dict[str, Any], content: object = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | ({"tool_calls": list(made)} if made else {})


def result(call_id: str = "a") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "x"}


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([USER, reply(call()), result(), USER], None),
        ([USER, reply(call("a"), call("b")), result("b"), result("a"), reply(content="")], None),
        ([], "a request needs a model and messages"),
        ([USER, result()], "messages[1]: a 'tool' message must be a response to a preceding 'tool_calls'"),
        (
            [reply(call()), result(), result()],
            "messages[2]: a 'tool' message must be a response to a preceding 'tool_calls'",
        ),
        ([reply(call()), USER], "messages[1]: these tool_call_ids did not have response messages: a"),
        ([USER, reply(call())], "these tool_call_ids did not have response messages: a"),
        ([reply()], "messages[0]: content must be a string"),
        ([{"role": "judge", "content": "x"}], "messages[0]: unknown role 'judge'"),
    ],
)
def test_a_conversation_that_vendors_reject_is_rejected(messages: list[dict[str, Any]], complaint: str | None) -> None:
    assert request_error({"model": "m", "messages": messages}) == complaint


@pytest.mark.parametrize("made", [call(""), call(None), call("a", {"an": "object"})])
def test_a_call_needs_an_id_and_its_arguments_as_text(made: dict[str, Any]) -> None:
    assert "a call needs an id of its own and arguments as a string" in str(
        request_error({"model": "m", "messages": [reply(made), result()]})
    )


def test_an_empty_list_of_tools_is_rejected() -> None:
    assert request_error({"model": "m", "messages": [USER], "tools": []}) == "[] is too short - 'tools'"


async def test_a_rejected_request_is_recorded() -> None:
    async with FakeChat(says("hi")) as vendor, aiohttp.ClientSession() as session:
        for path, body in (("/chat/completions", b"{}"), ("/models", b"{}")):
            async with session.post(vendor.base_url + path, data=body) as response:
                assert response.status == (400 if path == "/chat/completions" else 404)

        assert [heard.path for heard in vendor.requests] == ["/v1/chat/completions", "/v1/models"]


async def test_without_stream_the_answer_is_one_json_body() -> None:
    line = together(says("Let me look."), calling("ls", path="/"))
    async with FakeChat(line) as vendor, aiohttp.ClientSession() as session:
        body = {"model": "m", "messages": [USER]}
        async with session.post(f"{vendor.base_url}/chat/completions", json=body) as response:
            answer = await response.json()

    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [
                    {"id": "call_1_0", "type": "function", "function": {"name": "ls", "arguments": '{"path":"/"}'}}
                ],
            },
            "finish_reason": "tool_calls",
        }
    ]


async def ask(base_url: str, *messages: Message, system: str = "") -> Reply:
    async with OpenAIChatProvider(base_url) as provider:
        return await provider.answer(Request(model="m", system=system, messages=messages), lambda _: None)


async def said(base_url: str, *messages: Message, system: str = "") -> str:
    try:
        return (await ask(base_url, *messages, system=system)).message.text
    except Exception as error:
        return str(error).rpartition("fake_chat: ")[2]


async def test_lines_are_selected_by_words_and_turn() -> None:
    def improvise(heard: ReceivedRequest) -> Line | FakeResponse:
        return says(f"you said {heard.body['messages'][-1]['content']}")

    script = (
        ChatScript().play(says("one"), improvise).play(says("found"), words="find").play(says("it"), words="find it")
    )
    async with FakeChat(script) as vendor:
        go, again = UserMessage("go"), (UserMessage("go"), AssistantMessage("one"), UserMessage("again"))

        assert await said(vendor.base_url, go) == "one"
        assert await said(vendor.base_url, *again) == "you said again"
        assert await said(vendor.base_url, UserMessage("please find him")) == "found"
        assert await said(vendor.base_url, UserMessage("please find it")) == "it"
        assert await said(vendor.base_url, go, system="You find things.") == "found"
        assert await said(vendor.base_url, *again, AssistantMessage("b"), go) == "asked for line 3 of '', which has 2"


async def test_a_conversation_without_lines_is_rejected() -> None:
    async with FakeChat(ChatScript().play(says("x"), words="find")) as vendor:
        assert await said(vendor.base_url, UserMessage("hi")) == (
            "no lines for this conversation; there are some for: ['find']"
        )


# ---- the program ----------------------------------------------------------------------------------------------------

SCRIPT = {
    "default": [
        {"say": "Let me look.", "think": "hm", "call": {"name": "ls", "arguments": {"path": "/"}}},
        {"status": 429, "message": "slow", "headers": {"Retry-After": "1"}, "times": 2, "then": {"say": "at last"}},
    ],
    "both": [{"calls": [{"name": "a", "id": "x"}, {"name": "b", "arguments": "nonsense"}]}],
    "cut me": [{"say": "It is bec", "ending": "cut"}],
    "slowly": [{"say": "so slow", "delay": 0.01, "every": 0.01, "usage": "none", "stop": "length"}],
}


async def test_the_lines_of_a_file_are_played() -> None:
    async with FakeChat(read_script(json.dumps(SCRIPT).encode()), chunk=3) as vendor:
        first = (await ask(vendor.base_url, UserMessage("go"))).message
        both = (await ask(vendor.base_url, UserMessage("both"))).message
        slow = await ask(vendor.base_url, UserMessage("slowly"))
        last = [await said(vendor.base_url, UserMessage("go"), first, ToolMessage("ls", "x")) for _ in range(3)]
        cut = await said(vendor.base_url, UserMessage("cut me"))

        assert (first.text, first.calls) == ("Let me look.", (ToolCall("ls", '{"path":"/"}', "call_1_0"),))
        assert [thought.text for thought in first.thinking] == ["hm"]
        assert both.calls == (ToolCall("a", "{}", "x"), ToolCall("b", "nonsense", "call_1_1"))
        assert (slow.message.text, slow.usage, slow.stop) == ("so slow", None, "length")
        assert last == [f"{vendor.base_url} answered 429: slow"] * 2 + ["at last"]
        assert cut == f"{vendor.base_url}: the stream ended in the middle of the answer"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (b"", "the script cannot be read: Input data was truncated"),
        (
            b'{"default": [{"sya": "hi"}]}',
            "the script cannot be read: Object contains unknown field `sya` - at `$[...][0]`",
        ),
    ],
)
def test_a_script_error_is_reported_with_its_position(script: bytes, complaint: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_script(script)

    assert str(refused.value) == complaint


def test_a_missing_script_is_reported() -> None:
    with pytest.raises(SystemExit, match=r"fake_chat: nowhere\.json: "):
        run_in_virtual_time(main(["--script", "nowhere.json"]))


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., tuple[subprocess.Popen[str], str]]:
    def start(*options: str) -> tuple[subprocess.Popen[str], str]:
        script = tmp_path / "script.json"
        script.write_text(json.dumps(SCRIPT))
        command = [sys.executable, "-m", "retinue.testing.fake_chat", "--port", "0", "--script", str(script), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        request.addfinalizer(process.kill)
        assert process.stdout is not None
        request.addfinalizer(process.stdout.close)
        return process, process.stdout.readline().strip()

    return start


@pytest.mark.real_time
async def test_the_program_prints_its_url_responds_and_ends_on_sigterm(
    program: Callable[..., tuple[subprocess.Popen[str], str]], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process, base_url = program("--log", str(log))

    assert await said(base_url, UserMessage("slowly")) == "so slow"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["path"], line["body"]["messages"], line["attempt"]) == (
        "/v1/chat/completions",
        [{"role": "user", "content": "slowly"}],
        1,
    )
