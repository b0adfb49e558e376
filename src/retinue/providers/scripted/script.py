"""Lines for a scripted model: what it says, calls, streams, refuses or leaves unsaid, and who says what when.

Which line comes next is read off the request (agent, task and turn), never off what was asked before. So a new process
that goes on with a run after a crash goes on at the right line, and a thousand runs may share one script.
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

Counted = Literal["counted"]
"""Usage that follows from the length of what was read and said; `None` plays a provider that reports none."""

# ---- lines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaks:
    """A reply: words, calls or both; each of `pieces` is published on its own, `every` so many seconds."""

    pieces: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    usage: Usage | Counted | None = "counted"
    stop: Stop | None = None
    every: float = 0.0

    @property
    def text(self) -> str:
        """All its words."""
        return "".join(self.pieces)

    def __str__(self) -> str:
        words = [f"says {_short(self.text)}"] if self.text or not self.calls else []
        return " and ".join(words + [f"calls {call.name} {_short(call.arguments)}" for call in self.calls])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fails:
    """No reply: the first `times` attempts at this turn fail, and every one of them when there is no `then`."""

    error: ProviderError
    times: int = 1
    then: Line | None = None

    def __str__(self) -> str:
        return f"fails with {_short(str(self.error))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangs:
    """No reply either: after a few words, silence until somebody cancels."""

    pieces: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"hangs after {_short(''.join(self.pieces))}" if self.pieces else "hangs"


Line: TypeAlias = Speaks | Fails | Hangs
"""What the model does when it is asked once."""

Improvised: TypeAlias = Callable[[Request], Line]
"""A line that depends on what was heard; it may raise what it likes, as a bug in a provider would."""


def says(
    text: str, *, thinking: str = "", usage: Usage | Counted | None = "counted", stop: Stop | None = None
) -> Speaks:
    """Words; `stop` plays an answer that ends otherwise than one would think (`"length"`, `"refusal"`).

    >>> says("hello").text
    'hello'
    """
    return Speaks(pieces=(text,) if text else (), thinking=thinking, usage=usage, stop=stop)


def streams(*pieces: str, every: float = 0.0, usage: Usage | Counted | None = "counted") -> Speaks:
    """Words that arrive piece by piece, `every` so many seconds.

    >>> streams("a", "b").text
    'ab'
    """
    return Speaks(pieces=pieces, every=every, usage=usage)


def calls(tool: str, /, **arguments: object) -> Speaks:
    """One call, with these arguments as JSON.

    >>> print(calls("search", query="pool", limit=3))
    calls search '{"query":"pool","limit":3}'
    """
    return calls_verbatim(tool, msgspec.json.encode(arguments).decode())


def calls_verbatim(tool: str, arguments: str) -> Speaks:
    """One call with its arguments letter by letter, which need not be JSON: models write all sorts of things."""
    return Speaks(calls=(ToolCall(name=tool, arguments=arguments),))


def together(*lines: Speaks) -> Speaks:
    """Several lines as one reply: all words, then all calls, in order; usage and stop are those of the last line.

    >>> print(together(says("Let me look."), calls("ls"), calls("ls", path="/")))
    says 'Let me look.' and calls ls '{}' and calls ls '{"path":"/"}'
    """
    if not lines:
        raise BadInput("together() needs at least one line")
    return Speaks(
        pieces=tuple(chain.from_iterable(line.pieces for line in lines)),
        calls=tuple(chain.from_iterable(line.calls for line in lines)),
        thinking="".join(line.thinking for line in lines),
        usage=lines[-1].usage,
        stop=lines[-1].stop,
        every=max(line.every for line in lines),
    )


def fails(error: ProviderError, *, times: int = 1, then: Line | None = None) -> Fails:
    """A failed attempt; what had arrived (`error.partial`) is published first.

    The turn's first `times` attempts fail, the next plays `then`; without `then` they all fail. Attempts are counted in
    this process: a new one, after a crash, meets the failures again.
    """
    if times < 1:
        raise BadInput(f"fails(times={times}): a line that never fails is just its `then`")
    return Fails(error=error, times=times, then=then)


def hangs(*pieces: str) -> Hangs:
    """Silence, perhaps after a few words, until cancelled."""
    return Hangs(pieces=pieces)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


# ---- the script -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """The lines of one agent, or of one agent with one task, and which of them were asked for."""

    agent: str
    task: str | None
    lines: list[Line | Improvised] = field(default_factory=list[Line | Improvised])
    asked: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Turns, each with how many `fails` lines were left behind."""

    def __str__(self) -> str:
        return repr(self.agent) if self.task is None else f"{self.agent!r} with task {_short(self.task)}"

    def line_for(self, request: Request, attempt: int) -> Line:
        """The line of this turn, or what follows its failures."""
        if not 1 <= request.turn <= len(self.lines):
            have = "1 line" if len(self.lines) == 1 else f"{len(self.lines)} lines"
            raise _off_script(f"agent {self} was asked for line {request.turn}; its script has {have}")
        self.asked.add((request.turn, 0))
        line = self.lines[request.turn - 1]
        if not isinstance(line, Speaks | Fails | Hangs):
            line = line(request)
        passed = 0
        while isinstance(line, Fails) and line.then is not None and attempt > line.times:
            attempt, line, passed = attempt - line.times, line.then, passed + 1
            self.asked.add((request.turn, passed))
        return line

    def unasked(self) -> list[str]:
        """The lines nobody asked for, in words."""
        found: list[str] = []
        for turn, line in enumerate(self.lines, start=1):
            if (turn, 0) not in self.asked:
                found.append(f"{self}, line {turn}: {_in_words(line)}")
                continue
            passed = 0
            while isinstance(line, Fails) and line.then is not None:
                line, passed = line.then, passed + 1
                if (turn, passed) not in self.asked:
                    found.append(f"{self}, line {turn}, after its failures: {line}")
                    break
        return found


