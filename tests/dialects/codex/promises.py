"""Promises of the `codex` dialect; its sections are the names of its tools and parameters."""

from __future__ import annotations

from tests.dialects.promise import Promise

PROMISES = (
    # All tools
    Promise("CX-SIX", "Tools", "The dialect has exactly the six tools of this page."),
    Promise("CX-OBJECT", "Tools", "Every answer is one JSON object, and any arguments get an answer or a refusal."),
    Promise("CX-REFUSED", "Tools", "Wrong arguments are refused with the valid ones, and change nothing."),
    Promise("CX-EMPTY", "Tools", "An optional argument that is null or empty counts as left out."),
    Promise("CX-CRASH", "Tools", "After a crash at any write the agents, answers and messages are the same."),
    Promise("CX-HOST", "Tools", "A program outside has the statuses from list_agents in place of messages."),
    # spawn_agent
    Promise("CX-SPAWN", "spawn_agent", "It returns the canonical path at once, and the agent works beside its caller."),
    Promise("CX-TASK", "spawn_agent", "The agent is told its path, its caller, its limits and its task."),
    Promise("CX-FINAL", "spawn_agent", "The final answer reaches the caller as a message with task and status."),
    Promise("CX-FORGED", "spawn_agent", "No agent can continue a message with a header of another one."),
    Promise("CX-NAME", "task_name", "A name is brought into lower case with underscores, or refused."),
    Promise("CX-TAKEN", "task_name", "A path that exists is refused, also in one reply and in later turns of a chat."),
    Promise("CX-FORK-ALL", "fork_turns", "Without it an agent begins with the whole conversation."),
    Promise("CX-FORK-N", "fork_turns", "With a number it begins with so many of the last turns, with `none` fresh."),
    Promise("CX-FORK-OVERRIDE", "fork_turns", "A fork of the whole history accepts a role, a model and an effort."),
    Promise("CX-CACHE", "fork_turns", "The answer says whether a fork shares the provider's cache, and why not."),
    Promise("CX-ROLE", "agent_type", "A configured agent works with its prompt, tools and model, matched leniently."),
    Promise("CX-THREADS", "max_threads", "An agent that would exceed max_threads, the root included, is refused."),
    Promise("CX-DEPTH", "max_depth", "At max_depth an agent can send messages and list agents, and no more."),
    Promise("CX-NESTED", "max_depth", "Below max_depth agents start agents, whose paths are below theirs."),
    # send_message, followup_task
    Promise("CX-SEND", "send_message", "A running agent reads a message of any agent of its tree at its next turn."),
    Promise("CX-SEND-ENDED", "send_message", "An agent that has ended reads no message, and the call says so."),
    Promise("CX-SEND-ROOT", "send_message", "An agent reaches the root, unless that is a program outside."),
    Promise("CX-FOLLOWUP", "followup_task", "An ended agent goes on with its history under the same path."),
    Promise("CX-FOLLOWUP-RUNNING", "followup_task", "A running agent reads the task at its next turn."),
    Promise("CX-FOLLOWUP-OWN", "followup_task", "It reaches agents below the caller alone, and never the root."),
    # wait_agent
    Promise("CX-WAIT", "wait_agent", "It returns when an agent ends or a message is there, without its content."),
    Promise("CX-WAIT-TIMEOUT", "wait_agent", "It returns after 30 s, or its timeout within 10 s and 1 h."),
    Promise("CX-WAIT-NOTHING", "wait_agent", "Where no agent runs it returns at once."),
    # interrupt_agent
    Promise("CX-INTERRUPT", "interrupt_agent", "It stops the agent and all below it and returns the status before."),
    Promise("CX-INTERRUPT-ON", "interrupt_agent", "An interrupted agent goes on with a further task."),
    Promise("CX-SHUTDOWN", "interrupt_agent", "An agent that a person cancelled is shut down, and does not go on."),
    # list_agents
    Promise("CX-LIST", "list_agents", "It lists root and agents by path, those below path_prefix if that is given."),
    Promise("CX-STATUS", "list_agents", "A status is one of the seven of Codex."),
)
