"""The provider of runs whose model is an agent program: a turn of the agent becomes turns of the run.

The agent works through a prompt by itself. Each tool call that it finishes, or asks a permission for, ends a reply of
the run, with the text so far; the run records the call like one of its own, decides on it by its policy and its
approvals, and asks for the next reply, for which the agent has gone on meanwhile.

What the agent asked for is made by the agent when the run allows it. What it did without asking is recorded, and if the
policy refuses that, the agent is stopped.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias, assert_never
from urllib.parse import quote

import msgspec
from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.attachments import Attachment, Image, described, text_of
from retinue.core.errors import ProviderError, ToolError
from retinue.core.ids import RunId
from retinue.core.messages import (
    AssistantMessage,
    CallDelta,
    Message,
    Reply,
    StartDelta,
    ToolMessage,
    UserMessage,
)
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, CallRisk, PreparedCall, Publish, Request, Tool, ToolResult
from retinue.core.text import INVISIBLE, NOT_JSON
from retinue.providers.acp.agent_calls import NO_RESULT, AgentCall
from retinue.providers.acp.program import KINDS, PREFIX, AgentProgram, AgentPrograms, SessionRecord
from retinue.providers.acp.session import AgentLost, AgentSession

Blocks: TypeAlias = list[dict[str, object]]
"""The content of a prompt."""

TICK = 10.0
"""Seconds after which a call that is at work counts as a sign of life."""

MAX_RESTARTS = 1
"""How often a program that ends in the middle of a run is started again for that run, in one process."""

CONTINUE = (
    "You were interrupted in the middle of your work. Find out how far you came, then go on with the task, and do not "
    "repeat what is done."
)

HISTORY = "The conversation so far, in which you continue as the assistant:"

READING = ("read", "search", "think")
"""The kinds of calls that change nothing."""

_COMMAND = re.compile(rf"[\s\x00-\x1f{INVISIBLE}]*[/$!#@]")
"""The beginning of a prompt that agents take for a command of their user; some leave out invisible characters first."""


class AcpProvider:
    """Answers with an agent program, one process for each run. `use` says how processes are started."""

    def __init__(self, name: str, program: AgentProgram) -> None:
        self._name = name
        self._program = program
        self._programs: AgentPrograms | None = None
        self._sessions: dict[RunId, AgentSession] = {}
        self._restarts: dict[RunId, int] = {}
        self._stopped: dict[RunId, str] = {}
        """Why the agent of a run must not be asked again."""
        self._closing: set[asyncio.Task[None]] = set()
        self.tools: Mapping[str, Tool] = {PREFIX + kind: AgentProgramTool(kind, self) for kind in KINDS}

    def use(self, programs: AgentPrograms) -> None:
        """Start programs with this."""
        self._programs = programs
        programs.on_end(self._ended)

    def __repr__(self) -> str:
        return f"AcpProvider({self._name!r}, {self._program.command!r})"

    # Replies

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """What the agent says until its next tool call, or until the end of its turn.

        When cancelled, the program is ended: it may be in the middle of a work that cannot be repeated.
        """
        run_id = request.run_id
        if reason := self._stopped.get(run_id):
            raise ProviderError(reason)
        publish(StartDelta())
        try:
            session = await self._session(request)
            return await self._reply(session, request, publish)
        except asyncio.CancelledError:
            self._stop(run_id, f"{self._name} was stopped in the middle of its turn; what it had begun is not repeated")
            raise
        except AgentLost as lost:
            raise self._failure(run_id, lost) from lost
        except ProviderError:
            self._close(run_id)  # its next turn would begin in an unknown state
            raise

    async def _session(self, request: Request) -> AgentSession:
        """The session of the run with a turn in progress: the one at work, a loaded one, or a new one."""
        run_id = request.run_id
        session = self._sessions.get(run_id)
        if session is not None and not session.lost:
            self._settle(session)
            await self._add_messages(session, request)
            return session
        if self._programs is None:
            raise ProviderError(f"{self._name}: agent programs cannot be started here", fault="bad_request")
        self._close(run_id)
        record = await self._programs.record(run_id)
        session = self._sessions[run_id] = AgentSession(self._name, self._program, run_id, self._programs)
        await session.start()
        if record is None:
            await session.open(request.model)
            await self._prompt(session, request, _first_prompt(request, session))
            return session
        if not session.can_load:
            raise ProviderError(
                f"interrupted: {self._name} was in the middle of its work, and cannot continue a session"
            )
        await session.load(record.session, request.model)
        session.cost = session.charged = record.cost
        new = _blocks(request.messages[record.sent :], session)
        resuming = [] if new and _is_finished(request.messages) else [_text(CONTINUE)]
        await self._prompt(session, request, [*resuming, *new])
        return session

    async def _add_messages(self, session: AgentSession, request: Request) -> None:
        """Begin a turn for new messages. In the middle of a turn they wait for its end, those of retinue end it."""
        new = request.messages[session.sent :]
        if session.in_turn:
            if not any(isinstance(each, UserMessage) and each.origin == "engine" for each in new):
                return
            await session.end_turn()
        await self._prompt(session, request, _blocks(new, session) or [_text(CONTINUE)])

    async def _prompt(self, session: AgentSession, request: Request, blocks: Blocks) -> None:
        assert self._programs is not None
        session.sent = len(request.messages)
        record = SessionRecord(session=session.session_id, sent=session.sent, cost=session.cost or 0)
        # Before the agent begins: after a crash the same session goes on, and nothing is done twice.
        await self._programs.store(session.run_id, record)
        session.prompt(blocks)

    def _settle(self, session: AgentSession) -> None:
        """Tell the agent which of its calls were refused; raises `ProviderError` if it did not ask for one of them."""
        for call in [each for each in session.calls.values() if each.is_reported and not each.is_seen]:
            if call.permission is None:
                raise ProviderError(
                    f"{self._name} was stopped: it made a call that it may not make, without asking: {call.title}",
                    fault="refused",
                )
            if not call.permission.done():
                call.permission.set_result(call.option("reject_once") or call.option("reject_always"))
            session.finish(call)

    async def _reply(self, session: AgentSession, request: Request, publish: Publish) -> Reply:
        session.listen(publish)
        try:
            while True:
                session.check()
                if (taken := session.take()) is not None:
                    text, calls = taken
                    new = [] if calls else _blocks(request.messages[session.sent :], session)
                    if not new:
                        return _reply_with(session, text, calls, publish)
                    session.add_text(f"{text}\n\n")
                    await self._prompt(session, request, new)
                if await session.changed(TICK) or session.calls:
                    request.alive()
        finally:
            session.publish = None

    # Calls

    async def perform(self, run_id: RunId, call_id: str) -> ToolResult:
        """Let the agent make a call that it asked for, and return what it reports; or return what it has reported."""
        session = self._sessions.get(run_id)
        call = None if session is None else session.calls.get(call_id)
        if session is None or call is None:
            raise ToolError(f"{self._name} is gone: whether the call was made is not known.")
        call.is_seen = True
        if call.asks:
            assert call.permission is not None
            if (allowed := call.option("allow_once")) is None:
                call.permission.set_result(None)
                session.finish(call)
                raise ToolError(f"{self._name} offers no permission for a single call, so it was given none.")
            call.permission.set_result(allowed)
        try:
            while not (call.is_finished or session.lost or session.stop is not None or _asking(session)):
                await session.changed()
        except asyncio.CancelledError:
            self._stop(run_id, f"{self._name} was stopped while it made a call: {call.title}")
            raise
        if call.is_finished or session.stop is not None:
            session.finish(call)
        elif not session.lost:
            # The agent waits for another answer before it goes on; what it reports of this call comes too late.
            session.finish(call)
            return ToolResult(f"Allowed. {NO_RESULT}")
        return ToolResult(call.result, failed=call.status == "failed" or bool(session.lost))

    # The end of programs

    def _failure(self, run_id: RunId, lost: AgentLost) -> ProviderError:
        """The error for a program that is gone: transient if its session can be loaded by a new one."""
        session = self._sessions.get(run_id)
        if session is None or not session.session_id:
            self._close(run_id)
            return ProviderError(f"{self._name} could not be started: {lost}")
        partial, restarts = session.take_text(), self._restarts.get(run_id, 0)
        self._close(run_id)
        if session.can_load and restarts < MAX_RESTARTS and session.stop is None:
            self._restarts[run_id] = restarts + 1
            return ProviderError(f"{self._name} was lost: {lost}", fault="cut", partial=partial)
        self._stopped[run_id] = reason = f"interrupted: {self._name} was lost in the middle of its work: {lost}"
        return ProviderError(reason, partial=partial)

    def _stop(self, run_id: RunId, reason: str) -> None:
        """End the program of a run, which then is not asked again."""
        self._stopped[run_id] = reason
        self._close(run_id)

    def _ended(self, run_id: RunId) -> None:
        self._stopped.pop(run_id, None)
        self._restarts.pop(run_id, None)
        self._close(run_id)

    def _close(self, run_id: RunId) -> None:
        """End the program of a run in the background; `close` waits for that."""
        if (session := self._sessions.pop(run_id, None)) is not None:
            task = asyncio.get_running_loop().create_task(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all programs."""
        for run_id in tuple(self._sessions):
            self._close(run_id)
        await asyncio.gather(*self._closing, return_exceptions=True)


