"""What happens in a run as short lines for somebody who watches: who asked, shared, delegated, called and answered."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, assert_never

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.text import Text

from retinue.app.engine_types import RunView
from retinue.cli.output.format import clean, elapsed, many, money, one_line, tokens
from retinue.cli.output.json_rows import name_of, status_of
from retinue.cli.output.live import LiveTree
from retinue.cli.output.terminal import can_redraw, console
from retinue.core.events import (
    CallParked,
    CallReturned,
    Event,
    ExchangeEnded,
    HistoryCompacted,
    MailTaken,
    RepairAsked,
    ReplyReceived,
    ResultCollected,
    RunAccepted,
    RunAdopted,
    RunEnded,
    RunLeft,
    TurnFailed,
    WrapUpAsked,
)
from retinue.core.ids import RunId
from retinue.core.inbox import Input, TextMessage
from retinue.core.messages import ToolCall

USER = "user"


class Line(Struct, frozen=True):
    """Who did what, and when."""

    at: float
    who: str
    what: str


def lines(view: RunView, events: Iterable[Event]) -> list[Line]:
    """The lines of one run. Looking around (status, list_keys) is left out: it says nothing new."""
    turns = 0
    told: list[Line] = []
    for event in events:
        turns = event.turn if isinstance(event, ReplyReceived) else turns
        told += _told(event, view, turns)
    return told


def _told(event: Event, view: RunView, turns: int) -> Iterator[Line]:
    who, at = name_of(view), event.at
    match event:
        case RunAccepted(task=task):
            if view.parent_id is None:  # of others, whoever spawned them has told
                yield Line(at, USER, task)
        case ReplyReceived(reply=reply):
            yield from (Line(at, who, what) for what in _calls(reply.message.calls))
            if reply.message.text and not reply.message.calls:
                yield Line(at, who, f"says: {reply.message.text}")
        case CallReturned(text=text, failed=failed):
            if failed:
                yield Line(at, who, f"is told: {text}")
        case MailTaken(items=items):
            yield from (Line(at, USER, item.text) for item in items if isinstance(item, TextMessage | Input))
        case RunAdopted():
            yield Line(at, who, f"goes on after turn {turns} in another process")
        case TurnFailed(error=error):
            yield Line(at, who, f"got no answer: {error}")
        case RunEnded(outcome=outcome):
            if not outcome.ok:
                yield Line(at, who, f"{outcome.result}: {outcome.error}")
        case CallParked() | WrapUpAsked() | RepairAsked() | ExchangeEnded() | HistoryCompacted():
            pass
        case ResultCollected() | RunLeft():
            pass
        case _:
            assert_never(event)


def _calls(calls: Sequence[ToolCall]) -> Iterator[str]:
    """The calls of one turn, several of a kind on one line."""
    asked = [(call.name, _fields(call)) for call in calls]
    if read := [str(fields.get("key")) for name, fields in asked if (name, _action(fields)) == _READ]:
        yield f"reads {', '.join(read)}"
    for name, fields in asked:
        match name, _action(fields):
            case "shared_context", "write":
                yield f"shares {fields.get('key')}: {fields.get('value')}"
            case "shared_context", "delete":
                yield f"deletes {fields.get('key')}"
            case "shared_context", _:
                pass
            case "subagent", "define":
                yield f"defines a new agent, {fields.get('name')}: {fields.get('description')}"
            case "subagent", "spawn":
                yield f"spawns {fields.get('agent')}: {fields.get('task')}"
            case "subagent", "collect":
                yield f"collects {fields.get('task_id')}"
            case "subagent", _:
                pass
            case _:
                arguments = ", ".join(f"{key}={value!r}" for key, value in fields.items())
                yield f"calls {name}({arguments})"


_READ = ("shared_context", "read")


def _fields(call: ToolCall) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(call.arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _action(fields: Mapping[str, Any]) -> str:
    return str(fields.get("action", ""))


WHO = 15
LONGEST = 160
"""Characters of a line where there is no width to keep to."""


class DemoScreen:
    """Draws on a console; `live` is None where nothing can be drawn again in place."""

    def __init__(self, screen: Console, live: LiveTree | None) -> None:
        self._screen = screen
        self._live = live
        self._statuses: dict[RunId, str] = {}

    def say(self, text: str = "", *, style: str = "") -> None:
        """A line of the demonstration itself."""
        self._screen.print(text, style=style or None, soft_wrap=not self._screen.is_terminal)

    def tell(self, line: Line, *, since: float) -> None:
        """Something that happened, on one line."""
        start = f"{elapsed(line.at - since):>6}  "
        room = self._screen.width - len(start) - WHO - 2 if self._screen.is_terminal else LONGEST
        told = Text(start, style="dim")
        told.append(f"{clean(line.who):<{WHO}}  ", style="bold magenta" if line.who == USER else "cyan")
        told.append(one_line(line.what, max(1, room)), style="not dim")
        self._screen.print(told, soft_wrap=True)

    def show(self, views: Sequence[RunView]) -> None:
        """The tree as it stands now; without a place for it, whoever was interrupted or has ended."""
        if self._live is not None:
            self._live.show(views)
            return
        for view in views:
            status = status_of(view)
            if self._statuses.get(view.run_id) != status and (view.outcome is not None or status == "interrupted"):
                spent = f"{many(view.turns, 'turn')}, {tokens(view.usage.total)}, {money(view.cost)}"
                self.say(f"        {clean(name_of(view)):<{WHO}}  {status}: {spent}")
            self._statuses[view.run_id] = status


@contextmanager
def demo_screen() -> Generator[DemoScreen]:
    """The screen behind stdout; when the block ends a live tree is gone, and the lines stay."""
    screen = console()
    if not (sys.stdout.isatty() and can_redraw(screen)):
        yield DemoScreen(screen, None)
        return
    with LiveTree(screen, gap=1) as live:
        yield DemoScreen(screen, live)
