"""What both tools of `zeroclaw` ask before they start a run: may the caller act at all, and has it an action left?"""

from __future__ import annotations

from retinue.core.policy import Autonomy
from retinue.core.ports import CallContext
from retinue.dialects.zeroclaw_requests import NotMet
from retinue.engine.calls import NO_ACTIONS_LEFT, take_action
from retinue.engine.supervisor import Supervisor

NAME = "zeroclaw"

ROOT = "main"
"""The alias of a root that no agent of the settings works as."""

SUBAGENT = "subagent"
"""The label of every run that `spawn_subagent` starts, and the beginning of its session's key."""


def check_may_act(context: CallContext, tool: str) -> None:
    """Refuse an agent that may only read: starting another is an action, whatever that one may do."""
    if context.policy.autonomy == Autonomy.READONLY:
        raise NotMet(f"Security policy: read-only mode, cannot perform '{tool}'")


async def spend(supervisor: Supervisor, context: CallContext) -> None:
    """Take one action from the caller's windows; every valid launch costs one, and nothing else does."""
    driven = supervisor.roster.live.get(context.run_id)
    if driven is not None and not await take_action(driven, supervisor.parts):
        raise NotMet(NO_ACTIONS_LEFT)
