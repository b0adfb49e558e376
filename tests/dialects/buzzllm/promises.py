"""Promises of the `buzzllm` dialect: `call_subagent`, its process, and named prompts."""

from __future__ import annotations

from tests.dialects.promise import Promise

PROMISES = (
    # The tool
    Promise("BZ-TOOL", "API 1.1", "The tool has the document's name, description and parameters."),
    Promise("BZ-OFFERED", "API 1", "The root is offered it, and no other run."),
    Promise("BZ-ANSWER", "API 1.2", "A call returns when its subagent is done, with what that said."),
    Promise("BZ-CONCATENATED", "API 1.2", "All output_text of all turns is the answer, and nothing else."),
    Promise("BZ-DISCARDED", "API 1.2", "An attempt that broke off and was made again leaves nothing in the answer."),
    Promise("BZ-PROCESS", "API 1.2", "Each subagent is a process of its own."),
    Promise("BZ-TOGETHER", "API 1.2", "Several calls of one reply work at the same time."),
    Promise("BZ-SAME-MODEL", "API 2.2", "A subagent asks its caller's model at its caller's address."),
    Promise("BZ-OPTIONS", "API 2.1", "It thinks if its caller does, at its caller's temperature, or else 0.8."),
    Promise("BZ-MAX-TOKENS", "API 2.2", "A reply of it has at most 8192 tokens, or what its caller's maximum says."),
    Promise("BZ-BYTES", "API 2.1", "Prompt, system prompt and answer travel byte for byte."),
    Promise("BZ-SUBSET", "Available tool names", "It has the tools of tool_subset, in the document's order."),
    Promise("BZ-TOLD-TOOLS", "Available tool names", "The schema of tool_subset lists the tools that it may name."),
    Promise("BZ-NO-TOOLS", "API 1.1", "Without a subset, or with an empty one, it has none."),
    Promise("BZ-DEPTH", "Available tool names", "It cannot call subagents itself."),
    Promise("BZ-ROUNDS", "API 1.2", "It uses tools ten times, and asking an eleventh time is an error."),
    Promise("BZ-EMPTY", "API 1.2", "A subagent that says nothing is an empty answer."),
    # Errors
    Promise("BZ-NOT-CONFIGURED", "API 1.3", "Other providers are `Error: Subagent context is not configured`."),
    Promise(
        "BZ-UNKNOWN-TOOLS",
        "API 1.3",
        "Other names are `Error: Unknown tool names: a, b`, sorted.",
    ),
    Promise("BZ-INVALID", "API 1.1", "Arguments of a wrong shape are `Error: Invalid arguments: <why>`."),
    Promise("BZ-NO-PROCESS", "API 1.3", "A call that is refused starts no process."),
    Promise("BZ-NEVER-RAISES", "API 1.3", "Whatever a model writes as arguments is answered, never raised."),
    Promise("BZ-FAILURE", "API 1.3", "A subagent that fails is `Error: ` and its own reason."),
    Promise("BZ-REASON", "API 1.3", "The reason is the child's block_end, else its last line `error: ` on stderr."),
    Promise("BZ-EXIT-CODE", "API 1.3", "Without a reason it is `Error: Subagent exited with code N`."),
    Promise("BZ-KILLED", "API 1.3", "A child that is killed is an error with the signal as a negative code."),
    Promise("BZ-STARTS", "API 1.3", "A child that cannot be started is an error that says why."),
    Promise("BZ-TIMEOUT", "API 1.3", "A child that hangs is killed after timeout_secs, which the error says."),
    # The process
    Promise("BZ-STDIN", "API 2.1", "A child reads the ten fields as JSON on stdin, in the document's order."),
    Promise("BZ-KEYS", "API 2.2", "Of a key only the name of its variable travels."),
    Promise("BZ-SSE", "API 3", "Of stdout only output_text counts, in any spacing, and other lines are passed over."),
    Promise("BZ-RUN", "API 1.2", "A subagent is a run of its caller's tree."),
    Promise("BZ-GRANT", "API 1.2", "Rights and limits reach a child by one descriptor, its usage comes by another."),
    Promise("BZ-USAGE", "API 1.2", "What a child used is its run's usage, also if it failed or was killed."),
    Promise("BZ-LIMITS", "API 1.2", "A child uses no more than its share of what its caller has left."),
    Promise("BZ-POLICY", "API 1.2", "Its caller's policy holds inside the process; actions count with its caller's."),
    Promise("BZ-POLICY-CATALOG", "Available tool names", "A tool that the policy takes away is an unknown name."),
    Promise("BZ-NO-APPROVALS", "API 1.2", "A call that needs a person is refused inside the process."),
    Promise("BZ-WORKSPACE", "API 1.2", "A child's tools work in its caller's workspace."),
    Promise("BZ-STATE", "API 1.2", "No tool of a child shows the state of its parent."),
    Promise("BZ-PATH", "API 1.2", "A child loads no module from the folder in which it works."),
    Promise("BZ-CANCEL", "API 1.2", "A cancelled call stops its process."),
    Promise("BZ-REAPED", "API 1.2", "No process is left when the retinue is closed."),
    Promise("BZ-PARENT-KILLED", "API 1.2", "Nothing is left of a child, nor its tools, when its parent is killed."),
    Promise("BZ-AGAIN", "API 1.2", "After a crash of its parent a call finds its run, which asks anew."),
    Promise("BZ-WARM", "API 1.2", "After the first call warm_processes wait ready, each for one call."),
    Promise("BZ-WARM-ENVIRONMENT", "API 1.2", "One that was started with another environment is not used."),
    Promise("BZ-SPEED", "API 1.2", "A call takes its model's time and 400 ms, or 60 ms if a process is ready."),
    # retinue call
    Promise("BZ-CALL-STDIN", "API 2.1", "`retinue call` answers one order on stdin."),
    Promise("BZ-CALL-SSE", "API 3", "It writes events to stdout and ends with response_end."),
    Promise("BZ-CALL-EVENTS", "API 3.2", "It writes tool calls and their results as they happen."),
    Promise("BZ-CALL-DISCARDED", "API 3", "It writes no output_text of an attempt that broke off and was made again."),
    Promise("BZ-CALL-PROVIDERS", "API 2.2", "It speaks the four wires."),
    Promise("BZ-CALL-URL", "API 2.2", "Its url is the whole address, to which nothing is added."),
    Promise("BZ-CALL-KEY", "API 2.2", "Its key is read from the variable that the order names, and shown nowhere."),
    Promise("BZ-CALL-NO-KEY", "API 2.2", "Without api_key_name no key is sent."),
    Promise("BZ-CALL-DEFAULTS", "API 2.1", "What is left out or null has its default."),
    Promise("BZ-CALL-SYSTEM", "API 2.1", "Prompt and system prompt reach the model as they are."),
    Promise("BZ-CALL-TOOLS", "Available tool names", "The model is offered the subset and nothing else."),
    Promise("BZ-CALL-ROUNDS", "API 1.2", "Ten rounds of tools are made, and an eleventh is an error."),
    Promise(
        "BZ-CALL-FAILS", "API 1.3", "A failure is a block_end `Error: ...`, response_end, a line on stderr, exit 1."
    ),
    Promise("BZ-CALL-EMPTY", "API 3", "A model without a word is no failure."),
    Promise("BZ-CALL-FORGED", "API 3", "Words of a model cannot pass for events."),
    Promise("BZ-CALL-MISTAKES", "API 2.1", "An order that makes no sense is one line on stderr, and exit 1."),
    Promise("BZ-CALL-HUGE", "API 2.1", "Long prompts go through whole."),
    Promise("BZ-CALL-READS", "API 1.2", "Without a grant, tools read the current folder and change nothing."),
    Promise("BZ-CALL-RESPONSES", "Responses 1", "A request of Responses has the document's fields."),
    Promise("BZ-CALL-CONTINUES", "Responses 3", "It goes on with previous_response_id and the results alone."),
    Promise("BZ-CALL-SETTINGS", "Responses 3", "Settings of the folder hold for tools and the way of Responses."),
    Promise("BZ-RESPONSES-EVENTS", "Responses 2", "Its events become text, thinking and calls, in either spelling."),
    # retinue buzz
    Promise("BZ-BUZZ", "API 2.1", "`retinue buzz` takes that program's arguments and asks one of the four wires."),
    Promise("BZ-BUZZ-DEFAULTS", "API 2.2", "A reply has at most 8192 tokens, at the temperature 0.8."),
    Promise("BZ-BUZZ-TOOLS", "Available tool names", "A prompt with tools brings them, and `call_subagent`."),
    Promise("BZ-BUZZ-COLOURS", "API 3.2", "Calls are cyan, results green, reasoning yellow; NO_COLOR is honoured."),
    Promise("BZ-BUZZ-SSE", "API 3", "With `-S` it prints the events of the document; `-b` hides calls and results."),
    Promise("BZ-BUZZ-DONE", "Structured 4", "After an answer come a blank line and `=== [ DONE ] ===`."),
    Promise("BZ-BUZZ-DISCARDED", "API 3", "It prints nothing of an attempt that broke off and was made again."),
    Promise("BZ-BUZZ-FAILS", "API 1.3", "A failure is a line on stderr and exit 1, Ctrl-C exit 130, without DONE."),
    Promise("BZ-BUZZ-MISTAKES", "API 2.1", "A bad argument, address, key variable or schema is exit 2."),
    # Structured outputs
    Promise("BZ-STRUCTURED-CHAT", "Structured 2", "OpenAI's chat is asked for JSON with response_format, strictly."),
    Promise("BZ-STRUCTURED-ANTHROPIC", "Structured 3", "Anthropic is asked for it with output_config."),
    Promise(
        "BZ-STRUCTURED-PLAIN", "Structured 4.1", "`retinue buzz` prints it once at the end, then `=== [ DONE ] ===`."
    ),
    Promise("BZ-STRUCTURED-SSE", "Structured 4.2", "Of events there is one, output_structured, before response_end."),
    # Named prompts
    Promise("BZ-PROMPTS", "Available tool names", "`--system` knows seven prompts by name."),
    Promise("BZ-PROMPT-TOOLS", "Available tool names", "Three of them add their tools to those that are offered."),
)
"""All that the dialect promises."""
