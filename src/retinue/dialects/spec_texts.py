"""The words of the `spec` dialect: how its tool is described, what an orchestrator and a subagent are told."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.core.agent import Agent, ToolSpec
from retinue.dialects import shared_context
from retinue.dialects.render import compact
from retinue.dialects.shared_context_texts import PARTICIPANT_TEXT

NAME = "subagent"
ACTIONS = ("list_agents", "define", "spawn", "status", "collect")

SPEC = ToolSpec(
    NAME,
    "Delegate tasks to specialist agents that work in the background. list_agents shows the specialists, define adds "
    "one, spawn starts a task and returns its task_id at once, status tells how far a task is, and collect takes the "
    "result of a finished task.",
    compact(
        {
            "type": "object",
            "properties": {
                "action": {
                    "type": "string",
                    "enum": ACTIONS,
                    "description": "list_agents: the specialists there are. define: register a new one. spawn: start a "
                    "task; returns at once. status: whether a task is running, completed or failed. collect: the "
                    "result of a completed or failed task; its task_id is invalid afterwards.",
                },
                "name": {
                    "type": "string",
                    "description": "define, required: a new, unique name; lowercase letters, digits, underscores and "
                    "hyphens, 1 to 64 characters.",
                },
                "description": {"type": "string", "description": "define, required: the agent's purpose in one line."},
                "system_prompt": {
                    "type": "string",
                    "description": "define, required: focused instructions for the agent; at most 4000 tokens.",
                },
                "tools": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "define: the names of the agent's tools; none by default. Agents cannot delegate.",
                },
                "model": {"type": "string", "description": "define: the agent's model; yours by default."},
                "max_turns": {
                    "type": "integer",
                    "description": "define: how many turns the agent may take, 1 to 25; 10 by default.",
                },
                "agent": {"type": "string", "description": "spawn, required: the name of the agent to run."},
                "task": {
                    "type": "string",
                    "description": "spawn, required: what to do, at most 1000 tokens. The agent sees nothing of this "
                    "conversation: refer to shared context keys for more.",
                },
                "task_id": {"type": "string", "description": "status and collect, required: the task, such as t_01."},
            },
            "required": ["action"],
        }
    ),
)

SUFFIX = (
    "You are a subagent. Keep your final response concise (under 1000 tokens). Write detailed findings to shared "
    "context rather than including them in your response. Your response will be returned to the orchestrator as a "
    "summary of your work."
)
"""What stands last in every subagent's system text."""

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


def orchestrator_text(agents: Sequence[Agent], offered: Sequence[str]) -> str:
    """What the root is told about the tools it has: its specialists, how to delegate, and how to share."""
    shares = shared_context.NAME in offered
    parts = [specialists(agents), DISCIPLINE] if NAME in offered else []
    if parts and shares:
        parts.append(COMPOSITION)
    if shares:
        parts.append(PARTICIPANT_TEXT)
    return "\n\n".join(parts)


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


def subagent_text(system_prompt: str, offered: Sequence[str]) -> str:
    """A subagent's whole system text: its own instructions, what participants are told, and the suffix last."""
    shared = PARTICIPANT_TEXT if shared_context.NAME in offered else ""
    return "\n\n".join(part for part in (system_prompt, shared, SUFFIX) if part)


def _purpose(agent: Agent) -> str:
    purpose = agent.description.rstrip()
    stop = "" if not purpose or purpose.endswith((".", "!", "?")) else "."
    tools = ", ".join(tool for tool in agent.tools if tool != NAME)
    return f"{purpose}{stop} Tools: {tools or 'none'}.".lstrip()
