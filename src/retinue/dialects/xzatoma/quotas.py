"""Quotas of `xzatoma`: what all subagents of a session may use together, and the texts when a quota is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec import Struct

from retinue.core.budget import Caps, Window
from retinue.core.commands import RunQuery
from retinue.core.ids import RunId
from retinue.core.run import Exchange
from retinue.dialects.context import DialectContext
from retinue.dialects.xzatoma import NAME
from retinue.dialects.xzatoma.requests import SubagentRefused
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.engine import RunView

QUOTA_SECONDS = 366 * 86400.0
"""Seconds for which the ledger remembers tokens: longer than any session lasts."""


class Used(Struct, frozen=True, kw_only=True):
    """The usage of all subagents of a session, failed ones included."""

    executions: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Quotas:
    """What all subagents of a session may use; a session is a root run with its descendants, or a chat.

    A chat is one session however many root runs it has: when delegation is switched or an answer stopped, the next run
    inherits the history, and the usage with it. Usage is computed from the stored runs, so that it survives a crash.
    Tokens are also a window of the ledger, and time a deadline of each subagent, which stop a subagent at work.
    """

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings) -> None:
        self.lock = asyncio.Lock()
        """Held from the check to the start: of two calls that see one execution left, one must be refused."""
        self._dialect_context = dialect_context
        self._settings = settings

    async def check(self, root_id: RunId) -> Used | None:
        """The usage of the session, None without quotas; raises `SubagentRefused` if a quota is used up."""
        if not self._settings.has_quotas:
            return None
        used = await self._used(root_id)
        if (reason := _reason(used, self._settings)) is not None:
            raise _exceeded(reason)
        return used

    async def windows(self, root_id: RunId) -> tuple[Window, ...]:
        """The window that stops a subagent when the session's tokens are used up."""
        max_tokens = self._settings.max_total_tokens
        if max_tokens is None:
            return ()
        first, *_ = await self._dialect_context.supervisor.conversation(root_id)
        return (Window(f"{NAME}/{first}", QUOTA_SECONDS, Caps(tokens=max_tokens), soft=True),)

    def seconds_left(self, used: Used | None) -> float | None:
        """How long a subagent may run that starts now."""
        max_seconds = self._settings.max_total_time
        return None if max_seconds is None or used is None else max(max_seconds - used.seconds, 0.001)

    async def why_stopped(self, exchange: Exchange, root_id: RunId) -> SubagentRefused | None:
        """The refusal for the quota that stopped a subagent; None if no quota did."""
        if not self._settings.has_quotas or exchange.reason not in ("window", "deadline"):
            return None
        used = await self._used(root_id)
        limits = XzatomaSettings(
            max_total_tokens=self._settings.max_total_tokens, max_total_time=self._settings.max_total_time
        )
        if exchange.reason == "deadline" and limits.max_total_time is not None:
            # The deadline has passed by definition; wall clock and loop clock may differ slightly.
            used = Used(tokens=0, seconds=max(used.seconds, limits.max_total_time))
        reason = _reason(used, limits)
        return None if reason is None else _exceeded(reason)

    async def _used(self, root_id: RunId) -> Used:
        supervisor = self._dialect_context.supervisor
        trees = [await supervisor.list(RunQuery(root_id=root)) for root in await supervisor.conversation(root_id)]
        subagents = [view for tree in trees for view in tree if view.dialect == NAME and view.parent_id is not None]
        return Used(
            executions=len(subagents),
            tokens=sum(view.usage.total for view in subagents),
            seconds=_seconds_at_work(subagents, self._dialect_context.clock.now()),
        )


def _exceeded(reason: str) -> SubagentRefused:
    return SubagentRefused(f"Resource quota exceeded: {reason}", "quota_exceeded")


def _seconds_at_work(runs: Iterable[RunView], now: float) -> float:
    """How long at least one of the runs was live; overlapping times count once."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((view.started_at, view.ended_at or now) for view in runs):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _reason(used: Used, settings: XzatomaSettings) -> str | None:
    """The first quota that is used up; None if none is.

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
        rounded = f"{used.seconds:.3f}".rstrip("0").rstrip(".")
        return f"Time limit exceeded: {rounded}s >= {seconds}s"
    if tokens is not None and used.tokens >= tokens:
        return f"Token limit exceeded: {used.tokens}/{tokens}"
    return None