class Script:
    """Who says what: lines by agent, and where one agent has several tasks, by task.

    >>> script = Script().play("lead", calls("ask", who="dig"), says("thanks")).play("dig", says("42"), task="find it")
    >>> script.unasked()[2]
    "'dig' with task 'find it', line 1: says '42'"
    """

    def __init__(self) -> None:
        self._parts: dict[str, dict[str | None, _Part]] = {}
        self._summaries: dict[str, Line | Improvised] = {}

    def sums_up(self, agent: str, line: Line | Improvised) -> Script:
        """Let `agent` say this whenever it is asked to summarise its own conversation, which is no turn.

        One that has no such line says how many characters there were to summarise.
        """
        self._summaries[agent] = line
        return self

    def play(self, agent: str, *lines: Line | Improvised, task: str | None = None) -> Script:
        """Give `agent` these lines, one for each turn; more of them go on where the last ended.

        With `task`, only runs of that agent play them whose task has this text in it. The longest fitting `task` wins
        over shorter ones, and any of them over lines without.
        """
        part = self._parts.setdefault(agent, {}).setdefault(task, _Part(agent, task))
        part.lines.extend(lines)
        return self

    def unasked(self) -> list[str]:
        """The lines that nobody has asked this script for, in words."""
        return [line for parts in self._parts.values() for part in parts.values() for line in part.unasked()]

    def verify(self) -> None:
        """Complain with an `AssertionError` about lines that nobody asked for."""
        left = self.unasked()
        if left:
            raise AssertionError("\n  ".join(["lines nobody asked for:", *left]))

    def line_for(self, request: Request, attempt: int = 1) -> Line:
        """The line of this agent, task and turn, at the `attempt`-th attempt; a `ProviderError` if there is none."""
        if request.purpose == "summary":
            return self._summary(request)
        return self._part_of(request).line_for(request, attempt)

    def _summary(self, request: Request) -> Line:
        size = sum(len(message.text) for message in request.messages)
        line = self._summaries.get(request.agent) or says(f"(what {size} characters came to)")
        return line if isinstance(line, Speaks | Fails | Hangs) else line(request)

    def _part_of(self, request: Request) -> _Part:
        parts = self._parts.get(request.agent)
        if parts is None:
            known = ", ".join(self._parts) or "(none)"
            raise _off_script(f"agent {request.agent!r} has no script; agents with one: {known}")
        tasks = [task for task in parts if task is not None]
        if tasks:
            opening = _opening(request.messages, request.turn)
            fitting = [task for task in tasks if task in opening]
            if fitting:
                return parts[max(fitting, key=len)]
        if None not in parts:
            known = ", ".join(map(_short, tasks))
            raise _off_script(f"agent {request.agent!r} has no script for this task; it has some for: {known}")
        return parts[None]


def _opening(messages: Sequence[Message], turn: int) -> str:
    """The words that a run began with.

    A fork, or a run that goes on with another's history, sees tasks that were not its own: so we walk back over as many
    replies as this run has made, and from there over the words right before them.
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
        return messages[0].text  # its own beginning is summarised, in words that repeat the task
    return "\n".join(reversed(texts))


def _off_script(reason: str) -> ProviderError:
    return ProviderError(f"scripted model: {reason}", fault="bad_request")


def _in_words(line: Line | Improvised) -> str:
    if isinstance(line, Speaks | Fails | Hangs):
        return str(line)
    return f"whatever {getattr(line, '__qualname__', line)} answers"