class AgentProgramTool(Tool):
    """Stands for the tool calls of one kind that an agent program makes; no model is offered it."""

    kind = "once"

    def __init__(self, kind: str, provider: AcpProvider) -> None:
        self.spec = ToolSpec(PREFIX + kind, f"A call of the kind {kind!r} that an agent program makes.")
        self._reads = kind in READING
        self._changes = kind not in (*READING, "fetch")
        self._provider = provider

    def prepare(self, arguments: str) -> PreparedCall:
        """A call that the agent asked for has the risk of its kind. What has happened already is recorded, if the
        policy allows such calls at all.
        """
        try:
            facts = msgspec.json.decode(arguments, type=_Facts)
        except NOT_JSON:
            facts = _Facts()
        risk = Risk.MEDIUM if facts.asks and not self._reads else Risk.LOW
        return PreparedCall(
            arguments,
            CallRisk(risk, acts=self._changes),
            partial(self._run, facts.call),
            # A person may allow the same call once more, and not whatever the agent gives the same title.
            group=arguments.replace(msgspec.json.encode(facts.call).decode(), '""', 1),
        )

    async def _run(self, call_id: str, context: CallContext) -> ToolResult:
        return await self._provider.perform(context.run_id, call_id)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return await self.prepare(arguments).run(context)


