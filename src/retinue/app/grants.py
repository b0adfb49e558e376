"""The policy and windows of runs that a program starts: those of the agent, or of the run that was forked, or
narrower.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from retinue.core.agent import RunSpec
from retinue.core.budget import Window
from retinue.core.errors import PolicyError
from retinue.core.policy import Policy, inherit, intersect
from retinue.core.profiles import tightened, windows_of
from retinue.core.state import Run
from retinue.engine.driver import Driver
from retinue.engine.supervisor import Supervisor


class Grants:
    """Computes the policies and windows that the settings and earlier runs allow."""

    def __init__(self, supervisor: Supervisor, driver: Driver) -> None:
        self._supervisor = supervisor
        self._rules = supervisor.engine.rules
        self._driver = driver

    def windows(self, identity: str, policy: Policy | None) -> tuple[Window, ...]:
        """The hourly and daily windows of an agent, if it or the session has a policy."""
        given = policy if policy is not None else self._rules.given_to(identity)
        return () if given is None else windows_of(identity, given)

    async def of_fork(self, origin: Run, policy: Policy | None) -> Policy:
        """The policy of a fork: what its origin may do today, narrowed by `policy`; raises `PolicyError` if that asks
        for more.
        """
        grants = await self._driver.adoption.policy_of_today(origin, {})
        grants = intersect(grants, self._rules.ceiling_of(_identity(origin)))
        try:
            return inherit(grants, policy)
        except PolicyError as refused:
            raise escalation(refused) from refused

    async def windows_of_fork(self, origin: Run, grants: Policy, *, own: Policy | None) -> tuple[Window, ...]:
        """The windows of a fork, including those of the runs above its origin, so that it draws on the same limits."""
        windows = {window.name: window for window in self.windows(_identity(origin), own)}
        above: Run | None = origin
        while above is not None:
            for window in above.accepted.windows:
                windows.setdefault(window.name, window)
            parent_id = above.accepted.parent_id
            above = await self._supervisor.replay(parent_id) if parent_id is not None else None
        return tightened(tuple(windows.values()), grants)


def escalation(refused: PolicyError) -> PolicyError:
    """The error for a policy that asks for more than is allowed, with the text that the caller's dialect prescribes."""
    return PolicyError(
        f"subagent policy override escalates beyond parent: {refused}",
        field=refused.field,
        asked=refused.asked,
        allowed=refused.allowed,
    )


def narrowed_memory(asked: Sequence[str], run_spec: RunSpec) -> tuple[str, ...]:
    """The agents whose memory a run may read: those it asks for; raises `PolicyError` for one that its agent may not
    read.
    """
    for name in asked:
        if name not in (run_spec.identity, *run_spec.memory_from):
            raise PolicyError(
                f"subagent allowlist override contains alias {json.dumps(name, ensure_ascii=False)} not present on "
                "parent's memory allowlist; SubAgent overrides may only narrow",
                field="memory_from",
                asked=name,
                allowed=run_spec.memory_from,
            )
    return tuple(name for name in run_spec.memory_from if name in asked)


def _identity(run: Run) -> str:
    return run.run_spec.identity or run.accepted.agent
