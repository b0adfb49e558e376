"""The OpenAPI document of the API, made from the types of its messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from retinue.version import __version__
from retinue.web import bodies

_REFUSALS = {
    "400": "The request is not valid.",
    "401": "The token is missing.",
    "403": "The token may only read, or the request is of another site.",
    "404": "There is no such run, agent or approval.",
    "405": "The path has no such method.",
    "408": "The body did not arrive in time.",
    "409": "The run is in a state in which this is not possible.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "421": "The server does not have the name in the Host header.",
    "500": "The server has a bug; its log has more.",
    "503": "The store does not answer, or the server has too many connections.",
}


class Operation(NamedTuple):
    """One route of the API."""

    method: str
    path: str
    name: str
    summary: str
    answer: type[Struct] | None = None
    body: type[Struct] | None = None
    status: str = "200"
    query: tuple[tuple[str, dict[str, object]], ...] = ()


_LIST: tuple[tuple[str, dict[str, object]], ...] = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}),
    ("cursor", {"type": "string"}),
    ("state", {"type": "array", "items": {"type": "string"}}),
    ("q", {"type": "string"}),
)
_SEARCH: tuple[tuple[str, dict[str, object]], ...] = (
    ("q", {"type": "string", "minLength": 1}),
    ("limit", {"type": "integer", "minimum": 1, "maximum": 500, "default": 20}),
    ("cursor", {"type": "string"}),
)
_DAYS: tuple[tuple[str, dict[str, object]], ...] = (
    ("days", {"type": "integer", "minimum": 1, "maximum": 366, "default": 30}),
)
_EXECUTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
)
_ALL: tuple[tuple[str, dict[str, object]], ...] = (("all", {"type": "string", "enum": ["0", "1"]}),)
_TREE: tuple[tuple[str, dict[str, object]], ...] = (("tree", {"type": "string", "enum": ["0", "1"]}),)

_RUN, _SESSION, _JOB = "/api/v1/runs/{run_id}", "/api/v1/sessions/{session_id}", "/api/v1/cron/{job}"

OPERATIONS = (
    Operation("get", "/healthz", "health", "Whether the server answers", bodies.Health),
    Operation("get", "/api/v1/runs", "list_runs", "List root runs, newest first", bodies.Runs, query=_LIST),
    Operation("post", "/api/v1/runs", "start_run", "Start a run", bodies.Started, bodies.NewRun, "201"),
    Operation("get", "/api/v1/counts", "count_runs", "Count root runs", bodies.Counts),
    Operation("get", _RUN, "show_run", "Show a run", bodies.RunDetails),
    Operation("get", f"{_RUN}/tree", "show_tree", "Show a run and its descendants", bodies.Tree),
    Operation("get", f"{_RUN}/transcript", "show_transcript", "Show a conversation", bodies.Transcript),
    Operation("get", f"{_RUN}/timeline", "show_timeline", "Show where the time of a tree went", bodies.Timeline),
    Operation("get", f"{_RUN}/events", "stream_events", "Follow a run as it works", query=_TREE),
    Operation("get", f"{_RUN}/changes", "stream_changes", "Follow the rows of a tree and one conversation"),
    Operation("post", f"{_RUN}/messages", "send_message", "Send a message", bodies.Started, bodies.Message),
    Operation("post", f"{_RUN}/cancel", "cancel_run", "Cancel a run", bodies.Cancelled),
    Operation("post", f"{_RUN}/resume", "resume_run", "Resume a run", bodies.Started),
    Operation("post", f"{_RUN}/fork", "fork_run", "Continue from a turn", bodies.Started, bodies.Fork, "201"),
    Operation("get", "/api/v1/approvals", "list_approvals", "List approval requests", bodies.ApprovalRequests),
    Operation(
        "post",
        "/api/v1/approvals/{approval_id}",
        "answer_approval",
        "Answer an approval request",
        bodies.Answered,
        bodies.Answer,
    ),
    Operation("get", "/api/v1/search", "search_texts", "Search all conversations", bodies.SearchHits, query=_SEARCH),
    Operation("get", "/api/v1/sessions", "list_sessions", "List sessions", bodies.Sessions, query=_ALL),
    Operation("post", "/api/v1/sessions", "create_session", "Create a session", bodies.Done, bodies.NewSession, "201"),
    Operation("get", _SESSION, "show_context", "Show a session's shared context", bodies.SharedContext),
    Operation(
        "post",
        f"{_SESSION}/snapshots",
        "take_snapshot",
        "Store the shared context under a label",
        bodies.Snapshot,
        bodies.NewSnapshot,
        "201",
    ),
    Operation("post", f"{_SESSION}/archive", "archive_session", "Make a session read-only", bodies.Done),
    Operation("post", f"{_SESSION}/delete", "delete_session", "Delete a session and its context", bodies.Done),
    Operation("get", "/api/v1/cron", "list_jobs", "List cron jobs", bodies.CronJobs),
    Operation("post", "/api/v1/cron", "add_job", "Add a cron job", bodies.Done, bodies.NewCronJob, "201"),
    Operation(
        "get",
        f"{_JOB}/executions",
        "list_executions",
        "List executions of a cron job",
        bodies.CronExecutions,
        query=_EXECUTIONS,
    ),
    Operation("post", f"{_JOB}/run-now", "run_job", "Execute a cron job now", bodies.Done, status="202"),
    Operation("post", f"{_JOB}/pause", "pause_job", "Pause a cron job", bodies.Done),
    Operation("post", f"{_JOB}/resume", "resume_job", "Resume a cron job", bodies.Done),
    Operation("post", f"{_JOB}/remove", "remove_job", "Remove a cron job and its log", bodies.Done),
    Operation(
        "get", "/api/v1/usage", "show_usage", "Sum usage by day, agent and model", bodies.UsageReport, query=_DAYS
    ),
    Operation("get", "/api/v1/agents", "list_agents", "List the agents of the settings", bodies.Agents),
    Operation("get", "/api/v1/models", "list_models", "List the models of all providers", bodies.Models),
    Operation("get", "/api/v1/settings", "show_settings", "Show the settings as they were read", bodies.SettingsRead),
)


def document() -> dict[str, Any]:
    """The OpenAPI document, version 3.1."""
    types = [each for operation in OPERATIONS for each in (operation.answer, operation.body) if each is not None]
    _, components = msgspec.json.schema_components(
        [*dict.fromkeys(types), bodies.Problem], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Retinue", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "retinue_token"},
            },
        },
        "security": [{"bearer": []}, {"cookie": []}],
    }


def _operation(operation: Operation) -> dict[str, object]:
    described: dict[str, object] = {"operationId": operation.name, "summary": operation.summary}
    parameters: list[dict[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in ("run_id", "approval_id", "session_id", "job")
        if f"{{{name}}}" in operation.path
    ]
    for name, schema in operation.query:
        parameters.append({"name": name, "in": "query", "schema": schema})
    if operation.name == "stream_events":
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}})
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body)}
    answer: dict[str, object] = {"description": operation.summary}
    if operation.answer is None:
        answer["content"] = {"text/event-stream": {}}  # the document can describe whole bodies only
    else:
        answer["content"] = _content(operation.answer)
    refusals = _REFUSALS
    if operation.path == "/healthz":
        refusals = {code: text for code, text in _REFUSALS.items() if code in ("400", "405", "421", "500", "503")}
    described["responses"] = {
        operation.status: answer,
        **{code: {"description": text, "content": _content(bodies.Problem)} for code, text in refusals.items()},
    }
    if operation.path == "/healthz":
        described["security"] = []
    return described


def _content(kind: type[Struct]) -> dict[str, object]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
