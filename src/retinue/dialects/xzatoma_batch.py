"""What a model can ask of `parallel_subagent` of `xzatoma`: several tasks in one call, and what it reads of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.dialects.render import compact
from retinue.dialects.xzatoma_requests import PARALLEL, NotMet, Shape, read, task_schema, whole

DEFAULT_CONCURRENT = 5


class Batch(Struct, frozen=True, kw_only=True):
    """Tasks as they were written down; each is checked when its turn comes."""

    tasks: tuple[Shape, ...]
    max_concurrent: int = DEFAULT_CONCURRENT
    fail_fast: bool = False


class Result(Struct, frozen=True, kw_only=True):
    """What became of one task."""

    label: str
    success: bool
    output: str = ""
    duration_ms: int = 0
    error: str | None = None
    tokens_used: int = 0


class _Shape(Struct):
    tasks: tuple[Shape, ...] | None = None
    max_concurrent: int | float | None = None
    fail_fast: bool | None = None


def spec(default_max_turns: int) -> ToolSpec:
    """The tool as a model sees it."""
    return ToolSpec(
        PARALLEL,
        "Delegate several independent tasks at once, each to an agent instance with isolated conversation context, and "
        "wait for all of them. These subagents cannot delegate further.",
        compact(
            {
                "type": "object",
                "properties": {
                    "tasks": {
                        "type": "array",
                        "minItems": 1,
                        "items": task_schema(default_max_turns, summary=None),
                        "description": "The tasks, in the order in which their results are told.",
                    },
                    "max_concurrent": {
                        "type": "integer",
                        "minimum": 1,
                        "default": DEFAULT_CONCURRENT,
                        "description": f"How many work at the same time; {DEFAULT_CONCURRENT} by default.",
                    },
                    "fail_fast": {
                        "type": "boolean",
                        "default": False,
                        "description": "Whether the first task that fails cancels the others; false by default.",
                    },
                },
                "required": ["tasks"],
            }
        ),
    )


def parse(arguments: str) -> Batch:
    """The tasks that a call asks for; no more can work at the same time than there are.

    >>> parse('{"tasks": [{"label": "a", "task_prompt": "dig"}]}').max_concurrent
    1
    """
    asked = read(arguments, _Shape)
    if asked.tasks is None:
        raise NotMet("Invalid input: missing field `tasks`")
    wished = whole(asked.max_concurrent, "max_concurrent")
    most = DEFAULT_CONCURRENT if wished is None else wished
    if most < 1:
        raise NotMet("Invalid input: Expected `int` >= 1 - at `$.max_concurrent`")
    if not asked.tasks:
        raise NotMet("At least one task required", "empty_tasks")
    return Batch(tasks=asked.tasks, max_concurrent=min(most, len(asked.tasks)), fail_fast=bool(asked.fail_fast))


def check_depth(depth: int, max_depth: int) -> None:
    """Refuse a caller that is as deep as the settings allow."""
    if depth >= max_depth:
        raise NotMet(f"Maximum subagent depth {max_depth} reached", "max_depth_reached")


def told(results: Sequence[Result], *, total_duration_ms: int) -> str:
    """All results as the model reads them.

    >>> told([], total_duration_ms=7)
    '{"results":[],"total_duration_ms":7,"successful":0,"failed":0}'
    """
    successful = sum(each.success for each in results)
    return compact(
        {
            "results": results,
            "total_duration_ms": total_duration_ms,
            "successful": successful,
            "failed": len(results) - successful,
        }
    )
