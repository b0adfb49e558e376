"""The bodies of requests and answers of the API; the OpenAPI document is made from these types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_TEXT = 500_000

Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Meta(max_length=200)]


class NewRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to start. What is left out is as in `retinue run`."""

    task: Text
    agent: Name | None = None
    dialects: Names | None = None
    tools: Names | None = None
    session: Name | None = None
    model: Name | None = None
    approvals: Literal["wait", "deny"] = "wait"
    """Calls that need approval wait for an answer, or are refused."""


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to a run."""

    text: Text


class Fork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new run that continues another one from the end of a turn, counted from 1; without a turn from its end."""

    task: Text
    turn: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to an approval request."""

    allow: bool
    note: Annotated[str, Meta(max_length=10_000)] = ""


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens by kind."""

    input: int
    output: int
    cached: int
    reasoning: int


class Estimate(Struct, frozen=True, kw_only=True):
    """What is estimated for replies whose provider counted nothing: tokens, and dollars at the known prices."""

    input: int
    output: int
    cost: float


class Run(Struct, frozen=True, kw_only=True):
    """A run, as every command prints it; `estimated` is null if its provider counted every reply."""

    run_id: str
    parent_id: str | None
    root_id: str
    session_id: str
    agent: str
    label: str
    handle: str | None
    dialect: str
    state: str
    waiting_for: str | None
    outcome: str | None
    end_reason: str | None
    turns: int
    usage: Usage
    cost: float | None
    started_at: str
    ended_at: str | None
    task: str
    estimated: Estimate | None = None


class RunDetails(Run, frozen=True, kw_only=True):
    """A run with its answer, of an unfinished run its last text."""

    text: str
    error: str
    model: str
    provider: str


class Runs(Struct, frozen=True, kw_only=True):
    """A page of a list; `next` is the cursor of the next page, or null."""

    items: tuple[Run, ...]
    next: str | None


class Counts(Struct, frozen=True, kw_only=True):
    """The numbers of root runs in the store."""

    runs: int
    unfinished: int


class TreeRun(Run, frozen=True, kw_only=True):
    """A run of a tree: `error` is why it failed, `doing` what it does now, if it is known."""

    error: str = ""
    doing: str = ""


class Tree(Struct, frozen=True, kw_only=True):
    """A run and its descendants, parents first."""

    items: tuple[TreeRun, ...]
    next: None = None


class Entry(Struct, frozen=True, kw_only=True):
    """One entry of a conversation."""

    at: str
    kind: Literal["task", "words", "thinking", "reply", "call", "result", "note", "error", "end"]
    text: str = ""
    name: str = ""
    turn: int | None = None
    failed: bool = False


class Transcript(Struct, frozen=True, kw_only=True):
    """The conversation of a run."""

    items: tuple[Entry, ...]
    next: None = None


class Started(Struct, frozen=True, kw_only=True):
    """A run that was started, continued or changed, and its state."""

    run_id: str
    state: str


class Cancelled(Struct, frozen=True, kw_only=True):
    """The runs that were cancelled."""

    run_id: str
    cancelled: tuple[str, ...]


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A tool call that waits for a person."""

    id: str
    run_id: str
    path: str
    tool: str
    arguments: str
    reason: str
    details: str
    """The arguments to read: the diff of an edit or a write, the lines of a command."""


class ApprovalRequests(Struct, frozen=True, kw_only=True):
    """All tool calls that wait for a person."""

    items: tuple[ApprovalRequest, ...]
    next: None = None


class Answered(Struct, frozen=True, kw_only=True):
    """Whether this answer was the first one, which counts."""

    id: str
    first: bool


class AgentInfo(Struct, frozen=True, kw_only=True):
    """An agent of the settings."""

    name: str
    description: str
    model: str | None
    tools: tuple[str, ...]


class Agents(Struct, frozen=True, kw_only=True):
    """The agents of the settings."""

    items: tuple[AgentInfo, ...]
    next: None = None


class TimelineSpan(Struct, frozen=True, kw_only=True):
    """A part of a run's time; `end` is null while it lasts. Times are Unix seconds."""

    run_id: str
    kind: Literal["model", "tool", "wait", "approval"]
    start: float
    end: float | None
    name: str = ""
    turn: int | None = None
    failed: bool = False
    critical: bool = False
    """Whether the tree would have ended sooner with a shorter span."""


class Timeline(Struct, frozen=True, kw_only=True):
    """When the runs of a tree worked and waited."""

    items: tuple[TimelineSpan, ...]
    next: None = None


class SearchHit(Struct, frozen=True, kw_only=True):
    """An entry of a conversation that has all words of a search."""

    run: Run
    kind: str
    turn: int | None
    excerpt: str


