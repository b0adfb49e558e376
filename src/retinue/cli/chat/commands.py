"""The slash commands of a chat: parsing, help, and the tables that they print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from textwrap import wrap
from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.app.engine_types import RunView
from retinue.cli.output.format import count, estimate_text, money, name_of, one_line, short, status_of, tokens_of, total
from retinue.cli.output.table import Column, print_table
from retinue.cli.output.terminal import answer_lines, console, say
from retinue.core.agent import Agent, ToolSpec
from retinue.core.ids import RunId
from retinue.core.model_options import EFFORTS
from retinue.core.usage import Usage

CommandName: TypeAlias = Literal[
    "help",
    "status",
    "tools",
    "cost",
    "agents",
    "model",
    "effort",
    "system",
    "subagents",
    "retry",
    "undo",
    "compact",
    "export",
    "clear",
    "quit",
]

COMMANDS: dict[CommandName, tuple[str, str]] = {
    "help": ("", "this list"),
    "status": ("", "model, session, run, turns, tokens, cost, and whether delegation is on"),
    "tools": ("", "the tools offered to the model"),
    "cost": ("", "tokens and cost of this conversation, by run"),
    "agents": ("", "the agents of the settings, and the runs of this chat with their state"),
    "model": ("[NAME]", "answer with another model, provider:name or a name; without an argument, show it"),
    "effort": ("[STEP]", f"how much the model thinks: {', '.join(EFFORTS)}; without an argument, show it"),
    "system": ("[TEXT]", "set the system prompt; without an argument, show it"),
    "subagents": ("[on|off]", "turn delegation on or off; without an argument, toggle it"),
    "retry": ("", "answer the last input again; the conversation goes back to before it"),
    "undo": ("", "undo the changes that the file tools made for the last answer"),
    "compact": ("", "shorten the conversation so far before the next answer"),
    "export": ("FILE", "write the conversation to a file: .md, .html or .jsonl"),
    "clear": ("", "start a new conversation"),
    "quit": ("", "leave the chat, as /exit, exit and Ctrl-D do"),
}
"""Every command with its argument and description."""

_NAMES: dict[str, CommandName] = {**{name: name for name in COMMANDS}, "exit": "quit"}

LEAVING = ("exit", "quit")
"""Inputs that leave the chat without a slash."""


class Command(Struct, frozen=True):
    """A command with its argument."""

    name: CommandName
    argument: str = ""


class PromptLine(Struct, frozen=True):
    """Text for the model."""

    text: str


class ShellCommand(Struct, frozen=True):
    """A command that a person wants to run."""

    text: str


class Mistake(Struct, frozen=True):
    """An invalid command, and the error message."""

    message: str


Parsed: TypeAlias = Command | ShellCommand | PromptLine | Mistake


def parse_input(text: str, *, by_hand: bool = False) -> Parsed:
    r"""An input as a command or as text; several lines are always text.

    Only an input that was typed `by_hand` can be a shell command: a program may pipe texts of others into a chat.

    >>> parse_input("/subagents off"), parse_input("//etc/hosts?"), parse_input("exit")
    (Command(name='subagents', argument='off'), PromptLine(text='/etc/hosts?'), Command(name='quit', argument=''))
    >>> parse_input("! git status", by_hand=True), parse_input("! git status")
    (ShellCommand(text='git status'), PromptLine(text='! git status'))
    >>> parse_input("/statsu")
    Mistake(message='there is no command /statsu; did you mean /status? (/help lists them, // sends a slash)')
    """
    stripped = text.strip()
    if "\n" in stripped:
        return PromptLine(text)
    if stripped.startswith("//"):
        return PromptLine(stripped[1:])
    if stripped.lower() in LEAVING:
        return Command("quit")
    if by_hand and stripped.startswith("!") and stripped.strip("! "):
        return ShellCommand(stripped[1:].strip())
    if not stripped.startswith("/"):
        return PromptLine(text)
    word, _, argument = stripped[1:].partition(" ")
    name = _NAMES.get(word.lower())
    if name is None:
        return Mistake(_unknown(word))
    argument = argument.strip()
    expected = COMMANDS[name][0]
    if argument and not expected:
        return Mistake(f"/{name} takes no argument")
    if not argument and expected and not expected.startswith("["):
        return Mistake(f"/{name} needs an argument: /{name} {expected}")
    return Command(name, argument)


def _unknown(word: str) -> str:
    near = [] if "/" in word else get_close_matches(word.lower(), COMMANDS, n=1)  # a path is not a misspelt command
    hint = f"; did you mean /{near[0]}?" if near else ""
    return f"there is no command /{word}{hint} (/help lists them, // sends a slash)"


def help_lines(columns: int) -> list[str]:
    """The text of /help, wrapped to the columns.

    >>> print("\\n".join(help_lines(48)[-1:]))
    twice at the prompt, or Ctrl-D, leaves.
    """
    shown = [(f"/{name} {argument}".rstrip(), about) for name, (argument, about) in COMMANDS.items()]
    width = max(len(left) for left, _ in shown)
    texts = (
        "@FILE in an input adds the lines of a text file, as file_read returns them. !COMMAND runs a shell command as "
        "the tool shell would, in its sandbox and within the policy, and adds its output to the next input. Both work "
        "at a terminal alone.",
        'A line that ends in \\ continues; lines between """ and """ are one input; // begins text with a slash.',
        "Ctrl-C stops an answer, or clears the line; twice at the prompt, or Ctrl-D, leaves.",
    )
    return [
        *(line for left, about in shown for line in _wrapped(f"{left:<{width}}  {about}", columns, indent=width + 2)),
        "",
        *(line for text in texts for line in _wrapped(text, columns)),
    ]


def _wrapped(text: str, columns: int, *, indent: int = 0) -> list[str]:
    return wrap(text, columns, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)


WIDTH = 18
"""Columns of the titles of /status."""

Trees = Sequence[Sequence[RunView]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStatus:
    """What /status prints besides the numbers of the runs."""

    model: str
    session: str
    run_id: RunId | None
    agent: str | None
    delegates: bool


def print_status(status: ChatStatus, trees: Trees) -> None:
    from rich.text import Text

    views = [view for tree in trees for view in tree]
    usage, cost = total(views)
    children = sum(view.parent_id is not None for view in views)
    rows = [
        ("Model:", Text(status.model)),
        *([("Agent:", Text(status.agent))] if status.agent else []),
        ("Session:", Text(status.session)),
        ("Run:", Text(status.run_id or "none yet")),
        ("Turns:", Text(str(sum(tree[0].turns for tree in trees)))),
        ("Children:", Text(str(children))),
        ("Tokens:", Text(f"{count(usage.input)} in, {count(usage.output)} out")),
        *([("", Text(estimate))] if (estimate := estimate_text(views)) else []),
        ("Cost:", Text("unknown" if cost is None else money(cost))),
        ("Subagents:", Text("ENABLED", style="green") if status.delegates else Text("disabled")),
    ]
    screen = console()
    for title, value in rows:
        screen.print(Text.assemble(f"{title:<{WIDTH}}", value), soft_wrap=True)


def print_cost(trees: Trees) -> None:
    rows = [_Spent(_indented(view), view.turns, view.usage, view.cost) for tree in trees for view in tree]
    if not rows:
        say("no input was sent yet")
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
    if estimate := estimate_text(view for tree in trees for view in tree):
        say(estimate)


@dataclass(frozen=True, slots=True)
class _Spent:
    name: str
    turns: int
    usage: Usage
    cost: int | None


def _indented(view: RunView) -> str:
    return f"{'  ' * view.depth}{name_of(view)} {short(view.run_id)}"


def print_agents(agents: Iterable[Agent], trees: Trees) -> None:
    known = list(agents)
    if known:
        columns: list[Column[Agent]] = [
            Column(title="AGENT", cell=lambda agent: agent.name),
            Column(title="WHAT IT DOES", cell=lambda agent: one_line(agent.description), shrinks=True),
        ]
        print_table(known, columns)
    else:
        answer_lines("the settings have no agents")
    children = [view for tree in trees for view in tree if view.parent_id is not None]
    if not children:
        answer_lines("no children were started in this chat")
        return
    answer_lines("")
    shown: list[Column[RunView]] = [
        Column(title="CHILD", cell=lambda view: f"{'  ' * (view.depth - 1)}{name_of(view)}", shrinks=True),
        Column(title="RUN", cell=lambda view: short(view.run_id), piped=lambda view: view.run_id),
        Column(title="STATE", cell=status_of),
        Column(title="TURNS", cell=lambda view: str(view.turns), right=True, least_width=50),
        Column(title="TOKENS", cell=tokens_of, right=True, least_width=60),
        Column(title="COST", cell=lambda view: money(view.cost), right=True, least_width=70),
    ]
    print_table(children, shown)


def print_tools(offered: Sequence[ToolSpec]) -> None:
    if not offered:
        answer_lines("the model is offered no tools (--tools and /subagents on change that)")
        return
    columns: list[Column[ToolSpec]] = [
        Column(title="TOOL", cell=lambda spec: spec.name),
        Column(
            title="WHAT IT DOES", cell=lambda spec: one_line(spec.description.partition("\n")[0], 400), shrinks=True
        ),
    ]
    print_table(offered, columns)
