"""One agent program at work for one run: its process, its session, and what it has said since the last reply."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import IO, Any, cast

from retinue.core.errors import ProviderError, ToolError
from retinue.core.ids import RunId
from retinue.core.messages import Delta, Stop, TextDelta, ThinkingDelta
from retinue.core.text import clean_line
from retinue.core.usage import NANO, Usage
from retinue.net.json_rpc import ENDED, METHOD_NOT_FOUND, ConnectionGone, JsonRpcPeer, RpcError
from retinue.providers.acp.agent_calls import MAX_ID, AgentCall, content_text
from retinue.providers.acp.program import AgentProgram, AgentPrograms
from retinue.version import __version__

PROTOCOL_VERSION = 1

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of one message."""

MAX_TEXT = 4_000_000
"""Characters that an agent may write in one reply."""

MAX_OPEN_CALLS = 256
"""Tool calls that an agent may have begun and not finished."""

START_SECONDS = 120.0
"""Time to answer `initialize`, and to open a session."""

CANCEL_SECONDS = 2.0
"""Time to end a turn that was cancelled, before the program is killed."""

KEPT_ERRORS = 500

AUTH_REQUIRED = -32000

STOPS: Mapping[str, Stop] = {
    "end_turn": "end",
    "max_tokens": "length",
    "max_turn_requests": "length",
    "refusal": "refusal",
    "cancelled": "end",
}


class AgentLost(Exception):
    """The program is gone, or has broken the rules so that it was ended; the text says why."""


