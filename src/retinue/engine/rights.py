"""The policy and windows of a stored run under the settings of this process, which may have changed since its start."""

from __future__ import annotations

from retinue.core.budget import Window
from retinue.core.ids import RunId
from retinue.core.policy import Policy, intersect
from retinue.core.profiles import ACTIONS, Rules, narrowed_windows, windows_of
from retinue.core.state import Run
from retinue.engine.replay import Replay


async def current_policy(run: Run, known: dict[RunId, Policy], rules: Rules, replay: Replay) -> Policy:
    """The policy of a run, narrowed by the current settings of its agent and of the runs above it, ended ones too.

    `known` holds policies that were computed before; those that are computed here are added to it.
    """
    line = [run]
    while (above := _bound_by(line[-1])) is not None and above not in known:
        line.append(await replay.run(above))
    for each in reversed(line):
        agent = each.run_spec.identity or each.accepted.agent
        above = _bound_by(each)
        current = rules.ceiling_of(agent) if above is None else rules.agents.get(agent)
        policy = each.policy if current is None else intersect(each.policy, current)
        for other in _extended_agents(each):
            if (theirs := rules.agents.get(other)) is not None:
                policy = intersect(policy, theirs)
        known[each.run_id] = policy if above is None else intersect(policy, known[above])
    return known[run.run_id]


def current_windows(run: Run, rules: Rules) -> tuple[Window, ...]:
    """The windows of a run under its current policy, and those of a policy that its agent was given since."""
    windows = {window.name: window for window in narrowed_windows(run.accepted.windows, run.policy)}
    agent = run.run_spec.identity or run.accepted.agent
    given = rules.policy_for(agent) if _bound_by(run) is None else rules.agents.get(agent)
    if given is not None:
        for window in windows_of(agent, run.policy):
            windows.setdefault(window.name, window)
    return tuple(windows.values())


def _bound_by(run: Run) -> RunId | None:
    """The run whose policy bounds this one's; None for a root and for an independent run."""
    return None if run.accepted.independent else run.accepted.parent_id


def _extended_agents(run: Run) -> set[str]:
    """Agents that a child's agent extends: their action windows were given to the child."""
    if run.accepted.parent_id is None:
        return set()  # a fork draws on the windows of all runs above its origin
    names = (window.name for window in run.accepted.windows)
    return {name.removeprefix(ACTIONS) for name in names if name.startswith(ACTIONS)}
