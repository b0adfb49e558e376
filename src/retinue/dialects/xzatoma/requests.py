"""The arguments of the tools of `xzatoma`, parsed and checked before anything happens.

The texts of refusals are the document's, letter by letter. Any text that a model can write is parsed, or raises
`SubagentRefused`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.dialects.arguments import CallRefused, compact, decode

SUBAGENT = "subagent"
PARALLEL = "parallel_subagent"
DEFAULT_SUMMARY_PROMPT = "Summarize your findings concisely"
FEWEST_TURNS = 1
MOST_TURNS = 50
NO_LABEL = "unknown"
"""The label of a call that has none."""


S = TypeVar("S", bound=Struct)

ErrorType = Literal[
    "quota_exceeded",
    "max_depth_reached",
    "invalid_input",
    "initialization_failed",
    "execution_failed",
    "empty_tasks",
]
"""What goes wrong, as metrics call it."""


class SubagentRefused(CallRefused):
    """A call that is refused or failed; its text is the `error` that the model reads."""

    def __init__(self, text: str, error_type: ErrorType = "invalid_input") -> None:
        super().__init__(text)
        self.error_type: ErrorType = error_type


class Delegation(Struct, frozen=True, kw_only=True):
    """A task that can be given: `allowed_tools` is None for all of the caller's, `max_turns` None for the default.

    Without a summary prompt nothing is asked after the task's answer.
    """

    label: str
    task_prompt: str
    summary_prompt: str | None = DEFAULT_SUMMARY_PROMPT
    allowed_tools: tuple[str, ...] | None = None
    max_turns: int | None = None


class Shape(Struct):
    """The members as JSON has them; null is the same as leaving one out, and JSON writes 10 as 10.0 too."""

    label: str | None = None
    task_prompt: str | None = None
    summary_prompt: str | None = None
    allowed_tools: tuple[str, ...] | None = None
    max_turns: int | float | None = None


class _Labelled(Struct):
    label: object = None


def spec(default_max_turns: int) -> ToolSpec:
    """The tool as a model sees it."""
    return ToolSpec(
        SUBAGENT,
        "Delegate a focused task to a recursive agent instance with isolated conversation context. Use this when you "
        "need to explore a sub-problem independently without polluting the main conversation.",
        compact(task_schema(default_max_turns, summary=DEFAULT_SUMMARY_PROMPT)),
    )


def task_schema(default_max_turns: int, *, summary: str | None) -> dict[str, Any]:
    """The parameters of one task; `summary` is the prompt of a task that names none, if it is summarized at all."""
    asks = "How the subagent is to summarize its findings; its answer is the output."
    summary_prompt = {"type": "string", "description": f"{asks} Without it the output is the task's answer."}
    if summary is not None:
        summary_prompt = {"type": "string", "default": summary, "description": asks}
    return {
        "type": "object",
        "properties": {
            "label": {
                "type": "string",
                "minLength": 1,
                "description": "Unique identifier for tracking this subagent instance.",
            },
            "task_prompt": {
                "type": "string",
                "minLength": 1,
                "description": "The specific task for the subagent to complete. It sees nothing of this conversation, "
                "so be self-contained and explicit.",
            },
            "summary_prompt": summary_prompt,
            "allowed_tools": {
                "type": "array",
                "items": {"type": "string"},
                "description": "The only tools of yours that the subagent can use; all of them by default. "
                "Must not name subagent.",
            },
            "max_turns": {
                "type": "integer",
                "minimum": FEWEST_TURNS,
                "maximum": MOST_TURNS,
                "description": f"How many turns the subagent may take; {default_max_turns} by default.",
            },
        },
        "required": ["label", "task_prompt"],
    }


def parse(arguments: str) -> Delegation:
    """The delegation that a call asks for, checked in the document's order: shape, prompt, label, turns.

    >>> parse('{"label": "dig", "task_prompt": "find it"}').summary_prompt
    'Summarize your findings concisely'
    """
    return checked(read(arguments, Shape))


def checked(asked: Shape, *, summary: str | None = DEFAULT_SUMMARY_PROMPT) -> Delegation:
    """The delegation that somebody asks for, if it can be met; `summary` is the prompt of one that has none."""
    if asked.label is None:
        raise _missing_label()
    max_turns = whole(asked.max_turns, "max_turns")
    if asked.task_prompt is None or not asked.task_prompt.strip():
        raise SubagentRefused("task_prompt cannot be empty")
    if not asked.label.strip():
        raise _missing_label()
    if max_turns is not None and not FEWEST_TURNS <= max_turns <= MOST_TURNS:
        raise SubagentRefused(f"max_turns must be between {FEWEST_TURNS} and {MOST_TURNS}")
    summary_prompt = asked.summary_prompt or ""
    return Delegation(
        label=asked.label,
        task_prompt=asked.task_prompt,
        # Vendors refuse a message without words, so a blank prompt is as good as none.
        summary_prompt=summary_prompt if summary_prompt.strip() else summary,
        allowed_tools=asked.allowed_tools,
        max_turns=max_turns,
    )


def label_of(arguments: str) -> str:
    """The label under which even a call that makes no sense is answered.

    >>> label_of('{"label": "dig", "max_turns": "many"}'), label_of('{"label": " "}'), label_of("[]")
    ('dig', 'unknown', 'unknown')
    """
    try:
        label = decode(arguments, _Labelled, refuse=CallRefused).label
    except CallRefused:
        return NO_LABEL
    return named(label if isinstance(label, str) else None)


def named(label: str | None) -> str:
    """A label, or the one of a task that has none."""
    return label if label is not None and label.strip() else NO_LABEL


def inherited(allowed_tools: Sequence[str] | None, own: Sequence[str]) -> tuple[str, ...]:
    """The tools that a subagent gets of its caller's `own`, delegation left out: all, or those that are allowed.

    >>> inherited(["grep", "fetch"], ["fetch", "file_ops", "grep"])
    ('fetch', 'grep')
    """
    if allowed_tools is None:
        return tuple(own)
    for name in allowed_tools:
        if name == SUBAGENT:
            raise SubagentRefused(f"Tool '{SUBAGENT}' cannot be used by subagents")
        if name not in own:
            raise SubagentRefused(f"Unknown tool in allowed_tools: {name}")
    return tuple(name for name in own if name in allowed_tools)


def check_depth(depth: int, max_depth: int) -> None:
    """Refuse a caller that is as deep as the settings allow."""
    if depth >= max_depth:
        raise SubagentRefused(
            f"Maximum subagent recursion depth ({max_depth}) exceeded. Current depth: {depth}. "
            "Cannot spawn nested subagent.",
            "max_depth_reached",
        )


def read(arguments: str, kind: type[S]) -> S:
    """The members of a call."""
    return decode(arguments, kind, refuse=lambda reason: SubagentRefused(f"Invalid input: {reason}"))


def whole(number: float | None, name: str) -> int | None:
    """A whole number, however JSON wrote it."""
    if isinstance(number, float) and not number.is_integer():
        raise SubagentRefused(f"Invalid input: Expected `int`, got `float` - at `$.{name}`")
    return None if number is None else int(number)


def _missing_label() -> SubagentRefused:
    return SubagentRefused("Invalid input: missing field `label`")


def answer(metadata: Mapping[str, str], *, output: str = "", error: str | None = None) -> str:
    """As the model reads it.

    >>> answer({}, error="task_prompt cannot be empty")
    '{"success":false,"output":"","error":"task_prompt cannot be empty","metadata":{}}'
    """
    return compact({"success": error is None, "output": output, "error": error, "metadata": metadata})
