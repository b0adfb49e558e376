"""The bodies of requests and answers of the API; the OpenAPI document is made from these types."""

from __future__ import annotations

from typing import Annotated, Literal

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
    approvals: Literal["wait"] = "wait"
    """Calls that need approval wait for an answer; `deny` is not supported here yet, and is refused."""


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


class Run(Struct, frozen=True, kw_only=True):
    """A run, as every command prints it."""

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


class Tree(Struct, frozen=True, kw_only=True):
    """A run and its descendants, parents first."""

    items: tuple[Run, ...]
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


class Problem(Struct, frozen=True, kw_only=True):
    """Why a request was refused."""

    error: str


class Health(Struct, frozen=True, kw_only=True):
    """The server answers."""

    status: Literal["ok"] = "ok"
    version: str = ""
