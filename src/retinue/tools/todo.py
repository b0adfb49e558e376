"""The to-do list that all runs of a session share: tasks with owners, and which task waits for which.

Tasks are stored in the key-value namespace of the session, each under its id. That one task blocks another is stored
once, with the one that waits; what a task blocks is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from retinue.core.commands import Decision, NamespaceClosed
from retinue.core.errors import ToolError
from retinue.core.ids import SessionId
from retinue.core.ports import CallContext, Clock, KeyValue, Tool
from retinue.core.text import rfc3339
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.function import FunctionTool

TodoStatus = Literal["pending", "in_progress", "completed", "cancelled"]
Priority = Literal["low", "medium", "high"]

SECONDS = 60.0
MAX_TASKS = 1000
MAX_METADATA_CHARACTERS = 10_000

Subject = Annotated[str, Meta(min_length=1, max_length=500)]
Description = Annotated[str, Meta(max_length=10_000)]
Labels = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=20)]
OwnerName = Annotated[str, Meta(max_length=200)]
TaskIds = Annotated[tuple[str, ...], Meta(max_length=100)]

_OVER = ("completed", "cancelled")


class TodoTask(Struct, frozen=True, kw_only=True):
    """A task as it is stored; `blocked_by` are the ids of the tasks that it waits for."""

    number: int
    subject: str
    description: str = ""
    status: TodoStatus = "pending"
    priority: Priority = "medium"
    labels: tuple[str, ...] = ()
    owner: str | None = None
    metadata: dict[str, Any] = {}
    blocked_by: tuple[str, ...] = ()
    created_at: float
    updated_at: float
    created_by: str
    updated_by: str

    @property
    def id(self) -> str:
        return f"task_{self.number}"


Tasks = dict[str, TodoTask]


def space_of(session_id: SessionId) -> str:
    return f"tasks/{session_id}"


def tools(dependencies: ToolDependencies, *, max_tasks: int = MAX_TASKS) -> Sequence[Tool]:
    """`task_create`, `task_get`, `task_list` and `task_update`."""
    todo = TodoList(dependencies.key_value, dependencies.clock, max_tasks=max_tasks)
    return (
        FunctionTool(todo.task_create, kind="keyed", timeout=SECONDS),
        FunctionTool(todo.task_get, kind="pure", timeout=SECONDS),
        FunctionTool(todo.task_list, kind="pure", timeout=SECONDS),
        FunctionTool(todo.task_update, kind="keyed", timeout=SECONDS),
    )


class TodoList:
    """The to-do lists of all sessions; each call sees that of its own session."""

    def __init__(self, key_value: KeyValue, clock: Clock, *, max_tasks: int = MAX_TASKS) -> None:
        self._key_value = key_value
        self._clock = clock
        self._max_tasks = max_tasks

    async def task_create(
        self,
        context: CallContext,
        subject: Subject,
        description: Description = "",
        priority: Priority = "medium",
        labels: Labels = (),
        blocks: TaskIds = (),
        blocked_by: TaskIds = (),
        owner: OwnerName | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Add a task to the to-do list that all agents of this session share.

        Args:
            subject: what there is to do, in a line
            description: details that the work needs
            priority: how urgent it is
            labels: words to find it by
            blocks: ids of tasks that cannot begin before this one is over
            blocked_by: ids of tasks that have to be over before this one begins
            owner: who is to do it
            metadata: anything else, by name
        """
        at, by = self._clock.now(), context.path

        def create(tasks: Tasks) -> TodoTask:
            if len(tasks) >= self._max_tasks:
                raise ToolError(f"The list is full: it has {self._max_tasks} tasks. Update one that is over instead.")
            task = TodoTask(
                number=max((task.number for task in tasks.values()), default=0) + 1,
                subject=subject,
                description=description,
                priority=priority,
                labels=_distinct(labels),
                owner=owner,
                metadata=_merged({}, metadata or {}),
                created_at=at,
                updated_at=at,
                created_by=by,
                updated_by=by,
            )
            tasks[task.id] = task
            return _linked(tasks, task.id, blocks=blocks, blocked_by=blocked_by, at=at, by=by)

        return await self._change(context, create)

    async def task_get(self, context: CallContext, id: str) -> str:
        """Show one task of the to-do list.

        Args:
            id: the task
        """
        tasks = _tasks(await self._key_value.look(space_of(context.session_id)))
        return _json(_rendered(_find(tasks, id), tasks))

    async def task_list(
        self,
        context: CallContext,
        status: TodoStatus | None = None,
        labels: Labels | None = None,
        blocked: bool | None = None,
    ) -> str:
        """List the tasks of the to-do list that all agents of this session share, oldest first.

        Args:
            status: only tasks of this status
            labels: only tasks with at least one of these labels
            blocked: only tasks that wait for others (true), or that could begin (false)
        """
        tasks = _tasks(await self._key_value.look(space_of(context.session_id)))
        return _json(
            [
                _rendered(task, tasks)
                for task in tasks.values()
                if (status is None or task.status == status)
                and (not labels or not set(labels).isdisjoint(task.labels))
                and (blocked is None or _is_blocked(task, tasks) == blocked)
            ]
        )

    async def task_update(
        self,
        context: CallContext,
        id: str,
        subject: Subject | None = None,
        description: Description | None = None,
        status: TodoStatus | None = None,
        priority: Priority | None = None,
        labels: Labels | None = None,
        owner: OwnerName | None = None,
        metadata: dict[str, Any] | None = None,
        add_blocks: TaskIds = (),
        remove_blocks: TaskIds = (),
        add_blocked_by: TaskIds = (),
        remove_blocked_by: TaskIds = (),
    ) -> str:
        """Change a task of the to-do list; what is not given stays as it is.

        Args:
            id: the task
            subject: what there is to do, in a line
            description: details that the work needs
            status: how far it is
            priority: how urgent it is
            labels: the labels that it has from now on
            owner: who is to do it
            metadata: values to set by name; null removes one
            add_blocks: ids of more tasks that cannot begin before this one is over
            remove_blocks: ids of tasks that need not wait for this one any more
            add_blocked_by: ids of more tasks that have to be over before this one begins
            remove_blocked_by: ids of tasks that this one need not wait for any more
        """
        at, by = self._clock.now(), context.path

        def update(tasks: Tasks) -> TodoTask:
            task = _find(tasks, id)
            tasks[id] = replace(
                task,
                subject=task.subject if subject is None else subject,
                description=task.description if description is None else description,
                status=status or task.status,
                priority=priority or task.priority,
                labels=task.labels if labels is None else _distinct(labels),
                owner=task.owner if owner is None else owner,
                metadata=_merged(task.metadata, metadata or {}),
                blocked_by=tuple(other for other in task.blocked_by if other not in remove_blocked_by),
                updated_at=at,
                updated_by=by,
            )
            for other in remove_blocks:
                freed = _find(tasks, other)
                rest = tuple(blocker for blocker in freed.blocked_by if blocker != id)
                tasks[other] = replace(freed, blocked_by=rest, updated_at=at, updated_by=by)
            return _linked(tasks, id, blocks=add_blocks, blocked_by=add_blocked_by, at=at, by=by)

        return await self._change(context, update)

    async def _change(self, context: CallContext, change: Callable[[Tasks], TodoTask]) -> str:
        """Change the list atomically and return the changed task; a call that is made again returns the same."""

        def decide(key_value: Mapping[str, bytes]) -> Decision:
            before = _tasks(key_value)
            after = dict(before)
            try:
                answer = _Answer(task=_rendered(change(after), after))
            except ToolError as refusal:
                return Decision(msgspec.json.encode(_Answer(refused=str(refusal))))
            puts = {id: msgspec.json.encode(task) for id, task in after.items() if before.get(id) is not task}
            return Decision(msgspec.json.encode(answer), puts=puts)

        space = space_of(context.session_id)
        written = await self._key_value.change(space, decide, key=context.key, session_id=context.session_id)
        if isinstance(written, NamespaceClosed):
            state = "archived: its list can be read, not changed" if written.why == "session_archived" else "not there"
            raise ToolError(f"Session {context.session_id!r} is {state}.")
        assert isinstance(written, bytes)
        answer = msgspec.json.decode(written, type=_Answer)
        if answer.refused is not UNSET:
            raise ToolError(answer.refused)
        return _json(answer.task)


