"""Promises of the `zeroclaw` dialect about `spawn_subagent` and `delegate`."""

from __future__ import annotations

from tests.dialects.promise import Promise

SPAWNING = (
    Promise("ZC-SPAWN-SCHEMA", "How a SubAgent is instantiated", "`spawn_subagent` takes `prompt`, and nothing else."),
    Promise("ZC-SPAWN-BLOCKS", "Lifecycle", "The call returns when the subagent has come to its end."),
    Promise("ZC-SPAWN-OUTPUT", "What gets delivered back", "The output is the subagent's final response, and no more."),
    Promise("ZC-SPAWN-FIRST-MESSAGE", "Lifecycle", "The prompt is the subagent's first user message, byte for byte."),
    Promise("ZC-SPAWN-ISOLATED", "What gets delivered back", "No other turn of a subagent is seen by its caller."),
    Promise(
        "ZC-SPAWN-IDENTITY",
        "SubAgents",
        "A subagent has its caller's alias, policy, model, system text, workspace and memory allowlist.",
    ),
    Promise("ZC-SPAWN-REGISTRY", "Permission inheritance", "It is offered the tools that its caller is offered."),
    Promise("ZC-MEMORY", "What gets delivered back", "What a subagent stores, it stores for its agent."),
    Promise("ZC-SPAWN-EMPTY", "Lifecycle", "An empty response is `subagent completed without output`."),
    Promise("ZC-SPAWN-FAILED", "refusal strings", "A failing subagent is `subagent run failed: <wrapped error>`."),
    Promise("ZC-SPAWN-NO-TIMEOUT", "What's not supported", "A subagent has no time limit of its own."),
    Promise("ZC-SPAWN-EACH", "Lifecycle", "Equal calls of one reply are all made, and at the same time."),
    Promise(
        "ZC-SPAWN-PROMPT",
        "refusal strings",
        "An empty, missing or mistyped prompt is `Missing or empty 'prompt' parameter`, before everything else.",
    ),
    Promise(
        "ZC-SPAWN-DEPTH",
        "refusal strings",
        "A subagent's call is `spawn_subagent: a subagent may not spawn its own subagents (depth-1 cap)`.",
    ),
    Promise(
        "ZC-SPAWN-GATE",
        "refusal strings",
        "An agent whose profile does not have the tool reads `spawn_subagent: refused — agent '<alias>' risk_profile "
        "does not list spawn_subagent in allowed_tools`.",
    ),
    Promise("ZC-SPAWN-UNRESTRICTED", "risk_profile", "An empty allowed_tools allows every tool."),
    Promise(
        "ZC-SPAWN-ALIAS",
        "refusal strings",
        'An alias that is not configured is `subagent spawn failed: no agent configured under alias "<alias>"`.',
    ),
    Promise(
        "ZC-SPAN",
        "how to verify it actually fired",
        "Every line of a subagent carries `agent_alias`, `session_key` and the span `agent.<alias>.subagent.<run_id>`.",
    ),
    Promise(
        "ZC-DELEGATE-LINES",
        "Delegate: how to verify it actually fired",
        "The start and the end of a target of `delegate` are lines with its own `agent_alias` and `session_key`.",
    ),
    Promise("ZC-SESSION-KEY", "What gets delivered back", "A subagent's session key is `subagent-<run_id>`."),
    Promise(
        "ZC-OVERRIDE-POLICY",
        "Permission inheritance",
        "In Python a policy that escalates is refused with the wrapped violation, which names the field.",
    ),
    Promise(
        "ZC-OVERRIDE-MEMORY",
        "Permission inheritance",
        "In Python a memory allowlist may only narrow, and never loses the agent's own alias.",
    ),
)

RIGHTS = (
    Promise("ZC-SUBSET", "Permission inheritance", "A subagent never has a right that its caller does not have."),
    Promise(
        "ZC-OWN-POLICY",
        "Choosing between",
        "A target has the operator's profile for it under the session's ceiling, whatever the caller says.",
    ),
    Promise(
        "ZC-CEILING",
        "Choosing between",
        'With `delegation_ceiling = "caller"` it has what both may do, and so have the agents that it delegates to.',
    ),
    Promise("ZC-HIDDEN", "How a user makes one fire", "A tool that a profile takes away is not shown to the model."),
    Promise(
        "ZC-READONLY",
        "Permission inheritance",
        "A read-only agent reads `Security policy: read-only mode, cannot perform '<tool>'`.",
    ),
    Promise(
        "ZC-ACTIONS",
        "Permission inheritance",
        "Every valid launch costs one action, refusals cost none, and without one it is `Rate limit exceeded: action "
        "budget exhausted`.",
    ),
    Promise(
        "ZC-WINDOWS",
        "Permission inheritance",
        "Actions and cost are counted for each agent, and what those below it use counts for it as well.",
    ),
    Promise("ZC-NO-WIDENING", "Permission inheritance", "Nothing in a response starts, approves or widens anything."),
)

