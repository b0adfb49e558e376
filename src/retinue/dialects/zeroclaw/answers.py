"""What a model reads back from the tools of `zeroclaw`: results, refusals, and the texts of scheduled jobs.

The sentences are those of the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.ids import RunId
from retinue.core.log_context import line
from retinue.core.run import Limits, Outcome
from retinue.core.text import clean_line, name_list, quote_headers
from retinue.dialects.error_codes import CallRefused

if TYPE_CHECKING:
    from retinue.dialects.context import ProviderFamilies

NO_OUTPUT = "subagent completed without output"
EMPTY = "[Empty response]"
BY_USER = "Cancelled by user request"
BY_PARENT = "Cancelled by parent session"
PARALLEL_FAILED = "One or more parallel agents failed"
NO_RESULTS = "No background delegate results found."


class DelegateAnswer(Struct, frozen=True):
    """The result of a delegated task: its output, or an error."""

    output: str = ""
    error: str | None = None


class DelegateTarget(Struct, frozen=True):
    """The agent of a delegated task, its wire and model, and its time limit."""

    agent: str
    wire: str
    model: str
    seconds: float | None = None

    @classmethod
    def of(cls, run_spec: RunSpec, limits: Limits, families: ProviderFamilies) -> DelegateTarget:
        return cls(run_spec.agent, families.wire(run_spec.provider), run_spec.model, limits.timeout)

    def answer(self, outcome: Outcome) -> DelegateAnswer:
        """The answer about its end.

        >>> target = DelegateTarget("t", "anthropic", "haiku", 1.0)
        >>> target.answer(Outcome(result="completed", reason="answered", text="Done.")).output
        "[Agent 't' (anthropic/haiku)]\\nDone."
        >>> target.answer(Outcome(result="timed_out", reason="deadline")).error
        "Agent 't' timed out after 1s"
        """
        if outcome.result == "completed":
            body = outcome.text if outcome.text.strip() else EMPTY
            return DelegateAnswer(f"[Agent '{self.agent}' ({self.wire}/{self.model})]\n{body}")
        if outcome.result == "timed_out" and self.seconds is not None:
            return DelegateAnswer(error=f"Agent '{self.agent}' timed out after {self.seconds:g}s")
        return DelegateAnswer(error=f"Agent '{self.agent}' failed: {why(outcome)}")


def why(outcome: Outcome) -> str:
    if outcome.result == "exhausted" and outcome.reason == "max_turns" and outcome.limit is not None:
        return f"Agent exceeded maximum tool iterations ({outcome.limit.limit})"
    return outcome.error or outcome.reason


def started(agent: str, task_id: str) -> str:
    """The answer about a task that was started in the background."""
    return (
        f"Background task started for agent '{agent}'.\n"
        f"task_id: {task_id}\n"
        f"Use action='check_result' with task_id='{task_id}' to retrieve the result."
    )


def cancelling(task_id: str) -> str:
    """The answer about a task that is being stopped."""
    return f"Task '{task_id}' cancellation requested."


_AGENT_HEADER = re.compile(r"\[Agent '[^'\n]*' \([^\n]*\)\]")


def fanned_out(answers: Sequence[tuple[str, DelegateAnswer]]) -> str:
    """The results of several agents, in the order of the request.

    >>> print(fanned_out([("a", DelegateAnswer("Yes.")), ("b", DelegateAnswer(error="Agent 'b' failed: no"))]))
    [Parallel delegation: 2 agents]
    <BLANKLINE>
    --- a (success=true) ---
    Yes.
    <BLANKLINE>
    --- b (success=false) ---
    Error: Agent 'b' failed: no
    """
    blocks = (
        f"--- {agent} (success=true) ---\n{_in_block(answer.output)}"
        if answer.error is None
        else f"--- {agent} (success=false) ---\nError: {quote_headers(answer.error)}"
        for agent, answer in answers
    )
    return "\n\n".join((f"[Parallel delegation: {len(answers)} agents]", *blocks))


def _in_block(output: str) -> str:
    """The output of one of several agents: its own header stays, and no other line looks like one."""
    header, newline, text = output.partition("\n")
    if not _AGENT_HEADER.fullmatch(header):
        return quote_headers(output)
    return f"{header}{newline}{quote_headers(text)}"


def interrupted(task_id: str) -> str:
    """The error of a task whose process stopped."""
    return (
        "Interrupted: the process that worked on this task stopped before it was done. "
        f"Go on with it: retinue runs resume {task_id}"
    )


# ---- refusals --------------------------------------------------------------------------------------------------------

READ_ONLY = "Security policy: read-only mode, cannot perform '{tool}'"
NESTED_SUBAGENT = "spawn_subagent: a subagent may not spawn its own subagents (depth-1 cap)"
NO_PROMPT = "Missing or empty 'prompt' parameter"


def no_agent(alias: str) -> str:
    """The refusal for an alias that no agent has."""
    return f"no agent configured under alias {json.dumps(alias)}"


def spawn_failed(reason: str) -> str:
    """The refusal for a run that could not be started."""
    return f"subagent spawn failed: {reason}"


def available(agents: Sequence[str]) -> str:
    """The names of the agents, in the order of the settings; of very many the first ones.

    >>> available(["reviewer", "writer"]), available([])
    ('reviewer, writer', '(none configured)')
    """
    return name_list(agents) if agents else "(none configured)"


def missing(name: str, where: str = "") -> CallRefused:
    """The refusal of a call without a parameter."""
    return CallRefused(f"Missing '{name}' parameter{where}")


def empty(name: str) -> CallRefused:
    """The refusal of a parameter that is blank."""
    return CallRefused(f"'{name}' parameter must not be empty")


def wrong(name: str, wanted: str) -> CallRefused:
    """The refusal of a parameter of another type."""
    return CallRefused(f"'{name}' parameter must be {wanted}")


def wrong_list(name: str, rule: str) -> CallRefused:
    """The refusal of a list that breaks a rule."""
    return CallRefused(f"'{name}' array must {rule}")


def unknown_action(action: str, known: Sequence[str]) -> CallRefused:
    """The refusal of an action that `delegate` does not have."""
    return CallRefused(f"Unknown action '{action}'. Use {'/'.join(known)}.")


def invalid_task_id(task_id: str) -> CallRefused:
    """The refusal of a task id that is no UUID."""
    return CallRefused(f"Invalid task_id '{task_id}': must be a valid UUID")


def unknown_agent(agent: str, known: Sequence[str]) -> CallRefused:
    """The refusal of a target that is not configured, or is the caller."""
    return CallRefused(f"Unknown agent '{agent}'. Available agents: {available(known)}")


def unknown_in_list(agent: str, known: Sequence[str]) -> CallRefused:
    """The same for one of several targets."""
    return CallRefused(f"Unknown agent '{agent}' in parallel list. Available: {available(known)}")


def too_deep(depth: int, deepest: int) -> CallRefused:
    """The refusal of a caller at the greatest depth."""
    return CallRefused(f"Delegation depth limit reached ({depth}/{deepest})")


def no_provider(provider: str, agent: str, complaint: str) -> CallRefused:
    """The refusal of a target whose provider cannot be used."""
    return CallRefused(f"Failed to create model_provider '{provider}' for agent '{agent}': {complaint}")


def failed(agent: str, reason: object) -> CallRefused:
    """The refusal of a target that could not be started."""
    return CallRefused(f"Agent '{agent}' failed: {reason}")


def no_result(shown: str) -> CallRefused:
    """The refusal to show a task that is not known."""
    return CallRefused(f"No result found for task_id '{shown}'")


def no_task(shown: str) -> CallRefused:
    """The refusal to stop a task that is not known."""
    return CallRefused(f"No task found for task_id '{shown}'")


def not_running(shown: str, status: str) -> CallRefused:
    """The refusal to stop a task that has ended."""
    return CallRefused(f"Task '{shown}' is not running (status: {status})")


def hidden(tool: str, agent: str) -> str:
    """The refusal of a call by an agent whose profile excludes the tool."""
    return f"{tool}: refused — agent '{agent}' risk_profile does not list {tool} in allowed_tools"


# ---- scheduled jobs --------------------------------------------------------------------------------------------------

BLOCKED = "blocked by security policy"
_OTHER_PREFIX = "Security policy: "
"""The beginning of a tool's refusal because of a policy."""