class _Answer(Struct, frozen=True, kw_only=True):
    """The result of a change as it is stored: the task, or why nothing was changed."""

    task: dict[str, Any] | UnsetType = UNSET
    refused: str | UnsetType = UNSET


def _tasks(key_value: Mapping[str, bytes]) -> Tasks:
    tasks = [msgspec.json.decode(value, type=TodoTask) for value in key_value.values()]
    return {task.id: task for task in sorted(tasks, key=lambda task: task.number)}


def _find(tasks: Tasks, id: str) -> TodoTask:
    if id not in tasks:
        raise ToolError(f"Task not found: {id}")
    return tasks[id]


def _is_blocked(task: TodoTask, tasks: Tasks) -> bool:
    return any(tasks[other].status not in _OVER for other in task.blocked_by)


def _linked(tasks: Tasks, id: str, *, blocks: Iterable[str], blocked_by: Iterable[str], at: float, by: str) -> TodoTask:
    """Add links between tasks and return the task; raises `ToolError` for a cycle."""
    links = [*((other, id) for other in blocks), *((id, other) for other in blocked_by)]
    for waits, blocker in links:
        waiting, _ = _find(tasks, waits), _find(tasks, blocker)
        if blocker in waiting.blocked_by:
            continue
        if waits in _all_blockers(blocker, tasks):
            raise ToolError(f"{waits} cannot wait for {blocker}: {blocker} would wait for itself.")
        tasks[waits] = replace(waiting, blocked_by=(*waiting.blocked_by, blocker), updated_at=at, updated_by=by)
    return tasks[id]