class AgentSession:
    """A running agent program with one session. Used by one task at a time, the model call of its run."""

    def __init__(self, name: str, program: AgentProgram, run_id: RunId, programs: AgentPrograms) -> None:
        self.name = name
        self.run_id = run_id
        self.session_id = ""
        self.sent = 0
        """How many messages of the run's history the agent was sent."""
        self._pieces: deque[tuple[str, list[AgentCall]]] = deque()
        """What the agent has written, each text with the calls after it, that no reply of the run has."""
        self._text: list[str] = []
        """What it has written since the last of them."""
        self._last_text = ""
        """The last text of the turn that a reply has."""
        self.publish: Callable[[Delta], None] | None = None
        """Receives what the agent writes, while a model call waits."""
        self.calls: dict[str, AgentCall] = {}
        """The calls that the run has not recorded with a result yet, by the agent's ids."""
        self.recorded: set[str] = set()
        """The ids of those that it has; what the agent says about them later is not recorded."""
        self.in_turn = False
        """Whether a turn has begun whose last reply the run does not have yet."""
        self.stop: Stop | None = None
        """Why the turn ended; None while one is in progress, or before the first."""
        self.usage: Usage | None = None
        """What the agent counted for the last turn."""
        self.cost: int | None = None
        """What the session has cost, in nanodollars; None if the agent does not say."""
        self.charged = 0
        """What replies of the run have of that."""
        self.can_load = False
        self.takes_images = False
        self.takes_resources = False
        self._program = program
        self._programs = programs
        self._peer: JsonRpcPeer | None = None
        self._opened: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._turn: asyncio.Task[None] | None = None
        self._is_cancelled = False
        """Whether the turn in progress was cancelled."""
        self._error: Exception | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._size = 0
        self._replays = False
        """Whether the messages that arrive are those of an earlier time, which the agent repeats."""
        self._models: frozenset[str] = frozenset()
        self._model_option = ""

    # Life

    async def start(self) -> None:
        """Start the program and greet it; raises `AgentLost` or `ProviderError`."""
        loop = asyncio.get_running_loop()
        self._opened = loop.create_future()
        self._task = loop.create_task(self._live(), name=f"retinue-acp-{self.name}")
        await self._within(START_SECONDS, asyncio.shield(self._opened))
        answer = await self._ask(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                # Nothing is offered: files and programs of the agent are its own, under the eyes of its sandbox.
                "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
                "clientInfo": {"name": "retinue", "title": "Retinue", "version": __version__},
            },
            START_SECONDS,
        )
        if answer.get("protocolVersion") != PROTOCOL_VERSION:
            raise ProviderError(
                f"{self.name} speaks version {clean_line(str(answer.get('protocolVersion')))[:40]} of the Agent Client "
                f"Protocol, and retinue version {PROTOCOL_VERSION}",
                fault="bad_request",
            )
        abilities = _table(answer, "agentCapabilities")
        takes = _table(abilities, "promptCapabilities")
        self.can_load = abilities.get("loadSession") is True
        self.takes_images = takes.get("image") is True
        self.takes_resources = takes.get("embeddedContext") is True

    async def _live(self) -> None:
        reason = "it ended"
        try:
            ended = await self._programs.run(self._program, self.run_id, self._talk)
            said = clean_line(ended.stderr.decode("utf-8", "replace")).strip()
            reason = ended.killed_for or (f"it ended; it said: {said[-KEPT_ERRORS:]}" if said else "it ended")
        except ToolError as error:
            reason = str(error)
        finally:
            self._lose(AgentLost(reason))

    async def _talk(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_MESSAGE)
        reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdout)
        idle = asyncio.StreamReader()
        writing, protocol = await loop.connect_write_pipe(lambda: asyncio.StreamReaderProtocol(idle), stdin)
        writer = asyncio.StreamWriter(writing, protocol, None, loop)
        self._peer = JsonRpcPeer(self, lambda line: writer.write(line + b"\n"), writer.drain)
        assert self._opened is not None
        if not self._opened.done():
            self._opened.set_result(None)
        try:
            await self._peer.serve(_lines(reader))
            if self._peer.gone_because != ENDED:
                self._lose(AgentLost(self._peer.gone_because))
        except ValueError:
            self._lose(AgentLost(f"it sent a message of more than {MAX_MESSAGE} bytes"))
        except OSError:
            pass  # a pipe broke: the program ends, and its end says why
        finally:
            reading.close()
            writing.abort()

    def _lose(self, error: Exception) -> None:
        """Note why the program cannot be used any more; the first reason counts."""
        self._error = self._error or error
        if self._peer is not None:
            self._peer.give_up(str(self._error))
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        for call in self.calls.values():
            if call.permission is not None and not call.permission.done():
                call.permission.set_result(None)
        self.wake()

    @property
    def lost(self) -> str:
        """Why the program is gone; empty while it is at work."""
        return "" if self._error is None else str(self._error)

    async def close(self) -> None:
        """Cancel the turn, give the agent a moment to end it, and kill the program with all its processes."""
        if self.is_working and not self.lost:
            self.cancel_turn()
            turn = self._turn
            assert turn is not None
            await asyncio.wait((turn,), timeout=CANCEL_SECONDS)
        self._lose(AgentLost("it was stopped"))
        tasks = [task for task in (self._turn, self._task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The session

    async def open(self, model: str) -> None:
        """Open a new session in the folder of the run."""
        answer = await self._ask("session/new", self._place(), START_SECONDS)
        session_id = answer.get("sessionId")
        if not isinstance(session_id, str) or not 0 < len(session_id) <= 1000:
            raise ProviderError(f"{self.name} opened a session without a usable id")
        self.session_id = session_id
        await self._choose(model, answer)

    async def load(self, session_id: str, model: str) -> None:
        """Continue a session of an earlier program; what the agent repeats of it is not recorded again.

        Raises `ProviderError` if the agent does not have the session any more.
        """
        self.session_id, self._replays = session_id, True
        try:
            answer = await self._ask("session/load", {"sessionId": session_id, **self._place()}, START_SECONDS)
        except ProviderError as error:
            if error.fault == "auth":
                raise
            where = f"interrupted: {self.name} was in the middle of its work"
            raise ProviderError(f"{where}, and its session could not be continued: {error}") from error
        finally:
            self._replays = False
        await self._choose(model, answer)

    def _place(self) -> dict[str, object]:
        return {"cwd": self._programs.workspace(self.run_id), "mcpServers": []}

    async def _choose(self, model: str, answer: Mapping[str, Any]) -> None:
        """Let the agent use a model, if one was named; raises `ProviderError` with those that it has."""
        if model in ("", "default"):
            return
        options = [each for each in _tables(answer, "configOptions") if each.get("category") == "model"]
        for option in options:
            known = [each.get("value") for each in _flat(_tables(option, "options"))]
            if model in known:
                params = {"sessionId": self.session_id, "configId": option.get("id"), "value": model}
                await self._ask("session/set_config_option", params, START_SECONDS)
                return
        listed = [each.get("modelId") for each in _tables(_table(answer, "models"), "availableModels")]
        if model in listed:
            await self._ask("session/set_model", {"sessionId": self.session_id, "modelId": model}, START_SECONDS)
            return
        found = [*(each.get("value") for option in options for each in _flat(_tables(option, "options"))), *listed]
        names = ", ".join(clean_line(name)[:100] for name in found[:50] if isinstance(name, str))
        raise ProviderError(
            f"{self.name} has no model {model!r}; it has: {names or 'no choice of models'}. "
            "`default` is the model that the agent chooses itself",
            fault="bad_request",
        )

    # Turns

    @property
    def is_working(self) -> bool:
        """Whether a turn is in progress."""
        return self._turn is not None and not self._turn.done()

    def prompt(self, blocks: Sequence[Mapping[str, object]]) -> None:
        """Begin a turn."""
        self.stop = self.usage = None
        self.in_turn = True
        self._last_text = ""
        self._is_cancelled = False
        self._turn = asyncio.get_running_loop().create_task(self._prompt(blocks), name=f"retinue-acp-{self.name}-turn")

    async def _prompt(self, blocks: Sequence[Mapping[str, object]]) -> None:
        try:
            answer = await self._ask("session/prompt", {"sessionId": self.session_id, "prompt": blocks})
            reason = answer.get("stopReason")
            self.usage = _usage(answer)
            self.stop = STOPS.get(reason, "end") if isinstance(reason, str) else "end"
        except (ProviderError, AgentLost) as error:
            self._error = self._error or error
        finally:
            self.wake()

    def cancel_turn(self) -> None:
        """Ask the agent to end its turn; its questions are answered with cancelled."""
        self._is_cancelled = True
        if self._peer is not None:
            self._peer.notify("session/cancel", {"sessionId": self.session_id})
        for call in self.calls.values():
            if call.permission is not None and not call.permission.done():
                call.permission.set_result(None)

    async def end_turn(self) -> None:
        """Cancel the turn and wait for its end; raises `AgentLost` if the agent goes on."""
        self.cancel_turn()
        turn = self._turn
        if turn is not None:
            await asyncio.wait((turn,), timeout=CANCEL_SECONDS)
            if not turn.done():
                self._lose(AgentLost("it did not end its turn when it was cancelled"))
        self.check()
        self.forget_calls()

    def forget_calls(self) -> None:
        """Record nothing more of the calls of a turn that has ended."""
        self.calls.clear()
        self.recorded.clear()
        self._pieces.clear()
        self.take_text()

    def finish(self, call: AgentCall) -> None:
        """Note that the run has recorded a call with its result."""
        if self.calls.get(call.id) is call:
            del self.calls[call.id]
            self.recorded.add(call.id)

    async def changed(self, seconds: float | None = None) -> bool:
        """Wait until the agent has sent something or is gone; False if nothing happened in so many seconds."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            async with asyncio.timeout(seconds):
                await waiting
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiting)
        return True

    def wake(self) -> None:
        """Let `changed` return."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def check(self) -> None:
        """Raise the error that ended the program or its turn, if one did."""
        if self._error is not None:
            raise self._error

    def take(self) -> tuple[str, list[AgentCall]] | None:
        """The next text with the calls after it, or the last text of a turn that has ended; None if more has to come.

        A turn that ends with calls has no text after them: its answer is the last text before.
        """
        has_ended = self.stop is not None
        if has_ended and (left := [call for call in self.calls.values() if not call.is_queued]):
            for call in left:
                call.is_queued = True
            self._pieces.append(("", left))
        if self._pieces:
            text, calls = self._pieces.popleft()
            self._size -= len(text)
            self._last_text = text or self._last_text
            return text, calls
        return (self.take_text() or self._last_text, []) if has_ended else None

    def take_text(self) -> str:
        """What the agent has written since its last call."""
        text = "".join(self._text)
        self._text.clear()
        self._size -= len(text)
        return text

    def listen(self, publish: Callable[[Delta], None]) -> None:
        """Publish what the agent has written for the next reply, and from now on what it writes for it."""
        for text in [self._pieces[0][0]] if self._pieces else self._text:
            publish(TextDelta(text))
        self.publish = publish

    async def _ask(self, method: str, params: Mapping[str, object], seconds: float | None = None) -> dict[str, Any]:
        """The result of a request; raises `AgentLost`, or `ProviderError` for an error answer."""
        if self._peer is None:
            raise AgentLost(self.lost or "it is not connected")
        try:
            answer = await self._within(seconds, self._peer.request(method, params))
        except ConnectionGone as error:
            # The program has closed its output: what it said at its end is known in a moment.
            if self._task is not None and self._error is None:
                await asyncio.wait((self._task,), timeout=CANCEL_SECONDS)
            raise AgentLost(self.lost or str(error)) from error
        except RpcError as error:
            raise self._refused(method, error) from error
        return cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}

    async def _within(self, seconds: float | None, waiting: Any) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await waiting
        except TimeoutError as error:
            self._lose(AgentLost(f"it did not answer within {seconds:g} s"))
            raise AgentLost(self.lost) from error

    def _refused(self, method: str, error: RpcError) -> ProviderError:
        details = error.data
        if isinstance(details, dict):
            details = cast("dict[str, object]", details).get("details")
        more = f" ({clean_line(details)[:500]})" if isinstance(details, str) else ""
        if error.code == AUTH_REQUIRED:
            return ProviderError(
                f"{self.name} is not logged in: {error}{more}. Log in with its own program, or name the variable of "
                "its key in `env`",
                fault="auth",
            )
        return ProviderError(f"{self.name} answered {method} with an error: {error}{more}")

    # What the agent sends

    async def requested(self, method: str, params: dict[str, Any]) -> object:
        if method != "session/request_permission":
            raise RpcError(METHOD_NOT_FOUND, f"{clean_line(method)[:100]} is not offered")
        fields = _table(params, "toolCall")
        self.recorded.discard(str(fields.get("toolCallId")))
        call = self._call(fields)
        if call is None or params.get("sessionId") != self.session_id or self._is_cancelled:
            return {"outcome": {"outcome": "cancelled"}}
        if call.asks:  # what a person may be deciding on now must not become another call
            return {"outcome": {"outcome": "cancelled"}}
        call.update(fields)
        call.options = _tables(params, "options")[:20]
        call.permission = asyncio.get_running_loop().create_future()
        call.is_reported = call.is_seen = call.is_queued = False
        self._queue(call)
        self.wake()
        chosen = await asyncio.shield(call.permission)
        if chosen is None:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": chosen}}

    def notified(self, method: str, params: dict[str, Any]) -> None:
        if method != "session/update" or params.get("sessionId") != self.session_id or self._replays:
            return
        update = _table(params, "update")
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                self.add_text(content_text(_table(update, "content")))
            case "agent_thought_chunk":
                if self.publish is not None and self.in_turn:
                    self.publish(ThinkingDelta(content_text(_table(update, "content"))))
            case "tool_call" | "tool_call_update" as kind:
                if kind == "tool_call":
                    self.recorded.discard(str(update.get("toolCallId")))  # an id that is used again
                if (call := self._call(update)) is not None:
                    call.update(update)
                    if call.is_finished:
                        self._queue(call)
            case "usage_update":
                cost = _table(update, "cost")
                amount = cost.get("amount")
                if cost.get("currency") == "USD" and isinstance(amount, int | float) and 0 <= amount < 1e9:
                    self.cost = round(amount * NANO)
            case _:
                pass
        self.wake()  # whatever it was, the agent is alive

    def add_text(self, text: str) -> None:
        """Take a piece of what the agent writes."""
        self._size += len(text)
        if self._size > MAX_TEXT:
            self._lose(AgentLost(f"it wrote more than {MAX_TEXT} characters in one reply"))
            return
        if not text:
            return
        if self.publish is not None and not self._pieces:
            self.publish(TextDelta(text))
        self._text.append(text)

    def _call(self, fields: Mapping[str, Any]) -> AgentCall | None:
        """The call that a message is about; None for one without a usable id, or of no turn."""
        id = fields.get("toolCallId")
        if not isinstance(id, str) or not 0 < len(id) <= MAX_ID or not self.is_working:
            return None
        if id in self.recorded:
            return None
        known = self.calls.get(id)
        if known is None:
            if len(self.calls) >= MAX_OPEN_CALLS:
                self._lose(AgentLost(f"it began more than {MAX_OPEN_CALLS} tool calls without finishing them"))
                return None
            known = self.calls[id] = AgentCall(id)
        return known

    def _queue(self, call: AgentCall) -> None:
        """Let a reply of the run have a call with the text before it, unless one has it."""
        if call.is_queued:
            return
        call.is_queued = True
        if self._text or not self._pieces:
            self._pieces.append(("".join(self._text), []))
            self._text.clear()
        self._pieces[-1][1].append(call)


async def _lines(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    while line := await reader.readline():
        yield line


def _table(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _tables(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    values = fields.get(name)
    listed = cast("list[object]", values) if isinstance(values, list) else []
    return [cast("dict[str, Any]", value) for value in listed if isinstance(value, dict)]


def _flat(options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Options with those of groups in their place."""
    return [each for option in options for each in (_tables(option, "options") or [option])]


def _usage(answer: Mapping[str, Any]) -> Usage | None:
    """The usage in the answer to a prompt: the protocol's, or that of Gemini CLI; None if there is none."""
    counted = _table(answer, "usage")
    if counted:
        input, output = _number(counted, "inputTokens"), _number(counted, "outputTokens")
        cached, written = _number(counted, "cachedReadTokens"), _number(counted, "cachedWriteTokens")
        thought, total = _number(counted, "thoughtTokens"), _number(counted, "totalTokens")
        if total > input + output:  # then cached and thought tokens are not among the others
            input, output = input + cached + written, output + thought
        return Usage(input=input, output=output, cached=cached, reasoning=thought, written=written).within_bounds()
    counted = _table(_table(_table(answer, "_meta"), "quota"), "token_count")
    if counted:
        return Usage(input=_number(counted, "input_tokens"), output=_number(counted, "output_tokens")).within_bounds()
    return None


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