class ZeroclawCronTexts:
    """The texts of scheduled jobs, for `retinue.dispatch.cron`.

    >>> texts = ZeroclawCronTexts()
    >>> texts.prompt("report", "Dig.", [("pool", "too small")])
    '[Memory context]\\n- pool: too small\\n[/Memory context]\\n\\n[cron:report report] Dig.'
    >>> texts.span("dig", "report", "r1")
    'subagent category="cron" agent_alias=dig cron_job_id=report run_id=r1 spawn_site="cron"'
    """

    def prompt(self, job: str, prompt: str, memories: Sequence[tuple[str, str]]) -> str:
        lines = "".join(f"- {clean_line(key)}: {quote_headers(content)}\n" for key, content in memories)
        context = f"[Memory context]\n{lines}[/Memory context]\n\n" if lines else ""
        return f"{context}[cron:{job} {job}] {prompt}"

    def blocked(self, reason: str) -> str:
        return f"{BLOCKED}: {reason}"

    def tool_refusal(self, text: str) -> str:
        """A tool's refusal because of the policy in the form of `blocked`; any other text is unchanged.

        >>> ZeroclawCronTexts().tool_refusal("Security policy: rm is not allowed")
        'blocked by security policy: rm is not allowed'
        """
        return self.blocked(text.removeprefix(_OTHER_PREFIX)) if text.startswith(_OTHER_PREFIX) else text

    def unknown_agent(self, alias: str) -> str:
        return spawn_failed(no_agent(alias))

    def spawn_failed(self, reason: str) -> str:
        return spawn_failed(reason)

    def span(self, agent: str, job: str, run_id: RunId | None) -> str:
        return f'subagent category="cron" {line(agent_alias=agent, cron_job_id=job, run_id=run_id)} spawn_site="cron"'