class SearchHits(Struct, frozen=True, kw_only=True):
    """A page of a search; `runs_read` is how many runs were read for it."""

    items: tuple[SearchHit, ...]
    next: str | None
    runs_read: int


class Session(Struct, frozen=True, kw_only=True):
    """A session, and the size of its shared context in estimated tokens."""

    session_id: str
    archived: bool
    key_count: int
    total_size_tokens: int


class Sessions(Struct, frozen=True, kw_only=True):
    """The sessions of the store, oldest first."""

    items: tuple[Session, ...]
    next: None = None


class NewSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session to create."""

    session_id: Name


class NewSnapshot(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A label for the shared context of a session as it stands."""

    label: Name


class ContextVersion(Struct, frozen=True, kw_only=True):
    """One version of an entry of the shared context, and the agent that wrote it."""

    value: str
    version: int
    written_by: str
    written_at: str
    expires_at: str | None = None


class ContextEntry(Struct, frozen=True, kw_only=True):
    """An entry of the shared context with its earlier versions, the current one last."""

    key: str
    versions: tuple[ContextVersion, ...]


class SharedContext(Struct, frozen=True, kw_only=True):
    """The shared context of a session."""

    session_id: str
    archived: bool
    entries: tuple[ContextEntry, ...]
    snapshots: tuple[str, ...]


class Snapshot(Struct, frozen=True, kw_only=True):
    """How many entries were stored under a label."""

    label: str
    entries: int


class CronJob(Struct, frozen=True, kw_only=True):
    """A scheduled job."""

    name: str
    type: Literal["agent", "shell"]
    kind: str
    schedule: str
    agent: str | None
    prompt: str | None
    command: str | None
    tz: str | None
    missed: str
    paused: bool
    next_run: str | None
    last_run: str | None
    last_status: str | None
    workspace: str


class CronJobs(Struct, frozen=True, kw_only=True):
    """The scheduled jobs by name."""

    items: tuple[CronJob, ...]
    next: None = None


class NewCronJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to schedule, with one of `cron`, `at` and `every`, and a prompt for an agent or a command."""

    name: Name
    cron: Name | None = None
    tz: Name | None = None
    at: Name | None = None
    every: Name | None = None
    missed: Literal["once", "skip"] | None = None
    agent: Name | None = None
    prompt: Text | None = None
    shell: Text | None = None


class CronExecution(Struct, frozen=True, kw_only=True):
    """One execution of a job."""

    name: str
    due: str | None
    started_at: str | None
    ended_at: str | None
    seconds: float | None
    status: str
    run_id: str | None
    error: str | None
    output: str | None


class CronExecutions(Struct, frozen=True, kw_only=True):
    """Executions of a job, the latest first."""

    items: tuple[CronExecution, ...]
    next: None = None


class UsageOf(Struct, frozen=True, kw_only=True):
    """What the runs of an agent that began on one day (UTC) used of a model; `cost` is null if it is not known."""

    day: str
    agent: str
    model: str
    runs: int
    failed: int
    usage: Usage
    cost: float | None


class UsageReport(Struct, frozen=True, kw_only=True):
    """Tokens and costs by day, agent and model; `complete` is false if the oldest runs were left out."""

    items: tuple[UsageOf, ...]
    complete: bool
    next: None = None


class SettingsSection(Struct, frozen=True, kw_only=True):
    """A section of the settings, with the keys that differ from their defaults; without secrets."""

    name: str
    values: dict[str, Any]


class SettingsRead(Struct, frozen=True, kw_only=True):
    """The settings as they were read at the start of the server; of keys only the names of their variables."""

    files: tuple[str, ...]
    sections: tuple[SettingsSection, ...]
    warnings: tuple[str, ...]


class ListedModel(Struct, frozen=True, kw_only=True):
    """A model of a provider; prices are dollars per million tokens, null if they are not known."""

    name: str
    context_window: int | None
    input_price: float | None
    output_price: float | None
    cached_price: float | None


class ProviderModels(Struct, frozen=True, kw_only=True):
    """A provider and what it lists, or why it lists nothing."""

    provider: str
    wire: str
    base_url: str
    api_key_env: str | None
    error: str | None
    models: tuple[ListedModel, ...]


class Models(Struct, frozen=True, kw_only=True):
    """The models of every provider that is set up."""

    items: tuple[ProviderModels, ...]
    next: None = None


class Done(Struct, frozen=True, kw_only=True):
    """The name of what was created or changed."""

    name: str


class Problem(Struct, frozen=True, kw_only=True):
    """Why a request was refused."""

    error: str


class Health(Struct, frozen=True, kw_only=True):
    """The server answers."""

    status: Literal["ok"] = "ok"
    version: str = ""
