"""Scripts for scripted models (replies, tool calls, failures, silence), and the provider that plays them.

The next line follows from the request (agent, task and turn), never from earlier requests. So a process that resumes a
run after a crash continues at the right line, and a thousand runs may share one script.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias, assert_never

import msgspec

from retinue.core import messages
from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import Reply, Stop, ToolCall
from retinue.core.ports import Publish, Request
from retinue.core.usage import Usage

CountedUsage = Literal["counted"]
"""Usage computed from the lengths of request and reply; `None` plays a provider that reports none."""

# ---- lines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """A reply: text, calls or both; `pieces` are published one by one, `every` so many seconds."""

    pieces: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    usage: Usage | CountedUsage | None = "counted"
    stop: Stop | None = None
    every: float = 0.0

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def __str__(self) -> str:
        text = [f"says {_short(self.text)}"] if self.text or not self.calls else []
        return " and ".join(text + [f"calls {call.name} {_short(call.arguments)}" for call in self.calls])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedFailure:
    """A failure: the first `times` attempts at this turn fail, or all of them if there is no `then`."""

    error: ProviderError
    times: int = 1
    then: Line | None = None

    def __str__(self) -> str:
        return f"fails with {_short(str(self.error))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedHang:
    """A reply that never ends: some text, then silence until the request is cancelled."""

    pieces: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"hangs after {_short(''.join(self.pieces))}" if self.pieces else "hangs"


Line: TypeAlias = ScriptedReply | ScriptedFailure | ScriptedHang
"""What the model does in one turn."""

LineFunction: TypeAlias = Callable[[Request], Line]
"""A line that depends on the request; it may raise any exception, as a bug in a provider would."""


def says(
    text: str, *, thinking: str = "", usage: Usage | CountedUsage | None = "counted", stop: Stop | None = None
) -> ScriptedReply:
    """A reply with text; `stop` sets why it ended (`"length"`, `"refusal"`).

    >>> says("hello").text
    'hello'
    """
    return ScriptedReply(pieces=(text,) if text else (), thinking=thinking, usage=usage, stop=stop)


def streams(*pieces: str, every: float = 0.0, usage: Usage | CountedUsage | None = "counted") -> ScriptedReply:
    """A reply whose text arrives piece by piece, `every` so many seconds.

    >>> streams("a", "b").text
    'ab'
    """
    return ScriptedReply(pieces=pieces, every=every, usage=usage)


def calls(tool: str, /, **arguments: object) -> ScriptedReply:
    """A reply with one tool call; its arguments are sent as JSON.

    >>> print(calls("search", query="pool", limit=3))
    calls search '{"query":"pool","limit":3}'
    """
    return calls_verbatim(tool, msgspec.json.encode(arguments).decode())


def calls_verbatim(tool: str, arguments: str) -> ScriptedReply:
    """A reply with one tool call whose arguments are sent unchanged; they need not be JSON."""
    return ScriptedReply(calls=(ToolCall(name=tool, arguments=arguments),))


def together(*lines: ScriptedReply) -> ScriptedReply:
    """Several lines as one reply: all text, then all calls, in order; usage and stop are those of the last line.

    >>> print(together(says("Let me look."), calls("ls"), calls("ls", path="/")))
    says 'Let me look.' and calls ls '{}' and calls ls '{"path":"/"}'
    """
    if not lines:
        raise BadInput("together() needs at least one line")
    return ScriptedReply(
        pieces=tuple(chain.from_iterable(line.pieces for line in lines)),
        calls=tuple(chain.from_iterable(line.calls for line in lines)),
        thinking="".join(line.thinking for line in lines),
        usage=lines[-1].usage,
        stop=lines[-1].stop,
        every=max(line.every for line in lines),
    )


def fails(error: ProviderError, *, times: int = 1, then: Line | None = None) -> ScriptedFailure:
    """A failing line; the text in `error.partial` is published first.

    The turn's first `times` attempts fail, the next plays `then`; without `then` they all fail. Attempts are counted
    per process: after a crash, the failures begin again.
    """
    if times < 1:
        raise BadInput(f"fails(times={times}): a line that never fails is just its `then`")
    return ScriptedFailure(error=error, times=times, then=then)


def hangs(*pieces: str) -> ScriptedHang:
    """A line that never ends: the pieces, then silence until the request is cancelled."""
    return ScriptedHang(pieces=pieces)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


# ---- the script -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Role:
    """The lines of one agent, or of one agent with one task, and which of them were played."""

    agent: str
    task: str | None
    lines: list[Line | LineFunction] = field(default_factory=list[Line | LineFunction])
    played: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Turns, each with the number of `fails` lines that were passed."""

    def __str__(self) -> str:
        return repr(self.agent) if self.task is None else f"{self.agent!r} with task {_short(self.task)}"

    def line_for(self, request: Request, attempt: int) -> Line:
        if not 1 <= request.turn <= len(self.lines):
            count = "1 line" if len(self.lines) == 1 else f"{len(self.lines)} lines"
            raise _script_error(f"agent {self} was asked for line {request.turn}; its script has {count}")
        self.played.add((request.turn, 0))
        line, passed = _resolve(self.lines[request.turn - 1], request), 0
        while isinstance(line, ScriptedFailure) and line.then is not None and attempt > line.times:
            attempt, line, passed = attempt - line.times, line.then, passed + 1
            self.played.add((request.turn, passed))
        return line

    def unplayed(self) -> list[str]:
        found: list[str] = []
        for turn, line in enumerate(self.lines, start=1):
            if (turn, 0) not in self.played:
                found.append(f"{self}, line {turn}: {_describe(line)}")
                continue
            passed = 0
            while isinstance(line, ScriptedFailure) and line.then is not None:
                line, passed = line.then, passed + 1
                if (turn, passed) not in self.played:
                    found.append(f"{self}, line {turn}, after its failures: {line}")
                    break
        return found


