"""`retinue call` as other programs start it: a real process with real pipes.

Events and refusals are tested in tests/dialects/buzzllm/test_call.py.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from retinue.providers.scripted import hangs, says, streams
from retinue.testing.fake_chat import FakeChat
from tests.cli.conftest import Cli
from tests.cli.output.test_sse import SseEvent, events
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


async def test_text_is_streamed_as_it_arrives(folder: Path) -> None:
    async with FakeChat(hangs("Let me ")) as vendor:
        command = await Command.start("call", stdin=order(vendor))
        printed = await command.expect_stdout("Let me ")
        command.signal(signal.SIGTERM)
        ended = await command.ended()

    result = list(events(printed + ended.stdout))
    assert result[-2:] == [SseEvent("block_end", "Error: interrupted"), SseEvent("response_end")]
    assert (ended.code, ended.stderr) == (130, "error: interrupted\n")


async def test_a_closed_stdout_ends_the_run(folder: Path) -> None:
    async with FakeChat(streams(*["word "] * 200, every=0.05)) as vendor:
        command = await Command.start("call", stdin=order(vendor))
        await command.expect_stdout("word ")
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
