"""The fake chat vendor as a program: prints where it listens, and plays the lines of a JSON file.

The file has lines by words: ``{"default": [...], "find it": [...]}``. A conversation whose system or user texts contain
`find it` gets those lines, any other the default ones; the number of replies in it says which is next. Lines are::

    {"say": "hello", "think": "..."}
    {"call": {"name": "search", "arguments": {"query": "pool"}}}
    {"say": "Both.", "calls": [{"name": "a"}, {"name": "b"}]}
    {"status": 429, "message": "slow down", "headers": {"Retry-After": "1"}, "times": 2, "then": {"say": "at last"}}
    {"say": "It is bec", "ending": "cut"}          or "silence"
    {"say": "slowly", "delay": 0.5, "every": 0.1}  seconds before the answer, and between its words
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

from retinue.core.errors import BadInput
from retinue.providers.scripted import ScriptFileLine
from retinue.testing.fake_chat import ChatScript, FakeChat, answer_of, failed
from retinue.testing.fake_server import HOST, Answer, Heard


class ServedLine(ScriptFileLine, frozen=True, forbid_unknown_fields=True):
    """A line in a script, as a server plays it."""

    then: ServedLine | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    delay: float = 0.0

    def __call__(self, heard: Heard) -> Answer:
        """This line as an answer, or `then` once the same request has been made more than `times` times."""
        if self.then is not None and heard.attempt > (self.times or 1):
            return self.then(replace(heard, attempt=heard.attempt - (self.times or 1)))
        if self.status != 200:
            answer = failed(self.status, self.message, **self.headers)
            return replace(answer, delay=self.delay)
        answer = answer_of(self.reply(), heard)
        if self.ending != "whole":  # the last words are said; how the model stopped, and what it used, is not
            kept = sum(b'"finish_reason":null' in piece for piece in answer.pieces)
            answer = replace(answer, pieces=answer.pieces[:kept])
        return replace(answer, delay=self.delay, ending=self.ending)


def read_script(text: bytes) -> ChatScript:
    """The script in a file; raises `BadInput` with the place of the mistake.

    >>> isinstance(read_script(b'{"default": [{"say": "hello"}]}'), ChatScript)
    True
    """
    try:
        parts = msgspec.json.decode(text, type=dict[str, list[ServedLine]])
    except msgspec.DecodeError as wrong:
        raise BadInput(f"the script cannot be read: {wrong}") from None
    script = ChatScript()
    for words, lines in parts.items():
        script.play(*lines, words="" if words == "default" else words)
    return script


class _Logged:
    """A script that writes down each request before it is answered, one JSON line each."""

    def __init__(self, script: ChatScript, log: Path) -> None:
        self._script = script
        self._log = log

    def __call__(self, heard: Heard) -> Any:
        line = {"path": heard.path, "headers": heard.headers, "body": heard.body, "attempt": heard.attempt}
        with self._log.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        return self._script(heard)


async def main(arguments: Sequence[str] | None = None) -> None:
    """Listen until somebody sends SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m retinue.testing.fake_chat",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--script", type=Path, required=True, help="the JSON file with the lines")
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--chunk", type=int, help="send answers in pieces of so many bytes")
    parser.add_argument("--log", type=Path, help="write every request into this file, as lines of JSON")
    options = parser.parse_args(arguments)
    try:
        script = read_script(options.script.read_bytes())
    except (OSError, BadInput) as wrong:
        sys.exit(f"fake_chat: {options.script}: {wrong}")
    played = _Logged(script, options.log) if options.log else script
    done = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, done.set)
    async with FakeChat(played, chunk=options.chunk, host=options.host, port=options.port) as vendor:
        print(vendor.base_url, flush=True)
        await done.wait()