class Script:
    """Lines by agent, and where one agent has several tasks, by task.

    >>> script = Script().play("lead", calls("ask", who="dig"), says("thanks")).play("dig", says("42"), task="find it")
    >>> script.unplayed()[2]
    "'dig' with task 'find it', line 1: says '42'"
    """

    def __init__(self) -> None:
        self._roles: dict[str, dict[str | None, _Role]] = {}
        self._summaries: dict[str, Line | LineFunction] = {}

    def sums_up(self, agent: str, line: Line | LineFunction) -> Script:
        """Set the line that `agent` plays when it is asked to summarise its conversation, which is no turn.

        Without one, the reply names the length of what was to be summarised. Returns the script.
        """
        self._summaries[agent] = line
        return self

    def play(self, agent: str, *lines: Line | LineFunction, task: str | None = None) -> Script:
        """Give `agent` these lines, one for each turn; further calls append to them. Returns the script.

        With `task`, the lines are for runs of that agent whose task contains this text. The longest matching `task`
        wins over shorter ones, and any of them over lines without.
        """
        role = self._roles.setdefault(agent, {}).setdefault(task, _Role(agent, task))
        role.lines.extend(lines)
        return self

    def unplayed(self) -> list[str]:
        """Descriptions of the lines that were never requested."""
        return [line for roles in self._roles.values() for role in roles.values() for line in role.unplayed()]

    def verify(self) -> None:
        """Raise `AssertionError` if there are lines that were never requested."""
        unplayed = self.unplayed()
        if unplayed:
            raise AssertionError("\n  ".join(["lines that were never requested:", *unplayed]))

    def line_for(self, request: Request, attempt: int = 1) -> Line:
        """The line of this agent, task, turn and attempt; raises `ProviderError` if there is none."""
        if request.purpose == "summary":
            return self._summary(request)
        return self._role_of(request).line_for(request, attempt)

    def _summary(self, request: Request) -> Line:
        size = sum(len(message.text) for message in request.messages)
        line = self._summaries.get(request.agent) or says(f"(what {size} characters came to)")
        return _resolve(line, request)

    def _role_of(self, request: Request) -> _Role:
        roles = self._roles.get(request.agent)
        if roles is None:
            known = ", ".join(self._roles) or "(none)"
            raise _script_error(f"agent {request.agent!r} has no script; agents with one: {known}")
        tasks = [task for task in roles if task is not None]
        if tasks:
            opening = _task_text(request.messages, request.turn)
            matching = [task for task in tasks if task in opening]
            if matching:
                return roles[max(matching, key=len)]
        if None not in roles:
            known = ", ".join(map(_short, tasks))
            raise _script_error(f"agent {request.agent!r} has no script for this task; it has some for: {known}")
        return roles[None]


def _task_text(history: Sequence[messages.Message], turn: int) -> str:
    """The user messages that a run began with.

    A fork, or a run that continues another's history, has tasks of other runs in its messages: so this walks back over
    as many replies as the run has made, and from there over the user messages right before them.
    """
    end = len(history)
    for _ in range(turn - 1):
        end -= 1
        while end > 0 and not isinstance(history[end], messages.AssistantMessage):
            end -= 1
    texts: list[str] = []
    for index in range(end - 1, -1, -1):
        match history[index]:
            case messages.UserMessage(text=text):
                texts.append(text)
            case _ if texts:
                break
            case _:
                pass
    if not texts and history:
        return history[0].text  # the beginning was summarised, in a text that repeats the task
    return "\n".join(reversed(texts))


