"""How much all subagents of one session may use in `xzatoma`; a session is a root run with all below it, or a chat.

A chat is one session however many root runs it takes: when delegation is switched or an answer stopped, the run that
comes next inherits the history, and what was used with it.

What was used follows from the runs that the store knows, so a crash forgets nothing of it. Tokens are also a window
of the ledger, which stops a subagent in the middle of its work; time is a deadline of each, to the same end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec import Struct

from retinue.core.budget import Caps, Window
from retinue.core.commands import RunQuery
from retinue.core.ids import RunId
from retinue.core.run import CHAT, Exchange
from retinue.dialects.context import DialectContext
from retinue.dialects.xzatoma import NAME
from retinue.dialects.xzatoma.requests import SubagentRefused
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.engine import RunView

SPAN = 366 * 86400.0
"""Seconds for which the ledger remembers tokens: longer than any session lasts."""


class Used(Struct, frozen=True, kw_only=True):
    """What the subagents of a session came to so far, failed ones included."""

    executions: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Quotas:
    """What the settings allow a session, held against what it has used."""

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings) -> None:
        self.birth = asyncio.Lock()
        """Held from the check to the birth: of two that see one execution left, one has to see the other."""
        self._dialect_context = dialect_context
        self._settings = settings
        self._sessions: dict[RunId, tuple[RunId, ...]] = {}

    async def check(self, root_id: RunId) -> Used | None:
        """Refuse a session that has used up a quota; what it has used, or None where there are no quotas."""
        if not self._settings.has_quotas:
            return None
        used = await self._used(root_id)
        if (reason := _reason(used, self._settings)) is not None:
            raise exceeded(reason)
        return used

    async def windows(self, root_id: RunId) -> tuple[Window, ...]:
        """What stops a subagent when the session's tokens are used up."""
        most = self._settings.max_total_tokens
        if most is None:
            return ()
        first, *_ = await self._session(root_id)
        return (Window(f"{NAME}/{first}", SPAN, Caps(tokens=most), soft=True),)

    def seconds_left(self, used: Used | None) -> float | None:
        """How long a subagent may work that is born now."""
        most = self._settings.max_total_time
        return None if most is None or used is None else max(most - used.seconds, 0.001)

    async def why_stopped(self, exchange: Exchange, root_id: RunId) -> SubagentRefused | None:
        """The quota that ended a subagent's work in the middle, if that was it."""
        if not self._settings.has_quotas or exchange.reason not in ("window", "deadline"):
            return None
        used = await self._used(root_id)
        limits = XzatomaSettings(
            max_total_tokens=self._settings.max_total_tokens, max_total_time=self._settings.max_total_time
        )
        if exchange.reason == "deadline" and limits.max_total_time is not None:
            # The deadline has passed by definition; clocks of two kinds may differ by a hair.
            used = Used(tokens=0, seconds=max(used.seconds, limits.max_total_time))
        reason = _reason(used, limits)
        return None if reason is None else exceeded(reason)

    async def _used(self, root_id: RunId) -> Used:
        trees = [
            await self._dialect_context.supervisor.list(RunQuery(root_id=each)) for each in await self._session(root_id)
        ]
        ours = [view for tree in trees for view in tree if view.dialect == NAME and view.parent_id is not None]
        return Used(
            executions=len(ours),
            tokens=sum(view.usage.total for view in ours),
            seconds=seconds_at_work(ours, self._dialect_context.clock.now()),
        )

    async def _session(self, root_id: RunId) -> tuple[RunId, ...]:
        """The roots of the session that a root belongs to, from the first to this one."""
        later: list[RunId] = []
        at: RunId | None = root_id
        while at is not None and at not in self._sessions:
            later.append(at)
            at = await self._before(at)
        session = () if at is None else self._sessions[at]
        for each in reversed(later):
            session = self._sessions[each] = (*session, each)
        return session

    async def _before(self, root_id: RunId) -> RunId | None:
        """The root that the chat was in before this one."""
        supervisor = self._dialect_context.supervisor
        accepted = await supervisor.acceptance(root_id)
        if accepted is None or accepted.label != CHAT or accepted.inherits is None:
            return None
        origin = await supervisor.acceptance(accepted.inherits.run_id)
        if origin is None or origin.label != CHAT or origin.parent_id is not None:
            return None
        return origin.run_id


def exceeded(reason: str) -> SubagentRefused:
    """The refusal for that reason."""
    return SubagentRefused(f"Resource quota exceeded: {reason}", "quota_exceeded")


def seconds_at_work(runs: Iterable[RunView], now: float) -> float:
    """How long at least one of the runs was at work; what happens at the same time counts once."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((view.started_at, view.ended_at or now) for view in runs):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _reason(used: Used, settings: XzatomaSettings) -> str | None:
    """The first quota that is used up.

    >>> _reason(Used(executions=3), XzatomaSettings(max_executions=3))
    'Execution limit reached: 3/3'
    >>> _reason(Used(seconds=61.25), XzatomaSettings(max_total_time=60))
    'Time limit exceeded: 61.25s >= 60s'
    >>> _reason(Used(tokens=10500), XzatomaSettings(max_total_tokens=10000))
    'Token limit exceeded: 10500/10000'
    """
    executions, seconds, tokens = settings.max_executions, settings.max_total_time, settings.max_total_tokens
    if executions is not None and used.executions >= executions:
        return f"Execution limit reached: {used.executions}/{executions}"
    if seconds is not None and used.seconds >= seconds:
        shown = f"{used.seconds:.3f}".rstrip("0").rstrip(".")
        return f"Time limit exceeded: {shown}s >= {seconds}s"
    if tokens is not None and used.tokens >= tokens:
        return f"Token limit exceeded: {used.tokens}/{tokens}"
    return None
