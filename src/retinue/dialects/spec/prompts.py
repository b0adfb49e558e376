"""The system texts of the `spec` dialect, for the orchestrator and for subagents."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from retinue.core.agent import RESULTS_PLACEHOLDER, Agent
from retinue.dialects.shared_context import NAME as SHARED_CONTEXT
from retinue.dialects.shared_context import participant_text
from retinue.dialects.spec.requests import SUBAGENT

SUFFIX = (
    "You are a subagent. Keep your final response concise (under 1000 tokens). Write detailed findings to shared "
    "context rather than including them in your response. Your response will be returned to the orchestrator as a "
    "summary of your work."
)
"""The end of every subagent's system text."""

DISCIPLINE = """\
When you delegate:

DO:
  - Write the context that a subagent needs to shared_context BEFORE you spawn it
  - Give each task one clear, narrow objective
  - Name shared context keys in the task instead of pasting what they hold
  - Collect results soon, and bring the findings of several agents together
  - Define a new agent when the task needs a specialist that is not registered

Do NOT:
  - Delegate what a single tool call of your own would settle
  - Give the same task to several agents
  - Put raw data into the task; shared context is the place for it
  - Expect a subagent to know this conversation: it sees its task and shared context, nothing else
  - Define agents with broad prompts; one focused capability each is better
  - Ask for status in a tight loop; do other work in between"""

COMPOSITION = """\
Subagents and shared context go together:

  1. BEFORE spawning, write the problem, its scope and its constraints to shared context.
  2. In the TASK, be short and name the keys, as in "Analyze the issue in problem_summary".
  3. DURING its work, the subagent reads from shared context and writes to it.
  4. AFTER collecting, read the keys that the subagent wrote: the collected result is a summary, shared context has the
     details."""

ABOUT_EXTENSIONS = {
    "wait": "Have nothing else to do? wait returns when tasks are over, instead of asking for status again and again.",
    "depends_on": "A task that needs the results of others: spawn it at once with depends_on. It begins when they have "
    "completed, and is given their results.",
    "cancel": "No longer need a task? cancel stops it and gives you what it has.",
    "progress": "Wonder whether a long task is on the right track? progress shows what it did last.",
    "extends": "A variant of an agent: define it with extends and system_prompt_append.",
    "redefine": "An agent that you defined does not work well: redefine it. Running tasks keep the old definition.",
    "budgets": "A task that could get expensive: spawn it with max_input_tokens and max_output_tokens.",
}
"""How to use each extension of the tool, the most useful first."""

DEPENDENCIES = f"The tasks that yours depends on have completed. Their results:\n\n{RESULTS_PLACEHOLDER}"
"""The part for a subagent with dependencies; the results replace the placeholder when it starts."""


def orchestrator_text(
    agents: Sequence[Agent], offered: Sequence[str], extensions: AbstractSet[str] = frozenset()
) -> str:
    """The root's text about the tools it is offered: its specialists, how to delegate, and how to share."""
    shares = SHARED_CONTEXT in offered
    parts = [specialists(agents), DISCIPLINE] if SUBAGENT in offered else []
    if parts and (about_extensions := further(extensions)):
        parts.append(about_extensions)
    if parts and shares:
        parts.append(COMPOSITION)
    if shares:
        parts.append(participant_text(extensions))
    return "\n\n".join(parts)


def further(extensions: AbstractSet[str]) -> str:
    """How to use the extensions that are switched on; empty if none is.

    >>> print(further({"cancel"}))
    The subagent tool can do more:
    <BLANKLINE>
      - No longer need a task? cancel stops it and gives you what it has.
    """
    rows = [f"  - {usage}" for name, usage in ABOUT_EXTENSIONS.items() if name in extensions]
    return "\n\n".join(("The subagent tool can do more:", "\n".join(rows))) if rows else ""


def specialists(agents: Sequence[Agent]) -> str:
    """The registered agents, each with its purpose and its tools.

    >>> print(specialists([Agent(name="writer", description="Drafts reports.", tools=("shared_context",))]))
    Specialist agents that you can delegate to with the subagent tool:
    <BLANKLINE>
      writer - Drafts reports. Tools: shared_context.
    <BLANKLINE>
    If none of them fits the task at hand, define a new agent with the define action; list_agents shows those too.
    """
    if not agents:
        return (
            "You can delegate to specialist agents with the subagent tool. None is registered yet: define the agents "
            "that the task needs with the define action; list_agents shows them."
        )
    rows = "\n".join(f"  {agent.name} - {_purpose(agent)}" for agent in agents)
    return (
        f"Specialist agents that you can delegate to with the subagent tool:\n\n{rows}\n\n"
        "If none of them fits the task at hand, define a new agent with the define action; list_agents shows those too."
    )


def subagent_text(
    system_prompt: str, offered: Sequence[str], extensions: AbstractSet[str] = frozenset(), *, depends: bool = False
) -> str:
    """A subagent's system text: its instructions, results of dependencies, the text for participants, the suffix."""
    results = DEPENDENCIES if depends else ""
    shared = participant_text(extensions) if SHARED_CONTEXT in offered else ""
    return "\n\n".join(part for part in (system_prompt, results, shared, SUFFIX) if part)


def _purpose(agent: Agent) -> str:
    purpose = agent.description.rstrip()
    stop = "" if not purpose or purpose.endswith((".", "!", "?")) else "."
    tools = ", ".join(tool for tool in agent.tools if tool != SUBAGENT)
    return f"{purpose}{stop} Tools: {tools or 'none'}.".lstrip()