DELEGATING = (
    Promise(
        "ZC-DELEGATE-SCHEMA",
        "delegate",
        "`delegate` has the document's parameters and those of `await`, requires none, names the agents, and takes no "
        "empty agent or prompt.",
    ),
    Promise("ZC-ORDER", "delegate", "A call is checked in the order action, parallel, agent, prompt."),
    Promise(
        "ZC-DELEGATE-SYNC",
        "delegate: output strings",
        "A response follows the line `[Agent '<target>' (<provider>/<model>)]`, the provider by its wire's name.",
    ),
    Promise("ZC-DELEGATE-EMPTY", "delegate: output strings", "An empty response is `[Empty response]`."),
    Promise(
        "ZC-DELEGATE-FAILED",
        "delegate: output strings",
        "A failing target is `Agent '<target>' failed: <wrapped error>`.",
    ),
    Promise(
        "ZC-DELEGATE-IDENTITY",
        "Choosing between",
        "A target has its own alias, prompt, model provider, memory and workspace.",
    ),
    Promise("ZC-DELEGATE-FIRST-MESSAGE", "delegate", "The prompt is the target's first user message, byte for byte."),
    Promise(
        "ZC-DELEGATE-CONTEXT",
        "delegate",
        "A context is put in front of it, as `[Context]` and `[Task]` with a blank line between.",
    ),
    Promise("ZC-DELEGATE-TOOLS", "Permission inheritance", "A target that names no tools has all its profile allows."),
    Promise("ZC-ROOT-TOOLS", "Permission inheritance", "So has a root that an agent of the settings works as."),
    Promise("ZC-DELEGATE-SPAWNS", "What's not supported", "A delegated agent may spawn one level of subagents."),
    Promise("ZC-AGENTIC", "runtime_profile", "With `agentic = false` a target answers in one turn without tools."),
    Promise(
        "ZC-ITERATIONS",
        "runtime_profile",
        "At `max_tool_iterations` (10) a target fails with `maximum tool iterations (<N>)`.",
    ),
    Promise("ZC-TIMEOUT", "delegate: output strings", "A late target is `Agent '<target>' timed out after <N>s`."),
    Promise(
        "ZC-TIMEOUT-DEFAULTS",
        "runtime_profile",
        "`delegation_timeout_secs` binds where it is set, else `agentic_timeout_secs` (300), or 120 if not agentic.",
    ),
    Promise(
        "ZC-DEPTH",
        "delegate: output strings",
        "A caller at its own `max_delegation_depth` (3) reads `Delegation depth limit reached (<depth>/<max>)`.",
    ),
    Promise(
        "ZC-UNKNOWN",
        "delegate: output strings",
        "An unknown target is refused with the names of all agents, in the order of the settings.",
    ),
    Promise("ZC-SELF", "Choosing between", "An agent that names itself reads the text of an unknown agent."),
    Promise(
        "ZC-PROVIDER",
        "delegate",
        "A provider that cannot be asked is `Failed to create model_provider '<x>' for agent '<target>': <reason>`.",
    ),
    Promise(
        "ZC-ACTION",
        "delegate: output strings",
        "Another action is refused with the four of the document, up to the dot at the end.",
    ),
    Promise("ZC-MISSING", "delegate", "What is missing or mistyped is `Missing '<name>' parameter`."),
    Promise("ZC-BLANK", "delegate", "A blank agent or prompt is `'<name>' parameter must not be empty`."),
    Promise("ZC-TYPES", "delegate", "Whatever a model writes is a request or a refusal, and nothing else."),
    Promise(
        "ZC-PARALLEL",
        "delegate: output strings",
        "Several targets run concurrently; the results are in the order of the request, with the document's headers.",
    ),
    Promise("ZC-PARALLEL-CONTEXT", "delegate", "Each of them gets the same prompt and context."),
    Promise(
        "ZC-PARALLEL-FAILED",
        "delegate: output strings",
        "A failed one has its error in its block, and the whole ends with `Error: One or more parallel agents failed`.",
    ),
    Promise(
        "ZC-PARALLEL-UNKNOWN",
        "delegate: output strings",
        "An unknown name among them is refused before any of them is started.",
    ),
)

