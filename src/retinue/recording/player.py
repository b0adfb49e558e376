"""Play a recording in place of the models and tools of a tree.

A request is found by the path of its run and its turn, and compared with the recorded one. Replies and results of
tools are given out in the recorded order across all runs: each waits until everything that had happened before it has
happened again. So children that work in parallel see the same mail at the same turns.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec

from retinue.app.retinue import Retinue
from retinue.core.agent import ToolSpec
from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.events import CallReturned, Event, ReplyReceived, RunEnded, TurnFailed
from retinue.core.messages import AssistantMessage, Message, Reply, TextDelta, ToolCall, UserMessage
from retinue.core.ports import CallContext, Hooks, Publish, Request, ToolResult, ToolWrapper
from retinue.core.run import Approval
from retinue.core.state import Run
from retinue.dialects import registry
from retinue.recording.file import (
    FactKey,
    MessagesUntil,
    RecordedFact,
    RecordedFailure,
    RecordedModel,
    RecordedReply,
    RecordedRequest,
    RecordedResult,
    RecordedSpec,
    Recording,
    RunMessages,
    Scrubber,
    key_of,
    placeholders,
    rewritten,
    run_placeholder,
    timeless,
)
from retinue.recording.recorder import OPTIONS, surroundings
from retinue.tools.builtin import BUILTIN
from retinue.tools.function import FunctionTool

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds without any fact after which a replay that waits for one is given up."""

MAX_DIFF_LINES = 60

