"""The texts of scheduled jobs in `zeroclaw`: prompts, refusals and log lines, letter by letter those of its document.

When a job is due, and how it is done, is decided in `retinue.dispatch.cron`.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.core.ids import RunId
from retinue.dialects.log_format import line
from retinue.dialects.zeroclaw.requests import no_agent, spawn_failed

BLOCKED = "blocked by security policy"
_OTHER_PREFIX = "Security policy: "
"""How tools begin when a policy is the reason why they refuse."""


class ZeroclawCronTexts:
    """The texts of the document.

    >>> texts = ZeroclawCronTexts()
    >>> texts.prompt("report", "Dig.", [("pool", "too small")])
    '[Memory context]\\n- pool: too small\\n[/Memory context]\\n\\n[cron:report report] Dig.'
    >>> texts.span("dig", "report", "r1")
    'subagent category="cron" agent_alias=dig cron_job_id=report run_id=r1 spawn_site="cron"'
    """

    def prompt(self, job: str, prompt: str, memories: Sequence[tuple[str, str]]) -> str:
        """The job's prompt under the job's name, after the memories."""
        lines = "".join(f"- {key}: {content}\n" for key, content in memories)
        context = f"[Memory context]\n{lines}[/Memory context]\n\n" if lines else ""
        return f"{context}[cron:{job} {job}] {prompt}"

    def blocked(self, reason: str) -> str:
        """A refusal because of the job's policy."""
        return f"{BLOCKED}: {reason}"

    def tool_refusal(self, text: str) -> str:
        """The same for what a tool said; any other text is unchanged.

        >>> ZeroclawCronTexts().tool_refusal("Security policy: rm is not allowed")
        'blocked by security policy: rm is not allowed'
        """
        return self.blocked(text.removeprefix(_OTHER_PREFIX)) if text.startswith(_OTHER_PREFIX) else text

    def unknown_agent(self, alias: str) -> str:
        """A refusal because the job's agent is not configured."""
        return spawn_failed(no_agent(alias))

    def spawn_failed(self, reason: str) -> str:
        """A refusal of the engine."""
        return spawn_failed(reason)

    def span(self, agent: str, job: str, run_id: RunId | None) -> str:
        """The document's name for the span of a job, and its fields."""
        return f'subagent category="cron" {line(agent_alias=agent, cron_job_id=job, run_id=run_id)} spawn_site="cron"'
