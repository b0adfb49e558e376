"""A provider that plays the lines of a script: for demonstrations, and for tests without a network."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, assert_never

from retinue.core.messages import (
    AssistantMessage,
    CallDelta,
    Message,
    Reply,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolMessage,
    UserMessage,
)
from retinue.core.ports import Publish, Request
from retinue.core.usage import Usage
from retinue.providers.scripted.script import Script, ScriptedFailure, ScriptedHang, ScriptedReply

CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """One model call of a turn: the path of the run, its agent, and the number of the turn."""

    path: str
    agent: str
    turn: int


class ScriptedProvider:
    """A provider that plays a script.

    `latency` is the number of seconds before each answer begins. `prices` are nanodollars per input and output token,
    by model, and `windows` are context windows by model. With `log`, every finished answer of a turn adds a line to
    that file, which several processes may share; `logged_turns` reads it. A text (without calls) that is longer than
    the request's `max_output` is cut there, as vendors do.

    >>> from retinue.messages import UserMessage
    >>> provider = ScriptedProvider(Script().play("lead", says("hello")))
    >>> request = Request(model="m", system="Be kind.", messages=[UserMessage("hi there")], agent="lead", path="lead")
    >>> reply = asyncio.run(provider.answer(request, print))
    TextDelta(text='hello')
    >>> reply.message.text, reply.usage
    ('hello', Usage(input=4, output=1, cached=0, reasoning=0, written=0))
    >>> provider.asked
    [AskedTurn(path='lead', agent='lead', turn=1)]
    """

    def __init__(
        self,
        script: Script,
        *,
        latency: float = 0.0,
        prices: Mapping[str, tuple[int, int]] | None = None,
        windows: Mapping[str, int] | None = None,
        log: Path | None = None,
    ) -> None:
        self.script = script
        self.asked: list[AskedTurn] = []
        """Every model call of a turn, including failed attempts."""
        self.summarised: list[Request] = []
        """Every request for a summary."""
        self._latency = latency
        self._prices = dict(prices or {})
        self._windows = dict(windows or {})
        self._log = log
        self._attempts: dict[tuple[str, str, int], int] = {}

    def price(self, model: str) -> tuple[int, int] | None:
        """Nanodollars per input and output token, or None where unknown."""
        return self._prices.get(model)

    def window(self, model: str) -> int | None:
        """The context window of a model, in tokens, or None where unknown."""
        return self._windows.get(model)

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The reply in the line of this agent, task and turn; raises `ProviderError` for a failing line."""
        asked = AskedTurn(request.path, request.agent, request.turn)
        if request.purpose == "summary":
            self.summarised.append(request)
        else:
            self.asked.append(asked)
        key = (request.run_id, request.path, request.turn if request.purpose == "turn" else -request.turn)
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        line = self.script.line_for(request, attempt)
        await asyncio.sleep(self._latency)
        match line:
            case ScriptedReply():
                reply = self._reply(line, request)
                await _publish_reply(line, reply.message, publish)
            case ScriptedFailure(error=error):
                if error.partial:
                    publish(TextDelta(error.partial))
                raise copy.copy(error)  # one error may be raised in many runs, and each adds its own traceback
            case ScriptedHang(pieces=pieces):
                for piece in pieces:
                    publish(TextDelta(piece))
                await _hang()
            case _:
                assert_never(line)
        if self._log is not None and request.purpose == "turn":
            _append(self._log, f"{asked.path}\t{asked.turn}\n")
        return reply

    def _reply(self, line: ScriptedReply, request: Request) -> Reply:
        text, stop = line.text, line.stop or ("calls" if line.calls else "end")
        if request.max_output is not None and not line.calls:
            room = max(0, request.max_output * CHARACTERS_PER_TOKEN - len(line.thinking))
            text, stop = (text[:room], "length") if len(text) > room else (text, stop)
        thinking = (Thinking(text=line.thinking),) if line.thinking else ()
        message = AssistantMessage(text=text, calls=line.calls, thinking=thinking)
        usage = _count_usage(request, message) if line.usage == "counted" else line.usage
        return Reply(
            message=message, usage=usage, cost=self._cost(request.model, usage), stop=stop, model=request.model
        )

    def _cost(self, model: str, usage: Usage | None) -> int | None:
        price = self.price(model)
        return None if price is None or usage is None else usage.input * price[0] + usage.output * price[1]


async def _publish_reply(line: ScriptedReply, message: AssistantMessage, publish: Publish) -> None:
    """Publish a reply as a wire would: thinking, text, calls."""
    if line.thinking:
        publish(ThinkingDelta(line.thinking))
    left = len(message.text)
    for number, piece in enumerate(line.pieces):
        if number:
            await asyncio.sleep(line.every)
        if piece[:left]:
            publish(TextDelta(piece[:left]))
        left -= len(piece[:left])
    for index, call in enumerate(message.calls):
        publish(CallDelta(index, call.name, call.arguments))


@dataclass(frozen=True, slots=True)
class _Counted:
    """How many of a run's messages were counted, and the first and last of them."""

    messages: int = 0
    characters: int = 0
    first: Message | None = None
    last: Message | None = None

    def still_holds(self, request: Request) -> bool:
        """Whether these are still the run's first messages; a summary may have taken their place."""
        messages = request.messages
        if not 0 < self.messages <= len(messages):
            return False
        return messages[0] is self.first and messages[self.messages - 1] is self.last


def _count_usage(request: Request, reply: AssistantMessage) -> Usage:
    """Usage by length. The count so far is kept in the run's memo, or a long run would be counted over and over."""
    counted = request.memo.get("scripted.counted")
    if not (isinstance(counted, _Counted) and counted.still_holds(request)):
        counted = _Counted()
    for index in range(counted.messages, len(request.messages)):
        message = request.messages[index]
        counted = _Counted(index + 1, counted.characters + _length(message), counted.first or message, message)
    request.memo["scripted.counted"] = counted
    return Usage(
        input=(len(request.system) + counted.characters) // CHARACTERS_PER_TOKEN,
        output=_length(reply) // CHARACTERS_PER_TOKEN,
        reasoning=sum(len(block.text) for block in reply.thinking) // CHARACTERS_PER_TOKEN,
    )


def _length(message: Message) -> int:
    match message:
        case UserMessage(text=text) | ToolMessage(text=text):
            return len(text)
        case AssistantMessage(text=text, calls=calls, thinking=thinking):
            in_calls = sum(len(call.name) + len(call.arguments) for call in calls)
            return len(text) + in_calls + sum(len(block.text) for block in thinking)
        case _:
            assert_never(message)


async def _hang() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a hanging line ends only by cancellation")


def _append(log: Path, line: str) -> None:
    """Add a line in a single write, so that lines of several processes never mix."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def logged_turns(log: Path) -> list[tuple[str, int]]:
    """Path and turn of every finished answer in a log, in order, of all processes that wrote it."""
    rows = (row.rpartition("\t") for row in log.read_text().split("\n") if row) if log.exists() else ()
    return [(path, int(turn)) for path, _, turn in rows]
