"""Promises of the `xzatoma` dialect: its tools, its settings and `retinue replay`."""

from __future__ import annotations

from tests.dialects.promise import Promise

PROMISES = (
    # The tool
    Promise("XZ-TOOL", "Tool Definition", "The tool has the document's name, description and parameters."),
    Promise("XZ-BLOCKS", "Overview", "The call returns when the subagent has given its summary."),
    Promise("XZ-TOGETHER", "Overview", "Several calls of one reply work at the same time."),
    # The subagent
    Promise("XZ-FIRST-MESSAGE", "task_prompt", "The task prompt is the subagent's first user message, byte for byte."),
    Promise("XZ-ISOLATED", "Overview", "Neither conversation is seen by the other but for the prompts and the answer."),
    Promise("XZ-SAME-AGENT", "Overview", "A subagent has the agent, model and system text of its caller."),
    Promise("XZ-SUMMARY", "summary_prompt", "The summary prompt follows the task's answer in the same conversation."),
    Promise("XZ-SUMMARY-DEFAULT", "summary_prompt", "Without one it is `Summarize your findings concisely`."),
    Promise("XZ-SUMMARY-NO-TOOLS", "summary_prompt", "It is sent without tools, and calls made anyway are not made."),
    Promise(
        "XZ-ROOT-TOOLS",
        "allowed_tools",
        "A root of `run` and `chat` without a list has `file_ops`, `grep`, `fetch` and `terminal`.",
    ),
    Promise("XZ-TOOLS-INHERITED", "allowed_tools", "A subagent is offered the tools that its caller is offered."),
    Promise("XZ-TOOLS-ALLOWED", "allowed_tools", "With allowed_tools it is offered those only, in the caller's order."),
    Promise("XZ-TOOLS-TOLD", "allowed_tools", "The schema of allowed_tools lists the tools that it may name."),
    Promise("XZ-TOOLS-NO-REGAIN", "allowed_tools", "A tool that a subagent does not have, none of its own can have."),
    Promise("XZ-TOOL-CRASH", "Error Response", "A tool that fails is read by the subagent's model, which goes on."),
    # Nesting
    Promise("XZ-NESTING", "Limitations", "Every run is offered `subagent`, and may use it above max_depth."),
    Promise(
        "XZ-DEPTH",
        "Common Error Messages",
        "At max_depth a call is refused with the depth error, before its input is looked at.",
    ),
    # Turns
    Promise("XZ-TURN", "turns_used", "A turn is one reply, and turns_used counts those of the summary too."),
    Promise("XZ-TURN-LIMIT", "max_turns", "At max_turns the last calls are not made and the summary is still asked."),
    Promise("XZ-TURN-EXACT", "max_turns", "A task that is answered with its last allowed turn is complete."),
    Promise("XZ-TURN-DEFAULT", "max_turns", "Without max_turns the settings' default_max_turns holds."),
    # The answer
    Promise("XZ-SHAPE", "Response Format", "Every call is answered with success, output, error and metadata."),
    Promise("XZ-STRINGS", "Metadata Fields", "All metadata values are strings."),
    Promise("XZ-SUCCESS", "Success Response", "A success has the summary as output, no error and six metadata fields."),
    Promise("XZ-EMPTY", "output", "A summary without a word is a success with an empty output."),
    Promise("XZ-RECURSION-DEPTH", "recursion_depth", "It is the subagent's depth: `1` for the root's own."),
    Promise("XZ-TOKENS", "tokens_consumed", "It is the sum of the subagent's input and output tokens."),
    Promise("XZ-TOKENS-NONE", "tokens_consumed", "It is `0` when the provider reports none."),
    Promise(
        "XZ-TRUNCATION",
        "output",
        "An output above output_max_size bytes is cut between characters and followed by the notice.",
    ),
    Promise("XZ-TRUNCATION-STORE", "output", "The whole text stays in the store."),
    # Errors
    Promise("XZ-FAILURE", "Error Response", "A failing subagent is `Subagent execution failed: <reason>`."),
    Promise("XZ-ERROR-METADATA", "Error Response", "The metadata of an error is subagent_label and recursion_depth."),
    Promise(
        "XZ-LABEL", "Common Error Messages", "A missing or empty label is ``Invalid input: missing field `label```."
    ),
    Promise("XZ-LABEL-UNKNOWN", "subagent_label", "The label of a call that has none is `unknown`."),
    Promise("XZ-PROMPT", "Common Error Messages", "A missing or blank prompt is `task_prompt cannot be empty`."),
    Promise("XZ-TURN-RANGE", "Common Error Messages", "Other turns are `max_turns must be between 1 and 50`."),
    Promise(
        "XZ-BLOCKED",
        "Common Error Messages",
        "`subagent` in allowed_tools is `Tool 'subagent' cannot be used by subagents`.",
    ),
    Promise(
        "XZ-UNKNOWN-TOOL",
        "Common Error Messages",
        "A tool that the caller is not offered is `Unknown tool in allowed_tools: <name>`.",
    ),
    Promise("XZ-MISTYPED", "Input Schema", "Anything else that is not as the schema says is `Invalid input: <why>`."),
    Promise("XZ-NULL", "Input Schema", "A field that is null counts as left out."),
    Promise(
        "XZ-ORDER",
        "Input Schema",
        "A call is checked for quota, depth, shape, prompt, label, turns and tools, in this order.",
    ),
    Promise("XZ-NEVER-RAISES", "Error Response", "Whatever a model writes as arguments is answered, never raised."),
    # Settings, ends and crashes
    Promise(
        "XZ-SETTINGS-RANGES",
        "Configuration Reference",
        "A setting out of its range is `Configuration error: <why>` in the document's text.",
    ),
    Promise("XZ-YAML", "Configuration Reference", "The settings can be written in YAML, as the document does."),
    Promise("XZ-SETTINGS", "Configuration Reference", "The settings set depth, default turns and the output's size."),
    Promise("XZ-PARENT-ENDS", "Overview", "A subagent is cancelled with its caller."),
    Promise("XZ-KEYED", "Overview", "After a crash a call finds its subagent and goes on, and nothing is asked twice."),
    Promise(
        "XZ-OVERRIDE",
        "Configuration Reference",
        "With provider or model in the settings subagents have that one, and an unknown provider is refused.",
    ),
    # Telemetry
    Promise(
        "XZ-TELEMETRY",
        "Telemetry Events",
        "Every event is one line of `retinue.tools.subagent`: the fields in their order, then the message.",
    ),
    Promise(
        "XZ-RUST-LOG",
        "Enable Logging",
        "`RUST_LOG=info` and `RUST_LOG=xzatoma::tools::subagent=debug` show these lines where `RETINUE_LOG` is unset.",
    ),
    Promise("XZ-TELEMETRY-SPAWN", "Event: spawn", "At info, when a subagent exists: with the tools it is offered."),
    Promise("XZ-TELEMETRY-COMPLETE", "Event: complete", "At info, when a subagent has given its summary."),
    Promise("XZ-TELEMETRY-ERROR", "Event: error", "At error, when a subagent fails: with the reason."),
    Promise("XZ-TELEMETRY-MAX-TURNS", "Event: max_turns_exceeded", "At warn, when a subagent meets its turn limit."),
    Promise("XZ-TELEMETRY-TRUNCATION", "Event: truncation", "At warn, when an output is cut: with both sizes."),
    Promise("XZ-TELEMETRY-DEPTH", "Event: depth_limit", "At debug, when a caller is too deep."),
    Promise("XZ-TELEMETRY-REFUSALS", "Event: error", "A call that makes no sense emits no event."),
    Promise("XZ-TELEMETRY-OFF", "telemetry_enabled", "With telemetry_enabled false nothing is emitted or measured."),
    Promise(
        "XZ-METRICS",
        "Telemetry Events",
        "Executions, ends, errors, durations, turns and tokens are measured.",
    ),
    # Quotas
    Promise(
        "XZ-QUOTA-EXECUTIONS",
        "Rate Limits and Quotas",
        "At max_executions a call is `Resource quota exceeded: Execution limit reached: 3/3`, failed runs counted.",
    ),
    Promise(
        "XZ-QUOTA-TOKENS",
        "Rate Limits and Quotas",
        "At max_total_tokens it is `Resource quota exceeded: Token limit exceeded: 10500/10000`, a call over at most.",
    ),
    Promise(
        "XZ-QUOTA-TIME",
        "Rate Limits and Quotas",
        "At max_total_time it is `Resource quota exceeded: Time limit exceeded: 60s >= 60s`.",
    ),
    Promise("XZ-QUOTA-SHARED", "Rate Limits and Quotas", "Nested subagents draw on the same quotas."),
    Promise(
        "XZ-QUOTA-SESSION",
        "Rate Limits and Quotas",
        "Every root run has quotas of its own, unless it goes on with a chat.",
    ),
    Promise(
        "XZ-QUOTA-CHAT",
        "Rate Limits and Quotas",
        "A chat has one quota, however often its delegation is switched or an answer stopped.",
    ),
    Promise(
        "XZ-QUOTA-MIDDLE",
        "Rate Limits and Quotas",
        "A subagent that is stopped by a quota is not asked for a summary and fails with the quota's text.",
    ),
    Promise("XZ-QUOTA-CRASH", "Rate Limits and Quotas", "What was used before a crash counts after it."),
    # Persistence
    Promise(
        "XZ-DROPPED",
        "persistence_enabled",
        "Without it a subagent's messages are dropped at the end of its tree, a crash or not, and its outcome stays.",
    ),
    Promise("XZ-KEPT", "persistence_enabled", "With it every subagent's conversation stays, failed ones included."),
    Promise("XZ-KEPT-COPY", "persistence_enabled", "With persistence_path conversations are copied there as well."),
    Promise("XZ-REPLAY", "persistence_enabled", "`retinue replay` lists, shows and draws kept conversations."),
    Promise(
        "XZ-REPLAY-ERRORS",
        "persistence_enabled",
        "Without anything to show it says `Error: Must specify --list or --id` or that there is no such conversation.",
    ),
    # Chats
    Promise(
        "XZ-CHAT-SWITCH",
        "Chat mode",
        "`/subagents on|enable|off|disable` says whether a chat's model may delegate, and alone it switches.",
    ),
    Promise("XZ-CHAT-WORDS", "Chat mode", "Seven expressions in a prompt switch delegation on, if it is configured."),
    Promise("XZ-CHAT-STATUS", "Chat mode", "`/status` shows `Subagents:        ENABLED` or `disabled`."),
    Promise("XZ-CHAT-ENABLED", "Chat mode", "With chat_enabled a chat begins with delegation."),
    # The program's own settings file
    Promise(
        "XZ-CONFIG-FILE",
        "Configuration Reference",
        "A whole `config.yaml` loads, its provider section chooses the model, and one warning names what is ignored.",
    ),
    # Several at once
    Promise("XZ-PARALLEL", "parallel_subagent", "The tasks work at the same time, and the call returns after all."),
    Promise("XZ-PARALLEL-ROOT", "parallel_subagent", "It is offered to the root alone."),
    Promise(
        "XZ-PARALLEL-SHAPE",
        "parallel_subagent",
        "The results are JSON text in output, in the order of the tasks, and metadata is empty.",
    ),
    Promise("XZ-PARALLEL-SUMMARY", "parallel_subagent", "A summary is asked for only where the task has a prompt."),
    Promise("XZ-PARALLEL-NO-NESTING", "parallel_subagent", "Its subagents have no tool to delegate with."),
    Promise("XZ-PARALLEL-CONCURRENT", "parallel_subagent", "No more than max_concurrent work at once, 5 by default."),
    Promise(
        "XZ-PARALLEL-FAIL-FAST",
        "parallel_subagent",
        "With fail_fast the first failure is reported and the others are cancelled.",
    ),
    Promise("XZ-PARALLEL-ITEMS", "parallel_subagent", "What is wrong with one task is the error of its result."),
    Promise(
        "XZ-PARALLEL-ERRORS",
        "parallel_subagent",
        "No task is `At least one task required`, and what the schema does not allow is `Invalid input: <why>`.",
    ),
    Promise("XZ-PARALLEL-DEPTH", "parallel_subagent", "At max_depth it is `Maximum subagent depth N reached`."),
    Promise("XZ-PARALLEL-QUOTA", "parallel_subagent", "Every task of a batch is one execution."),
)
"""All that the dialect promises."""