def _all_blockers(id: str, tasks: Tasks) -> set[str]:
    """A task and all tasks that it waits for, directly or indirectly."""
    found, todo = {id}, [id]
    while todo:
        fresh = set(tasks[todo.pop()].blocked_by) - found
        found |= fresh
        todo += fresh
    return found


def _rendered(task: TodoTask, tasks: Tasks) -> dict[str, Any]:
    return {
        "id": task.id,
        "subject": task.subject,
        "description": task.description,
        "status": task.status,
        "priority": task.priority,
        "labels": task.labels,
        "owner": task.owner,
        "metadata": task.metadata,
        "blocks": [other.id for other in tasks.values() if task.id in other.blocked_by],
        "blocked_by": task.blocked_by,
        "blocked": _is_blocked(task, tasks),
        "created_at": rfc3339(task.created_at),
        "updated_at": rfc3339(task.updated_at),
        "created_by": task.created_by,
        "updated_by": task.updated_by,
    }


def _merged(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = {name: value for name, value in {**before, **given}.items() if value is not None}
    size = len(msgspec.json.encode(merged))
    if size > MAX_METADATA_CHARACTERS:
        raise ToolError(f"The metadata would have {size} bytes; at most {MAX_METADATA_CHARACTERS} are kept.")
    return merged


def _distinct(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(labels))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


async def plan_of(key_value: KeyValue, session_id: SessionId) -> list[dict[str, str]]:
    """The to-do list of a session as editors show it: content, priority and status, without cancelled tasks."""
    stored = (
        msgspec.json.decode(body, type=TodoTask) for body in (await key_value.look(space_of(session_id))).values()
    )
    return [
        {"content": task.subject, "priority": task.priority, "status": task.status}
        for task in sorted(stored, key=lambda task: task.number)
        if task.status != "cancelled"
    ]