_OTHER_TOOLS = ("mcp__", "mcp_", "acp_")
"""Beginnings of names of tools of MCP servers and agent programs."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ATTEMPTS = re.compile(r" \(\d+ attempts were made; try again later\)$")
_PLACEHOLDER = re.compile(r"<run ([^<>\n]{1,2000})>")


class ReplayDiffers(AssertionError):
    """A tree did something else than its recording; `path` is the run that was first to do so."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class Player:
    """A provider for all models of a recording. `hooks` answer the calls of tools, `approve` the questions to a person.

    With `live_tools`, tools are called, and only models are played.
    """

    def __init__(self, recording: Recording, *, live_tools: bool = False) -> None:
        self.recording = recording
        self.hooks = PlayerHooks(self, live=live_tools)
        self.differences: list[ReplayDiffers] = []
        """What was different; the replay stops at the first difference."""
        self._scrub = Scrubber({})
        self._models = {(each.provider, each.model): each for each in recording.models}
        self._requests: dict[tuple[str, int], tuple[RecordedRequest, MessagesUntil]] = {}
        self._answers: dict[tuple[str, int], RecordedReply | RecordedFailure] = {}
        self._results: dict[tuple[str, int, int], RecordedResult] = {}
        self._read(recording.facts)
        self._order = [key for fact in recording.facts if (key := key_of(fact)) is not None]
        self._place = {key: place for place, key in enumerate(self._order)}
        self._done: set[FactKey] = set()
        self._next = 0
        """The place of the first fact that has not happened."""
        self._waiting: dict[FactKey, asyncio.Future[None]] = {}
        self._failed_attempts: set[tuple[str, int]] = set()
        self._retinue: Retinue | None = None
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}

    def _read(self, facts: Sequence[RecordedFact]) -> None:
        conversations: defaultdict[str, RunMessages] = defaultdict(RunMessages)
        for fact in facts:
            match fact:
                case RecordedRequest():
                    messages = conversations[fact.run].request(fact.messages, whole=fact.whole)
                    self._requests[fact.run, fact.turn] = (fact, messages)
                case RecordedReply():
                    conversations[fact.run].reply(fact.reply)
                    self._answers[fact.run, fact.turn] = fact
                case RecordedFailure():
                    self._answers[fact.run, fact.turn] = fact
                case RecordedResult():
                    conversations[fact.run].result(fact.call, fact.text, failed=fact.failed)
                    self._results[fact.run, fact.turn, fact.call] = fact
                case _:
                    pass

    def attach(self, retinue: Retinue) -> None:
        """Follow the runs of an open retinue, whose provider this is."""
        self._retinue = retinue
        self._scrub = Scrubber(os.environ)
        self._names = surroundings(retinue.session_id, workspaces_of(retinue))
        retinue.supervisor.on_event(self._observe)

    # ---- prices, as limits need them --------------------------------------------------------------------------------

    def _model(self, model: str) -> RecordedModel | None:
        return next((each for each in self._models.values() if each.model == model), None)

    @property
    def counts_are_exact(self) -> bool:
        return any(each.counts_exactly for each in self._models.values())

    def price(self, model: str) -> tuple[int, int] | None:
        known = self._model(model)
        return None if known is None else known.price

    def cached_price(self, model: str) -> int | None:
        known = self._model(model)
        return None if known is None else known.cached_price

    def window(self, model: str) -> int | None:
        known = self._model(model)
        return None if known is None else known.window

    def longest_reply(self, model: str) -> int | None:
        known = self._model(model)
        return None if known is None else known.longest_reply

    # ---- playing ----------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, publish: Publish) -> Reply:
        place = (request.path, request.turn)
        if self.differences:
            raise self._refusal(f"the replay stopped at the first difference, in {self.differences[0].path}")
        if place not in self._requests or request.purpose == "summary":
            what = "a summary of the history" if request.purpose == "summary" else f"turn {request.turn}"
            text = f"{request.path} asks a model for {what}, which the recording does not have"
            raise self._differ(request.path, text)
        if ("reply", *place, 0) in self._done:
            text = f"{request.path} asks a model for turn {request.turn}, which was played before: it is another run"
            raise self._differ(request.path, text)
        self._learn(request.path, request.run_id)
        if difference := self._difference(request):
            text = f"the request of {request.path}, turn {request.turn}, differs from the recording:\n{difference}"
            raise self._differ(request.path, text)
        self._happened(("request", *place, 0))
        answer = self._answers[place]
        await self._turn_of(("reply", *place, 0), request.path)
        if isinstance(answer, RecordedFailure):
            raise self._failure(answer)
        if answer.failed.total and place not in self._failed_attempts:
            self._failed_attempts.add(place)
            raise ProviderError(
                "a failed attempt of the recording",
                fault="overloaded",
                retry_after=0.0,
                usage=answer.failed,
                cost=answer.failed_cost,
            )
        reply = self._as_now(answer.reply, Reply)
        if reply.message.text:
            publish(TextDelta(reply.message.text))
        return reply

    def _failure(self, recorded: RecordedFailure) -> ProviderError:
        """The recorded failure; one that is tried again waits for nothing, and says in the end how often it was."""
        return ProviderError(
            _ATTEMPTS.sub("", self._now(recorded.error)),
            fault=cast("ProviderFault", recorded.fault),
            retry_after=0.0,
            partial=self._now(recorded.partial),
            usage=recorded.usage,
            cost=recorded.cost,
        )

    async def result(self, call: ToolCall, context: CallContext) -> ToolResult | None:
        """The recorded result of a tool call; None for one that is made, which only a tool that can start runs is."""
        recorded = self._results.get((context.path, context.turn, context.index))
        if (recorded is None or recorded.live) and self._can_start_runs(call.name, context):
            return None
        if self.differences:
            return ToolResult("The replay stopped at the first difference.", failed=True)
        if recorded is None:  # it was cancelled, which happens again in a moment
            await asyncio.sleep(PATIENCE)
            return ToolResult("The recording has no result of this call.", failed=True)
        await self._turn_of(("result", context.path, context.turn, context.index), context.path)
        return ToolResult(self._now(recorded.text), failed=recorded.failed, refused=recorded.refused)

    def _can_start_runs(self, name: str, context: CallContext) -> bool:
        """Whether a tool of this process can start or hand over runs.

        The recording alone does not decide it: its replies say what is called with which arguments, and its results
        which calls a person approved. So no program, file or address is reached because a recording says so.
        """
        if name in registry.tool_names():
            return True
        if name in BUILTIN or name.startswith(_OTHER_TOOLS) or self._retinue is None:
            return False
        live = self._retinue.supervisor.live(context.run_id)
        dialects = () if live is None else live.run.run_spec.dialects
        tool = self._retinue.supervisor.find_tool(name, dialects)
        while isinstance(tool, ToolWrapper):
            tool = tool.tool
        return not isinstance(tool, FunctionTool) or tool.takes_context

    def approve(self, question: Approval) -> bool:
        """The recorded answer to a question: whether the call was made."""
        recorded = self._results.get((question.path, question.turn, question.index))
        return recorded is not None and recorded.refused != "approval"

    # ---- the order of facts -----------------------------------------------------------------------------------------

    def _observe(self, run: Run, event: Event) -> None:
        path = run.accepted.path
        self._learn(path, run.run_id)
        match event:
            case TurnFailed(fault="stopped"):
                pass
            case ReplyReceived(turn=turn) | TurnFailed(turn=turn):
                self._happened(("reply", path, turn, 0))
            case CallReturned(turn=turn, index=index):
                self._happened(("result", path, turn, index))
            case RunEnded():
                self._happened(("end", path, 0, 0))
            case _:
                pass

    def _happened(self, key: FactKey) -> None:
        self._done.add(key)
        while self._next < len(self._order) and self._order[self._next] in self._done:
            self._next += 1
        waiter = self._waiting.get(self._order[self._next]) if self._next < len(self._order) else None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _turn_of(self, key: FactKey, path: str) -> None:
        """Wait until everything that was recorded before this fact has happened."""
        place = self._place[key]
        while self._next < place:
            seen = len(self._done)
            waiter = self._waiting[key] = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(waiter, PATIENCE)
            except TimeoutError:
                if len(self._done) == seen:
                    missing = _words(self._order[self._next])
                    text = f"{missing} is recorded before {_words(key)}, and did not happen"
                    raise self._differ(self._order[self._next][1], text) from None
            finally:
                del self._waiting[key]
            if self.differences:
                raise self._refusal(f"the replay stopped at the first difference, in {self.differences[0].path}")

    def verify(self) -> None:
        """Raise `ReplayDiffers` for the first difference, or if not everything was played."""
        if self.differences:
            raise self.differences[0]
        if self._next < len(self._order):
            key = self._order[self._next]
            raise ReplayDiffers(key[1], f"{_words(key)} is recorded, and did not happen")

    def _differ(self, path: str, text: str) -> ProviderError:
        self.differences.append(ReplayDiffers(path, text))
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_result(None)
        return self._refusal(text)

    @staticmethod
    def _refusal(text: str) -> ProviderError:
        return ProviderError(text, fault="bad_request")

    # ---- texts of the recording and of this process -----------------------------------------------------------------

    def _learn(self, path: str, run_id: str) -> None:
        if path not in self._ids:
            self._ids[path] = run_id
            self._names[run_id] = run_placeholder(path)

    def _recorded(self, text: str) -> str:
        """A text of this process as a recording would have it."""
        if self._retinue is not None:
            for run_id in _UUID.findall(text):
                live = self._retinue.supervisor.live(run_id) if run_id not in self._names else None
                if live is not None:
                    self._learn(live.run.accepted.path, run_id)
        return timeless(self._scrub.text(placeholders(self._names)(text)))

    def _now(self, text: str) -> str:
        """A recorded text with the ids of this process."""
        return _PLACEHOLDER.sub(lambda found: self._ids.get(found[1], found[0]), text) if "<run " in text else text

    def _as_now(self, value: T, kind: type[T]) -> T:
        return msgspec.convert(rewritten(msgspec.to_builtins(value), self._now), kind)

    # ---- differences ------------------------------------------------------------------------------------------------

    def _difference(self, request: Request) -> str:
        """How a request differs from the recorded one; empty if it does not."""
        recorded, messages = self._requests[request.path, request.turn]
        spec = self.recording.spec(recorded.spec)
        system = spec.system if recorded.system is None else recorded.system
        parts = (
            _diff("model", spec.model, request.model),
            self._options(spec, request),
            _diff("system prompt", timeless(system), self._recorded(request.system)),
            self._tools(spec, request),
            self._messages(messages.all(), request.messages),
        )
        lines = "\n".join(part for part in parts if part).splitlines()
        more = len(lines) - MAX_DIFF_LINES
        return "\n".join([*lines[:MAX_DIFF_LINES], *([f"... and {more} more lines"] if more > 0 else [])])

    def _options(self, spec: RecordedSpec, request: Request) -> str:
        if request.max_output is not None and "max_output" not in spec.options:
            names = [name for name in OPTIONS if name != "max_output"]  # what a limit left
        else:
            names = list(OPTIONS)
        now = {name: value for name in names if (value := getattr(request, name)) not in (None, False)}
        then = {name: value for name, value in spec.options.items() if name in names}
        return _diff("options", _json(then), _json(now))

    def _tools(self, spec: RecordedSpec, request: Request) -> str:
        if spec.tools is None or not request.tools:
            return ""
        then, now = ([_tool(tool) for tool in tools] for tools in (spec.tools, request.tools))
        return _diff("tools", timeless("\n".join(then)), self._recorded("\n".join(now)))

    def _messages(self, recorded: Sequence[Message], now: Sequence[Message]) -> str:
        then_texts = [timeless(_message(message)) for message in recorded]
        now_texts = [self._recorded(_message(message)) for message in now]
        for number, (then, text) in enumerate(zip(then_texts, now_texts, strict=False), 1):
            if then != text:
                return _diff(f"message {number} of {len(now)}", then, text)
        if len(then_texts) != len(now_texts):
            count = min(len(then_texts), len(now_texts))
            then, text = "\n".join(then_texts[count:]), "\n".join(now_texts[count:])
            return _diff(f"messages after the first {count}", then, text)
        return ""


