"""A tree of runs as one HTML page: the tree, a waterfall of times, and the conversation of each run.

The page loads nothing and runs no script. Texts of models, tools and files are data: each goes through `_text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from retinue.app.engine_types import RunView
from retinue.app.follow import failure_text
from retinue.app.transcript import Entry, entries
from retinue.cli.output.format import count, elapsed, money, name_of, one_line, short, status_of, total
from retinue.core.events import CallReturned, Event, ReplyReceived, TurnFailed
from retinue.core.ids import RunId
from retinue.core.text import clean, plural, rfc3339

MAX_TITLE = 120
"""Characters of a task in a heading."""

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --good: #2a7f3f; --bad: #c0392b; --model: #3b78c4;
  --tool: #c48a2b; }
@media (prefers-color-scheme: dark) { :root { --good: #58c27a; --bad: #ef6f61; --model: #6fa8e8; --tool: #e0b063; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; font: 13px/1.45 ui-monospace, monospace; }
code, .id { font: 13px ui-monospace, monospace; }
ul.tree, ul.tree ul { list-style: none; margin: 0; padding-left: 1.2rem; border-left: 1px solid var(--line); }
ul.tree { border: 0; padding: 0; }
.good { color: var(--good); } .bad { color: var(--bad); } .soft { opacity: .7; }
.reason { color: var(--bad); margin-left: 1.2rem; }
table.times { border-collapse: collapse; width: 100%; } table.times td { padding: .1rem .4rem; }
table.times td:first-child { white-space: nowrap; max-width: 22rem; overflow: hidden; text-overflow: ellipsis; }
.bar { position: relative; height: 1rem; min-width: 20rem; background: var(--soft); }
.bar span { position: absolute; top: 0; bottom: 0; min-width: 1px; }
.run { background: var(--line); } .model { background: var(--model); } .tool { background: var(--tool); }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .6rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } .entry { border-top: 1px solid var(--line); padding: .4rem 0; }
.entry h3 { font-size: .85rem; margin: 0; opacity: .7; } .thinking pre { opacity: .7; font-style: italic; }
.failed h3 { color: var(--bad); opacity: 1; }
"""


class ExportedRun(NamedTuple):
    """A run with all its events."""

    view: RunView
    events: Sequence[Event]


def page(runs: Sequence[ExportedRun]) -> str:
    """The page of a run and its descendants, which come after their parents."""
    root = runs[0].view
    title = _text(f"retinue: {one_line(root.task, MAX_TITLE) or root.run_id}")
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            # A second bar behind the escaping: no script, no connection, no file of another host.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{_text(name_of(root))}: {_text(one_line(root.task, MAX_TITLE))}</h1>",
            f"<p>{_text(_sums(runs))}</p>",
            "<h2>Tree</h2>",
            *_tree(runs),
            "<h2>Times</h2>",
            '<p class="soft"><span class="model">&nbsp;&nbsp;</span> model '
            '<span class="tool">&nbsp;&nbsp;</span> tool</p>',
            *_waterfall(runs),
            "<h2>Conversations</h2>",
            *(_conversation(run, is_open=run.view.run_id == root.run_id) for run in runs),
            "</body></html>\n",
        )
    )


def _text(text: str) -> str:
    """An untrusted text as HTML text or attribute value, with visible control characters."""
    return escape(clean(text), quote=True)


def _sums(runs: Sequence[ExportedRun]) -> str:
    views = [view for view, _ in runs]
    usage, cost = total(views)
    root = views[0]
    return ", ".join(
        (
            status_of(root),
            plural(len(views), "run"),
            plural(sum(view.turns for view in views), "turn"),
            f"{count(usage.total)} tokens",
            "cost unknown" if cost is None else money(cost),
            f"started {rfc3339(root.started_at)}",
        )
    )


