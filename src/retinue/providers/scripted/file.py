"""A provider whose model is a JSON file with lines to play, so that examples and tests need no real model.

The file has lines by agent: `{"main": [...], "researcher": [...]}`. One line is played for each turn. `"main: find it"`
has the lines of runs of `main` whose task contains `find it`; `"*"`, or a list instead of the object, is for every
agent without lines of its own. Lines are::

    {"say": "hello", "think": "..."}
    {"call": {"name": "search", "arguments": {"query": "pool"}}}
    {"say": "Both.", "calls": [{"name": "a"}, {"name": "b"}]}
    {"status": 529, "message": "busy", "times": 2, "then": {"say": "at last"}}
    {"say": "It is bec", "ending": "cut"}          or "silence"
    {"say": "slowly", "every": 0.1}                seconds between the words
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import Reply, StartDelta, ToolCall
from retinue.core.ports import Publish, Request
from retinue.core.text import NOT_JSON
from retinue.core.usage import Usage
from retinue.local.bounded_file import MIB, read_bounded
from retinue.providers.http_errors import ErrorBody, fault_of
from retinue.providers.scripted.script import Line, Script, ScriptedProvider, ScriptedReply, fails, hangs

ANY_AGENT = "*"
"""The key of the lines for agents that have none of their own."""

_WORD = re.compile(r"\S+\s*|\s+")


class ScriptFileCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call in a script file; arguments that are a string are sent unchanged."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str = ""

    def as_call(self) -> ToolCall:
        text = self.arguments if isinstance(self.arguments, str) else msgspec.json.encode(self.arguments).decode()
        return ToolCall(self.name, text, self.id)


class ScriptFileLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A line in a script file."""

    say: str = ""
    think: str = ""
    call: ScriptFileCall | None = None
    calls: tuple[ScriptFileCall, ...] = ()
    stop: Literal["end", "calls", "length", "refusal"] | None = None
    usage: Literal["counted", "none"] | Usage = "counted"
    every: float = 0.0
    status: int = 200
    message: str = "an error, as the script says"
    times: int | None = None
    then: ScriptFileLine | None = None
    ending: Literal["whole", "cut", "silence"] = "whole"

    def reply(self) -> ScriptedReply:
        calls = (*((self.call,) if self.call else ()), *self.calls)
        return ScriptedReply(
            pieces=tuple(_WORD.findall(self.say)),
            calls=tuple(call.as_call() for call in calls),
            thinking=self.think,
            usage=None if self.usage == "none" else self.usage,
            stop=self.stop,
            every=self.every,
        )

    def line(self) -> Line:
        if self.ending == "silence":
            return hangs(*self.reply().pieces)
        if self.status != 200:
            fault = fault_of(self.status, ErrorBody(self.message))
            error = ProviderError(self.message, fault=fault, status=self.status)
        elif self.ending == "cut":
            error = ProviderError("the stream ended in the middle of the answer", fault="cut", partial=self.say)
        else:
            return self.reply()
        return fails(error, times=self.times or 1, then=self.then.line() if self.then is not None else None)


_FileContent: TypeAlias = dict[str, list[ScriptFileLine]] | list[ScriptFileLine]

MAX_SCRIPT_BYTES = 64 * MIB

_decode: Callable[[bytes], _FileContent] = msgspec.json.Decoder(_FileContent).decode


def read_script(text: bytes) -> tuple[Script, frozenset[str]]:
    """The script in a file, and the agents that have lines of their own; raises `BadInput` for an invalid file.

    >>> script, agents = read_script(b'{"lead": [{"say": "hello"}], "lead: find it": [{"say": "42"}]}')
    >>> script.unplayed(), sorted(agents)
    (["'lead', line 1: says 'hello'", "'lead' with task 'find it', line 1: says '42'"], ['lead'])
    """
    try:
        content = _decode(text)
    except NOT_JSON as error:
        raise BadInput(f"the script cannot be read: {error}") from None
    script, agents = Script(), set[str]()
    for key, lines in content.items() if isinstance(content, dict) else ((ANY_AGENT, content),):
        agent, colon, task = key.partition(":")
        agents.add(agent)
        script.play(agent, *(line.line() for line in lines), task=task.strip() if colon else None)
    return script, frozenset(agents)


class ScriptFileProvider:
    """A provider whose models are script files; each is read when it is first used.

    >>> ScriptFileProvider()
    <ScriptFileProvider>
    """

    def __init__(self) -> None:
        self._players: dict[str, tuple[ScriptedProvider, frozenset[str]]] = {}

    async def answer(self, request: Request, publish: Publish) -> Reply:
        player, agents = self._player(request.model)
        if request.agent not in agents and ANY_AGENT in agents:
            request = replace(request, agent=ANY_AGENT)
        publish(StartDelta())
        return await player.answer(request, publish)

    def _player(self, file: str) -> tuple[ScriptedProvider, frozenset[str]]:
        if file not in self._players:
            try:
                script, agents = read_script(read_bounded(Path(file), MAX_SCRIPT_BYTES))
            except OSError as error:
                reason = error.strerror or str(error)
                raise ProviderError(f"the script {file} cannot be read: {reason}", fault="bad_request") from None
            except BadInput as error:
                raise ProviderError(f"{file}: {error}", fault="bad_request") from None
            self._players[file] = ScriptedProvider(script), agents
        return self._players[file]

    def __repr__(self) -> str:
        return "<ScriptFileProvider>"
