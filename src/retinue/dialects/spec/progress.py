"""What a subagent has said and done lately, in a form that its orchestrator can afford to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from retinue.core.messages import AssistantMessage, Message, ToolMessage
from retinue.core.state import Run
from retinue.dialects.spec.results import Task
from retinue.dialects.text import cut

MAX_ENTRIES = 20
ENTRY_CHARACTERS = 400
LEFT_OUT = " [...]"


class Entry(Struct, frozen=True):
    """One thing that happened in a turn: words of the model, a call that it made, or what a call came to."""

    turn: int
    kind: Literal["text", "call", "result"]
    text: str


def progress(task: Task, run: Run | None, partial: str = "") -> dict[str, object]:
    """What `progress` answers: the newest entries, oldest first; `partial` is what the model is saying just now."""
    entries = [] if run is None else list(_entries(run))
    if run is not None and partial:
        entries.append(Entry(run.turns + 1, "text", _short(partial)))
    return {
        "task_id": task.task_id,
        "status": task.status,
        "turns_used": task.turns_used,
        "entries": entries[-MAX_ENTRIES:],
        "more": len(entries) > MAX_ENTRIES or (run is not None and _begins_later(run.history, run.turns)),
    }


def _entries(run: Run) -> Iterator[Entry]:
    # Counted from the end, where a history is never made shorter.
    turn = run.turns - sum(isinstance(message, AssistantMessage) for message in run.history)
    for message in run.history:
        match message:
            case AssistantMessage(text=text, calls=calls):
                turn += 1
                if text:
                    yield Entry(turn, "text", _short(text))
                for call in calls:
                    yield Entry(turn, "call", _short(f"{call.name} {call.arguments}"))
            case ToolMessage(name=name, text=text):
                yield Entry(turn, "result", _short(f"{name}: {text}"))
            case _:
                pass
    for open_call in run.open:  # results enter the history together, when the last of them is there
        if open_call.result is not None:
            yield Entry(turn, "result", _short(f"{open_call.call.name}: {open_call.result.text}"))


def _begins_later(history: Sequence[Message], turns: int) -> bool:
    """Whether earlier turns are no longer in the history, because it was made shorter."""
    return sum(isinstance(message, AssistantMessage) for message in history) < turns


def _short(text: str) -> str:
    return cut(text, ENTRY_CHARACTERS, LEFT_OUT).text
