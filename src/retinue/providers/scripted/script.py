"""Scripts for scripted models: lines (replies, tool calls, failures, silence) by agent, task and turn.

The next line follows from the request (agent, task and turn), never from earlier requests. So a process that resumes a
run after a crash continues at the right line, and a thousand runs may share one script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, TypeAlias

import msgspec

from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import AssistantMessage, Message, Stop, ToolCall, UserMessage
from retinue.core.ports import Request
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
        """The whole text."""
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
        """The line of this turn, or what follows its failures."""
        if not 1 <= request.turn <= len(self.lines):
            count = "1 line" if len(self.lines) == 1 else f"{len(self.lines)} lines"
            raise _script_error(f"agent {self} was asked for line {request.turn}; its script has {count}")
        self.played.add((request.turn, 0))
        line = self.lines[request.turn - 1]
        if not isinstance(line, ScriptedReply | ScriptedFailure | ScriptedHang):
            line = line(request)
        passed = 0
        while isinstance(line, ScriptedFailure) and line.then is not None and attempt > line.times:
            attempt, line, passed = attempt - line.times, line.then, passed + 1
            self.played.add((request.turn, passed))
        return line

    def unplayed(self) -> list[str]:
        """Descriptions of the lines that were never requested."""
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
        return line if isinstance(line, ScriptedReply | ScriptedFailure | ScriptedHang) else line(request)

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


def _task_text(messages: Sequence[Message], turn: int) -> str:
    """The user messages that a run began with.

    A fork, or a run that continues another's history, has tasks of other runs in its messages: so this walks back over
    as many replies as the run has made, and from there over the user messages right before them.
    """
    end = len(messages)
    for _ in range(turn - 1):
        end -= 1
        while end > 0 and not isinstance(messages[end], AssistantMessage):
            end -= 1
    texts: list[str] = []
    for index in range(end - 1, -1, -1):
        match messages[index]:
            case UserMessage(text=text):
                texts.append(text)
            case _ if texts:
                break
            case _:
                pass
    if not texts and messages:
        return messages[0].text  # the beginning was summarised, in a text that repeats the task
    return "\n".join(reversed(texts))


def _script_error(reason: str) -> ProviderError:
    return ProviderError(f"scripted model: {reason}", fault="bad_request")


def _describe(line: Line | LineFunction) -> str:
    if isinstance(line, ScriptedReply | ScriptedFailure | ScriptedHang):
        return str(line)
    return f"whatever {getattr(line, '__qualname__', line)} returns"
