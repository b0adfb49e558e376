"""Batches of tasks by name: tasks of a file, the runs that work on them, and what of these is at the vendor.

A batch is a record and a session: each task is a root run of the session, known by a key, so that the same file can be
submitted again after a crash and nothing is started twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from retinue.app.engine_types import RunView
from retinue.app.json_rows import outcome_row
from retinue.app.retinue import Retinue
from retinue.core.commands import Decision, RunQuery
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import Key, RunId
from retinue.core.text import rfc3339
from retinue.core.usage import dollars
from retinue.engine import Supervisor
from retinue.providers.batch import BatchRecord, batch_records, run_of

SPACE = "task_batches"
"""The key-value namespace of the records."""

MAX_TASKS = 10_000
POLL = 0.25
"""Seconds between two looks at the records of a submission."""

KEPT = 90 * 86_400.0
"""Seconds that the record of a batch is kept."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LABEL = "batch:"

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Dollars = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=1_000_000_000)]


class BatchTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A task of a file, with what differs from the other tasks."""

    task: Annotated[str, Meta(min_length=1)]
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,64}\Z")] = ""
    agent: str | None = None
    model: str | None = None
    system: str | None = None
    max_turns: Count | None = None
    max_tokens: Count | None = None
    max_cost: Dollars | None = None
    timeout: Seconds | None = None

    @property
    def options(self) -> BatchTask:
        """The options alone: tasks with the same ones are equal here."""
        return msgspec.structs.replace(self, task="-", id="")


_decode_task = msgspec.json.Decoder(BatchTask).decode


def read_tasks(text: str, source: str) -> tuple[BatchTask, ...]:
    """The tasks of a file: a line is a task, or a JSON object where it begins with a brace.

    A task without an id has its number. Raises `BadInput` with the line.

    >>> [(task.id, task.task) for task in read_tasks('Sum up.\\n\\n{"id": "b", "task": "Translate."}', "tasks")]
    [('1', 'Sum up.'), ('b', 'Translate.')]
    """
    tasks: dict[str, BatchTask] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not (line := line.strip()):
            continue
        try:
            found = _decode_task(line) if line.startswith("{") else BatchTask(task=line)
        except msgspec.MsgspecError as error:
            raise BadInput(f"{source}, line {number}: {error}") from None
        if not found.task.strip():
            raise BadInput(f"{source}, line {number}: the task is empty")
        task = found if found.id else msgspec.structs.replace(found, id=str(len(tasks) + 1))
        if task.id in tasks:
            raise BadInput(f"{source}, line {number}: the id {task.id!r} is that of another task")
        tasks[task.id] = task
        if len(tasks) > MAX_TASKS:
            raise BadInput(f"{source} has more than {MAX_TASKS} tasks: divide it")
    if not tasks:
        raise BadInput(f"{source} has no task: write one in each line")
    return tuple(tasks.values())


def digest_of(tasks: Sequence[BatchTask]) -> str:
    """What distinguishes these tasks from others."""
    return hashlib.sha256(msgspec.json.encode(tasks)).hexdigest()


class TaskBatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch in the store: its tasks by their ids, and when it was submitted. Its name is that of its session."""

    name: str
    at: float
    hours: float
    ids: tuple[str, ...]
    digest: str

    def key(self, task_id: str) -> Key:
        """The key of the run of a task."""
        return f"batch/{self.name}/{task_id}"

    def label(self, task_id: str) -> str:
        """The label of the run of a task."""
        return f"{_LABEL}{task_id}"


_decode_batch = msgspec.json.Decoder(TaskBatch).decode


