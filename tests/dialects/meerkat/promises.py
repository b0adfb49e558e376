"""Promises of the `meerkat` dialect."""

from __future__ import annotations

from tests.dialects.promise import Promise

PROMISES = (
    # The tools
    Promise("MK-TOOLS", "Available Tools", "There are five tools with the document's names and descriptions."),
    Promise("MK-SCHEMAS", "Spawn vs Fork", "Their parameters are those of the document's tables."),
    Promise("MK-USAGE", "Monitoring Tips", "The root's system text explains the tools, and says not to poll."),
    Promise("MK-OVERRIDE", "Feature Flag", "A run may choose the dialect although its retinue was opened without it."),
    Promise("MK-SHAPE", "Sub-Agent Execution Lifecycle", "Arguments of a wrong shape are `Invalid parameters: <why>`."),
    Promise("MK-STRICT", "`agent_spawn`", "Without comms a field that spawn does not know is refused."),
    Promise("MK-NEVER-RAISES", "Sub-Agent Execution Lifecycle", "Whatever a model writes is answered, never raised."),
    # agent_spawn
    Promise("MK-SPAWN", "`agent_spawn`", "A spawn is answered at once with the six fields of the document."),
    Promise("MK-IDS", "`agent_spawn`", "Ids are UUIDs of version 7, which sort by the moment of the start."),
    Promise("MK-NAMES", "`agent_spawn`", "Names are `sub-agent-` or `fork-` and the id's first 12 hex digits."),
    Promise("MK-BACKGROUND", "Sub-Agents", "Sub-agents work at the same time as each other and as their parent."),
    Promise("MK-CLEAN", "`agent_spawn`", "A sub-agent knows its prompt, byte for byte, and nothing of its parent's."),
    Promise("MK-SYSTEM", "`agent_spawn`", "Its system text is the one asked for, else its tools' usage, or none."),
    Promise("MK-INHERIT", "SubAgentConfig", "With inherit_system_prompt it has its parent's usage text of each tool."),
    Promise("MK-EMPTY", "Sub-Agent Execution Lifecycle", "A blank prompt is `Prompt cannot be empty`."),
    Promise(
        "MK-ORDER",
        "Sub-Agent Execution Lifecycle",
        "Shape, limits, nesting, prompt, host mode, provider, model and client are checked in this order.",
    ),
    # agent_fork
    Promise("MK-FORK", "`agent_fork`", "A fork is answered at once with the fields of a spawn and two more."),
    Promise("MK-FORK-HISTORY", "`agent_fork`", "A fork begins with its parent's messages, the same bytes."),
    Promise("MK-FORK-INHERITED", "`agent_fork`", "`messages_inherited` leaves out system text and call in progress."),
    Promise("MK-FORK-REPAIR", "`agent_fork`", "Calls in progress have a result in a fork, so that vendors accept it."),
    Promise("MK-FORK-KNOWS", "`agent_fork`", "A fork reads that it is the fork, and then what is asked of it."),
    Promise("MK-FORK-SYSTEM", "`agent_fork`", "A fork has its parent's system text."),
    Promise("MK-FORK-CACHE", "`agent_fork`", "The answer says whether the vendor's cache is shared, and if not, why."),
    Promise("MK-FORK-TOOLS", "`agent_fork`", "With fork_keeps_tools a fork is shown its parent's tools exactly."),
    Promise("MK-FORK-DENIED", "`agent_fork`", "An agent tool that is only shown is `Tool access denied: <tool>`."),
    Promise("MK-FORK-CACHED", "`agent_fork`", "The status of a fork reports the tokens that the vendor had cached."),
    Promise("MK-FORK-NO-HOST", "`agent_fork`", "Host mode is not offered to forks."),
    Promise("MK-FORK-EMPTY", "`agent_fork`", "A blank fork prompt is `Fork prompt cannot be empty`."),
    # Tool access
    Promise("MK-ACCESS", "Tool Access Policies", "A sub-agent has all tools of its parent, those listed, or the rest."),
    Promise("MK-ACCESS-STRING", "Tool Access Policies", "tool_access may be an object or that object as JSON."),
    Promise("MK-ACCESS-UNKNOWN", "Tool Access Policies", "Unknown names are ignored."),
    Promise("MK-ACCESS-GONE", "Tool Access Policies", "A tool that was taken away is not there when called."),
    Promise("MK-NO-NESTING", "Tool Access Policies", "Sub-agents do not get the agent tools."),
    Promise("MK-NESTED", "Concurrency Limits", "With nested_tools they do, and may use them above max_depth."),
    Promise("MK-NESTED-OFF", "SubAgentConfig", "Without allow_nested_spawn a nested call is refused with this text."),
    # Providers and models
    Promise("MK-FAMILY", "Model Allowlists", "A family is the parent's own provider, or a settled one, or the vendor."),
    Promise("MK-ALIASES", "`agent_spawn`", "Spawn knows the vendors' other names in any case, fork the three only."),
    Promise("MK-PROVIDER", "Sub-Agent Execution Lifecycle", "Any other name is `Invalid provider: <name>`."),
    Promise("MK-DEFAULT-PROVIDER", "SubAgentConfig", "Not named, it is default_provider or the parent's family."),
    Promise("MK-DEFAULT-MODEL", "SubAgentConfig", "No model named, it is default_model or the first that is allowed."),
    Promise("MK-FORK-MODEL", "`agent_fork`", "A fork keeps its parent's model unless another is named."),
    Promise("MK-MODEL", "Model Allowlists", "Another model is refused on spawn and fork, and the allowed are named."),
    Promise("MK-OWN-MODEL", "Model Allowlists", "The parent's own model is always allowed on its own provider."),
    Promise("MK-MODELS-TOLD", "Model Allowlists", "The parameter `model` names the allowed models."),
    Promise("MK-CLIENT", "Sub-Agent Execution Lifecycle", "A provider without its key is refused, and named."),
    # Budgets
    Promise("MK-BUDGET", "Spawn Budget", "max_tokens, max_turns and max_tool_calls end a sub-agent with these texts."),
    Promise("MK-BUDGET-HELD", "Spawn Budget", "A budget can be used up; the status says what was left or held."),
    Promise("MK-BUDGET-DEFAULT", "Spawn Budget", "Without max_tokens it is default_budget."),
    Promise("MK-BUDGET-CAP", "SubAgentConfig", "max_budget_per_agent caps every budget."),
    Promise("MK-BUDGET-FORK", "Fork Budget Policies", "The four policies set a fork's tokens, unknown ones are equal."),
    # Limits
    Promise("MK-LIMITS", "Concurrency Limits", "All four limits are enforced, with the texts of spawn and of fork."),
    Promise("MK-LIMITS-RUNNING", "Concurrency Limits", "Only running sub-agents count, in the whole tree."),
    Promise("MK-LIMITS-ORDER", "Concurrency Limits", "Calls of one reply are served in order, the surplus is refused."),
    Promise("MK-LIMITS-BIRTH", "Concurrency Limits", "Limits are checked again at the start, with texts of their own."),
    # Monitoring
    Promise("MK-STATUS", "`agent_status`", "A status has the document's fields, and none that says nothing."),
    Promise("MK-STATUS-FAILED", "`agent_status`", "A failed one has its error and no tokens, a cancelled one neither."),
    Promise("MK-ID-FORMAT", "`agent_status`", "An id that is no UUID is `Invalid agent_id format: <why>`."),
    Promise("MK-NOT-FOUND", "`agent_status`", "An id of no run below the caller is `Sub-agent not found: <id>`."),
    Promise("MK-LIST", "`agent_list`", "The list is in the order of the starts, with the document's counts."),
    Promise("MK-LIST-CANCELLED", "`agent_list`", "Cancelled ones are counted as failed."),
    Promise("MK-CANCEL", "`agent_cancel`", "A cancel stops the sub-agent and all below it before it is answered."),
    Promise("MK-CANCEL-LATE", "`agent_cancel`", "One that is over is left as it is, and the answer says so."),
    Promise("MK-KEPT", "Sub-Agent Execution Lifecycle", "The last 256 to end can be asked about, and no others."),
    Promise("MK-THOUSAND", "Sub-Agents", "A thousand sub-agents in one session have a thousand ids, and none is lost."),
    # News
    Promise("MK-NOTICE", "Monitoring Tips", "The end of a child is a user message of its own, with task and text."),
    Promise("MK-NOTICE-ONCE", "Monitoring Tips", "An end that status or list has shown is not announced again."),
    Promise("MK-WAITS", "Monitoring Tips", "A final answer is held while children run, and each end gives a turn."),
    # Comms and host mode
    Promise("MK-COMMS", "Comms Integration", "With enable_comms parents and children have the four comms tools."),
    Promise("MK-COMMS-TOLD", "Comms Integration", "The answer says how the parent can message the child."),
    Promise("MK-COMMS-BLOCK", "Comms Integration", "A child's prompt begins with how to message its parent."),
    Promise("MK-COMMS-WORDS", "Comms Integration", "Messages arrive as one user message, in this form."),
    Promise("MK-COMMS-TRUST", "Comms Integration", "Only a parent and its own children are peers of each other."),
    Promise("MK-COMMS-OFFLINE", "Comms Integration", "A message to an ended peer is `Peer offline (no ack received)`."),
    Promise("MK-COMMS-ERRORS", "Comms Integration", "Wrong peers, ids, kinds and states are refused with these texts."),
    Promise("MK-COMMS-SEND", "Comms Integration", 'With `comms_tools = "send"` there are `send` and `peers` instead.'),
    Promise("MK-COMMS-ENDLESS", "Comms Integration", "Two that message each other for ever end with their budgets."),
    Promise("MK-HOST", "`agent_spawn`", "In host mode a sub-agent stays and serves messages after its prompt."),
    Promise("MK-HOST-ENDS", "`agent_spawn`", "A host ends with its budget, a cancel, or its parent."),
    Promise("MK-HOST-COMMS", "`agent_spawn`", "Without comms, host_mode is refused with this text."),
    # Settings, crashes
    Promise("MK-SETTINGS", "SubAgentConfig", "`[sub_agents]` has every field of the document's two tables."),
    Promise(
        "MK-CONFIG-FILE",
        "SubAgentConfig",
        "A whole `.rkat/config.toml` loads: model, limits and sub-agents are used, one warning names what is ignored.",
    ),
    Promise("MK-SETTINGS-WRONG", "Model Allowlists", "Lists and defaults that do not fit each other are refused."),
    Promise("MK-CRASH", "Sub-Agents", "A crash at any moment neither loses nor doubles a sub-agent or a message."),
    Promise("MK-RESTART", "Sub-Agents", "After a restart those that ended before can still be asked about."),
    Promise("MK-CHAT", "Sub-Agents", "In a chat those of earlier answers, and of earlier processes, stay known."),
)
"""All that the dialect promises."""