class PlayerHooks(Hooks):
    """Answers calls of tools from a recording."""

    def __init__(self, player: Player, *, live: bool) -> None:
        self._player = player
        self._live = live

    async def before_tool(self, call: ToolCall, context: CallContext) -> ToolResult | None:
        return None if self._live else await self._player.result(call, context)


def workspaces_of(retinue: Retinue) -> list[str]:
    """The folders in which runs of this retinue work."""
    return [os.getcwd(), *(agent.workspace for agent in retinue.agents.values() if agent.workspace)]


def _words(key: FactKey) -> str:
    kind, path, turn, call = key
    match kind:
        case "request":
            return f"the request of {path}, turn {turn}"
        case "reply":
            return f"the reply to {path}, turn {turn}"
        case "result":
            return f"the result of call {call} of {path}, turn {turn}"
        case "end":
            return f"the end of {path}"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2).decode()


def _tool(tool: ToolSpec) -> str:
    parameters = msgspec.json.decode(tool.parameters)
    return f"{tool.name}: {tool.description}\n{_json(parameters)}"


def _message(message: Message) -> str:
    """A message as text; ids of calls are the vendor's and not compared."""
    match message:
        case UserMessage(text=text, origin=origin):
            extra = "".join(f"\n[{type(each).__name__} {each.media_type}]" for each in message.attachments)
            return f"{origin}: {text}{extra}"
        case AssistantMessage(text=text, calls=calls):
            return "\n".join([f"model: {text}", *(f"call {call.name} {call.understood}" for call in calls)])
        case _:
            return f"result of {message.name}{' (failed)' if message.failed else ''}: {message.text}"


def _diff(what: str, recorded: str, now: str) -> str:
    if recorded == now:
        return ""
    lines = difflib.unified_diff(
        recorded.splitlines(), now.splitlines(), f"{what} (recorded)", f"{what} (now)", lineterm="", n=2
    )
    return "\n".join(lines)