def check_name(name: str) -> str:
    """The name of a batch; raises `BadInput` for one that cannot be used."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"the name {name!r:.80} of a batch: expected 1 to 64 letters, digits and the characters . _ -")
    return name


async def record_batch(supervisor: Supervisor, batch: TaskBatch) -> TaskBatch:
    """Write the record of a batch; the earlier one if the same tasks were submitted under that name.

    Raises `BadInput` for a name of other tasks, or of a session with other runs.
    """
    is_known = batch.name in await supervisor.key_value.look(SPACE)
    if not is_known and await supervisor.stored.count(RunQuery(session_id=batch.name)):
        raise BadInput(f"the session {batch.name!r} has other runs: choose another name for the batch")
    encoded = msgspec.json.encode(batch)

    def decide(content: Mapping[str, bytes]) -> Decision:
        if (known := content.get(batch.name)) is not None:
            return Decision(answer=known)
        old = tuple(name for name, each in content.items() if _decode_batch(each).at < batch.at - KEPT)
        return Decision(answer=encoded, puts={batch.name: encoded}, drops=old)

    written = await supervisor.key_value.change(SPACE, decide)
    if not isinstance(written, bytes):
        raise BadInput(f"the batch {batch.name!r} cannot be recorded")
    known = _decode_batch(written)
    if known.digest != batch.digest:
        raise BadInput(f"the batch {batch.name!r} has other tasks: choose another name, or see retinue batch list")
    return known


async def batches(supervisor: Supervisor) -> list[TaskBatch]:
    """The batches of the store, newest first."""
    found = [_decode_batch(each) for each in (await supervisor.key_value.look(SPACE)).values()]
    return sorted(found, key=lambda batch: batch.at, reverse=True)


async def find_batch(supervisor: Supervisor, name: str) -> TaskBatch:
    """The batch of that name; raises `UnknownName` with those of the store."""
    found = await batches(supervisor)
    for batch in found:
        if batch.name == name:
            return batch
    raise UnknownName("batch", name, tuple(batch.name for batch in found[:20]))


BatchTaskState: TypeAlias = Literal["ended", "working", "waiting"]


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch with the runs of its tasks, as far as they have begun, and its batches at vendors."""

    batch: TaskBatch
    runs: Mapping[str, RunView]
    """By the id of the task, in the order of the file."""
    vendor_batches: Sequence[BatchRecord]
    """Oldest first."""

    @property
    def unfinished(self) -> list[RunView]:
        return [view for view in self.runs.values() if view.outcome is None]

    @property
    def missing(self) -> int:
        """How many tasks have not begun: the process ended while it submitted them."""
        return len(self.batch.ids) - len(self.runs)

    @property
    def state(self) -> BatchTaskState:
        """`working` while a process drives runs of it; `waiting` while only the vendor works on it."""
        unfinished = self.unfinished
        if not unfinished and not self.missing:
            return "ended"
        return "working" if any(view.state != "interrupted" for view in unfinished) else "waiting"

    @property
    def completed(self) -> int:
        return sum(view.outcome is not None and view.outcome.ok for view in self.runs.values())

    @property
    def ended(self) -> int:
        return len(self.runs) - len(self.unfinished)

    @property
    def cost(self) -> int | None:
        """Nanodollars of all runs, None if a price is unknown."""
        costs = [view.cost for view in self.runs.values()]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    def row(self) -> dict[str, object]:
        """The progress as JSON."""
        return {
            "name": self.batch.name,
            "state": self.state,
            "tasks": len(self.batch.ids),
            "ended": self.ended,
            "completed": self.completed,
            "failed": self.ended - self.completed,
            "cost": dollars(self.cost),
            "hours": self.batch.hours,
            "submitted_at": rfc3339(self.batch.at),
            "vendor_batches": [
                {
                    "provider": each.provider,
                    "model": each.model,
                    "id": each.batch_id or None,
                    "calls": len(each.calls),
                    "unanswered": len(each.failed),
                    "ended": each.ended,
                    "submitted_at": rfc3339(each.at),
                }
                for each in self.vendor_batches
            ],
        }

    def results(self) -> list[dict[str, object]]:
        """The ended tasks as JSON, in the order of the file."""
        return [
            {"id": task_id, **outcome_row(view.run_id, view.task, view.outcome)}
            for task_id, view in self.runs.items()
            if view.outcome is not None
        ]


async def progress(supervisor: Supervisor, batch: TaskBatch) -> BatchProgress:
    """How far a batch is."""
    query = RunQuery(session_id=batch.name, roots_only=True)
    views = await supervisor.with_tasks(await supervisor.list(query))
    by_id = {view.label.removeprefix(_LABEL): view for view in views if view.label.startswith(_LABEL)}
    runs = {task_id: by_id[task_id] for task_id in batch.ids if task_id in by_id}
    own = {view.root_id for view in runs.values()}
    records = [
        each for each in await batch_records(supervisor.key_value) if any(run_of(call) in own for call in each.calls)
    ]
    return BatchProgress(batch, runs, records[::-1])


async def until_submitted(retinue: Retinue, run_ids: Sequence[RunId]) -> None:
    """Wait until each of these runs, which this process drives, has a call in a vendor's batch, or has ended."""
    supervisor, rest = retinue.supervisor, list(run_ids)
    while rest := [run_id for run_id in rest if supervisor.live(run_id) is not None]:
        records = await batch_records(supervisor.key_value)
        submitted = {run_of(call) for each in records if each.batch_id for call in each.calls}
        rest = [run_id for run_id in rest if run_id not in submitted]
        if not rest:
            return
        await asyncio.sleep(POLL)
