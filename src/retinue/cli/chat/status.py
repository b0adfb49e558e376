"""What a chat's commands show: where it stands, what it cost, who works, and what the model is offered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retinue.app.engine_types import RunView
from retinue.cli.output.format import clean, count, money, one_line, short
from retinue.cli.output.json_rows import name_of, status_of, total
from retinue.cli.output.table import Column, print_table
from retinue.cli.output.terminal import answer, console, say
from retinue.core.agent import Agent, ToolSpec
from retinue.core.ids import RunId
from retinue.core.usage import Usage

WIDTH = 18
"""Columns of a title of `/status`."""

Trees = Sequence[Sequence[RunView]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What `/status` tells besides the numbers of the runs."""

    model: str
    session: str
    run_id: RunId | None
    agent: str | None
    delegates: bool


def show_status(standing: Standing, trees: Trees) -> None:
    """Where the chat stands."""
    from rich.text import Text

    everyone = [view for tree in trees for view in tree]
    usage, cost = total(everyone)
    children = sum(view.parent_id is not None for view in everyone)
    rows = [
        ("Model:", Text(clean(standing.model))),
        *([("Agent:", Text(standing.agent))] if standing.agent else []),
        ("Session:", Text(clean(standing.session))),
        ("Run:", Text(standing.run_id or "none yet")),
        ("Turns:", Text(str(sum(tree[0].turns for tree in trees)))),
        ("Children:", Text(str(children))),
        ("Tokens:", Text(f"{count(usage.input)} in, {count(usage.output)} out")),
        ("Cost:", Text("unknown" if cost is None else money(cost))),
        ("Subagents:", Text("ENABLED", style="green") if standing.delegates else Text("disabled")),
    ]
    screen = console()
    for title, value in rows:
        screen.print(Text.assemble(f"{title:<{WIDTH}}", value), soft_wrap=True)


def show_cost(trees: Trees) -> None:
    """Tokens and money, run by run and altogether."""
    rows = [_Spent(_indented(view), view.turns, view.usage, view.cost) for tree in trees for view in tree]
    if not rows:
        say("nothing was asked yet")
        return
    usage, cost = total(view for tree in trees for view in tree)
    rows.append(_Spent("total", sum(row.turns for row in rows), usage, cost))
    columns: list[Column[_Spent]] = [
        Column(title="RUN", cell=lambda row: row.name, shrinks=True),
        Column(title="TURNS", cell=lambda row: str(row.turns), right=True, least_width=50),
        Column(title="IN", cell=lambda row: count(row.usage.input), piped=lambda row: str(row.usage.input), right=True),
        Column(
            title="CACHED",
            cell=lambda row: count(row.usage.cached),
            piped=lambda row: str(row.usage.cached),
            right=True,
            least_width=70,
        ),
        Column(
            title="OUT", cell=lambda row: count(row.usage.output), piped=lambda row: str(row.usage.output), right=True
        ),
        Column(title="COST", cell=lambda row: money(row.cost), right=True),
    ]
    print_table(rows, columns)


@dataclass(frozen=True, slots=True)
class _Spent:
    name: str
    turns: int
    usage: Usage
    cost: int | None


def _indented(view: RunView) -> str:
    return f"{'  ' * view.depth}{clean(name_of(view))} {short(view.run_id)}"


def show_agents(agents: Iterable[Agent], trees: Trees) -> None:
    """Who is written down, and who was started."""
    known = list(agents)
    if known:
        columns: list[Column[Agent]] = [
            Column(title="AGENT", cell=lambda agent: clean(agent.name)),
            Column(title="WHAT IT DOES", cell=lambda agent: one_line(agent.description), shrinks=True),
        ]
        print_table(known, columns)
    else:
        answer("the settings have no agents")
    children = [view for tree in trees for view in tree if view.parent_id is not None]
    if not children:
        answer("no children were started in this chat")
        return
    answer("")
    shown: list[Column[RunView]] = [
        Column(title="CHILD", cell=lambda view: f"{'  ' * (view.depth - 1)}{clean(name_of(view))}", shrinks=True),
        Column(title="RUN", cell=lambda view: short(view.run_id), piped=lambda view: view.run_id),
        Column(title="STATE", cell=status_of),
        Column(title="TURNS", cell=lambda view: str(view.turns), right=True, least_width=50),
        Column(title="TOKENS", cell=lambda view: count(view.usage.total), right=True, least_width=60),
        Column(title="COST", cell=lambda view: money(view.cost), right=True, least_width=70),
    ]
    print_table(children, shown)


def show_tools(offered: Sequence[ToolSpec]) -> None:
    """What the model can call."""
    if not offered:
        answer("the model is offered no tools (--tools and /subagents on change that)")
        return
    columns: list[Column[ToolSpec]] = [
        Column(title="TOOL", cell=lambda spec: clean(spec.name)),
        Column(
            title="WHAT IT DOES", cell=lambda spec: one_line(spec.description.partition("\n")[0], 400), shrinks=True
        ),
    ]
    print_table(offered, columns)
