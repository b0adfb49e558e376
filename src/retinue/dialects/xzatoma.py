"""The `xzatoma` dialect: a caller blocks on `subagent` while another instance of itself works, then reads a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from retinue.core.agent import Agent, ToolKind, ToolSpec
from retinue.core.errors import Refused, RunIsOver
from retinue.core.ids import RunId
from retinue.core.mail import Close, Input
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.run import Exchange, Limits, Manner
from retinue.dialects import xzatoma_requests
from retinue.dialects.desk import Desk
from retinue.dialects.render import compact, cut
from retinue.dialects.xzatoma_requests import Delegation, NotMet, check_depth, inherited, label_of, parse
from retinue.dialects.xzatoma_settings import DEFAULTS, XzatomaSettings
from retinue.engine import admission

NAME = "xzatoma"
TRUNCATED = "[Output truncated]"


class XzatomaDialect:
    """One tool, which every run has: at the greatest depth it is there too, and refuses."""

    name = NAME

    def __init__(self, desk: Desk, settings: XzatomaSettings = DEFAULTS) -> None:
        self._tools: dict[str, Tool] = {xzatoma_requests.NAME: SubagentTool(desk, settings)}

    def tools(self) -> Mapping[str, Tool]:
        """The dialect's tools, in the order of its document."""
        return self._tools

    def offered(self, *, depth: int) -> tuple[str, ...]:
        """All of them, however deep the run is."""
        return tuple(self._tools)

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        """Nothing: what there is to know about the tool stands in its description."""
        return ""

    def around(self, tool: Tool) -> Tool:
        """The tool just as it is."""
        return tool


class Findings(Struct, frozen=True, kw_only=True):
    """What a subagent came to."""

    output: str
    max_turns_reached: bool
    turns_used: int
    tokens_consumed: int


class SubagentTool:
    """The `subagent` tool: start a child, have it summarize, answer with what it said.

    The child has its caller's agent, model, system text and tools, and the task prompt as its first message. It stays
    after the task's answer for the summary prompt, which is sent without tools in the same conversation. Every step has
    a key that follows from the call's: entered again after a crash, the call finds its child and goes on.
    """

    kind: ToolKind = "keyed"
    risk = Risk.LOW
    timeout: float | None = None
    waits = True
    stoppable = True

    def __init__(self, desk: Desk, settings: XzatomaSettings) -> None:
        self.spec: ToolSpec = xzatoma_requests.spec(settings.default_max_turns)
        self._desk = desk
        self._supervisor = desk.supervisor
        self._settings = settings

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Delegate, and wait for the summary; every refusal and every failure is an answer."""
        about = {"subagent_label": label_of(arguments), "recursion_depth": str(context.depth + 1)}
        try:
            findings = await self._delegate(arguments, context)
        except NotMet as error:
            return ToolResult(_answer(about, error=str(error)), failed=True)
        return ToolResult(_answer(about | _told(findings), output=findings.output))

    async def _delegate(self, arguments: str, context: CallContext) -> Findings:
        begun = await self._desk.begun(context)
        if begun is None:
            check_depth(context.depth, self._settings.max_depth)
        request = parse(arguments)
        run_id = await self._begin(request, context) if begun is None else begun.run_id
        return await self._findings(run_id, request, context)

    async def _begin(self, request: Delegation, context: CallContext) -> RunId:
        wish = self._wish(request, context)
        try:
            started = await self._supervisor.spawn(wish, session_id=context.session_id, caller=context, key=context.key)
        except Refused as refused:
            raise _failed(str(refused)) from refused
        return started.run_id

    def _wish(self, request: Delegation, context: CallContext) -> admission.Spawn:
        own = tuple(name for name in context.offered if name != xzatoma_requests.NAME)
        offered = (*inherited(request.allowed_tools, own), xzatoma_requests.NAME)
        caller = self._desk.brief_of(context.run_id)
        return admission.Spawn(
            agent=context.agent,
            brief=self._desk.brief_for(caller, agent=caller.agent, system=caller.system, offered=offered),
            task=request.task_prompt,
            limits=Limits(exchange_turns=request.max_turns or self._settings.default_max_turns),
            manner=Manner(stays=True, awaited=True),
            label=request.label,
            dialect=NAME,
        )

    async def _findings(self, run_id: RunId, request: Delegation, context: CallContext) -> Findings:
        task = await self._supervisor.exchange(run_id, 1)
        out_of_turns = task.result == "exhausted" and task.reason == "max_turns"
        if task.result != "completed" and not out_of_turns:
            await self._close(run_id, context)
            raise _failure(task)
        # A run that has ended takes no mail; after a crash that is one whose summary is in the log already.
        with suppress(RunIsOver):
            summary_prompt = Input(key=f"{context.key}/summary", text=request.summary_prompt, tools=False)
            await self._supervisor.post(run_id, summary_prompt)
        summary = await self._supervisor.exchange(run_id, 2)
        await self._close(run_id, context)
        if summary.result != "completed":
            raise _failure(summary)
        view = await self._supervisor.look(run_id)
        assert view is not None
        return Findings(
            output=cut(summary.text, self._settings.output_max_size, TRUNCATED, unit="bytes").text,
            max_turns_reached=out_of_turns,
            turns_used=view.turns,
            tokens_consumed=view.usage.total,
        )

    async def _close(self, run_id: RunId, context: CallContext) -> None:
        """Nothing more is asked of the child. Said before the call returns, so that no crash leaves it waiting."""
        with suppress(RunIsOver):
            await self._supervisor.post(run_id, Close(key=f"{context.key}/close"))


def _failure(exchange: Exchange) -> NotMet:
    return _failed(exchange.error or exchange.reason)


def _failed(reason: str) -> NotMet:
    return NotMet(f"Subagent execution failed: {reason}")


def _told(findings: Findings) -> dict[str, str]:
    """The metadata of a success; the document has strings only."""
    return {
        "completion_status": "incomplete" if findings.max_turns_reached else "complete",
        "turns_used": str(findings.turns_used),
        "max_turns_reached": "true" if findings.max_turns_reached else "false",
        "tokens_consumed": str(findings.tokens_consumed),
    }


def _answer(metadata: dict[str, str], *, output: str = "", error: str | None = None) -> str:
    """The four-field object that every call is answered with."""
    return compact({"success": error is None, "output": output, "error": error, "metadata": metadata})