def _tree(runs: Sequence[ExportedRun]) -> Iterator[str]:
    """Nested lists. A stack and no recursion: a tree may be deeper than the recursion limit."""
    below: dict[RunId | None, list[RunView]] = {}
    known = {view.run_id for view, _ in runs}
    for view, _ in runs:
        below.setdefault(view.parent_id if view.parent_id in known else None, []).append(view)
    yield '<ul class="tree">'
    waiting: list[RunView | None] = [*reversed(below[None])]
    while waiting:
        view = waiting.pop()
        if view is None:
            yield "</ul></li>"
            continue
        yield f"<li>{_row(view)}"
        if children := below.get(view.run_id):
            yield "<ul>"
            waiting.append(None)
            waiting += reversed(children)
        else:
            yield "</li>"
    yield "</ul>"


def _row(view: RunView) -> str:
    is_good = view.outcome is None or view.outcome.ok
    status = f'<span class="{"good" if is_good else "bad"}">{_text(status_of(view))}</span>'
    facts = f"{plural(view.turns, 'turn')}, {count(view.usage.total)} tokens, {money(view.cost)}"
    reason = "" if is_good or view.outcome is None else f'<div class="reason">{_text(failure_text(view.outcome))}</div>'
    task = _text(one_line(view.task, MAX_TITLE))
    link = f'<a href="#{_anchor(view)}">{_text(name_of(view))}</a>'
    return f'{link} {_id(view)} {task} {status} <span class="soft">{_text(facts)}</span>{reason}'


def _id(view: RunView) -> str:
    return f'<span class="id soft">{_text(short(view.run_id))}</span>'


def _anchor(view: RunView) -> str:
    return _text(f"run-{view.run_id}")


def _waterfall(runs: Sequence[ExportedRun]) -> Iterator[str]:
    """A bar for each run, with the parts in which it waited for the model and for tools."""
    begin = min(view.started_at for view, _ in runs)
    end = max(_end(run) for run in runs)
    scale = 100 / max(end - begin, 1e-6)
    yield '<table class="times">'
    for run in runs:
        view = run.view
        spans = [("run", view.started_at, _end(run)), *_spans(run.events)]
        bars = "".join(_bar(kind, (start - begin) * scale, (stop - start) * scale) for kind, start, stop in spans)
        took = elapsed(_end(run) - view.started_at)
        name = f'<a href="#{_anchor(view)}">{_text(name_of(view))}</a> {_id(view)}'
        yield f'<tr><td>{name}</td><td><div class="bar">{bars}</div></td><td>{_text(took)}</td></tr>'
    yield "</table>"


def _bar(kind: str, left: float, width: float) -> str:
    return f'<span class="{kind}" style="left:{left:.3f}%;width:{max(0.0, width):.3f}%"></span>'


def _end(run: ExportedRun) -> float:
    if run.view.ended_at is not None:
        return run.view.ended_at
    return max((event.at for event in run.events), default=run.view.started_at)


def _spans(events: Sequence[Event]) -> Iterator[tuple[str, float, float]]:
    """Kind, start and end of each model call and tool call, as far as the times of events tell."""
    replied: dict[int, float] = {}
    before = events[0].at if events else 0.0
    for event in events:
        match event:
            case ReplyReceived(at=at, turn=turn):
                replied[turn] = at
                yield "model", before, at
            case TurnFailed(at=at):
                yield "model", before, at
            case CallReturned(at=at, turn=turn):
                yield "tool", replied.get(turn, at), at
            case _:
                pass
        before = event.at


def _conversation(run: ExportedRun, *, is_open: bool) -> str:
    view = run.view
    heading = f"{_text(name_of(view))} {_id(view)} {_text(one_line(view.task, MAX_TITLE))} ({_text(status_of(view))})"
    shown = "".join(_entry(entry) for entry in entries(run.events))
    body = shown or "<p>The messages of this run were deleted when its tree ended.</p>"
    state = " open" if is_open else ""
    return f'<details id="{_anchor(view)}"{state}><summary>{heading}</summary>{body}</details>'


def _entry(entry: Entry) -> str:
    turn = f", turn {entry.turn}" if entry.turn is not None else ""
    name = f" {entry.name}" if entry.name else ""
    failed = " failed" if entry.failed else ""
    heading = f"{entry.kind}{name}{turn}{', failed' if entry.failed else ''} · {entry.at}"
    body = f"<h3>{_text(heading)}</h3><pre>{_text(entry.text or '(nothing)')}</pre>"
    return f'<div class="entry {entry.kind}{failed}">{body}</div>'
