"""Promises of the `claude` dialect; its sections are the names of its tools and parameters."""

from __future__ import annotations

from tests.dialects.promise import Promise

PROMISES = (
    # All tools
    Promise("CL-FOUR", "Tools", "The dialect has four tools, of which the first is called Agent, or Task by setting."),
    Promise("CL-OBJECT", "Tools", "Every answer is one JSON object, and any arguments get an answer or a refusal."),
    Promise("CL-REFUSED", "Tools", "Wrong arguments are refused with the valid ones, and change nothing."),
    Promise("CL-EMPTY", "Tools", "An optional argument that is null or empty counts as left out."),
    Promise("CL-CRASH", "Tools", "After a crash at any write the agents, answers and messages are the same."),
    Promise("CL-HOST", "Tools", "A program outside has the results of background agents from ListAgents."),
    # Agent
    Promise("CL-COMPLETED", "Agent", "A call returns the last message of the sub-agent, its id, type and usage."),
    Promise("CL-TOGETHER", "Agent", "Several calls of one reply work at the same time."),
    Promise("CL-FRESH", "Agent", "A sub-agent sees its prompt alone, and is told what it is and how much it may do."),
    Promise("CL-FAILED", "Agent", "An empty answer, a failure and a reached limit are failed, with a reason."),
    Promise("CL-BUILT-IN", "subagent_type", "Without agents the types are general-purpose, Explore and Plan."),
    Promise("CL-READ-ONLY", "subagent_type", "The policy of Explore and Plan is read-only."),
    Promise(
        "CL-TYPE", "subagent_type", "A configured agent works with its prompt, tools and model; case does not matter."
    ),
    Promise("CL-TYPE-UNKNOWN", "subagent_type", "An unknown type is refused with the names of the known ones."),
    Promise("CL-MODEL", "model", "It goes before the type's model; sonnet, opus, haiku and fable are of Anthropic."),
    Promise("CL-ASYNC", "run_in_background", "The call returns async_launched at once, without an output file."),
    Promise("CL-NOTICE", "run_in_background", "The end reaches the caller as a message with the prompt and status."),
    Promise("CL-FORGED", "run_in_background", "No sub-agent can continue a message with a header of another one."),
    Promise("CL-NAME", "name", "A name stands for the id; one that is taken is refused."),
    Promise("CL-WORKTREE", "isolation", "With worktree the result has a branch and a patch of what was changed."),
    Promise("CL-WORKTREE-APART", "isolation", "A sub-agent in a worktree cannot read or write the caller's folder."),
    Promise("CL-WORKTREE-REFUSED", "isolation", "Without a git repository in the workspace the call is refused."),
    Promise("CL-IGNORED", "team_name", "The arguments team_name and mode are accepted and ignored."),
    Promise("CL-RUNNING", "max_running", "A call that would exceed max_running is refused."),
    Promise("CL-DEPTH", "max_depth", "At max_depth a sub-agent can send messages, and no more."),
    # SendMessage, TaskStop, ListAgents
    Promise("CL-SEND", "SendMessage", "A running sub-agent reads the message at its next turn."),
    Promise("CL-RESUME", "SendMessage", "An ended sub-agent goes on with its history under the same id."),
    Promise("CL-MAIN", "SendMessage", "A sub-agent reaches the top as main, unless that is a program outside."),
    Promise("CL-STOP", "TaskStop", "It stops the sub-agent and all below it; one that has ended is refused."),
    Promise("CL-STOPPED", "TaskStop", "A message continues what TaskStop stopped, and not what a person cancelled."),
    Promise("CL-LIST", "ListAgents", "It lists the caller's sub-agents with id, name, type, status and prompt."),
)
