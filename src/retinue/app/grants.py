"""The policy and windows of runs that a program starts: those of the agent or of the forked run, or narrower."""

from __future__ import annotations

import json
from collections.abc import Sequence

from retinue.core.agent import RunSpec
from retinue.core.budget import Window
from retinue.core.errors import PolicyError
from retinue.core.policy import Policy, inherit, intersect
from retinue.core.profiles import narrowed_windows, windows_of
from retinue.core.state import Run
from retinue.dialects import registry
from retinue.dialects.base import PolicyTexts
from retinue.engine import Supervisor


class Grants:
    """Computes the policies and windows that the settings and earlier runs allow."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._rules = supervisor.rules

    def windows(self, identity: str, policy: Policy | None) -> tuple[Window, ...]:
        """The hourly and daily windows of an agent, if it or the session has a policy."""
        given = policy if policy is not None else self._rules.policy_for(identity)
        return () if given is None else windows_of(identity, given)

    async def of_fork(self, origin: Run, policy: Policy | None) -> Policy:
        """The policy of a fork: what its origin may do today, narrowed by `policy`; raises `PolicyError` for more."""
        grants = await self._supervisor.current_policy(origin)
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
        return narrowed_windows(tuple(windows.values()), grants)


def escalation(refused: PolicyError) -> PolicyError:
    """The error for a policy that asks for more than is allowed, with the text that the caller's dialect prescribes."""
    return PolicyError(
        _texts().escalation.format(refusal=refused), field=refused.field, asked=refused.asked, allowed=refused.allowed
    )


def narrowed_memory(asked: Sequence[str], run_spec: RunSpec) -> tuple[str, ...]:
    """The agents whose memory a run may read: those it asks for, which its agent must be allowed (`PolicyError`)."""
    for name in asked:
        if name not in (run_spec.identity, *run_spec.memory_from):
            raise PolicyError(
                _texts().memory.format(alias=json.dumps(name, ensure_ascii=False)),
                field="memory_from",
                asked=name,
                allowed=run_spec.memory_from,
            )
    return tuple(name for name in run_spec.memory_from if name in asked)


def _identity(run: Run) -> str:
    return run.run_spec.identity or run.accepted.agent


def _texts() -> PolicyTexts:
    return next(registry.having(lambda entry: entry.policy_texts))
