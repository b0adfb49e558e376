"""What the `xzatoma` dialect promises about its `subagent` tool."""

from __future__ import annotations

from retinue.dialects.promises import Promise

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
    Promise("XZ-TOOLS-INHERITED", "allowed_tools", "A subagent is offered the tools that its caller is offered."),
    Promise("XZ-TOOLS-ALLOWED", "allowed_tools", "With allowed_tools it is offered those only, in the caller's order."),
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
        "XZ-ORDER", "Input Schema", "A call is checked for depth, shape, prompt, label, turns and tools, in this order."
    ),
    Promise("XZ-NEVER-RAISES", "Error Response", "Whatever a model writes as arguments is answered, never raised."),
    # Settings, ends and crashes
    Promise("XZ-SETTINGS", "Configuration Reference", "The settings set depth, default turns and the output's size."),
    Promise("XZ-PARENT-ENDS", "Overview", "A subagent is cancelled with its caller."),
    Promise("XZ-KEYED", "Overview", "After a crash a call finds its subagent and goes on, and nothing is asked twice."),
)
"""All that the dialect promises."""