class _Facts(Struct):
    call: str = ""
    asks: bool = False


def _asking(session: AgentSession) -> bool:
    """Whether the agent waits for the answer to a question that no reply has yet."""
    return any(call.asks and not call.is_reported for call in session.calls.values())


def _reply_with(session: AgentSession, text: str, calls: Sequence[AgentCall], publish: Publish) -> Reply:
    """A reply of the run. What the agent counted for its turn is in the last reply of it."""
    asked = tuple(call.as_call() for call in calls)
    for index, call in enumerate(asked):
        publish(CallDelta(index, call.name, call.arguments, call.id))
    for call in calls:
        call.is_reported = True
    cost = None if session.cost is None else max(0, session.cost - session.charged)
    session.charged = max(session.charged, session.cost or 0)
    message = AssistantMessage(text=text, calls=asked)
    if calls:
        return Reply(message, usage=None, cost=cost or 0, stop="calls", response_id=session.session_id)
    usage, stop = session.usage, session.stop or "end"
    session.usage = None
    session.in_turn = False
    session.forget_calls()
    return Reply(message, usage=usage, cost=cost, stop=stop, response_id=session.session_id)


# ---- prompts ---------------------------------------------------------------------------------------------------------


def _first_prompt(request: Request, session: AgentSession) -> Blocks:
    """The first prompt of a session: the instructions, the conversation so far if there is one, and the messages."""
    opening = [request.system] if request.system else []
    if request.output is not None:
        opening.append(request.output.in_words)
    messages = request.messages
    own = [index for index, message in enumerate(messages) if not isinstance(message, UserMessage)]
    if own:
        opening.append(HISTORY)
        opening += [_as_text(message) for message in messages[: own[-1] + 1]]
        messages = messages[own[-1] + 1 :]
    blocks = _blocks(messages, session) or ([_text(CONTINUE)] if own else [])
    return [_text(_no_command("\n\n".join(opening), "Instructions")), *blocks] if opening else blocks


def _as_text(message: Message) -> str:
    match message:
        case UserMessage():
            return f"User: {message.text}"
        case AssistantMessage():
            calls = "".join(f"\n[called {call.name} {call.readable}]" for call in message.calls)
            return f"Assistant: {message.text}{calls}"
        case ToolMessage():
            return f"Result of {message.name}: {message.text}"
        case _:
            assert_never(message)


def _blocks(messages: Sequence[Message], session: AgentSession) -> Blocks:
    """The content of the user messages among these."""
    blocks: Blocks = []
    for message in messages:
        if isinstance(message, UserMessage):
            blocks.append(_text(message.text if blocks else _no_command(message.text, "Task")))
            blocks += [_attached(each, session) for each in message.attachments]
    return blocks


def _no_command(text: str, name: str) -> str:
    """The first text of a prompt, which no model can make a command of the agent's user."""
    return f"{name}: {text}" if _COMMAND.match(text) else text


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _attached(attachment: Attachment, session: AgentSession) -> dict[str, object]:
    if (text := text_of(attachment)) is not None:
        return _text(text)
    data, media_type = base64.b64encode(attachment.data).decode(), attachment.media_type
    if isinstance(attachment, Image) and session.takes_images:
        return {"type": "image", "data": data, "mimeType": media_type}
    if not isinstance(attachment, Image) and session.takes_resources:
        uri = f"attachment:{quote(attachment.name or 'file')}"
        return {"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "blob": data}}
    raise ProviderError(f"{session.name} does not take {described([attachment])}", fault="bad_request")


def _is_finished(messages: Sequence[Message]) -> bool:
    """Whether the last turn of a conversation has ended with an answer."""
    own = next((message for message in reversed(messages) if not isinstance(message, UserMessage)), None)
    return isinstance(own, AssistantMessage) and not own.calls
