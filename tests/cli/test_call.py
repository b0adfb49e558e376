"""`retinue call` as other programs start it: a real process with real pipes.

What it says and what it refuses is in tests/dialects/buzzllm/test_call.py.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from retinue.providers.scripted import hangs, says, streams
from retinue.testing.fake_chat import FakeChat
from tests.cli.conftest import Cli
from tests.cli.stage import Command, retinue
from tests.cli.test_sse import Told, events

pytestmark = pytest.mark.real_time


def order(vendor: FakeChat, **fields: object) -> bytes:
    whole = {"model": "m", "provider": "openai-chat", "url": f"{vendor.base_url}/chat/completions", "prompt": "hi"}
    return json.dumps(whole | fields).encode()


async def test_a_program_that_writes_an_order_reads_events_and_an_exit_status(folder: Path) -> None:
    async with FakeChat(streams("Grüße ", "🦉")) as vendor:
        ended = await retinue("call", stdin=order(vendor))

    told = [each for each in events(ended.stdout) if each.type != "response_start"]
    assert (ended.code, ended.stderr) == (0, "")
    assert told == [
        Told("output_text", "Grüße "),
        Told("output_text", "🦉"),
        Told("block_end"),
        Told("response_end"),
    ]
    assert not (folder.parent / "home").exists()  # nothing is stored


async def test_words_leave_as_they_arrive(folder: Path) -> None:
    async with FakeChat(hangs("Let me ")) as vendor:
        command = await Command.start("call", stdin=order(vendor))
        printed = await command.prints("Let me ")
        command.signal(signal.SIGTERM)
        ended = await command.ended()

    told = list(events(printed + ended.stdout))
    assert told[-2:] == [Told("block_end", "Error: interrupted"), Told("response_end")]
    assert (ended.code, ended.stderr) == (130, "error: interrupted\n")


async def test_a_reader_that_leaves_ends_the_work(folder: Path) -> None:
    async with FakeChat(streams(*["word "] * 200, every=0.05)) as vendor:
        command = await Command.start("call", stdin=order(vendor))
        await command.prints("word ")
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


def test_the_command_takes_no_words(cli: Cli) -> None:
    refused, explained = cli("call", "now"), cli("call", "--help")

    assert (refused.code, refused.stdout) == (2, "")
    assert "stdin" in explained.stdout
