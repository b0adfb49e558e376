"""The keyword arguments of `Retinue.run` and `Retinue.spawn`, for the overloads that type their results."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TypedDict

from retinue.core.attachments import Attachment
from retinue.core.ids import Key, SessionId
from retinue.core.model_options import Effort, ModelOptions
from retinue.core.policy import Policy
from retinue.core.run import HistoryRef, Limits
from retinue.engine import Approver


class RunOptions(TypedDict, total=False):
    """Arguments that both have, besides the task and `output`; `Retinue.spawn` explains them."""

    agent: str | None
    key: Key | None
    limits: Limits | None
    policy: Policy | None
    dialects: Sequence[str] | None
    tools: Sequence[str] | None
    model: str | None
    system: str
    workspace: str | None
    effort: Effort | None
    options: ModelOptions
    attachments: Sequence[Attachment]
    max_turns: int | None
    max_tokens: int | None
    max_cost: float | Decimal | None
    timeout: float | None


class CheckedRunOptions(RunOptions, total=False):
    """The arguments of `Retinue.run`."""

    check: bool


class SpawnOptions(RunOptions, total=False):
    """The arguments of `Retinue.spawn`."""

    memory_from: Sequence[str] | None
    think: bool
    keep_alive: bool
    per_input: bool
    inherits: HistoryRef | None
    detached: bool
    label: str
    session: SessionId | None
    ceiling: bool
    tags: Sequence[str]
    approvals: Approver | None
    priority: int
    stays: bool | None
