"""Promises of the `native` dialect; its sections are the names of its tools, and those of the reference page."""

from __future__ import annotations

from tests.dialects.promise import Promise

PROMISES = (
    # All tools
    Promise("NA-SIX", "Tools", "The dialect has exactly the six tools of this page."),
    Promise("NA-SIZE", "Tools", "The six definitions are at most 3,900 characters of compact JSON together."),
    Promise("NA-NAMES", "Tools", "The schema of run_agent lists the agents and tools that a call may name."),
    Promise("NA-BARE", "Tools", "All six tools work without any settings, agents or tools."),
    Promise("NA-ONE-OBJECT", "Tools", "Every answer and every refusal is one JSON object."),
    Promise("NA-REFUSED", "Tools", "Wrong arguments are refused with the names of the valid ones, and change nothing."),
    Promise("NA-UNKNOWN-RUN", "Tools", "An unknown run is refused with the ids of the caller's runs."),
    Promise("NA-OWN-RUNS", "Tools", "A caller can name no run but those below it and those of its own chat."),
    Promise("NA-NULL", "Tools", "An optional argument that is null, empty or a meaningless zero counts as left out."),
    # run_agent
    Promise("NA-ANSWER", "run_agent", "The answer has the run, its state, its text and what it used."),
    Promise("NA-TOGETHER", "run_agent", "Several calls of one reply work at the same time."),
    Promise("NA-FRESH", "run_agent", "By default a child sees its task and nothing of the conversation."),
    Promise("NA-CONTEXT-ALL", "context", "With `all` a child has the whole conversation before the call."),
    Promise("NA-CONTEXT-N", "context", "With a number a child has so many of the last turns."),
    Promise("NA-CACHE", "context", "An answer about a running fork says whether it shares the provider's cache."),
    Promise("NA-AGENT", "agent", "A configured agent works with its own prompt, model, tools, limits and policy."),
    Promise("NA-AGENT-LENIENT", "agent", "Case, blanks, hyphens and underscores in an agent's name do not matter."),
    Promise("NA-AGENT-UNKNOWN", "agent", "An unknown agent is refused with the names of the known ones."),
    Promise("NA-INSTRUCTIONS", "instructions", "They are part of the child's system text, after that of its agent."),
    Promise("NA-TOOLS", "tools", "A child has the caller's tools, those of its agent, or those of the call."),
    Promise("NA-TOOLS-UNKNOWN", "tools", "A tool that neither the caller nor the agent has is refused."),
    Promise("NA-MODEL", "model", "The call's model goes before that of the agent and of the caller."),
    Promise("NA-LIMITS", "max_turns", "The narrower of the agent's limits and the call's limits holds."),
    Promise("NA-WRAP-UP", "max_turns", "A child at its turn limit is asked once for an answer, and is exhausted."),
    Promise("NA-SCHEMA", "output_schema", "The answer is JSON that matches the schema, or the state is failed."),
    Promise("NA-SCHEMA-BAD", "output_schema", "A value that is not a usable JSON Schema is refused."),
    Promise("NA-BACKGROUND", "background", "The call returns at once, and the caller gets a message at the end."),
    Promise("NA-READ-ONCE", "background", "A caller that has read an end gets no message about it."),
    Promise("NA-PARENT-WAITS", "background", "The caller's final answer waits for its running children."),
    Promise("NA-WORKTREE", "isolation", "With `worktree` the answer has a branch and a patch of what was changed."),
    Promise("NA-WORKTREE-APART", "isolation", "A child in a worktree cannot read or write the folder of its caller."),
    Promise("NA-WORKTREE-CRASH", "isolation", "After a crash at any write the same is handed back."),
    Promise("NA-WORKTREE-MESSAGE", "isolation", "A message continues the work with what was handed back."),
    Promise("NA-WORKTREE-REFUSED", "isolation", "Without a git repository in the workspace the call is refused."),
    Promise("NA-KEY", "key", "The same key in one tree gives the same run."),
    Promise("NA-WAIT-SECONDS", "wait_seconds", "After them the call returns with the next call, and the run goes on."),
    Promise("NA-EMPTY", "state", "An empty answer is the state failed."),
    Promise("NA-PARTIAL", "state", "A run that stopped early has its last text as answer, and the reason as error."),
    Promise("NA-DEPTH", "max_depth", "A child cannot delegate unless max_depth allows it."),
    Promise("NA-MAX-RUNNING", "max_running", "A call that would exceed max_running is refused."),
    Promise("NA-CRASH", "run_agent", "After a crash at any write a call finds its run and answers the same."),
    # wait_agents
    Promise("NA-WAIT-ALL", "wait_agents", "It returns the answers of all runs, in the order of the call."),
    Promise("NA-WAIT-ANY", "until", "With `any` or a number it returns when so many have ended."),
    Promise("NA-WAIT-TIMEOUT", "seconds", "After them it returns what there is, with timed_out true."),
    # message_agent
    Promise("NA-MESSAGE", "message_agent", "A working run reads the message at its next turn."),
    Promise("NA-MESSAGE-ENDED", "message_agent", "An ended run goes on with its history, under the same id."),
    Promise("NA-MESSAGE-CANCELLED", "message_agent", "A cancelled run takes no message."),
    Promise("NA-MESSAGE-RIGHTS", "message_agent", "A run that goes on has no more rights than before."),
    # agent_result
    Promise("NA-PAGES", "agent_result", "The pages count from 1, and joined are the answer exactly."),
    Promise("NA-LONG", "agent_result", "Other tools return the first page of a long answer, and name the next call."),
    Promise("NA-RESULT-WORKING", "agent_result", "A run that has not ended has a state and no answer."),
    # cancel_agent, list_agents
    Promise("NA-CANCEL", "cancel_agent", "It stops the run and all below it, and answers when it has ended."),
    Promise("NA-CANCEL-ENDED", "cancel_agent", "A run that has ended stays as it is."),
    Promise("NA-LIST", "list_agents", "It lists the configured agents, and the caller's runs, newest first."),
)
