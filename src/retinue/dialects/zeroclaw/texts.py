"""The texts of the document: results of delegated tasks, and prompts, refusals and log lines of scheduled jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.ids import RunId
from retinue.core.run import Limits, Outcome
from retinue.dialects.log_format import line
from retinue.dialects.zeroclaw.requests import no_agent, spawn_failed

if TYPE_CHECKING:
    from retinue.dialects.context import ProviderFamilies


NO_OUTPUT = "subagent completed without output"
EMPTY = "[Empty response]"
BY_USER = "Cancelled by user request"
BY_PARENT = "Cancelled by parent session"
PARALLEL_FAILED = "One or more parallel agents failed"


class Answer(Struct, frozen=True):
    """The result of a delegated task: its output, or an error."""

    output: str = ""
    error: str | None = None


class Target(Struct, frozen=True):
    """The agent of a delegated task, its wire and model, and its time limit."""

    agent: str
    wire: str
    model: str
    seconds: float | None = None

    @classmethod
    def of(cls, run_spec: RunSpec, limits: Limits, families: ProviderFamilies) -> Target:
        return cls(run_spec.agent, families.wire(run_spec.provider), run_spec.model, limits.seconds)

    def answer(self, outcome: Outcome) -> Answer:
        """The answer about its end.

        >>> target = Target("t", "anthropic", "haiku", 1.0)
        >>> target.answer(Outcome(result="completed", reason="answered", text="Done.")).output
        "[Agent 't' (anthropic/haiku)]\\nDone."
        >>> target.answer(Outcome(result="timed_out", reason="deadline")).error
        "Agent 't' timed out after 1s"
        """
        if outcome.result == "completed":
            body = outcome.text if outcome.text.strip() else EMPTY
            return Answer(f"[Agent '{self.agent}' ({self.wire}/{self.model})]\n{body}")
        if outcome.result == "timed_out" and self.seconds is not None:
            return Answer(error=f"Agent '{self.agent}' timed out after {self.seconds:g}s")
        return failed(self.agent, why(outcome))


def failed(agent: str, reason: str) -> Answer:
    return Answer(error=f"Agent '{agent}' failed: {reason}")


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


def fanned_out(answers: Sequence[tuple[str, Answer]]) -> str:
    """The results of several agents, in the order of the request.

    >>> print(fanned_out([("a", Answer("Yes.")), ("b", Answer(error="Agent 'b' failed: no"))]))
    [Parallel delegation: 2 agents]
    <BLANKLINE>
    --- a (success=true) ---
    Yes.
    <BLANKLINE>
    --- b (success=false) ---
    Error: Agent 'b' failed: no
    """
    blocks = (
        f"--- {agent} (success=true) ---\n{answer.output}"
        if answer.error is None
        else f"--- {agent} (success=false) ---\nError: {answer.error}"
        for agent, answer in answers
    )
    return "\n\n".join((f"[Parallel delegation: {len(answers)} agents]", *blocks))


def interrupted(task_id: str) -> str:
    """The error of a task whose process stopped."""
    return (
        "Interrupted: the process that worked on this task stopped before it was done. "
        f"Go on with it: retinue runs resume {task_id}"
    )


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
        lines = "".join(f"- {key}: {content}\n" for key, content in memories)
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
