"""`retinue call` as other programs start it: a real process with real pipes.

Events and refusals are tested in tests/dialects/buzzllm/test_call.py.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from retinue.core.errors import ProviderError
from retinue.providers.scripted import Line, calls, fails, hangs, says, streams, together
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.output.test_sse import SseEvent, events, joined
from tests.cli.stage import Command, retinue

pytestmark = pytest.mark.real_time


def order(vendor: FakeChat, **fields: object) -> bytes:
    whole = {"model": "m", "provider": "openai-chat", "url": f"{vendor.base_url}/chat/completions", "prompt": "hi"}
    return json.dumps(whole | fields).encode()


async def test_a_program_writes_a_request_and_reads_events_and_exit_status(folder: Path) -> None:
    async with FakeChat(streams("Grüße ", "🦉")) as vendor:
        ended = await retinue("call", stdin=order(vendor))

    result = [each for each in events(ended.stdout) if each.type != "response_start"]
    assert (ended.code, ended.stderr) == (0, "")
    assert result == [
        SseEvent("output_text", "Grüße "),
        SseEvent("output_text", "🦉"),
        SseEvent("block_end"),
        SseEvent("response_end"),
    ]
    assert not (folder.parent / "home").exists()  # nothing is stored


async def test_a_reply_is_written_when_it_is_complete_and_not_at_the_end_of_the_call(folder: Path) -> None:
    script = ChatScript().play(together(streams("Let me ", "look."), calls("bash_find", path=".")), hangs("It was "))
    async with FakeChat(script) as vendor:
        command = await Command.start("call", stdin=order(vendor, tool_subset=["bash_find"]))
        printed = await command.expect_stdout('"type":"tool_result"')
        command.signal(signal.SIGTERM)
        ended = await command.ended()

    result = joined(events(printed + ended.stdout))
    assert [each.type for each in result[:5]] == [
        *("response_start", "output_text", "tool_call", "block_end", "tool_result")
    ]
    assert result[1] == SseEvent("output_text", "Let me look.")
    assert result[-2:] == [SseEvent("block_end", "Error: interrupted"), SseEvent("response_end")]
    assert (ended.code, ended.stderr) == (130, "error: interrupted\n")


async def test_a_discarded_attempt_is_not_written(folder: Path) -> None:
    broken = ProviderError("cut", fault="cut", partial="The first attempt says m")
    async with FakeChat(fails(broken, then=streams("Second ", "attempt answer"))) as vendor:
        ended = await retinue("call", stdin=order(vendor))

    assert (ended.code, ended.stderr, len(vendor.requests)) == (0, "", 2)
    start, *rest = events(ended.stdout)
    assert start.type == "response_start"
    assert rest == [
        SseEvent("output_text", "Second "),
        SseEvent("output_text", "attempt answer"),
        SseEvent("block_end"),
        SseEvent("response_end"),
    ]


async def test_a_closed_stdout_ends_the_run(folder: Path) -> None:
    requested = asyncio.Event()

    def answer(_: ReceivedRequest) -> Line:
        requested.set()
        return hangs("word ")  # nothing more is written that could fail

    async with FakeChat(answer) as vendor:
        command = await Command.start("call", stdin=order(vendor))
        await requested.wait()
        command.close_stdout()
        ended = await command.ended()

    assert ended.code == 130
    assert "Traceback" not in ended.stderr


async def test_neither_keys_nor_contents_are_logged(folder: Path) -> None:
    env = {"RETINUE_LOG": "debug", "MY_KEY": "sk-secret-1234"}
    async with FakeChat(says("an answer of mine")) as vendor:
        ended = await retinue("call", stdin=order(vendor, api_key_name="MY_KEY", prompt="a prompt of mine"), env=env)

    assert ended.code == 0
    assert vendor.requests[0].headers["authorization"] == "Bearer sk-secret-1234"
    assert not any(words in ended.stderr for words in ("sk-secret-1234", "of mine"))


def test_the_command_takes_no_arguments(cli: Cli) -> None:
    refused, explained = cli("call", "now"), cli("call", "--help")

    assert (refused.code, refused.stdout) == (2, "")
    assert "stdin" in explained.stdout
