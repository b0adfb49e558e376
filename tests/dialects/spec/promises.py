"""Promises of the `spec` dialect about `subagent`; shared context has a list of its own."""

from __future__ import annotations

from tests.dialects.promise import Promise
from tests.dialects.shared_context import promises

SUBAGENT = (
    # The registry, and how it is seen
    Promise(
        "SPEC-2.1-REGISTRY", "2.1", "An orchestrator can use the application's agents and those it defines itself."
    ),
    Promise("SPEC-2.1-KEPT", "2.1", "Defined agents stay with their session."),
    Promise("SPEC-2.3-TIMES", "2.3", "When a task was created and when it was resolved is kept with it."),
    Promise("SPEC-2.2-NO-TOOLS", "2.2", "An agent whose tools are not named has none."),
    Promise(
        "SPEC-2.2-OFFERED", "2.2", "A model is offered tools in the order of its agent's list, the same in each turn."
    ),
    Promise(
        "SPEC-3.1-FIELDS", "3.1", "`list_agents` gives name, description, model, max_turns and tools of each agent."
    ),
    Promise(
        "SPEC-3.1-ORDER", "3.1", "Registered agents are listed first, then defined ones in the order of definition."
    ),
    Promise(
        "SPEC-3.1-MODEL", "3.1", "A model is printed without its wire; an agent without one has the orchestrator's."
    ),
    Promise("SPEC-3.1-CLAMPED", "3.1", "`list_agents` shows max_turns as it will be used, within 1 to 25."),
    # define
    Promise("SPEC-3.2-ANSWER", "3.2", "`define` answers `defined` and `description`."),
    Promise("SPEC-3.2-ALREADY-EXISTS", "3.2", "A name that is taken is AGENT_ALREADY_EXISTS."),
    Promise("SPEC-3.2-REQUIRED", "3.2", "`define` without name, description or system_prompt is INVALID_REQUEST."),
    Promise("SPEC-3.2-TOOLS-DEFAULT", "3.2", "`tools` is empty by default."),
    Promise(
        "SPEC-3.2-INVALID-TOOL",
        "3.2",
        "A tool that the application does not have, or the policy forbids, is INVALID_TOOL, with those there are.",
    ),
    Promise("SPEC-3.2-TOLD-TOOLS", "3.2", "The schema of `tools` lists the tools that an agent can be given."),
    Promise("SPEC-3.2-MODEL-DEFAULT", "3.2", "`model` is the orchestrator's by default."),
    Promise("SPEC-3.2-TURNS-DEFAULT", "3.2", "`max_turns` is 10 by default."),
    Promise("SPEC-3.2-SUBAGENT-DROPPED", "3.2", "`subagent` in `tools` is left out without an error."),
    Promise(
        "SPEC-3.2-ORDER", "3.2", "`define` checks the fields, the name, the prompt's size, the tools, then uniqueness."
    ),
    # spawn
    Promise("SPEC-3.3-ANSWER", "3.3", "`spawn` answers task_id, agent and the status `running`."),
    Promise("SPEC-3.3-AT-ONCE", "3.3", "`spawn` returns at once; several tasks work at the same time."),
    Promise("SPEC-3.3-AGENT-NOT-FOUND", "3.3", "An unknown agent is AGENT_NOT_FOUND."),
    Promise("SPEC-3.3-FIRST-MESSAGE", "3.3", "The task is the subagent's first user message, byte for byte."),
    Promise("SPEC-3.3-TOOLS", "3.3", "A subagent is offered the tools of its agent, and never `subagent`."),
    Promise("SPEC-3.3-SHARED-CONTEXT", "3.3", "A subagent with `shared_context` uses the session's shared context."),
    Promise("SPEC-3.3-ORDER", "3.3", "`spawn` checks the fields, the task's size, the agent, then how many run."),
    # status
    Promise("SPEC-3.4-RUNNING", "3.4", "`status` of a running task gives task_id, agent, status and turns_used."),
    Promise("SPEC-3.4-COMPLETED", "3.4", "`status` of a completed task gives the same fields, and no result."),
    Promise("SPEC-3.4-FAILED", "3.4", "`status` of a failed task adds the error."),
    Promise("SPEC-3.4-LIVE", "3.4", "`turns_used` of a running task is the number of replies received so far."),
    Promise("SPEC-3.4-INTERRUPTED", "3.4", "`status` of a task whose process is gone is as before and has a `hint`."),
    # collect
    Promise(
        "SPEC-3.5-COMPLETED",
        "3.5",
        "`collect` of a completed task gives task_id, agent, status, result and turns_used.",
    ),
    Promise("SPEC-3.5-FAILED", "3.5", "`collect` of a failed task gives its error, and null as the result."),
    Promise("SPEC-3.5-EMPTY", "3.5", "A subagent that ends without a word has completed with an empty result."),
    Promise("SPEC-3.5-NOT-READY", "3.5", "`collect` of a running task is TASK_NOT_READY, and the task stays."),
    Promise("SPEC-3.5-NOT-FOUND", "3.5", "`status` and `collect` of an unknown task are TASK_NOT_FOUND."),
    Promise("SPEC-3.5-ONCE", "3.5", "After `collect` the task id is unknown to `status` and `collect`."),
    # limits
    Promise(
        "SPEC-4.1-RESULT", "4.1", "A result above 1000 tokens is cut to 4000 characters and says so on a new line."
    ),
    Promise("SPEC-4.2-TASK", "4.2", "A task above 1000 tokens is TASK_TOO_LARGE."),
    Promise("SPEC-4.3-FIVE", "4.3", "`spawn` while five tasks run is MAX_TASKS_EXCEEDED."),
    Promise(
        "SPEC-4.3-RUNNING-ONLY", "4.3", "Only running tasks count: one that has ended makes room, collected or not."
    ),
    Promise("SPEC-4.4-CLAMP", "4.4", "`max_turns` below 1 becomes 1, above 25 becomes 25."),
    Promise("SPEC-4.4-TURN", "4.4", "A turn is one reply of the model; a task that needs more than max_turns fails."),
    Promise("SPEC-4.5-NO-NESTING", "4.5", "A subagent that calls `subagent` anyway gets an error and starts nothing."),
    Promise("SPEC-4.6-CHARACTERS", "4.6", "A name with other characters than [a-z0-9_-] is INVALID_AGENT_NAME."),
    Promise("SPEC-4.6-LENGTH", "4.6", "A name that is empty or longer than 64 characters is INVALID_AGENT_NAME."),
    Promise("SPEC-4.7-PROMPT", "4.7", "A system_prompt above 4000 tokens is PROMPT_TOO_LARGE."),
    Promise("SPEC-4-TOKENS", "4", "A text has a quarter as many tokens as characters, rounded down."),
    # errors
    Promise("SPEC-5-SHAPE", "5", "Every error is a JSON object with `error`, a code, and `message`, a sentence."),
    Promise(
        "SPEC-5-INVALID-REQUEST",
        "5",
        "A field that is missing or mistyped is INVALID_REQUEST, before all other checks.",
    ),
    Promise("SPEC-5-INVALID-ACTION", "5", "An action that is missing, no string or unknown is INVALID_ACTION."),
    Promise("SPEC-5-NEVER-RAISES", "5", "Whatever a model writes as arguments is answered, never raised."),
    # prompts
    Promise("SPEC-6.1-AGENTS", "6.1", "The orchestrator's system text describes each registered agent."),
    Promise("SPEC-6.2-DISCIPLINE", "6.2", "The orchestrator's system text says when and how to delegate."),
    Promise(
        "SPEC-6.3-COMPOSITION", "6.3", "The orchestrator's system text says how delegation and shared context combine."
    ),
    Promise("SPEC-8.4-SUFFIX", "8.4", "A subagent's system text is its prompt, the shared-context texts, the suffix."),
    # running
    Promise("SPEC-8.1-MODEL", "8.1", "A subagent runs on its agent's model."),
    Promise(
        "SPEC-8.1-PROVIDER", "8.1", "A bare model runs on the orchestrator's provider; `wire:model` names another."
    ),
    Promise("SPEC-8.3-IDS", "8.3", "Task ids count up from t_01 within a session and are never used again."),
    Promise("SPEC-8.5-SAME-STORE", "8.5", "What a subagent writes is at once visible to all participants."),
    Promise(
        "SPEC-8.6-IDENTITY", "8.6", "A subagent writes as `subagent:{agent}:{task_id}`, the root as `orchestrator`."
    ),
    Promise("SPEC-8.7-TURN-LIMIT", "8.7", "The turn limit is `Max turns exceeded without producing a final response`."),
    Promise("SPEC-8.7-MODEL-ERROR", "8.7", "A model that cannot be asked is `Model API error: {details}`."),
    Promise("SPEC-8.7-TOOL-ERROR", "8.7", "A tool that crashes is `Tool execution error in turn {n}: {details}`."),
    Promise(
        "SPEC-8.7-OWN-ERRORS", "8.7", "A tool's own error, a refusal or bad arguments are read by the subagent's model."
    ),
    Promise(
        "SPEC-8.7-OTHER", "8.7", "A task that was cancelled, timed out or ended otherwise has failed and says how."
    ),
    # observers
    Promise(
        "SPEC-8.8-FIELDS",
        "8.8",
        "Spawn, status and collect are logged with session, task, agent, action, time, status.",
    ),
    Promise("SPEC-8.8-MORE", "8.8", "Cancel, progress and wait are logged alike, a wait with a line for each task."),
    Promise("SPEC-8.8-TURNS", "8.8", "A collect is logged with turns_used."),
    Promise("SPEC-8.8-CALLS", "8.8", "Tool calls are logged, a subagent's with its task_id."),
    Promise("SPEC-8.8-UNKNOWN", "8.8", "Calls of tools that do not exist are logged alike, with the task_id."),
    Promise("SPEC-8.8-NO-CONTENTS", "8.8", "Tasks and results are not logged."),
    Promise("SPEC-8.8-PAYLOADS", "8.8", "With RETINUE_LOG_PAYLOADS=1 tasks and results are logged."),
    # extensions
    Promise("SPEC-7-OFF", "7", "An action that is switched off is INVALID_ACTION and not in the tool's schema."),
    Promise("SPEC-7-OFF-FIELDS", "7", "A field that is switched off is INVALID_REQUEST and not in the tool's schema."),
    Promise("SPEC-7-SETTINGS", "7", "`[spec] extensions` says what is on, all by default; other names are refused."),
    Promise("SPEC-7-TOLD", "7", "The orchestrator's system text says how the extensions that are on are used."),
    Promise(
        "SPEC-7.1-CANCEL",
        "7.1",
        "`cancel` stops a task and gives task_id, agent, the status `cancelled`, the text so far and turns_used.",
    ),
    Promise("SPEC-7.1-SILENT", "7.1", "The result of a task that was cancelled before it said anything is null."),
    Promise("SPEC-7.1-GONE", "7.1", "After `cancel` the task id is unknown, as after `collect`."),
    Promise("SPEC-7.1-FINISHED", "7.1", "`cancel` of a task that is over answers as `collect` does."),
    Promise("SPEC-7.1-NOT-FOUND", "7.1", "`cancel` of an unknown task is TASK_NOT_FOUND."),
    Promise(
        "SPEC-7.2-PROGRESS",
        "7.2",
        "`progress` gives task_id, status, turns_used, entries with turn, kind and text, and `more`.",
    ),
    Promise("SPEC-7.2-KINDS", "7.2", "An entry is a text, a call or a result, and turns count from 1."),
    Promise("SPEC-7.2-NOW", "7.2", "What a model is saying just now is the last entry."),
    Promise("SPEC-7.2-BOUNDED", "7.2", "The newest 20 entries are given, each cut to 400 characters."),
    Promise("SPEC-7.2-MORE", "7.2", "`more` is true when older entries were left out."),
    Promise("SPEC-7.2-ENDED", "7.2", "A task that is over still shows its progress."),
    Promise("SPEC-7.2-NOT-FOUND", "7.2", "`progress` of an unknown task is TASK_NOT_FOUND."),
    Promise("SPEC-7.3-INHERITS", "7.3", "With `extends` what is not given is as it is with the other agent."),
    Promise("SPEC-7.3-APPEND", "7.3", "`system_prompt_append` stands after the inherited prompt and a blank line."),
    Promise("SPEC-7.3-NEEDS", "7.3", "`system_prompt_append` without `extends` is INVALID_REQUEST."),
    Promise("SPEC-7.3-UNKNOWN", "7.3", "`extends` of an unknown agent is AGENT_NOT_FOUND."),
    Promise("SPEC-7.3-SIZE", "7.3", "The whole prompt, inherited and appended, is held against the 4000 tokens."),
    Promise("SPEC-7.3-RIGHTS", "7.3", "An agent that extends one of the application's is bound by its policy."),
    Promise("SPEC-7.4-PENDING", "7.4", "`spawn` with `depends_on` answers the status `pending`."),
    Promise("SPEC-7.4-NOT-READY", "7.4", "`collect` of a pending task is TASK_NOT_READY."),
    Promise("SPEC-7.4-FREE", "7.4", "A pending task does not count as running, and needs no place to be spawned."),
    Promise("SPEC-7.4-PLACE", "7.4", "A task that could begin stays pending until fewer than max_running tasks run."),
    Promise(
        "SPEC-7.4-RESULTS", "7.4", "A task begins when those it depends on have completed and is given their results."
    ),
    Promise("SPEC-7.4-FAILED", "7.4", "A failed dependency fails the task with `Dependency t_01 failed: <reason>`."),
    Promise("SPEC-7.4-UNKNOWN", "7.4", "A dependency that is unknown, collected or the task itself is TASK_NOT_FOUND."),
    Promise("SPEC-7.4-NO-CYCLES", "7.4", "Tasks cannot depend on each other in a circle, for ids exist after spawn."),
    Promise("SPEC-7.4-ORDER", "7.4", "Dependencies are looked at after the agent and before how many run."),
    Promise("SPEC-7.5-ANSWER", "7.5", "`redefine` answers `redefined`, `description` and `version`."),
    Promise("SPEC-7.5-VERSION", "7.5", "The version is 1 with `define` and grows by 1 with each `redefine`."),
    Promise("SPEC-7.5-UNKNOWN", "7.5", "`redefine` of an agent that was not defined here is AGENT_NOT_FOUND."),
    Promise("SPEC-7.5-APPLICATION", "7.5", "The application's agents cannot be redefined: they are AGENT_NOT_FOUND."),
    Promise("SPEC-7.5-RUNNING", "7.5", "Tasks that were spawned before go on as their agent was then."),
    Promise("SPEC-7.6-TASK", "7.6", "`max_input_tokens` and `max_output_tokens` of a spawn bound what the task uses."),
    Promise("SPEC-7.6-SESSION", "7.6", "`[spec]` budgets bound what all subagents of a session use together."),
    Promise("SPEC-7.6-SUBAGENTS", "7.6", "What the orchestrator itself uses does not count in the session's budgets."),
    Promise("SPEC-7.6-SPENT", "7.6", "A spent budget fails a task with `Token budget exceeded: used X, limit Y`."),
    Promise("SPEC-7.6-POSITIVE", "7.6", "A budget below 1 is INVALID_REQUEST."),
    Promise("SPEC-9.6-WAIT", "9.6", "`wait` returns done, pending and timed_out when enough of the tasks are over."),
    Promise("SPEC-9.6-MODE", "9.6", "`mode` is `any`, `all` (the default) or a number of tasks."),
    Promise("SPEC-9.6-TIMEOUT", "9.6", "`wait` returns after `timeout_ms`, by default 600,000 and at most 3,600,000."),
    Promise("SPEC-9.6-BLOCKS", "9.6", "An orchestrator that waits is shown as waiting, and no tool deadline ends it."),
    Promise("SPEC-9.6-NOT-FOUND", "9.6", "`wait` for an unknown task is TASK_NOT_FOUND, at once."),
    Promise("SPEC-9.6-HINT", "9.6", "More than 10 `status` calls for a task within 10 s add a `hint`."),
    Promise("SPEC-4.3-SETTING", "4.3", "`[spec] max_running` is how many tasks may run, 5 by default."),
    Promise("SPEC-8.3-MANY", "8.3", "A thousand tasks in one session each have an id of their own, and none is lost."),
    # crashes and ends
    Promise(
        "SPEC-KEYED", "3", "An action that is entered again after a crash answers as it did, and does nothing twice."
    ),
    Promise("SPEC-PARENT-ENDS", "9.3", "When the orchestrator ends, its running tasks are cancelled."),
    Promise("SPEC-PARENT-ENDS-TOLD", "9.3", "One line names the tasks that were cancelled so."),
)
"""The subagent tool's promises."""

PROMISES = SUBAGENT + promises.PROMISES
"""All that the dialect promises."""
