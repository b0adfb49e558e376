"""The tools of `xzatoma` as a model sees them, and the parsing of their arguments.

Invalid arguments raise `SubagentRefused` alone, with a text of `answers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.dialects.arguments import compact_json, decode, name_list_schema, typed
from retinue.dialects.error_codes import CallRefused
from retinue.dialects.xzatoma import answers
from retinue.dialects.xzatoma.answers import SubagentRefused

SUBAGENT = "subagent"
PARALLEL = "parallel_subagent"
DEFAULT_SUMMARY_PROMPT = "Summarize your findings concisely"
MIN_TURNS = 1
MAX_TURNS = 50
DEFAULT_CONCURRENT = 5
NO_LABEL = "unknown"
"""The label of a call that has none."""

S = TypeVar("S", bound=Struct)


class Delegation(Struct, frozen=True, kw_only=True):
    """A checked task: `allowed_tools` is None for all of the caller's, `max_turns` None for the default.

    Without a summary prompt the task's answer is the output.
    """

    label: str
    task_prompt: str
    summary_prompt: str | None = DEFAULT_SUMMARY_PROMPT
    allowed_tools: tuple[str, ...] | None = None
    max_turns: int | None = None


class Shape(Struct):
    """A task as JSON has it; null means absent, and 10.0 is an integer."""

    label: str | None = None
    task_prompt: str | None = None
    summary_prompt: str | None = None
    allowed_tools: tuple[str, ...] | None = None
    max_turns: int | float | None = None


class Batch(Struct, frozen=True, kw_only=True):
    """The tasks of `parallel_subagent`; each is checked when it starts."""

    tasks: tuple[Shape, ...]
    max_concurrent: int = DEFAULT_CONCURRENT
    fail_fast: bool = False


class _BatchShape(Struct):
    tasks: tuple[Shape, ...] | None = None
    max_concurrent: int | float | None = None
    fail_fast: bool | None = None


class _Labelled(Struct):
    label: object = None


def spec(default_max_turns: int, tools: Sequence[str] | None = None) -> ToolSpec:
    """`subagent`; `tools` are those of the caller that a subagent can have, None for a caller that is not known."""
    return ToolSpec(
        SUBAGENT,
        "Delegate a focused task to a recursive agent instance with isolated conversation context. Use this when you "
        "need to explore a sub-problem independently without polluting the main conversation.",
        compact_json(_task_schema(default_max_turns, tools, summary=DEFAULT_SUMMARY_PROMPT)),
    )


def parallel_spec(default_max_turns: int, tools: Sequence[str] | None = None) -> ToolSpec:
    """`parallel_subagent`; `tools` as above."""
    return ToolSpec(
        PARALLEL,
        "Delegate several independent tasks at once, each to an agent instance with isolated conversation context, and "
        "wait for all of them. These subagents cannot delegate further.",
        compact_json(
            {
                "type": "object",
                "properties": {
                    "tasks": typed(
                        "array",
                        "The tasks, in the order in which their results are told.",
                        minItems=1,
                        items=_task_schema(default_max_turns, tools, summary=None),
                    ),
                    "max_concurrent": typed(
                        "integer",
                        f"How many work at the same time; {DEFAULT_CONCURRENT} by default.",
                        minimum=1,
                        default=DEFAULT_CONCURRENT,
                    ),
                    "fail_fast": typed(
                        "boolean",
                        "Whether the first task that fails cancels the others; false by default.",
                        default=False,
                    ),
                },
                "required": ["tasks"],
            }
        ),
    )


def _task_schema(default_max_turns: int, tools: Sequence[str] | None, *, summary: str | None) -> dict[str, Any]:
    """The parameters of one task; `summary` is the default summary prompt, None for no summary."""
    about_summary = "How the subagent is to summarize its findings; its answer is the output."
    summary_prompt = typed("string", f"{about_summary} Without it the output is the task's answer.")
    if summary is not None:
        summary_prompt = typed("string", about_summary, default=summary)
    return {
        "type": "object",
        "properties": {
            "label": typed("string", "Unique identifier for tracking this subagent instance.", minLength=1),
            "task_prompt": typed(
                "string",
                "The specific task for the subagent to complete. It sees nothing of this conversation, so be "
                "self-contained and explicit.",
                minLength=1,
            ),
            "summary_prompt": summary_prompt,
            "allowed_tools": name_list_schema(
                tools,
                "The only tools of yours that the subagent can use; all of them by default. Must not name subagent.",
            ),
            "max_turns": typed(
                "integer",
                f"How many turns the subagent may take; {default_max_turns} by default.",
                minimum=MIN_TURNS,
                maximum=MAX_TURNS,
            ),
        },
        "required": ["label", "task_prompt"],
    }


def parse(arguments: str) -> Delegation:
    """The task of a call, checked in the document's order: shape, prompt, label, turns.

    >>> parse('{"label": "dig", "task_prompt": "find it"}').summary_prompt
    'Summarize your findings concisely'
    """
    return checked(_read(arguments, Shape))


def parse_batch(arguments: str) -> Batch:
    """The tasks of a call of `parallel_subagent`; `max_concurrent` is at most their number.

    >>> parse_batch('{"tasks": [{"label": "a", "task_prompt": "dig"}]}').max_concurrent
    1
    """
    shape = _read(arguments, _BatchShape)
    if shape.tasks is None:
        raise answers.missing("tasks")
    requested = _whole(shape.max_concurrent, "max_concurrent")
    max_concurrent = DEFAULT_CONCURRENT if requested is None else requested
    if max_concurrent < 1:
        raise answers.invalid_input("Expected `int` >= 1 - at `$.max_concurrent`")
    if not shape.tasks:
        raise SubagentRefused(answers.NO_TASKS, "empty_tasks")
    max_concurrent = min(max_concurrent, len(shape.tasks))
    return Batch(tasks=shape.tasks, max_concurrent=max_concurrent, fail_fast=bool(shape.fail_fast))


def checked(shape: Shape, *, summary: str | None = DEFAULT_SUMMARY_PROMPT) -> Delegation:
    """The task, or `SubagentRefused`; `summary` is the summary prompt of a task without one."""
    if shape.label is None:
        raise answers.missing("label")
    max_turns = _whole(shape.max_turns, "max_turns")
    if shape.task_prompt is None or not shape.task_prompt.strip():
        raise SubagentRefused(answers.NO_PROMPT)
    if not shape.label.strip():
        raise answers.missing("label")
    if max_turns is not None and not MIN_TURNS <= max_turns <= MAX_TURNS:
        raise answers.wrong_turns(MIN_TURNS, MAX_TURNS)
    summary_prompt = shape.summary_prompt or ""
    return Delegation(
        label=shape.label,
        task_prompt=shape.task_prompt,
        # Vendors refuse blank messages, so a blank prompt is treated as absent.
        summary_prompt=summary_prompt if summary_prompt.strip() else summary,
        allowed_tools=shape.allowed_tools,
        max_turns=max_turns,
    )


def label_of(arguments: str) -> str:
    """The label of a call, also of one with invalid arguments.

    >>> label_of('{"label": "dig", "max_turns": "many"}'), label_of('{"label": " "}'), label_of("[]")
    ('dig', 'unknown', 'unknown')
    """
    try:
        label = decode(arguments, _Labelled, refuse=CallRefused).label
    except CallRefused:
        return NO_LABEL
    return named(label if isinstance(label, str) else None)


def named(label: str | None) -> str:
    """A label, or `NO_LABEL` for a blank one."""
    return label if label is not None and label.strip() else NO_LABEL


def inherited(allowed_tools: Sequence[str] | None, own: Sequence[str]) -> tuple[str, ...]:
    """The tools of a subagent out of its caller's `own` (without delegation): all, or the allowed ones.

    >>> inherited(["grep", "fetch"], ["fetch", "file_ops", "grep"])
    ('fetch', 'grep')
    """
    if allowed_tools is None:
        return tuple(own)
    for name in allowed_tools:
        if name == SUBAGENT:
            raise answers.not_inherited(SUBAGENT)
        if name not in own:
            raise answers.unknown_tool(name)
    return tuple(name for name in own if name in allowed_tools)


def inheritable(offered: Sequence[str]) -> tuple[str, ...]:
    """The tools of a caller that its subagents can have: all but those for delegation.

    >>> inheritable(["fetch", "subagent", "parallel_subagent"])
    ('fetch',)
    """
    return tuple(name for name in offered if name not in (SUBAGENT, PARALLEL))


def check_depth(depth: int, max_depth: int) -> None:
    """Refuse `subagent` to a caller at the maximum depth."""
    if depth >= max_depth:
        raise answers.too_deep(depth, max_depth)


def check_parallel_depth(depth: int, max_depth: int) -> None:
    """Refuse `parallel_subagent` to a caller at the maximum depth."""
    if depth >= max_depth:
        raise answers.too_deep_for_parallel(max_depth)


def _read(arguments: str, kind: type[S]) -> S:
    return decode(arguments, kind, refuse=answers.invalid_input)


def _whole(number: float | None, name: str) -> int | None:
    if isinstance(number, float) and not number.is_integer():
        raise answers.invalid_input(f"Expected `int`, got `float` - at `$.{name}`")
    return None if number is None else int(number)