BACKGROUND = (
    Promise(
        "ZC-BACKGROUND-START",
        "delegate: output strings",
        "A background task is started with the document's three lines, while it goes on.",
    ),
    Promise(
        "ZC-FILE",
        "delegate: output strings",
        "Its file is `<workspace>/delegate_results/<task_id>.json` in the caller's workspace, of seven keys in order.",
    ),
    Promise("ZC-FILE-STATUS", "delegate: output strings", "Its status is Running, Completed, Failed or Cancelled."),
    Promise("ZC-FILE-CASE", "delegate: output strings", "A status is read in any case of letters."),
    Promise("ZC-FILE-ATOMIC", "delegate: output strings", "A file is whole JSON at every instant."),
    Promise("ZC-FILE-TRUTH", "delegate: output strings", "A file that is lost, broken or forged is made again."),
    Promise("ZC-FILE-KEYS", "delegate: output strings", "A file never holds a provider's key."),
    Promise("ZC-FOLDER", "delegate: output strings", "No link leads out of the folder of results."),
    Promise("ZC-TASK-ID", "delegate", "A task_id that is no UUID is `Invalid task_id '<x>': must be a valid UUID`."),
    Promise(
        "ZC-CHECK",
        "delegate: output strings",
        "`check_result` shows the file alone, and is a success when the task is completed.",
    ),
    Promise(
        "ZC-CHECK-UNKNOWN",
        "delegate: output strings",
        "A task that this workspace does not have is `No result found for task_id '<uuid>'`.",
    ),
    Promise(
        "ZC-LIST",
        "delegate",
        "`list_results` has every task in short, the oldest first, or `No background delegate results found.`.",
    ),
    Promise(
        "ZC-CANCEL",
        "delegate",
        "`cancel_task` stops the task for good, or says why there is nothing to stop.",
    ),
    Promise("ZC-CANCEL-PARENT", "delegate", "A task that ends with its tree says `Cancelled by parent session`."),
    Promise(
        "ZC-AWAIT",
        "delegate",
        "`await` reports up to 128 tasks at once, within 30 seconds or `timeout_ms`, at most 120 seconds.",
    ),
    Promise("ZC-NOT-ANNOUNCED", "delegate", "The end of a background task gives no notice to its caller."),
    Promise("ZC-ROOT-ANSWER", "delegate", "Background tasks change nothing of the answer of their caller."),
    Promise(
        "ZC-INTERRUPTED",
        "delegate: output strings",
        "A task without a live process is Failed in its file, which says how to go on with it.",
    ),
    Promise("ZC-RESUMED", "delegate", "Tasks survive their process, and a process that adopts goes on with them."),
    Promise("ZC-ONCE", "delegate", "Each of them ends once, however often processes are killed."),
    Promise("ZC-KEYED", "Lifecycle", "A call that a crash interrupted goes on with what it had begun."),
    Promise("ZC-COMMAND", "delegate", "`retinue run` waits for background tasks, and `runs resume` goes on with them."),
)

SETTINGS = (
    Promise(
        "ZC-MODEL-PROVIDER",
        "Permission inheritance",
        "`model_provider` names where an agent and its subagents are asked, with the temperature of that provider.",
    ),
    Promise("ZC-POLICY-DEFAULTS", "Permission inheritance", "A profile that says nothing has the published values."),
    Promise(
        "ZC-ESCALATION",
        "Permission inheritance",
        "Of thirteen axes the first that exceeds the parent's is named, in the published text.",
    ),
    Promise("ZC-KEYS", "risk_profile", "A key without a meaning here is a warning, and an unknown key an error."),
    Promise(
        "ZC-CONFIG-FILE",
        "risk_profile",
        "A whole `config.toml` loads: known tables are used, and one warning names what is ignored.",
    ),
)

MEMORY = (
    Promise("ZC-MEMORY-TEXTS", "Memory tools", "Storing, recalling and forgetting answer with the published texts."),
    Promise(
        "ZC-MEMORY-SCOPE", "Memory tools", "An agent reads its own rows and those of its allowlist, and writes its own."
    ),
    Promise(
        "ZC-MEMORY-WORKSPACE",
        "What gets delivered back",
        "With the backend `markdown` memories are in the workspace of the agent, which its subagents share.",
    ),
    Promise(
        "ZC-MEMORY-AUTO-SAVE",
        "What gets delivered back",
        "With `memory.auto_save` messages of the user from 20 characters on are memories of their conversation.",
    ),
    Promise("ZC-MEMORY-GATED", "Memory tools", "Storing and forgetting are actions, and recalling is none."),
)

CRON = (
    Promise(
        "ZC-CRON-RUN",
        "How a SubAgent is instantiated",
        "A job of the clock is a root run in a session `cron-<uuid>`, its prompt after `[cron:<id> <name>] `.",
    ),
    Promise("ZC-CRON-SPAWNS", "What's not supported", "It may itself spawn one level of subagents."),
    Promise(
        "ZC-CRON-SPAN",
        "how to verify it actually fired",
        'Every line of it has `category="cron"`, `agent_alias`, `cron_job_id`, `run_id` and `spawn_site="cron"`.',
    ),
    Promise("ZC-CRON-RECALL", "Cron", "It is shown up to five memories of its agent, and none of conversations."),
    Promise("ZC-CRON-NO-SAVE", "What gets delivered back", "Nothing of it is remembered but what the agent stores."),
    Promise(
        "ZC-CRON-BLOCKED",
        "Cron",
        "What may not be done is `blocked by security policy: <why>`, or `subagent spawn failed: <wrapped error>`.",
    ),
)

PROMISES = (*SPAWNING, *RIGHTS, *DELEGATING, *BACKGROUND, *SETTINGS, *MEMORY, *CRON)
