"""How `zeroclaw` tells the end of a run: the literal texts of its document, for whoever waits and for the file."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.run import Limits, Outcome
from retinue.dialects.context import ProviderFamilies

NO_OUTPUT = "subagent completed without output"
EMPTY = "[Empty response]"
BY_USER = "Cancelled by user request"
BY_PARENT = "Cancelled by parent session"
PARALLEL_FAILED = "One or more parallel agents failed"


class Answer(Struct, frozen=True):
    """What a target came to: its output, or an error."""

    output: str = ""
    error: str | None = None


class Target(Struct, frozen=True):
    """Who works on a delegated task: its name, the wire and model that answer for it, and its time."""

    agent: str
    wire: str
    model: str
    seconds: float | None = None

    @classmethod
    def of(cls, run_spec: RunSpec, limits: Limits, families: ProviderFamilies) -> Target:
        """The target of a run with this brief."""
        return cls(run_spec.agent, families.wire(run_spec.provider), run_spec.model, limits.seconds)

    def answer(self, outcome: Outcome) -> Answer:
        """How its end is told.

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
    """An agent did not do what it was asked."""
    return Answer(error=f"Agent '{agent}' failed: {reason}")


def why(outcome: Outcome) -> str:
    """Why a run did not complete."""
    if outcome.result == "exhausted" and outcome.reason == "max_turns" and outcome.limit is not None:
        return f"Agent exceeded maximum tool iterations ({outcome.limit.limit})"
    return outcome.error or outcome.reason


def started(agent: str, task_id: str) -> str:
    """What a model reads of a task that goes on in the background."""
    return (
        f"Background task started for agent '{agent}'.\n"
        f"task_id: {task_id}\n"
        f"Use action='check_result' with task_id='{task_id}' to retrieve the result."
    )


def fanned_out(answers: Sequence[tuple[str, Answer]]) -> str:
    """What several agents came to, in the order in which they were named.

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
    """Why a task that nobody works on has not come to an end."""
    return (
        "Interrupted: the process that worked on this task stopped before it was done. "
        f"Go on with it: retinue runs resume {task_id}"
    )