def _script_error(reason: str) -> ProviderError:
    return ProviderError(f"scripted model: {reason}", fault="bad_request")


def _resolve(line: Line | LineFunction, request: Request) -> Line:
    return line if isinstance(line, ScriptedReply | ScriptedFailure | ScriptedHang) else line(request)


def _describe(line: Line | LineFunction) -> str:
    if isinstance(line, ScriptedReply | ScriptedFailure | ScriptedHang):
        return str(line)
    return f"whatever {getattr(line, '__qualname__', line)} returns"


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
    the request's `max_output` is cut there, as vendors do. Limits charge exactly the usage of the lines.

    >>> from retinue.messages import UserMessage
    >>> provider = ScriptedProvider(Script().play("lead", says("hello")))
    >>> request = Request(model="m", system="Be kind.", messages=[UserMessage("hi there")], agent="lead", path="lead")
    >>> reply = asyncio.run(provider.answer(request, print))
    TextDelta(text='hello')
    >>> reply.message.text, reply.usage
    ('hello', Usage(input=4, output=1))
    >>> provider.asked
    [AskedTurn(path='lead', agent='lead', turn=1)]
    """

    counts_are_exact = True
    server_tools = ("web_search", "web_fetch", "code_execution", "file_search", "mcp")

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
        return self._prices.get(model)

    def window(self, model: str) -> int | None:
        return self._windows.get(model)

    async def answer(self, request: Request, publish: Publish) -> Reply:
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
                    publish(messages.TextDelta(error.partial))
                raise copy.copy(error)  # one error may be raised in many runs, and each adds its own traceback
            case ScriptedHang(pieces=pieces):
                for piece in pieces:
                    publish(messages.TextDelta(piece))
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
        thinking = (messages.Thinking(text=line.thinking),) if line.thinking else ()
        message = messages.AssistantMessage(text=text, calls=line.calls, thinking=thinking)
        usage = _count_usage(request, message) if line.usage == "counted" else line.usage
        return Reply(
            message=message, usage=usage, cost=self._cost(request.model, usage), stop=stop, model=request.model
        )

    def _cost(self, model: str, usage: Usage | None) -> int | None:
        price = self.price(model)
        return None if price is None or usage is None else usage.input * price[0] + usage.output * price[1]


async def _publish_reply(line: ScriptedReply, message: messages.AssistantMessage, publish: Publish) -> None:
    """Publish a reply as a wire would: thinking, text, calls."""
    if line.thinking:
        publish(messages.ThinkingDelta(line.thinking))
    left = len(message.text)
    for number, piece in enumerate(line.pieces):
        if number:
            await asyncio.sleep(line.every)
        if piece[:left]:
            publish(messages.TextDelta(piece[:left]))
        left -= len(piece[:left])
    for index, call in enumerate(message.calls):
        publish(messages.CallDelta(index, call.name, call.arguments))


@dataclass(frozen=True, slots=True)
class _Counted:
    """How many of a run's messages were counted, and the first and last of them."""

    count: int = 0
    characters: int = 0
    first: messages.Message | None = None
    last: messages.Message | None = None

    def still_holds(self, request: Request) -> bool:
        """Whether these are still the run's first messages; a summary may have taken their place."""
        history = request.messages
        return 0 < self.count <= len(history) and history[0] is self.first and history[self.count - 1] is self.last


def _count_usage(request: Request, reply: messages.AssistantMessage) -> Usage:
    """Usage by length. The count so far is kept in the run's memo, or a long run would be counted over and over."""
    counted = request.memo.get("scripted.counted")
    if not (isinstance(counted, _Counted) and counted.still_holds(request)):
        counted = _Counted()
    for index in range(counted.count, len(request.messages)):
        message = request.messages[index]
        counted = _Counted(index + 1, counted.characters + _length(message), counted.first or message, message)
    request.memo["scripted.counted"] = counted
    return Usage(
        input=(len(request.system) + counted.characters) // CHARACTERS_PER_TOKEN,
        output=_length(reply) // CHARACTERS_PER_TOKEN,
        reasoning=sum(len(block.text) for block in reply.thinking) // CHARACTERS_PER_TOKEN,
    )


def _length(message: messages.Message) -> int:
    match message:
        case messages.UserMessage(text=text) | messages.ToolMessage(text=text):
            return len(text)
        case messages.AssistantMessage(text=text, calls=calls, thinking=thinking):
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
