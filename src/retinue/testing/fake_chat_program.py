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
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from retinue.core.errors import BadInput
from retinue.core.messages import ToolCall
from retinue.providers.script import Speaks
from retinue.testing.fake_chat import ChatScript, FakeChat, answer_of, failed
from retinue.testing.fake_server import HOST, Answer, Heard


class WrittenCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call in a script; arguments that are a text are sent letter by letter."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str = ""

    def as_call(self) -> ToolCall:
        """The call."""
        text = self.arguments if isinstance(self.arguments, str) else msgspec.json.encode(self.arguments).decode()
        return ToolCall(self.name, text, self.id)


class WrittenLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A line in a script."""

    say: str = ""
    think: str = ""
    call: WrittenCall | None = None
    calls: tuple[WrittenCall, ...] = ()
    stop: Literal["end", "calls", "length", "refusal"] | None = None
    usage: Literal["counted", "none"] = "counted"
    status: int = 200
    message: str = "an error, as the script says"
    headers: dict[str, str] = {}
    times: int | None = None
    then: WrittenLine | None = None
    ending: Literal["whole", "cut", "silence"] = "whole"
    delay: float = 0.0
    every: float = 0.0

    def __call__(self, heard: Heard) -> Answer:
        """This line as an answer, or `then` once the same request has been made more than `times` times."""
        if self.then is not None and heard.attempt > (self.times or 1):
            return self.then(replace(heard, attempt=heard.attempt - (self.times or 1)))
        if self.status != 200:
            answer = failed(self.status, self.message, **self.headers)
            return replace(answer, delay=self.delay)
        calls = (*((self.call,) if self.call else ()), *self.calls)
        line = Speaks(
            pieces=tuple(re.findall(r"\S+\s*|\s+", self.say)),
            calls=tuple(call.as_call() for call in calls),
            thinking=self.think,
            usage=None if self.usage == "none" else "counted",
            stop=self.stop,
            every=self.every,
        )
        answer = answer_of(line, heard)
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
        parts = msgspec.json.decode(text, type=dict[str, list[WrittenLine]])
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
