"""A model that plays lines written beforehand: for demonstrations, and for tests that need neither network nor luck."""

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
from retinue.providers.scripted.script import (
    Fails,
    Hangs,
    Improvised,
    Line,
    Script,
    Speaks,
    calls,
    calls_verbatim,
    fails,
    hangs,
    says,
    streams,
    together,
)

__all__ = [
    "Asked",
    "Fails",
    "Hangs",
    "Improvised",
    "Line",
    "Script",
    "ScriptedProvider",
    "Speaks",
    "calls",
    "calls_verbatim",
    "fails",
    "hangs",
    "played",
    "says",
    "streams",
    "together",
]

CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: the path of the run that asked, its agent, and which of its replies this was to be."""

    path: str
    agent: str
    turn: int


class ScriptedProvider:
    """A provider that plays a script.

    `latency` is how many seconds each answer takes to begin. `prices` are nanodollars per input and output token, by
    model, and `windows` how many tokens a model can read and write at once. With `log`, every finished answer of a turn
    adds a line to that file, which several processes may share; `played` reads it. A text (without calls) that is
    longer than the request's `max_output` is cut there, as vendors do.

    >>> from retinue.messages import UserMessage
    >>> provider = ScriptedProvider(Script().play("lead", says("hello")))
    >>> request = Request(model="m", system="Be kind.", messages=[UserMessage("hi there")], agent="lead", path="lead")
    >>> reply = asyncio.run(provider.answer(request, print))
    TextDelta(text='hello')
    >>> reply.message.text, reply.usage, provider.asked
    ('hello', Usage(input=4, output=1, cached=0, reasoning=0, written=0), [Asked(path='lead', agent='lead', turn=1)])
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
        self.asked: list[Asked] = []
        """Every question of a turn, attempts that failed included."""
        self.summarised: list[Request] = []
        """Every question for a summary."""
        self._latency = latency
        self._prices = dict(prices or {})
        self._windows = dict(windows or {})
        self._log = log
        self._attempts: dict[tuple[str, str, int], int] = {}

    def price(self, model: str) -> tuple[int, int] | None:
        """Nanodollars per input and output token, or None where unknown."""
        return self._prices.get(model)

    def window(self, model: str) -> int | None:
        """The tokens that a question and its answer may have together, or None where unknown."""
        return self._windows.get(model)

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The line of this agent, task and turn, as a reply."""
        asked = Asked(request.path, request.agent, request.turn)
        if request.purpose == "summary":
            self.summarised.append(request)
        else:
            self.asked.append(asked)
        this_turn = (request.run_id, request.path, request.turn if request.purpose == "turn" else -request.turn)
        attempt = self._attempts[this_turn] = self._attempts.get(this_turn, 0) + 1
        line = self.script.line_for(request, attempt)
        await asyncio.sleep(self._latency)
        match line:
            case Speaks():
                reply = self._reply(line, request)
                await _perform(line, reply.message, publish)
            case Fails(error=error):
                if error.partial:
                    publish(TextDelta(error.partial))
                raise copy.copy(error)  # one error may be raised to many runs, and each adds its own traceback
            case Hangs(pieces=pieces):
                for piece in pieces:
                    publish(TextDelta(piece))
                await _silence()
            case _:
                assert_never(line)
        if self._log is not None and request.purpose == "turn":
            _append(self._log, f"{asked.path}\t{asked.turn}\n")
        return reply

    def _reply(self, line: Speaks, request: Request) -> Reply:
        text, stop = line.text, line.stop or ("calls" if line.calls else "end")
        if request.max_output is not None and not line.calls:
            room = max(0, request.max_output * CHARACTERS_PER_TOKEN - len(line.thinking))
            text, stop = (text[:room], "length") if len(text) > room else (text, stop)
        thinking = (Thinking(text=line.thinking),) if line.thinking else ()
        message = AssistantMessage(text=text, calls=line.calls, thinking=thinking)
        usage = _counted(request, message) if line.usage == "counted" else line.usage
        return Reply(
            message=message, usage=usage, cost=self._cost(request.model, usage), stop=stop, model=request.model
        )

    def _cost(self, model: str, usage: Usage | None) -> int | None:
        price = self.price(model)
        return None if price is None or usage is None else usage.input * price[0] + usage.output * price[1]


async def _perform(line: Speaks, message: AssistantMessage, publish: Publish) -> None:
    """Publish a reply as a wire would: thinking, words, calls."""
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
class _Read:
    """How far a run's messages were counted, and the first and last of them."""

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


def _counted(request: Request, said: AssistantMessage) -> Usage:
    """Usage by length. How far a run was counted is kept in its memo, or a long one would be counted over and over."""
    read = request.memo.get("scripted.read")
    if not (isinstance(read, _Read) and read.still_holds(request)):
        read = _Read()
    for index in range(read.messages, len(request.messages)):
        message = request.messages[index]
        read = _Read(index + 1, read.characters + _length(message), read.first or message, message)
    request.memo["scripted.read"] = read
    return Usage(
        input=(len(request.system) + read.characters) // CHARACTERS_PER_TOKEN,
        output=_length(said) // CHARACTERS_PER_TOKEN,
        reasoning=sum(len(thought.text) for thought in said.thinking) // CHARACTERS_PER_TOKEN,
    )


def _length(message: Message) -> int:
    match message:
        case UserMessage(text=text) | ToolMessage(text=text):
            return len(text)
        case AssistantMessage(text=text, calls=made, thinking=thoughts):
            asked = sum(len(call.name) + len(call.arguments) for call in made)
            return len(text) + asked + sum(len(thought.text) for thought in thoughts)
        case _:
            assert_never(message)


async def _silence() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody can end a silence but by cancelling it")


def _append(log: Path, line: str) -> None:
    """Add a line in a single write, so that lines of several processes never mix."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def played(log: Path) -> list[tuple[str, int]]:
    """Path and turn of every answer that was finished, in the order they were, by whichever process."""
    rows = (row.rpartition("\t") for row in log.read_text().split("\n") if row) if log.exists() else ()
    return [(path, int(turn)) for path, _, turn in rows]
